//! The core with a directory of manifests and a dataplane of a few lines: what a bad file does to
//! what is served, while the operator runs and when it starts; and what it counts.

use super::Core;
use crate::{
    fleet::{
        Fleet, ShimPods,
        tests::{Plane, pod},
    },
    health::Health,
    kind::Kind,
    leader::Leadership,
    ledger::Ledger,
    metrics::Metrics,
    outbox::Outbox,
    peers::Peers,
    shutdown::shutdown,
    source::{self, LIMIT_QUEUE, Message, Sink},
    translate::Translator,
};
use baton_index::{Change, Index, Key};
use baton_push::push::{Metrics as PushMetrics, Plain, Settings};
use serde_json::Value;
use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

/// An operator with a directory; ends when dropped.
struct Operator {
    metrics: Metrics,
    tasks: JoinSet<()>,
    leadership: watch::Sender<Leadership>,
}

fn start(path: &Path, epoch: u32) -> Operator {
    let (core, mut operator) = stand_by(path);
    operator.tasks.spawn(async move {
        // It never ends by itself.
        let (_trigger, ended) = shutdown();
        core.run(ended).await;
    });
    operator.leadership.send_replace(Leadership::Leading { epoch });
    operator
}

/// A core that nobody runs, and what it works with.
fn stand_by(path: &Path) -> (Core, Operator) {
    let metrics = Metrics::new().expect("figures");
    let health = Arc::new(Health::new(&Kind::ALL.map(Kind::as_str)));
    let ledger = Arc::new(Ledger::default());
    let (outbox, _) = Outbox::new(Arc::clone(&ledger), metrics.clone());
    let (messages, received) = mpsc::channel(LIMIT_QUEUE);
    let (leadership, led) = watch::channel(Leadership::Standby);
    let settings = Settings { overtaken_wait: Duration::ZERO, ..Settings::default() };
    let shims =
        ShimPods { namespace: None, selector: [("app", "shim")].into_iter().collect(), port: 1 };
    let push_metrics = Arc::new(PushMetrics::default());
    let peers = Arc::new(Peers::default());
    let texts = crate::translate::SharedInterner::default();
    let core = Core {
        index: Index::new(),
        messages: received,
        leadership: led,
        fleet: Fleet::new(
            Arc::new(Plain),
            settings,
            push_metrics,
            peers,
            watch::Sender::new(None).subscribe(),
            texts,
            shims,
        ),
        outbox: Arc::new(outbox),
        health: Arc::clone(&health),
        metrics: metrics.clone(),
        unsynced: Kind::ALL.into(),
        taken: 0,
    };
    let sink = Sink {
        messages,
        translator: Arc::new(Translator::new()),
        ledger,
        health,
        metrics: metrics.clone(),
    };
    let mut tasks = JoinSet::new();
    let path = path.to_owned();
    tasks.spawn(async move {
        source::directory::run(path, sink).await.expect("a directory");
    });
    let operator = Operator { metrics, tasks, leadership };
    (core, operator)
}

/// A directory, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("baton-core-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn write(&self, name: &str, text: &str) {
        // At once, so that nobody reads a half.
        let half = self.0.join(format!(".{name}"));
        fs::write(&half, text).expect("written");
        fs::rename(half, self.0.join(name)).expect("in place");
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn class(plane: SocketAddr) -> String {
    format!(
        "apiVersion: baton.dev/v1alpha1
kind: BatonDataplane
metadata: {{name: edge}}
spec:
  default: true
  namespace: baton
  selector: {{matchLabels: {{app: lb}}}}
  controlPort: {}
  # The slices here name no Pods.
  allowed: [{{namespaces: {{names: [shop]}}, ports: [81-83], endpoints: [10.0.0.0/16]}}]
---
apiVersion: v1
kind: Pod
metadata: {{name: lb-0, namespace: baton, labels: {{app: lb}}}}
status: {{podIP: {}}}
",
        plane.port(),
        plane.ip()
    )
}

/// A policy, its Service and where its pods are.
fn app(name: &str, port: u16, pods: &[&str]) -> String {
    let endpoints: Vec<String> =
        pods.iter().map(|address| format!("{{addresses: [{address}]}}")).collect();
    format!(
        "apiVersion: baton.dev/v1alpha1
kind: LoadBalancerPolicy
metadata: {{name: {name}, namespace: shop}}
spec:
  targetRefs: [{{name: {name}}}]
  listeners: [{{name: http, port: {port}, servicePort: 80}}]
---
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: shop}}
spec: {{ports: [{{port: 80}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {name}-1, namespace: shop, labels: {{kubernetes.io/service-name: {name}}}}}
addressType: IPv4
ports: [{{port: 8080}}]
endpoints: [{}]
",
        endpoints.join(", ")
    )
}

/// What is served: `NAME:PORT address address`.
fn served(held: &Value) -> Vec<String> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    list(&held["policies"])
        .iter()
        .map(|policy| {
            let frontend = text(&policy["frontends"][0]);
            let port = frontend.rsplit(':').next().unwrap_or_default();
            let mut words = format!("{}:{port}", text(&policy["name"]));
            for backend in list(&policy["backends"]) {
                words.push_str(&format!(" {}", text(&backend["name"])));
            }
            words
        })
        .collect()
}

async fn serves(plane: &Plane, expected: &[&str]) {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let is = served(&plane.held());
        if is == expected {
            return;
        }
        assert!(Instant::now() < end, "{is:?}, expected {expected:?}");
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_bad_file_takes_nothing_from_dataplanes_while_the_operator_runs_or_starts() {
    let folder = Folder::new("bad");
    let plane = Plane::default();
    let address = plane.start().await;
    folder.write("class.yaml", &class(address));
    folder.write("one.yaml", &app("one", 81, &["10.0.0.1", "10.0.0.2"]));
    folder.write("two.yaml", &app("two", 82, &["10.0.1.1"]));
    let operator = start(&folder.0, 1);
    let all = ["shop/one/http:81 10.0.0.1 10.0.0.2", "shop/two/http:82 10.0.1.1"];
    serves(&plane, &all).await;
    // While it runs, the others go on.
    folder.write("one.yaml", "kind: [");
    folder.write("two.yaml", &app("two", 82, &["10.0.1.1", "10.0.1.2"]));
    let two = ["shop/one/http:81 10.0.0.1 10.0.0.2", "shop/two/http:82 10.0.1.1 10.0.1.2"];
    serves(&plane, &two).await;
    drop(operator);
    // And when it starts: what the bad file held is known to the dataplane alone. Backends that are
    // not there any more stay too, because they may be in the bad file; new ones come.
    folder.write("two.yaml", &app("two", 83, &["10.0.1.2", "10.0.1.3"]));
    let operator = start(&folder.0, 2);
    let kept =
        ["shop/one/http:81 10.0.0.1 10.0.0.2", "shop/two/http:83 10.0.1.1 10.0.1.2 10.0.1.3"];
    serves(&plane, &kept).await;
    // All is good again: the manifests alone count.
    folder.write("one.yaml", &app("one", 81, &["10.0.0.2"]));
    let good = ["shop/one/http:81 10.0.0.2", "shop/two/http:83 10.0.1.2 10.0.1.3"];
    serves(&plane, &good).await;
    drop(operator);
}

/// As in a cluster where something changes all the time, so that there is one batch after another.
#[tokio::test]
async fn dataplanes_are_heard_with_each_batch_of_changes() {
    let folder = Folder::new("busy");
    let address = Plane::default().start().await;
    folder.write("class.yaml", &class(address));
    folder.write("one.yaml", &app("one", 81, &["10.0.0.1"]));
    let (mut core, operator) = stand_by(&folder.0);
    let leading = Leadership::Leading { epoch: 1 };
    operator.leadership.send_replace(leading);
    core.term();
    let acknowledged = async {
        let is_there = |core: &Core| core.index.class_verdicts().any(|c| c.synchronised == 1);
        while !is_there(&core) {
            let none = Change::Service(Key::new("other", "none"), None);
            core.batch(Message::Change(none)).await;
        }
    };
    let heard = timeout(Duration::from_secs(30), acknowledged).await;
    heard.expect("its acknowledgement is heard");
}

#[tokio::test]
async fn a_node_is_not_covered_any_more_when_its_shim_has_left() {
    let folder = Folder::new("left");
    let address = Plane::default().start().await;
    folder.write("class.yaml", &class(address));
    let on_node = app("one", 81, &["10.0.0.1"]).replace("{addresses:", "{nodeName: n1, addresses:");
    folder.write("one.yaml", &on_node);
    let (mut core, operator) = stand_by(&folder.0);
    let leading = Leadership::Leading { epoch: 1 };
    operator.leadership.send_replace(leading);
    core.term();
    while !core.unsynced.is_empty() {
        let message = core.messages.recv().await.expect("the source runs");
        core.batch(message).await;
    }
    let shim = Key::new("baton", "shim-0");
    let pod = pod(&[("app", "shim")], Some("127.0.0.1"));
    core.change(Change::Pod(shim.clone(), Some(Arc::new(pod))));
    core.change(Change::Shim("n1".into(), Some(Arc::default())));
    core.fold();
    assert_eq!(core.index.coverage().nodes_covered, 1);
    core.change(Change::Pod(shim, None));
    core.fold();
    assert_eq!(core.index.coverage().nodes_covered, 0);
}

/// Counted with the core's beat, not with each fold.
#[tokio::test]
async fn policies_and_the_nodes_of_their_pods_are_counted() {
    let folder = Folder::new("counted");
    let address = Plane::default().start().await;
    folder.write("class.yaml", &class(address));
    let on_node = app("one", 81, &["10.0.0.1"]).replace("{addresses:", "{nodeName: n1, addresses:");
    folder.write("one.yaml", &on_node);
    let operator = start(&folder.0, 1);
    let expected = [
        "baton_operator_policies{condition=\"Accepted\",status=\"True\"} 1",
        // No host-shim is known anywhere.
        "baton_operator_backend_nodes{shim=\"unknown\"} 1",
        "baton_operator_backend_nodes{shim=\"missing\"} 0",
        "baton_operator_unadoptable_pods{reason=\"no_shim\"} 0",
    ];
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let text = operator.metrics.text();
        if expected.iter().all(|line| text.lines().any(|l| l == *line)) {
            return;
        }
        assert!(Instant::now() < end, "{text}");
        sleep(Duration::from_millis(20)).await;
    }
}
