//! What the configuration says about failing, draining and slow backends: read, and refused with
//! line and field.

use super::{tests::GOOD, *};
use baton_api::{BackendFailure, Micros, OnDeadline};

/// The good configuration with every field of the kind.
fn full() -> String {
    format!(
        "{GOOD}    onBackendFailure: Replay
    responseTimeout: 2s
    drain: {{quiet: 50ms, deadline: 10m, onDeadline: Close}}
    health:
      failureThreshold: 3
      baseEjectionTime: 20s
      maxEjectedPercent: 50
      panicPercent: 0
      active:
        path: /healthz
        host: web.example.org
        expect: [200-204, 301, '302']
        port: 8081
        interval: 2s
        jitterPercent: 20
        timeout: 500ms
        successThreshold: 1
        failureThreshold: 4
    slowStart: 0s
    allowFrom: [10.0.0.0/8, 'fd00::7']
"
    )
}

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(Path::new("dataplane.yaml"), text)
}

#[test]
fn every_field_is_read_and_survives_a_round_trip() {
    let config = parse(&full()).expect("good");
    let snapshot = config.snapshot(1);
    let policy = &snapshot.policies[0];
    assert_eq!(policy.on_backend_failure, BackendFailure::Replay);
    assert_eq!(policy.response_timeout, Some(Micros::from_secs(2)));
    assert_eq!(policy.drain.quiet, Micros::from_millis(50));
    assert_eq!(policy.drain.on_deadline, OnDeadline::Close);
    assert_eq!(policy.health.failure_threshold, 3);
    let check = policy.health.active.as_ref().expect("a check");
    assert_eq!(check.path.as_deref(), Some("/healthz"));
    for (code, expected) in [(200, true), (204, true), (205, false), (301, true), (302, true)] {
        assert_eq!(check.expects(code), expected, "{code}");
    }
    // JSON is YAML, so that what is written can be read by the same reader.
    let written = serde_json::to_string_pretty(&config).expect("written");
    assert_eq!(parse(&written).expect("read again"), config);
    let plain = parse(GOOD).expect("good");
    assert_eq!(plain.snapshot(1).policies[0].health.active, None);
    let tcp = parse(&format!("{GOOD}    health: {{active: {{}}}}\n")).expect("good");
    let tcp = tcp.snapshot(1);
    let check = tcp.policies[0].health.active.as_ref().expect("a check");
    assert_eq!((check.path.as_ref(), check.failure_threshold), (None, 3));
}

#[test]
fn every_refusal_names_line_field_and_what_was_expected() {
    let cases = [
        (
            "guardedFlows: 4096",
            "guardedFlows: 0",
            "8: limits.guardedFlows: ",
            "expected 1 to 16777216",
        ),
        (
            "guardedFlows: 4096",
            "guardedFlows: x",
            "8: limits.guardedFlows: ",
            "expected a whole number",
        ),
        (
            "Replay",
            "Retry",
            "21: policies[0].onBackendFailure: ",
            "expected one of ReplayIdempotent, Replay",
        ),
        (
            "responseTimeout: 2s",
            "responseTimeout: 2",
            "22: policies[0].responseTimeout: ",
            "with units, as 250us",
        ),
        (
            "responseTimeout: 2s",
            "responseTimeout: 2h",
            "22: policies[0].responseTimeout: ",
            "expected 1ms to 1h",
        ),
        (
            "quiet: 50ms",
            "quite: 50ms",
            "23: policies[0].drain.quite: ",
            "expected one of quiet, deadline",
        ),
        (
            "deadline: 10m",
            "deadline: 25h",
            "23: policies[0].drain.deadline: ",
            "expected 0us to 24h",
        ),
        ("Close", "Kill", "23: policies[0].drain.onDeadline: ", "expected one of Wait, Close"),
        (
            "failureThreshold: 3",
            "failureThreshold: -3",
            "25: policies[0].health.failureThreshold: ",
            "expected a whole number from 0",
        ),
        (
            "baseEjectionTime: 20s",
            "baseEjectionTime: 20ms",
            "26: policies[0].health.baseEjectionTime: ",
            "expected 100ms to 1h",
        ),
        (
            "maxEjectedPercent: 50",
            "maxEjectedPercent: 101",
            "27: policies[0].health.maxEjectedPercent: ",
            "expected 0 to 100",
        ),
        (
            "maxEjectedPercent: 50",
            "maxEjectedPercent: 256",
            "27: policies[0].health.maxEjectedPercent: ",
            "from 0 to 255",
        ),
        (
            "panicPercent: 0",
            "panicPercent: all",
            "28: policies[0].health.panicPercent: ",
            "from 0 to 255",
        ),
        ("path: /healthz", "path: healthz", "30: policies[0].health.active.path: ", "expected `/`"),
        (
            "web.example.org",
            "'web example'",
            "31: policies[0].health.active.host: ",
            "is not a host",
        ),
        ("200-204", "2xx", "32: policies[0].health.active.expect[0]: ", "as 200 or 200-299"),
        ("301", "99", "32: policies[0].health.active.expect[1]: ", "from 100 to 599"),
        ("301", "yes", "32: policies[0].health.active.expect[1]: ", "as 200 or 200-299"),
        ("port: 8081", "port: 0", "33: policies[0].health.active.port: ", "expected 1 to 65535"),
        ("port: 8081", "port: 65536", "33: policies[0].health.active.port: ", "from 0 to 65535"),
        (
            "interval: 2s",
            "interval: 400ms",
            "36: policies[0].health.active.timeout: ",
            "expected at most 400ms",
        ),
        (
            "interval: 2s",
            "interval: 50ms",
            "34: policies[0].health.active.interval: ",
            "expected 100ms to 1h",
        ),
        (
            "failureThreshold: 4",
            "failureThreshold: 0",
            "38: policies[0].health.active.failureThreshold: ",
            "expected 1 to 100",
        ),
        (
            "allowFrom: [10.0.0.0/8",
            "allowFrom: [10.0.0.0/33",
            "40: policies[0].allowFrom",
            "`10.0.0.0/33` is not a network: expected as 192.0.2.0/24",
        ),
        (
            "slowStart: 0s",
            "slowStart: 5s",
            "39: policies[0].slowStart: ",
            "not possible with algorithm Maglev",
        ),
        ("slowStart: 0s", "slowstart: 5s", "39: policies[0].slowstart: ", "slowStart"),
    ];
    let good = full();
    for (from, to, place, words) in cases {
        let text = good.replacen(from, to, 1);
        assert_ne!(text, good, "{from}");
        let message = parse(&text).expect_err(to).to_string();
        assert!(message.starts_with(&format!("dataplane.yaml:{place}")), "{to}: {message}");
        assert!(message.contains(words), "{to}: {message}");
        assert!(!message.contains('\n'), "{to}: {message}");
    }
}
