//! What a snapshot and the limits may say: each refusal with its path and words.

use baton_api::{Limits, Micros, Snapshot, SnapshotError};

const GOOD: &str = r#"{
  "generation": 3,
  "policies": [
    {"name": "web", "frontends": ["10.0.0.1:80", "[fd00::1]:80"],
     "backends": [{"name": "a", "endpoint": "10.0.1.1:80"}, {"name": "b", "endpoint": "10.0.1.2:80", "weight": 0}]},
    {"name": "db", "frontends": ["0.0.0.0:6379"], "backends": [], "protocol": "RequestResponse",
     "onBackendFailure": "Reset", "timeouts": {"idle": "1h"}}
  ]
}"#;

fn parse(text: &str) -> Snapshot {
    serde_json::from_str(text).expect(text)
}

fn refusal(text: &str) -> SnapshotError {
    parse(text).validate().expect_err(text)
}

#[test]
fn a_snapshot_with_defaults_is_good_and_survives_a_round_trip() {
    let snapshot = parse(GOOD);
    assert_eq!(snapshot.validate(), Ok(()));
    assert_eq!(snapshot.policies[0].backends[0].weight, 1);
    assert_eq!(snapshot.policies[1].timeouts.idle, Micros::from_secs(3_600));
    assert_eq!(
        snapshot.policies[1].timeouts.handshake,
        Micros::from_secs(63)
    );
    let written = serde_json::to_string(&snapshot).expect("written");
    assert_eq!(parse(&written), snapshot);
}

#[test]
fn each_refusal_names_its_path_and_what_was_expected() {
    for (from, to, path, words) in [
        ("\"web\"", "\"\"", "policies[0].name", "expected 1 to 127"),
        (
            "\"web\"",
            "\"w b\"",
            "policies[0].name",
            "expected 1 to 127",
        ),
        (
            "\"db\"",
            "\"web\"",
            "policies[1].name",
            "already the name of policies[0]",
        ),
        (
            "[\"0.0.0.0:6379\"]",
            "[]",
            "policies[1].frontends",
            "at least one",
        ),
        (
            "0.0.0.0:6379",
            "10.0.0.1:80",
            "policies[1].frontends[0]",
            "frontend of policy `web`",
        ),
        (
            "[fd00::1]:80",
            "10.0.0.1:80",
            "policies[0].frontends[1]",
            "frontend of policy `web`",
        ),
        (
            "\"b\"",
            "\"a\"",
            "policies[0].backends[1].name",
            "backends[0]",
        ),
        (
            "10.0.1.2",
            "10.0.1.1",
            "policies[0].backends[1].endpoint",
            "backends[0]",
        ),
        (
            "10.0.1.2",
            "0.0.0.0",
            "policies[0].backends[1].endpoint",
            "not the address of a pod",
        ),
        (
            "10.0.1.2:80",
            "[ff02::1]:80",
            "policies[0].backends[1].endpoint",
            "not the address of a pod",
        ),
        (
            "{\"idle\": \"1h\"}",
            "{\"idle\": \"99ms\"}",
            "policies[1].timeouts.idle",
            "100ms to 168h",
        ),
        (
            "{\"idle\": \"1h\"}",
            "{\"halfClosed\": \"169h\"}",
            "policies[1].timeouts.halfClosed",
            "100ms to 168h",
        ),
        (
            "\"timeouts\": {\"idle\": \"1h\"}",
            "\"migration\": {\"ratioPercent\": 99}",
            "policies[1].migration.ratioPercent",
            "below 100",
        ),
    ] {
        let text = GOOD.replacen(from, to, 1);
        assert_ne!(text, GOOD, "{from}");
        let error = refusal(&text);
        assert_eq!(error.path, path, "{error}");
        assert!(error.problem.contains(words), "{error}");
    }
}

#[test]
fn unknown_fields_and_port_0_cannot_be_parsed() {
    for (from, to) in [
        ("\"weight\"", "\"wieght\""),
        ("\"generation\"", "\"genration\""),
        ("10.0.1.2:80", "10.0.1.2:0"),
        ("10.0.1.2:80", "10.0.1.2"),
        ("\"1h\"", "3600"),
        ("\"RequestResponse\"", "\"REDIS\""),
    ] {
        let text = GOOD.replacen(from, to, 1);
        assert_ne!(text, GOOD, "{from}");
        assert!(serde_json::from_str::<Snapshot>(&text).is_err(), "{to}");
    }
}

#[test]
fn limits_have_ranges() {
    assert_eq!(Limits::default().validate(), Ok(()));
    type Change = fn(&mut Limits);
    let cases: [(&str, Change); 6] = [
        ("limits.flows", |l| l.flows = 15),
        ("limits.backends", |l| l.backends = 0),
        ("limits.closingLegs", |l| l.closing_legs = (1 << 24) + 1),
        ("limits.keptSegments", |l| l.kept_segments = 0),
        ("limits.guardedFlows", |l| l.guarded_flows = 0),
        ("limits.guardedFlows", |l| l.guarded_flows = (1 << 24) + 1),
    ];
    for (path, change) in cases {
        let mut limits = Limits::default();
        change(&mut limits);
        let error = limits.validate().expect_err(path);
        assert_eq!(error.path, path);
        assert!(error.problem.contains("expected "), "{error}");
    }
}
