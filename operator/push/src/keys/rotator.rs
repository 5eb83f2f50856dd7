//! The next step of a rotation, from what is stored and what everybody reports.
//!
//! Owns which events of the table are the case. Stores nothing and asks nobody.

use super::{
    AdoptionKey, Ages, KeySet,
    set::alike,
    table::{Action, Event, State, transition},
};
use crate::UnixSeconds;
use std::{collections::BTreeSet, fmt, time::Duration};

/// Names in one warning.
const NAMES_MAX: usize = 20;
/// Looked at again after this long at the latest while others are waited for: their reports come
/// about as often.
const LOOK_WAITING: Duration = Duration::from_secs(5);
/// Looked at again after this long at the latest, so that a clock that was set shows.
const LOOK_MAX: Duration = Duration::from_secs(3_600);

/// How fast keys are exchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RotationSettings {
    /// Life of a key as the current one.
    pub period: Duration,
    /// A new key is not signed with before: pods that are being created may have mounted the Secret
    /// as it was.
    pub spread: Duration,
    /// A key is not removed before everybody signed with the next for this long: adoptions are
    /// repeated for seconds, and flows without a pod wait for 10 s.
    pub grace: Duration,
    /// Who is unreachable longer is passed over, and named in a warning.
    pub unreachable_limit: Duration,
    /// So is who answers, but does not follow a step for this long: it may lie, and a rotation is
    /// the answer to a key that somebody else knows. Long enough for people to repair what is at
    /// fault.
    pub lagging_limit: Duration,
}

impl Default for RotationSettings {
    fn default() -> Self {
        Self {
            period: Duration::from_secs(30 * 24 * 3_600),
            spread: Duration::from_secs(120),
            grace: Duration::from_secs(120),
            unreachable_limit: Duration::from_secs(3_600),
            lagging_limit: Duration::from_secs(6 * 3_600),
        }
    }
}

/// Who uses keys for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerKind {
    /// Signs adoptions.
    Dataplane,
    /// Verifies them.
    Shim,
}

/// One dataplane or shim, as it was reported last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Of its pod or node.
    pub name: String,
    /// What it is.
    pub kind: PeerKind,
    /// Epochs that it has; those of a shim are modulo 16. Empty if it never reported.
    pub live: Vec<u8>,
    /// With which it signs.
    pub signs_with: Option<u8>,
    /// It does not answer since then; none if it does. Who never answered: since it is known.
    pub unreachable_since: Option<UnixSeconds>,
    /// The node that it is on, if that is known.
    pub node: Option<String>,
}

/// What an admin asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// Any text, which is changed to have keys rotated now.
    pub rotate: Option<String>,
    /// Nodes that are to have no key from now on.
    pub excluded: BTreeSet<String>,
}

impl Wishes {
    fn excludes(&self, peer: &Peer) -> bool {
        let node = peer.node.as_ref();
        node.is_some_and(|node| self.excluded.contains(node))
    }
}

impl Peer {
    /// One that has not said anything yet.
    #[must_use]
    pub fn unheard(name: impl Into<String>, kind: PeerKind, node: Option<String>) -> Self {
        Self {
            name: name.into(),
            kind,
            live: Vec::new(),
            signs_with: None,
            unreachable_since: None,
            node,
        }
    }

    /// A dataplane that answered: the first of its epochs is the one that it signs with.
    #[must_use]
    pub fn from_state(name: impl Into<String>, state: &baton_api::State) -> Self {
        Self {
            live: state.worker.key_epochs.clone(),
            signs_with: state.worker.key_epochs.first().copied(),
            ..Self::unheard(name, PeerKind::Dataplane, None)
        }
    }

    /// A shim that answered.
    #[must_use]
    pub fn from_shim(name: impl Into<String>, key_epochs: Vec<u8>) -> Self {
        Self { live: key_epochs, ..Self::unheard(name, PeerKind::Shim, None) }
    }

    fn has(&self, epoch: u8) -> bool {
        self.live.iter().any(|live| alike(*live, epoch))
    }

    /// Why its key set is not `epoch` yet, if so.
    fn lacks(&self, epoch: u8) -> Option<String> {
        let Self { name, live, .. } = self;
        (!self.has(epoch))
            .then(|| format!("{name} has no key of epoch {epoch} yet (it has {live:?})"))
    }

    /// Why it does not go by `epoch` alone yet, if so.
    fn goes_by_another(&self, epoch: u8) -> Option<String> {
        let signs = self.signs_with.is_some_and(|signs| alike(signs, epoch));
        match (self.kind, self.signs_with) {
            (PeerKind::Shim, _) => self.lacks(epoch),
            (PeerKind::Dataplane, _) if signs => None,
            (PeerKind::Dataplane, Some(other)) => {
                Some(format!("{} signs with epoch {other} still", self.name))
            }
            (PeerKind::Dataplane, None) => Some(format!("{} signs with no key yet", self.name)),
        }
    }
}

/// Something that the admin should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Warning {
    /// These were not waited for, because they did not answer, or not as they should, for too long.
    /// Until they have the stored keys, no flow moves there.
    PassedOver {
        /// The step that was not held up.
        action: Action,
        /// Their names.
        names: Vec<String>,
    },
    /// These nodes have no key and are not waited for, because an admin says so.
    Excluded {
        /// Each, and what is the matter with it.
        nodes: Vec<String>,
    },
    /// These answer, but hold the rotation up for too long.
    Stuck {
        /// Each with what it lacks.
        reasons: Vec<String>,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, items: &[String]| {
            f.write_str(&items[..items.len().min(NAMES_MAX)].join(", "))?;
            match items.len().saturating_sub(NAMES_MAX) {
                0 => Ok(()),
                more => write!(f, " and {more} more"),
            }
        };
        match self {
            Self::PassedOver { action, names } => {
                write!(f, "adoption keys: {action} did not wait for ")?;
                list(f, names)?;
                f.write_str(", which did not answer, or did not follow, for too long: no flow moves there until they have the stored keys")
            }
            Self::Excluded { nodes } => {
                f.write_str("adoption keys: no key is sent to these excluded nodes, and no flow moves there: ")?;
                list(f, nodes)
            }
            Self::Stuck { reasons } => {
                f.write_str("adoption keys: the rotation waits for too long: ")?;
                list(f, reasons)?;
                f.write_str("; see whether a dataplane has the Secret mounted and says `keys: {directory: ..}`, and a host-shim has no `keys` and is reached")
            }
        }
    }
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Of what was stored.
    pub state: State,
    /// What was done to it; none if only ages were completed, or nothing changed.
    pub action: Option<Action>,
    /// To be stored, both together, if it is there. Store it only if nobody else changed what is
    /// stored, then step again.
    pub change: Option<(KeySet, Ages)>,
    /// For the log and Events.
    pub warnings: Vec<Warning>,
    /// Who is waited for, each with what it lacks.
    pub waiting_for: Vec<String>,
    /// Step again after this long, or when reports or the stored keys change.
    pub look_again: Duration,
}

/// Decides steps. Remembers only since when all sign with the current key, which an operator that
/// starts counts anew.
#[derive(Clone, Debug)]
pub struct Rotator {
    settings: RotationSettings,
    /// With which epoch, and since when.
    all_sign: Option<(u8, UnixSeconds)>,
}

impl Rotator {
    /// Knows nothing yet.
    #[must_use]
    pub fn new(settings: RotationSettings) -> Self {
        Self { settings, all_sign: None }
    }

    /// One step at most. `peers` is none until all dataplanes and shims are known; `rng` must be
    /// good enough for secrets.
    pub fn step(
        &mut self,
        now: UnixSeconds,
        stored: Option<&KeySet>,
        ages: &Ages,
        peers: Option<&[Peer]>,
        wishes: &Wishes,
        rng: &mut dyn FnMut(&mut [u8; 16]),
    ) -> Step {
        let state = State::of(stored);
        let mut step = Step {
            state,
            action: None,
            change: None,
            warnings: excluded(peers, wishes).into_iter().collect(),
            waiting_for: Vec::new(),
            look_again: LOOK_MAX,
        };
        let Some(keys) = stored else {
            let epoch = unused_epoch(peers.unwrap_or_default());
            let keys = KeySet::first(epoch, AdoptionKey::random(rng));
            let mut ages = completed(&Ages::default(), &keys, now);
            // A key that is new is no answer to an older request, but there is nothing older to
            // replace.
            ages.served.clone_from(&wishes.rotate);
            ages.excluded.clone_from(&wishes.excluded);
            step.action = transition(state, Event::Missing).map(|row| row.action);
            step.change = Some((keys, ages));
            step.look_again = Duration::ZERO;
            return step;
        };
        let mut known = completed(ages, keys, now);
        // Who was let in again and is excluded once more has had keys in between.
        known.excluded.retain(|node| wishes.excluded.contains(node));
        for event in Event::ALL {
            let Some(row) = transition(state, event) else {
                continue;
            };
            let Some(passed_over) =
                self.is_case(event, now, keys, &known, peers, wishes, &mut step)
            else {
                continue;
            };
            if !passed_over.is_empty() {
                step.warnings.push(Warning::PassedOver { action: row.action, names: passed_over });
            }
            let (mut keys, mut ages) = (keys.clone(), known.clone());
            self.act(row.action, now, &mut keys, &mut ages, wishes, rng);
            debug_assert_eq!(State::of(Some(&keys)), row.next);
            step.action = Some(row.action);
            step.change = Some((keys, ages));
            step.look_again = Duration::ZERO;
            return step;
        }
        if known != *ages {
            step.change = Some((keys.clone(), known));
        }
        step
    }

    /// If `event` is the case, the names of those who were passed over; else the step says who is
    /// waited for, and how long.
    #[expect(clippy::too_many_arguments, reason = "the arguments of `step`")]
    fn is_case(
        &mut self,
        event: Event,
        now: UnixSeconds,
        keys: &KeySet,
        ages: &Ages,
        peers: Option<&[Peer]>,
        wishes: &Wishes,
        step: &mut Step,
    ) -> Option<Vec<String>> {
        let since = ages.current_since.unwrap_or(now);
        match event {
            Event::Missing => None,
            Event::Due => {
                let asked = wishes.rotate.is_some() && wishes.rotate != ages.served;
                let asked = asked || !wishes.excluded.is_subset(&ages.excluded);
                let due = asked || is_over(now, since, self.settings.period, step);
                due.then(Vec::new)
            }
            Event::AllHaveNext => {
                let next = keys.successor();
                let made = ages.made.get(&next).copied().unwrap_or(now);
                let lacks = |peer: &Peer| peer.lacks(next).filter(|_| !wishes.excludes(peer));
                let names = self.all(now, made, peers, lacks, step);
                let spread = is_over(now, made, self.settings.spread, step);
                names.filter(|_| spread)
            }
            Event::AllSign => {
                let current = keys.current();
                let lacks =
                    |peer: &Peer| peer.goes_by_another(current).filter(|_| !wishes.excludes(peer));
                let names = self.all(now, since, peers, lacks, step);
                if names.is_none() {
                    self.all_sign = None;
                    return None;
                }
                let begun = match self.all_sign {
                    Some((epoch, begun)) if epoch == current && begun <= now => begun,
                    _ => now,
                };
                self.all_sign = Some((current, begun));
                let over = is_over(now, begun.max(since), self.settings.grace, step);
                names.filter(|_| over)
            }
        }
    }

    /// Asks all peers what holds up a step that has been due since `since`. If nothing does, the
    /// names of those who did not answer or follow for too long and do not count. A peer that has
    /// all it needs does not hold up anything, whether it answers or not.
    fn all(
        &self,
        now: UnixSeconds,
        since: UnixSeconds,
        peers: Option<&[Peer]>,
        reason: impl Fn(&Peer) -> Option<String>,
        step: &mut Step,
    ) -> Option<Vec<String>> {
        let limit = self.settings.unreachable_limit;
        let mut passed_over = Vec::new();
        let mut blockers = Vec::new();
        match peers {
            None => blockers.push("not all dataplanes and shims are known yet".to_owned()),
            Some(peers) => {
                for peer in peers {
                    match (reason(peer), peer.unreachable_since) {
                        (None, _) => {}
                        (Some(_), None) if now.since(since) >= self.settings.lagging_limit => {
                            passed_over.push(peer.name.clone());
                        }
                        (Some(reason), None) => blockers.push(reason),
                        (Some(_), Some(silent)) if now.since(silent) >= limit => {
                            passed_over.push(peer.name.clone());
                        }
                        (Some(reason), Some(_)) => {
                            blockers.push(format!("{reason}, and does not answer"));
                        }
                    }
                }
            }
        }
        if blockers.is_empty() {
            return Some(passed_over);
        }
        if now.since(since) >= limit {
            step.warnings.push(Warning::Stuck { reasons: blockers.clone() });
        }
        step.waiting_for = blockers;
        step.look_again = step.look_again.min(LOOK_WAITING);
        None
    }

    fn act(
        &mut self,
        action: Action,
        now: UnixSeconds,
        keys: &mut KeySet,
        ages: &mut Ages,
        wishes: &Wishes,
        rng: &mut dyn FnMut(&mut [u8; 16]),
    ) {
        match action {
            // Where there is no key, `step` does it.
            Action::MakeFirst => {}
            Action::AddNext => {
                let next = keys.successor();
                keys.add(next, AdoptionKey::random(rng));
                ages.made.insert(next, now);
                ages.served = wishes.rotate.clone().or(ages.served.take());
                ages.excluded.clone_from(&wishes.excluded);
            }
            Action::SignWithNext => {
                keys.sign_with(keys.successor());
                ages.current_since = Some(now);
                self.all_sign = None;
            }
            Action::RemoveOld => {
                for epoch in keys.old() {
                    keys.remove(epoch);
                    ages.made.remove(&epoch);
                }
            }
        }
    }
}

/// Whether `span` has passed since `since`; if not, has the step looked at again then.
fn is_over(now: UnixSeconds, since: UnixSeconds, span: Duration, step: &mut Step) -> bool {
    let passed = now.since(since);
    if passed >= span {
        return true;
    }
    step.look_again = step.look_again.min(span - passed);
    false
}

/// Ages of exactly the stored keys. What is not known is now; what lies in the future, by a clock
/// that was set back, too.
fn completed(ages: &Ages, keys: &KeySet, now: UnixSeconds) -> Ages {
    let epochs = keys.epochs().into_iter();
    let known = |epoch: u8| ages.made.get(&epoch).copied().unwrap_or(now).min(now);
    Ages {
        made: epochs.map(|epoch| (epoch, known(epoch))).collect(),
        current_since: Some(ages.current_since.unwrap_or(now).min(now)),
        served: ages.served.clone(),
        excluded: ages.excluded.clone(),
    }
}

/// Names the nodes that are excluded, and what an admin should know of each.
fn excluded(peers: Option<&[Peer]>, wishes: &Wishes) -> Option<Warning> {
    let there = |node: &str, kind| {
        let peers = peers.into_iter().flatten();
        peers
            .filter(|peer| peer.node.as_deref() == Some(node) && peer.kind == kind)
            .map(|peer| peer.name.as_str())
            .collect::<Vec<_>>()
    };
    let nodes = wishes.excluded.iter().map(|node| {
        let dataplanes = there(node, PeerKind::Dataplane);
        if !dataplanes.is_empty() {
            let names = dataplanes.join(", ");
            format!("{node} ({names} runs there and has all keys: cordon the node, delete that Pod, then rotate again)")
        } else if peers.is_some() && there(node, PeerKind::Shim).is_empty() {
            format!("{node} (no host-shim is known there: is that the name of a node?)")
        } else {
            node.clone()
        }
    });
    let nodes: Vec<String> = nodes.collect();
    (!nodes.is_empty()).then_some(Warning::Excluded { nodes })
}

/// The first epoch: one that nobody has, so that a key that was lost is not taken for this one.
fn unused_epoch(peers: &[Peer]) -> u8 {
    (1..=16).find(|epoch| !peers.iter().any(|peer| peer.has(*epoch))).unwrap_or(1)
}
