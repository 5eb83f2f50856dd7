//! What a snapshot and the limits may say: each refusal with its path and words.

use baton_api::{Algorithm, Limits, Micros, MigrationMode, Snapshot, SnapshotError};

const GOOD: &str = r#"{
  "generation": 3,
  "policies": [
    {"name": "web", "frontends": ["10.0.0.1:80", "[fd00::1]:80"],
     "backends": [{"name": "a", "endpoint": "10.0.1.1:80"}, {"name": "b", "endpoint": "10.0.1.2:80", "weight": 0, "node": "n-1"}]},
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
    assert_eq!(snapshot.policies[1].timeouts.handshake, Micros::from_secs(63));
    let written = serde_json::to_string(&snapshot).expect("written");
    assert_eq!(parse(&written), snapshot);
}

#[test]
fn each_refusal_names_its_path_and_what_was_expected() {
    for (from, to, path, words) in [
        ("\"web\"", "\"\"", "policies[0].name", "expected 1 to 143"),
        ("\"web\"", "\"w b\"", "policies[0].name", "expected 1 to 143"),
        ("\"db\"", "\"web\"", "policies[1].name", "already the name of policies[0]"),
        ("[\"0.0.0.0:6379\"]", "[]", "policies[1].frontends", "at least one"),
        ("0.0.0.0:6379", "10.0.0.1:80", "policies[1].frontends[0]", "frontend of policy `web`"),
        ("[fd00::1]:80", "10.0.0.1:80", "policies[0].frontends[1]", "is there twice"),
        ("\"b\"", "\"a\"", "policies[0].backends[1].name", "backends[0]"),
        ("10.0.1.2", "10.0.1.1", "policies[0].backends[1].endpoint", "backends[0]"),
        ("10.0.1.2", "0.0.0.0", "policies[0].backends[1].endpoint", "not the address of a pod"),
        (
            "10.0.1.2:80",
            "[ff02::1]:80",
            "policies[0].backends[1].endpoint",
            "not the address of a pod",
        ),
        ("\"n-1\"", "\"\"", "policies[0].backends[1].node", "expected 1 to 253"),
        ("\"n-1\"", "\"n/1\"", "policies[0].backends[1].node", "is not a node's name"),
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
        (
            "\"timeouts\": {\"idle\": \"1h\"}",
            "\"migration\": {\"perFlow\": 65536}",
            "policies[1].migration.perFlow",
            "expected 0 to 65535",
        ),
        (
            "\"timeouts\": {\"idle\": \"1h\"}",
            "\"affinity\": {\"clientIP\": {\"timeout\": \"999ms\"}}",
            "policies[1].affinity.clientIP.timeout",
            "expected 1s to 24h",
        ),
        (
            "\"timeouts\": {\"idle\": \"1h\"}",
            "\"clientAddress\": \"Restore\", \"migration\": {\"legs\": \"Shared\"}",
            "policies[1].migration.legs",
            "not possible with clientAddress Restore",
        ),
        (
            "\"timeouts\": {\"idle\": \"1h\"}",
            "\"clientAddress\": \"ProxyV2\", \"migration\": {\"legs\": \"Shared\"}",
            "policies[1].migration.legs",
            "not possible with clientAddress Restore or ProxyV2",
        ),
        (
            "\"timeouts\": {\"idle\": \"1h\"}",
            "\"affinity\": {\"clientIP\": {}}, \"migration\": {\"mode\": \"Always\"}",
            "policies[1].migration.mode",
            "not possible with affinity",
        ),
        (
            "\"timeouts\": {\"idle\": \"1h\"}",
            "\"affinity\": {\"clientIP\": {\"timeout\": \"86401s\"}}",
            "policies[1].affinity.clientIP.timeout",
            "expected 1s to 24h",
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
fn names_of_listeners_fit() {
    let name = [("n", 63), ("p", 63), ("l", 15)].map(|(c, bytes)| c.repeat(bytes)).join("/");
    let snapshot = parse(&GOOD.replacen("web", &name, 1));
    assert_eq!(snapshot.validate(), Ok(()));
    let error = refusal(&GOOD.replacen("web", &format!("{name}x"), 1));
    assert_eq!(error.path, "policies[0].name");
}

#[test]
fn affinity_and_the_limits_of_moves_are_written_as_documented() {
    let text = GOOD.replacen(
        "\"protocol\"",
        r#""algorithm": "Random", "affinity": {"clientIP": {"timeout": "90s"}},
        "migration": {"mode": "DrainOnly", "perSecond": 3, "perFlow": 2, "perBackendPerSecond": 1}, "protocol""#,
        1,
    );
    let snapshot = parse(&text);
    assert_eq!(snapshot.validate(), Ok(()));
    let [web, db] = &snapshot.policies[..] else {
        panic!("two policies");
    };
    assert_eq!((web.affinity, web.migration.per_flow), (None, 0));
    assert_eq!(web.migration.per_backend_per_second, 0);
    assert_eq!(db.algorithm, Algorithm::Random);
    let timeout = db.affinity.map(|a| a.client_ip.timeout);
    assert_eq!(timeout, Some(Micros::from_secs(90)));
    assert_eq!(db.migration.mode, MigrationMode::DrainOnly);
    assert_eq!(db.migration.per_flow, 2);
    assert_eq!(db.migration.per_backend_per_second, 1);
    let written = serde_json::to_string(&snapshot).expect("written");
    assert!(written.contains(r#""affinity":{"clientIP":{"timeout":"90s"}}"#));
    assert_eq!(parse(&written), snapshot);
    let default = parse(&text.replacen(r#"{"timeout": "90s"}"#, "{}", 1));
    let timeout = default.policies[1].affinity.map(|a| a.client_ip.timeout);
    assert_eq!(timeout, Some(Micros::from_secs(3 * 3_600)));
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
        ("\"RequestResponse\"", "\"RESP\", \"affinity\": {}"),
        ("\"RequestResponse\"", "\"RESP\", \"affinity\": {\"clientIp\": {}}"),
        ("\"RequestResponse\"", "\"RESP\", \"affinity\": {\"clientIP\": {\"timout\": \"1h\"}}"),
        ("\"RequestResponse\"", "\"RESP\", \"migration\": {\"perPod\": 1}"),
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
    let cases: [(&str, Change); 10] = [
        ("limits.flows", |l| l.flows = 15),
        ("limits.backends", |l| l.backends = 0),
        ("limits.closingLegs", |l| l.closing_legs = (1 << 24) + 1),
        ("limits.keptSegments", |l| l.kept_segments = 0),
        ("limits.guardedFlows", |l| l.guarded_flows = 0),
        ("limits.respSessions", |l| l.resp_sessions = 0),
        ("limits.guardedFlows", |l| l.guarded_flows = (1 << 24) + 1),
        ("limits.affinities", |l| l.affinities = 0),
        ("limits.affinities", |l| l.affinities = (1 << 24) + 1),
        ("limits.trackedPairs", |l| l.tracked_pairs = 63),
    ];
    for (path, change) in cases {
        let mut limits = Limits::default();
        change(&mut limits);
        let error = limits.validate().expect_err(path);
        assert_eq!(error.path, path);
        assert!(error.problem.contains("expected "), "{error}");
    }
}
