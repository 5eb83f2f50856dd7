//! One policy's figures over all dataplanes of its classes.
//!
//! Owns the adding up of what is true at this moment; totals are kept elsewhere.

use crate::{
    BackendFigures, BackendState, BackendVerdict, Drain, Drained, Index, Key, Movable, Text,
    backends::Detail,
    cost::{COST_MAX, cost},
    index::PolicyRecord,
    movable::movable,
    reports::DataplaneRecord,
    standing::snapshot_name,
    translate::Listening,
};
use std::collections::BTreeMap;

/// The figures of a policy at this moment.
#[derive(Debug, Default)]
pub(crate) struct Present {
    pub flows: u64,
    /// Those that can move.
    pub movable: Movable,
    /// Those that can never move, by reason.
    pub pinned: BTreeMap<Text, u64>,
    pub at: Option<i64>,
    /// Listeners for which a dataplane says that it uses all backends, because too few are usable.
    pub panic: Vec<Text>,
    pub backends: Vec<Measured>,
    pub drains: Vec<Drain>,
    /// Costs of the Pods, if the policy asks for them; nothing where dataplanes have not said yet.
    pub costs: BTreeMap<Text, Option<u64>>,
    /// Each dataplane has said what it does.
    pub is_all: bool,
}

/// One backend.
#[derive(Debug)]
pub(crate) struct Measured {
    pub verdict: BackendVerdict,
    pub detail: Detail,
    /// A dataplane has asked whether flows can move to it.
    pub probed: bool,
}

/// Adds up.
pub(crate) fn present(index: &Index, key: &Key, record: &PolicyRecord) -> Present {
    let mut out = Present::default();
    let classes = record.staged.iter().filter_map(|name| index.classes.get(name));
    let members: Vec<_> = classes
        .flat_map(|class| class.members.keys())
        .map(|pod| index.dataplanes.get(pod))
        .collect();
    let said = |record: &Option<&DataplaneRecord>| record.is_some_and(|d| d.at.is_some());
    out.is_all = !members.is_empty() && members.iter().all(said);
    // Who cannot be reached may not say anything for long.
    let silent = |d: &DataplaneRecord| d.unreachable().is_some();
    let costs_known =
        members.iter().any(said) && members.iter().all(|d| said(d) || d.is_some_and(silent));
    let dataplanes: Vec<&DataplaneRecord> = members.into_iter().flatten().collect();
    let listeners = record.served.listeners.iter();
    for name in listeners.filter_map(|l| record.names.get(&*snapshot_name(key, l))) {
        let said = dataplanes.iter().filter_map(|d| d.figures.get(name).filter(|c| c.present));
        for figures in said.map(|counted| &counted.figures) {
            out.flows += figures.flows;
            for (reason, flows) in &figures.pinned {
                *out.pinned.entry(reason.clone()).or_default() += flows;
            }
        }
    }
    out.at = dataplanes.iter().filter_map(|d| d.at).max();
    let listeners = record.translation.iter().flat_map(|t| &t.listeners);
    for listening in listeners {
        listener(record, listening, &dataplanes, &mut out);
    }
    if !costs_known {
        out.costs.values_mut().for_each(|cost| *cost = None);
    }
    out
}

fn listener(
    record: &PolicyRecord,
    listening: &Listening,
    dataplanes: &[&DataplaneRecord],
    out: &mut Present,
) {
    let said = dataplanes.iter().filter_map(|d| d.figures.get(&listening.name));
    let said: Vec<_> = said.filter(|counted| counted.present).map(|c| &c.figures).collect();
    if said.iter().any(|figures| figures.panic) {
        out.panic.push(listening.listener.clone());
    }
    let by_name: Vec<BTreeMap<&str, &BackendFigures>> = said
        .iter()
        .map(|figures| figures.backends.iter().map(|b| (&*b.name, b)).collect())
        .collect();
    let first = out.backends.len();
    for (backend, detail) in listening.policy.backends.iter().zip(&listening.details) {
        let figures: Vec<&BackendFigures> =
            by_name.iter().filter_map(|said| said.get(&*detail.name).copied()).collect();
        let totals = record.sums.backends.get(&(listening.name.clone(), detail.name.clone()));
        let unadoptable = figures.iter().filter(|f| f.probed).find_map(|f| f.unadoptable.clone());
        out.backends.push(Measured {
            verdict: BackendVerdict {
                listener: listening.listener.clone(),
                name: detail.name.clone(),
                endpoint: backend.endpoint,
                state: detail.state,
                weight: backend.weight,
                flows: figures.iter().map(|f| f.flows).sum(),
                pinned: figures.iter().map(|f| f.pinned).sum(),
                outstanding: figures.iter().map(|f| f.outstanding).sum(),
                totals: totals.copied().unwrap_or_default(),
                unadoptable,
                untranslatable: figures.iter().find_map(|f| f.untranslatable.clone()),
                unusable: figures.iter().find_map(|f| f.unusable.clone()),
            },
            detail: detail.clone(),
            probed: figures.iter().any(|f| f.probed),
        });
        out.drains.extend(drain(listening, detail, &figures));
        if record.served.deletion_cost
            && let Some(pod) = &detail.pod
        {
            let sum = figures.iter().map(|f| cost(f)).fold(0, u64::saturating_add);
            let share = out.costs.entry(pod.clone()).or_default();
            *share = Some(share.unwrap_or_default().saturating_add(sum).min(COST_MAX));
        }
    }
    let movable =
        movable(&listening.policy, out.backends[first..].iter().map(|b| (&b.verdict, b.probed)));
    out.movable.by_adoption += movable.by_adoption;
    out.movable.by_translation += movable.by_translation;
}

fn drain(listening: &Listening, detail: &Detail, figures: &[&BackendFigures]) -> Option<Drain> {
    // A drain by command shows too, on a backend that the snapshot has as ready.
    let drains: Vec<_> = figures.iter().filter_map(|f| f.drain.as_ref()).collect();
    let since = drains.iter().map(|d| d.since).min()?;
    let until = drains.iter().map(|d| d.until).max()?;
    let mut waiting: BTreeMap<Text, u64> = BTreeMap::new();
    for (why, count) in drains.iter().flat_map(|d| &d.waiting) {
        *waiting.entry(why.clone()).or_default() += count;
    }
    Some(Drain {
        listener: listening.listener.clone(),
        backend: detail.name.clone(),
        drained: Drained {
            moved: drains.iter().map(|d| d.moved).sum(),
            ended: drains.iter().map(|d| d.ended).sum(),
            closed: drains.iter().map(|d| d.closed).sum(),
        },
        waiting,
        since,
        until,
    })
}

/// Whether flows should be able to move to it.
pub(crate) fn is_wanted(measured: &Measured) -> bool {
    measured.verdict.state != BackendState::Draining
}
