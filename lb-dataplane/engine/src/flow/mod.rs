//! Flows: what is known of each client connection, and the table that finds them.
//!
//! Owns the record's fields. It knows nothing of packets: callers keep the fields true.

pub(crate) mod kept;
pub(crate) mod pieces;
mod table;

use crate::{
    clock::Instant,
    flow::kept::KeptList,
    handover::{Mark, Progress},
    ids::{Addr, BacklogId, Leg, NONE},
    net::routes::HopId,
    obs::{cause::Causes, ledger::Moved, pins::PinReason},
    states::State,
};
use baton_packet::{Mac, SeqNumber};
pub(crate) use table::FlowTable;

/// What an IPv4 host takes at least (RFC 791 section 3.1), less both headers.
pub(crate) const MSS_MIN: u16 = 576 - 40;

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
    /// Last timestamp value of each side ([`Flow::note_client_ts`]), and when the server's was seen
    /// (ms).
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
    /// The client's MSS, or that of the path to it.
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

    /// A segment of the client's with this timestamp, of which no byte in front is missing: as its
    /// receiver's kernel does, one that was overtaken is not remembered, nor one that is ahead (RFC
    /// 7323 section 4.3; Linux `tcp_replace_ts_recent`). A new owner would take what comes late
    /// with an older one for an old duplicate.
    #[inline(always)]
    pub(crate) fn note_client_ts(&mut self, value: u32) {
        if value.wrapping_sub(self.client_ts).cast_signed() >= 0 {
            self.client_ts = value;
        }
    }

    /// A segment of the server's with this timestamp, likewise.
    #[inline(always)]
    pub(crate) fn note_server_ts(&mut self, now: Instant, value: u32) {
        if value.wrapping_sub(self.server_ts).cast_signed() >= 0 {
            (self.server_ts, self.server_ts_ms) = (value, now.ms32());
        }
    }

    /// The server's timestamp clock now, going on from its last value at 1 ms a tick (RFC 7323
    /// section 5.4; Linux `tcp_ts_hz`).
    pub(crate) fn server_ts_at(&self, now_ms: u32) -> u32 {
        self.server_ts.wrapping_add(now_ms.wrapping_sub(self.server_ts_ms))
    }

    /// Whether the client may send at `seq`: not beyond the largest window that the backend can
    /// have offered (RFC 7323 section 2.3). What is beyond is for the backend's kernel to judge;
    /// the flow learns nothing from it.
    #[inline]
    pub(crate) fn client_may_send(&self, seq: SeqNumber) -> bool {
        seq.since(self.client_acked) <= 0xffff << (self.scales >> 4)
    }

    /// Whether the client may acknowledge that: it was sent, and is no older than what can be under
    /// way (RFC 5961 section 5.2).
    #[inline]
    pub(crate) fn client_may_ack(&self, ack: SeqNumber) -> bool {
        ack.at_or_before(self.server_next)
            && self.server_acked.since(ack) <= self.client_window_max() as i32
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

    /// Whether the client's path may not take a segment of so many bytes with its header (`icmp`).
    /// What its MSS allows, pods keep to. A path that takes less than any host has to is not
    /// remembered as such, so that nothing is known to pass where the MSS is the least.
    #[inline]
    pub(crate) fn is_narrower_than(&self, bytes: u32) -> bool {
        bytes > u32::from(self.mss) + 20 || self.mss <= MSS_MIN
    }

    /// Moves so far.
    pub(crate) fn moves(&self) -> u16 {
        self.migrations / 2
    }

    /// The flow came to its owner without a request and has had none since.
    pub(crate) fn adopted_idle(&self) -> bool {
        self.migrations > 0 && self.boundary == self.client_next
    }

    /// Whether we ended the connection, and its client has not acknowledged that.
    pub(crate) fn owes_fin(&self) -> bool {
        self.bits.has(Bits::FIN_SENT) && self.server_acked != self.server_next
    }

    /// The client of a flow that we ended acknowledges something.
    pub(crate) fn hears_fin(&mut self, now: Instant, ack: SeqNumber) {
        if self.owes_fin() && ack == self.server_next {
            self.server_acked = ack;
            self.last_ms = now.ms32();
        }
    }

    /// Everything that either side sent is acknowledged by the other.
    #[inline]
    pub(crate) fn all_acked(&self) -> bool {
        self.client_acked == self.client_next && self.server_acked == self.server_next
    }
}
