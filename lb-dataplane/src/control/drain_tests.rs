//! `POST /v1/drain` over a real socket: who may ask, what is meant, and what the worker says.

use super::{
    drain,
    tests::{Lab, lab, snapshot},
};
use baton_api::{DrainReply, ErrorReply};
use hyper::{Method, StatusCode};

const JSON: (&str, &str) = ("content-type", "application/json");

async fn refused(lab: &Lab, headers: &[(&str, &str)], body: &str) -> (StatusCode, ErrorReply) {
    let (head, body) = lab.ask_with(Method::POST, "/v1/drain", headers, body.to_owned()).await;
    let error = serde_json::from_slice(&body).expect("an error");
    (head.status, error)
}

async fn taken(lab: &Lab, body: &str) -> DrainReply {
    let headers = [("Content-Type", "Application/JSON; charset=utf-8")];
    let (head, body) = lab.ask_with(Method::POST, "/v1/drain", &headers, body.to_owned()).await;
    assert_eq!(head.status, StatusCode::OK, "{body:?}");
    serde_json::from_slice(&body).expect("a reply")
}

#[tokio::test]
async fn a_drain_is_handed_to_the_worker() {
    let lab = lab().await;
    let second = "{\"name\":\"b1\"";
    let draining = format!("{second},\"draining\":true");
    lab.put(&snapshot(1, 2).replace(second, &draining)).await;
    for (body, backends) in [
        (r#"{"backend":"b1"}"#, 2),
        (r#"{"backend":"b1","policy":null,"undo":false}"#, 2),
        (r#"{"backend":"b1","policy":"web"}"#, 1),
        (r#"{"backend":"b1","policy":"web","undo":true}"#, 1),
    ] {
        assert_eq!(taken(&lab, body).await.backends, backends, "{body}");
    }
    // What the snapshot drains, no command takes back; the answer says so.
    for (backend, by_snapshot) in [("b0", 0), ("b1", 1)] {
        let body = format!(r#"{{"backend":"{backend}","policy":"web","undo":true}}"#);
        assert_eq!(taken(&lab, &body).await.by_snapshot, by_snapshot, "{backend}");
    }
}

#[tokio::test]
async fn what_is_not_known_is_told_with_what_is() {
    let lab = lab().await;
    let (status, error) = refused(&lab, &[JSON], r#"{"backend":"a"}"#).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert!(error.error.contains("there is none at all"), "{error:?}");

    lab.put(&snapshot(1, 2)).await;
    for (body, field, words) in [
        (r#"{"backend":"a"}"#, "backend", "no backend is named `a`: expected one of b0, b1"),
        (
            r#"{"backend":"b0","policy":"db"}"#,
            "policy",
            "no policy is named `db`: expected one of web",
        ),
        // The worker has another snapshot by now.
        (r#"{"backend":"b0","undo":true}"#, "backend", "no backend is named `b0`"),
    ] {
        let (status, error) = refused(&lab, &[JSON], body).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{body}");
        assert_eq!(error.field.as_deref(), Some(field), "{error:?}");
        assert_eq!(error.error, words);
    }
    let names: Vec<String> = (0..23).map(|i| format!("n{i:02}")).collect();
    let error = drain::unknown("backend", "x", names.iter().map(String::as_str));
    assert!(error.error.ends_with("n18, n19 and 3 more"), "{error:?}");
}

#[tokio::test]
async fn web_pages_and_wrong_bodies_are_refused() {
    let lab = lab().await;
    lab.put(&snapshot(1, 1)).await;
    let good = r#"{"backend":"b0"}"#;
    let long = format!(r#"{{"backend":"{}"}}"#, "b".repeat(5_000));
    type Case<'a> = (&'a [(&'a str, &'a str)], &'a str, StatusCode, &'a str);
    let cases: [Case<'_>; 8] = [
        (&[], good, StatusCode::UNSUPPORTED_MEDIA_TYPE, "application/json"),
        (
            &[("content-type", "text/plain")],
            good,
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "application/json",
        ),
        (
            &[("content-type", "text/plain; x=application/json")],
            good,
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "application/json",
        ),
        (
            &[JSON, ("origin", "http://127.0.0.1:9900")],
            good,
            StatusCode::FORBIDDEN,
            "no such header",
        ),
        (&[JSON], "", StatusCode::UNPROCESSABLE_ENTITY, "\"backend\": NAME"),
        (&[JSON], "{}", StatusCode::UNPROCESSABLE_ENTITY, "\"backend\": NAME"),
        (&[JSON], r#"{"backend":"b0","wait":true}"#, StatusCode::UNPROCESSABLE_ENTITY, "\"undo\""),
        (&[JSON], &long, StatusCode::BAD_REQUEST, ""),
    ];
    for (headers, body, status, expected) in cases {
        let (got, error) = refused(&lab, headers, body).await;
        assert_eq!(got, status, "{headers:?} {body}");
        let told = error.expected.unwrap_or_default();
        assert!(told.contains(expected), "{told}");
    }
    assert_eq!(lab.get("/v1/drain").await.0, StatusCode::METHOD_NOT_ALLOWED);
    let page = [("origin", "http://example.org")];
    let (head, _) = lab.ask_with(Method::PUT, "/v1/snapshot", &page, snapshot(2, 1)).await;
    assert_eq!(head.status, StatusCode::FORBIDDEN);
    // What a browser asks before it sends JSON or a PUT across sites; nor is it answered where it
    // names no other site.
    let own = [("origin", "http://127.0.0.1:9900")];
    for path in ["/v1/drain", "/v1/snapshot"] {
        let (head, _) = lab.ask_with(Method::OPTIONS, path, &page, "").await;
        assert_eq!(head.status, StatusCode::FORBIDDEN);
        let (head, _) = lab.ask_with(Method::OPTIONS, path, &own, "").await;
        assert_eq!(head.status, StatusCode::METHOD_NOT_ALLOWED);
    }
}
