//! Active checks: asks each backend of a policy with `health.active` whether it works, and tells
//! the worker.
//!
//! Runs on the control thread, over sockets of the kernel in the dataplane's own namespace; never
//! touches a packet of a flow. One task per policy and backend asks; this module's one loop starts
//! and ends these tasks as snapshots change, and is the only place that knows and tells verdicts.

mod failures;
mod judge;
mod probe;
mod source;
#[cfg(test)]
mod tests;

pub use failures::Failures;

use crate::{commands::Notice, neighbour::Health, steering::SteeredPorts, workers::Workers};
use baton_api::{ActiveCheck, ClientAddress, Endpoint, Policy, Snapshot};
use judge::{Judge, Thresholds};
use probe::{Outcome, Probe};
use source::Source;
use std::{
    collections::{HashMap, HashSet},
    convert::Infallible,
    net::SocketAddr,
    ops::RangeInclusive,
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::{Semaphore, mpsc, watch},
    task::AbortHandle,
    time,
};
use tracing::{debug, info, warn};

/// Checks at one time: a quarter of the 1,024 open files that a process may have unless told
/// otherwise.
const CHECKS_MAX: usize = 256;
/// Of these, those of one policy: Pods that take connections and answer nothing hold up no other
/// policy's checks.
const CHECKS_PER_POLICY: usize = 32;
/// Results that wait to be judged; a full queue makes the checks wait, not pile up.
const RESULTS_MAX: usize = 64;
/// A worker that did not listen is told again after this long that a backend is no longer checked.
const TELL_AGAIN: Duration = Duration::from_secs(1);
/// First checks are spread by chance over this long for each that starts with them, ...
const SPREAD_EACH: Duration = Duration::from_millis(1);
/// ... but over no more than this.
const SPREAD_MAX: Duration = Duration::from_secs(1);

/// Which backend: its policy's name, and where it listens. Its name may change without another
/// check.
type Key = (String, Endpoint);

/// The result of one check.
struct Found {
    key: Arc<Key>,
    /// Which task it comes from: one that was replaced has nothing to say any more.
    task: u64,
    outcome: Outcome,
}

/// One backend under check.
struct Checked {
    /// Of the backend, for people.
    name: String,
    probe: Probe,
    judge: Judge,
    /// What the worker knows.
    told: Option<bool>,
    /// The last check could not be asked, which has been logged.
    muted: bool,
    task: u64,
    handle: AbortHandle,
}

impl Drop for Checked {
    fn drop(&mut self) {
        self.handle.abort();
    }
}

/// What the tasks share.
struct Shared {
    source: Source,
    network: Arc<Health>,
    free: Semaphore,
    results: mpsc::Sender<Found>,
}

struct Checks {
    workers: Workers,
    failures: Arc<Failures>,
    shared: Arc<Shared>,
    checked: HashMap<Arc<Key>, Checked>,
    /// What each policy may use of `Shared::free`.
    shares: HashMap<String, Arc<Semaphore>>,
    /// Backends that are no longer checked, which the worker has not taken note of.
    untold: HashSet<Arc<Key>>,
    tasks: u64,
}

/// Checks what the snapshots want checked, for as long as the process lives. `legs` are the ports
/// of the legs, `frontends` those that are steered besides. What fails while the interface that
/// `network` is about is down says nothing of a backend.
pub async fn run(
    workers: Workers,
    network: Arc<Health>,
    failures: Arc<Failures>,
    mut snapshots: watch::Receiver<Option<Arc<Snapshot>>>,
    legs: RangeInclusive<u16>,
    frontends: SteeredPorts,
) -> Infallible {
    let (results, mut found) = mpsc::channel(RESULTS_MAX);
    let mut checks = Checks {
        workers,
        failures,
        shared: Arc::new(Shared {
            source: Source::new(legs, frontends),
            network,
            free: Semaphore::new(CHECKS_MAX),
            results,
        }),
        checked: HashMap::new(),
        shares: HashMap::new(),
        untold: HashSet::new(),
        tasks: 0,
    };
    let mut again = time::interval(TELL_AGAIN);
    again.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = again.tick(), if !checks.untold.is_empty() => {
                for key in std::mem::take(&mut checks.untold) {
                    checks.tell(&key, None).await;
                }
            }
            changed = snapshots.changed() => {
                if changed.is_err() {
                    // The process is ending.
                    return std::future::pending().await;
                }
                let snapshot = snapshots.borrow_and_update().clone();
                if let Some(snapshot) = snapshot {
                    checks.follow(&snapshot).await;
                }
            }
            // Never none: a sender is in `shared`.
            Some(result) = found.recv() => checks.judge(result).await,
        }
    }
}

impl Checks {
    /// Checks what `snapshot` wants checked, and nothing else; what is unchanged goes on as if
    /// nothing had happened.
    async fn follow(&mut self, snapshot: &Snapshot) {
        let mut wanted: HashMap<Arc<Key>, (String, Probe)> = HashMap::new();
        for policy in &snapshot.policies {
            wanted.extend(probes(policy));
        }
        let names: HashSet<&str> = snapshot.policies.iter().map(|p| p.name.as_str()).collect();
        self.shares.retain(|name, _| names.contains(name.as_str()));
        let gone: HashSet<Arc<Key>> =
            self.checked.keys().filter(|key| !wanted.contains_key(*key)).cloned().collect();
        for key in gone {
            self.failures.note(&key, None);
            let checked = self.checked.remove(&key);
            if checked.is_some_and(|checked| checked.told.is_some()) {
                self.tell(&key, None).await;
            }
        }
        let new: Vec<_> = wanted
            .into_iter()
            .filter_map(|(key, (name, probe))| match self.checked.get_mut(&key) {
                Some(checked) if checked.probe == probe => {
                    checked.name = name;
                    None
                }
                _ => Some((key, name, probe)),
            })
            .collect();
        let spread = SPREAD_EACH.saturating_mul(u32::try_from(new.len()).unwrap_or(u32::MAX));
        for (key, name, probe) in new {
            self.start(key, name, probe, spread.min(SPREAD_MAX));
        }
        // The worker forgets a verdict together with its backend. Snapshots may follow each other
        // faster than this task looks, so that a backend that left and came back seems unchanged
        // here.
        let told: Vec<_> = self
            .checked
            .iter()
            .filter_map(|(key, checked)| Some((Arc::clone(key), checked.told?)))
            .collect();
        for (key, healthy) in told {
            self.tell(&key, Some(healthy)).await;
        }
        debug!(backends = self.checked.len(), "active checks");
    }

    /// Starts the task of one backend. A task that it replaces ends; its verdict holds until the
    /// first new result.
    fn start(&mut self, key: Arc<Key>, name: String, probe: Probe, spread: Duration) {
        self.tasks += 1;
        let task = self.tasks;
        let thresholds = Thresholds {
            healthy: probe.check.success_threshold,
            unhealthy: probe.check.failure_threshold,
        };
        let share = || Arc::new(Semaphore::new(CHECKS_PER_POLICY));
        let share = self.shares.entry(key.0.clone()).or_insert_with(share);
        let work = ask_always(
            Arc::clone(&self.shared),
            Arc::clone(share),
            Arc::clone(&key),
            task,
            probe.clone(),
            spread,
        );
        let told = self.checked.get(&key).and_then(|checked| checked.told);
        self.untold.remove(&key);
        let checked = Checked {
            name,
            probe,
            judge: Judge::new(thresholds),
            told,
            muted: false,
            task,
            handle: tokio::spawn(work).abort_handle(),
        };
        self.checked.insert(key, checked);
    }

    async fn judge(&mut self, found: Found) {
        let Found { key, task, outcome } = found;
        let Some(checked) = self.checked.get_mut(&key).filter(|c| c.task == task) else {
            return;
        };
        let (policy, backend) = (&key.0, &checked.name);
        let turned = match &outcome {
            Outcome::Good => checked.judge.take(true),
            Outcome::Bad(_) => checked.judge.take(false),
            Outcome::NotAsked(why) => {
                if !checked.muted {
                    warn!(policy, backend, why, "a backend cannot be checked");
                }
                checked.muted = true;
                return;
            }
        };
        checked.muted = false;
        let why = match &outcome {
            Outcome::Bad(why) => Some(why.clone()),
            _ => None,
        };
        self.failures.note(&key, why);
        match &outcome {
            Outcome::Bad(why) if turned => {
                warn!(policy, backend, endpoint = %key.1, why, "a backend is unhealthy");
            }
            Outcome::Bad(why) => debug!(policy, backend, why, "a check failed"),
            // Healthy from the first check on is no news.
            _ if turned && checked.told == Some(false) => {
                info!(policy, backend, endpoint = %key.1, "a backend is healthy again");
            }
            _ => {}
        }
        let verdict = checked.judge.verdict();
        if verdict != checked.told {
            self.tell(&key, verdict).await;
        }
    }

    /// Tells the worker. If it does not listen, the next result, snapshot or `TELL_AGAIN` does it
    /// again.
    async fn tell(&mut self, key: &Arc<Key>, healthy: Option<bool>) {
        let notice = Notice::Health { policy: key.0.clone(), backend: key.1, healthy };
        match self.workers.tell(notice).await {
            Ok(()) => {
                if let Some(checked) = self.checked.get_mut(key) {
                    checked.told = healthy;
                }
            }
            Err(error) => {
                debug!(%error, "the worker does not learn a backend's health");
                if healthy.is_none() {
                    self.untold.insert(Arc::clone(key));
                }
            }
        }
    }
}

/// The checks of one policy, with the backends' names.
fn probes(policy: &Policy) -> impl Iterator<Item = (Arc<Key>, (String, Probe))> + '_ {
    let check = policy.health.active.as_ref();
    check.into_iter().flat_map(|check| {
        policy.backends.iter().map(|backend| {
            let key = Arc::new((policy.name.clone(), backend.endpoint));
            let probe = Probe {
                target: target(backend.endpoint, check),
                check: check.clone(),
                // Another port is another server.
                header: policy.client_address == ClientAddress::ProxyV2
                    && check.port.is_none_or(|port| port == backend.endpoint.port()),
            };
            (key, (backend.name.clone(), probe))
        })
    })
}

fn target(backend: Endpoint, check: &ActiveCheck) -> SocketAddr {
    let port = check.port.unwrap_or_else(|| backend.port());
    SocketAddr::new(backend.address(), port)
}

/// Asks one backend again and again, until the task is aborted.
async fn ask_always(
    shared: Arc<Shared>,
    share: Arc<Semaphore>,
    key: Arc<Key>,
    task: u64,
    probe: Probe,
    spread: Duration,
) {
    let interval = Duration::from_micros(probe.check.interval.0);
    let jitter = interval.mul_f64(f64::from(probe.check.jitter_percent) / 100.0);
    let mut due = time::Instant::now() + spread.min(interval).mul_f64(fastrand::f64());
    loop {
        time::sleep_until(due).await;
        // Waiting for its turn is not the backend's fault: the timeout starts after it.
        let Ok(of_policy) = share.acquire().await else {
            return;
        };
        let Ok(turn) = shared.free.acquire().await else {
            return;
        };
        let started = time::Instant::now();
        let before = shared.network.link();
        let outcome = match probe.ask(&shared.source).await {
            Outcome::Bad(_) if !before.0 || before != shared.network.link() => {
                Outcome::NotAsked("the dataplane's own interface is or was down".to_owned())
            }
            outcome => outcome,
        };
        drop((turn, of_policy));
        let found = Found { key: Arc::clone(&key), task, outcome };
        if shared.results.send(found).await.is_err() {
            return;
        }
        due = started + interval + jitter.mul_f64(fastrand::f64());
    }
}
