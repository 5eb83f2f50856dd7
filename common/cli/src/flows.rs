//! `flows`: client connections of all dataplanes, filtered and sorted. Pure.

use crate::{
    args::{Flows as Wanted, Sort},
    fleet::{Dataplane, FlowsQuery, Response, silent},
    names::PolicyName,
    text::{Cell, Shown, Style, Table, Tone, line, micros},
};
use baton_api::{FlowView, FlowsReply};
use serde::Serialize;

/// Flows that a dataplane is asked for at least: filters and orders are this program's, so more
/// than is shown has to be read. About 6 MB of JSON.
const ASKED_MIN: u32 = 20_000;

/// One flow.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Flow {
    /// `DATAPLANE/CLIENT`, as `migrate` takes it; the client alone where there is one dataplane.
    pub id: String,
    /// The dataplane, if it has a name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub dataplane: String,
    /// What it says.
    #[serde(flatten)]
    pub flow: FlowView,
}

/// The flows that are meant.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Flows {
    /// In order.
    pub flows: Vec<Flow>,
    /// There are more.
    pub truncated: bool,
    /// Dataplanes that did not answer.
    pub silent: Vec<String>,
}

/// What to ask each dataplane for.
pub fn query(wanted: &Wanted) -> FlowsQuery {
    FlowsQuery {
        // One more than is shown, to know whether there are more.
        limit: (wanted.limit + 1).max(ASKED_MIN),
        client: wanted.client,
        backend: wanted.backend.clone(),
    }
}

/// What dataplanes said, as one list.
pub fn all<D: Dataplane>(answers: &[Response<D, FlowsReply>]) -> Vec<Flow> {
    let mut flows = Vec::new();
    for asked in answers {
        for flow in asked.result.iter().flat_map(|reply| &reply.flows) {
            flows.push(Flow {
                id: match asked.name() {
                    "" => flow.client.to_string(),
                    name => format!("{name}/{}", flow.client),
                },
                dataplane: asked.name().to_owned(),
                flow: flow.clone(),
            });
        }
    }
    flows
}

/// Filters and sorts.
pub fn flows<D: Dataplane>(
    answers: &[Response<D, FlowsReply>],
    wanted: &Wanted,
    namespace: Option<&str>,
) -> Flows {
    let cut = |asked: &Response<D, FlowsReply>| asked.result.as_ref().is_ok_and(|r| r.truncated);
    let mut flows = all(answers);
    flows.retain(|flow| {
        let flow = &flow.flow;
        PolicyName::parse(&flow.policy).is(wanted.policy.as_deref(), namespace)
            && wanted.state.as_ref().is_none_or(|state| state.eq_ignore_ascii_case(&flow.state))
            && (!wanted.pinned || flow.pinned.is_some())
    });
    flows.sort_by(|a, b| {
        let (f, g) = (&a.flow, &b.flow);
        let by = match wanted.sort {
            Sort::Client => std::cmp::Ordering::Equal,
            Sort::Backend => f.backend.cmp(&g.backend),
            Sort::Moves => g.migrations.cmp(&f.migrations),
            Sort::Quiet => g.quiet.cmp(&f.quiet),
            Sort::State => f.state.cmp(&g.state),
        };
        by.then_with(|| {
            (f.client, f.frontend, &a.dataplane).cmp(&(g.client, g.frontend, &b.dataplane))
        })
    });
    let limit = wanted.limit as usize;
    let truncated = flows.len() > limit || answers.iter().any(cut);
    flows.truncate(limit);
    Flows { flows, truncated, silent: silent(answers) }
}

/// The table.
pub fn render(flows: &Flows, style: Style) -> String {
    if flows.flows.is_empty() && !flows.truncated {
        return "No flows.\n".to_owned();
    }
    let mut columns: Vec<Shown<&Flow>> = vec![
        ("!CLIENT", |f| f.flow.client.to_string().into()),
        ("POLICY", |f| f.flow.policy.as_str().into()),
        ("BACKEND", |f| f.flow.backend.as_str().into()),
        ("STATE", |f| f.flow.state.as_str().into()),
        ("#MOVES", |f| u64::from(f.flow.migrations).into()),
        ("#QUIET", |f| micros(f.flow.quiet.0).into()),
    ];
    if flows.flows.iter().any(|flow| flow.flow.pinned.is_some()) {
        columns.push(("PINNED", |f| {
            Cell::toned(f.flow.pinned.as_deref().unwrap_or_default(), Tone::Warn)
        }));
    }
    if style.wide {
        columns.extend::<[Shown<&Flow>; 3]>([
            ("FRONTEND", |f| f.flow.frontend.to_string().into()),
            ("#PORT", |f| u64::from(f.flow.port).into()),
            ("ID", |f| f.id.as_str().into()),
        ]);
    }
    let mut text = Table::of(&flows.flows, &columns).render(style);
    if flows.truncated {
        let shown = flows.flows.len();
        line(
            &mut text,
            &format!("{shown} shown, there are more: see --limit, --policy, --backend, --client"),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::WIDTH_MAX;
    use baton_api::Micros;
    use serde_json::json;

    fn flow() -> Flow {
        let flow = json!({
            "client": "10.9.0.3:4711", "frontend": "10.9.0.10:80", "policy": "web", "backend": "a",
            "port": 20_000, "state": "Idle", "migrations": 2, "quiet": "1500us",
        });
        Flow {
            id: "10.9.0.3:4711".to_owned(),
            dataplane: String::new(),
            flow: serde_json::from_value(flow).expect("a flow"),
        }
    }

    fn rendered(flows: Vec<Flow>, truncated: bool, wide: bool) -> String {
        let silent = Vec::new();
        let flows = Flows { flows, truncated, silent };
        render(&flows, Style { wide, colour: false })
    }

    #[test]
    fn pinned_flows_say_why_and_the_column_is_there_only_for_them() {
        let one = flow();
        assert!(!rendered(vec![one.clone()], false, false).contains("PINNED"));
        let mut pinned = one.clone();
        pinned.flow.pinned = Some("upgrade".to_owned());
        assert_eq!(
            rendered(vec![one.clone(), pinned], true, false),
            "\
CLIENT         POLICY  BACKEND  STATE  MOVES  QUIET  PINNED
10.9.0.3:4711  web     a        Idle       2  1.5ms
10.9.0.3:4711  web     a        Idle       2  1.5ms  upgrade
2 shown, there are more: see --limit, --policy, --backend, --client
"
        );
        assert_eq!(
            rendered(vec![one], false, true).lines().next(),
            Some("CLIENT         POLICY  BACKEND  STATE  MOVES  QUIET  FRONTEND       PORT  ID")
        );
    }

    #[test]
    fn nothing_is_wider_than_a_terminal() {
        let mut wide = flow();
        let view = &mut wide.flow;
        let address = "[fd00:1111:2222:3333:4444:5555:6666:7777]:65535";
        view.client = address.parse().expect("an address");
        view.frontend = address.parse().expect("an endpoint");
        (view.policy, view.backend) = ("n".repeat(127), "p".repeat(127));
        view.state = "AdoptingWithRequest".to_owned();
        (view.migrations, view.quiet) = (u32::MAX, Micros(8_000_000_000));
        view.pinned = Some("connection-bound authentication".to_owned());
        for line in rendered(vec![wide], true, false).lines() {
            assert!(line.chars().count() <= WIDTH_MAX, "{line}");
        }
    }
}
