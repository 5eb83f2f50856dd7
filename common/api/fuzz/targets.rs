//! Fuzz targets: reading snapshots. On stable Rust they are ordinary tests: each runs over the
//! committed corpus (`fuzz/__fuzz__/<target>/corpus`) and over random inputs.
//!
//! Longer: `BOLERO_RANDOM_ITERATIONS=10000000 cargo test -p baton-api --test fuzz`.
//! Again: a failure prints `BOLERO_RANDOM_SEED=...`; set it and run the target.
#![allow(missing_docs)]

#[path = "../../../lb-dataplane/packet/fuzz/corpus.rs"]
mod corpus;
mod texts;

use baton_api::{LIMIT_NAME_BYTES, Limits, Micros, Snapshot, SnapshotError, StatusRange};
use bolero::check;
use serde_json::Value;

/// Longest words of a refusal: a wrong text may be repeated in it, but not pages of it.
const PROBLEM_BYTES_MAX: usize = 512;

/// Whether a path as `policies[1].backends[0].name` names something in a value.
fn names(root: &Value, path: &str) -> bool {
    let steps = path.split(['.', '[']).map(|s| s.trim_end_matches(']'));
    let mut at = root;
    for step in steps {
        let next = match at {
            Value::Array(items) => step.parse().ok().and_then(|i: usize| items.get(i)),
            other => other.get(step),
        };
        let Some(next) = next else {
            return false;
        };
        at = next;
    }
    true
}

/// A refusal names a field that is there, in one plain line.
fn check_refusal(value: &Value, error: &SnapshotError) {
    assert!(names(value, &error.path), "{error}");
    let plain = !error.problem.is_empty() && !error.problem.contains(char::is_control);
    assert!(plain, "{error:?}");
    assert!(error.problem.len() <= PROBLEM_BYTES_MAX, "{error}");
}

/// What is read is the same when it is written and read again; what is refused says where.
fn check_snapshot(input: &[u8]) {
    let text = texts::text_of(input);
    let mut place = serde_path_to_error::Track::new();
    let mut reader = serde_json::Deserializer::from_slice(&text);
    let deserializer = serde_path_to_error::Deserializer::new(&mut reader, &mut place);
    let read: Result<Snapshot, _> = serde::Deserialize::deserialize(deserializer);
    let snapshot = match read.and_then(|s| reader.end().map(|()| s)) {
        Ok(snapshot) => snapshot,
        Err(error) => {
            // The line and, where it is about a value, the field.
            assert!(error.line() > 0 || text.is_empty(), "{error}");
            if error.is_data() {
                // A field without a name is named by the words alone.
                let path = place.path().to_string();
                assert!(!path.is_empty() || error.to_string().contains('`'));
            }
            return;
        }
    };
    let written = serde_json::to_string(&snapshot).expect("it can be written");
    let again: Snapshot = serde_json::from_str(&written).expect("what was written is read");
    assert_eq!(again, snapshot);
    let value = serde_json::to_value(&snapshot).expect("it can be written");
    let judged = snapshot.validate();
    assert_eq!(judged, again.validate());
    match judged {
        Ok(()) => check_promises(&snapshot),
        Err(error) => check_refusal(&value, &error),
    }
}

/// What the engine relies on in a snapshot that was found right.
fn check_promises(snapshot: &Snapshot) {
    let mut frontends = std::collections::BTreeSet::new();
    let mut policies = std::collections::BTreeSet::new();
    for policy in &snapshot.policies {
        assert!((1..=LIMIT_NAME_BYTES).contains(&policy.name.len()));
        assert!(policies.insert(&policy.name));
        assert!(!policy.frontends.is_empty());
        for frontend in &policy.frontends {
            assert!(frontend.port() != 0 && frontends.insert(frontend));
        }
        let mut ends = std::collections::BTreeSet::new();
        for backend in &policy.backends {
            assert!(backend.endpoint.port() != 0 && ends.insert(backend.endpoint));
            assert!(!backend.endpoint.address().is_unspecified());
        }
        assert!(policy.migration.ratio_percent >= 100);
        assert!(policy.migration.per_flow <= 65_535);
        assert!(policy.affinity.is_none_or(|a| a.client_ip.timeout.0 > 0));
        assert!(policy.timeouts.idle >= Micros::from_millis(100));
        if let Some(check) = &policy.health.active {
            assert!(check.timeout <= check.interval && !check.expect.is_empty());
            assert!(
                check.success_threshold > 0 && check.failure_threshold > 0 && check.port != Some(0)
            );
        }
    }
}

/// The texts of single fields: what is read is written and read as the same.
fn check_words(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    if let Ok(micros) = text.parse::<Micros>() {
        assert_eq!(micros.to_string().parse(), Ok(micros));
    }
    if let Ok(range) = text.parse::<StatusRange>() {
        assert_eq!(range.to_string().parse(), Ok(range));
        assert!(range.contains(100) <= (text.trim() == text));
    }
    match text.parse::<baton_api::Endpoint>() {
        Ok(endpoint) => {
            assert_ne!(endpoint.port(), 0);
            assert_eq!(endpoint.to_string().parse(), Ok(endpoint));
        }
        Err(words) => assert!(words.contains("expected")),
    }
    if let Ok(limits) = serde_json::from_slice::<Limits>(input) {
        let value = serde_json::to_value(limits).expect("it can be written");
        let value = serde_json::json!({ "limits": value });
        if let Err(error) = limits.validate() {
            check_refusal(&value, &error);
        }
    }
}

/// Bytes and changed snapshots: read, judged, written, read again.
#[test]
fn snapshots() {
    check!().with_iterations(50_000).with_max_len(97).for_each(check_snapshot);
}

/// Durations, endpoints, ranges of status codes, limits.
#[test]
fn words() {
    check!().with_iterations(200_000).with_max_len(96).for_each(check_words);
}

/// Each target has its corpus, and every input of it holds.
#[test]
fn corpora() {
    corpus::replay("snapshots", check_snapshot);
    corpus::replay("words", check_words);
}

/// What the fuzzing starts from is right.
#[test]
fn starts_are_right() {
    for (choice, start) in texts::STARTS.iter().enumerate() {
        assert_eq!(texts::text_of(&[choice as u8]), start.as_bytes());
        let snapshot: Snapshot = serde_json::from_str(start).expect(start);
        assert_eq!(snapshot.validate(), Ok(()));
    }
}
