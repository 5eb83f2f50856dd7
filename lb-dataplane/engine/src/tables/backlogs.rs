//! Flows whose client's bytes wait for a new owner's window: right edges and limits.
//!
//! Owns one slab of these, and what is learned of the size of a policy's requests. The bytes lie
//! among the kept copies (`kept`). What waits, and when it goes on, is `backlog`'s.

use crate::{
    containers::{shares::Shares, slots::Slots},
    flow::kept::{Kept, KeptList},
    ids::BacklogId,
    obs::counters::Counter,
};
use baton_packet::{Decoded, SeqNumber, decode};

/// What a new pod's kernel takes at once. Linux opens with the smaller of 65,535 bytes and half the
/// receive buffer (`tcp_select_initial_window`; `tcp_rmem`'s default of 131,072), in whole
/// segments: 64,240 at the usual MTU, 62,636 with jumbo frames. Somewhat less, so that what
/// restores a session fits in too.
pub(crate) const FIRST_WINDOW_BYTES: u32 = 60 << 10;
/// Segments of one flow that may wait: 1.4 MB at the usual MTU. A client sends no more at once than
/// its congestion window, which on a path of 1 ms at 10 Gbit/s is as much.
pub(crate) const BACKLOG_PER_FLOW_MAX: u16 = 1_024;
/// Most flows that can wait, however many kept segments there are.
pub(crate) const BACKLOGS_MAX: u32 = 4_096;
/// With fewer kept segments for each, a flow that waits had better leave the memory to others.
pub(crate) const SEGMENTS_PER_BACKLOG: u32 = 8;
/// The clients of one network have one of so many parts of the flows that can wait, at most.
const NETWORK_PART: u16 = 2;
/// One of these, as shares are counted.
const ONE: Slots = Slots { all: 1, long: 0 };
/// A request counts for at most so much, so that few small ones make up for it: 16 (see
/// [`Learned`]).
pub(crate) const LEARNED_MAX: u32 = 8 * FIRST_WINDOW_BYTES;

/// How large requests are whose length is not announced: the largest, forgotten by an eighth with
/// each smaller one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Learned(pub(crate) u32);

impl Learned {
    pub(crate) fn saw(&mut self, bytes: u32) {
        self.0 = (self.0 - self.0 / 8).max(bytes.min(LEARNED_MAX));
    }

    pub(crate) fn is_large(self) -> bool {
        self.0 > FIRST_WINDOW_BYTES
    }
}

/// How far the owner takes bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// It has not confirmed yet: the kept copies are all that it gets.
    Unconfirmed,
    /// To the right edge of its window.
    Edge(SeqNumber),
    /// The client knows its window: it was the owner before.
    Known,
}

/// What the client was told has arrived, and the owner may lack: nobody else sends it again. It
/// lies in front of what waits, and stays there until the owner has acknowledged it.
#[derive(Clone, Copy)]
pub(crate) struct Owed {
    /// It begins in front of this.
    pub(crate) until: SeqNumber,
    /// What ends here, or before, was sent since it last began to be.
    pub(crate) sent: SeqNumber,
    /// Begins so far, and when the next one is due.
    pub(crate) tries: u8,
    pub(crate) again_ms: u64,
    /// The next one is sent whatever the owner takes: its answer says what that is.
    pub(crate) asks: bool,
}

impl Owed {
    /// Whether this copy is to be sent, or done: the client repeated it.
    pub(crate) fn is_next(&self, copy: &[u8], acked: SeqNumber) -> bool {
        let Ok(Decoded::Tcp(segment)) = decode(copy) else {
            return true;
        };
        let end = segment.seq.add(segment.seq_len());
        !end.after(acked) || end.after(self.sent)
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Backlog {
    pub(crate) waiting: KeptList,
    pub(crate) reach: Reach,
    pub(crate) owed: Option<Owed>,
    /// The next free slot.
    pub(crate) next: BacklogId,
}

/// All flows that wait, or may have to: a slab with a free list.
pub(crate) struct Backlogs {
    pub(crate) slots: Box<[Backlog]>,
    pub(crate) free: BacklogId,
    pub(crate) used: u16,
    /// What the clients of each network have of the slots.
    shares: Shares,
    /// Segments of all, and how many there may be.
    pub(crate) segments: Slots,
    pub(crate) segments_max: Slots,
}

impl Backlogs {
    /// For an engine with so many kept segments, of which half may wait.
    pub(crate) fn new(pool: Slots) -> Self {
        let count = (pool.all / SEGMENTS_PER_BACKLOG).clamp(1, BACKLOGS_MAX) as u16;
        let slot = |next| Backlog {
            waiting: KeptList::default(),
            reach: Reach::Unconfirmed,
            owed: None,
            next,
        };
        Self {
            slots: (1..=count)
                .map(|next| slot(if next == count { BacklogId::NONE } else { BacklogId(next) }))
                .collect(),
            free: BacklogId(0),
            used: 0,
            shares: Shares::new(Slots { all: u32::from((count / NETWORK_PART).max(1)), long: 0 }),
            segments: Slots::default(),
            segments_max: pool.part(2, 0),
        }
    }

    pub(crate) fn get(&self, id: BacklogId) -> Option<&Backlog> {
        self.slots.get(usize::from(id.0))
    }

    /// A slot for a flow of a client of this network; the limit that there is none for.
    pub(crate) fn take(&mut self, network: u16, reach: Reach) -> Result<BacklogId, Counter> {
        if let Some(limit) = self.has_no_slot(network) {
            return Err(limit);
        }
        let id = self.free;
        let slot = &mut self.slots[usize::from(id.0)];
        self.free = slot.next;
        (slot.reach, slot.owed) = (reach, None);
        self.used += 1;
        self.shares.takes(network, ONE);
        Ok(id)
    }

    fn has_no_slot(&self, network: u16) -> Option<Counter> {
        if self.free == BacklogId::NONE {
            Some(Counter::BacklogsFull)
        } else if !self.shares.have_room(network, ONE) {
            Some(Counter::BacklogNetworkFull)
        } else {
            None
        }
    }

    /// Gives an empty backlog of such a flow back.
    pub(crate) fn give_back(&mut self, network: u16, id: BacklogId) {
        if let Some(slot) = self.slots.get_mut(usize::from(id.0)) {
            debug_assert!(slot.waiting.is_empty());
            slot.next = self.free;
            self.free = id;
            self.used -= 1;
            self.shares.returns(network, ONE);
        }
    }

    /// What networks have of the slots together, for tests.
    pub(crate) fn shared(&self) -> u32 {
        self.shares.sum().all
    }

    pub(crate) fn used(&self) -> u16 {
        self.used
    }

    /// Segments that wait.
    pub(crate) fn segments(&self) -> Slots {
        self.segments
    }

    /// What waits for a flow with this slot.
    pub(crate) fn waiting(&self, id: BacklogId) -> KeptList {
        self.get(id).map_or(KeptList::default(), |b| b.waiting)
    }

    /// Why so many more copies of a flow of this network cannot wait, if they cannot.
    pub(crate) fn refuses(
        &self,
        (network, id): (u16, BacklogId),
        copies: Slots,
        kept: &Kept,
    ) -> Option<Counter> {
        let waiting = u32::from(kept.count(self.waiting(id)));
        let room = |takes| self.segments.have_room(takes, self.segments_max);
        let no_slot = match id {
            BacklogId::NONE => self.has_no_slot(network),
            _ => None,
        };
        if no_slot.is_some() {
            no_slot
        } else if waiting + copies.all > u32::from(BACKLOG_PER_FLOW_MAX) {
            Some(Counter::BacklogFlowFull)
        } else if !kept.takes(copies).is_some_and(room) {
            Some(Counter::BacklogFull)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_learned_is_forgotten_after_few_small_requests() {
        let mut learned = Learned::default();
        assert!(!learned.is_large());
        learned.saw(FIRST_WINDOW_BYTES);
        assert!(!learned.is_large());
        learned.saw(u32::MAX);
        let mut small = 0;
        while learned.is_large() {
            learned.saw(1_000);
            small += 1;
        }
        assert_eq!(small, 16);
    }

    #[test]
    fn slots_are_given_out_once() {
        let mut backlogs = Backlogs::new(Slots::of_pool(24));
        let mut take = |network| backlogs.take(network, Reach::Known);
        let slots: Vec<_> = (0..3).filter_map(|network| take(network).ok()).collect();
        assert_eq!(take(3), Err(Counter::BacklogsFull));
        assert_eq!((slots.len(), backlogs.used()), (3, 3));
        backlogs.give_back(1, slots[1]);
        let taken = backlogs.take(0, Reach::Unconfirmed);
        assert_eq!(taken, Err(Counter::BacklogNetworkFull), "half of three");
        assert_eq!(backlogs.take(1, Reach::Unconfirmed), Ok(slots[1]));
    }
}
