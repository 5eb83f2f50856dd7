//! What the definitions accept, a dataplane accepts: the same words, defaults and bounds as in its
//! snapshot.

use baton_api::{Micros, Policy, Snapshot};
use baton_crds::{Checker, LoadBalancerPolicySpec};
use json_patch::merge;
use proptest::{prelude::*, test_runner::TestRunner};
use serde_json::{Value, json};
use std::{path::Path, sync::LazyLock};

/// The fields of a spec that are no fields of a snapshot's policy.
const OTHERS: [&str; 8] = [
    "allowFrom",
    "frontend",
    "targetRefs",
    "listeners",
    "weights",
    "dataplaneSelector",
    "podDeletionCost",
    "podMultipathTcp",
];

thread_local! {
    static CHECKER: Checker = Checker::new().expect("the definitions");
}

fn object(spec: &Value) -> Value {
    let mut object = json!({
        "apiVersion": "baton.dev/v1alpha1",
        "kind": "LoadBalancerPolicy",
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"targetRefs": [{"name": "web"}], "listeners": [{"name": "http", "port": 80}]},
    });
    merge(&mut object["spec"], spec);
    object
}

/// Whether the definition accepts it.
fn accepted(spec: &Value) -> bool {
    CHECKER.with(|checker| {
        let report = checker.check(&object(spec).to_string(), Path::new("a.yaml"));
        report.problems.is_empty()
    })
}

/// The policy that a dataplane gets: the same fields by the same names.
fn policy(spec: &Value) -> Result<Policy, String> {
    let spec: LoadBalancerPolicySpec =
        serde_json::from_value(object(spec)["spec"].take()).map_err(|e| e.to_string())?;
    let mut policy = serde_json::to_value(spec).expect("JSON");
    let fields = policy.as_object_mut().expect("an object");
    fields.retain(|name, _| !OTHERS.contains(&name.as_str()));
    fields.insert("name".to_owned(), "shop/web/http".into());
    fields.insert("frontends".to_owned(), json!(["0.0.0.0:80"]));
    fields.insert("backends".to_owned(), json!([]));
    // Numbers that a dataplane does not have are refused here too.
    serde_json::from_value(policy).map_err(|error| error.to_string())
}

fn valid(spec: &Value) -> Result<(), String> {
    let policies = vec![policy(spec)?];
    let snapshot = Snapshot { generation: 1, policies };
    snapshot.validate().map_err(|error| error.to_string())
}

/// A spec with one field deep in it.
fn with(path: &str, value: Value) -> Value {
    path.rsplit('.').fold(value, |below, name| json!({ name: below }))
}

#[test]
fn the_defaults_are_the_dataplanes_own() {
    let written = json!({"name": "shop/web/http", "frontends": ["0.0.0.0:80"], "backends": []});
    let default: Policy = serde_json::from_value(written).expect("a policy");
    assert_eq!(policy(&json!({})), Ok(default.clone()));
    // Those of fields that are absent as a whole.
    let active = policy(&json!({"health": {"active": {}}})).expect("a policy").health.active;
    assert_eq!(active, Some(serde_json::from_value(json!({})).expect("a check")));
    let affinity = policy(&json!({"affinity": {"clientIP": {}}})).expect("a policy").affinity;
    let expected = json!({"clientIP": {}});
    assert_eq!(affinity, Some(serde_json::from_value(expected).expect("an affinity")));
    // Those that the API server adds are those that the types have.
    static DEFINITIONS: LazyLock<Value> = LazyLock::new(|| {
        let definitions = baton_crds::definitions().expect("the definitions");
        serde_json::to_value(definitions).expect("JSON")
    });
    let schema = &DEFINITIONS[1]["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    let added = kube::core::cel::apply_defaults(schema, &object(&json!({})));
    let added: LoadBalancerPolicySpec =
        serde_json::from_value(added["spec"].clone()).expect("a spec");
    let own = serde_json::from_value(object(&json!({}))["spec"].take()).expect("a spec");
    assert_eq!(added, own);
}

#[test]
fn the_words_are_the_dataplanes_own() {
    let definitions = baton_crds::definitions().expect("the definitions");
    let value = serde_json::to_value(&definitions[1]).expect("JSON");
    let spec = &value["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    for (path, count) in [
        ("algorithm", 4),
        ("load", 2),
        ("protocol", 5),
        ("migration.mode", 4),
        ("migration.method", 3),
        ("drain.onDeadline", 2),
        ("onBackendFailure", 4),
        ("onStall", 2),
    ] {
        let schema = path.split('.').fold(spec, |at, name| &at["properties"][name]);
        let words = schema["enum"].as_array().expect(path);
        assert_eq!(words.len(), count, "{path}");
        for word in words {
            assert_eq!(valid(&with(path, word.clone())), Ok(()), "{path}: {word}");
        }
    }
}

#[test]
fn durations_have_the_dataplanes_own_bounds() {
    let edges = |micros: &[u64]| -> Vec<u64> {
        let around = micros.iter().flat_map(|m| {
            [
                m.saturating_sub(1_000_000),
                m.saturating_sub(1_000),
                m.saturating_sub(1),
                *m,
                m + 1,
                m + 1_000,
                m + 1_000_000,
            ]
        });
        around.collect()
    };
    let (ms, s, h) = (1_000, 1_000_000, 3_600_000_000);
    let edges = edges(&[0, ms, 100 * ms, s, h, 24 * h, 168 * h]);
    let mut compared = 0;
    for path in [
        "responseTimeout",
        "drain.deadline",
        "drain.quiet",
        "health.baseEjectionTime",
        "health.active.interval",
        "slowStart",
        "affinity.clientIP.timeout",
        "timeouts.idle",
        "timeouts.handshake",
        "timeouts.halfClosed",
    ] {
        for micros in &edges {
            // In parts of at most five digits.
            let (seconds, rest) = (micros / s, micros % s);
            let (minutes, seconds) = (seconds / 60, seconds % 60);
            let text = format!("{minutes}m{seconds}s{}ms{}us", rest / ms, rest % ms);
            assert_eq!(text.parse::<Micros>().expect("a duration").0, *micros);
            let mut spec = with(path, text.as_str().into());
            if path == "health.active.interval" {
                // So that the timeout is within the interval.
                merge(&mut spec, &with("health.active.timeout", "1ms".into()));
            }
            assert_eq!(accepted(&spec), valid(&spec).is_ok(), "{path}: {text}: {:?}", valid(&spec));
            compared += 1;
        }
    }
    assert!(compared > 200, "{compared}");
}

/// A field of the spec, by its path, with values in and around what is allowed.
fn field() -> impl Strategy<Value = Value> {
    let duration = || {
        let number =
            prop_oneof![Just(0_u32), 1..10_u32, 1..1_100_u32, 1..70_000_u32, 0..100_000_u32];
        let unit = prop::sample::select(vec!["us", "ms", "s", "m", "h"]);
        let part = (number, unit).prop_map(|(number, unit)| format!("{number}{unit}"));
        let parts = prop_oneof![5 => Just(1..2_usize), 1 => Just(1..5)];
        let parts = parts.prop_flat_map(move |parts| prop::collection::vec(part.clone(), parts));
        parts.prop_map(|parts| Value::from(parts.concat()))
    };
    let number = || {
        prop_oneof![
            Just(-1_i64),
            0..3_i64,
            90..120_i64,
            0..70_000_i64,
            Just(65_535),
            Just(1 << 20),
            Just(1 << 40)
        ]
        .prop_map(Value::from)
    };
    let word = |words: &[&str]| {
        prop::sample::select(words.iter().map(|w| Value::from(*w)).collect::<Vec<_>>())
    };
    let code = prop_oneof!["[1-6][0-9]{2}", "[1-5][0-9]{2}-[1-5][0-9]{2}"].prop_map(Value::from);
    let at = |path: &'static str, value: BoxedStrategy<Value>| {
        value.prop_map(move |v| with(path, v)).boxed()
    };
    let mut all = vec![
        at("algorithm", word(&["LeastOutstanding", "Maglev", "Random", "None"]).boxed()),
        at("load", word(&["Latency", "LatencyAndPressure"]).boxed()),
        at("clientAddress", word(&["Hidden", "Restore"]).boxed()),
        at("protocol", word(&["None", "HTTP1", "RESP", "HTTP2"]).boxed()),
        at("migration.mode", word(&["Always", "WhenBetter", "DrainOnly", "Never"]).boxed()),
        at("migration.method", word(&["Auto", "Adoption", "Translation", "Warm"]).boxed()),
        at("drain.onDeadline", word(&["Close", "Wait"]).boxed()),
        at("onStall", word(&["Release", "Wait"]).boxed()),
        at("onBackendFailure", word(&["Replay", "Reset", "AdoptIdleOnly"]).boxed()),
        at("health.active.expect", prop::collection::vec(code, 0..4).prop_map(Value::from).boxed()),
        at("health.active.path", "/?[ -~]{0,3}".prop_map(Value::from).boxed()),
        at("health.active.path", "/[a-z?&=%~]{0,8}".prop_map(Value::from).boxed()),
        at("health.active.host", "[ -~]{0,3}".prop_map(Value::from).boxed()),
        at("health.active.host", "[a-z.:]{0,8}".prop_map(Value::from).boxed()),
    ];
    let durations = [
        "responseTimeout",
        "slowStart",
        "drain.quiet",
        "drain.deadline",
        "migration.gain",
        "migration.cooldown",
        "health.baseEjectionTime",
        "health.active.interval",
        "health.active.timeout",
        "affinity.clientIP.timeout",
        "timeouts.idle",
        "timeouts.handshake",
        "timeouts.halfClosed",
    ];
    all.extend(durations.map(|path| at(path, duration().boxed())));
    let numbers = [
        "migration.ratioPercent",
        "migration.perFlow",
        "migration.perBackendPerSecond",
        "migration.perSecond",
        "health.failureThreshold",
        "health.maxEjectedPercent",
        "health.panicPercent",
        "health.active.port",
        "health.active.jitterPercent",
        "health.active.successThreshold",
        "health.active.failureThreshold",
    ];
    all.extend(numbers.map(|path| at(path, number().boxed())));
    prop::strategy::Union::new(all)
}

#[test]
fn what_the_definition_accepts_a_dataplane_accepts() {
    const CASES: u32 = 3_000;
    let mut runner = TestRunner::new(ProptestConfig::with_cases(CASES));
    let good = std::cell::Cell::new(0);
    let fields = prop::collection::vec(field(), 1..4);
    let outcome = runner.run(&fields, |fields| {
        let mut spec = json!({});
        for field in &fields {
            merge(&mut spec, field);
        }
        if accepted(&spec) {
            good.set(good.get() + 1);
            prop_assert_eq!(valid(&spec), Ok(()), "{}", spec);
        }
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
    let (good, least) = (good.get(), CASES / 10);
    assert!((least..CASES - least).contains(&good), "{good} of {CASES} were accepted");
}
