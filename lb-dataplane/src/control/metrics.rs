//! Figures for Prometheus: the worker's, asked for at each scrape, and those of the control side.
//!
//! Owns the names of the control side: `baton_dataplane_<what>_<unit>[_total]`, as all are
//! (`figures` has the worker's).

use super::{
    families::{Families, PREFIX},
    figures::worker,
};
use crate::{commands::Report, config::Config, neighbour::Health};
use baton_api::Foreign;
use baton_tls::{Reason, Server};
use prometheus::{
    Encoder, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
    core::{Collector, Desc},
    process_collector::ProcessCollector,
    proto::MetricFamily,
};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

/// All metrics of the process.
pub struct Metrics {
    registry: Registry,
    scrape: Arc<Mutex<Scrape>>,
    /// Configuration files read again, by result.
    pub reloads: IntCounterVec,
    /// Control connections refused because too many were open.
    pub connections_evicted: IntCounter,
    /// Control requests, by status class.
    pub requests: IntCounterVec,
    foreign: IntCounterVec,
    keys_changed: IntGauge,
}

/// What the collector tells at the next gathering.
#[derive(Default)]
pub struct Scrape {
    /// The worker's report if it gave one.
    pub report: Option<Report>,
    /// Whether new connections may be sent here.
    pub ready: bool,
    /// The process was asked to end.
    pub ending: bool,
}

/// Results of a reload, as label values.
pub const RELOAD_RESULTS: [&str; 3] = ["applied", "unchanged", "refused"];

impl Metrics {
    /// Makes and registers everything.
    ///
    /// # Errors
    /// Two metrics have the same name: a bug.
    pub fn new(
        config: &Config,
        mode: &str,
        health: Arc<Health>,
        tls: Option<Arc<Server>>,
    ) -> prometheus::Result<Self> {
        let registry = Registry::new();
        registry.register(Box::new(ProcessCollector::for_self()))?;
        let opts = |name: &str, help: &str| Opts::new(format!("{PREFIX}{name}"), help);
        let reloads = IntCounterVec::new(
            opts("config_reloads_total", "Times the configuration was read again, by result."),
            &["result"],
        )?;
        for result in RELOAD_RESULTS {
            reloads.with_label_values(&[result]);
        }
        let connections_evicted = IntCounter::with_opts(opts(
            "control_connections_evicted_total",
            "Control connections closed because others came and all places were taken.",
        ))?;
        let requests = IntCounterVec::new(
            opts("control_requests_total", "Control requests answered, by class of status."),
            &["status"],
        )?;
        let foreign = IntCounterVec::new(
            opts(
                "control_foreign_requests_total",
                "Requests at ports without TLS that were refused because a web page may have had them sent, by what told it.",
            ),
            &["reason"],
        )?;
        for reason in Foreign::ALL {
            foreign.with_label_values(&[reason.label()]);
        }
        let build =
            IntGaugeVec::new(opts("build_info", "1, with the version as label."), &["version"])?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        let worker = IntGaugeVec::new(
            opts("worker_info", "1, with interface and mode as labels."),
            &["interface", "mode"],
        )?;
        worker.with_label_values(&[&config.interface, mode]).set(1);
        let keys_changed = IntGauge::with_opts(opts(
            "keys_changed_timestamp_seconds",
            "When the adoption keys in use were loaded, in seconds since 1970.",
        ))?;
        let scrape = Arc::new(Mutex::new(Scrape::default()));
        registry.register(Box::new(reloads.clone()))?;
        registry.register(Box::new(connections_evicted.clone()))?;
        registry.register(Box::new(requests.clone()))?;
        registry.register(Box::new(foreign.clone()))?;
        registry.register(Box::new(build))?;
        registry.register(Box::new(worker))?;
        registry.register(Box::new(keys_changed.clone()))?;
        registry.register(Box::new(WorkerCollector {
            up: Desc::new(
                format!("{PREFIX}worker_up"),
                "1 if the packet worker answered.".to_owned(),
                Vec::new(),
                std::collections::HashMap::new(),
            )?,
            scrape: Arc::clone(&scrape),
            health,
            tls,
        }))?;
        Ok(Self { registry, scrape, reloads, connections_evicted, requests, foreign, keys_changed })
    }

    /// A request was refused as a web page's.
    pub fn foreign(&self, reason: Foreign) {
        self.foreign.with_label_values(&[reason.label()]).inc();
    }

    /// Other adoption keys are in use from now on.
    pub fn keys_loaded(&self) {
        // A clock before 1970 is as bad as none.
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let seconds = now.unwrap_or_default().as_secs();
        self.keys_changed.set(i64::try_from(seconds).unwrap_or(i64::MAX));
    }

    /// All metrics in the text format.
    ///
    /// # Errors
    /// The encoder refuses a metric: a bug.
    pub fn render(&self, scrape: Scrape) -> prometheus::Result<Vec<u8>> {
        if let Ok(mut last) = self.scrape.lock() {
            *last = scrape;
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
    tls: Option<Arc<Server>>,
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
            "ending",
            "1 if it was asked to end and serves only the connections that are left.",
            &[],
            truth(scrape.ending),
        );
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
        if let Some(server) = &self.tls {
            out.gauge(
                "control_certificate_end_timestamp_seconds",
                "Until when the certificate of the control API is good, in seconds since 1970.",
                &[],
                server.ends() as f64,
            );
        }
        if let Some(counts) = self.tls.as_ref().map(|server| server.counts()) {
            let refused = |reason: &Reason| (reason.label(), counts.refused(*reason));
            let refused = Reason::ALL.iter().map(refused);
            for (result, value) in [("accepted", counts.accepted())].into_iter().chain(refused) {
                out.counter(
                    "control_tls_handshakes_total",
                    "TLS handshakes with the control API's clients, by result.",
                    &[("result", result)],
                    value,
                );
            }
        }
        if let Some(report) = &scrape.report {
            worker(&mut out, report);
        }
        out.finish()
    }
}
