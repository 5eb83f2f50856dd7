//! The control API: health, metrics, state, flows and snapshots over HTTP.
//!
//! Owns what it knows and may do; `serve` has the listeners and their limits. Never touches a
//! packet: all it knows of the worker comes through [`WorkerHandle`], and a slow or stuck asker
//! holds up nobody but itself.

mod asked;
mod capture;
#[cfg(test)]
mod capture_tests;
mod drain;
#[cfg(test)]
mod drain_tests;
mod events;
#[cfg(test)]
mod events_tests;
mod families;
mod figures;
#[cfg(test)]
mod figures_tests;
pub mod host_ports;
mod meanings;
pub mod metrics;
mod migrate;
#[cfg(test)]
mod reference_tests;
pub mod reply;
mod routes;
pub mod serve;
#[cfg(test)]
mod serve_tests;
pub mod snapshot;
pub mod socket;
#[cfg(test)]
mod socket_tests;
#[cfg(test)]
mod steering_tests;
#[cfg(test)]
mod tests;

use crate::{
    clock,
    commands::{ANSWER_LIMIT, Report, WorkerError},
    health::Failures,
    neighbour::Health,
    workers::Workers,
};
use baton_api::WorkerState;
use baton_tls::Server;
use metrics::Metrics;
use serve::Gates;
use snapshot::Snapshots;
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// What the control API knows and may do.
pub struct Control {
    /// The packet workers.
    pub workers: Workers,
    /// The way for snapshots.
    pub snapshots: Snapshots,
    /// Figures.
    pub metrics: Metrics,
    /// Network.
    pub health: Arc<Health>,
    /// What active checks say.
    pub failures: Arc<Failures>,
    /// What the worker does not know of itself.
    pub facts: Facts,
    /// TLS towards the operator, if it is configured.
    pub tls: Option<Arc<Server>>,
    /// What all requests share.
    pub gates: Gates,
}

/// What only the binary knows.
pub struct Facts {
    /// Packet I/O, without the keys.
    pub worker: WorkerState,
    /// Start of the process.
    pub started: Instant,
    /// Epochs of the keys in use, the one that signs first.
    pub key_epochs: Mutex<Vec<u8>>,
    /// Why the configuration file on disk is not in force, or what of it is not.
    pub config_problems: Mutex<Vec<String>>,
    /// The process is asked to end and serves what is left.
    pub ending: AtomicBool,
}

impl Facts {
    /// Facts at the start of the process.
    pub fn new(worker: WorkerState, key_epochs: Vec<u8>) -> Self {
        Self {
            worker,
            started: Instant::now(),
            key_epochs: Mutex::new(key_epochs),
            config_problems: Mutex::new(Vec::new()),
            ending: AtomicBool::new(false),
        }
    }
}

/// What is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// Client connections.
    pub flows: u64,
    /// Connections to pods that no client has any more; of several workers those of the one that
    /// has most.
    pub legs: u64,
}

impl Control {
    /// Whether the loops of all workers turned within the limit.
    fn is_beating(&self) -> bool {
        let age = clock::now().0.saturating_sub(self.workers.beat_us());
        self.workers.is_alive() && Duration::from_micros(age) <= ANSWER_LIMIT
    }

    /// Why traffic should not be sent here yet; empty if it may.
    fn unready(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.facts.ending.load(Ordering::Relaxed) {
            problems.push(
                "it was asked to end and serves only the connections that are left".to_owned(),
            );
        }
        if !self.is_beating() {
            problems.push("the packet worker does not turn: it is stuck or has ended".to_owned());
        }
        if !self.snapshots.is_applied() {
            problems.push(
                "no snapshot is in force: the configuration has no `policies`, so the operator's first push is waited for"
                    .to_owned(),
            );
        }
        if !self.health.link_up.load(Ordering::Relaxed) {
            problems.push(format!(
                "{} is down: `ip link set {} up`, or look at its other end",
                self.facts.worker.interface, self.facts.worker.interface
            ));
        }
        if !self.health.routes_read.load(Ordering::Relaxed) {
            problems.push(
                "the kernel's routes have not been read yet: it is asked each second, and the log says why it does not answer"
                    .to_owned(),
            );
        } else if !self.health.gateway_resolved.load(Ordering::Relaxed) {
            problems.push(
                "the default router's link-layer address is unknown: `ip neigh show` and `ip route show` tell more"
                    .to_owned(),
            );
        }
        problems
    }

    /// Which key epoch signs.
    fn signing_epoch(&self) -> Option<u8> {
        self.facts.key_epochs.lock().ok()?.first().copied()
    }

    /// What is open at this moment; nothing if the worker does not answer.
    pub async fn left(&self) -> Option<Left> {
        let state = self.workers.report().await.ok()?.state;
        Some(Left {
            flows: state.policies.iter().map(|p| p.flows).sum(),
            legs: state.tables.get("closing_legs").map_or(0, |table| table.0),
        })
    }

    /// The worker's report with what only the binary knows.
    async fn report(&self) -> Result<Report, WorkerError> {
        let mut report = self.workers.report().await?;
        let state = &mut report.state;
        env!("CARGO_PKG_VERSION").clone_into(&mut state.version);
        state.uptime_seconds = self.facts.started.elapsed().as_secs();
        state.generation = self.snapshots.generation();
        state.refused = self.snapshots.refused();
        state.worker = self.facts.worker.clone();
        if let Ok(epochs) = self.facts.key_epochs.lock() {
            state.worker.key_epochs.clone_from(&epochs);
        }
        for policy in &mut state.policies {
            self.failures.explain(policy);
        }
        for result in metrics::RELOAD_RESULTS {
            state.counters.insert(
                format!("config_reloads_total{{result=\"{result}\"}}"),
                self.metrics.reloads.with_label_values(&[result]).get(),
            );
        }
        Ok(report)
    }

    /// Everything that is wrong, in words.
    fn problems(&self) -> Vec<String> {
        let mut problems = self.unready();
        if let Ok(more) = self.facts.config_problems.lock() {
            problems.extend(more.iter().cloned());
        }
        let ignored = self.snapshots.ignored();
        if !ignored.is_empty() {
            problems.push(format!(
                "fields of the snapshot are ignored, as version {} does not know them: {}: replace this dataplane by one \
                 of the operator's version",
                env!("CARGO_PKG_VERSION"),
                ignored.join(", ")
            ));
        }
        if let Ok(mtu) = self.health.mtu_problem.lock() {
            problems.extend(mtu.iter().cloned());
        }
        problems
    }
}
