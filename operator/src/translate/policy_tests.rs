//! Every field of a policy's spec, one by one, and what an older CRD may let through.

use super::Translator;
use baton_api as api;
use baton_index::{Change, Listener, Policy, PortRef, Refusal, WeightSource, Weights};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};
use std::sync::Arc;

fn meta() -> ObjectMeta {
    serde_json::from_value(json!({
        "namespace": "shop", "name": "web", "uid": "u-1", "generation": 4,
        "creationTimestamp": "1970-01-01T00:02:00Z",
    }))
    .expect("metadata")
}

/// The smallest good spec.
fn smallest() -> Value {
    json!({"targetRefs": [{"name": "web"}], "listeners": [{"name": "http", "port": 80}]})
}

fn translate(spec: &Value) -> Policy {
    match Translator::new().policy(&meta(), spec, &Value::Null) {
        Change::Policy(key, Some(policy)) => {
            assert_eq!(key.to_string(), "shop/web");
            (*policy).clone()
        }
        other => panic!("{other:?}"),
    }
}

/// The smallest spec with one more field.
fn with(field: &str, value: Value) -> Policy {
    let mut spec = smallest();
    spec[field] = value;
    translate(&spec)
}

fn template(field: &str, value: Value) -> api::Policy {
    let policy = with(field, value);
    let template = policy.template.expect("good");
    (*template).clone()
}

fn refusal(field: &str, value: Value) -> Refusal {
    with(field, value).template.expect_err(field)
}

#[test]
fn identity_and_age_come_from_the_metadata() {
    let policy = translate(&smallest());
    assert_eq!((&*policy.uid, policy.created, policy.generation), ("u-1", 120, 4));
    assert_eq!(&*policy.service, "web");
    let bare = ObjectMeta { uid: None, creation_timestamp: None, generation: None, ..meta() };
    let Change::Policy(_, Some(policy)) =
        Translator::new().policy(&bare, &smallest(), &Value::Null)
    else {
        panic!("a policy");
    };
    assert_eq!((&*policy.uid, policy.created, policy.generation), ("shop/web", 0, 0));
}

#[test]
fn the_smallest_spec_has_the_dataplanes_own_defaults() {
    let policy = translate(&smallest());
    let written = json!({"name": "", "frontends": [], "backends": []});
    let default: api::Policy = serde_json::from_value(written).expect("defaults");
    assert_eq!(*policy.template.expect("good"), default);
    assert_eq!(policy.weights, None);
    assert!(policy.classes.is_empty() && !policy.deletion_cost && policy.drain_cordoned);
}

#[test]
fn listeners_are_converted() {
    let policy = with(
        "listeners",
        json!([
            {"name": "a", "port": 80},
            {"name": "b", "port": 81, "servicePort": "http"},
            {"name": "c", "port": 82, "servicePort": 8080, "addresses": ["192.0.2.1", "2001:db8::1"]},
        ]),
    );
    let listener = |name: &str, port, service_port, addresses: &[&str]| Listener {
        name: name.into(),
        port,
        allocated: None,
        service_port,
        addresses: addresses.iter().map(|a| a.parse().expect("an address")).collect(),
        own: None,
        protocol_by_port: true,
    };
    assert_eq!(
        policy.listeners,
        [
            listener("a", 80, PortRef::Number(80), &[]),
            listener("b", 81, PortRef::Name("http".into()), &[]),
            listener("c", 82, PortRef::Number(8080), &["192.0.2.1", "2001:db8::1"]),
        ]
    );
}

#[test]
fn a_listener_that_names_no_port_has_the_targets_section() {
    let mut spec = smallest();
    spec["targetRefs"] = json!([{"name": "web", "sectionName": "main"}]);
    spec["listeners"] = json!([
        {"name": "a", "port": 80},
        {"name": "b", "port": 81, "servicePort": "http"},
        {"name": "c", "port": 82, "servicePort": 8080},
    ]);
    let ports = |spec: &Value| {
        let listeners = translate(spec).listeners;
        let ports = listeners.into_iter().map(|one| one.service_port);
        ports.collect::<Vec<_>>()
    };
    let expected =
        [PortRef::Section("main".into()), PortRef::Name("http".into()), PortRef::Number(8080)];
    assert_eq!(ports(&spec), expected);
    spec["algorithm"] = json!("Best");
    assert_eq!(ports(&spec), expected, "of what cannot be used too");
}

#[test]
fn a_listener_has_its_own_in_place_of_the_policys() {
    let mut spec = smallest();
    spec["algorithm"] = json!("Maglev");
    spec["migration"] = json!({"perSecond": 7});
    spec["listeners"] = json!([
        {"name": "a", "port": 80, "protocol": "RESP"},
        {"name": "b", "port": 81, "algorithm": "Random", "migration": {"perFlow": 3}},
        {"name": "c", "port": 82, "migration": {"perFlow": 70_000}},
    ]);
    let refused = translate(&spec).template.expect_err("too many moves");
    assert_eq!(&*refused.field, "spec.listeners[2].migration.perFlow");
    spec["listeners"][2] = json!({"name": "c", "port": 82});
    let policy = translate(&spec);
    let common = policy.template.as_ref().expect("good");
    let its = |at: usize| policy.listeners[at].settings(common, Some(api::Protocol::Memcached));
    let said = |at: usize| (its(at).protocol, its(at).algorithm);
    assert_eq!(said(0), (api::Protocol::Resp, api::Algorithm::Maglev));
    assert_eq!(said(1), (api::Protocol::Memcached, api::Algorithm::Random));
    assert_eq!(said(2), (api::Protocol::Memcached, api::Algorithm::Maglev));
    let limits = |at: usize| (its(at).migration.per_second, its(at).migration.per_flow);
    let default = api::Migration::default();
    assert_eq!(limits(0), (7, default.per_flow));
    assert_eq!(limits(1), (default.per_second, 3));
}

#[test]
fn words_are_converted() {
    for (word, algorithm) in [
        ("LeastOutstanding", api::Algorithm::LeastOutstanding),
        ("Maglev", api::Algorithm::Maglev),
        ("WeightedRoundRobin", api::Algorithm::WeightedRoundRobin),
        ("Random", api::Algorithm::Random),
    ] {
        assert_eq!(template("algorithm", json!(word)).algorithm, algorithm);
    }
    for (word, protocol) in [
        ("HTTP1", api::Protocol::Http1),
        ("RESP", api::Protocol::Resp),
        ("Memcached", api::Protocol::Memcached),
        ("RequestResponse", api::Protocol::RequestResponse),
        ("None", api::Protocol::None),
    ] {
        assert_eq!(template("protocol", json!(word)).protocol, protocol);
    }
    for (word, failure) in [
        ("ReplayIdempotent", api::BackendFailure::ReplayIdempotent),
        ("Replay", api::BackendFailure::Replay),
        ("AdoptIdleOnly", api::BackendFailure::AdoptIdleOnly),
        ("Reset", api::BackendFailure::Reset),
    ] {
        let got = template("onBackendFailure", json!(word));
        assert_eq!(got.on_backend_failure, failure);
    }
    for (word, on_stall) in [("Release", api::OnStall::Release), ("Wait", api::OnStall::Wait)] {
        assert_eq!(template("onStall", json!(word)).on_stall, on_stall);
    }
    for (word, load) in [
        ("Latency", api::LoadSignal::Latency),
        ("LatencyAndPressure", api::LoadSignal::LatencyAndPressure),
    ] {
        assert_eq!(template("load", json!(word)).load, load);
    }
    for (word, address) in [
        ("Hidden", api::ClientAddress::Hidden),
        ("Restore", api::ClientAddress::Restore),
        ("ProxyV2", api::ClientAddress::ProxyV2),
    ] {
        let got = template("clientAddress", json!(word));
        assert_eq!(got.client_address, address);
    }
    for (word, mode) in [
        ("Always", api::MigrationMode::Always),
        ("WhenBetter", api::MigrationMode::WhenBetter),
        ("DrainOnly", api::MigrationMode::DrainOnly),
        ("Never", api::MigrationMode::Never),
    ] {
        let got = template("migration", json!({"mode": word}));
        assert_eq!(got.migration.mode, mode);
    }
    for (word, method) in [
        ("Auto", api::MoveMethod::Auto),
        ("Adoption", api::MoveMethod::Adoption),
        ("Translation", api::MoveMethod::Translation),
    ] {
        let got = template("migration", json!({"method": word}));
        assert_eq!(got.migration.method, method);
    }
    for (word, legs) in [("Private", api::Legs::Private), ("Shared", api::Legs::Shared)] {
        let got = template("migration", json!({"legs": word}));
        assert_eq!(got.migration.legs, legs);
    }
    for (word, on_deadline) in [("Wait", api::OnDeadline::Wait), ("Close", api::OnDeadline::Close)]
    {
        let got = template("drain", json!({"onDeadline": word}));
        assert_eq!(got.drain.on_deadline, on_deadline);
    }
}

#[test]
fn numbers_and_spans_of_migration_are_converted() {
    let got = template(
        "migration",
        json!({"ratioPercent": 300, "gain": "2ms", "cooldown": "7ms", "perSecond": 11, "perFlow": 12,
               "perBackendPerSecond": 13}),
    );
    let expected = api::Migration {
        mode: api::MigrationMode::WhenBetter,
        method: api::MoveMethod::Auto,
        legs: api::Legs::Private,
        ratio_percent: 300,
        gain: api::Micros::from_millis(2),
        cooldown: api::Micros::from_millis(7),
        per_second: 11,
        per_flow: 12,
        per_backend_per_second: 13,
    };
    assert_eq!(got.migration, expected);
}

#[test]
fn spans_elsewhere_are_converted() {
    let got = template("drain", json!({"quiet": "200ms", "deadline": "40s"}));
    assert_eq!(got.drain.quiet, api::Micros::from_millis(200));
    assert_eq!(got.drain.deadline, api::Micros::from_secs(40));
    let got = template("responseTimeout", json!("3s"));
    assert_eq!(got.response_timeout, Some(api::Micros::from_secs(3)));
    let got = template("slowStart", json!("30s"));
    assert_eq!(got.slow_start, api::Micros::from_secs(30));
    let got = template("affinity", json!({"clientIP": {"timeout": "10m"}}));
    let timeout = got.affinity.map(|a| a.client_ip.timeout);
    assert_eq!(timeout, Some(api::Micros::from_secs(600)));
    let got = template("timeouts", json!({"idle": "1h", "handshake": "10s", "halfClosed": "20s"}));
    let expected = api::Timeouts {
        idle: api::Micros::from_secs(3_600),
        handshake: api::Micros::from_secs(10),
        half_closed: api::Micros::from_secs(20),
    };
    assert_eq!(got.timeouts, expected);
}

#[test]
fn health_is_converted() {
    let got = template(
        "health",
        json!({"failureThreshold": 9, "baseEjectionTime": "20s", "maxEjectedPercent": 50, "panicPercent": 10, "active": {
            "path": "/ok", "host": "example.org", "expect": ["200", "300-302"], "port": 8081, "interval": "4s",
            "jitterPercent": 20, "timeout": "2s", "successThreshold": 4, "failureThreshold": 6,
        }}),
    );
    let expected = api::Health {
        active: Some(api::ActiveCheck {
            path: Some("/ok".to_owned()),
            host: Some("example.org".to_owned()),
            expect: vec!["200".parse().expect("a code"), "300-302".parse().expect("codes")],
            port: Some(8_081),
            interval: api::Micros::from_secs(4),
            jitter_percent: 20,
            timeout: api::Micros::from_secs(2),
            success_threshold: 4,
            failure_threshold: 6,
        }),
        failure_threshold: 9,
        base_ejection_time: api::Micros::from_secs(20),
        max_ejected_percent: 50,
        panic_percent: 10,
    };
    assert_eq!(got.health, expected);
}

#[test]
fn weights_selector_and_deletion_cost_are_converted() {
    let weights = |source, default| Some(Weights { source, default });
    let label = WeightSource::Label("baton.dev/weight".into());
    let got = with("weights", json!({"label": "baton.dev/weight"}));
    assert_eq!(got.weights, weights(label, 1));
    let annotation = WeightSource::Annotation("w".into());
    let got = with("weights", json!({"annotation": "w", "default": 5}));
    assert_eq!(got.weights, weights(annotation, 5));
    let got = with("dataplaneSelector", json!({"matchLabels": {"tier": "edge"}}));
    assert_eq!(got.classes.to_string(), "tier=edge");
    assert!(with("podDeletionCost", json!("Enabled")).deletion_cost);
    assert!(!with("podDeletionCost", json!("Disabled")).deletion_cost);
}

#[test]
fn what_an_older_crd_let_through_is_refused_with_its_field() {
    let listener = |port: Value| json!([{"name": "a", "port": 80}, {"name": "b", "port": port}]);
    for (field, value, at, problem) in [
        ("algorithm", json!("Fastest"), "spec.algorithm", "unknown variant"),
        ("listeners", listener(json!(0)), "spec.listeners[1].port", "expected 1 to 65535"),
        ("listeners", listener(json!("x")), "spec.listeners[1].port", "invalid type"),
        (
            "listeners",
            json!([{"name": "a", "port": 80, "servicePort": 70_000}]),
            "spec.listeners[0].servicePort",
            "expected 1 to 65535",
        ),
        (
            "listeners",
            json!([{"name": "a", "port": 80, "addresses": ["nonsense"]}]),
            "spec.listeners[0].addresses[0]",
            "is no address",
        ),
        ("drain", json!({"deadline": "soon"}), "spec.drain.deadline", "is not a duration"),
        ("drain", json!({"deadline": "900h"}), "spec.drain.deadline", "out of range"),
        ("migration", json!({"ratioPercent": 50}), "spec.migration.ratioPercent", "below 100"),
        ("migration", json!({"perFlow": -1}), "spec.migration.perFlow", "out of range"),
        ("health", json!({"panicPercent": 101}), "spec.health.panicPercent", "out of range"),
        (
            "health",
            json!({"active": {"expect": ["2xx"]}}),
            "spec.health.active.expect[0]",
            "is not a status",
        ),
        ("weights", json!({}), "spec.weights", "either `label` or `annotation`"),
        (
            "weights",
            json!({"label": "w", "default": 70_000}),
            "spec.weights.default",
            "out of range",
        ),
        (
            "targetRefs",
            json!([{"kind": "Pod", "name": "x"}]),
            "spec.targetRefs[0].kind",
            "unknown variant",
        ),
        (
            "targetRefs",
            json!([{"group": "apps", "name": "x"}]),
            "spec.targetRefs[0].group",
            "unknown variant",
        ),
        ("targetRefs", json!([]), "spec.targetRefs", "has 0 items: expected one"),
        (
            "targetRefs",
            json!([{"name": "x"}, {"name": "y"}]),
            "spec.targetRefs",
            "has 2 items: expected one",
        ),
    ] {
        let got = refusal(field, value.clone());
        assert_eq!(&*got.field, at, "{value}: {got:?}");
        assert!(got.problem.contains(problem), "{value}: {got:?}");
    }
    for spec in [Value::Null, json!("text"), json!({})] {
        let got = translate(&spec).template.expect_err("no spec");
        assert!(got.field.starts_with("spec"), "{got:?}");
    }
}

#[test]
fn equal_templates_are_kept_once_and_only_a_few() {
    let translator = Translator::new();
    let template = |spec: &Value| match translator.policy(&meta(), spec, &Value::Null) {
        Change::Policy(_, Some(policy)) => policy.template.clone().expect("good"),
        other => panic!("{other:?}"),
    };
    let first = template(&smallest());
    let mut other = smallest();
    other["targetRefs"][0]["name"] = json!("another");
    assert!(Arc::ptr_eq(&first, &template(&other)));
    for seconds in 1..100 {
        other["responseTimeout"] = json!(format!("{seconds}s"));
        assert!(!Arc::ptr_eq(&first, &template(&other)));
    }
    assert!(!Arc::ptr_eq(&first, &template(&smallest())), "forgotten");
    assert_eq!(first, template(&smallest()));
}

/// What dataplanes have of such a policy stays in force, and its endpoints are followed if it can
/// be told whose they are.
#[test]
fn of_a_policy_that_cannot_be_used_what_can_be_read_is_told() {
    let mut spec = smallest();
    spec["listeners"] =
        json!([{"name": "http", "port": 80, "servicePort": "web"}, {"name": "bad", "port": 0}]);
    spec["weights"] = json!({"label": "weight"});
    spec["podDeletionCost"] = json!("Enabled");
    spec["algorithm"] = json!("Best");
    let policy = translate(&spec);
    assert!(policy.template.is_err());
    assert_eq!(&*policy.service, "web");
    let [listener] = policy.listeners.as_slice() else { panic!("{policy:?}") };
    assert_eq!((&*listener.name, &listener.service_port), ("http", &PortRef::Name("web".into())));
    assert!(policy.weights.is_some() && policy.deletion_cost);
    for nonsense in
        [json!(null), json!(7), json!({"listeners": "many", "targetRefs": [7], "weights": 1})]
    {
        let policy = translate(&nonsense);
        assert!(
            policy.template.is_err() && policy.service.is_empty() && policy.listeners.is_empty()
        );
    }
}
