//! The control API: health, metrics, state, flows and snapshots over HTTP.
//!
//! Owns the listener and its limits. Never touches a packet: all it knows of the worker comes through
//! [`WorkerHandle`], and a slow or stuck asker holds up nobody but itself.

mod drain;
#[cfg(test)]
mod drain_tests;
mod families;
mod figures;
#[cfg(test)]
mod figures_tests;
pub mod metrics;
pub mod reply;
mod routes;
pub mod snapshot;
#[cfg(test)]
mod tests;

use crate::{
    clock,
    commands::{ANSWER_LIMIT, Report, WorkerError, WorkerHandle},
    health::Failures,
    neighbour::Health,
};
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use metrics::Metrics;
use snapshot::Snapshots;
use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex, atomic::Ordering},
    time::{Duration, Instant},
};
use tokio::{io::AsyncWriteExt, net::TcpListener, sync::Semaphore, time};
use tracing::{debug, warn};

/// Connections at one time: an operator, a scraper, probes of the kubelet and a few people.
const CONNECTIONS_MAX: usize = 64;
/// From the first byte of a request to its answer, and between two requests of one connection.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
/// After a failed accept (no more file descriptors) nothing better can be done than to wait.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What the control API knows and may do.
pub struct Control {
    /// The packet worker.
    pub worker: WorkerHandle,
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
}

/// What only the binary knows.
pub struct Facts {
    /// Name of the interface.
    pub interface: String,
    /// Start of the process.
    pub started: Instant,
    /// Epochs of the keys in use.
    pub key_epochs: Mutex<Vec<u8>>,
    /// Why the configuration file on disk is not in force, or what of it is not.
    pub config_problems: Mutex<Vec<String>>,
}

impl Facts {
    /// Facts at the start of the process.
    pub fn new(interface: &str, key_epochs: Vec<u8>) -> Self {
        Self {
            interface: interface.to_owned(),
            started: Instant::now(),
            key_epochs: Mutex::new(key_epochs),
            config_problems: Mutex::new(Vec::new()),
        }
    }
}

impl Control {
    /// Whether the worker's loop turned within the limit.
    fn is_beating(&self) -> bool {
        let age = clock::now().0.saturating_sub(self.worker.beat_us());
        self.worker.is_alive() && Duration::from_micros(age) <= ANSWER_LIMIT
    }

    /// Why traffic should not be sent here yet; empty if it may.
    fn unready(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if !self.is_beating() {
            problems.push("the packet worker does not turn: it is stuck or has ended".to_owned());
        }
        if !self.snapshots.is_applied() {
            problems.push(
                "no snapshot is in force: put `policies` into the configuration or wait for the operator"
                    .to_owned(),
            );
        }
        if !self.health.link_up.load(Ordering::Relaxed) {
            problems.push(format!(
                "{} is down: `ip link set {} up`, or look at its other end",
                self.facts.interface, self.facts.interface
            ));
        }
        if !self.health.gateway_resolved.load(Ordering::Relaxed) {
            problems.push(
                "the default router's link-layer address is unknown: `ip neigh show` and `ip route show` tell more"
                    .to_owned(),
            );
        }
        problems
    }

    /// The worker's report with what only the binary knows.
    async fn report(&self) -> Result<Report, WorkerError> {
        let mut report = self.worker.report().await?;
        let state = &mut report.state;
        env!("CARGO_PKG_VERSION").clone_into(&mut state.version);
        state.uptime_seconds = self.facts.started.elapsed().as_secs();
        state.generation = self.snapshots.generation();
        state.worker.interface.clone_from(&self.facts.interface);
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
        problems
    }
}

/// Binds the control address.
///
/// # Errors
/// It is in use, or not an address of this machine.
pub async fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    use anyhow::Context as _;
    TcpListener::bind(address).await.with_context(|| {
        format!("`control: {address}`: cannot listen there (is another dataplane running?)")
    })
}

/// Serves until the process ends.
pub async fn serve(listener: TcpListener, control: Arc<Control>) -> Infallible {
    let free = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let (mut stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                warn!(%error, "cannot accept a control connection");
                time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(permit) = Arc::clone(&free).try_acquire_owned() else {
            control.metrics.connections_refused.inc();
            tokio::spawn(async move {
                let refusal = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
                // A peer that does not even take this is none to care about.
                let _ = time::timeout(REQUEST_LIMIT, stream.write_all(refusal)).await;
            });
            continue;
        };
        let control = Arc::clone(&control);
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let control = Arc::clone(&control);
                async move {
                    let reply = match time::timeout(REQUEST_LIMIT, routes::route(&control, request))
                        .await
                    {
                        Ok(reply) => reply,
                        Err(_) => routes::too_slow(),
                    };
                    control
                        .metrics
                        .requests
                        .with_label_values(&[class(reply.status().as_u16())])
                        .inc();
                    Ok::<_, Infallible>(reply)
                }
            });
            let served = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(REQUEST_LIMIT)
                .serve_connection(TokioIo::new(stream), service)
                .await;
            if let Err(error) = served {
                debug!(%peer, %error, "a control connection ended");
            }
            drop(permit);
        });
    }
}

fn class(status: u16) -> &'static str {
    match status {
        200..=299 => "2xx",
        400..=499 => "4xx",
        _ => "5xx",
    }
}
