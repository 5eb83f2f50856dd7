//! The fleet with real pushers and a dataplane of a few lines: what is published, acknowledged,
//! refused and forgotten.

use super::{Fleet, ShimPods};
use crate::{peers::Peers, translate::SharedInterner};
use baton_index::{Change, ClassUpdate, Dataplane, Key, Labels, Pod, Text, Wants};
use baton_push::push::{LIMIT_TARGETS, Metrics, Plain, Settings, TargetKind};
use http_body_util::{BodyExt, Full};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{net::TcpListener, time::timeout};

/// A dataplane: what it holds, and whether it refuses.
#[derive(Clone, Default)]
pub struct Plane(Arc<Mutex<(Value, bool)>>);

impl Plane {
    pub async fn start(&self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let this = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let this = this.clone();
                let service = service_fn(move |request| {
                    let this = this.clone();
                    async move { Ok::<_, Infallible>(this.answer(request).await) }
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        address
    }

    pub fn held(&self) -> Value {
        self.0.lock().expect("nobody panics with it").0.clone()
    }

    /// As if an earlier operator, of a newer version, had pushed it.
    fn hold(&self, names: &[&str]) {
        let of_newer = |name: &&str| {
            let mut policy = json!(*policy(name));
            policy["newer"] = json!({"some": "field"});
            policy
        };
        let policies: Vec<Value> = names.iter().map(of_newer).collect();
        let held = json!({"generation": 7, "policies": policies});
        self.0.lock().expect("nobody panics with it").0 = held;
    }

    fn refuse(&self, refuse: bool) {
        self.0.lock().expect("nobody panics with it").1 = refuse;
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.expect("a body").to_bytes();
        let mut inside = self.0.lock().expect("nobody panics with it");
        let (status, answer) = match (head.method, head.uri.path()) {
            (Method::PUT, "/v1/snapshot") if inside.1 => (
                StatusCode::UNPROCESSABLE_ENTITY,
                json!({"error": "is bad", "field": "policies[0].name", "expected": "a better one"}),
            ),
            (Method::PUT, "/v1/snapshot") => {
                inside.0 = serde_json::from_slice(&body).expect("JSON");
                (StatusCode::OK, json!({"generation": inside.0["generation"]}))
            }
            (Method::GET, "/v1/snapshot") if inside.0.is_null() => {
                (StatusCode::OK, json!({"generation": 0, "policies": []}))
            }
            (Method::GET, "/v1/snapshot") => (StatusCode::OK, inside.0.clone()),
            _ => (StatusCode::NOT_FOUND, json!({"error": "not here"})),
        };
        let mut response = Response::new(Full::new(Bytes::from(answer.to_string())));
        *response.status_mut() = status;
        response
    }
}

fn fleet() -> Fleet {
    let shims = ShimPods {
        namespace: Some("baton".to_owned()),
        selector: [("app", "shim")].into_iter().collect(),
        port: 9_901,
    };
    let mut fleet = Fleet::new(
        Arc::new(Plain),
        Settings::default(),
        Arc::new(Metrics::default()),
        Arc::new(Peers::default()),
        tokio::sync::watch::Sender::new(None).subscribe(),
        SharedInterner::default(),
        shims,
    );
    fleet.ready();
    fleet
}

fn policy(name: &str) -> Arc<baton_api::Policy> {
    let policy = json!({"name": name, "frontends": ["0.0.0.0:80"], "backends": []});
    Arc::new(serde_json::from_value(policy).expect("a policy"))
}

fn update(
    revision: u64,
    changed: &[&str],
    removed: &[&str],
    plane: Option<SocketAddr>,
) -> ClassUpdate {
    ClassUpdate {
        revision,
        changed: changed.iter().map(|name| policy(name)).collect(),
        removed: removed.iter().map(|name| Text::from(*name)).collect(),
        dataplanes: plane.map(|address| {
            vec![Dataplane {
                pod: Key::new("baton", "lb-0"),
                address: address.ip(),
                control_port: address.port(),
                node: Some("node-1".into()),
            }]
        }),
        ..ClassUpdate::default()
    }
}

/// Waits until the index is told that the dataplane has this revision, or refuses it.
async fn progress(fleet: &mut Fleet, is_it: impl Fn(&baton_index::Report) -> bool) {
    let wait = async {
        loop {
            let news = fleet.news().await;
            for change in fleet.heard(news) {
                if let Change::Report(key, Some(progress)) = change {
                    assert_eq!(key, Key::new("baton", "lb-0"));
                    if is_it(&progress) {
                        return;
                    }
                }
            }
        }
    };
    timeout(Duration::from_secs(30), wait).await.expect("in time");
}

fn names(held: &Value) -> Vec<&str> {
    let policies = held["policies"].as_array().expect("policies");
    policies.iter().filter_map(|p| p["name"].as_str()).collect()
}

#[tokio::test]
async fn a_term_publishes_all_and_then_what_changes_and_the_index_hears_how_far_it_is() {
    let plane = Plane::default();
    let address = plane.start().await;
    let mut fleet = fleet();
    fleet.update("edge".into(), update(1, &["a", "b"], &[], Some(address)));
    fleet.publish();
    assert!(!fleet.leads() && plane.held().is_null(), "a standby pushes nothing");
    assert!(fleet.term(Some(7)).is_empty());
    fleet.publish();
    progress(&mut fleet, |p| p.acknowledged == Some(1)).await;
    assert_eq!(names(&plane.held()), ["a", "b"]);
    let first = plane.held()["generation"].as_u64().expect("a number");
    assert_eq!(first >> 32, 7);
    fleet.update("edge".into(), update(2, &["c"], &["a"], None));
    fleet.publish();
    progress(&mut fleet, |p| p.acknowledged == Some(2)).await;
    assert_eq!(names(&plane.held()), ["b", "c"]);
    // The term ends: what dataplanes have is not known any more.
    let forgotten = fleet.term(None);
    assert!(forgotten.iter().any(|c| matches!(c, Change::Report(_, None))), "{forgotten:?}");
    fleet.update("edge".into(), update(3, &["d"], &[], None));
    fleet.publish();
    assert_eq!(names(&plane.held()), ["b", "c"]);
    fleet.term(Some(9));
    fleet.publish();
    progress(&mut fleet, |p| p.acknowledged == Some(3)).await;
    assert_eq!(names(&plane.held()), ["b", "c", "d"]);
    assert_eq!(plane.held()["generation"].as_u64().expect("a number") >> 32, 9);
}

#[tokio::test]
async fn a_refusal_is_told_with_its_words_and_is_over_with_the_next_good_snapshot() {
    let plane = Plane::default();
    plane.refuse(true);
    let address = plane.start().await;
    let mut fleet = fleet();
    fleet.update("edge".into(), update(1, &["a"], &[], Some(address)));
    fleet.term(Some(1));
    fleet.publish();
    progress(&mut fleet, |p| {
        p.refused.as_ref().is_some_and(|(revision, words)| {
            *revision == 1 && words.contains("is bad") && words.contains("a better one")
        })
    })
    .await;
    plane.refuse(false);
    fleet.update("edge".into(), update(2, &["b"], &[], None));
    fleet.publish();
    progress(&mut fleet, |p| p.acknowledged == Some(2) && p.refused.is_none()).await;
}

/// What the index asks for is asked before the first push, so that the push can hold it.
#[tokio::test]
async fn a_dataplane_is_asked_for_what_is_not_known_before_anything_is_pushed_to_it() {
    let plane = Plane::default();
    plane.hold(&["ns/gone/http", "ns/slip/http"]);
    let address = plane.start().await;
    let mut fleet = fleet();
    fleet.update("edge".into(), update(1, &["ns/a/http"], &[], Some(address)));
    fleet.want(Wants::These([Key::new("ns", "slip")].into()));
    fleet.term(Some(1));
    fleet.publish();
    let found = async {
        loop {
            let news = fleet.news().await;
            for change in fleet.heard(news) {
                if let Change::Held(class, policies) = change {
                    return (class, policies);
                }
            }
        }
    };
    let (class, policies) = timeout(Duration::from_secs(30), found).await.expect("asked");
    let found: Vec<_> = policies.iter().map(|p| p.name.as_str()).collect();
    assert_eq!((&*class, found), ("edge", vec!["ns/slip/http"]));
    // Nothing was pushed, though the class has content.
    assert_eq!(names(&plane.held()), ["ns/gone/http", "ns/slip/http"]);
    fleet.update("edge".into(), update(2, &["ns/slip/http"], &[], None));
    fleet.publish();
    progress(&mut fleet, |p| p.acknowledged == Some(2)).await;
    assert_eq!(names(&plane.held()), ["ns/a/http", "ns/slip/http"]);
}

#[tokio::test]
async fn a_dataplane_that_is_asked_no_more_is_pushed_to() {
    let plane = Plane::default();
    plane.hold(&["ns/slip/http"]);
    let address = plane.start().await;
    let mut fleet = fleet();
    fleet.update("edge".into(), update(1, &["ns/a/http"], &[], Some(address)));
    fleet.want(Wants::All);
    fleet.term(Some(1));
    fleet.publish();
    // The policy was corrected or deleted meanwhile.
    fleet.want(Wants::Nothing);
    fleet.publish();
    progress(&mut fleet, |p| p.acknowledged == Some(1)).await;
    assert_eq!(names(&plane.held()), ["ns/a/http"]);
}

#[tokio::test]
async fn a_half_known_world_is_not_published() {
    let plane = Plane::default();
    let address = plane.start().await;
    let mut fleet = fleet();
    fleet.ready = false;
    fleet.term(Some(1));
    fleet.update("edge".into(), update(1, &["a"], &[], Some(address)));
    fleet.publish();
    assert!(!fleet.leads());
    assert!(fleet.targets().0.contains_key("dataplane/baton/lb-0"));
    let heard = timeout(Duration::from_millis(200), fleet.news()).await;
    assert!(heard.is_err() && plane.held().is_null());
}

pub fn pod(labels: &[(&str, &str)], address: Option<&str>) -> Pod {
    Pod {
        labels: labels.iter().copied().collect::<Labels>(),
        annotations: Labels::default(),
        deleting: false,
        ready: true,
        node: Some("n1".into()),
        address: address.map(|a| a.parse().expect("an address")),
        second_address: None,
        host_network: false,
        cost: None,
    }
}

/// A node would look covered, and figures of Pods that are no more would pile up.
#[tokio::test]
async fn what_is_known_of_who_leaves_within_a_term_is_forgotten() {
    let mut fleet = fleet();
    let see = |fleet: &mut Fleet, name: &str, pod: Option<Pod>| {
        fleet.see(&Change::Pod(Key::new("baton", name), pod.map(Arc::new)));
    };
    let nobody = SocketAddr::from(([127, 0, 0, 1], 9));
    fleet.update("edge".into(), update(1, &["a"], &[], Some(nobody)));
    for name in ["shim-0", "shim-1"] {
        let shim = pod(&[("app", "shim")], Some("127.0.0.1"));
        see(&mut fleet, name, Some(shim));
    }
    fleet.term(Some(1));
    assert!(fleet.publish().is_empty());
    see(&mut fleet, "shim-0", None);
    assert!(fleet.publish().is_empty(), "another one is on its node");
    see(&mut fleet, "shim-1", None);
    let left = fleet.publish();
    let [Change::Shim(node, None)] = &*left else {
        panic!("{left:?}");
    };
    assert_eq!(&**node, "n1");
    let no_dataplanes = ClassUpdate { dataplanes: Some(Vec::new()), ..update(1, &[], &[], None) };
    fleet.update("edge".into(), no_dataplanes);
    let left = fleet.publish();
    let [Change::Report(reported, None), Change::Figures(counted, None)] = &*left else {
        panic!("{left:?}");
    };
    let lb = Key::new("baton", "lb-0");
    assert_eq!((reported, counted), (&lb, &lb));
    assert!(fleet.publish().is_empty());
}

#[test]
fn shims_are_pods_with_the_labels_in_the_namespace() {
    let mut fleet = fleet();
    let see = |fleet: &mut Fleet, namespace: &str, pod: Option<Pod>| {
        let key = Key::new(namespace, "shim-0");
        fleet.see(&Change::Pod(key, pod.map(Arc::new)));
        fleet.targets().0.len()
    };
    let shim = [("app", "shim"), ("x", "y")];
    assert_eq!(see(&mut fleet, "other", Some(pod(&shim, Some("10.0.0.1")))), 0);
    assert_eq!(see(&mut fleet, "baton", Some(pod(&[("app", "web")], Some("10.0.0.1")))), 0);
    assert_eq!(see(&mut fleet, "baton", Some(pod(&shim, None))), 0);
    assert_eq!(see(&mut fleet, "baton", Some(pod(&shim, Some("10.0.0.1")))), 1);
    // Whose keys it gets.
    let node = "n1".to_owned();
    let target = fleet.targets().0.remove("shim/baton/shim-0");
    assert_eq!(target.expect("a shim").kind, TargetKind::Shim { node });
    assert_eq!(see(&mut fleet, "baton", None), 0);
}

#[test]
fn dataplanes_are_served_before_shims_and_some_rather_than_none() {
    let mut fleet = fleet();
    let shim = Arc::new(pod(&[("app", "shim")], Some("10.0.0.1")));
    for number in 0..=LIMIT_TARGETS {
        let key = Key::new("baton", format!("shim-{number}"));
        fleet.see(&Change::Pod(key, Some(Arc::clone(&shim))));
    }
    let address = SocketAddr::from(([10, 0, 0, 2], 9_900));
    fleet.update("edge".into(), update(1, &[], &[], Some(address)));
    let (targets, dataplanes, shims) = fleet.targets();
    assert_eq!(targets.len(), LIMIT_TARGETS);
    assert_eq!((dataplanes.len(), shims.len()), (1, LIMIT_TARGETS - 1));
}

#[cfg(feature = "otel")]
#[tokio::test]
async fn a_push_is_a_span_with_what_was_pushed_and_its_outcome() {
    use crate::telemetry::tests::{Collector, attributes, export};
    let collector = Collector::default();
    let (export, _guard) = export(collector.start().await);
    let plane = Plane::default();
    plane.refuse(true);
    let address = plane.start().await;
    let mut fleet = fleet();
    fleet.update("edge".into(), update(1, &["a", "b"], &[], Some(address)));
    fleet.term(Some(7));
    fleet.publish();
    progress(&mut fleet, |p| p.refused.is_some()).await;
    plane.refuse(false);
    fleet.update("edge".into(), update(2, &[], &["a"], None));
    fleet.publish();
    progress(&mut fleet, |p| p.acknowledged == Some(2)).await;
    let push = |outcome: &'static str| {
        collector.span(move |name, said| {
            name == "push" && said.get("outcome").is_some_and(|o| o == outcome)
        })
    };
    let refused = push("refused").await;
    let said = attributes(&refused.attributes);
    assert_eq!(said["dataplane"], "dataplane/baton/lb-0");
    assert_eq!((&*said["policies"], &*said["problem"]), ("2", "is bad"));
    let generation: u64 = said["generation"].parse().expect("a number");
    assert_eq!(generation >> 32, 7);
    assert!(said["bytes"].parse::<u64>().expect("a number") > 50);
    assert_eq!(refused.status.expect("a status").code, 2, "an error");
    let accepted = push("accepted").await;
    assert_eq!(attributes(&accepted.attributes)["policies"], "1");
    assert!(accepted.end_time_unix_nano > accepted.start_time_unix_nano);
    export.end().await;
}
