//! Keys and certificates against an API server in memory: made once, told once beside their
//! Secrets, never shown.

use super::{AUTHORITY, KEYS, Keeper, notices, secret_of, store::Store};
use crate::{
    connect::Connector,
    fake_api::FakeApi,
    leader::Leadership,
    ledger::Ledger,
    metrics::{Metrics, PREFIX},
    notice::{About, Notice},
    outbox::Outbox,
    owner::Owner,
    peers::Peers,
};
use baton_push::{
    UnixSeconds,
    certificates::{CA_LIFE, LEAF_LIFE, Role},
    keys::{AdoptionKey, KeySet, LiveKeys, Warning, table::Action},
};
use k8s_openapi::ByteString;
use serde_json::{Value, json};
use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::{
    sync::{mpsc::Receiver, watch},
    task::JoinHandle,
    time::sleep,
};

const SECRETS: &str = "/api/v1/namespaces/baton/secrets/";

/// A keeper that leads.
pub struct Scene {
    metrics: Metrics,
    notices: Receiver<Notice>,
    live: LiveKeys,
    task: JoinHandle<()>,
    leadership: watch::Sender<Leadership>,
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Scene {
    pub fn start(api: &FakeApi) -> Self {
        Self::owned(api, None)
    }

    /// One whose Secrets go with an account.
    pub fn owned(api: &FakeApi, owner: Option<Owner>) -> Self {
        let metrics = Metrics::new().expect("figures");
        let ledger = Arc::new(Ledger::default());
        let (outbox, notices) = Outbox::new(ledger, metrics.clone());
        let (sender, leadership) = watch::channel(Leadership::Leading { epoch: 1 });
        let peers = Arc::new(Peers::default());
        peers.ask(Some(Vec::new()));
        let live_keys = Arc::new(watch::Sender::new(None));
        let live = live_keys.subscribe();
        let keeper = Keeper {
            store: Store::kubernetes(api.client(), "baton", "a", owner),
            connector: Arc::new(Connector::default()),
            peers,
            live_keys: Arc::clone(&live_keys),
            key_rest: Duration::from_secs(120),
            outbox: Arc::new(outbox),
            leadership,
            metrics: metrics.clone(),
        };
        Self { metrics, notices, live, task: tokio::spawn(keeper.run()), leadership: sender }
    }

    /// The value of a figure.
    fn figure(&self, name: &str) -> Option<f64> {
        let text = self.metrics.text();
        let of = |line: &str| line.strip_prefix(name)?.trim().parse().ok();
        text.lines().find_map(of)
    }

    fn notices(&mut self) -> Vec<Notice> {
        let mut all = Vec::new();
        while let Ok(notice) = self.notices.try_recv() {
            all.push(notice);
        }
        all
    }
}

/// Every content of every Secret, as it is and as the API server shows it.
pub fn contents(api: &FakeApi) -> Vec<String> {
    let mut all = Vec::new();
    for secret in api.all(SECRETS) {
        for (_, value) in secret["data"].as_object().expect("data") {
            let bytes: ByteString = serde_json::from_value(value.clone()).expect("base64");
            all.push(value.as_str().expect("text").to_owned());
            all.push(String::from_utf8_lossy(&bytes.0).trim().to_owned());
        }
    }
    // The number of the current key is no secret.
    all.retain(|text| text.len() > 4);
    all
}

#[tokio::test(start_paused = true)]
async fn what_is_made_is_told_once_beside_its_secret_and_no_content_is() {
    let api = FakeApi::default();
    let mut scene = Scene::start(&api);
    sleep(Duration::from_secs(600)).await;
    let notices = scene.notices();
    let mut found: Vec<(String, &str)> = Vec::new();
    for notice in &notices {
        let About::Secret { key, uid } = &notice.about else { panic!("{notice:?}") };
        assert_eq!(&*key.namespace, "baton");
        let secret = api.get(&format!("{SECRETS}{}", key.name)).expect("made");
        assert_eq!(secret["metadata"]["uid"].as_str(), uid.as_deref());
        assert!(!notice.warning);
        found.push((key.name.to_string(), notice.reason));
    }
    found.sort();
    let mut expected = vec![(AUTHORITY.to_owned(), "AuthorityMade"), (KEYS.to_owned(), "KeyMade")];
    expected.extend(Role::ALL.map(|role| (secret_of(role).to_owned(), "CertificateIssued")));
    expected.sort();
    assert_eq!(found, expected);
    let contents = contents(&api);
    assert!(contents.len() > 10);
    for notice in &notices {
        for content in &contents {
            assert!(!notice.message.contains(content.as_str()), "{notice:?}");
        }
    }
    drop(scene);
    // Another operator finds all made.
    let mut scene = Scene::start(&api);
    sleep(Duration::from_secs(600)).await;
    assert_eq!(scene.notices(), []);
}

#[tokio::test(start_paused = true)]
async fn what_an_admin_got_wrong_is_told_once() {
    let api = FakeApi::default();
    let supplied = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "baton-shim-tls", "uid": "u"},
        "data": {"tls.crt": "bm8=", "tls.key": "bm8=", "ca.crt": "bm8="},
    });
    api.put(&format!("{SECRETS}baton-shim-tls"), supplied);
    let mut scene = Scene::start(&api);
    sleep(Duration::from_secs(600)).await;
    let notices = scene.notices();
    let failed: Vec<_> = notices.iter().filter(|notice| notice.reason == "KeepingFailed").collect();
    assert_eq!(failed.len(), 1, "{notices:?}");
    assert!(failed[0].warning && failed[0].message.contains("baton-shim-tls"));
    // It is corrected, by its deletion, and goes wrong again: that is news.
    api.delete(&format!("{SECRETS}baton-shim-tls"));
    sleep(Duration::from_secs(60)).await;
    assert!(!scene.notices().iter().any(|notice| notice.warning));
    let old = api.get(&format!("{SECRETS}baton-shim-tls")).expect("made");
    let mut wrong = old.clone();
    wrong["metadata"]["labels"] = Value::Null;
    wrong["data"]["tls.crt"] = json!("bm8=");
    api.put(&format!("{SECRETS}baton-shim-tls"), wrong);
    sleep(Duration::from_secs(600)).await;
    let notices = scene.notices();
    let failed = notices.iter().filter(|n| n.reason == "KeepingFailed");
    assert_eq!(failed.count(), 1, "{notices:?}");
}

#[test]
fn each_step_of_a_rotation_names_its_epochs_and_no_key() {
    let mut byte = 0xa0;
    let mut random = |bytes: &mut [u8; 16]| {
        byte += 1;
        bytes.fill(byte);
    };
    let keys = KeySet::first(3, AdoptionKey::random(&mut random));
    for (action, reason, part) in [
        (Action::MakeFirst, "KeyMade", "of epoch 3"),
        (Action::AddNext, "KeyAdded", "of epoch 4 is added"),
        (Action::SignWithNext, "KeySwitched", "epoch 3 signs from now on"),
        (Action::RemoveOld, "KeyRemoved", "before epoch 3"),
    ] {
        let (is, words) = notices::rotation(action, &keys);
        assert_eq!(is, reason);
        assert!(words.contains(part), "{words}");
        assert!(!words.contains("a1a1"), "{words}");
    }
    let mut notices = notices::Notices::default();
    let warnings = || {
        let reasons = vec!["a".to_owned()];
        vec![Warning::Stuck { reasons }]
    };
    assert_eq!(notices.news(warnings()), warnings());
    assert!(notices.news(warnings()).is_empty());
    assert!(notices.news(Vec::new()).is_empty());
    assert_eq!(notices.news(warnings()), warnings());
}

#[tokio::test(start_paused = true)]
async fn who_leads_shows_the_ends_of_certificates_and_the_age_of_the_key() {
    let api = FakeApi::default();
    let scene = Scene::start(&api);
    sleep(Duration::from_secs(600)).await;
    let now = UnixSeconds::from(SystemTime::now()).0 as f64;
    let near = |value: Option<f64>, expected: f64| {
        let value = value.expect("a figure");
        assert!((value - expected).abs() < 3_600.0, "{value} {expected}");
    };
    let end =
        |holder: &str| format!("{PREFIX}certificate_end_timestamp_seconds{{holder=\"{holder}\"}}");
    near(scene.figure(&end("authority")), now + CA_LIFE.as_secs_f64());
    for holder in ["dataplane", "shim", "operator"] {
        near(scene.figure(&end(holder)), now + LEAF_LIFE.as_secs_f64());
    }
    let since = format!("{PREFIX}adoption_key_since_timestamp_seconds");
    let epochs = format!("{PREFIX}adoption_key_epochs");
    near(scene.figure(&since), now);
    assert_eq!(scene.figure(&epochs), Some(1.0));
    // Somebody else leads, and sees them change.
    scene.leadership.send(Leadership::Standby).expect("the keeper listens");
    sleep(Duration::from_secs(600)).await;
    assert_eq!(scene.figure(&end("shim")), None);
    assert_eq!(scene.figure(&since), Some(0.0));
    assert_eq!(scene.figure(&epochs), Some(0.0));
}

#[tokio::test(start_paused = true)]
async fn host_shims_are_sent_what_is_stored_and_only_by_who_leads() {
    let api = FakeApi::default();
    let scene = Scene::start(&api);
    sleep(Duration::from_secs(600)).await;
    let path = format!("{SECRETS}{KEYS}");
    let secret = api.get(&path).expect("made");
    let live = scene.live.borrow().clone().expect("keys");
    assert_eq!(live.keys.epochs(), [1]);
    let sent = serde_json::to_string(&live.keys.of_node("node-1")).expect("JSON");
    let stored: ByteString =
        serde_json::from_value(secret["data"]["epoch-1"].clone()).expect("base64");
    let stored = String::from_utf8(stored.0).expect("digits");
    assert!(!sent.contains(stored.trim()), "a master key is sent");
    // What cannot be used is not sent, and takes nothing away.
    let mut wrong = secret.clone();
    wrong["data"]["epoch-1"] = json!("bm8=");
    api.put(&path, wrong);
    sleep(Duration::from_secs(600)).await;
    assert_eq!(scene.live.borrow().as_ref(), Some(&live));
    // Another process may change them.
    scene.leadership.send(Leadership::Standby).expect("the keeper listens");
    sleep(Duration::from_secs(600)).await;
    assert_eq!(*scene.live.borrow(), None);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_excluded_is_told_of_once_and_begins_a_rotation() {
    let api = FakeApi::default();
    let mut scene = settled(&api, None).await;
    scene.notices();
    let path = format!("{SECRETS}{KEYS}");
    let excludes = |nodes: &str| {
        let mut secret = api.get(&path).expect("made");
        secret["metadata"]["annotations"]["baton.dev/excluded-nodes"] = json!(nodes);
        api.put(&path, secret);
    };
    excludes("node-a, node-b");
    sleep(Duration::from_secs(600)).await;
    let notices = scene.notices();
    let excluded: Vec<_> =
        notices.iter().filter(|notice| notice.reason == "NodesExcluded").collect();
    assert_eq!(excluded.len(), 1, "{notices:?}");
    assert!(excluded[0].warning && excluded[0].message.contains("node-a"));
    assert!(notices.iter().any(|notice| notice.reason == "KeyAdded"));
    let live = scene.live.borrow().clone().expect("keys");
    assert_eq!(live.excluded, ["node-a", "node-b"].map(str::to_owned).into());
    assert_eq!(live.keys.epochs(), [1, 2]);
    excludes("");
    sleep(Duration::from_secs(600)).await;
    let live = scene.live.borrow().clone().expect("keys");
    assert!(live.excluded.is_empty());
    assert_eq!(live.keys.epochs(), [1, 2]);
}

/// The uids of the owners of a Secret.
fn owners(secret: &Value) -> Vec<&str> {
    let references = secret["metadata"]["ownerReferences"].as_array();
    let uids = references.into_iter().flatten().map(|r| r["uid"].as_str());
    uids.map(|uid| uid.expect("a uid")).collect()
}

#[tokio::test(start_paused = true)]
async fn what_the_operator_made_goes_with_its_account_and_what_an_admin_made_does_not() {
    let api = FakeApi::default();
    let path = |role| format!("{SECRETS}{}", secret_of(role));
    // As versions before this one made them.
    drop(settled(&api, None).await);
    let before = api.all(SECRETS);
    assert_eq!(before.len(), 5);
    assert!(before.iter().all(|secret| owners(secret).is_empty()));
    let mut taken = api.get(&path(Role::Shim)).expect("made");
    taken["metadata"]["labels"] = Value::Null;
    let other = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "theirs"});
    taken["metadata"]["ownerReferences"] = json!([other]);
    api.put(&path(Role::Shim), taken.clone());

    for uid in ["first", "second"] {
        // The account is another one after it was deleted and made again.
        let scene = settled(&api, Some(Owner::new("baton-operator", uid))).await;
        for secret in api.all(SECRETS) {
            let name = secret["metadata"]["name"].as_str().unwrap_or_default();
            let expected = if name == secret_of(Role::Shim) { "theirs" } else { uid };
            assert_eq!(owners(&secret), [expected], "{secret}");
        }
        for (now, then) in api.all(SECRETS).iter().zip(&before) {
            assert_eq!(now["data"], then["data"]);
        }
        // One that is made now has its owner from the start.
        api.delete(&path(Role::Dataplane));
        sleep(Duration::from_secs(120)).await;
        let made = api.get(&path(Role::Dataplane)).expect("made again");
        assert_eq!(owners(&made), [uid]);
        // It is put back, so that contents can be compared.
        let old = before.iter().find(|s| s["metadata"]["name"] == made["metadata"]["name"]);
        api.put(&path(Role::Dataplane), old.expect("made").clone());
        drop(scene);
    }

    // An admin takes one over: it stays when Baton goes.
    let scene = settled(&api, Some(Owner::new("baton-operator", "second"))).await;
    let mut taken = api.get(&path(Role::Operator)).expect("made");
    assert_eq!(owners(&taken), ["second"]);
    taken["metadata"]["labels"] = Value::Null;
    api.put(&path(Role::Operator), taken);
    sleep(Duration::from_secs(120)).await;
    let taken = api.get(&path(Role::Operator)).expect("kept");
    assert!(owners(&taken).is_empty(), "{taken}");
    drop(scene);
}

/// A keeper that has done what there is to do.
async fn settled(api: &FakeApi, owner: Option<Owner>) -> Scene {
    let scene = Scene::owned(api, owner);
    sleep(Duration::from_secs(600)).await;
    scene
}
