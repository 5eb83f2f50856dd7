//! What a policy may say about failing, draining and slow backends: defaults, round trips, each
//! refusal.

use baton_api::{
    BackendFailure, LIMIT_ALLOW_FROM, Micros, OnDeadline, Policy, Protocol, Snapshot, StatusRange,
};
use serde_json::{Value, json};

/// Every new field, with a value that is not its default.
fn full() -> Value {
    json!({
        "name": "web", "frontends": ["10.0.0.1:80"],
        "backends": [{"name": "a", "endpoint": "10.0.1.1:80"}],
        "onBackendFailure": "AdoptIdleOnly",
        "responseTimeout": "2s",
        "drain": {"quiet": "50ms", "deadline": "10m", "onDeadline": "Close"},
        "health": {
            "failureThreshold": 3, "baseEjectionTime": "20s", "maxEjectedPercent": 50, "panicPercent": 0,
            "active": {
                "path": "/healthz?full=1", "host": "web.example.org:8080", "expect": ["200-204", "301"],
                "port": 8081, "interval": "2s", "jitterPercent": 0, "timeout": "500ms",
                "successThreshold": 1, "failureThreshold": 100
            }
        },
        "slowStart": "30s"
    })
}

fn snapshot(policy: &Value) -> serde_json::Result<Snapshot> {
    serde_json::from_value(json!({"generation": 1, "policies": [policy]}))
}

/// `full` with the value at `pointer` replaced; the parent is made where there is none.
fn with(pointer: &str, value: Value) -> Value {
    let mut policy = full();
    let (parent, field) = pointer.rsplit_once('/').expect("a pointer");
    let parent = policy.pointer_mut(parent).expect(pointer);
    parent.as_object_mut().expect(pointer).insert(field.to_owned(), value);
    policy
}

#[test]
fn every_field_survives_a_round_trip() {
    let read = snapshot(&full()).expect("read");
    assert_eq!(read.validate(), Ok(()));
    let policy = &read.policies[0];
    assert_eq!(policy.on_backend_failure, BackendFailure::AdoptIdleOnly);
    assert_eq!(policy.response_timeout, Some(Micros::from_secs(2)));
    assert_eq!(policy.drain.on_deadline, OnDeadline::Close);
    assert_eq!(policy.slow_start, Micros::from_secs(30));
    let check = policy.health.active.as_ref().expect("a check");
    assert!(check.expects(204) && check.expects(301));
    assert!(!check.expects(205) && !check.expects(300));
    let written = serde_json::to_value(policy).expect("written");
    let again: Policy = serde_json::from_value(written.clone()).expect("read again");
    assert_eq!(&again, policy);
    // What was written in is written out again, word for word.
    for (name, value) in full().as_object().expect("an object") {
        if name != "backends" {
            assert_eq!(written.get(name), Some(value), "{name}");
        }
    }
}

#[test]
fn what_is_not_said_has_a_default_that_is_good() {
    let read = snapshot(&json!({
        "name": "web", "frontends": ["10.0.0.1:80"], "backends": [], "health": {"active": {}}
    }))
    .expect("read");
    assert_eq!(read.validate(), Ok(()));
    let policy = &read.policies[0];
    assert_eq!(policy.protocol, Protocol::Http1);
    assert_eq!(policy.on_backend_failure, BackendFailure::ReplayIdempotent);
    assert_eq!(policy.response_timeout, None);
    assert_eq!(policy.drain.deadline, Micros::from_secs(25));
    assert_eq!(policy.slow_start, Micros(0));
    let check = policy.health.active.as_ref().expect("a check");
    assert_eq!(check.expect, [StatusRange::new(200, 399).expect("a range")]);
    assert_eq!((check.path.as_ref(), check.port), (None, None));
    let mut plain = full();
    plain["health"]["active"] = Value::Null;
    plain["responseTimeout"] = Value::Null;
    let plain = snapshot(&plain).expect("read");
    assert_eq!(plain.validate(), Ok(()));
    assert_eq!(plain.policies[0].health.active, None);
}

#[test]
fn the_ends_of_each_range_are_good() {
    for (pointer, values) in [
        ("/responseTimeout", vec![json!("1ms"), json!("1h")]),
        ("/drain/quiet", vec![json!("0s"), json!("1h")]),
        ("/drain/deadline", vec![json!("0s"), json!("24h")]),
        ("/health/failureThreshold", vec![json!(0), json!(1_000)]),
        ("/health/baseEjectionTime", vec![json!("100ms"), json!("1h")]),
        ("/health/maxEjectedPercent", vec![json!(0), json!(100)]),
        ("/health/panicPercent", vec![json!(0), json!(100)]),
        ("/health/active/interval", vec![json!("500ms"), json!("1h")]),
        ("/health/active/timeout", vec![json!("1ms"), json!("2s")]),
        ("/health/active/jitterPercent", vec![json!(100)]),
        ("/health/active/successThreshold", vec![json!(1), json!(100)]),
        ("/health/active/expect", vec![json!(["100-599"]), json!([204])]),
        ("/health/active/path", vec![json!("/"), json!(format!("/{}", "a".repeat(1_023)))]),
        ("/health/active/host", vec![json!("[fd00::1]:80"), json!("a".repeat(1_024))]),
        ("/slowStart", vec![json!("0s"), json!("1h")]),
        ("/protocol", vec![json!("None")]),
        ("/onBackendFailure", vec![json!("ReplayIdempotent"), json!("Replay"), json!("Reset")]),
    ] {
        for value in values {
            let read = snapshot(&with(pointer, value.clone())).expect(pointer);
            assert_eq!(read.validate(), Ok(()), "{pointer}: {value}");
        }
    }
    // No protocol knows an idempotent request, so none is replayed: nothing to refuse.
    let mut none = with("/protocol", json!("None"));
    none["onBackendFailure"] = json!("ReplayIdempotent");
    assert_eq!(snapshot(&none).expect("read").validate(), Ok(()));
}

#[test]
fn each_refusal_names_its_path_the_value_and_what_was_expected() {
    let long = format!("/{}", "a".repeat(1_024));
    for (pointer, value, words) in [
        ("/responseTimeout", json!("999us"), "999us is out of range: expected 1ms to 1h"),
        ("/responseTimeout", json!("61m"), "expected 1ms to 1h"),
        ("/drain/quiet", json!("61m"), "61m is out of range: expected 0us to 1h"),
        ("/drain/deadline", json!("25h"), "25h is out of range: expected 0us to 24h"),
        ("/health/failureThreshold", json!(1_001), "1001 is out of range: expected 0 to 1000"),
        ("/health/baseEjectionTime", json!("99ms"), "99ms is out of range: expected 100ms to 1h"),
        ("/health/baseEjectionTime", json!("2h"), "expected 100ms to 1h"),
        ("/health/maxEjectedPercent", json!(101), "101 is out of range: expected 0 to 100"),
        ("/health/panicPercent", json!(255), "255 is out of range: expected 0 to 100"),
        ("/health/active/interval", json!("99ms"), "99ms is out of range: expected 100ms to 1h"),
        ("/health/active/interval", json!("2h"), "expected 100ms to 1h"),
        ("/health/active/jitterPercent", json!(101), "expected 0 to 100"),
        ("/health/active/timeout", json!("0s"), "0us is out of range: expected 1ms to 10s"),
        (
            "/health/active/timeout",
            json!("2001ms"),
            "2001ms is longer than the interval: expected at most 2s",
        ),
        ("/health/active/successThreshold", json!(0), "0 is out of range: expected 1 to 100"),
        ("/health/active/failureThreshold", json!(101), "101 is out of range: expected 1 to 100"),
        ("/health/active/expect", json!([]), "at least one"),
        ("/health/active/port", json!(0), "0 is no port: expected 1 to 65535"),
        ("/health/active/path", json!(""), "`` is not a path: expected `/`"),
        ("/health/active/path", json!("healthz"), "`healthz` is not a path"),
        ("/health/active/path", json!("/a b"), "`/a b` is not a path"),
        ("/health/active/path", json!("/a\r\nHost: x"), "`/a\\r\\nHost: x` is not a path"),
        ("/health/active/path", json!("/a#b"), "is not a path"),
        ("/health/active/path", json!("/ü"), "others as %20"),
        ("/health/active/path", json!(long), "…` is not a path"),
        ("/health/active/host", json!(""), "`` is not a host: expected 1 to 1024"),
        ("/health/active/host", json!("a\tb"), "`a\\tb` is not a host"),
        ("/health/active/host", json!("http://a"), "is not a host"),
        ("/health/active/host", json!(long), "is not a host"),
        ("/slowStart", json!("61m"), "61m is out of range: expected 0us to 1h"),
    ] {
        let path = format!("policies[0]{}", pointer.replace('/', "."));
        let read = snapshot(&with(pointer, value.clone())).expect(pointer);
        let error = read.validate().expect_err(&format!("{pointer}: {value}"));
        assert_eq!(error.path, path, "{error}");
        assert!(error.problem.contains(words), "{error}");
        assert!(error.problem.len() < 250, "{error}");
    }
}

#[test]
fn fields_that_exclude_each_other_are_refused_with_the_reason() {
    let error = snapshot(&with("/algorithm", json!("Maglev")))
        .expect("read")
        .validate()
        .expect_err("slow start with Maglev");
    assert_eq!(error.path, "policies[0].slowStart");
    assert!(error.problem.contains("30s is not possible with algorithm Maglev"), "{error}");
    let mut maglev = with("/algorithm", json!("Maglev"));
    maglev["slowStart"] = json!("0s");
    assert_eq!(snapshot(&maglev).expect("read").validate(), Ok(()));

    let error = snapshot(&with("/health/active/path", Value::Null))
        .expect("read")
        .validate()
        .expect_err("a host without a path");
    assert_eq!(error.path, "policies[0].health.active.host");
    assert!(error.problem.contains("without `path`"), "{error}");
}

#[test]
fn words_that_do_not_exist_cannot_be_parsed() {
    for (pointer, value) in [
        ("/onBackendFailure", json!("Retry")),
        ("/drain/onDeadline", json!("Reset")),
        ("/drain/dead", json!("1s")),
        ("/health/passive", json!({})),
        ("/health/active/uri", json!("/")),
        ("/health/active/expect", json!(["2xx"])),
        ("/health/active/expect", json!(["600"])),
        ("/health/active/expect", json!("200")),
        ("/health/active/port", json!(65_536)),
        ("/responseTimeout", json!(5)),
        ("/slowStart", json!("fast")),
    ] {
        assert!(snapshot(&with(pointer, value.clone())).is_err(), "{pointer}: {value}");
    }
}

#[test]
fn clients_that_are_let_in_are_read_in_one_form_and_are_not_too_many() {
    let read = |value: Value| {
        let snapshot = snapshot(&with("/allowFrom", value)).map_err(|e| e.to_string())?;
        snapshot.validate().map_err(|e| e.to_string())?;
        Ok::<_, String>(serde_json::to_value(&snapshot.policies[0].allow_from).expect("JSON"))
    };
    let given = json!(["10.1.2.3/8", "192.0.2.1", "fd00::/64"]);
    let kept = json!(["10.0.0.0/8", "192.0.2.1/32", "fd00::/64"]);
    assert_eq!(read(given), Ok(kept));
    assert_eq!(read(json!([])), Ok(json!([])));
    let many = |count: usize| json!(vec!["10.0.0.0/8"; count]);
    assert!(read(many(LIMIT_ALLOW_FROM)).is_ok());
    let error = read(many(LIMIT_ALLOW_FROM + 1)).expect_err("too many");
    let words = "policies[0].allowFrom: has 1025 networks: at most 1024 are possible";
    assert_eq!(error, words);
    let error = read(json!(["10.0.0.0/33"])).expect_err("no network");
    assert!(error.contains("expected as 192.0.2.0/24"), "{error}");
}
