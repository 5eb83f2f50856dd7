//! Segments that came ahead of missing ones. A network loses and reorders; guards are shown bytes
//! in order all the same.
//!
//! What is ahead is forwarded at once, as the receiver's kernel wants it, and a copy of it is set
//! aside. When the missing bytes come, the copies are treated as if they came only then. Until then
//! the flow's place (`client_next`, `server_next`) stays in front of the hole, so no rule of the
//! engine ever sees one. Where nothing that is followed can lie in the hole, nothing is set aside:
//! inside a body of known length, in a flow that nobody follows. Without room the segment is not
//! passed on: nobody acknowledges it, so its sender repeats it.
//!
//! Owns the limits of what is set aside, and in which order it is taken up again. The copies lie
//! among the kept ones (`kept`). It never judges bytes, and never changes a flow's state itself.
//!
//! # Decisions
//!
//! - **Guards are shown bytes in order, whatever the order on the wire**: a segment that is ahead
//!   of missing ones is forwarded at once, as the receiver's kernel wants it, but the flow's place
//!   stays in front of the hole, and a copy waits until the hole is filled; then it is treated as
//!   if it came only now. So no rule of the engine ever sees a hole, no loss pins, and what a pod
//!   needs again for a rescue is kept whole. Inside a body of known length, and where nobody
//!   follows, nothing is set aside. At most 64 segments a flow and direction, a quarter of
//!   `limits.keptSegments` in all, a quarter of that for the clients of one address (IPv6: /64);
//!   beyond, a segment is not passed on, so that its sender repeats it. A server's bytes behind a
//!   hole count as an answer that has begun: nobody else may give another one. Before, 0.01 % of
//!   packets lost had pinned 12 of 32 connections within 15 s.

use crate::{
    Engine, Output,
    clock::Instant,
    containers::slots::KEPT_BYTES,
    flow::{
        Bits,
        kept::{KEPT_PER_FLOW_MAX, Kept, KeptList},
        pieces,
    },
    ids::FlowId,
    obs::counters::Counter,
    states::Event,
    tables::From,
};
use baton_api::Protocol;
use baton_packet::{Decoded, Family, Segment, SeqNumber, V4, V6, decode, plain};

/// Segments of one flow and direction that may be set aside: 93 KB at the usual MTU, six times a
/// sender's first window (RFC 6928).
pub(crate) const EARLY_PER_FLOW_MAX: u16 = 64;

/// What becomes of a segment with new bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It is its turn, or what is missing in front of it is of no interest.
    Now,
    /// It is set aside. It is passed on all the same.
    Later,
    /// There is no room: it comes again.
    Never,
}

fn span(copy: &[u8]) -> Option<(Segment, SeqNumber)> {
    match decode(copy) {
        Ok(Decoded::Tcp(segment)) => {
            let end = segment.seq.add(segment.seq_len());
            Some((segment, end))
        }
        _ => None,
    }
}

/// Where a copy begins and ends. There may be 64 to look at for each segment, so where it can be
/// read off it is not decoded.
fn ends(copy: &[u8]) -> Option<(SeqNumber, SeqNumber)> {
    fn of<F: Family, const STAMPED: bool>(copy: &[u8]) -> Option<(SeqNumber, SeqNumber)> {
        let plain = plain::<F, STAMPED>(copy)?;
        let seq = plain.seq(copy);
        Some((seq, seq.add(plain.data_len())))
    }
    of::<V4, true>(copy)
        .or_else(|| of::<V6, true>(copy))
        .or_else(|| span(copy).map(|(segment, end)| (segment.seq, end)))
}

impl Engine {
    fn early_of(&self, id: FlowId, from: From) -> KeptList {
        match from {
            From::Client => self.flows[id].early_client,
            From::Server => self.flows[id].early_server,
        }
    }

    fn set_early(&mut self, id: FlowId, from: From, list: KeptList) {
        let flow = &mut self.flows[id];
        match from {
            From::Client => flow.early_client = list,
            From::Server => flow.early_server = list,
        }
        flow.note_aside();
    }

    fn place(&self, id: FlowId, from: From) -> SeqNumber {
        match from {
            From::Client => self.flows[id].client_next,
            From::Server => self.flows[id].server_next,
        }
    }

    /// Whether it is the turn of a segment with new bytes, which becomes early otherwise.
    #[inline]
    pub(crate) fn turn(
        &mut self,
        now: Instant,
        id: FlowId,
        from: From,
        frame: &[u8],
        segment: &Segment,
        out: &mut impl Output,
    ) -> Turn {
        if segment.seq.at_or_before(self.place(id, from)) {
            return Turn::Now;
        }
        self.turn_ahead(now, id, from, frame, segment, out)
    }

    #[cold]
    fn turn_ahead(
        &mut self,
        now: Instant,
        id: FlowId,
        from: From,
        frame: &[u8],
        segment: &Segment,
        out: &mut impl Output,
    ) -> Turn {
        if !self.may_be_kept_whole(id, from) {
            self.take_up(now, id, from, out);
            let place = self.place(id, from);
            if segment.seq.add(segment.seq_len()).at_or_before(place) {
                // It was among them.
                return Turn::Later;
            }
            let none_early = self.early_of(id, from).is_empty();
            if segment.seq.at_or_before(place)
                || (none_early && self.may_skip(id, from, segment.seq))
            {
                return Turn::Now;
            }
        }
        if self.set_aside(id, from, frame, segment) {
            Turn::Later
        } else if self.early_of(id, from).is_empty() && self.may_skip(id, from, segment.seq) {
            Turn::Now
        } else {
            Turn::Never
        }
    }

    /// Whether all of the client's request may still be kept: then a hole in its body is not
    /// skipped, as a rescue needs what is missing.
    fn may_be_kept_whole(&self, id: FlowId, from: From) -> bool {
        let flow = &self.flows[id];
        let count = self.copies.kept.count(flow.kept) + self.copies.kept.count(flow.early_client);
        from == From::Client && flow.bits.has(Bits::KEPT_WHOLE) && count < KEPT_PER_FLOW_MAX
    }

    /// Whether nothing of interest can lie between the flow's place and `seq`.
    fn may_skip(&self, id: FlowId, from: From, seq: SeqNumber) -> bool {
        let flow = &self.flows[id];
        let protocol = self.policies[usize::from(flow.policy)].spec.protocol;
        if flow.pin.is_some() || protocol == Protocol::None {
            return true;
        }
        if protocol == Protocol::RequestResponse {
            // Only where requests begin is of interest.
            return from == From::Server || !flow.state.is_quiet();
        }
        let gap = seq.since(self.place(id, from)).max(0) as u32;
        self.tracker(id).is_some_and(|tracker| match from {
            From::Client => tracker.client_may_skip(gap),
            From::Server => tracker.server_may_skip(gap),
        })
    }

    /// Keeps a copy until the turn of the segment comes. False if there is no room, which is
    /// counted.
    fn set_aside(&mut self, id: FlowId, from: From, frame: &[u8], segment: &Segment) -> bool {
        let mut list = self.early_of(id, from);
        let copies = pieces::count(segment);
        let before = self.copies.kept.slots_of(list);
        // As a rule there is one hole, and what is behind it comes in order.
        let is_last = (self.copies.kept.last(list).and_then(ends))
            .is_none_or(|(_, to)| to.at_or_before(segment.seq));
        let is_there = |kept: &Kept, list, part: &Segment, end: SeqNumber| {
            (kept.iter(list).filter_map(ends))
                .take_while(|(from, _)| from.at_or_before(part.seq))
                .any(|(_, to)| end.at_or_before(to))
        };
        if !is_last
            && pieces::all(frame, segment, |copy| {
                span(copy).is_some_and(|(part, end)| is_there(&self.copies.kept, list, &part, end))
            })
        {
            return true;
        }
        let network = self.flows[id].network;
        let (takes, early) = (self.copies.kept.takes(copies), &self.copies.early);
        let room = |takes| early.segments.have_room(takes, early.segments_max);
        let full = if copies.all > u32::from(EARLY_PER_FLOW_MAX) - before.all {
            Some(Counter::EarlyFlowFull)
        } else if !early.shares.have_room(network, takes.unwrap_or(copies)) {
            Some(Counter::EarlyNetworkFull)
        } else if !takes.is_some_and(room) {
            Some(Counter::EarlyFull)
        } else {
            None
        };
        self.counters.add(full.unwrap_or(Counter::EarlySegments));
        if full.is_some() {
            return false;
        }
        let kept = pieces::all(frame, segment, |copy| {
            if is_last {
                return (self.copies.kept).push(&mut list, copy, EARLY_PER_FLOW_MAX);
            }
            let Some((part, end)) = span(copy) else {
                return false;
            };
            if is_there(&self.copies.kept, list, &part, end) {
                return true;
            }
            let later = |early: &[u8]| ends(early).is_some_and(|(from, _)| from.after(part.seq));
            self.copies.kept.insert(&mut list, copy, EARLY_PER_FLOW_MAX, later)
        });
        debug_assert!(kept, "there was room");
        let mut added = self.copies.kept.slots_of(list);
        added -= before;
        self.copies.early.set_aside(network, added);
        self.set_early(id, from, list);
        kept
    }

    /// The next early segment whose turn has come, copied into `frame`.
    fn next_early(
        &mut self,
        id: FlowId,
        from: From,
        frame: &mut [u8; KEPT_BYTES],
    ) -> Option<Segment> {
        loop {
            let mut list = self.early_of(id, from);
            let copy = self.copies.kept.iter(list).next()?;
            let next = span(copy);
            let place = self.place(id, from);
            if let Some((segment, _)) = next
                && segment.seq.after(place)
                && (self.may_be_kept_whole(id, from) || !self.may_skip(id, from, segment.seq))
            {
                return None;
            }
            frame[..copy.len()].copy_from_slice(copy);
            let popped = self.copies.kept.pop(&mut list);
            self.set_early(id, from, list);
            self.copies.early.returned(self.flows[id].network, popped);
            if let Some((segment, end)) = next
                && end.after(place)
            {
                return Some(segment);
            }
        }
    }

    /// Bytes were missing and have come: early segments whose turn it is are treated like any
    /// other, but they are with their receiver already.
    #[inline]
    pub(crate) fn take_up(&mut self, now: Instant, id: FlowId, from: From, out: &mut impl Output) {
        if !self.early_of(id, from).is_empty() {
            self.take_up_early(now, id, from, out);
        }
    }

    #[cold]
    fn take_up_early(&mut self, now: Instant, id: FlowId, from: From, out: &mut impl Output) {
        if from == From::Client && self.flows[id].state.lacks_owner() {
            // Only the owner that ended has them.
            return self.drop_early(id, from);
        }
        let mut frame = [0; KEPT_BYTES];
        while let Some(segment) = self.next_early(id, from, &mut frame) {
            let frame = &mut frame[..usize::from(segment.end)];
            match from {
                From::Client => {
                    let _ = self.client_goes_on(now, frame, &segment, id, out);
                }
                From::Server => {
                    let ahead = segment.seq.since(self.flows[id].server_next);
                    let _ = self.server_data(now, frame, &segment, id, ahead, out);
                    let end = segment.seq.add(segment.payload_len());
                    self.flows[id].server_next = end;
                }
            }
        }
    }

    /// The server's bytes are early: whatever they are, an answer has begun.
    pub(crate) fn answer_begins_early(&mut self, now: Instant, id: FlowId, out: &mut impl Output) {
        if self.flows[id].state.is_unanswered() {
            let _ = self.step(now, id, Event::ServerData, out);
        }
    }

    /// The end of all that a side is known to have sent.
    pub(crate) fn sent_at_most(&self, id: FlowId, from: From) -> SeqNumber {
        let last = self.copies.kept.last(self.early_of(id, from)).and_then(span);
        last.map_or(self.place(id, from), |(_, end)| end)
    }

    /// Forgets what was set aside: nobody has it any more, or nobody needs it.
    pub(crate) fn drop_early(&mut self, id: FlowId, from: From) {
        let mut list = self.early_of(id, from);
        if list.is_empty() {
            return;
        }
        let network = self.flows[id].network;
        self.copies.early.returned(network, self.copies.kept.slots_of(list));
        self.copies.kept.clear(&mut list);
        self.set_early(id, from, list);
    }
}
