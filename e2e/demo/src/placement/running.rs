//! What a run is made of while it goes on: the bench, its load, what is counted and noted of it.
//!
//! Owns these forms. What happens in a run is `timeline`'s, and what comes of it `run`'s.

use super::cluster::Clusters;
use anyhow::{Context, Result};
use baton_api::Policy;
use baton_lab::{Dataplane, DataplaneConfig, FixedLoad, Lab, Load, LoadReport, Progress};
use std::{collections::BTreeMap, time::Duration};

/// The load's beginning, which no figure contains (but those of wrk).
pub const WARM_UP: Duration = Duration::from_millis(500);

/// What a dataplane counted.
#[derive(Clone, Debug, Default)]
pub struct Counted {
    /// Requests.
    pub requests: u64,
    /// Moves that were confirmed.
    pub moves: u64,
    /// Those that were taken back.
    pub rollbacks: u64,
    /// All, by cause.
    pub by_cause: BTreeMap<String, u64>,
}

impl Counted {
    /// Of the only policy, so far.
    pub fn of(dataplane: &Dataplane) -> Result<Self> {
        let state = dataplane.state()?;
        let policy = state.policies.first().context("no policy")?;
        Ok(Self {
            requests: policy.backends.iter().map(|b| b.requests_total).sum(),
            moves: policy.migrations_total,
            rollbacks: policy.rollbacks_total,
            by_cause: policy
                .moves_total
                .iter()
                .map(|(cause, ends)| (cause.clone(), ends.values().sum()))
                .collect(),
        })
    }

    /// Moves per request since `before`.
    pub fn share_since(&self, before: &Self) -> f64 {
        let requests = self.requests.saturating_sub(before.requests).max(1);
        self.moves.saturating_sub(before.moves) as f64 / requests as f64
    }
}

/// What a load saw in the measured time, of whichever client; errors are those of the whole load.
pub struct Seen {
    /// Its answers.
    pub report: LoadReport,
    /// Moves per request.
    pub moved_share: f64,
    /// What only this condition has.
    pub extra: BTreeMap<&'static str, f64>,
}

/// Everything that runs have in common.
pub struct Bench<'a> {
    /// The namespaces.
    pub lab: &'a Lab,
    /// The servers.
    pub clusters: &'a mut Clusters,
    /// Length of a measurement.
    pub length: Duration,
}

/// A running load of the lab's own client.
pub struct Running<'a> {
    /// The load.
    pub load: &'a Load<FixedLoad>,
    /// What serves it.
    pub dataplane: &'a mut Dataplane,
    /// Its configuration.
    pub config: DataplaneConfig,
    /// The policy with all pods.
    pub policy_of_all: Policy,
}

impl Running<'_> {
    /// The load's phases.
    pub fn progress(&self) -> &Progress {
        self.load.progress()
    }
}

/// What the timeline of a run noted.
#[derive(Debug)]
pub struct Marks {
    /// The phase of the load that is measured.
    pub phase: usize,
    /// Right responses in it.
    pub requests: u64,
    /// Its length.
    pub length: Duration,
    /// Moves per request in it.
    pub moved_share: f64,
    /// A phase that is looked at apart: its name and its number.
    pub beside: Vec<(&'static str, usize)>,
    /// What only this condition has.
    pub extra: BTreeMap<&'static str, f64>,
}

impl Marks {
    /// What the load's report comes to with them.
    pub fn seen(mut self, report: LoadReport) -> Result<Seen> {
        let phase = |n: usize| report.phases.get(n).copied().context("a phase without a request");
        for (name, number) in &self.beside {
            self.extra.insert(name, phase(*number)?.p99_us as f64);
        }
        let latency = phase(self.phase)?;
        Ok(Seen {
            report: LoadReport { requests: self.requests, elapsed: self.length, latency, ..report },
            moved_share: self.moved_share,
            extra: self.extra,
        })
    }
}
