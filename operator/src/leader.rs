//! Leader election by a Lease: reads, takes, renews and gives it back.
//!
//! Owns the Lease object and nothing else. What is done as the leader is told by [`Leadership`],
//! which others follow: it is `Standby` again before the Lease can be anybody else's. Who may take
//! the Lease when is decided in `lease`.

use crate::{
    lease::{Decision, Free, Observed, Record, epoch, evaluate},
    owner::Owner,
};
use baton_push::SPANS;
use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{Api, Client, api::PostParams};
use std::time::Duration;
use tokio::{
    sync::{oneshot, watch},
    time::{Instant, sleep, timeout, timeout_at},
};
use tracing::{Instrument as _, Span, field::Empty, info, trace_span, warn};

/// The Lease's name.
pub const LEASE: &str = "baton-operator";
/// The longest of one request to the API server, whatever the Lease; see
/// [`Settings::request_limit`].
const REQUEST_LIMIT: Duration = Duration::from_secs(3);
/// Giving the Lease back at the end; without it a standby waits until it has expired.
const RELEASE_LIMIT: Duration = Duration::from_secs(3);

/// Whether this process may act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leadership {
    /// Another process does, or nobody yet.
    Standby,
    /// This one does, with generations of this epoch.
    Leading {
        /// Never 0.
        epoch: u32,
    },
}

impl Leadership {
    /// The epoch, if this process leads.
    pub fn epoch(self) -> Option<u32> {
        match self {
            Self::Standby => None,
            Self::Leading { epoch } => Some(epoch),
        }
    }
}

/// How the election is held.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Namespace of the Lease.
    pub namespace: String,
    /// The name of this process; no two at one time may have the same.
    pub identity: String,
    /// How long the Lease lasts after a renewal.
    pub duration: Duration,
    /// With whom the Lease goes; it stays without it.
    pub owner: Option<Owner>,
}

impl Settings {
    /// The leader renews three times within its deadline.
    fn renew_every(&self) -> Duration {
        self.duration / 5
    }

    /// A leader that could not renew for so long stops. A third of the Lease is left then for
    /// clocks that run at different speeds and for what is under way.
    fn renew_within(&self) -> Duration {
        self.duration * 2 / 3
    }

    /// One request to the API server. One lost answer costs no Lease: the renewal begins after a
    /// fifth of it, is given up after another one and tried again a tenth later, and two fifteenths
    /// are left until `renew_within` for the next.
    fn request_limit(&self) -> Duration {
        REQUEST_LIMIT.min(self.duration / 5)
    }

    /// A standby looks this often, and a leader retries this soon.
    fn look_every(&self) -> Duration {
        (self.duration / 10).min(Duration::from_secs(1))
    }
}

/// Takes part in the election until `stop` says to give the Lease back.
pub async fn run(
    client: Client,
    settings: Settings,
    told: watch::Sender<Leadership>,
    mut stop: oneshot::Receiver<()>,
) {
    let mut election = Election {
        api: Api::namespaced(client, &settings.namespace),
        started: Instant::now(),
        observed: Observed::default(),
        lease: None,
        renewed: Instant::now(),
        settings,
        told,
    };
    loop {
        let span = trace_span!(
            target: SPANS, "lease", otel.kind = "client", identity = election.settings.identity, outcome = Empty,
            epoch = Empty, otel.status_code = Empty
        );
        let pause = election.turn().instrument(span).await;
        let ended = tokio::select! {
            _ = &mut stop => true,
            () = sleep(pause) => false,
        };
        if ended {
            break;
        }
    }
    election.release().await;
}

struct Election {
    api: Api<Lease>,
    settings: Settings,
    started: Instant,
    observed: Observed,
    /// The object as last read or written, for its resourceVersion and what others put there.
    lease: Option<Lease>,
    /// When the request that last renewed it was sent.
    renewed: Instant,
    told: watch::Sender<Leadership>,
}

impl Election {
    /// Looks once and acts on it. Says how long to rest.
    async fn turn(&mut self) -> Duration {
        let result = if self.observed.is_mine() {
            let end = self.renewed + self.settings.renew_within();
            match timeout_at(end, self.look_and_act()).await {
                Ok(result) => result,
                Err(_) => {
                    self.lost("it could not be renewed in time: is the API server reachable?");
                    return self.settings.look_every();
                }
            }
        } else {
            self.look_and_act().await
        };
        match result {
            Ok(pause) => pause,
            Err(error) => {
                ended_as("failed");
                warn!(%error, lease = LEASE, "the Lease cannot be read or written");
                self.settings.look_every()
            }
        }
    }

    async fn look_and_act(&mut self) -> Result<Duration, Failure> {
        self.lease = self.limited(self.api.get_opt(LEASE)).await?;
        let now = self.started.elapsed();
        let record = self.lease.as_ref().map(|lease| record(lease, &self.settings));
        self.observed.note(record, now);
        match evaluate(&self.observed, &self.settings.identity, now) {
            Decision::Create { transitions } => self.write(transitions, "created").await,
            Decision::Take { transitions, reason } => {
                let how = match reason {
                    Free::Released => "its holder gave it back",
                    Free::Expired => "its holder did not renew it",
                    Free::Ours => "it was this process's before a restart",
                };
                self.write(transitions, how).await
            }
            Decision::Renew => {
                let transitions = self.observed.record().map_or(0, |r| r.transitions);
                self.write(transitions, "").await
            }
            Decision::Wait { left } => {
                ended_as("waits");
                Ok(left.min(self.settings.look_every()))
            }
            Decision::Lost { holder } => {
                let holder = holder.unwrap_or_else(|| "nobody".to_owned());
                self.lost(&format!("it is held by {holder} now"));
                Ok(self.settings.look_every())
            }
        }
    }

    async fn write(&mut self, transitions: i32, how: &str) -> Result<Duration, Failure> {
        let sent = Instant::now();
        let wanted = self.wanted(transitions);
        let params = PostParams::default();
        let written = match &self.lease {
            None => self.limited(self.api.create(&params, &wanted)).await,
            Some(_) => self.limited(self.api.replace(LEASE, &params, &wanted)).await,
        };
        let written = match written {
            Ok(written) => written,
            // Somebody else wrote first: look at once whose it is.
            Err(Failure::Api(error)) if is_conflict(&error) => {
                ended_as("conflict");
                return Ok(Duration::ZERO);
            }
            Err(Failure::Api(kube::Error::Api(status)))
                if status.code == 403 && self.is_new_owner(&wanted) =>
            {
                // An admission plugin keeps owners (OwnerReferencesPermissionEnforcement). Leading
                // matters more.
                warn!(
                    error = status.message,
                    lease = LEASE,
                    "its owner may not be changed: delete it by hand when Baton is removed"
                );
                ended_as("refused");
                self.settings.owner = None;
                return Ok(Duration::ZERO);
            }
            Err(error) => return Err(error),
        };
        let was_mine = self.observed.is_mine();
        let record = record(&written, &self.settings);
        self.observed.note_written(record, self.started.elapsed());
        self.lease = Some(written);
        self.renewed = sent;
        let epoch = epoch(transitions);
        ended_as(if was_mine { "renewed" } else { "taken" });
        Span::current().record("epoch", i64::from(epoch));
        if !was_mine {
            info!(identity = self.settings.identity, epoch, how, "leading");
            self.told.send_replace(Leadership::Leading { epoch });
        }
        Ok(self.settings.renew_every())
    }

    async fn limited<T>(
        &self,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, Failure> {
        let limit = self.settings.request_limit();
        match timeout(limit, request).await {
            Ok(result) => Ok(result?),
            Err(_) => Err(Failure::Silence(limit)),
        }
    }

    fn wanted(&self, transitions: i32) -> Lease {
        let now = MicroTime(Timestamp::now());
        let mut lease = self.lease.clone().unwrap_or_else(|| Lease {
            metadata: ObjectMeta { name: Some(LEASE.to_owned()), ..ObjectMeta::default() },
            spec: None,
        });
        let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
        let seconds = self.settings.duration.as_secs().max(1);
        spec.lease_duration_seconds = i32::try_from(seconds).ok();
        if !self.observed.is_mine() {
            spec.acquire_time = Some(now.clone());
        }
        spec.renew_time = Some(now);
        spec.holder_identity = Some(self.settings.identity.clone());
        spec.lease_transitions = Some(transitions);
        let owners = lease.metadata.owner_references.as_deref();
        if let Some(owner) = &self.settings.owner
            && let Some(owners) = owner.added(owners.unwrap_or_default())
        {
            lease.metadata.owner_references = Some(owners);
        }
        lease
    }

    /// Whether this Lease has another owner than the one that was read.
    fn is_new_owner(&self, wanted: &Lease) -> bool {
        let read = self.lease.as_ref().map(|lease| &lease.metadata);
        read.and_then(|read| read.owner_references.as_ref())
            != wanted.metadata.owner_references.as_ref()
    }

    fn lost(&mut self, why: &str) {
        ended_as("lost");
        self.observed.note_lost();
        self.told.send_replace(Leadership::Standby);
        warn!(why, lease = LEASE, "leading no more: nothing is pushed or written from here on");
    }

    async fn release(&mut self) {
        self.told.send_replace(Leadership::Standby);
        if !self.observed.is_mine() {
            return;
        }
        let Some(mut lease) = self.lease.take() else {
            return;
        };
        if let Some(spec) = &mut lease.spec {
            spec.holder_identity = None;
            spec.renew_time = Some(MicroTime(Timestamp::now()));
        }
        let params = PostParams::default();
        let release = self.api.replace(LEASE, &params, &lease);
        match timeout(RELEASE_LIMIT, release).await {
            Ok(Ok(_)) => info!(lease = LEASE, "the Lease is given back"),
            Ok(Err(error)) if is_conflict(&error) => {}
            Ok(Err(error)) => {
                warn!(%error, "the Lease could not be given back; it expires by itself");
            }
            Err(_) => warn!("the Lease could not be given back in time; it expires by itself"),
        }
    }
}

/// What became of a turn.
fn ended_as(outcome: &str) {
    let span = Span::current();
    span.record("outcome", outcome);
    if matches!(outcome, "failed" | "lost") {
        span.record("otel.status_code", "ERROR");
    }
}

/// Why the Lease could not be read or written. All are retried.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error("no answer from the API server within {0:?}")]
    Silence(Duration),
}

/// Somebody else wrote or created it in between.
fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

fn record(lease: &Lease, settings: &Settings) -> Record {
    let spec = lease.spec.clone().unwrap_or_default();
    let seconds = spec.lease_duration_seconds.and_then(|s| u64::try_from(s).ok());
    Record {
        holder: spec.holder_identity,
        transitions: spec.lease_transitions.unwrap_or(0),
        duration: seconds.map_or(settings.duration, Duration::from_secs),
        version: lease.metadata.resource_version.clone().unwrap_or_default(),
    }
}

#[cfg(test)]
#[path = "leader_tests.rs"]
mod tests;
