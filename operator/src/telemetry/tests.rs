//! Spans at a collector: what they say, what becomes of those that nobody takes, and that no secret
//! is among them.

use super::{
    Endpoint,
    export::{Export, LIMIT_QUEUE, layer},
};
use crate::{
    fake_api::FakeApi,
    leader::{Leadership, Settings as Election},
    secrets::tests::{Scene, contents},
};
use baton_push::SPANS;
use http_body_util::{BodyExt, Full};
use hyper::{
    Request, Response,
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{KeyValue, any_value::Value},
    trace::v1::Span,
};
use prost::Message;
use std::{
    collections::BTreeMap,
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, LazyLock, Mutex},
    time::Duration,
};
use tokio::{
    net::TcpListener,
    sync::{oneshot, watch},
    time::{Instant, sleep},
};
use tracing::{
    Dispatch,
    subscriber::{DefaultGuard, NoSubscriber},
    trace_span,
};
use tracing_subscriber::layer::SubscriberExt;

/// What a collector was sent.
#[derive(Clone, Default)]
pub struct Collector(Arc<Mutex<Vec<Bytes>>>);

impl Collector {
    pub async fn start(&self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let this = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let this = this.clone();
                let service = service_fn(move |request: Request<Incoming>| {
                    let this = this.clone();
                    async move {
                        assert_eq!(request.uri().path(), "/v1/traces");
                        let kind = request.headers()["content-type"].as_bytes();
                        assert_eq!(kind, b"application/x-protobuf");
                        let body = request.into_body().collect().await.expect("a body");
                        this.0.lock().expect("whole").push(body.to_bytes());
                        Ok::<_, Infallible>(Response::new(Full::new(Bytes::new())))
                    }
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        address
    }

    fn bodies(&self) -> Vec<Bytes> {
        self.0.lock().expect("whole").clone()
    }

    fn spans(&self) -> Vec<Span> {
        let mut spans = Vec::new();
        for body in self.bodies() {
            let request = ExportTraceServiceRequest::decode(body).expect("a request");
            for resource in request.resource_spans {
                let about = resource.resource.expect("a resource");
                assert_eq!(attributes(&about.attributes)["service.name"], "baton-operator");
                assert_eq!(attributes(&about.attributes)["service.instance.id"], "me");
                let scopes = resource.scope_spans.into_iter();
                spans.extend(scopes.flat_map(|scope| scope.spans));
            }
        }
        spans
    }

    /// Waits for one.
    pub async fn span(&self, is_it: impl Fn(&str, &BTreeMap<String, String>) -> bool) -> Span {
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            let spans = self.spans();
            let found = spans.iter().find(|s| is_it(&s.name, &attributes(&s.attributes)));
            if let Some(found) = found {
                return found.clone();
            }
            let names: Vec<_> = spans.iter().map(|s| &s.name).collect();
            assert!(Instant::now() < end, "only {names:?}");
            sleep(Duration::from_millis(20)).await;
        }
    }
}

pub fn attributes(all: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |value: &Value| match value {
        Value::StringValue(text) => text.clone(),
        Value::IntValue(number) => number.to_string(),
        other => format!("{other:?}"),
    };
    all.iter()
        .filter_map(|kv| {
            let value = kv.value.as_ref()?.value.as_ref()?;
            Some((kv.key.clone(), text(value)))
        })
        .collect()
}

/// A subscriber of nobody's, which lives as long as the process. While there is but one, tracing
/// takes it for everybody's and asks the thread that comes to a span first whether anybody wants
/// such spans, once for all threads: another test's, which has no subscriber, says no. With two it
/// asks all subscribers.
static ANOTHER: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(NoSubscriber::new()));

/// An export of this thread's spans.
pub fn export(address: SocketAddr) -> (Export, DefaultGuard) {
    LazyLock::force(&ANOTHER);
    let endpoint = Endpoint::new(&format!("http://{address}/")).expect("good");
    let (layer, export) = layer(&endpoint, "me").expect("made");
    let guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
    (export, guard)
}

fn count(figures: &prometheus::IntCounterVec, result: &str) -> u64 {
    figures.with_label_values(&[result]).get()
}

#[tokio::test]
async fn lease_turns_rotation_steps_and_whatever_waits_arrive_and_no_secret_does() {
    let collector = Collector::default();
    let (export, _guard) = export(collector.start().await);
    let figures = export.figures();
    let api = FakeApi::default();
    let keeper = Scene::start(&api);
    let (told, mut led) = watch::channel(Leadership::Standby);
    let settings = Election {
        namespace: "baton".to_owned(),
        identity: "me".to_owned(),
        duration: Duration::from_secs(15),
        owner: None,
    };
    let (_stop, stopped) = oneshot::channel();
    let election = tokio::spawn(crate::leader::run(api.client(), settings, told, stopped));
    let leads = led.wait_for(|l| l.epoch().is_some()).await;
    drop(leads.expect("it leads"));
    let span = collector.span(|name, _| name == "lease").await;
    let said = attributes(&span.attributes);
    assert_eq!((&*said["outcome"], &*said["epoch"]), ("taken", "1"));
    let step = |secret: &'static str| {
        let found = move |name: &str, said: &BTreeMap<String, String>| {
            name == "rotation" && said.get("secret").is_some_and(|s| s == secret)
        };
        collector.span(found)
    };
    let said = attributes(&step("baton-adoption-keys").await.attributes);
    assert_eq!((&*said["action"], &*said["outcome"]), ("MakeFirst", "written"));
    let said = attributes(&step("baton-ca").await.attributes);
    assert_eq!(said["action"], "a CA is made");
    // Spans of nobody who means them are not exported, and none is lost at the end.
    drop(trace_span!("another"));
    for i in 0..10_i64 {
        drop(trace_span!(target: SPANS, "last", i));
    }
    export.end().await;
    let spans = collector.spans();
    assert_eq!(spans.iter().filter(|s| s.name == "last").count(), 10);
    assert!(spans.iter().all(|s| s.name != "another"));
    assert_eq!(count(&figures, "exported"), spans.len() as u64);
    let secrets = contents(&api);
    assert!(secrets.len() > 10);
    for body in collector.bodies() {
        let text = String::from_utf8_lossy(&body).into_owned();
        for secret in &secrets {
            assert!(!text.contains(secret.as_str()));
        }
    }
    election.abort();
    drop(keeper);
}

#[tokio::test]
async fn without_a_collector_spans_are_counted_and_lost() {
    // A port that nobody listens at.
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let (export, _guard) = export(address);
    let figures = export.figures();
    for _ in 0..7 {
        drop(trace_span!(target: SPANS, "lost"));
    }
    export.end().await;
    assert_eq!((count(&figures, "failed"), count(&figures, "exported")), (7, 0));
}

/// Who ends spans does not wait for a collector that takes nothing, and neither does the end for
/// longer than its limit: the clock by which the request has its own stands still meanwhile.
#[tokio::test(start_paused = true)]
async fn the_queue_is_bounded_and_the_end_has_a_deadline() {
    // It accepts in the kernel, and never answers.
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let (export, _guard) = export(listener.local_addr().expect("an address"));
    let figures = export.figures();
    for _ in 0..LIMIT_QUEUE + 5 {
        drop(trace_span!(target: SPANS, "many"));
    }
    assert_eq!(count(&figures, "dropped"), 5);
    export.end().await;
    assert_eq!((count(&figures, "exported"), count(&figures, "failed")), (0, 0));
}

/// What kept spans of a test from being exported when another test came to the same line first.
#[tokio::test]
async fn a_span_that_another_thread_comes_to_first_is_exported() {
    fn one() {
        drop(trace_span!(target: SPANS, "met elsewhere first"));
    }
    let collector = Collector::default();
    let (export, _guard) = export(collector.start().await);
    std::thread::spawn(one).join().expect("ended");
    one();
    export.end().await;
    let spans = collector.spans();
    let found = spans.iter().filter(|s| s.name == "met elsewhere first");
    assert_eq!(found.count(), 1);
}
