//! Copies of the requests that clients have outstanding: which are kept, and whose give way.
//!
//! Small segments of one request share a copy. The clients of one network have no more than half of
//! all, and where there is no room, the request that has been incomplete for the longest time loses
//! its copies: whoever begins requests and ends none harms himself. Owns these rules; the copies
//! lie in `kept`. It never changes a flow's state.
//!
//! # Decisions
//!
//! - **Copies of requests have parts**: small segments share one (512 bytes, under any pod's MSS),
//!   the clients of one address (IPv6: /64) have half of all at most, and where there is no room
//!   the request that has been incomplete for the longest time loses its own. A SYN is built anew
//!   from what the flow knows of it. 2,048 connections with eight one-byte segments each had
//!   emptied the pool.

use crate::{
    Engine,
    containers::slots::Slots,
    flow::{
        Bits,
        kept::{KEPT_PER_FLOW_MAX, KeptList},
        pieces,
    },
    handover::Mark,
    ids::FlowId,
    obs::counters::Counter,
    states::{Frame, State},
};
use baton_api::{BackendFailure, MigrationMode, Protocol};
use baton_packet::{Decoded, Flags, Segment, decode, extend_segment};

/// Segments of a request share a copy up to so many bytes of payload: less than any pod's MSS (RFC
/// 9293 section 3.7.1). In a short slot there is room for somewhat less.
const SHARED_BYTES_MAX: usize = 512;
/// Of the requests that have been incomplete for the longest time, so many are looked at for one
/// that can give way.
const LOOKED_AT_MAX: usize = 32;

impl Engine {
    /// A request begins with this segment: where, and a copy of it.
    pub(crate) fn begin_request(&mut self, id: FlowId, frame: &[u8], segment: &Segment) {
        self.counters.add(Counter::Requests);
        self.drop_kept(id);
        if self.flows[id].backlog.is_some() {
            self.drop_backlog(id);
        }
        let complete = self.size_request(id);
        let flow = &mut self.flows[id];
        flow.boundary = segment.seq;
        flow.progress.replays = 0;
        flow.progress.set(Mark::ReleaseSettled, false);
        flow.progress.set(Mark::Released, false);
        flow.bits.set(Bits::CLIENT_RESET, false);
        let spec = &self.policies[usize::from(flow.policy)].spec;
        // One that pins a flow without an owner still has to reach one.
        let of_use = (flow.pin.is_none() || flow.state.lacks_owner())
            && spec.protocol != Protocol::None
            && (spec.on_backend_failure != BackendFailure::Reset
                || spec.migration.mode != MigrationMode::Never);
        if of_use && self.keep(id, frame, segment) {
            self.flows[id].bits.set(Bits::KEPT_WHOLE, true);
            if !complete {
                self.copies.kept.is_incomplete(self.flows[id].kept, id);
            }
        }
    }

    /// More of the request, while all of it so far is kept.
    pub(crate) fn keep_more(&mut self, id: FlowId, frame: &[u8], segment: &Segment) {
        if !self.flows[id].bits.has(Bits::KEPT_WHOLE) || self.keep(id, frame, segment) {
            return;
        }
        self.keep_no_more(id);
    }

    /// More of a request that is being handed over, or a FIN behind it: kept and forwarded as long
    /// as there is room, then it waits until the new owner has confirmed. With what waits the
    /// request is still whole.
    pub(crate) fn keep_or_wait(&mut self, id: FlowId, frame: &[u8], segment: &Segment) -> Frame {
        let of_use = self.flows[id].bits.has(Bits::KEPT_WHOLE) || segment.payload_len() == 0;
        if of_use && self.is_kept_next(id, segment) {
            let _ = self.keep(id, frame, segment);
            return Frame::Forward;
        }
        let waits = self.let_wait(id, frame, segment);
        if !waits {
            self.keep_no_more(id);
        }
        if waits || self.flows[id].backlog.is_some() {
            Frame::Absorb
        } else {
            // Nothing is in front of it: the new owner may take it at once.
            Frame::Forward
        }
    }

    /// Some of the request is missing among the kept copies, or was sent since. What they hold may
    /// still complete a hand-over, as nobody has acknowledged it yet, or be owed; for another one
    /// they are of no use.
    pub(crate) fn keep_no_more(&mut self, id: FlowId) {
        self.flows[id].bits.set(Bits::KEPT_WHOLE, false);
        let flow = &self.flows[id];
        if flow.state == State::Request && !flow.progress.is(Mark::CopiesOwed) {
            self.drop_kept(id);
        }
    }

    /// Keeps a copy of a client segment while its request's fate is open.
    fn keep(&mut self, id: FlowId, frame: &[u8], segment: &Segment) -> bool {
        if self.shares_a_copy(self.flows[id].kept, frame, segment) {
            return true;
        }
        let (network, copies) = (self.flows[id].network, pieces::count(segment));
        let mut list = self.flows[id].kept;
        let before = match copies.all {
            1 => Slots::default(),
            _ => self.copies.kept.slots_of(list),
        };
        let count = u32::from(self.copies.kept.count(list));
        let fits = copies.all + count <= u32::from(KEPT_PER_FLOW_MAX);
        let room = |e: &Self| {
            let takes = e.copies.kept.takes(copies);
            takes.filter(|takes| e.copies.requests.have_room(network, *takes))
        };
        let mut takes = if fits { room(self) } else { None };
        if fits && takes.is_none() {
            self.make_room(id, copies);
            takes = room(self);
        }
        let kept = takes.is_some()
            && pieces::all(frame, segment, |copy| {
                self.copies.kept.push(&mut list, copy, KEPT_PER_FLOW_MAX)
            });
        self.flows[id].kept = list;
        if let Some(takes) = takes.filter(|_| kept) {
            self.copies.requests.takes(network, takes);
        } else if copies.all > 1 {
            // Pieces may have been kept before one that could not be made.
            let mut added = self.copies.kept.slots_of(list);
            added -= before;
            self.copies.requests.takes(network, added);
        }
        if !kept {
            self.flows[id].bits.set(Bits::KEPT_WHOLE, false);
            self.counters.add(Counter::KeptFull);
        }
        kept
    }

    /// Puts a small segment behind the request's last one, if that is small too.
    fn shares_a_copy(&mut self, list: KeptList, frame: &[u8], segment: &Segment) -> bool {
        let small = segment.payload_len() > 0 && segment.payload_len() < SHARED_BYTES_MAX as u32;
        if list.is_empty() || !small {
            return false;
        }
        self.copies.kept.lengthen_last(list, |copy, len| {
            let Ok(Decoded::Tcp(last)) = decode(copy.get(..len)?) else {
                return None;
            };
            let data = segment.data(frame);
            let plain = |flags: Flags| flags.without(Flags::PSH) == Flags::ACK;
            let next = plain(last.flags)
                && plain(segment.flags)
                && last.seq.add(last.payload_len()) == segment.seq
                && last.payload_len() as usize + data.len() <= SHARED_BYTES_MAX;
            next.then(|| extend_segment(copy, &last, data, segment.flags)).flatten()
        })
    }

    /// Makes room for copies of this flow's: of its own network's where that has its part, else of
    /// anybody's.
    #[cold]
    fn make_room(&mut self, id: FlowId, copies: Slots) {
        let network = self.flows[id].network;
        let takes = self.copies.kept.takes(copies).unwrap_or(copies);
        let own_alone = !self.copies.requests.have_room(network, takes);
        // If there were room for as many short copies, only long slots are of use.
        let short = Slots { long: 0, ..copies };
        let has_short = |takes| self.copies.requests.have_room(network, takes);
        let long_alone = self.copies.kept.takes(short).is_some_and(has_short);
        let gives_way = |other: &FlowId| {
            let flow = &self.flows[*other];
            let of_use = !long_alone || self.copies.kept.slots_of(flow.kept).long > 0;
            let own = !own_alone || flow.network == network;
            let owed = flow.progress.is(Mark::CopiesOwed);
            *other != id && flow.state == State::Request && own && of_use && !owed
        };
        let oldest = self.copies.kept.incomplete().take(LOOKED_AT_MAX).find(gives_way);
        if let Some(other) = oldest {
            self.counters.add(Counter::KeptGaveWay);
            self.keep_no_more(other);
        }
    }

    pub(crate) fn drop_kept(&mut self, id: FlowId) {
        let flow = &mut self.flows[id];
        if !flow.kept.is_empty() {
            let slots = self.copies.kept.slots_of(flow.kept);
            self.copies.requests.returns(flow.network, slots);
            self.copies.kept.clear(&mut flow.kept);
        }
        flow.bits.set(Bits::KEPT_WHOLE, false);
        flow.progress.set(Mark::Unseen, false);
        flow.progress.set(Mark::CopiesOwed, false);
        if flow.progress.take(Mark::ReleaseAsked) {
            flow.note_aside();
        }
    }

    /// A pinned flow's request is not sent again, unless it is being handed over just now, or owed.
    pub(crate) fn drop_kept_unless_needed(&mut self, id: FlowId) {
        if self.flows[id].state == State::Request {
            self.keep_no_more(id);
        }
    }
}
