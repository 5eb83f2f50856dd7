//! `backends`: the Pods behind policies, their figures summed over the dataplanes. Pure.

use crate::{
    fleet::Nodes,
    names::PolicyName,
    progress::DrainProgress,
    text::{Cell, Shown, Style, Table, Tone, count, line, micros, wrapped},
};
use baton_api::{BackendState, StateReply};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// One backend of one listener.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Backend {
    /// The listener.
    #[serde(flatten)]
    pub policy: PolicyName,
    /// The Pod.
    pub backend: String,
    /// Where it listens.
    pub endpoint: String,
    /// Its node, if that may be seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// One word; where dataplanes differ, the worst.
    pub state: String,
    /// Sentences for what is not simply up, each with the dataplanes that say so.
    pub reasons: Vec<String>,
    /// Its share of new flows.
    pub weight: u16,
    /// Flows that it owns.
    pub flows: u64,
    /// Of these, the ones that can never move.
    pub pinned: u64,
    /// Requests without a response byte yet.
    pub outstanding: u64,
    /// Peak average of the time to the first byte, on the dataplane where it is highest.
    pub first_byte_micros: u64,
    /// Requests since the dataplanes started.
    pub requests: u64,
    /// Flows that came by migration.
    pub moves_in: u64,
    /// Flows that left by migration.
    pub moves_out: u64,
    /// Flows that died here and went on elsewhere.
    pub rescued: u64,
    /// Flows that wait for another owner.
    pub stranded: u64,
    /// Dataplanes that have it.
    pub dataplanes: usize,
}

/// The larger, the worse.
fn weight_of(word: &str) -> u8 {
    match word {
        "up" => 0,
        "slow start" => 1,
        "no adopt" => 2,
        "weight 0" => 3,
        "drains" => 4,
        _ => 5,
    }
}

/// What the word for its state does not say.
fn reasons(backend: &BackendState) -> Vec<String> {
    let mut said = Vec::new();
    if !backend.health.is_up() {
        said.push(format!("is {}", backend.health));
    }
    if !backend.adoptability.is_ready() {
        said.push(format!("cannot adopt: {}", backend.adoptability));
    }
    if let Some(why) = backend.untranslatable() {
        said.push(match backend.adoptability.may_connect() {
            true => format!("gets no connection by translation: {why}"),
            false => "cannot be connected to either".to_owned(),
        });
    }
    if backend.draining || backend.drain.is_some() {
        let by = match &backend.drain {
            Some(drain) if drain.by_command => "by command",
            _ => "because its Pod ends or the configuration says so",
        };
        let left = DrainProgress::of(backend).map_or_else(
            || format!("{} left", count(backend.flows, "flow")),
            |progress| progress.line(),
        );
        said.push(format!("drains {by}: {left}"));
    } else if backend.weight == 0 {
        said.push("has weight 0: it takes no new flows".to_owned());
    }
    said
}

/// The backends of the policies that are meant, by policy and name.
pub fn backends(
    answers: &[(&str, &StateReply)],
    nodes: &Nodes,
    wanted: impl Fn(&PolicyName) -> bool,
) -> Vec<Backend> {
    let mut found: BTreeMap<(PolicyName, String, String), Backend> = BTreeMap::new();
    let mut said: BTreeMap<(PolicyName, String, String), BTreeMap<String, BTreeSet<&str>>> =
        BTreeMap::new();
    for (dataplane, answer) in answers {
        for policy in &answer.state.policies {
            let name = PolicyName::parse(&policy.name);
            if !wanted(&name) {
                continue;
            }
            for state in &policy.backends {
                let endpoint = state.endpoint.to_string();
                let key = (name.clone(), state.name.clone(), endpoint.clone());
                let place = (name.namespace.clone(), state.endpoint.address());
                let entry = found.entry(key.clone()).or_insert_with(|| Backend {
                    policy: name.clone(),
                    backend: state.name.clone(),
                    endpoint,
                    node: nodes.get(&place).cloned(),
                    state: state.word().to_owned(),
                    reasons: Vec::new(),
                    weight: state.weight,
                    flows: 0,
                    pinned: 0,
                    outstanding: 0,
                    first_byte_micros: 0,
                    requests: 0,
                    moves_in: 0,
                    moves_out: 0,
                    rescued: 0,
                    stranded: 0,
                    dataplanes: 0,
                });
                add(entry, state);
                for reason in reasons(state) {
                    let said = said.entry(key.clone()).or_default();
                    said.entry(reason).or_default().insert(dataplane);
                }
            }
        }
    }
    for (key, reasons) in said {
        let Some(backend) = found.get_mut(&key) else {
            continue;
        };
        for (reason, names) in reasons {
            let everywhere = names.len() == answers.len();
            let names: Vec<&str> = names.into_iter().collect();
            backend.reasons.push(match everywhere {
                true => reason,
                false => format!("{reason} (says {})", names.join(", ")),
            });
        }
    }
    found.into_values().collect()
}

fn add(sum: &mut Backend, state: &BackendState) {
    if weight_of(state.word()) > weight_of(&sum.state) {
        sum.state = state.word().to_owned();
    }
    sum.flows += state.flows;
    sum.pinned += state.pinned;
    sum.outstanding += state.outstanding;
    sum.first_byte_micros = sum.first_byte_micros.max(state.first_byte.0);
    sum.requests += state.requests_total;
    sum.moves_in += state.migrations_in_total;
    sum.moves_out += state.migrations_out_total;
    sum.rescued += state.rescued_total;
    sum.stranded += state.stranded;
    sum.dataplanes += 1;
}

impl Backend {
    /// Its word, in the colour of that.
    pub fn state(&self) -> Cell {
        let tone = match weight_of(&self.state) {
            0 => Tone::Good,
            1..=4 => Tone::Warn,
            _ => Tone::Bad,
        };
        Cell::toned(self.state.as_str(), tone)
    }
}

/// The table, and a sentence for each backend that is not simply up.
pub fn render(backends: &[Backend], style: Style) -> String {
    if backends.is_empty() {
        return "No backends.\n".to_owned();
    }
    let mut text = String::new();
    let several: BTreeSet<&PolicyName> = backends.iter().map(|b| &b.policy).collect();
    for policy in several {
        if !text.is_empty() {
            line(&mut text, "");
        }
        line(&mut text, &format!("Policy {policy}"));
        let mine = || backends.iter().filter(|b| b.policy == *policy);
        text.push_str(&Table::of(mine(), &columns(style)).render(style));
        for backend in mine() {
            for reason in &backend.reasons {
                wrapped(&mut text, "  ", &format!("{} {reason}", backend.backend));
            }
            let mut fates = Vec::new();
            if backend.rescued > 0 {
                fates.push(format!(
                    "{} died here and went on elsewhere",
                    count(backend.rescued, "flow")
                ));
            }
            if backend.stranded > 0 {
                fates.push(format!(
                    "{} without an owner that adopts",
                    count(backend.stranded, "flow")
                ));
            }
            if !fates.is_empty() {
                wrapped(&mut text, "  ", &format!("{}: {}", backend.backend, fates.join(", ")));
            }
        }
    }
    text
}

fn columns<'a>(style: Style) -> Vec<Shown<&'a Backend>> {
    let mut columns: Vec<Shown<&Backend>> = vec![
        ("BACKEND", |b| b.backend.as_str().into()),
        ("ENDPOINT", |b| b.endpoint.as_str().into()),
        ("STATE", |b| b.state()),
        ("#FLOWS", |b| b.flows.into()),
        ("#OUTST.", |b| b.outstanding.into()),
        ("#1ST BYTE", |b| micros(b.first_byte_micros).into()),
        ("#IN", |b| b.moves_in.into()),
        ("#OUT", |b| b.moves_out.into()),
    ];
    if style.wide {
        columns.extend::<[Shown<&Backend>; 7]>([
            ("NODE", |b| b.node.as_deref().unwrap_or("-").into()),
            ("#WEIGHT", |b| u64::from(b.weight).into()),
            ("#PINNED", |b| b.pinned.into()),
            ("#REQUESTS", |b| b.requests.into()),
            ("#RESCUED", |b| b.rescued.into()),
            ("#STRANDED", |b| b.stranded.into()),
            ("#DATAPLANES", |b| (b.dataplanes as u64).into()),
        ]);
    }
    columns
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use serde_json::{Value, from_value, json};

    /// One policy with these backends, each a change of a good one.
    pub fn reply(backends: impl IntoIterator<Item = Value>) -> StateReply {
        let one = |changes: Value| {
            let mut backend = json!({
                "name": "a", "endpoint": "10.9.0.1:80", "weight": 1, "draining": false,
                "adoptability": "ready", "flows": 32, "outstanding": 4,
                "firstByte": "1250us", "requestsTotal": 10, "migrationsInTotal": 1_000,
                "migrationsOutTotal": 999, "health": "up",
            });
            let object = backend.as_object_mut().expect("an object");
            object.extend(changes.as_object().expect("an object").clone());
            backend
        };
        let backends: Vec<Value> = backends.into_iter().map(one).collect();
        let state = json!({
            "version": "0.1.0", "generation": 5, "uptimeSeconds": 7_380,
            "worker": {"interface": "eth0", "mode": "native", "addresses": [],
                "ports": [20_000, 32_767], "keyEpochs": [1, 2]},
            "policies": [{"name": "web", "frontends": ["10.9.0.10:80"],
                "algorithm": "LeastOutstanding", "protocol": "HTTP1", "flows": 64, "flowsTotal": 70,
                "migrationsTotal": 1_999, "rollbacksTotal": 3, "backends": backends}],
            "counters": {}, "tables": {},
        });
        from_value(state).expect("a state")
    }

    fn rendered(reply: &StateReply) -> String {
        let found = backends(&[("", reply)], &Nodes::new(), |_| true);
        render(&found, Style::default())
    }

    #[test]
    fn what_is_not_simply_up_says_all_that_is_the_case() {
        let drain = json!({"byCommand": true, "since": "1s", "left": "17s", "moved": 230,
            "ended": 0, "closed": 0, "waiting": {"request in progress": 29, "pinned: upgrade": 3}});
        let text = rendered(&reply([
            json!({"health": {"unhealthy": "GET /healthz: 503, expected 200-399"},
                "rescuedTotal": 12, "stranded": 1}),
            json!({"name": "b", "draining": true, "drain": drain, "adoptability": "noAdopter"}),
            json!({"name": "c", "draining": true}),
            json!({"name": "d", "weight": 0}),
        ]));
        assert_eq!(
            text,
            "\
Policy web
BACKEND  ENDPOINT     STATE      FLOWS  OUTST.  1ST BYTE    IN  OUT
a        10.9.0.1:80  unhealthy     32       4     1.2ms  1000  999
b        10.9.0.1:80  drains        32       4     1.2ms  1000  999
c        10.9.0.1:80  drains        32       4     1.2ms  1000  999
d        10.9.0.1:80  weight 0      32       4     1.2ms  1000  999
  a is unhealthy: GET /healthz: 503, expected 200-399
  a: 12 flows died here and went on elsewhere, 1 flow without an owner that
  adopts
  b cannot adopt: no adopter (is host-shim running there?)
  b drains by command: 32 flows left (3 pinned: upgrade, 29 request in
  progress); 230 moved, 0 ended, 0 closed; deadline in 17s
  c drains because its Pod ends or the configuration says so: 32 flows left
  d has weight 0: it takes no new flows
"
        );
    }
}
