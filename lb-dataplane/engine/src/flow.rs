//! Flows and the table that finds them by the client's end.
//!
//! Owns the memory of all flows (one slab, one array of hash chains, reserved at start). It knows nothing
//! of packets: callers keep the fields true.

use crate::{
    backlog::BacklogId, cause::Causes, kept::KeptList, keyed::Keyed, ledger::Moved,
    pins::PinReason, routes::HopId, states::State,
};
use baton_packet::{Mac, SeqNumber};
use std::net::IpAddr;

/// An IP address as 16 bytes, IPv4 mapped (`::ffff:a.b.c.d`).
pub(crate) type Addr = [u8; 16];

/// Index of a flow in the table.
pub(crate) type FlowId = u32;

/// No flow, no leg, end of a chain.
pub(crate) const NONE: u32 = u32::MAX;

/// Facts about a flow that are either so or not.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Bits(u16);

impl Bits {
    pub(crate) const WSCALE: u16 = 1;
    pub(crate) const SACK: u16 = 1 << 1;
    pub(crate) const TIMESTAMPS: u16 = 1 << 2;
    pub(crate) const ECN: u16 = 1 << 3;
    pub(crate) const V6: u16 = 1 << 4;
    /// An adoption carries a session's restoring bytes, and their replies are still to come.
    pub(crate) const PRELUDE: u16 = 1 << 5;
    /// A request is counted as outstanding at the owner.
    pub(crate) const OUTSTANDING: u16 = 1 << 6;
    /// The kept copies, and what waits behind them (`backlog`), hold every byte since the boundary, and no answer has begun.
    pub(crate) const KEPT_WHOLE: u16 = 1 << 7;
    /// No application can have seen the kept bytes yet.
    pub(crate) const UNSEEN: u16 = 1 << 8;
    /// The standby leg closed or reset: nothing to roll back to.
    pub(crate) const STANDBY_GONE: u16 = 1 << 9;
    /// The client's FIN was seen while an adoption was unconfirmed.
    pub(crate) const CLIENT_FIN: u16 = 1 << 10;
    /// A move or its taking back happened at `moved_ms`.
    pub(crate) const MOVED: u16 = 1 << 11;
    /// The owner's end that is held back was a FIN; otherwise a RST, or silence.
    pub(crate) const HELD_FIN: u16 = 1 << 12;
    /// The adoption in flight saves a flow whose owner is gone.
    pub(crate) const RESCUE: u16 = 1 << 13;
    /// The first of two replies to the restoring bytes came.
    pub(crate) const PRELUDE_HALF: u16 = 1 << 14;
    /// The end that is held back came from a process that has the listener. Shares its bit with `PRELUDE_HALF`, which is clear when
    /// restoring bytes leave, and looked at only then.
    pub(crate) const CLOSER_LISTENS: u16 = Self::PRELUDE_HALF;
    /// The owner closed before it knew of the client's close, so that its kernel is left in TIME_WAIT. Shares its bit with
    /// `STANDBY_GONE`: both sides have closed, and there is no standby leg.
    pub(crate) const POD_WAITS: u16 = Self::STANDBY_GONE;
    /// A FIN of our own making went to the client.
    pub(crate) const FIN_SENT: u16 = 1 << 15;

    #[inline]
    pub(crate) fn has(self, bit: u16) -> bool {
        self.0 & bit != 0
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

/// One leg: a backend and our port towards it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Leg {
    pub(crate) backend: u16,
    pub(crate) port: u16,
}

impl Leg {
    /// Port 0 is no leg.
    pub(crate) const NONE: Leg = Leg {
        backend: u16::MAX,
        port: 0,
    };

    #[inline]
    pub(crate) fn is_some(self) -> bool {
        self.port != 0
    }
}

/// A client connection.
#[derive(Clone)]
pub(crate) struct Flow {
    pub(crate) client: Addr,
    /// Hash chain, or the free list.
    next: FlowId,
    pub(crate) client_port: u16,
    pub(crate) frontend: u16,
    pub(crate) policy: u16,
    pub(crate) owner: Leg,
    /// The old owner while an adoption is open. While somebody's wish to have the flow moved waits (`migrate`): the backend
    /// that it is to go to, without a port.
    pub(crate) standby: Leg,
    /// Next hop towards the client; none: `mac`.
    pub(crate) hop: HopId,
    /// Where its SYN came from.
    pub(crate) mac: Mac,
    /// The number of its client's network (`shares`).
    pub(crate) network: u16,
    pub(crate) bits: Bits,
    pub(crate) state: State,
    /// Server's window scale in the high nibble, client's in the low one.
    pub(crate) scales: u8,
    /// Adoption or redirection tries so far.
    pub(crate) tries: u8,
    /// How often the outstanding request was given to another backend although one may have executed it.
    pub(crate) replays: u8,
    /// Why the flow never moves again.
    pub(crate) pin: Option<PinReason>,
    /// Why it last moved, and why it moves now.
    pub(crate) causes: Causes,
    /// What the outstanding request moved for, until it is answered.
    pub(crate) moved: Moved,
    /// Adoption segments sent on the owner leg, and refusals among the answers to them.
    pub(crate) asked: u8,
    pub(crate) refusals: u8,
    /// How often the owner's pod had been replaced when the flow came to it (`Probe::renewed`).
    pub(crate) renewed: u8,
    /// The client's MSS.
    pub(crate) mss: u16,
    /// Last window field of each side, unscaled.
    pub(crate) client_window: u16,
    /// Next new byte of the client: all before it was seen, or need not be (`early`).
    pub(crate) client_next: SeqNumber,
    /// Highest client byte that the backend acknowledged.
    pub(crate) client_acked: SeqNumber,
    /// Next new byte of the backend, likewise.
    pub(crate) server_next: SeqNumber,
    /// Highest backend byte that the client acknowledged.
    pub(crate) server_acked: SeqNumber,
    /// Last timestamp value of each side, and when the server's was seen (ms).
    pub(crate) client_ts: u32,
    pub(crate) server_ts: u32,
    pub(crate) server_ts_ms: u32,
    /// First byte of the request that an adoption carries.
    pub(crate) boundary: SeqNumber,
    /// When the outstanding request was sent (us, wrapping).
    pub(crate) sent_us: u32,
    /// When the last segment was seen (ms, wrapping).
    pub(crate) last_ms: u32,
    /// When the flow came to its owner (ms, wrapping).
    pub(crate) moved_ms: u32,
    /// At most 65,535 are counted.
    pub(crate) migrations: u16,
    pub(crate) kept: KeptList,
    /// What came ahead of missing segments, from the client and from the server (`early`).
    pub(crate) early_client: KeptList,
    pub(crate) early_server: KeptList,
    /// The guard's slot.
    pub(crate) guard: u32,
    /// Its slot in the table of backlogs, if some of its client's bytes wait for a new owner's window.
    pub(crate) backlog: BacklogId,
    /// How long the request is was not known when it began.
    pub(crate) unsized_request: bool,
    /// The client's repetition of the request was counted.
    pub(crate) repeated: bool,
    /// The client sent a RST that the pod may have taken: what the pod's end says is not about the
    /// pod.
    pub(crate) client_reset: bool,
}

/// Timers cost 16 bytes an entry (see `wheel`), hash chains 4, and 4 those of the next keys.
const _: () = assert!(size_of::<Flow>() + 16 + 8 <= crate::FLOW_BYTES_MAX);

impl Flow {
    pub(crate) fn new(client: Addr, client_port: u16, frontend: u16, policy: u16) -> Self {
        Self {
            client,
            next: NONE,
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
            tries: 0,
            replays: 0,
            pin: None,
            causes: Causes::default(),
            moved: Moved::NO,
            asked: 0,
            refusals: 0,
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
            unsized_request: false,
            repeated: false,
            client_reset: false,
        }
    }

    /// What its client has for certain: an IPv4 address, or the first 64 bits of an IPv6 one (RFC
    /// 6177).
    pub(crate) fn client_network(&self) -> Addr {
        let mut network = self.client;
        if self.bits.has(Bits::V6) {
            network[8..].fill(0);
        }
        network
    }

    /// The server's timestamp clock now, going on from its last value at 1 ms a tick (RFC 7323 section 5.4;
    /// Linux `tcp_ts_hz`).
    pub(crate) fn server_ts_at(&self, now_ms: u32) -> u32 {
        self.server_ts
            .wrapping_add(now_ms.wrapping_sub(self.server_ts_ms))
    }

    /// Whether the client may send at `seq`: not beyond the largest window that the backend can have offered
    /// (RFC 7323 section 2.3). What is beyond is for the backend's kernel to judge; the flow learns nothing from it.
    #[inline]
    pub(crate) fn client_may_send(&self, seq: SeqNumber) -> bool {
        seq.since(self.client_acked) <= 0xffff << (self.scales >> 4)
    }

    /// Whether the backend may send at `seq`, likewise.
    #[inline]
    pub(crate) fn server_may_send(&self, seq: SeqNumber) -> bool {
        seq.since(self.server_acked) <= 0xffff << (self.scales & 15)
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

/// A chain of so many flows is no chance while there are as many chains as flows: expected in one
/// of 10^19 tables of 65,536.
const CHAIN_MAX: u32 = 24;

/// All flows: a slab with a free list, and hash chains over (client, client port, frontend). With a
/// chain that is too long it takes new keys, and changes over to them in pieces.
pub(crate) struct FlowTable {
    flows: Box<[Flow]>,
    chains: Box<[FlowId]>,
    /// Chains by the next keys: of the flows whose present chain is one of the first
    /// [`Self::moved`].
    next_chains: Box<[FlowId]>,
    moved: usize,
    free: FlowId,
    used: u32,
    keys: Keyed,
    next_keys: Keyed,
    secret: (u64, u64),
    generation: u64,
    /// A chain was too long since.
    long: bool,
}

impl FlowTable {
    pub(crate) fn new(limit: u32, secret: (u64, u64)) -> Self {
        let blank = Flow::new([0; 16], 0, 0, 0);
        let mut flows = vec![blank; limit as usize].into_boxed_slice();
        for (i, flow) in flows.iter_mut().enumerate() {
            flow.next = if i + 1 < limit as usize {
                i as u32 + 1
            } else {
                NONE
            };
        }
        let chains = vec![NONE; (limit as usize).next_power_of_two()].into_boxed_slice();
        Self {
            flows,
            next_chains: chains.clone(),
            chains,
            moved: 0,
            free: if limit == 0 { NONE } else { 0 },
            used: 0,
            keys: Keyed::new(secret, 0),
            next_keys: Keyed::new(secret, 1),
            secret,
            generation: 0,
            long: false,
        }
    }

    /// Where the chain of a flow begins.
    #[inline]
    fn chain(&self, client: &Addr, port: u16, frontend: u16) -> &FlowId {
        let mask = self.chains.len() - 1;
        let at = self.keys.hash(client, port, frontend) as usize & mask;
        if at >= self.moved {
            return &self.chains[at];
        }
        &self.next_chains[self.next_keys.hash(client, port, frontend) as usize & mask]
    }

    fn chain_mut(&mut self, client: &Addr, port: u16, frontend: u16) -> &mut FlowId {
        let mask = self.chains.len() - 1;
        let at = self.keys.hash(client, port, frontend) as usize & mask;
        if at >= self.moved {
            return &mut self.chains[at];
        }
        &mut self.next_chains[self.next_keys.hash(client, port, frontend) as usize & mask]
    }

    #[inline]
    pub(crate) fn find(&self, client: &Addr, port: u16, frontend: u16) -> Option<FlowId> {
        let mut id = *self.chain(client, port, frontend);
        while id != NONE {
            let flow = &self.flows[id as usize];
            if flow.client_port == port && flow.frontend == frontend && flow.client == *client {
                return Some(id);
            }
            id = flow.next;
        }
        None
    }

    /// Adds a flow; `None` if the table is full.
    pub(crate) fn insert(&mut self, mut flow: Flow) -> Option<FlowId> {
        let id = self.free;
        if id == NONE {
            return None;
        }
        self.free = self.flows[id as usize].next;
        let chain = self.chain_mut(&flow.client, flow.client_port, flow.frontend);
        flow.next = std::mem::replace(chain, id);
        self.note_length(flow.next);
        self.flows[id as usize] = flow;
        self.used += 1;
        Some(id)
    }

    fn note_length(&mut self, mut id: FlowId) {
        for _ in 0..CHAIN_MAX {
            match self.flows.get(id as usize) {
                Some(flow) => id = flow.next,
                None => return,
            }
        }
        self.long = true;
    }

    /// A chain was too long, and the change over to other keys is not at its end.
    pub(crate) fn wants_keys(&self) -> bool {
        self.long
    }

    /// Changes over to the next keys, so many chains at a time. Whether that is done.
    pub(crate) fn take_keys(&mut self, chains: usize) -> bool {
        let to = (self.moved + chains).min(self.chains.len());
        while self.moved < to {
            let mut id = std::mem::replace(&mut self.chains[self.moved], NONE);
            self.moved += 1;
            while id != NONE {
                let flow = &self.flows[id as usize];
                let (next, client) = (flow.next, flow.client);
                let (port, frontend) = (flow.client_port, flow.frontend);
                let chain = self.chain_mut(&client, port, frontend);
                let behind = std::mem::replace(chain, id);
                self.flows[id as usize].next = behind;
                id = next;
            }
        }
        if self.moved < self.chains.len() {
            return false;
        }
        std::mem::swap(&mut self.chains, &mut self.next_chains);
        self.generation += 1;
        self.keys = self.next_keys;
        self.next_keys = Keyed::new(self.secret, self.generation + 1);
        (self.moved, self.long) = (0, false);
        true
    }

    pub(crate) fn remove(&mut self, id: FlowId) {
        let flow = &self.flows[id as usize];
        let (client, after) = (flow.client, flow.next);
        let (port, frontend) = (flow.client_port, flow.frontend);
        let chain = self.chain_mut(&client, port, frontend);
        let mut at = *chain;
        if at == id {
            *chain = after;
        } else {
            while self.flows[at as usize].next != id {
                at = self.flows[at as usize].next;
            }
            self.flows[at as usize].next = after;
        }
        let flow = &mut self.flows[id as usize];
        flow.state = State::Gone;
        flow.owner = Leg::NONE;
        flow.standby = Leg::NONE;
        flow.next = self.free;
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

/// An address in 16 bytes.
#[inline]
pub(crate) fn to_addr(address: IpAddr) -> Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// And back; a mapped address is IPv4.
#[inline]
pub(crate) fn from_addr(address: &Addr) -> IpAddr {
    // As `to_canonical` does, but by whole words: it runs twice for each packet.
    let [high @ .., e, f, g, h, a, b, c, d] = *address;
    if u64::from_ne_bytes(high) == 0 && [e, f, g, h] == MAPPED {
        IpAddr::from([a, b, c, d])
    } else {
        IpAddr::from(*address)
    }
}

/// What stands between 64 zero bits and the IPv4 address in a mapped one (RFC 4291 section 2.5.5.2).
const MAPPED: [u8; 4] = [0, 0, 0xff, 0xff];

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn flows_in_one_chain_make_the_table_take_other_keys() {
        let mut table = FlowTable::new(1_024, (1, 2));
        let client = to_addr(IpAddr::from([192, 0, 2, 7]));
        let chain = |t: &FlowTable, port| t.keys.hash(&client, port, 0) as usize % t.chains.len();
        let wanted = chain(&table, 1);
        let together: Vec<u16> = (1..=u16::MAX)
            .filter(|p| chain(&table, *p) == wanted)
            .collect();
        let (some, one_more) = (
            &together[..CHAIN_MAX as usize],
            together[CHAIN_MAX as usize],
        );
        for port in some {
            table.insert(Flow::new(client, *port, 0, 0)).expect("room");
        }
        assert!(!table.wants_keys());
        table
            .insert(Flow::new(client, one_more, 0, 0))
            .expect("room");
        assert!(table.wants_keys());
        let mut pieces = 1;
        while !table.take_keys(100) {
            pieces += 1;
            // All are found meanwhile.
            assert!(
                some.iter()
                    .all(|port| table.find(&client, *port, 0).is_some())
            );
        }
        assert_eq!(pieces, 11);
        assert!(!table.wants_keys());
        let chains: std::collections::HashSet<_> =
            some.iter().map(|port| chain(&table, *port)).collect();
        assert!(chains.len() > 20, "{} chains", chains.len());
    }

    proptest! {
        #[test]
        fn an_address_comes_back_as_its_canonical_form(bits in any::<u128>(), mapped in any::<bool>()) {
            let bits = if mapped { 0xffff << 32 | (bits & 0xffff_ffff) } else { bits };
            let address = std::net::Ipv6Addr::from_bits(bits);
            prop_assert_eq!(from_addr(&address.octets()), IpAddr::from(address).to_canonical());
        }

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
                prop_assert_eq!(table.find(&client, port, frontend), oracle.get(&key).copied());
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
