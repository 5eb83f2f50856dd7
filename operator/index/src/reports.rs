//! What dataplanes say: how far each is, and what it counts.
//!
//! Owns the totals that never go down: each policy's are the sum of what its dataplanes' counters
//! grew by. A counter that became smaller began anew, with its process. What a dataplane counted
//! before the policy was known counts too.

use crate::{
    BackendTotals, Drained, Figures, Key, PolicyFigures, Report, ServicePort, Text, Totals,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// The clocks of a dataplane and of the operator are read at different moments, to whole seconds:
/// drains that began within this many seconds of each other are one.
const SAME_DRAIN_S: u64 = 2;

/// A dataplane, by its Pod.
#[derive(Debug, Default)]
pub(crate) struct DataplaneRecord {
    pub report: Option<Arc<Report>>,
    /// By name of the snapshot policy.
    pub figures: BTreeMap<Text, Counted>,
    pub at: Option<i64>,
    uptime: u64,
    /// How often it was heard.
    look: u64,
}

/// The last figures of a snapshot policy.
#[derive(Debug)]
pub(crate) struct Counted {
    /// The dataplane still says something of it.
    pub present: bool,
    /// When it was the last time said something of.
    look: u64,
    pub figures: PolicyFigures,
}

/// Dataplanes that have the ports of a policy with a frontend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Serving {
    /// These, by the names of the Service.
    pub ports: Vec<ServicePort>,
    pub pods: BTreeSet<Key>,
}

/// Totals of one policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub totals: Totals,
    pub drained: Drained,
    /// By names of the snapshot policy and the backend.
    pub backends: BTreeMap<(Text, Text), BackendTotals>,
}

impl DataplaneRecord {
    /// Takes new figures in. Gives the names whose figures are not what they were; `grown` is told
    /// of each what it was before.
    pub fn count(
        &mut self,
        figures: Option<Figures>,
        is_known: impl Fn(&str) -> bool,
        mut grown: impl FnMut(&Text, Option<&PolicyFigures>, &PolicyFigures),
    ) -> Vec<Text> {
        let mut changed = Vec::new();
        let restarted = figures.as_ref().is_some_and(|new| new.uptime < self.uptime);
        self.at = figures.as_ref().map(|new| new.at);
        self.uptime = figures.as_ref().map_or(self.uptime, |new| new.uptime);
        let at = self.at.unwrap_or_default();
        self.look += 1;
        let look = self.look;
        for mut new in figures.into_iter().flat_map(|f| f.policies) {
            let Some(old) = self.figures.get_mut(&new.name) else {
                grown(&new.name, None, &new);
                changed.push(new.name.clone());
                let name = new.name.clone();
                let counted = Counted { present: true, look, figures: new };
                self.figures.insert(name, counted);
                continue;
            };
            old.look = look;
            if !restarted {
                settle_drains(&old.figures, &mut new, at);
            }
            // What is as it was stays where it is.
            if !old.present || old.figures != new {
                let from = (!restarted).then_some(&old.figures);
                grown(&new.name, from, &new);
                changed.push(new.name.clone());
                old.present = true;
                old.figures = new;
            }
        }
        // What it says nothing of any more: its counters may come back, unless the process is
        // another one.
        self.figures.retain(|name, counted| {
            if counted.look == look {
                return true;
            }
            if counted.present {
                changed.push(name.clone());
            }
            counted.present = false;
            !restarted && is_known(name)
        });
        changed
    }

    /// Lets go of what nobody asks for any more.
    pub fn forget(&mut self, name: &str) {
        if self.figures.get(name).is_some_and(|counted| !counted.present) {
            self.figures.remove(name);
        }
    }

    /// The newest revision that it has.
    pub fn acknowledged(&self) -> u64 {
        let report = self.report.as_ref();
        report.and_then(|r| r.acknowledged).unwrap_or_default()
    }

    /// Its refusal of something newer than what it has.
    pub fn refusal(&self) -> Option<(u64, &Text)> {
        let (revision, words) = self.report.as_ref()?.refused.as_ref()?;
        (*revision > self.acknowledged()).then_some((*revision, words))
    }

    /// Policies of what it has that it cannot take, by name of the snapshot policy, and why.
    pub fn refused_policies(&self) -> impl Iterator<Item = (&Text, &Text)> {
        self.report.iter().flat_map(|r| &r.refused_policies)
    }

    /// Why it cannot be reached.
    pub fn unreachable(&self) -> Option<&Text> {
        self.report.as_ref()?.unreachable.as_ref()
    }
}

/// The times of a drain that goes on do not waver, and its figures do not go down.
fn settle_drains(old: &PolicyFigures, new: &mut PolicyFigures, at: i64) {
    for backend in &mut new.backends {
        let Some(drain) = &mut backend.drain else {
            continue;
        };
        let was = old.backends.iter().find(|b| b.name == backend.name);
        let Some(was) = was.and_then(|b| b.drain.as_ref()) else {
            continue;
        };
        if was.since.abs_diff(drain.since) > SAME_DRAIN_S {
            continue;
        }
        drain.since = was.since;
        // What is left of a deadline that has passed is 0, whenever that was.
        let passed = was.until <= at && drain.until <= at;
        if passed || was.until.abs_diff(drain.until) <= SAME_DRAIN_S {
            drain.until = was.until;
        }
        drain.moved = drain.moved.max(was.moved);
        drain.ended = drain.ended.max(was.ended);
        drain.closed = drain.closed.max(was.closed);
    }
}

fn growth(old: u64, new: u64) -> u64 {
    new.checked_sub(old).unwrap_or(new)
}

impl Sums {
    /// Adds what one dataplane's counters grew by.
    pub fn add(&mut self, name: &Text, old: Option<&PolicyFigures>, new: &PolicyFigures) {
        let zero = PolicyFigures::default();
        let old = old.unwrap_or(&zero);
        let (sum, was, is) = (&mut self.totals, &old.totals, &new.totals);
        sum.flows += growth(was.flows, is.flows);
        sum.migrations += growth(was.migrations, is.migrations);
        sum.rollbacks += growth(was.rollbacks, is.rollbacks);
        sum.rescues += growth(was.rescues, is.rescues);
        sum.replays += growth(was.replays, is.replays);
        sum.lost += growth(was.lost, is.lost);
        for backend in &new.backends {
            let was = old.backends.iter().find(|b| b.name == backend.name);
            self.add_backend(name, was, backend);
        }
    }

    fn add_backend(
        &mut self,
        name: &Text,
        old: Option<&crate::BackendFigures>,
        new: &crate::BackendFigures,
    ) {
        let was = old.map(|b| b.totals).unwrap_or_default();
        let is = new.totals;
        if is != was || is != BackendTotals::default() {
            let key = (name.clone(), new.name.clone());
            let sum = self.backends.entry(key).or_default();
            sum.requests += growth(was.requests, is.requests);
            sum.migrations_in += growth(was.migrations_in, is.migrations_in);
            sum.migrations_out += growth(was.migrations_out, is.migrations_out);
            sum.rescued += growth(was.rescued, is.rescued);
        }
        let Some(drain) = &new.drain else { return };
        let was = old.and_then(|b| b.drain.as_ref());
        // Another drain of the same backend counts from 0.
        let was = was.filter(|was| was.since == drain.since);
        let was = was.map_or((0, 0, 0), |d| (d.moved, d.ended, d.closed));
        self.drained.moved += growth(was.0, drain.moved);
        self.drained.ended += growth(was.1, drain.ended);
        self.drained.closed += growth(was.2, drain.closed);
    }
}
