//! Putting a snapshot in force: the order of that, without touching flows.
//!
//! Owns how far it is. It goes through a bounded piece at a time, between which packets are served:
//! backends that are new come first, then the policies one by one, then what is named no more goes
//! (`place`). So each state in between is one in which every policy is as it was or as it will be.
//! What takes long is done before, by `prepare`.
//!
//! # Decisions
//!
//! - **What changes holds packets up for no more than 200 us at a time** (`make bench-pause` prints
//!   the worst call for each case: all within some 110 us). What takes long and needs no flow is
//!   made on another thread: tables of Maglev and ports of new backends
//!   (`engine/src/config/prepare.rs`), the routing table (`prefixes.rs`: disjoint ranges, looked up
//!   by bisection). The packet thread puts a snapshot in force in pieces between batches
//!   (`apply.rs`, `place.rs`): first the new backends, then policy by policy, then what goes. Each
//!   state in between is one where every policy is as it was or as it will be, which is why a slot
//!   that leaves with a snapshot is used again only by a later one, so that while everything is
//!   replaced there are up to twice `limits.backends` of them, and twice as many frontends as there
//!   may be. For so many there is room from the start: no table grows. What the planner cannot
//!   know, which backends and frontends open flows still need, is looked at on the packet thread
//!   before anything changes; where there is no room, the snapshot is made ready again with that
//!   (`Planner::no_room`). What was replaced goes back and is freed elsewhere. Likewise in pieces:
//!   reports, drains by name (`order.rs`), sweeps of pods that drain or died, adoption and liveness
//!   probes, timers that are due together. The smallest piece is one policy with its members; of
//!   256 pods that 1,024 policies share it takes 0.1 ms, since which policies a pod is of is one
//!   bit each (`memberships.rs`; as lists that grow it took 0.3 ms). What takes longer by the clock
//!   alone is the scheduler's: with other load the longest call waits 4 ms, a slice of its, with
//!   0.05 ms of its own. Before, all at once: 48 ms for 1,000 new backends, 41 ms for one flap of a
//!   pod of 16 Maglev listeners, 32 ms when 100 pods drained whose flows nobody took.

use crate::{
    Engine,
    balance::maglev::Maglev,
    clock::Instant,
    config::{
        in_force::{ApplyError, End, Fixed, InForce, Rows},
        prepare::{Prepared, Stage, plan},
        sift::{Applied, Lingering, Objection},
    },
};
use baton_api::{LIMIT_FRONTENDS, Policy, Snapshot, SnapshotError};
use std::sync::Arc;

/// Looking at a slot of a table that stays as it is; at a flow, or a client with affinity, which
/// lie apart in memory.
pub(crate) const COST_SLOT: usize = 1;

impl Engine {
    /// Puts `snapshot` in force at once and whole, however long that takes. Flows stay where they
    /// are.
    ///
    /// # Errors
    /// The snapshot is not used at all then.
    pub fn apply(&mut self, now: Instant, snapshot: &Snapshot) -> Result<(), ApplyError> {
        let mut prepared = self.prepare(snapshot, None)?;
        while !self.apply_piece(now, &mut prepared)? {}
        Ok(())
    }

    /// Puts each policy of `snapshot` in force that can be, and to which nobody objects. Those that
    /// cannot keep what they had, where that goes together with the others.
    ///
    /// # Errors
    /// The snapshot is not used at all then.
    pub fn apply_each(
        &mut self,
        now: Instant,
        snapshot: &Snapshot,
        objections: &[Objection],
    ) -> Result<Applied, ApplyError> {
        let mut prepared = self.prepare(snapshot, Some(objections))?;
        while !self.apply_piece(now, &mut prepared)? {}
        Ok(prepared.applied)
    }

    /// What a planner does, with the tables in view.
    fn prepare(
        &mut self,
        snapshot: &Snapshot,
        objections: Option<&[Objection]>,
    ) -> Result<Prepared, ApplyError> {
        let fixed = Fixed::new(&self.settings, &self.net.sources);
        let used = self.backends.iter().filter(|b| b.lingers());
        let live = self.frontends.iter().filter(|f| f.flows > 0);
        let lingering = Lingering {
            backends: used.map(|b| (b.addr, b.port)).collect(),
            frontends: live.map(|f| (f.addr, f.port)).collect(),
        };
        let mut rng = self.rng.clone();
        let fixed = std::slice::from_ref(&fixed);
        let prepared = plan(fixed, &mut rng, self, &lingering, snapshot, objections);
        self.rng = rng;
        Ok(prepared?.swap_remove(0))
    }

    /// Goes on with putting a snapshot in force; whether it is. Flows stay where they are, and
    /// packets may be served in between. None is begun before the one before is in force. One piece
    /// ends where nothing has changed yet and there is room ([`Prepared::has_room`]), so that
    /// several engines change together or not at all.
    ///
    /// # Errors
    /// The snapshot is not used at all then. Where there was no room for it,
    /// [`crate::Planner::no_room`] is to be told.
    pub fn apply_piece(
        &mut self,
        now: Instant,
        prepared: &mut Prepared,
    ) -> Result<bool, ApplyError> {
        let now = self.link.time(now);
        self.events.now = now;
        if prepared.generation < self.generation {
            return Err(ApplyError::Stale {
                offered: prepared.generation,
                current: self.generation,
            });
        }
        let mut left = prepared.progress.piece;
        while left > 0 {
            let stage = prepared.progress.stage;
            let cost = match stage {
                Stage::Free => self.find_free(prepared),
                Stage::Room => self.find_room(prepared),
                Stage::Agreed => None,
                Stage::Arrive => self.backend_arrives(now, prepared),
                Stage::Policies => self.policy_changes(now, prepared),
                Stage::Retire => self.slot_retires(now, prepared),
                Stage::Backends => self.backend_changes(now, prepared),
                Stage::Clients if !prepared.progress.left => None,
                Stage::Clients => self.client_settles(prepared.progress.at as u32),
                Stage::Flows => self.flow_settles(now, &mut prepared.progress),
                Stage::Done => return Ok(true),
            };
            let progress = &mut prepared.progress;
            match cost {
                Some(cost) => {
                    let again = std::mem::take(&mut progress.again) || progress.placing.is_some();
                    progress.at += usize::from(!again);
                    left = left.saturating_sub(cost);
                }
                None => {
                    (progress.stage, progress.at) = (stage.next(), 0);
                    if progress.stage == Stage::Agreed {
                        self.check_room(prepared)?;
                        return Ok(false);
                    } else if progress.stage == Stage::Arrive {
                        self.applies += 1;
                        prepared.progress.stamp = self.applies;
                    } else if progress.stage == Stage::Done {
                        self.applied = self.applies;
                        self.generation = prepared.generation;
                        self.rounds.probes.by(now.ms());
                    }
                }
            }
        }
        Ok(false)
    }

    /// Whether the next slots of a policy and of a frontend are needed still.
    fn find_free(&mut self, prepared: &mut Prepared) -> Option<usize> {
        let at = prepared.progress.at;
        let slots = self.policies.len().max(self.frontends.len());
        if let Some(policy) = self.policies.get_mut(at) {
            policy.is_free = !policy.listed && policy.flows == 0;
        }
        if let Some(frontend) = self.frontends.get(at).filter(|f| f.flows > 0) {
            let end = (frontend.addr, frontend.port);
            prepared.lingering.frontends.push(end);
            prepared.progress.lingering.1 += usize::from(!prepared.frontends.contains(&end));
        }
        (at < slots).then_some(2 * COST_SLOT)
    }

    /// Whether the next backend is needed still. A drain whose policy has no flow any more is over:
    /// a slot of a policy is free only once it was seen to be before this.
    fn find_room(&mut self, prepared: &mut Prepared) -> Option<usize> {
        let at = prepared.progress.at;
        self.backends.get(at)?;
        self.forget_drains(at);
        let backend = &self.backends[at];
        let end = (backend.addr, backend.port);
        let named = prepared.named.get(&end);
        if backend.lingers() {
            prepared.lingering.backends.push(end);
            prepared.progress.lingering.0 += usize::from(named.is_none());
        }
        let known = named.is_some_and(|named| named.known) && backend.ports.all() > 0;
        prepared.progress.known += usize::from(known);
        Some(2 * COST_SLOT)
    }

    fn check_room(&self, prepared: &Prepared) -> Result<(), ApplyError> {
        if prepared.progress.known != prepared.known {
            return Err(ApplyError::Astray);
        }
        let limit = self.settings.limits.backends;
        let needed = prepared.named.len() + prepared.progress.lingering.0;
        if needed > usize::from(limit) {
            return Err(ApplyError::TooManyBackends { needed, limit });
        }
        if prepared.frontends.len() + prepared.progress.lingering.1 > LIMIT_FRONTENDS {
            return Err(ApplyError::NoRoom(SnapshotError {
                path: "policies".into(),
                problem: format!(
                    "at most {LIMIT_FRONTENDS} frontends are possible, those of open connections too"
                ),
            }));
        }
        Ok(())
    }

    /// The slot of a backend that can have legs.
    pub(crate) fn slot_of(&self, end: &End) -> Option<u16> {
        let index = self.ids.backends.find(end.0, end.1)?;
        (self.backends[usize::from(index)].ports.all() > 0).then_some(index)
    }
}

impl InForce for Engine {
    fn generation(&self) -> u64 {
        self.generation
    }

    fn policies(&self) -> usize {
        self.policies.iter().filter(|p| p.listed).count()
    }

    fn policy(&self, name: &str) -> Option<&Arc<Policy>> {
        let index = self.ids.policies.get(name)?;
        let policy = &self.policies[usize::from(*index)];
        policy.listed.then_some(&policy.origin)
    }

    fn holder(&self, end: &End) -> Option<&str> {
        let slot = self.ids.frontends.find(end.0, end.1)?;
        let slot = &self.frontends[usize::from(slot)];
        let policy = &self.policies[usize::from(slot.policy)];
        (slot.listed && policy.listed).then_some(&policy.spec.name)
    }

    fn has_backend(&self, end: &End) -> bool {
        self.slot_of(end).is_some()
    }

    fn table(&self, name: &str, v6: bool, rows: &Rows) -> Option<Arc<Maglev>> {
        let at = self.ids.policies.get(name)?;
        self.policies[usize::from(*at)].pools[usize::from(v6)].table_of(rows)
    }
}
