//! Flows and the table that finds them by the client's end.
//!
//! Owns the memory of all flows (one slab and its index, reserved at start). It knows nothing of
//! packets: callers keep the fields true.

pub(crate) mod kept;
pub(crate) mod pieces;

use crate::{
    containers::{
        index::{Hash, Index, SPILL_MAX},
        keyed::Keyed,
    },
    flow::kept::KeptList,
    handover::{Mark, Progress},
    ids::{Addr, BacklogId, FlowId, Leg, NONE},
    net::routes::HopId,
    obs::{cause::Causes, ledger::Moved, pins::PinReason},
    states::State,
};
use baton_packet::{Mac, SeqNumber};

/// Facts about a flow that are either so or not.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Bits(u16);

impl Bits {
    pub(crate) const WSCALE: u16 = 1;
    pub(crate) const SACK: u16 = 1 << 1;
    pub(crate) const TIMESTAMPS: u16 = 1 << 2;
    pub(crate) const ECN: u16 = 1 << 3;
    /// Segments of it are set aside (`early`) or wait (`backlog`), its client's next bytes must
    /// wait (`release`), its pod may lack the header (`introduce`), or its leg is translated
    /// (`opening`): each comes with all that this takes. Here, since these are not in the first
    /// cache line.
    pub(crate) const ASIDE: u16 = 1 << 4;
    /// An adoption carries a session's restoring bytes, and their replies are still to come.
    pub(crate) const PRELUDE: u16 = 1 << 5;
    /// That its leg is translated is all of [`Self::ASIDE`].
    pub(crate) const SHIFTED: u16 = 1 << 6;
    /// A request is counted as outstanding at the owner.
    pub(crate) const OUTSTANDING: u16 = 1 << 7;
    /// The kept copies, and what waits behind them (`backlog`), hold every byte since the boundary,
    /// and no answer has begun.
    pub(crate) const KEPT_WHOLE: u16 = 1 << 8;
    /// How long the request is was not known when it began.
    pub(crate) const UNSIZED: u16 = 1 << 9;
    /// The client's repetition of the request was counted.
    pub(crate) const REPEATED: u16 = 1 << 10;
    /// A move or its taking back happened at `moved_ms`.
    pub(crate) const MOVED: u16 = 1 << 11;
    /// The end that is held back came from a process that has the listener.
    pub(crate) const CLOSER_LISTENS: u16 = 1 << 12;
    /// The owner closed before it knew of the client's close, so that its kernel is left in
    /// TIME_WAIT.
    pub(crate) const POD_WAITS: u16 = 1 << 13;
    /// The client sent a RST that the pod may have taken: what the pod's end says is not about the
    /// pod.
    pub(crate) const CLIENT_RESET: u16 = 1 << 14;
    /// A FIN of our own making went to the client.
    pub(crate) const FIN_SENT: u16 = 1 << 15;

    #[inline]
    pub(crate) fn has(self, bit: u16) -> bool {
        self.0 & bit != 0
    }

    #[inline]
    pub(crate) fn are(self, on: u16, of: u16) -> bool {
        self.0 & of == on
    }

    /// Clears it. Whether it was set.
    pub(crate) fn take(&mut self, bit: u16) -> bool {
        let was = self.has(bit);
        self.set(bit, false);
        was
    }

    #[inline]
    pub(crate) fn set(&mut self, bit: u16, on: bool) {
        if on {
            self.0 |= bit;
        } else {
            self.0 &= !bit;
        }
    }
}

/// A client connection: two cache lines. What is asked and written for each segment without data is
/// in the first.
#[derive(Clone)]
#[repr(C, align(128))]
pub(crate) struct Flow {
    pub(crate) client: Addr,
    /// Next new byte of the client: all before it was seen, or need not be (`early`).
    pub(crate) client_next: SeqNumber,
    /// Highest client byte that the backend acknowledged.
    pub(crate) client_acked: SeqNumber,
    /// Next new byte of the backend, likewise.
    pub(crate) server_next: SeqNumber,
    /// Highest backend byte that the client acknowledged.
    pub(crate) server_acked: SeqNumber,
    pub(crate) client_port: u16,
    pub(crate) frontend: u16,
    pub(crate) owner: Leg,
    /// When the last segment was seen (ms, wrapping).
    pub(crate) last_ms: u32,
    /// Last timestamp value of each side, and when the server's was seen (ms).
    pub(crate) client_ts: u32,
    pub(crate) server_ts: u32,
    pub(crate) server_ts_ms: u32,
    /// The client's last window field, unscaled.
    pub(crate) client_window: u16,
    pub(crate) bits: Bits,
    /// Next hop towards the client; none: `mac`.
    pub(crate) hop: HopId,
    pub(crate) state: State,
    /// Server's window scale in the high nibble, client's in the low one.
    pub(crate) scales: u8,

    /// What came ahead of missing segments, from the client and from the server (`early`).
    pub(crate) early_client: KeptList,
    pub(crate) early_server: KeptList,
    /// The guard's slot.
    pub(crate) guard: u32,
    pub(crate) kept: KeptList,
    /// First byte of the request that an adoption carries.
    pub(crate) boundary: SeqNumber,
    /// When the outstanding request was sent (us, wrapping).
    pub(crate) sent_us: u32,
    /// When the flow came to its owner (ms, wrapping).
    pub(crate) moved_ms: u32,
    /// The free list; of a flow whose handshake is not complete, its entry in the backend's queue
    /// of these (`Ports::begins`); else `NONE`.
    pub(crate) link: u32,
    /// The old owner while an adoption is open. While somebody's wish to have the flow moved waits
    /// (`migrate`): the backend that it is to go to, without a port.
    pub(crate) standby: Leg,
    /// Where its SYN came from.
    pub(crate) mac: Mac,
    /// The number of its client's network (`shares`).
    pub(crate) network: u16,
    pub(crate) policy: u16,
    /// Its slot in the table of backlogs, if some of its client's bytes wait for a new owner's
    /// window.
    pub(crate) backlog: BacklogId,
    /// Twice its moves, of which at most 32,767 are counted, and one more since it has another leg
    /// than its first: one that had none between two requests has that without a move.
    pub(crate) migrations: u16,
    /// The client's MSS.
    pub(crate) mss: u16,
    /// What a hand-over, or another opening of a leg, remembers of itself.
    pub(crate) progress: Progress,
    /// Why the flow never moves again.
    pub(crate) pin: Option<PinReason>,
    /// Why it last moved, and why it moves now.
    pub(crate) causes: Causes,
    /// What the outstanding request moved for, until it is answered.
    pub(crate) moved: Moved,
    /// How often the owner's pod had been replaced when the flow came to it (`Probe::renewed`).
    pub(crate) renewed: u8,
}

const _: () = assert!(size_of::<Flow>() == 128);
const _: () = assert!(std::mem::offset_of!(Flow, early_client) == 64);
/// Timers cost 16 bytes an entry (see `wheel`), the flow's place in the index 16, those of two legs
/// 20, and what their ports need once they rest 20 (see `rests`).
const _: () = assert!(size_of::<Flow>() + 16 + 16 + 20 + 20 <= crate::FLOW_BYTES_MAX);

impl Flow {
    pub(crate) fn new(client: Addr, client_port: u16, frontend: u16, policy: u16) -> Self {
        Self {
            client,
            link: NONE,
            client_port,
            frontend,
            policy,
            owner: Leg::NONE,
            standby: Leg::NONE,
            hop: HopId::NONE,
            mac: Mac::HOST,
            network: 0,
            bits: Bits::default(),
            state: State::Gone,
            scales: 0,
            progress: Progress::default(),
            pin: None,
            causes: Causes::default(),
            moved: Moved::NO,
            renewed: 0,
            mss: 536,
            client_window: 0,
            client_next: SeqNumber(0),
            client_acked: SeqNumber(0),
            server_next: SeqNumber(0),
            server_acked: SeqNumber(0),
            client_ts: 0,
            server_ts: 0,
            server_ts_ms: 0,
            boundary: SeqNumber(0),
            sent_us: 0,
            last_ms: 0,
            moved_ms: 0,
            migrations: 0,
            kept: KeptList::default(),
            early_client: KeptList::default(),
            early_server: KeptList::default(),
            guard: NONE,
            backlog: BacklogId::NONE,
        }
    }

    #[inline]
    pub(crate) fn is_v6(&self) -> bool {
        self.client.is_v6()
    }

    /// What is set aside of it, or waits, has changed.
    pub(crate) fn note_aside(&mut self) {
        let (aside, shifted) = self.has_aside();
        self.bits.set(Bits::ASIDE, aside);
        self.bits.set(Bits::SHIFTED, shifted);
    }

    /// Whether anything is, or may be needed again (`release`), or its pod may lack the header
    /// (`introduce`), or its leg is translated; and whether it is that alone.
    pub(crate) fn has_aside(&self) -> (bool, bool) {
        let others = self.progress.is(Mark::ReleaseAsked)
            || self.backlog.is_some()
            || self.progress.told.is_due()
            || !self.early_client.is_empty()
            || !self.early_server.is_empty();
        let translated = self.progress.is(Mark::Translated);
        (others || translated, translated && !others)
    }

    /// What its client has for certain: an IPv4 address, or the first 64 bits of an IPv6 one (RFC
    /// 6177).
    pub(crate) fn client_network(&self) -> Addr {
        let mut network = self.client;
        if self.is_v6() {
            network.low = 0;
        }
        network
    }

    /// The server's timestamp clock now, going on from its last value at 1 ms a tick (RFC 7323
    /// section 5.4; Linux `tcp_ts_hz`).
    pub(crate) fn server_ts_at(&self, now_ms: u32) -> u32 {
        self.server_ts
            .wrapping_add(now_ms.wrapping_sub(self.server_ts_ms))
    }

    /// Whether the client may send at `seq`: not beyond the largest window that the backend can
    /// have offered (RFC 7323 section 2.3). What is beyond is for the backend's kernel to judge;
    /// the flow learns nothing from it.
    #[inline]
    pub(crate) fn client_may_send(&self, seq: SeqNumber) -> bool {
        seq.since(self.client_acked) <= 0xffff << (self.scales >> 4)
    }

    /// Whether the backend may send at `seq`, likewise.
    #[inline]
    pub(crate) fn server_may_send(&self, seq: SeqNumber) -> bool {
        seq.since(self.server_acked) <= self.client_window_max() as i32
    }

    /// The largest window that the client can have offered.
    #[inline]
    pub(crate) fn client_window_max(&self) -> u32 {
        0xffff << (self.scales & 15)
    }

    /// Moves so far.
    pub(crate) fn moves(&self) -> u16 {
        self.migrations / 2
    }

    /// The flow came to its owner without a request and has had none since.
    pub(crate) fn adopted_idle(&self) -> bool {
        self.migrations > 0 && self.boundary == self.client_next
    }

    /// Everything that either side sent is acknowledged by the other.
    #[inline]
    pub(crate) fn all_acked(&self) -> bool {
        self.client_acked == self.client_next && self.server_acked == self.server_next
    }
}

/// How full the index of flows may be, in percent: then nearly all are found in the first cache
/// line that is looked at.
const PERCENT: usize = 50;

/// All flows: a slab with a free list, and an index over (client, client port, frontend). Once the
/// index has no room for a flow in either of its buckets, which chance does not bring about, it
/// takes new keys, and changes over to them in pieces.
pub(crate) struct FlowTable {
    flows: Box<[Flow]>,
    index: Index,
    free: FlowId,
    used: u32,
    keys: Keyed,
    next_keys: Keyed,
    /// Buckets that were gone through for the next keys, while it changes over to them.
    changed: Option<usize>,
    secret: (u64, u64),
    generation: u64,
}

#[inline(always)]
fn hash(keys: &Keyed, client: Addr, port: u16, frontend: u16) -> Hash {
    let place = keys.hash(client, port, frontend);
    Hash {
        place,
        mark: (place >> 16) as u32,
    }
}

impl Flow {
    #[inline(always)]
    fn is(&self, client: Addr, port: u16, frontend: u16) -> bool {
        self.client_port == port && self.frontend == frontend && self.client == client
    }

    fn hash(&self, keys: &Keyed) -> Hash {
        hash(keys, self.client, self.client_port, self.frontend)
    }
}

impl FlowTable {
    pub(crate) fn new(limit: u32, secret: (u64, u64)) -> Self {
        let blank = Flow::new(Addr::default(), 0, 0, 0);
        let mut flows = vec![blank; limit as usize].into_boxed_slice();
        for (i, flow) in flows.iter_mut().enumerate() {
            flow.link = if i + 1 < limit as usize {
                i as u32 + 1
            } else {
                NONE
            };
        }
        Self {
            flows,
            index: Index::new(limit as usize, PERCENT),
            free: if limit == 0 { NONE } else { 0 },
            used: 0,
            keys: Keyed::new(secret, 0),
            next_keys: Keyed::new(secret, 1),
            changed: None,
            secret,
            generation: 0,
        }
    }

    /// Where a flow is, or most are while the keys change.
    #[inline]
    pub(crate) fn hash(&self, client: Addr, port: u16, frontend: u16) -> Hash {
        hash(&self.keys, client, port, frontend)
    }

    /// Reads where the look-up begins.
    #[inline]
    pub(crate) fn touch_index(&self, hash: Hash) -> u32 {
        self.index.touch(hash)
    }

    /// The flow with this hash, or another one.
    #[inline]
    pub(crate) fn perhaps(&self, hash: Hash) -> Option<FlowId> {
        self.index.guess(hash).filter(|id| *id != NONE)
    }

    #[inline(always)]
    pub(crate) fn find(&self, client: Addr, port: u16, frontend: u16) -> Option<FlowId> {
        let hash = hash(&self.keys, client, port, frontend);
        // Mostly it is where it is looked for first.
        if let Some(id) = self.index.guess(hash)
            && let Some(flow) = self.flows.get(id as usize)
            && flow.is(client, port, frontend)
        {
            return Some(id);
        }
        self.find_elsewhere(hash, client, port, frontend)
    }

    #[inline(never)]
    fn find_elsewhere(&self, of: Hash, client: Addr, port: u16, frontend: u16) -> Option<FlowId> {
        let is = |id: FlowId| self.flows[id as usize].is(client, port, frontend);
        let found = self.index.find(of, is);
        if found.is_none() && self.changed.is_some() {
            let next = hash(&self.next_keys, client, port, frontend);
            return self.index.find(next, is);
        }
        found
    }

    /// Adds a flow; `None` if the table is full.
    pub(crate) fn insert(&mut self, flow: Flow) -> Option<FlowId> {
        let id = self.free;
        if id == NONE || !self.puts(id, &flow) {
            return None;
        }
        self.free = self.flows[id as usize].link;
        self.flows[id as usize] = flow;
        self.used += 1;
        Some(id)
    }

    /// Puts a flow's number into the index. Whether there was room.
    fn puts(&mut self, id: FlowId, flow: &Flow) -> bool {
        let changes = self.changed.is_some();
        let keys = if changes { self.next_keys } else { self.keys };
        let flows = &self.flows;
        // While the keys change, nobody knows by which ones another flow is where it is.
        let of = |other: u32, _| (!changes).then(|| flows[other as usize].hash(&keys));
        self.index.insert(flow.hash(&keys), id, of)
    }

    /// The index had no room for a flow where it belongs, and the change over to other keys is not
    /// at its end.
    pub(crate) fn wants_keys(&self) -> bool {
        self.changed.is_some() || self.index.spills()
    }

    /// Changes over to the next keys, so many buckets at a time. Whether that is done.
    pub(crate) fn take_keys(&mut self, buckets: usize) -> bool {
        let from = self.changed.unwrap_or(0);
        let to = (from + buckets).min(self.index.buckets());
        self.changed = Some(to);
        for bucket in from..to {
            for id in self.index.numbers_in(bucket).into_iter().flatten() {
                let hash = self.flows[id as usize].hash(&self.next_keys);
                if !self.index.is_at_home(bucket, hash, id) {
                    self.changes_over(id);
                }
            }
        }
        if to < self.index.buckets() {
            return false;
        }
        for _ in 0..SPILL_MAX {
            if let Some(id) = self.index.spilt() {
                self.changes_over(id);
            }
        }
        self.generation += 1;
        self.keys = self.next_keys;
        self.next_keys = Keyed::new(self.secret, self.generation + 1);
        self.changed = None;
        true
    }

    fn changes_over(&mut self, id: FlowId) {
        let flow = &self.flows[id as usize];
        let (old, new) = (flow.hash(&self.keys), flow.hash(&self.next_keys));
        if self.index.remove(old, id) || self.index.remove(new, id) {
            // Where it was there is room again, if nowhere else.
            let room = self.index.insert(new, id, |_, _| None);
            debug_assert!(room, "one was taken out");
        }
    }

    pub(crate) fn remove(&mut self, id: FlowId) {
        let flow = &self.flows[id as usize];
        let (old, new) = (flow.hash(&self.keys), flow.hash(&self.next_keys));
        let found = self.index.remove(old, id) || self.index.remove(new, id);
        debug_assert!(found, "a flow is in the index");
        let flow = &mut self.flows[id as usize];
        flow.state = State::Gone;
        flow.owner = Leg::NONE;
        flow.standby = Leg::NONE;
        flow.link = self.free;
        self.free = id;
        self.used -= 1;
    }

    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    pub(crate) fn is_full(&self) -> bool {
        self.free == NONE
    }

    pub(crate) fn limit(&self) -> u32 {
        self.flows.len() as u32
    }

    /// All slots, the free ones (state `Gone`) too.
    pub(crate) fn slots(&self) -> &[Flow] {
        &self.flows
    }
}

impl std::ops::Index<FlowId> for FlowTable {
    type Output = Flow;
    #[inline]
    fn index(&self, id: FlowId) -> &Flow {
        &self.flows[id as usize]
    }
}

impl std::ops::IndexMut<FlowId> for FlowTable {
    #[inline]
    fn index_mut(&mut self, id: FlowId) -> &mut Flow {
        &mut self.flows[id as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::to_addr;
    use proptest::prelude::*;
    use std::{collections::HashMap, net::IpAddr};

    #[test]
    fn flows_that_find_no_room_make_the_table_take_other_keys() {
        let mut table = FlowTable::new(64, (1, 2));
        assert_eq!(table.index.buckets(), 16);
        let client = to_addr(IpAddr::from([192, 0, 2, 7]));
        // Both homes of all are two buckets of eight.
        let together = |port: &u16| {
            let place = table.keys.hash(client, *port, 0);
            (place as u32) >> 28 < 2 && place >> 60 < 2
        };
        let together: Vec<u16> = (1..=u16::MAX).filter(together).take(40).collect();
        for (number, port) in together.iter().enumerate() {
            assert_eq!(table.wants_keys(), number > 16, "{number}");
            table.insert(Flow::new(client, *port, 0, 0)).expect("room");
        }
        let mut pieces = 1;
        while !table.take_keys(3) {
            pieces += 1;
            // All are found meanwhile.
            for port in &together {
                assert!(table.find(client, *port, 0).is_some(), "{port}");
            }
        }
        assert_eq!((pieces, together.len()), (6, 40));
        assert!(!table.wants_keys());
        for port in &together {
            let id = table.find(client, *port, 0).expect("found");
            table.remove(id);
        }
        assert_eq!(table.used(), 0);
    }

    proptest! {
        #[test]
        fn agrees_with_a_map(
            ops in proptest::collection::vec((any::<bool>(), 0u8..4, 0u16..40, 0u16..2), 1..400),
            piece in 0usize..4,
        ) {
            let mut table = FlowTable::new(32, (1, 2));
            let mut oracle: HashMap<(u8, u16, u16), FlowId> = HashMap::new();
            for (add, host, port, frontend) in ops {
                let client = to_addr(IpAddr::from([10, 0, 0, host]));
                let key = (host, port, frontend);
                prop_assert_eq!(table.find(client, port, frontend), oracle.get(&key).copied());
                if add && !oracle.contains_key(&key) {
                    match table.insert(Flow::new(client, port, frontend, 0)) {
                        Some(id) => { prop_assert!(oracle.insert(key, id).is_none()); }
                        None => prop_assert_eq!(oracle.len(), 32),
                    }
                } else if let Some(id) = oracle.remove(&key) {
                    table.remove(id);
                }
                prop_assert_eq!(table.used() as usize, oracle.len());
                // Keys change all the time.
                table.take_keys(piece);
            }
        }
    }
}
