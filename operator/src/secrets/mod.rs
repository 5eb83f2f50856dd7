//! Certificates and adoption keys: reads what is kept, has the plans of `baton-push` carried out,
//! keeps what comes of it.
//!
//! Owns when that is done and in which Secret each part is. Only a leader makes anything. Never
//! logs a content.

mod notices;
pub mod store;
#[cfg(test)]
pub mod tests;

use crate::notice::{About, Notice};
use crate::{
    connect::Connector,
    leader::Leadership,
    metrics::{HOLDERS, Metrics},
    outbox::Outbox,
    peers::Peers,
};
use anyhow::Context as _;
use baton_index::Key;
use baton_push::{
    Files, SPANS, UnixSeconds,
    certificates::{Action, Role, Stored, check_supplied, end, renew},
    keys::{self, Ages, KeySet, RotationSettings, Rotator},
};
use notices::Notices;
use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime},
};
use store::{KeepError, Kept, Owned, Store};
use tokio::{sync::watch, time::sleep};
use tracing::{
    Instrument as _, Span, error,
    field::{Empty, display},
    info, trace_span, warn,
};

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
    /// Gets the keys that are stored, for host-shims.
    pub live_keys: Arc<watch::Sender<Option<Arc<keys::Stored>>>>,
    /// How long adoption keys rest before they are signed with and before they are removed.
    pub key_rest: Duration,
    /// Gets the notices for people.
    pub outbox: Arc<Outbox>,
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
        let mut notices = Notices::default();
        loop {
            let leads = self.leadership.borrow_and_update().epoch().is_some();
            let mut leadership = self.leadership.clone();
            // What is under way when the Lease is lost is dropped.
            let pause = tokio::select! {
                pause = self.turn(leads, &mut rotator, &mut notices) => pause,
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
    async fn turn(&self, leads: bool, rotator: &mut Rotator, notices: &mut Notices) -> Duration {
        let mut pause = LOOK_MAX.min(self.key_rest);
        let certificates = if leads {
            self.certificates().await
        } else {
            // To be ready for a term.
            self.own_certificate().await.map(|()| LOOK_MAX)
        };
        pause = pause.min(self.outcome("certificates", AUTHORITY, certificates, notices));
        if !leads {
            // Who leads tells them, and sees them change.
            self.metrics.certificate_ends.reset();
            self.metrics.key_since.set(0);
            self.metrics.key_epochs.set(0);
            self.live_keys.send_replace(None);
        }
        if leads {
            let keys = self.keys(rotator, notices).await;
            pause = pause.min(self.outcome("adoption-keys", KEYS, keys, notices));
        }
        pause
    }

    fn outcome(
        &self,
        what: &'static str,
        secret: &str,
        outcome: anyhow::Result<Duration>,
        notices: &mut Notices,
    ) -> Duration {
        match outcome {
            Ok(pause) => {
                notices.works(what);
                pause
            }
            Err(error) => {
                let words = format!("{error:#}");
                if notices.fails(what, &words) {
                    self.tell(secret, None, true, "KeepingFailed", words);
                }
                self.metrics.writes.with_label_values(&[what, "failed"]).inc();
                error!("{what}: {error:#}");
                RETRY
            }
        }
    }

    /// Reads one, once it is owned as it should be. Where that is not allowed, it is used all the
    /// same.
    async fn read_owned(&self, name: &'static str) -> anyhow::Result<Kept> {
        let kept = self.store.read(name).await?;
        let owned = self.store.own(name, &kept).await?;
        let word = match &owned {
            Owned::AsItIs => return Ok(kept),
            Owned::Changed => "written",
            Owned::Refused(_) => "failed",
        };
        self.metrics.writes.with_label_values(&["secret-owner", word]).inc();
        if let Owned::Refused(said) = owned {
            warn!(
                secret = name,
                error = said,
                "its owner may not be changed: delete it by hand when Baton is removed, or now, to have it made anew"
            );
            return Ok(kept);
        }
        self.store.read(name).await
    }

    async fn own_certificate(&self) -> anyhow::Result<()> {
        let kept = self.store.read(secret_of(Role::Operator)).await?;
        if let Some(files) = &kept.files {
            self.connector.replace(files).context("the operator's certificate cannot be used")?;
        }
        Ok(())
    }

    async fn certificates(&self) -> anyhow::Result<Duration> {
        for _ in 0..STEPS_MAX {
            let authority = self.read_owned(AUTHORITY).await?;
            let mut leaves = BTreeMap::new();
            for role in Role::ALL {
                leaves.insert(role, self.read_owned(secret_of(role)).await?);
            }
            self.show_ends(&authority, &leaves);
            match self.renewed(&authority, &leaves).await {
                Err(KeepError::Conflict) => {}
                Err(KeepError::Other(error)) => {
                    // What is wrong with another Secret is no reason to work with no certificate.
                    self.own_certificate().await?;
                    return Err(error);
                }
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

    /// Shows until when certificates are good. One that cannot be read has no end, and is told of
    /// elsewhere.
    fn show_ends(&self, authority: &Kept, leaves: &BTreeMap<Role, Kept>) {
        self.metrics.certificate_ends.reset();
        let leaves = Role::ALL.iter().map(|role| leaves.get(role));
        let all = std::iter::once(Some(authority)).chain(leaves);
        for (holder, kept) in HOLDERS.into_iter().zip(all) {
            if let Some(end) = kept.and_then(|kept| kept.files.as_ref()).and_then(end) {
                let gauge = self.metrics.certificate_ends.with_label_values(&[holder]);
                gauge.set(end.0);
            }
        }
    }

    async fn renewed(
        &self,
        authority: &Kept,
        leaves: &BTreeMap<Role, Kept>,
    ) -> Result<Duration, KeepError> {
        let now = UnixSeconds::from(SystemTime::now());
        let mut ours = BTreeMap::new();
        // One that cannot be used keeps no other from being made; it is told when they are.
        let mut unusable = None;
        for (role, kept) in leaves {
            match &kept.files {
                Some(files) if kept.supplied => {
                    let checked = check_supplied(now, *role, files)
                        .with_context(|| format!("the Secret {} is an admin's", secret_of(*role)));
                    match checked {
                        Ok(warnings) => {
                            for warning in warnings {
                                warn!(secret = secret_of(*role), "{warning}");
                            }
                        }
                        Err(problem) => {
                            unusable.get_or_insert(problem);
                        }
                    }
                }
                files => {
                    if let Some(files) = files {
                        ours.insert(*role, files.clone());
                    }
                }
            }
        }
        let stored = Stored { authority: authority.files.clone(), leaves: ours };
        let renewal = renew(now, &stored).context("certificates cannot be renewed")?;
        for action in &renewal.actions {
            info!("certificates: {action}");
        }
        if let Some(files) = &renewal.changed.authority {
            self.renew(AUTHORITY, authority, files, &renewal.actions).await?;
        }
        for (role, files) in &renewal.changed.leaves {
            if let Some(before) =
                leaves.get(role).filter(|kept| !kept.supplied || kept.files.is_none())
            {
                let name = secret_of(*role);
                self.renew(name, before, files, &renewal.actions).await?;
            }
        }
        match unusable {
            Some(problem) => Err(problem.into()),
            None => Ok(renewal.next_look.since(now).clamp(Duration::from_secs(1), LOOK_MAX)),
        }
    }

    /// Keeps new certificates, and tells what was done to this Secret.
    async fn renew(
        &self,
        name: &'static str,
        before: &Kept,
        files: &Files,
        actions: &[Action],
    ) -> Result<(), KeepError> {
        let mine = |action: &&Action| notices::secret(action).map_or(AUTHORITY, secret_of) == name;
        let actions: Vec<&Action> = actions.iter().filter(mine).collect();
        let words: Vec<String> = actions.iter().map(ToString::to_string).collect();
        let span = trace_span!(
            target: SPANS, "rotation", secret = name, action = words.join("; "), outcome = Empty
        );
        let keeping = self.kept(name, before, files, None);
        let uid = keeping.instrument(span).await?;
        for action in actions {
            let reason = notices::renewal(action);
            self.tell(name, uid.clone(), false, reason, action.to_string());
        }
        Ok(())
    }

    /// Has people told what is the matter with a Secret.
    fn tell(
        &self,
        name: &str,
        uid: Option<String>,
        warning: bool,
        reason: &'static str,
        message: String,
    ) {
        let key = Key::new(self.store.namespace(), name);
        self.outbox.notice(Notice { about: About::Secret { key, uid }, warning, reason, message });
    }

    async fn keys(&self, rotator: &mut Rotator, notices: &mut Notices) -> anyhow::Result<Duration> {
        for _ in 0..STEPS_MAX {
            let kept = self.read_owned(KEYS).await?;
            let empty = Files::new();
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
            // Only what is stored is sent to anybody.
            let stored = keys
                .clone()
                .map(|keys| keys::Stored { keys, excluded: kept.wishes.excluded.clone() });
            self.live_keys.send_if_modified(|live| {
                let changes = live.as_deref() != stored.as_ref();
                if changes {
                    *live = stored.map(Arc::new);
                }
                changes
            });
            if let Some(keys) = &keys {
                // Ages that are lost count from now on, which is when they are written again.
                let since = ages.current_since.map_or(0, |since| since.0);
                self.metrics.key_since.set(since);
                let epochs = i64::try_from(keys.epochs().len()).unwrap_or(i64::MAX);
                self.metrics.key_epochs.set(epochs);
            }
            let peers = self.peers.all();
            let now = UnixSeconds::from(SystemTime::now());
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
                &kept.wishes,
                &mut random,
            );
            anyhow::ensure!(!failed, "the kernel gives no random numbers for a key");
            for warning in notices.news(step.warnings) {
                let reason = notices::warning(&warning);
                let words = warning.to_string();
                warn!("{words}");
                self.tell(KEYS, kept.uid.clone(), true, reason, words);
            }
            let Some((keys, ages)) = step.change else {
                return Ok(step.look_again.clamp(Duration::from_secs(1), LOOK_MAX));
            };
            if let Some(action) = step.action {
                info!("adoption keys: {action}");
            }
            let span = trace_span!(
                target: SPANS, "rotation", secret = KEYS, state = %step.state, action = Empty, outcome = Empty,
                epoch = i64::from(keys.current())
            );
            if let Some(action) = step.action {
                span.record("action", display(action));
            }
            let text = ages.to_text();
            let files = keys.to_files();
            let keeping = self.kept(KEYS, &kept, &files, Some(&text));
            match keeping.instrument(span).await {
                Ok(uid) => {
                    if let Some(action) = step.action {
                        let words = notices::rotation(action, &keys);
                        self.tell(KEYS, uid, false, words.0, words.1);
                    }
                }
                Err(KeepError::Conflict) => {}
                Err(KeepError::Other(error)) => return Err(error),
            }
        }
        Ok(RETRY)
    }

    async fn kept(
        &self,
        name: &str,
        before: &Kept,
        files: &Files,
        ages: Option<&str>,
    ) -> Result<Option<String>, KeepError> {
        let result = self.store.write(name, before, files, ages).await;
        let word = match &result {
            Ok(_) => "written",
            Err(KeepError::Conflict) => "conflict",
            Err(KeepError::Other(_)) => "failed",
        };
        self.metrics.writes.with_label_values(&["secret", word]).inc();
        Span::current().record("outcome", word);
        result
    }
}
