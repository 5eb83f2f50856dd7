//! The dataplane's part of `docs/generated/metrics.md`, from what it really exports.
//! `BATON_GENERATE=1` writes it anew.

use super::{
    figures_tests::figures,
    metrics::{Metrics, Scrape},
    serve_tests::dataplane,
};
use crate::{
    certificates::Authority, commands::CounterValue, config::Config, neighbour::Health, worker,
};
use baton_api::{BackendLoad, BackendPlacement, PolicyPlacement};
use baton_engine::{Cause, Counter, Engine, Instant, MoveEnd, PinReason, Settings};
use baton_packet::{Mac, Malformed};
use baton_tidy::metrics::{Component, Meaning};
use std::{collections::BTreeMap, path::Path, sync::Arc};

/// All counters of a worker that has just started.
pub(super) fn worker_counters() -> Vec<CounterValue> {
    worker::counters_at_start(&engine())
}

/// Of a worker that has just started.
pub(super) fn engine() -> Engine {
    let config = config();
    let settings = Settings {
        limits: config.limits,
        addresses: vec!["10.0.0.1".parse().expect("an address")],
        legs_from_all: false,
        ports: config.ports.range(),
        mac: Mac([2, 0, 0, 0, 0, 1]),
        seed: 1,
        share: baton_engine::Share::default(),
        hash_keys: (1, 2),
        mtu: 1_500,
    };
    Engine::new(settings, Instant(0)).expect("good settings")
}

fn config() -> Config {
    let text = "interface: eth0\nkeys: [{epoch: 3, file: k}]\n";
    Config::parse(Path::new("test.yaml"), text).expect("good")
}

/// All that is exported, with a sample of each family.
fn exported() -> String {
    let tls = dataplane(&Authority::new());
    let metrics = Metrics::new(&config(), "native", Arc::new(Health::default()), Some(tls));
    let metrics = metrics.expect("no name twice");
    metrics.requests.with_label_values(&["2xx"]);
    let mut report = figures(1);
    report.counters = worker_counters();
    let figures = &mut report.figures[0];
    figures.pinned = PinReason::all().map(|p| (p.label(), 0)).collect();
    figures.pinned.sort_unstable();
    figures.pinned.dedup();
    figures.resets = baton_engine::Reset::ALL.iter().map(|r| (r.label(), 0)).collect();
    let policy = &mut report.state.policies[0];
    let zero = |label: &'static str| (label.to_owned(), 0);
    policy.pins_total = PinReason::all().map(|p| zero(p.label())).collect();
    let ends: BTreeMap<_, _> = MoveEnd::ALL.iter().map(|e| zero(e.label())).collect();
    let causes = Cause::ALL.iter();
    policy.moves_total = causes.map(|cause| (cause.label().to_owned(), ends.clone())).collect();
    policy.placement = Some(PolicyPlacement::default());
    for backend in &mut policy.backends {
        backend.placement = Some(BackendPlacement::default());
        backend.load = Some(BackendLoad {
            throttled_percent: Some(1),
            cpu_percent: Some(2),
            memory_percent: Some(3),
            ..BackendLoad::default()
        });
    }
    let text = metrics.render(Scrape { report: Some(report), ..Scrape::default() }).expect("text");
    String::from_utf8(text).expect("UTF-8")
}

#[test]
fn metric_reference_is_what_the_dataplane_exports() {
    let mut meanings: Vec<Meaning> = Vec::new();
    for counter in Counter::ALL {
        if let (metric, Some((_, value))) = counter.metric() {
            meanings.push((metric, value, counter.help().to_owned()));
        }
    }
    meanings.extend(Malformed::ALL.iter().map(|m| ("malformed_total", m.label(), m.to_string())));
    let resets = baton_engine::Reset::ALL.iter();
    meanings.extend(resets.map(|r| ("policy_client_resets_total", r.label(), r.help().to_owned())));
    let component = Component {
        name: "lb-dataplane",
        prefix: super::families::PREFIX,
        place: "http://POD:9910/metrics of each dataplane",
        open: &[
            "policy_namespace",
            "policy",
            "listener",
            "backend_pod",
            "version",
            "interface",
            "mode",
            "status",
            "table",
        ],
        open_of: &[("drain_waiting_flows", "reason"), ("policy_unadoptable_backends", "reason")],
        meanings: &meanings,
    };
    component.keep(&exported());
}
