//! Certificates and adoption keys: reads what is kept, has the plans of `baton-push` carried out, keeps what comes of it.
//!
//! Owns when that is done and in which Secret each part is. Only a leader makes anything. Never logs a content.

pub mod store;

use crate::{connect::Connector, leader::Leadership, metrics::Metrics, peers::Peers};
use anyhow::Context as _;
use baton_push::{
    UnixSeconds,
    certificates::{Role, Stored, check_supplied, renew},
    keys::{Ages, KeySet, RotationSettings, Rotator},
};
use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime},
};
use store::{KeepError, Kept, Store};
use tokio::{sync::watch, time::sleep};
use tracing::{error, info, warn};

/// The Secrets, or directories of the state directory.
const AUTHORITY: &str = "baton-ca";
const KEYS: &str = "baton-adoption-keys";
/// What an admin changes is seen after this long at the latest.
const LOOK_MAX: Duration = Duration::from_secs(60);
/// After a failure.
const RETRY: Duration = Duration::from_secs(5);
/// Steps in a row: a rotation has three, the first start one, and conflicts may repeat some.
const STEPS_MAX: usize = 10;

fn secret_of(role: Role) -> &'static str {
    match role {
        Role::Dataplane => "baton-dataplane-tls",
        Role::Shim => "baton-shim-tls",
        Role::Operator => "baton-operator-tls",
    }
}

/// Keeps certificates and keys.
pub struct Keeper {
    /// Where.
    pub store: Store,
    /// Gets the operator's own certificate.
    pub connector: Arc<Connector>,
    /// What dataplanes and shims say of their keys.
    pub peers: Arc<Peers>,
    /// How long adoption keys rest before they are signed with and before they are removed.
    pub key_rest: Duration,
    /// Whether this process leads.
    pub leadership: watch::Receiver<Leadership>,
    /// Figures.
    pub metrics: Metrics,
}

impl Keeper {
    /// Keeps them until dropped.
    pub async fn run(mut self) {
        let mut rotator = Rotator::new(RotationSettings {
            spread: self.key_rest,
            grace: self.key_rest,
            ..RotationSettings::default()
        });
        let mut told = Vec::new();
        loop {
            let leads = self.leadership.borrow_and_update().epoch().is_some();
            let mut leadership = self.leadership.clone();
            // What is under way when the Lease is lost is dropped.
            let pause = tokio::select! {
                pause = self.turn(leads, &mut rotator, &mut told) => pause,
                _ = leadership.changed() => continue,
            };
            tokio::select! {
                () = sleep(pause) => {}
                () = self.peers.changed() => {}
                changed = self.leadership.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Looks once. Says how long to rest.
    async fn turn(&self, leads: bool, rotator: &mut Rotator, told: &mut Vec<String>) -> Duration {
        let mut pause = LOOK_MAX.min(self.key_rest);
        let certificates = if leads {
            self.certificates().await
        } else {
            // To be ready for a term.
            self.own_certificate().await.map(|()| LOOK_MAX)
        };
        pause = pause.min(self.outcome("certificates", certificates));
        if leads {
            let keys = self.keys(rotator, told).await;
            pause = pause.min(self.outcome("adoption-keys", keys));
        }
        pause
    }

    fn outcome(&self, what: &str, outcome: anyhow::Result<Duration>) -> Duration {
        match outcome {
            Ok(pause) => pause,
            Err(error) => {
                self.metrics
                    .writes
                    .with_label_values(&[what, "failed"])
                    .inc();
                error!("{what}: {error:#}");
                RETRY
            }
        }
    }

    async fn own_certificate(&self) -> anyhow::Result<()> {
        let kept = self.store.read(secret_of(Role::Operator)).await?;
        if let Some(files) = &kept.files {
            self.connector
                .replace(files)
                .context("the operator's certificate cannot be used")?;
        }
        Ok(())
    }

    async fn certificates(&self) -> anyhow::Result<Duration> {
        for _ in 0..STEPS_MAX {
            let authority = self.store.read(AUTHORITY).await?;
            let mut leaves = BTreeMap::new();
            for role in Role::ALL {
                leaves.insert(role, self.store.read(secret_of(role)).await?);
            }
            match self.renewed(&authority, &leaves).await {
                Err(KeepError::Conflict) => {}
                Err(KeepError::Other(error)) => return Err(error),
                Ok(pause) => {
                    self.own_certificate().await?;
                    return Ok(pause);
                }
            }
        }
        anyhow::bail!(
            "somebody else changes the Secrets all the time: is another operator running in this namespace?"
        )
    }

    async fn renewed(
        &self,
        authority: &Kept,
        leaves: &BTreeMap<Role, Kept>,
    ) -> Result<Duration, KeepError> {
        let now = UnixSeconds::from(SystemTime::now());
        let mut ours = BTreeMap::new();
        for (role, kept) in leaves {
            match &kept.files {
                Some(files) if kept.supplied => {
                    let warnings = check_supplied(now, *role, files).with_context(|| {
                        format!("the Secret {} is an admin's", secret_of(*role))
                    })?;
                    for warning in warnings {
                        warn!(secret = secret_of(*role), "{warning}");
                    }
                }
                files => {
                    if let Some(files) = files {
                        ours.insert(*role, files.clone());
                    }
                }
            }
        }
        let stored = Stored {
            authority: authority.files.clone(),
            leaves: ours,
        };
        let renewal = renew(now, &stored).context("certificates cannot be renewed")?;
        for action in &renewal.actions {
            info!("certificates: {action}");
        }
        if let Some(files) = &renewal.changed.authority {
            self.kept(AUTHORITY, authority, files, None).await?;
        }
        for (role, files) in &renewal.changed.leaves {
            if let Some(before) = leaves
                .get(role)
                .filter(|kept| !kept.supplied || kept.files.is_none())
            {
                self.kept(secret_of(*role), before, files, None).await?;
            }
        }
        Ok(renewal
            .next_look
            .since(now)
            .clamp(Duration::from_secs(1), LOOK_MAX))
    }

    async fn keys(
        &self,
        rotator: &mut Rotator,
        told: &mut Vec<String>,
    ) -> anyhow::Result<Duration> {
        for _ in 0..STEPS_MAX {
            let kept = self.store.read(KEYS).await?;
            let empty = baton_push::Files::new();
            let keys =
                KeySet::from_files(kept.files.as_ref().unwrap_or(&empty)).with_context(|| {
                    format!("{KEYS} cannot be used: correct it, or delete it to have new keys made")
                })?;
            let ages = kept.ages.as_deref().map_or_else(Ages::default, |text| {
                Ages::from_text(text).unwrap_or_else(|error| {
                    warn!("{error}");
                    Ages::default()
                })
            });
            let peers = self.peers.all();
            let now = UnixSeconds::from(SystemTime::now());
            let request = kept.request.as_deref().filter(|text| !text.is_empty());
            let mut failed = false;
            // From the kernel, by way of the library that TLS uses.
            let mut random = |bytes: &mut [u8; 16]| {
                let provider = rustls::crypto::ring::default_provider();
                failed |= provider.secure_random.fill(bytes).is_err();
            };
            let step = rotator.step(
                now,
                keys.as_ref(),
                &ages,
                peers.as_deref(),
                request,
                &mut random,
            );
            anyhow::ensure!(!failed, "the kernel gives no random numbers for a key");
            let warnings: Vec<String> = step.warnings.iter().map(ToString::to_string).collect();
            if *told != warnings {
                for warning in &warnings {
                    warn!("adoption keys: {warning}");
                }
                *told = warnings;
            }
            let Some((keys, ages)) = step.change else {
                return Ok(step.look_again.clamp(Duration::from_secs(1), LOOK_MAX));
            };
            if let Some(action) = step.action {
                info!("adoption keys: {action}");
            }
            match self
                .kept(KEYS, &kept, &keys.to_files(), Some(&ages.to_text()))
                .await
            {
                Ok(()) | Err(KeepError::Conflict) => {}
                Err(KeepError::Other(error)) => return Err(error),
            }
        }
        Ok(RETRY)
    }

    async fn kept(
        &self,
        name: &str,
        before: &Kept,
        files: &baton_push::Files,
        ages: Option<&str>,
    ) -> Result<(), KeepError> {
        let result = self.store.write(name, before, files, ages).await;
        let word = match &result {
            Ok(()) => "written",
            Err(KeepError::Conflict) => "conflict",
            Err(KeepError::Other(_)) => "failed",
        };
        self.metrics
            .writes
            .with_label_values(&["secret", word])
            .inc();
        result
    }
}
