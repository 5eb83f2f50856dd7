//! What `/v1/state` shows. Owns names and shape only.

use crate::{
    pods::{AdopterState, PodState},
    releases::{Decider, Figures},
    tracking::ConnTracking,
    transfers::{self, Mover},
};
use baton_adopter::{Counters, EPOCHS, Outcome};
use serde::Serialize;
use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
};

/// What `/v1/state` shows.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    pub version: &'static str,
    pub kernel: String,
    pub uptime_seconds: u64,
    /// Why no pod of this node can adopt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unable: Option<String>,
    /// Those that are live in the kernel, which keeps them modulo 16; with the number that they
    /// came with where it is known.
    pub key_epochs: Vec<u8>,
    /// The one that dataplanes sign with, where that is known. Pods answer with the key of the
    /// question.
    pub signing_epoch: Option<u8>,
    /// Whether the operator sends the keys, and not the configuration.
    pub takes_keys: bool,
    pub config_reloads: u64,
    pub config_refusals: u64,
    pub attach_failures: u64,
    /// Discovered pods that got the adopter from this process, by when that was: before the API
    /// server said that they run, within 100 ms of that, or later.
    pub attached: BTreeMap<&'static str, u64>,
    /// Whether the API server has told which pods shall have the adopter; nothing if nobody asks
    /// it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub discovered: Option<bool>,
    /// By outcome, all pods since the maps were made.
    pub adoption_segments: BTreeMap<&'static str, u64>,
    /// Of the node; nothing where the kernel tracks no connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conn_tracking: Option<ConnTracking>,
    pub releases: ReleasesView,
    pub transfers: TransfersView,
    pub pods: Vec<PodView>,
}

/// What became of the Releases that this process was asked for.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReleasesView {
    /// Why each is answered that the connection is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unable: Option<String>,
    /// By decision.
    pub decided: BTreeMap<&'static str, u64>,
    #[serde(skip)]
    pub figures: Option<Arc<Figures>>,
}

impl ReleasesView {
    pub fn new(releases: &Result<Decider, String>) -> Self {
        let figures = releases.as_ref().ok().map(|d| Arc::clone(&d.figures));
        Self {
            unable: releases.as_ref().err().cloned(),
            decided: figures.as_ref().map(|f| f.decided()).unwrap_or_default(),
            figures,
        }
    }
}

/// What became of the Transfers that this process was asked for.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TransfersView {
    /// Why each is answered that the connection is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unable: Option<String>,
    /// Applications that are connected.
    pub applications: u64,
    /// By how they ended.
    pub ended: BTreeMap<&'static str, u64>,
    /// Connections that other nodes offered, by what became of them.
    pub received: BTreeMap<&'static str, u64>,
    #[serde(skip)]
    pub figures: Option<Arc<transfers::Figures>>,
}

impl TransfersView {
    pub fn new(transfers: &Result<Mover, String>) -> Self {
        let figures = transfers.as_ref().ok().map(|m| Arc::clone(&m.figures));
        Self {
            unable: transfers.as_ref().err().cloned(),
            applications: figures.as_ref().map_or(0, |f| f.links.load(Ordering::Relaxed)),
            ended: figures.as_ref().map(|f| f.ended()).unwrap_or_default(),
            received: figures.as_ref().map(|f| f.received()).unwrap_or_default(),
            figures,
        }
    }
}

/// One pod in [`State`].
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodView {
    pub name: String,
    /// Nothing before it is found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub netns: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    pub attached: bool,
    /// It should have it.
    #[serde(skip)]
    pub wrong: bool,
    /// The API server has it no more, and its processes have not ended.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub gone: bool,
    /// `tcx` or `clsact`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hook: Option<&'static str>,
    /// Why not, or why it refuses adoptions there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
    /// `disabled`, or why it is not although that is wanted; nothing if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multipath_tcp: Option<String>,
    /// By outcome, since it was attached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adoption_segments: Option<BTreeMap<&'static str, u64>>,
}

impl PodView {
    /// With what it counted, if it has the adopter.
    pub fn new(state: &PodState, counters: Option<&Counters>) -> Self {
        let (reason, attempts) = match &state.adopter {
            AdopterState::Failed { reason, attempts, .. } => {
                (Some(reason.clone()), Some(*attempts))
            }
            AdopterState::Attached(attachment) => (attachment.refusal().map(str::to_owned), None),
            AdopterState::New => (None, None),
        };
        let place = state.place.as_ref();
        Self {
            name: state.name().to_owned(),
            netns: place.map(|p| p.netns.path().display().to_string()),
            interface: place.map(|p| p.interface.clone()),
            attached: state.attachment().is_some(),
            wrong: state.is_wrong(),
            gone: state.is_gone(),
            hook: state.attachment().map(|a| a.id().hook.name()),
            reason,
            attempts,
            multipath_tcp: state.multipath.as_ref().map(|it| match &it.done {
                Ok(()) => "disabled".to_owned(),
                Err(reason) => reason.clone(),
            }),
            adoption_segments: counters.map(by_name),
        }
    }
}

/// Live epochs, which are modulo 16, with the numbers that the configuration has for them.
pub fn named(live: &[u8], configured: &[u8]) -> Vec<u8> {
    let name = |live: &u8| configured.iter().find(|c| *c % EPOCHS == *live).copied();
    live.iter().map(|live| name(live).unwrap_or(*live)).collect()
}

/// Counters by the names of their outcomes.
pub fn by_name(counters: &Counters) -> BTreeMap<&'static str, u64> {
    counters.iter().map(|(outcome, count): (Outcome, u64)| (outcome.name(), count)).collect()
}
