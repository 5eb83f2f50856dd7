//! Transfers that are open: flows whose pod was asked to hand them to another one.
//!
//! Owns their slots. When one is asked for, and what its answers mean, is `transfer`'s.

use crate::{
    clock::Instant,
    ids::{FlowId, Leg},
    obs::cause::Cause,
};
use baton_api::LIMIT_POLICIES;
use baton_packet::SeqNumber;

/// Open transfers, and those that are not asked for again yet: a host-shim hands over some
/// thousand connections a second, and all of a node's pods have one.
const TRANSFERS_MAX: usize = 1_024;
/// A policy has no more of them than so many times as many as are free, and so three quarters of
/// all: applications that answer nothing hold theirs for two seconds each, again and again.
const TIMES_FREE: usize = 3;

/// How far one is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Its leg is where the flow will be found in the other pod.
    Asked,
    /// Its leg is where the flow was: what is on its way from there is the flow's.
    Done,
    /// It came to nothing, and has no leg.
    Failed,
}

/// One flow that is to be handed over, was, or was not.
#[derive(Clone, Copy)]
pub(crate) struct Transfer {
    pub(crate) flow: FlowId,
    pub(crate) policy: u16,
    pub(crate) stage: Stage,
    pub(crate) leg: Leg,
    /// The numbers of all copies of the message.
    pub(crate) seq: SeqNumber,
    pub(crate) ack: SeqNumber,
    pub(crate) cause: Cause,
    pub(crate) begun_ms: u64,
    /// When something is to be done next.
    pub(crate) due_ms: u64,
}

/// All of them. At start all memory is reserved.
pub(crate) struct Transfers {
    slots: Box<[Option<Transfer>]>,
    free: Vec<u16>,
    /// How many each policy has.
    of_policy: Box<[u16]>,
    /// When the first of them is due, or before.
    pub(crate) due_ms: u64,
}

impl Transfers {
    pub(crate) fn new() -> Self {
        Self {
            slots: vec![None; TRANSFERS_MAX].into_boxed_slice(),
            free: (0..TRANSFERS_MAX as u16).rev().collect(),
            of_policy: vec![0; 2 * LIMIT_POLICIES].into(),
            due_ms: u64::MAX,
        }
    }

    pub(crate) fn used(&self) -> u32 {
        (TRANSFERS_MAX - self.free.len()) as u32
    }

    pub(crate) fn limit(&self) -> u32 {
        TRANSFERS_MAX as u32
    }

    /// A place, if there is one.
    pub(crate) fn open(&mut self, transfer: Transfer) -> Option<u16> {
        let slot = self.free.pop()?;
        self.due_ms = self.due_ms.min(transfer.due_ms);
        self.of_policy[usize::from(transfer.policy)] += 1;
        self.slots[usize::from(slot)] = Some(transfer);
        Some(slot)
    }

    /// Whether there is one for a flow of this policy.
    pub(crate) fn has_room(&self, policy: u16) -> bool {
        usize::from(self.of_policy[usize::from(policy)]) < TIMES_FREE * self.free.len()
    }

    pub(crate) fn get(&self, slot: u16) -> Option<&Transfer> {
        self.slots.get(usize::from(slot))?.as_ref()
    }

    /// The place of a flow that has one.
    pub(crate) fn of(&self, flow: FlowId) -> Option<u16> {
        if self.used() == 0 {
            return None;
        }
        let mut slots = self.slots.iter();
        let at = slots.position(|slot| slot.is_some_and(|t| t.flow == flow));
        at.map(|at| at as u16)
    }

    /// It is to be looked at then.
    pub(crate) fn is_due(&mut self, slot: u16, due_ms: u64) {
        if let Some(transfer) = &mut self.slots[usize::from(slot)] {
            transfer.due_ms = due_ms;
            self.due_ms = self.due_ms.min(due_ms);
        }
    }

    /// Its next stage, until then.
    pub(crate) fn goes_on(&mut self, slot: u16, stage: Stage, leg: Leg, due_ms: u64) {
        if let Some(transfer) = &mut self.slots[usize::from(slot)] {
            (transfer.stage, transfer.leg) = (stage, leg);
        }
        self.is_due(slot, due_ms);
    }

    /// Nobody has the place any more; who had it.
    pub(crate) fn close(&mut self, slot: u16) -> Option<Transfer> {
        let transfer = self.slots[usize::from(slot)].take()?;
        self.free.push(slot);
        self.of_policy[usize::from(transfer.policy)] -= 1;
        Some(transfer)
    }

    /// The next one from a slot on that is due, and when the ones before it are.
    pub(crate) fn next_due(&self, from: u16, now: Instant) -> (Option<u16>, u64) {
        let mut later_ms = u64::MAX;
        for (slot, transfer) in (from..).zip(&self.slots[usize::from(from)..]) {
            match transfer {
                Some(transfer) if transfer.due_ms <= now.ms() => return (Some(slot), later_ms),
                Some(transfer) => later_ms = later_ms.min(transfer.due_ms),
                None => {}
            }
        }
        (None, later_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pods of one policy answer nothing. Another one's flows are handed on all the same.
    #[test]
    fn a_policy_leaves_room_for_others() {
        let mut transfers = Transfers::new();
        let transfer = |policy| Transfer {
            flow: 0,
            policy,
            stage: Stage::Asked,
            leg: Leg::NONE,
            seq: SeqNumber(0),
            ack: SeqNumber(0),
            cause: Cause::Drain,
            begun_ms: 0,
            due_ms: 0,
        };
        let fill = |transfers: &mut Transfers, policy| {
            let mut taken = 0;
            while transfers.has_room(policy) {
                transfers.open(transfer(policy)).expect("a place");
                taken += 1;
            }
            taken
        };
        assert_eq!(fill(&mut transfers, 7), TRANSFERS_MAX * 3 / 4);
        assert_eq!(fill(&mut transfers, 8), TRANSFERS_MAX * 3 / 16);
        assert!(transfers.has_room(9));
        // What ended counts no more.
        for slot in 0..TRANSFERS_MAX as u16 * 3 / 4 {
            transfers.close(slot);
        }
        assert_eq!(fill(&mut transfers, 7), (TRANSFERS_MAX * 13 / 16) * 3 / 4);
    }
}
