//! `/v1/events` and `/v1/migrate` over a real socket: what is asked, what the worker says, what is
//! refused.

use super::{
    events::EventsQuery,
    tests::{Lab, lab},
};
use baton_api::{ErrorReply, FlowEvents, MigrateReply};
use hyper::{Method, StatusCode};
use std::time::{Duration, Instant};

const JSON: (&str, &str) = ("content-type", "application/json");

async fn events(lab: &Lab, query: &str) -> FlowEvents {
    let (status, text) = lab.get(&format!("/v1/events{query}")).await;
    assert_eq!(status, StatusCode::OK, "{query}: {text}");
    serde_json::from_str(&text).expect("events")
}

#[tokio::test]
async fn events_are_given_from_a_number_on_filtered_and_in_pieces() {
    let lab = lab().await;
    let begin = events(&lab, "").await;
    assert_eq!((begin.next.to_string(), begin.events.len()), ("5000".to_owned(), 0));
    assert!(begin.unix_micros > 1_600_000_000_000_000, "a wall clock");
    let some = events(&lab, "?since=4990").await;
    let numbers: Vec<u64> = some.events.iter().map(|e| e.seq).collect();
    assert_eq!(numbers, (4_991..=5_000).collect::<Vec<_>>());
    assert_eq!((some.next.to_string(), some.missed, some.more), ("5000".to_owned(), 0, false));

    // The fake ring begins at 500; one answer holds 4,096 at most.
    let all = events(&lab, "?since=0").await;
    assert_eq!((all.missed, all.more), (499, true));
    assert_eq!((all.events.len(), all.next.to_string()), (4_096, "4595".to_owned()));
    let rest = events(&lab, "?since=4595").await;
    assert_eq!((rest.events.len(), rest.more), (405, false));

    // Every second one is of `db`; clients differ by port.
    let db = events(&lab, "?since=4000&policy=db").await;
    assert_eq!(db.events.len(), 500);
    assert!(db.events.iter().all(|e| e.policy == "db"));
    let one = events(&lab, "?since=4000&client=10.1.0.1:4242").await;
    assert_eq!(one.events.len(), 1);
    let address = events(&lab, "?since=4990&client=10.1.0.1").await;
    assert_eq!(address.events.len(), 10);
    let nobody = events(&lab, "?since=4990&client=fd00::1").await;
    assert_eq!((nobody.events.len(), nobody.next.to_string()), (0, "5000".to_owned()));
}

#[tokio::test]
async fn one_that_waits_is_answered_when_something_happens_or_its_time_is_over() {
    let lab = lab().await;
    let started = Instant::now();
    let none = events(&lab, "?since=5000&wait=1").await;
    assert!(started.elapsed() >= Duration::from_secs(1));
    assert_eq!((none.events.len(), none.next.to_string()), (0, "5000".to_owned()));
    let started = Instant::now();
    let some = events(&lab, "?since=4999&wait=8").await;
    assert!(started.elapsed() < Duration::from_secs(4));
    assert_eq!(some.events.len(), 1);
}

#[test]
fn wrong_questions_are_refused_with_the_field() {
    for (query, field) in [
        ("since=-1", "since"),
        ("since=now", "since"),
        ("wait=9", "wait"),
        ("wait=1s", "wait"),
        ("client=nobody", "client"),
        ("client=10.0.0.1:70000", "client"),
        ("limit=5", "limit"),
    ] {
        let error = EventsQuery::parse(query).expect_err(query);
        assert_eq!(error.field.as_deref(), Some(field), "{error:?}");
        assert!(error.error.contains("expected "), "{error:?}");
    }
    assert_eq!(EventsQuery::parse(""), Ok(EventsQuery::default()));
    let bracketed = EventsQuery::parse("client=%5Bfd00::7%5D:80&policy=a%2Fb");
    assert!(bracketed.is_ok(), "{bracketed:?}");
}

#[tokio::test]
async fn a_wish_is_handed_to_the_worker_and_its_refusal_to_who_asked() {
    let lab = lab().await;
    let ask = async |body: &str, headers: &[(&str, &str)]| {
        let (head, body) =
            lab.ask_with(Method::POST, "/v1/migrate", headers, body.to_owned()).await;
        (head.status, body)
    };
    let body = r#"{"client": "10.1.0.1:1", "frontend": "10.0.0.1:80", "to": "b"}"#;
    let (status, said) = ask(body, &[JSON]).await;
    assert_eq!(status, StatusCode::OK, "{said:?}");
    let reply: MigrateReply = serde_json::from_slice(&said).expect("a reply");
    let expected =
        MigrateReply { policy: "web".into(), from: "a".into(), to: Some("b".into()), begun: true };
    assert_eq!(reply, expected);
    for (body, status, words, field) in [
        (
            r#"{"client": "10.1.0.2:1"}"#,
            StatusCode::NOT_FOUND,
            "no flow of 10.1.0.2:1 is here",
            Some("client"),
        ),
        (r#"{"client": "10.1.0.1:1"}"#, StatusCode::CONFLICT, "being moved", None),
        (r#"{"client": "10.1.0.1"}"#, StatusCode::UNPROCESSABLE_ENTITY, "", None),
        (
            r#"{"client": "10.1.0.1:1", "policy": "web"}"#,
            StatusCode::UNPROCESSABLE_ENTITY,
            "unknown field `policy`",
            None,
        ),
    ] {
        let (got, said) = ask(body, &[JSON]).await;
        assert_eq!(got, status, "{body}: {said:?}");
        let error: ErrorReply = serde_json::from_slice(&said).expect("an error");
        assert!(error.error.contains(words), "{error:?}");
        assert_eq!(error.field.as_deref(), field, "{error:?}");
        let shape = error.expected.unwrap_or_default();
        let wrong_body = status == StatusCode::UNPROCESSABLE_ENTITY;
        assert_eq!(shape.contains("\"client\""), wrong_body, "{shape}");
    }
    // As with every order: no web page, nothing that is not said to be JSON.
    assert_eq!(ask(body, &[]).await.0, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let page = [JSON, ("origin", "http://example.org")];
    assert_eq!(ask(body, &page).await.0, StatusCode::FORBIDDEN);
    let (status, _) = lab.get("/v1/migrate").await;
    assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED);
}
