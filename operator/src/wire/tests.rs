//! The files in `testdata` are the same objects in both forms, written by Kubernetes' own code (`write.go` there).

use super::*;
use crate::{
    objects::{Node, Pod},
    translate::Translator,
};
use baton_index::Change;
use futures_util::stream;
use http_body_util::StreamBody;
use hyper::body::Frame;
use k8s_openapi::{api::core::v1::Service, api::discovery::v1::EndpointSlice};
use kube::{
    Resource,
    core::{ObjectList, Status, WatchEvent},
};
use prost::Message as _;
use serde::de::DeserializeOwned;
use std::{convert::Infallible, fmt::Debug};

fn lists<K>(binary: &'static [u8], json: &str) -> [ObjectList<K>; 2]
where
    K: Clone + DeserializeOwned,
{
    let turned = json::whole(Bytes::from_static(binary)).expect("a list");
    let turned = serde_json::from_slice(&turned).expect("JSON of a list");
    [turned, serde_json::from_str(json).expect("JSON of a list")]
}

/// What the index is told of each, and what the watch goes by.
fn told<K>(list: &ObjectList<K>, translate: impl Fn(&Translator, &K) -> Change) -> Vec<String>
where
    K: Resource + Clone + Debug,
{
    let translator = Translator::new();
    let object = |object: &K| {
        let version = object.meta().resource_version.as_deref();
        let change = translate(&translator, object);
        format!("{version:?} {change:?}")
    };
    let meta = &list.metadata;
    let head = format!("{:?} {:?}", meta.resource_version, meta.continue_);
    let items = list.items.iter().map(object);
    std::iter::once(head).chain(items).collect()
}

macro_rules! same {
    ($name:ident, $kind:ty, $file:literal, $translate:expr, $objects:literal) => {
        #[test]
        fn $name() {
            let [binary, json] = lists::<$kind>(
                include_bytes!(concat!("testdata/", $file, ".pb")),
                include_str!(concat!("testdata/", $file, ".json")),
            );
            let (binary, json) = (told(&binary, $translate), told(&json, $translate));
            assert_eq!(binary, json);
            assert_eq!(binary.len(), $objects + 1);
            assert_eq!(binary[0], r#"Some("4711") Some("token")"#);
        }
    };
}

same!(pods_read_the_same, Pod, "pods", Translator::pod, 3);
same!(nodes_read_the_same, Node, "nodes", Translator::node, 2);
same!(
    services_read_the_same,
    Service,
    "services",
    Translator::service,
    2
);
same!(
    slices_read_the_same,
    EndpointSlice,
    "endpointslices",
    Translator::slice,
    2
);

#[test]
fn all_that_is_read_of_a_pod_and_a_node_is_the_same() {
    let [binary, json] = lists::<Pod>(
        include_bytes!("testdata/pods.pb"),
        include_str!("testdata/pods.json"),
    );
    for (binary, json) in binary.items.into_iter().zip(json.items) {
        assert_eq!(binary, json);
    }
    let [binary, json] = lists::<Node>(
        include_bytes!("testdata/nodes.pb"),
        include_str!("testdata/nodes.json"),
    );
    assert_eq!(binary.items, json.items);
}

#[test]
fn what_is_no_text_makes_no_pod_unreadable() {
    let wrong = || b"a\xffb".to_vec();
    let pod = messages::Pod {
        metadata: messages::ObjectMeta {
            name: "web-1".into(),
            annotations: [("notes".to_owned(), wrong())].into(),
            ..messages::ObjectMeta::default()
        },
        status: messages::PodStatus {
            conditions: vec![messages::Condition {
                kind: wrong(),
                status: b"True".to_vec(),
            }],
            ..messages::PodStatus::default()
        },
        ..messages::Pod::default()
    };
    let list = messages::List {
        metadata: messages::ListMeta::default(),
        items: vec![pod.encode_to_vec().into()],
    };
    let unknown = messages::Unknown {
        types: messages::Types {
            api_version: "v1".into(),
            kind: "PodList".into(),
        },
        raw: list.encode_to_vec().into(),
    };
    let bytes = [b"k8s\0", unknown.encode_to_vec().as_slice()].concat();
    let turned = json::whole(bytes.into()).expect("a list");
    let list: ObjectList<Pod> = serde_json::from_slice(&turned).expect("JSON");
    let [pod] = list.items.as_slice() else {
        panic!("{list:?}")
    };
    let notes = pod
        .metadata
        .annotations
        .as_ref()
        .map(|a| a["notes"].as_str());
    assert_eq!(notes, Some("a\u{fffd}b"));
    assert_eq!(pod.status.conditions[0].kind, "a\u{fffd}b");
}

const WATCH: &[u8] = include_bytes!("testdata/watch.pb");

fn answer(kind: &str, pieces: Vec<Bytes>) -> Response<Box<DynBody>> {
    let frames = pieces.into_iter().map(|p| Ok(Frame::data(p)));
    let body = StreamBody::new(stream::iter(frames.collect::<Vec<_>>()))
        .map_err(|never: Infallible| match never {});
    let body: Box<DynBody> = Box::new(body);
    let answer = Response::builder().header(CONTENT_TYPE, kind);
    answer.body(body).expect("an answer")
}

async fn read_all(kind: &str, pieces: Vec<Bytes>) -> Result<String, BoxError> {
    let answer = read(answer(kind, pieces)).await?;
    let whole = answer.into_body().collect().await?.to_bytes();
    Ok(String::from_utf8(whole.into()).expect("text"))
}

fn events(lines: &str) -> Vec<String> {
    let event = |line| match serde_json::from_str(line).expect("an event") {
        WatchEvent::<Pod>::Added(pod) => format!("+{pod:?}"),
        WatchEvent::Modified(pod) => format!("~{pod:?}"),
        WatchEvent::Deleted(pod) => format!("-{pod:?}"),
        WatchEvent::Bookmark(mark) => {
            format!(
                "{} {:?}",
                mark.metadata.resource_version, mark.metadata.annotations
            )
        }
        WatchEvent::Error(status) => format!("{status:?}"),
    };
    lines.lines().map(event).collect()
}

#[tokio::test]
async fn a_watch_reads_the_same_however_it_is_cut() {
    let expected = events(include_str!("testdata/watch.json"));
    assert_eq!(expected.len(), 5);
    let kind = "application/vnd.kubernetes.protobuf;stream=watch";
    for size in [1, 3, 7, 100, WATCH.len()] {
        let pieces = WATCH.chunks(size).map(Bytes::from_static).collect();
        let lines = read_all(kind, pieces).await.expect("events");
        assert_eq!(events(&lines), expected, "pieces of {size} bytes");
    }
    // Cut in the middle of the last event: those before it count, and the rest is told as broken.
    let cut = Bytes::from_static(&WATCH[..WATCH.len() - 1]);
    let answer = read(answer(kind, vec![cut])).await.expect("a watch");
    let mut body = answer.into_body();
    let first = body.frame().await.expect("events").expect("whole ones");
    let first = first.into_data().expect("data");
    assert_eq!(
        events(std::str::from_utf8(&first).expect("text")),
        expected[..4]
    );
    body.frame().await.expect("an end").expect_err("a cut one");
}

#[tokio::test]
async fn a_refusal_reads_the_same() {
    let binary = Bytes::from_static(include_bytes!("testdata/status.pb"));
    let text = read_all(BINARY, vec![binary]).await.expect("a refusal");
    let status: Status = serde_json::from_str(&text).expect("a status");
    let expected: Status =
        serde_json::from_str(include_str!("testdata/status.json")).expect("a status");
    assert_eq!(format!("{status:?}"), format!("{expected:?}"));
    assert_eq!(status.code, 410);
}

#[tokio::test]
async fn json_goes_through_as_it_is() {
    for kind in ["application/json", "text/plain", ""] {
        let pieces = vec![
            Bytes::from_static(b"{\"items\":"),
            Bytes::from_static(b"[]}"),
        ];
        let text = read_all(kind, pieces).await.expect("an answer");
        assert_eq!(text, "{\"items\":[]}");
    }
}

#[tokio::test]
async fn what_cannot_be_read_is_refused_in_words() {
    let pods = include_bytes!("testdata/pods.pb");
    let mut secret = pods.to_vec();
    let at = secret
        .windows(7)
        .position(|w| w == b"PodList")
        .expect("a kind");
    secret[at..at + 7].copy_from_slice(b"PadList");
    for (bytes, word) in [
        (b"{}".to_vec(), "mark"),
        (pods[..pods.len() - 5].to_vec(), "cannot be read"),
        (secret, "PadList"),
        (Vec::new(), "mark"),
    ] {
        let error = read_all(BINARY, vec![bytes.into()]).await;
        let error = error.expect_err(word).to_string();
        assert!(error.contains(word), "{error}");
    }
    let kind = "application/vnd.kubernetes.protobuf;stream=watch";
    for (bytes, word) in [
        (vec![0xff; 8], "frame"),
        ([&[0, 0, 0, 2][..], &[0x12, 0]].concat(), "mark"),
    ] {
        let error = read_all(kind, vec![bytes.into()]).await;
        let error = error.expect_err(word).to_string();
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn only_lists_and_watches_of_all_objects_are_asked_for_in_the_binary_form() {
    for (method, uri, binary) in [
        (Method::GET, "/api/v1/pods?limit=500", true),
        (
            Method::GET,
            "/apis/discovery.k8s.io/v1/endpointslices?watch=1",
            true,
        ),
        (Method::GET, "/api/v1/namespaces/shop/pods/web-1", false),
        (Method::PATCH, "/api/v1/pods", false),
        (
            Method::GET,
            "/apis/baton.dev/v1alpha1/loadbalancerpolicies",
            false,
        ),
    ] {
        let request = Request::builder().method(method).uri(uri);
        let request = request.header(ACCEPT, "application/json");
        let asked = ask(request.body(Body::empty()).expect("a request"));
        let accepted = asked.headers().get_all(ACCEPT).iter().collect::<Vec<_>>();
        let expected = if binary { ACCEPTED } else { "application/json" };
        assert_eq!(accepted, [expected], "{uri}");
    }
}

#[test]
fn streamed_lists_are_as_new_as_can_be() {
    for (uri, expected) in [
        (
            "/api/v1/pods?&watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=0",
            "/api/v1/pods?&watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
        ),
        (
            "/api/v1/pods?watch=true&resourceVersion=0",
            "/api/v1/pods?watch=true&resourceVersion=0",
        ),
        ("/version", "/version"),
    ] {
        let request = Request::builder().uri(uri);
        let asked = ask(request.body(Body::empty()).expect("a request"));
        assert_eq!(asked.uri(), expected);
    }
}

/// So that the end of a connection stays what it was.
#[tokio::test]
async fn a_failed_connection_stays_that_failure() {
    let failure: BoxError = Box::new(std::io::Error::new(
        std::io::ErrorKind::UnexpectedEof,
        "the other side is gone",
    ));
    let body: Box<DynBody> = Box::new(StreamBody::new(Box::pin(stream::iter([Err(failure)]))));
    let error = frames::lines(body).collect().await.expect_err("a failure");
    let io = error.downcast_ref::<std::io::Error>().expect("the same");
    assert_eq!(io.kind(), std::io::ErrorKind::UnexpectedEof);
}
