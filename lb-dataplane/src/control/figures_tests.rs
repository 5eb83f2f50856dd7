//! State and metrics of a made-up worker, line by line.

use super::{
    families::Families,
    figures::worker,
    metrics::{Metrics, Scrape},
    reference_tests::engine,
    serve_tests::dataplane,
    tests::{endpoint, lab, snapshot},
};
use crate::{certificates::Authority, commands::Report, config::Config};
use baton_api::{
    Adoptability, Algorithm, BackendHealth, BackendLoad, BackendState, DrainState, Micros,
    PolicyState, Protocol, Snapshot, State, StateReply,
};
use baton_engine::{BackendFigures, Instant, Latency, PolicyFigures};
use hyper::StatusCode;
use std::{
    path::Path,
    sync::{Arc, atomic::Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

fn took(all_us: &[u64]) -> Latency {
    let mut latency = Latency::default();
    all_us.iter().for_each(|us| latency.add(*us));
    latency
}

/// What the fake worker reports.
pub(super) fn figures(generation: u64) -> Report {
    let backend = |name: &str, adoptability| BackendState {
        name: name.to_owned(),
        endpoint: endpoint("10.0.0.2:80"),
        weight: 1,
        draining: false,
        adoptability,
        flows: 3,
        pinned: 0,
        outstanding: 2,
        first_byte: Micros(1_500),
        wait: Some(Micros(4_500)),
        transfers: false,
        unlike: false,
        load: (name == "a").then_some(BackendLoad {
            accept_queue: 5,
            accept_queue_room: 129,
            drops_total: 3,
            throttled_percent: Some(90),
            cpu_percent: None,
            memory_percent: None,
        }),
        placement: None,
        requests_total: 9,
        migrations_in_total: 1,
        migrations_out_total: 0,
        health: BackendHealth::Up,
        stranded: 0,
        rescued_total: 0,
        drain: None,
    };
    let drained = BackendState {
        health: BackendHealth::Ejected(Micros::from_secs(9)),
        stranded: 1,
        rescued_total: 7,
        drain: Some(DrainState {
            left: Micros(2_500_000),
            moved: 4,
            waiting: [("pinned: upgrade".to_owned(), 3)].into(),
            ..DrainState::default()
        }),
        ..backend("b", Adoptability::Lapsed)
    };
    let state = State {
        generation,
        policies: vec![PolicyState {
            name: "shop/web/http".to_owned(),
            frontends: vec![endpoint("10.0.0.1:80")],
            algorithm: Algorithm::Maglev,
            protocol: Protocol::Http1,
            flows: 6,
            flows_total: 8,
            migrations_total: 2,
            rollbacks_total: 1,
            rescues_total: 7,
            replays_total: 3,
            lost_total: [("fate_unknown".to_owned(), 1)].into(),
            pinned: Default::default(),
            pins_total: [("upgrade".to_owned(), 5)].into(),
            moves_total: [("drain".to_owned(), [("moved".to_owned(), 2)].into())].into(),
            panic: false,
            placement: None,
            backends: vec![backend("a", Adoptability::Ready), drained],
        }],
        tables: [("flows".to_owned(), (6, 64))].into(),
        ..State::default()
    };
    Report {
        state,
        counters: vec![
            ("requests_total", None, 18),
            ("drops_total", Some(("reason", "no_flow")), 4),
            ("drops_total", Some(("reason", "malformed")), 5),
        ],
        figures: vec![PolicyFigures {
            name: "shop/web/http".to_owned(),
            moves: took(&[90, 300, 5_000_000]),
            pinned: vec![("upgrade", 2)],
            resets: vec![("no_flow", 4), ("lost", 1)],
            not_allowed: 11,
            backends: vec![BackendFigures {
                name: "a".to_owned(),
                first_byte: took(&[1_500]),
                flows_begun: 6,
                leg_ports: 10_000,
                ready_leg_ports: 9_000,
            }],
        }],
    }
}

#[tokio::test]
async fn state_and_metrics_tell_the_workers_figures() {
    let lab = lab().await;
    lab.put(&snapshot(7, 1)).await;
    lab.control.metrics.reloads.with_label_values(&["refused"]).inc();
    let (status, text) = lab.get("/v1/state").await;
    assert_eq!(status, StatusCode::OK);
    let reply: StateReply = serde_json::from_str(&text).expect("a state");
    assert_eq!(reply.state.generation, 7);
    assert_eq!(reply.state.version, env!("CARGO_PKG_VERSION"));
    assert_eq!(reply.state.worker.key_epochs, [3]);
    assert_eq!(reply.state.counters.get("config_reloads_total{result=\"refused\"}"), Some(&1));
    assert_eq!(reply.problems.len(), 1, "only the gateway: {reply:?}");
    // The operator's type reads it too.
    let state: State = serde_json::from_str(&text).expect("a state");
    assert_eq!(state, reply.state);

    let (status, text) = lab.get("/metrics").await;
    assert_eq!(status, StatusCode::OK);
    for line in [
        "# TYPE baton_dataplane_drops_total counter",
        "baton_dataplane_drops_total{reason=\"no_flow\"} 4",
        "baton_dataplane_drops_total{reason=\"malformed\"} 5",
        "baton_dataplane_requests_total 18",
        "baton_dataplane_snapshot_generation 7",
        "baton_dataplane_config_reloads_total{result=\"refused\"} 1",
        "baton_dataplane_config_reloads_total{result=\"applied\"} 0",
        "baton_dataplane_policy_migrations_total{policy_namespace=\"shop\",policy=\"web\",listener=\"http\"} 2",
        "baton_dataplane_policy_active_flows{policy_namespace=\"shop\",policy=\"web\",listener=\"http\"} 6",
        "baton_dataplane_backend_adoptable{policy_namespace=\"shop\",policy=\"web\",listener=\"http\",backend_pod=\"b\"} 0",
        "baton_dataplane_backend_first_byte_seconds{policy_namespace=\"shop\",policy=\"web\",listener=\"http\",backend_pod=\"a\"} 0.0015",
        "baton_dataplane_backend_up{policy_namespace=\"shop\",policy=\"web\",listener=\"http\",backend_pod=\"a\"} 1",
        "baton_dataplane_backend_up{policy_namespace=\"shop\",policy=\"web\",listener=\"http\",backend_pod=\"b\"} 0",
        "baton_dataplane_backend_stranded_flows{policy_namespace=\"shop\",policy=\"web\",listener=\"http\",backend_pod=\"b\"} 1",
        "# TYPE baton_dataplane_backend_rescued_total counter",
        "baton_dataplane_backend_rescued_total{policy_namespace=\"shop\",policy=\"web\",listener=\"http\",backend_pod=\"b\"} 7",
        "baton_dataplane_policy_rescues_total{policy_namespace=\"shop\",policy=\"web\",listener=\"http\"} 7",
        "baton_dataplane_policy_replays_total{policy_namespace=\"shop\",policy=\"web\",listener=\"http\"} 3",
        "baton_dataplane_policy_lost_total{policy_namespace=\"shop\",policy=\"web\",listener=\"http\",reason=\"fate_unknown\"} 1",
        "baton_dataplane_policy_pins_total{policy_namespace=\"shop\",policy=\"web\",listener=\"http\",reason=\"upgrade\"} 5",
        "baton_dataplane_policy_lost_total{policy_namespace=\"shop\",policy=\"web\",listener=\"http\",reason=\"no_backend\"} 0",
        "baton_dataplane_policy_moves_total{policy_namespace=\"shop\",policy=\"web\",listener=\"http\",cause=\"drain\",outcome=\"moved\"} 2",
        "baton_dataplane_policy_moves_total{policy_namespace=\"shop\",policy=\"web\",listener=\"http\",cause=\"rescue\",outcome=\"moved\"} 0",
        "baton_dataplane_policy_usable_backends{policy_namespace=\"shop\",policy=\"web\",listener=\"http\"} 1",
        "baton_dataplane_ending 0",
        "baton_dataplane_policy_panic{policy_namespace=\"shop\",policy=\"web\",listener=\"http\"} 0",
        "# TYPE baton_dataplane_policy_migration_duration_seconds histogram",
        "baton_dataplane_policy_migration_duration_seconds_bucket{policy_namespace=\"shop\",policy=\"web\",listener=\"http\",le=\"0.000128\"} 1",
        "baton_dataplane_policy_migration_duration_seconds_bucket{policy_namespace=\"shop\",policy=\"web\",listener=\"http\",le=\"0.000512\"} 2",
        "baton_dataplane_policy_migration_duration_seconds_bucket{policy_namespace=\"shop\",policy=\"web\",listener=\"http\",le=\"4.194304\"} 2",
        "baton_dataplane_policy_migration_duration_seconds_bucket{policy_namespace=\"shop\",policy=\"web\",listener=\"http\",le=\"+Inf\"} 3",
        "baton_dataplane_policy_migration_duration_seconds_sum{policy_namespace=\"shop\",policy=\"web\",listener=\"http\"} 5.00039",
        "baton_dataplane_policy_migration_duration_seconds_count{policy_namespace=\"shop\",policy=\"web\",listener=\"http\"} 3",
        "baton_dataplane_backend_first_byte_duration_seconds_bucket{policy_namespace=\"shop\",policy=\"web\",listener=\"http\",backend_pod=\"a\",le=\"0.001024\"} 0",
        "baton_dataplane_backend_first_byte_duration_seconds_bucket{policy_namespace=\"shop\",policy=\"web\",listener=\"http\",backend_pod=\"a\",le=\"0.002048\"} 1",
        "baton_dataplane_backend_first_byte_duration_seconds_sum{policy_namespace=\"shop\",policy=\"web\",listener=\"http\",backend_pod=\"a\"} 0.0015",
        "# TYPE baton_dataplane_policy_pinned_flows gauge",
        "baton_dataplane_policy_pinned_flows{policy_namespace=\"shop\",policy=\"web\",listener=\"http\",reason=\"upgrade\"} 2",
        "# TYPE baton_dataplane_policy_client_resets_total counter",
        "baton_dataplane_policy_client_resets_total{policy_namespace=\"shop\",policy=\"web\",listener=\"http\",reason=\"no_flow\"} 4",
        "baton_dataplane_policy_client_resets_total{policy_namespace=\"shop\",policy=\"web\",listener=\"http\",reason=\"lost\"} 1",
        "baton_dataplane_policy_not_allowed_total{policy_namespace=\"shop\",policy=\"web\",listener=\"http\"} 11",
        "baton_dataplane_backend_flows_total{policy_namespace=\"shop\",policy=\"web\",listener=\"http\",backend_pod=\"a\"} 6",
        "baton_dataplane_policy_unadoptable_backends{policy_namespace=\"shop\",policy=\"web\",listener=\"http\",reason=\"no answer to probes any more\"} 1",
        "baton_dataplane_key_epochs 1",
        "# TYPE baton_dataplane_drain_moved_flows gauge",
        "baton_dataplane_drain_moved_flows{policy_namespace=\"shop\",policy=\"web\",listener=\"http\",backend_pod=\"b\"} 4",
        "baton_dataplane_drain_deadline_seconds{policy_namespace=\"shop\",policy=\"web\",listener=\"http\",backend_pod=\"b\"} 2.5",
        "baton_dataplane_drain_waiting_flows{policy_namespace=\"shop\",policy=\"web\",listener=\"http\",backend_pod=\"b\",reason=\"pinned: upgrade\"} 3",
        "baton_dataplane_table_limit_entries{table=\"flows\"} 64",
        "baton_dataplane_worker_info{interface=\"eth0\",mode=\"native\"} 1",
        concat!("baton_dataplane_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1"),
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
    }
    assert!(!text.contains("cause=\"rescue\",outcome=\"ended\""), "never happened");
    // One TYPE line per name: a family told twice is refused by Prometheus.
    let mut names: Vec<&str> = text.lines().filter(|l| l.starts_with("# TYPE")).collect();
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all);
}

/// What alerts tell a rollout and a policy that nobody serves by.
#[tokio::test]
async fn an_end_and_a_policy_without_backends_are_shown() {
    let lab = lab().await;
    lab.control.facts.ending.store(true, Ordering::Relaxed);
    let metrics = async || lab.get("/metrics").await.1;
    let text = metrics().await;
    assert!(text.contains("baton_dataplane_ending 1\n"), "{text}");
    assert!(text.contains("baton_dataplane_ready 0\n"), "{text}");
    let usable = |change: fn(&mut PolicyState)| {
        let mut report = figures(1);
        change(&mut report.state.policies[0]);
        let mut out = Families::default();
        worker(&mut out, &report);
        let name = "baton_dataplane_policy_usable_backends";
        let all = out.finish();
        let family = all.iter().find(|family| family.name() == name)?;
        Some(family.get_metric()[0].get_gauge().get_value())
    };
    assert_eq!(usable(|_| {}), Some(1.0));
    assert_eq!(usable(|p| p.backends.clear()), Some(0.0), "has none");
    assert_eq!(usable(|p| p.backends[0].weight = 0), Some(0.0));
    assert_eq!(usable(|p| p.backends[0].draining = true), Some(0.0));
    let left = |p: &mut PolicyState| {
        p.frontends.clear();
        p.backends.clear();
    };
    assert_eq!(usable(left), None, "it has left the snapshot");
}

#[test]
fn the_ages_of_keys_and_certificate_are_shown() {
    let tls = dataplane(&Authority::new());
    let end = tls.ends();
    let config =
        Config::parse(Path::new("test.yaml"), "interface: eth0\nkeys: [{epoch: 3, file: k}]\n")
            .expect("good");
    let metrics = Metrics::new(&config, "native", Arc::default(), Some(tls)).expect("metrics");
    let value = |name: &str| -> f64 {
        let text = metrics.render(Scrape::default()).expect("text");
        let text = String::from_utf8(text).expect("UTF-8");
        let of = |line: &str| line.strip_prefix(name)?.trim().parse().ok();
        text.lines().find_map(of).expect("a sample")
    };
    let name = "baton_dataplane_keys_changed_timestamp_seconds";
    assert_eq!(value(name), 0.0, "none loaded");
    metrics.keys_loaded();
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.expect("a clock behind 1970").as_secs_f64();
    assert!((0.0..60.0).contains(&(now - value(name))), "{now}");
    let shown = value("baton_dataplane_control_certificate_end_timestamp_seconds");
    assert_eq!(shown, end as f64);
    assert!(shown > now);
}

/// By these figures of the pages an admin knows what Prometheus is to keep.
#[test]
fn samples_are_as_many_as_the_pages_say() {
    let mut engine = engine();
    let policy = |backends: &str| {
        let frontends = r#"["10.0.0.1:80"]"#;
        let policy = format!(
            r#"{{"name": "shop/web/http", "frontends": {frontends}, "backends": [{backends}]}}"#
        );
        serde_json::from_str(&format!(r#"{{"generation": 1, "policies": [{policy}]}}"#))
    };
    let backend = r#"{"name": "a", "endpoint": "10.0.0.2:80"}"#;
    let snapshot: Snapshot = policy(backend).expect("a snapshot");
    engine.apply(Instant(1), &snapshot).expect("applied");
    let (state, figures) = (engine.state(Instant(1)), engine.figures());
    let report = Report { state, counters: Vec::new(), figures };
    let config = Config::parse(Path::new("test.yaml"), "interface: eth0\n").expect("good");
    let metrics = Metrics::new(&config, "native", Arc::default(), None).expect("metrics");
    let text = metrics.render(Scrape { report: Some(report), ..Scrape::default() }).expect("text");
    let text = String::from_utf8(text).expect("UTF-8");
    let of_policy = text.lines().filter(|line| line.contains("listener=\"http\""));
    // One more for each reason that occurs.
    let always = of_policy.filter(|line| !line.contains("unadoptable_backends{"));
    let (of_backend, of_listener): (Vec<_>, Vec<_>) =
        always.partition(|line| line.contains("backend_pod="));
    let (listener, backend) = (of_listener.len(), of_backend.len());
    for (page, words) in [
        ("docs/operations.md", format!("{listener} for each listener")),
        ("docs/operations.md", format!("{backend} for each backend")),
        ("docs/limits.md", format!("{listener} samples for each listener, {backend} for each")),
        ("charts/baton/values.yaml", format!("has {backend} for each Pod of each listener")),
    ] {
        let text = std::fs::read_to_string(baton_tidy::root().join(page)).expect("a page");
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(&words), "{page}: {words}");
    }
}
