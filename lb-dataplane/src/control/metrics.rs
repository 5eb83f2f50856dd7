//! Figures for Prometheus: the worker's, asked for at each scrape, and those of the control side.
//!
//! Owns all names: `baton_dataplane_<what>_<unit>[_total]`. Labels are fixed words, policies and backends.

use crate::{commands::Report, config::Config, neighbour::Health};
use prometheus::{
    Encoder, IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry, TextEncoder,
    core::{Collector, Desc},
    proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType},
};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

const PREFIX: &str = "baton_dataplane_";

/// All metrics of the process.
pub struct Metrics {
    registry: Registry,
    report: Arc<Mutex<Scrape>>,
    /// Configuration files read again, by result.
    pub reloads: IntCounterVec,
    /// Control connections refused because too many were open.
    pub connections_refused: IntCounter,
    /// Control requests, by status class.
    pub requests: IntCounterVec,
}

/// What the collector tells at the next gathering.
#[derive(Default)]
struct Scrape {
    report: Option<Report>,
    ready: bool,
}

/// Results of a reload, as label values.
pub const RELOAD_RESULTS: [&str; 3] = ["applied", "unchanged", "refused"];

impl Metrics {
    /// Makes and registers everything.
    ///
    /// # Errors
    /// Two metrics have the same name: a bug.
    pub fn new(config: &Config, mode: &str, health: Arc<Health>) -> prometheus::Result<Self> {
        let registry = Registry::new();
        let opts = |name: &str, help: &str| Opts::new(format!("{PREFIX}{name}"), help);
        let reloads = IntCounterVec::new(
            opts(
                "config_reloads_total",
                "Times the configuration was read again, by result.",
            ),
            &["result"],
        )?;
        for result in RELOAD_RESULTS {
            reloads.with_label_values(&[result]);
        }
        let connections_refused = IntCounter::with_opts(opts(
            "control_connections_refused_total",
            "Control connections refused because too many were open.",
        ))?;
        let requests = IntCounterVec::new(
            opts(
                "control_requests_total",
                "Control requests answered, by class of status.",
            ),
            &["status"],
        )?;
        let build = IntGaugeVec::new(
            opts("build_info", "1, with the version as label."),
            &["version"],
        )?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        let worker = IntGaugeVec::new(
            opts("worker_info", "1, with interface and mode as labels."),
            &["interface", "mode"],
        )?;
        worker.with_label_values(&[&config.interface, mode]).set(1);
        let report = Arc::new(Mutex::new(Scrape::default()));
        registry.register(Box::new(reloads.clone()))?;
        registry.register(Box::new(connections_refused.clone()))?;
        registry.register(Box::new(requests.clone()))?;
        registry.register(Box::new(build))?;
        registry.register(Box::new(worker))?;
        registry.register(Box::new(WorkerCollector {
            up: Desc::new(
                format!("{PREFIX}worker_up"),
                "1 if the packet worker answered.".to_owned(),
                Vec::new(),
                std::collections::HashMap::new(),
            )?,
            scrape: Arc::clone(&report),
            health,
        }))?;
        Ok(Self {
            registry,
            report,
            reloads,
            connections_refused,
            requests,
        })
    }

    /// All metrics in the text format, with the worker's report if it gave one.
    ///
    /// # Errors
    /// The encoder refuses a metric: a bug.
    pub fn render(&self, report: Option<Report>, ready: bool) -> prometheus::Result<Vec<u8>> {
        if let Ok(mut scrape) = self.report.lock() {
            *scrape = Scrape { report, ready };
        }
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }
}

/// Turns the worker's report into metrics.
struct WorkerCollector {
    up: Desc,
    scrape: Arc<Mutex<Scrape>>,
    health: Arc<Health>,
}

impl Collector for WorkerCollector {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.up]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut out = Families::default();
        let Ok(scrape) = self.scrape.lock() else {
            return Vec::new();
        };
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let truth = |truth: bool| f64::from(u8::from(truth));
        out.gauge(
            "worker_up",
            "1 if the packet worker answered.",
            &[],
            truth(scrape.report.is_some()),
        );
        out.gauge("ready", "1 if /readyz says so.", &[], truth(scrape.ready));
        out.gauge(
            "link_up",
            "1 if the interface has carrier.",
            &[],
            truth(self.health.link_up.load(Ordering::Relaxed)),
        );
        out.counter(
            "link_changes_total",
            "Times the interface went up or down.",
            &[],
            count(&self.health.link_changes),
        );
        out.counter(
            "neighbour_resolutions_total",
            "Times the kernel was asked to resolve or confirm a neighbour.",
            &[],
            count(&self.health.resolutions),
        );
        if let Some(report) = &scrape.report {
            worker(&mut out, report);
        }
        out.finish()
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "gauges are floats; their figures are far below 2^53"
)]
fn worker(out: &mut Families, report: &Report) {
    for (name, label, value) in &report.counters {
        let label = label.map(|(name, value)| [(name, value)]);
        out.counter(
            name,
            "A counter of the packet worker.",
            label.as_ref().map_or(&[], |l| l.as_slice()),
            *value,
        );
    }
    let state = &report.state;
    out.gauge(
        "snapshot_generation",
        "Generation of the snapshot in force.",
        &[],
        state.generation as f64,
    );
    out.gauge(
        "uptime_seconds",
        "Seconds since start.",
        &[],
        state.uptime_seconds as f64,
    );
    for (table, (used, limit)) in &state.tables {
        let label = [("table", table.as_str())];
        let used_help = "Entries in use in a table of fixed size.";
        out.gauge("table_used_entries", used_help, &label, *used as f64);
        let limit_help = "Size of a table of fixed size.";
        out.gauge("table_limit_entries", limit_help, &label, *limit as f64);
    }
    for policy in &state.policies {
        let label = [("policy", policy.name.as_str())];
        let flows = "Client connections at this moment.";
        out.gauge("policy_active_flows", flows, &label, policy.flows as f64);
        for (name, help, value) in [
            (
                "policy_flows_total",
                "Client connections since start.",
                policy.flows_total,
            ),
            (
                "policy_migrations_total",
                "Adoptions that were confirmed.",
                policy.migrations_total,
            ),
            (
                "policy_rollbacks_total",
                "Adoptions that were taken back.",
                policy.rollbacks_total,
            ),
        ] {
            out.counter(name, help, &label, value);
        }
        for backend in &policy.backends {
            let labels = [
                ("policy", policy.name.as_str()),
                ("backend", backend.name.as_str()),
            ];
            for (name, help, value) in [
                (
                    "backend_adoptable",
                    "1 if the backend's adopter answered the last probe.",
                    f64::from(u8::from(backend.adoptable)),
                ),
                (
                    "backend_draining",
                    "1 if the backend takes no new flow.",
                    f64::from(u8::from(backend.draining)),
                ),
                (
                    "backend_active_flows",
                    "Flows that the backend owns.",
                    backend.flows as f64,
                ),
                (
                    "backend_outstanding_requests",
                    "Requests without a response byte yet.",
                    backend.outstanding as f64,
                ),
                (
                    "backend_first_byte_seconds",
                    "Moving peak average of the time to the first response byte.",
                    backend.first_byte.0 as f64 / 1e6,
                ),
            ] {
                out.gauge(name, help, &labels, value);
            }
            for (name, help, value) in [
                (
                    "backend_requests_total",
                    "Requests since start.",
                    backend.requests_total,
                ),
                (
                    "backend_migrations_in_total",
                    "Flows that came by migration.",
                    backend.migrations_in_total,
                ),
                (
                    "backend_migrations_out_total",
                    "Flows that left by migration.",
                    backend.migrations_out_total,
                ),
            ] {
                out.counter(name, help, &labels, value);
            }
        }
    }
}

/// Metric families under construction, by name.
#[derive(Default)]
struct Families(BTreeMap<String, (MetricFamily, Vec<Metric>)>);

impl Families {
    #[expect(
        clippy::cast_precision_loss,
        reason = "the metric type is a float: exact up to 2^53, then rounded"
    )]
    fn counter(&mut self, name: &str, help: &str, labels: &[(&str, &str)], value: u64) {
        let mut metric = with_labels(labels);
        let mut counter = Counter::default();
        counter.set_value(value as f64);
        metric.set_counter(counter);
        self.add(name, help, MetricType::COUNTER, metric);
    }

    fn gauge(&mut self, name: &str, help: &str, labels: &[(&str, &str)], value: f64) {
        let mut metric = with_labels(labels);
        let mut gauge = Gauge::default();
        gauge.set_value(value);
        metric.set_gauge(gauge);
        self.add(name, help, MetricType::GAUGE, metric);
    }

    fn add(&mut self, name: &str, help: &str, kind: MetricType, metric: Metric) {
        let name = format!("{PREFIX}{name}");
        let (_, metrics) = self.0.entry(name).or_insert_with_key(|name| {
            let mut family = MetricFamily::default();
            family.set_name(name.clone());
            family.set_help(help.to_owned());
            family.set_field_type(kind);
            (family, Vec::new())
        });
        metrics.push(metric);
    }

    fn finish(self) -> Vec<MetricFamily> {
        self.0
            .into_values()
            .map(|(mut family, metrics)| {
                family.set_metric(metrics);
                family
            })
            .collect()
    }
}

fn with_labels(labels: &[(&str, &str)]) -> Metric {
    let labels = labels
        .iter()
        .map(|(name, value)| {
            let mut pair = LabelPair::default();
            pair.set_name((*name).to_owned());
            pair.set_value((*value).to_owned());
            pair
        })
        .collect();
    let mut metric = Metric::default();
    metric.set_label(labels);
    metric
}
