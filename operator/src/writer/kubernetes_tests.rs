//! Writing against an API server in memory: once, again after a failure, never for another object,
//! never as a standby.

use super::{CONCURRENT, Writer};
use crate::{
    fake_api::FakeApi, kind::Kind, leader::Leadership, ledger::Ledger, metrics::Metrics,
    notice::Notice, outbox::Outbox,
};
use baton_index::{
    Change, Family, FrontService, FrontSlice, FrontWrites, Frontend, Index, Key, Policy, Refusal,
    Verdict,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::{mpsc::Receiver, watch},
    time::sleep,
};

const PATH: &str = "/apis/baton.dev/v1alpha1/namespaces/shop/loadbalancerpolicies/web";

struct Scene {
    api: FakeApi,
    outbox: Arc<Outbox>,
    ledger: Arc<Ledger>,
    metrics: Metrics,
    leadership: watch::Sender<Leadership>,
    events: Receiver<Notice>,
}

fn scene() -> Scene {
    let api = FakeApi::default();
    let metrics = Metrics::new().expect("figures");
    let ledger = Arc::new(Ledger::default());
    let (outbox, events) = Outbox::new(Arc::clone(&ledger), metrics.clone());
    let outbox = Arc::new(outbox);
    let (leadership, led) = watch::channel(Leadership::Leading { epoch: 1 });
    let writer = Writer {
        client: api.client(),
        outbox: Arc::clone(&outbox),
        ledger: Arc::clone(&ledger),
        metrics: metrics.clone(),
        told: Arc::default(),
    };
    tokio::spawn(writer.run(led));
    Scene { api, outbox, ledger, metrics, leadership, events }
}

impl Scene {
    /// An object as the source reads it.
    fn object(&self, uid: &str) {
        let object = json!({"metadata": {"namespace": "shop", "name": "web", "uid": uid}});
        self.api.put(PATH, object);
        self.noted(uid);
    }

    fn noted(&self, uid: &str) {
        let meta = ObjectMeta { uid: Some(uid.to_owned()), ..ObjectMeta::default() };
        self.ledger.note(Kind::Policy, &key(), &meta, &Value::Null);
    }

    fn status(&self) -> Value {
        self.api.get(PATH).map(|o| o["status"].clone()).unwrap_or_default()
    }

    fn writes(&self, result: &str) -> u64 {
        self.metrics.writes.with_label_values(&["status", result]).get()
    }
}

fn key() -> Key {
    Key::new("shop", "web")
}

/// What an index says of a policy that cannot be used.
fn verdict(problem: &str) -> Arc<Verdict> {
    let policy = Policy {
        uid: "u".into(),
        created: 0,
        generation: 1,
        service: "web".into(),
        listeners: Vec::new(),
        template: Err(Refusal { field: "spec.x".into(), problem: problem.into() }),
        weights: None,
        classes: baton_index::Labels::default(),
        frontend: None,
        allow_from: None,
        deletion_cost: false,
        drain_cordoned: false,
    };
    let mut index = Index::new();
    index.apply(Change::Policy(key(), Some(Arc::new(policy))));
    let _ = index.fold(100);
    let verdict = index.verdicts().next().expect("one");
    Arc::clone(verdict)
}

#[tokio::test(start_paused = true)]
async fn a_status_is_written_once_and_its_transition_time_stays() {
    let scene = scene();
    scene.object("u");
    scene.outbox.verdict(&verdict("one"));
    sleep(Duration::from_secs(1)).await;
    let first = scene.status()["conditions"][0].clone();
    assert_eq!(first["type"], "Accepted");
    assert_eq!(first["status"], "False");
    assert!(first["message"].as_str().expect("words").contains("one"), "{first}");
    assert_eq!(scene.writes("written"), 1);
    scene.outbox.verdict(&verdict("one"));
    sleep(Duration::from_secs(60)).await;
    assert_eq!(scene.writes("written"), 1, "nothing has changed");
    scene.outbox.verdict(&verdict("two"));
    sleep(Duration::from_secs(1)).await;
    let second = scene.status()["conditions"][0].clone();
    assert!(second["message"].as_str().expect("words").contains("two"), "{second}");
    assert_eq!(second["lastTransitionTime"], first["lastTransitionTime"]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_write_is_tried_again_and_a_newer_one_takes_its_place() {
    let scene = scene();
    scene.object("u");
    scene.api.fail(Some(500));
    scene.outbox.verdict(&verdict("one"));
    sleep(Duration::from_secs(5)).await;
    assert!(scene.writes("failed") >= 2);
    scene.outbox.verdict(&verdict("two"));
    scene.api.fail(None);
    sleep(Duration::from_secs(5)).await;
    assert_eq!(scene.writes("written"), 1);
    assert!(scene.status().to_string().contains("two"));
}

#[tokio::test(start_paused = true)]
async fn another_object_of_the_same_name_does_not_get_it() {
    let scene = scene();
    scene.object("new");
    scene.outbox.verdict(&verdict("one"));
    sleep(Duration::from_secs(5)).await;
    assert_eq!(scene.status(), Value::Null);
    assert_eq!((scene.writes("written"), scene.writes("moot")), (0, 1));
    scene.ledger.forget(Kind::Policy, &key());
    scene.outbox.verdict(&verdict("one"));
    sleep(Duration::from_secs(5)).await;
    assert_eq!(scene.writes("moot"), 1, "it is not even asked for");
}

#[tokio::test(start_paused = true)]
async fn a_standby_writes_nothing_and_what_is_under_way_is_dropped() {
    let scene = scene();
    scene.object("u");
    scene.leadership.send_replace(Leadership::Standby);
    sleep(Duration::from_secs(1)).await;
    scene.outbox.verdict(&verdict("one"));
    sleep(Duration::from_secs(60)).await;
    assert_eq!(scene.status(), Value::Null);
    // A write that hangs when the term ends does not arrive afterwards.
    scene.api.silent(true);
    scene.leadership.send_replace(Leadership::Leading { epoch: 2 });
    sleep(Duration::from_secs(1)).await;
    scene.leadership.send_replace(Leadership::Standby);
    sleep(Duration::from_secs(1)).await;
    scene.api.silent(false);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(scene.status(), Value::Null);
    assert_eq!(scene.writes("written"), 0);
}

#[tokio::test(start_paused = true)]
async fn so_many_writes_are_under_way_at_one_time() {
    let scene = scene();
    scene.api.silent(true);
    for i in 0..4 * i32::try_from(CONCURRENT).expect("small") {
        scene.outbox.cost(Key::new("shop", format!("pod-{i}")), Some(i));
    }
    sleep(Duration::from_secs(5)).await;
    assert_eq!(scene.outbox.costs.len(), 3 * CONCURRENT);
}

/// A quota that another write took from at the same time is such a conflict, and no watch brings
/// anything after it.
#[tokio::test(start_paused = true)]
async fn what_is_to_be_made_is_tried_again_after_any_conflict() {
    let scene = scene();
    scene.api.fail(Some(409));
    let slice = FrontSlice {
        name: "web-baton".into(),
        uid: None,
        family: Family::V4,
        ports: Vec::new(),
        endpoints: Vec::new(),
    };
    let writes =
        FrontWrites { uid: Some("u".into()), slices: vec![slice], ..FrontWrites::default() };
    scene.outbox.front(&key(), &Arc::new(writes));
    sleep(Duration::from_secs(1)).await;
    scene.api.fail(None);
    sleep(Duration::from_secs(5)).await;
    let path = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices/web-baton";
    assert!(scene.api.get(path).is_some());
}

/// A quota is used up, or a rule of the cluster's is against it: nothing else tells the admin,
/// whose policy is good.
#[tokio::test(start_paused = true)]
async fn a_service_that_may_not_be_made_is_told_of_once_and_tried_again() {
    let mut scene = scene();
    let frontend = Frontend {
        service: "web".into(),
        kind: "LoadBalancer".into(),
        load_balancer_class: None,
        local: false,
        source_ranges: Default::default(),
        annotations: Default::default(),
    };
    let service = FrontService {
        frontend: Arc::new(frontend),
        families: vec![Family::V4],
        ports: vec![("http".into(), 80, 18_000)],
    };
    let writes = Arc::new(FrontWrites {
        owner: Some(("p".into(), "u".into())),
        make: Some(service),
        ..FrontWrites::default()
    });
    for _ in 0..2 {
        scene.api.fail(Some(403));
        scene.outbox.front(&key(), &writes);
        sleep(Duration::from_secs(10)).await;
        let told = scene.events.try_recv().expect("one Event");
        assert_eq!((told.reason, told.warning), ("FrontendRefused", true));
        assert_eq!(&*told.about.key().name, "p");
        let words = "refuses Service web: on demand: it is tried again";
        assert!(told.message.contains(words), "{}", told.message);
        assert!(scene.events.try_recv().is_err(), "once");
        scene.api.fail(None);
        sleep(Duration::from_secs(5)).await;
        let path = "/api/v1/namespaces/shop/services/web";
        assert!(scene.api.get(path).is_some());
        scene.api.delete(path);
    }
}
