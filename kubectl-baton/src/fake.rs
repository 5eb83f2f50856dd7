//! A cluster for tests: samples of objects and answers, chosen as an API server chooses; and the
//! goldens that results are compared with (`BATON_GENERATE=1` writes them anew).

use crate::{
    cluster::{Cluster, Edit, ExecOutput, Kind, Listed, PodName},
    failure::{Deed, Failure},
    samples::sample,
};
use baton_api::{Clients, ControlAddress, FlowsReply, is_backend};
use baton_cli::Stop;
use serde_json::{Value, json};
use std::{
    cell::RefCell, collections::BTreeMap, fs, io::Write, path::PathBuf, rc::Rc, time::Duration,
};

/// Objects by kind.
pub type Objects = BTreeMap<Kind, Vec<Value>>;
/// What a program in a Pod says on its standard output, and how it ends.
pub type Said = Result<(Vec<u8>, ExecOutput), Failure>;
/// What a dataplane answers: to the last part of a path, the parts of the query, and what is
/// posted.
type Answers = Box<dyn Fn(&PodName, &[&str]) -> Said>;

/// The cluster.
pub struct Fake {
    /// By kind; what is not there may not be listed.
    pub objects: RefCell<Objects>,
    /// By which options it was chosen.
    pub options: &'static str,
    /// The namespace that the user names as Baton's.
    pub home: Option<&'static str>,
    /// Kinds that may not be listed.
    pub forbidden: Vec<Kind>,
    /// Kinds whose lists the server fails at.
    pub broken: Vec<Kind>,
    /// What dataplanes say.
    pub answers: Answers,
    /// Every request, as `POD PATH` without `/v1/`, and what is posted behind it.
    pub ran: RefCell<Vec<String>>,
    /// Every change of an object, as `VERB KIND/NAME`.
    pub written: RefCell<Vec<String>>,
    /// What the cluster makes of a change, before it is seen.
    pub reacts: Box<dyn Fn(&mut Objects)>,
    /// What each log says.
    pub log: String,
    /// Kubernetes' version.
    pub version: String,
}

/// Compares with what is committed.
pub fn golden(name: &str, text: &str) {
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden");
    let path = golden.join(name);
    if std::env::var_os("BATON_GENERATE").is_some() {
        fs::write(&path, text).expect("a golden file");
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, committed, "{} is stale: `BATON_GENERATE=1` writes it anew", path.display());
}

/// An answer of a program that went well.
pub fn good(text: impl Into<Vec<u8>>) -> Said {
    Ok((text.into(), ExecOutput::default()))
}

/// An answer of a program that did not.
pub fn bad(code: i32, text: &str) -> Said {
    let stderr = text.to_owned();
    Ok((Vec::new(), ExecOutput { stderr, code }))
}

/// Letters that say which of the two dataplanes a Pod is.
pub fn which(pod: &PodName) -> &'static str {
    if pod.name.ends_with("x2b4k") { "a" } else { "b" }
}

impl Fake {
    /// The samples' cluster: two dataplanes, two policies, three nodes.
    pub fn new() -> Self {
        let file = |kind: Kind| {
            let items: Vec<Value> =
                serde_json::from_str(&sample(&format!("{}.json", kind.names().3))).expect("JSON");
            (kind, items)
        };
        let kinds = [
            Kind::Policies,
            Kind::Classes,
            Kind::Services,
            Kind::EndpointSlices,
            Kind::Pods,
            Kind::Nodes,
        ];
        let mut objects: BTreeMap<Kind, Vec<Value>> = kinds.into_iter().map(file).collect();
        for kind in Kind::ALL {
            objects.entry(kind).or_default();
        }
        Self {
            objects: RefCell::new(objects),
            options: "",
            home: None,
            forbidden: Vec::new(),
            broken: Vec::new(),
            answers: Box::new(|pod, words| answer(which(pod), words)),
            ran: RefCell::default(),
            written: RefCell::default(),
            reacts: Box::new(|_| ()),
            log: "started\n".to_owned(),
            version: "v1.36.0".to_owned(),
        }
    }

    /// With answers of `/v1/WHAT` changed, by the letter of the dataplane.
    pub fn changed(what: &'static str, change: impl Fn(&str, &mut Value) + 'static) -> Self {
        let answers = move |pod: &PodName, words: &[&str]| {
            let ran = answer(which(pod), words)?;
            if words[0] != what {
                return Ok(ran);
            }
            let mut said = serde_json::from_slice(&ran.0).expect("JSON");
            change(which(pod), &mut said);
            good(said.to_string())
        };
        Self { answers: Box::new(answers), ..Self::new() }
    }

    /// With nothing but the definitions.
    pub fn empty() -> Self {
        let this = Self::new();
        this.objects.borrow_mut().values_mut().for_each(Vec::clear);
        this
    }
}

/// A dataplane's answer.
pub fn answer(which: &str, words: &[&str]) -> Said {
    match words.first() {
        Some(&"state") => good(sample(&format!("status-{which}.json"))),
        Some(&"flows") => good(flows(which, words)),
        Some(&"drain") => good(r#"{"backends": 1, "bySnapshot": 0}"#),
        Some(&"events") => good(events(which, words)),
        Some(&"migrate") => good(
            r#"{"policy": "shop/web/http", "from": "web-5d4f-abcde", "to": "web-5d4f-fghij", "begun": true}"#,
        ),
        other => panic!("a dataplane is asked {other:?}"),
    }
}

/// The value of this name in the query.
fn value(words: &[&str], name: &str) -> Option<String> {
    let value = words.iter().find_map(|w| w.split_once('=').filter(|(n, _)| *n == name))?.1;
    let escapes = [("%5B", "["), ("%5D", "]"), ("%3A", ":")];
    let plain = |text: String, (from, to)| text.replace(from, to);
    Some(escapes.into_iter().fold(value.to_owned(), plain))
}

/// The sample's flows that are asked for.
fn flows(which: &str, words: &[&str]) -> String {
    let mut reply: FlowsReply =
        serde_json::from_str(&sample(&format!("flows-{which}.json"))).expect("JSON");
    let backend = value(words, "backend");
    let client = value(words, "client").map(|c| c.parse::<Clients>().expect("clients"));
    reply.flows.retain(|flow| {
        backend.as_ref().is_none_or(|backend| is_backend(&flow.backend, backend))
            && client.is_none_or(|clients| clients.has(flow.client))
    });
    json!(reply).to_string()
}

/// Four events of each dataplane, one every 10 ms; `a` has lost some before them.
fn events(which: &str, words: &[&str]) -> String {
    let since = value(words, "since").and_then(|since| since.parse::<u64>().ok());
    let first = if which == "a" { 101 } else { 1 };
    let last = first + 3;
    let since = since.unwrap_or(last);
    let event = |seq: u64| {
        let (event, more) = match seq % 4 {
            1 => ("adopting", json!({"cause": "drain", "to": "web-5d4f-fghij"})),
            2 => ("moved", json!({"cause": "drain", "to": "web-5d4f-fghij"})),
            3 => ("pinned", json!({"reason": "upgrade"})),
            _ => ("lost", json!({"reason": "response_begun"})),
        };
        let mut event = json!({
            "seq": seq, "worker": 0, "atMicros": 1_000_000 + seq * 10_000, "event": event, "client": format!("192.0.2.7:{}", 40_110 + seq % 4),
            "policy": if seq.is_multiple_of(4) { "data/cache/redis" } else { "shop/web/http" }, "from": "web-5d4f-abcde",
        });
        event
            .as_object_mut()
            .expect("an object")
            .extend(more.as_object().expect("an object").clone());
        event
    };
    let begin = (since + 1).max(first);
    let events: Vec<Value> = (begin..=last).map(event).collect();
    json!({
        "nowMicros": 3_000_000, "unixMicros": 1_767_225_600_000_000_u64, "next": last.max(since).to_string(), "missed": begin - since - 1,
        "more": false, "events": events,
    })
    .to_string()
}

fn has_labels(item: &Value, labels: &str) -> bool {
    labels.split(',').all(|label| {
        let (name, value) = label.split_once('=').expect("NAME=VALUE");
        item["metadata"]["labels"][name] == value
    })
}

impl Cluster for Fake {
    fn namespace(&self) -> &str {
        "shop"
    }

    fn home(&self) -> Option<&str> {
        self.home
    }

    fn control(&self) -> ControlAddress {
        "unix:/run/baton/control.sock".parse().expect("a place")
    }

    fn options(&self) -> &str {
        self.options
    }

    async fn list(
        &self,
        kind: Kind,
        namespace: Option<&str>,
        labels: Option<&str>,
    ) -> Result<Listed, Failure> {
        let deed = Deed::new("list", kind.resource(), namespace);
        if self.forbidden.contains(&kind) {
            return Err(Failure::Forbidden(deed));
        }
        if self.broken.contains(&kind) {
            let what = deed.to_string();
            return Err(Failure::Slow { what, seconds: 30 });
        }
        let objects = self.objects.borrow();
        let Some(items) = objects.get(&kind) else {
            return Err(Failure::Missing(deed));
        };
        let wanted = |item: &&Value| {
            namespace.is_none_or(|namespace| item["metadata"]["namespace"] == namespace)
                && labels.is_none_or(|labels| has_labels(item, labels))
        };
        Ok(Listed { items: items.iter().filter(wanted).cloned().collect(), truncated: false })
    }

    async fn get(&self, kind: Kind, namespace: &str, name: &str) -> Result<Option<Value>, Failure> {
        let deed = Deed::new("get", kind.resource(), Some(namespace));
        if self.forbidden.contains(&kind) {
            return Err(Failure::Forbidden(deed));
        }
        let objects = self.objects.borrow();
        let is = |item: &&Value| {
            item["metadata"]["namespace"] == namespace && item["metadata"]["name"] == name
        };
        let found = objects.get(&kind).and_then(|items| items.iter().find(is));
        Ok(found.cloned())
    }

    async fn write(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        edit: Edit,
    ) -> Result<(), Failure> {
        let mut objects = self.objects.borrow_mut();
        let items = objects.entry(kind).or_default();
        let is = |item: &Value| {
            item["metadata"]["namespace"] == namespace && item["metadata"]["name"] == name
        };
        let verb = match edit {
            Edit::Create(object) => {
                assert!(is(&object) && !items.iter().any(is), "{object}");
                items.push(object);
                "create"
            }
            Edit::Merge(patch) => {
                let item = items.iter_mut().find(|item| is(item)).expect("it is there");
                json_patch::merge(item, &patch);
                "patch"
            }
            Edit::Delete => {
                items.retain(|item| !is(item));
                "delete"
            }
        };
        let line = format!("{verb} {}/{name}", kind.names().3);
        self.written.borrow_mut().push(line);
        (self.reacts)(&mut objects);
        Ok(())
    }

    async fn exec_into(
        &self,
        pod: &PodName,
        container: &str,
        command: &[String],
        _: Duration,
        stop: Option<Stop>,
        out: &mut dyn Write,
    ) -> Result<ExecOutput, Failure> {
        assert_eq!(container, "lb-dataplane");
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let [
            "lb-dataplane",
            "api",
            path,
            options @ ..,
            "--control",
            "unix:/run/baton/control.sock",
        ] = words.as_slice()
        else {
            panic!("{command:?}");
        };
        let path = path.strip_prefix("/v1/").expect("a path");
        // Only what goes on until its end can be asked to end.
        let (body, ends) = match options {
            [] => (None, false),
            ["--post", body] => (Some(*body), false),
            ["--end-on-input"] => (None, true),
            other => panic!("{other:?}"),
        };
        assert_eq!(stop.is_some(), ends, "{command:?}");
        let asked: Vec<&str> = path.split(['?', '&']).chain(body).collect();
        let words = format!("{} {path}", pod.name);
        let words = body.map_or(words.clone(), |body| format!("{words} {body}"));
        self.ran.borrow_mut().push(words);
        let (stdout, ran) = (self.answers)(pod, &asked)?;
        out.write_all(&stdout).expect("written");
        Ok(ran)
    }

    async fn log(&self, _: &PodName, _: &str, _: bool) -> Result<String, Failure> {
        Ok(self.log.clone())
    }

    async fn version(&self) -> Result<String, Failure> {
        Ok(self.version.clone())
    }
}

/// A stream that tests read.
#[derive(Clone, Default)]
pub struct Buffer(Rc<RefCell<Vec<u8>>>);

impl Buffer {
    /// All that was written.
    pub fn text(&self) -> String {
        String::from_utf8(self.0.borrow().clone()).expect("text")
    }
}

impl std::io::Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.borrow_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
