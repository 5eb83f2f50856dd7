//! The daemon's work without its loop: makes what is attached equal what is configured, and says what is.

use crate::{
    config::{Config, Pod},
    pods::{AdopterState, PodState},
};
use baton_adopter::{Adopter, AttachmentId, Counters, EPOCHS, Error, Hook, Outcome};
use serde::Serialize;
use std::{collections::BTreeMap, collections::HashSet, time::Instant};
use tracing::{info, warn};

/// The loaded adopter and the pods of the last good configuration.
#[derive(Debug)]
pub struct Shim {
    adopter: Adopter,
    pods: Vec<PodState>,
    started: Instant,
    swept: bool,
    /// Epochs of the configured keys, the one to sign with first.
    epochs: Vec<u8>,
    pub reloads: Reloads,
    attach_failures: u64,
}

/// How often the configuration was read again.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reloads {
    pub good: u64,
    pub refused: u64,
}

/// What `/v1/state` shows.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    pub version: &'static str,
    pub kernel: String,
    pub uptime_seconds: u64,
    /// Those that are live in the kernel, which keeps them modulo 16; with the configured number where there is one.
    pub key_epochs: Vec<u8>,
    /// The configured one that dataplanes sign with. Pods answer with the key of the question.
    pub signing_epoch: Option<u8>,
    pub config_reloads: u64,
    pub config_refusals: u64,
    pub attach_failures: u64,
    /// By outcome, all pods since the maps were made.
    pub adoption_segments: BTreeMap<&'static str, u64>,
    pub pods: Vec<PodView>,
}

/// One pod in [`State`].
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodView {
    pub name: String,
    pub netns: String,
    pub interface: String,
    pub attached: bool,
    /// `tcx` or `clsact`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hook: Option<&'static str>,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
    /// By outcome, since it was attached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adoption_segments: Option<BTreeMap<&'static str, u64>>,
}

impl Shim {
    /// Loads the adopter, or takes over the one that a predecessor left.
    pub fn start(config: &Config) -> Result<Self, Error> {
        let adopter = Adopter::load(Some(&config.pin))?;
        if !adopter.reused_maps().is_empty() {
            info!(maps = ?adopter.reused_maps(), "took over the maps of a predecessor");
        }
        if !adopter.replaced_maps().is_empty() {
            warn!(
                maps = ?adopter.replaced_maps(),
                "a predecessor's maps have another layout; they begin empty"
            );
        }
        let mut shim = Self {
            adopter,
            pods: Vec::new(),
            started: Instant::now(),
            swept: false,
            epochs: Vec::new(),
            reloads: Reloads::default(),
            attach_failures: 0,
        };
        shim.apply(config)?;
        Ok(shim)
    }

    /// Makes a configuration the current one. Keys first: an adopter without keys drops what it could adopt.
    pub fn apply(&mut self, config: &Config) -> Result<(), Error> {
        let wanted: HashSet<u8> = config.keys.iter().map(|k| k.epoch % EPOCHS).collect();
        for key in &config.keys {
            self.adopter.set_key(key.epoch, &key.key.0)?;
        }
        for epoch in self.adopter.live_epochs()? {
            if !wanted.contains(&epoch) {
                self.adopter.retire_key(epoch)?;
                info!(epoch, "key epoch retired");
            }
        }
        self.epochs = config.keys.iter().map(|k| k.epoch).collect();
        info!(epochs = ?self.epochs, "key epochs live");
        let keep = |pod: &Pod| config.pods.iter().any(|p| p == pod);
        let (kept, gone): (Vec<_>, Vec<_>) = std::mem::take(&mut self.pods)
            .into_iter()
            .partition(|state| keep(&state.pod));
        self.pods = kept;
        // A renamed pod keeps its interface: its adopter is not taken off in between.
        let moved: HashSet<_> = config
            .pods
            .iter()
            .map(|p| (p.netns.clone(), p.interface.clone()))
            .collect();
        for state in gone {
            if let AdopterState::Attached { attachment, .. } = state.adopter
                && !moved.contains(&(state.pod.netns.clone(), state.pod.interface.clone()))
            {
                info!(pod = state.pod.name, "detaching: no longer configured");
                if let Err(error) = self.adopter.detach(attachment) {
                    warn!(pod = state.pod.name, %error, "not detached");
                }
            }
        }
        for pod in &config.pods {
            if !self.pods.iter().any(|state| state.pod == *pod) {
                self.pods.push(PodState::new(pod.clone()));
            }
        }
        self.swept = false;
        self.attend(Instant::now());
        Ok(())
    }

    /// Attaches what is due, and notices interfaces and namespaces that went away or were made anew.
    pub fn attend(&mut self, now: Instant) {
        for state in &mut self.pods {
            let lost = is_lost(state);
            if lost {
                warn!(
                    pod = state.pod.name,
                    "its namespace or interface is gone or was made anew"
                );
                if let AdopterState::Attached { attachment, .. } =
                    std::mem::replace(&mut state.adopter, AdopterState::New)
                    && let Err(error) = self.adopter.detach(attachment)
                {
                    warn!(pod = state.pod.name, %error, "not detached");
                }
            }
            if !state.is_due(now) {
                continue;
            }
            // Asked first: if the name leads elsewhere in between, the next look finds out.
            let identity = state.pod.netns.identity().unwrap_or_default();
            match self.adopter.attach(&state.pod.netns, &state.pod.interface) {
                Ok(attachment) => {
                    info!(
                        pod = state.pod.name,
                        interface = state.pod.interface,
                        hook = attachment.id().hook.name(),
                        taken_over = attachment.taken_over(),
                        "attached"
                    );
                    state.adopter = AdopterState::Attached {
                        attachment,
                        identity,
                    };
                }
                Err(error) => {
                    self.attach_failures += 1;
                    if state.failed(&error, now) {
                        warn!(pod = state.pod.name, %error, "not attached; will be tried again");
                    }
                }
            }
        }
        if !self.swept {
            self.swept = self.sweep();
        }
    }

    /// Removes what a predecessor left and nobody wants. Waits while a pod's adopter may be among it: one that failed
    /// for another reason than that there is nothing to be on.
    fn sweep(&self) -> bool {
        let unsure =
            |state: &PodState| matches!(&state.adopter, AdopterState::Failed { absent: false, .. });
        if self.pods.iter().any(unsure) {
            return false;
        }
        let wanted: HashSet<AttachmentId> = self
            .pods
            .iter()
            .filter_map(|state| Some(state.attachment()?.id()))
            .collect();
        match self.adopter.pinned() {
            Ok(pinned) => {
                for id in pinned.into_iter().filter(|id| !wanted.contains(id)) {
                    info!(attachment = %id, "removing what a predecessor left");
                    if let Err(error) = self.adopter.detach_id(id) {
                        warn!(attachment = %id, %error, "not removed");
                    }
                }
                true
            }
            Err(error) => {
                warn!(%error, "cannot look for what a predecessor left");
                false
            }
        }
    }

    /// Takes the adopter off all pods and leaves nothing.
    pub fn stop(&mut self) -> Result<(), Error> {
        self.pods.clear();
        self.adopter.unpin_all()
    }

    /// The current state.
    pub fn state(&self) -> Result<State, Error> {
        let mut pods = Vec::new();
        for state in &self.pods {
            let attachment = state.attachment();
            let segments = attachment
                .map(|a| self.adopter.counters_of_cookie(a.id().netns))
                .transpose()?;
            let (reason, attempts) = match &state.adopter {
                AdopterState::Failed {
                    reason, attempts, ..
                } => (Some(reason.clone()), Some(*attempts)),
                _ => (None, None),
            };
            pods.push(PodView {
                name: state.pod.name.clone(),
                netns: state.pod.netns.path().display().to_string(),
                interface: state.pod.interface.clone(),
                attached: attachment.is_some(),
                hook: attachment.map(|a| a.id().hook.name()),
                reason,
                attempts,
                adoption_segments: segments.map(|c| by_name(&c)),
            });
        }
        Ok(State {
            version: env!("CARGO_PKG_VERSION"),
            kernel: baton_adopter::kernel::release(),
            uptime_seconds: self.started.elapsed().as_secs(),
            key_epochs: named(&self.adopter.live_epochs()?, &self.epochs),
            signing_epoch: self.epochs.first().copied(),
            config_reloads: self.reloads.good,
            config_refusals: self.reloads.refused,
            attach_failures: self.attach_failures,
            adoption_segments: by_name(&self.adopter.counters()?),
            pods,
        })
    }

    /// Pods that have the adopter, and all pods.
    pub fn attached(&self) -> (usize, usize) {
        let attached = self
            .pods
            .iter()
            .filter(|s| s.attachment().is_some())
            .count();
        (attached, self.pods.len())
    }
}

/// Live epochs, which are modulo 16, with the numbers that the configuration has for them.
fn named(live: &[u8], configured: &[u8]) -> Vec<u8> {
    let name = |live: &u8| configured.iter().find(|c| *c % EPOCHS == *live).copied();
    live.iter()
        .map(|live| name(live).unwrap_or(*live))
        .collect()
}

/// Whether a pod has an adopter on an interface that is gone, or that its name leads to no more.
fn is_lost(state: &PodState) -> bool {
    let AdopterState::Attached {
        attachment,
        identity,
    } = &state.adopter
    else {
        return false;
    };
    let pod = &state.pod;
    if !attachment.alive() || !pod.netns.identity().is_ok_and(|now| now == *identity) {
        return true;
    }
    // A link knows when its interface goes; a filter does not, and must be looked for, which takes two threads.
    attachment.id().hook == Hook::Clsact
        && !pod.netns.open().is_ok_and(|open| {
            open.ifindex(&pod.interface)
                .is_ok_and(|index| index == attachment.id().ifindex)
        })
}

fn by_name(counters: &Counters) -> BTreeMap<&'static str, u64> {
    counters
        .iter()
        .map(|(outcome, count): (Outcome, u64)| (outcome.name(), count))
        .collect()
}
