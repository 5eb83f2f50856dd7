//! Requests larger than a new owner can take at once: whether they move at all, and client bytes
//! that wait for its window.
//!
//! A client sends into the receive window that the old owner had opened, often megabytes. A new
//! owner's kernel begins with 64 KB and drops what is beyond, and the client repeats that only
//! after a time-out. So a large request moves only where it must, and then its bytes wait here:
//! first until the new owner has confirmed (the kept copies alone went ahead), then until its
//! window reaches them. Owns the table of flows that wait, their right edges and limits; the bytes
//! lie among the kept copies (`kept`). It never changes a flow's state and never waits itself.
//!
//! What the client repeats is never taken here but forwarded as ever: the owner's kernel takes each
//! byte once, and whatever was lost, a repeated segment brings its ACK and so its window.
//!
//! # Decisions
//!
//! - **A request too large for a new pod's first window moves only where it must, and then waits
//!   for the window**. The client sends into the window that the old pod had opened; the new pod's
//!   kernel takes 64 KB at first (`tcp_select_initial_window`) and drops the rest, which the client
//!   repeats after a time-out. So the guard says how much of a request is to come; above 58 KB, or
//!   without a length where the policy lately had such requests above it, a boundary is passed
//!   (`stays_total{reason="large"}`) unless the owner drains, is ejected or dead. There the kept
//!   copies go ahead with the adoption, and what follows waits until the new owner has confirmed,
//!   then until its right edge (acknowledgement and window) reaches it. What waits is sent with the
//!   client's present timestamp, or the pod's PAWS check would drop it; what the client repeats is
//!   always forwarded, so that nothing depends on our memory. The copies are kept segments: 1,024
//!   of a flow, half of the pool. 1 MB to nginx with `Always`: 34 ms a request where `Never` took
//!   16 (p99 268 and 30) before, 12 where it took 16 after; 1 MB off a pod that drains before each
//!   request: 72 ms before (p99 251, a time-out), 12 to 29 after (p99 34 to 71). 50 KB, which
//!   moves: 0.5 ms, and 0.6 staying (`make bench-uploads`, on two CPUs with other load: medians of
//!   two runs with the new programs, of one with the old). Rejected without a trial: telling the
//!   client the new window beforehand. A client takes a smaller one only with bytes newly
//!   acknowledged, and what is on its way comes all the same.

use crate::{
    Engine, Output,
    balance::policy::MoveConstraint,
    clock::Instant,
    containers::slots::Slots,
    flow::{Bits, Flow, kept::KEPT_PER_FLOW_MAX, pieces},
    handover::Mark,
    ids::{BacklogId, FlowId},
    obs::counters::Counter,
    states::{Frame, State},
    tables::{BACKLOG_PER_FLOW_MAX, Backlog, Backlogs, Copies, FIRST_WINDOW_BYTES, From, Reach},
    timing::{BACKLOG_AGAIN_MS, BACKLOG_BURST},
};
use baton_api::MigrationMode;
use baton_guard::{ToCome, Tracker};
use baton_packet::{Decoded, Flags, Segment, SeqNumber, build_segment, decode};

/// What a segment counts for before it is seen whole, where the MTU is not larger.
const SEGMENT_BYTES: u16 = 2 << 10;

/// The right edge of the window that a segment of the owner's offers.
fn right_edge(flow: &Flow, segment: &Segment) -> SeqNumber {
    let scale = if flow.bits.has(Bits::WSCALE) { flow.scales >> 4 } else { 0 };
    segment.ack.add(u32::from(segment.window) << scale)
}

impl Engine {
    /// What is still to come of the flow's request. Without a guard nobody knows.
    fn to_come(&self, id: FlowId) -> ToCome {
        self.tracker(id).map_or(ToCome::AtLeast(0), Tracker::to_come)
    }

    /// Notes whether the length of the request that begins is known. Whether it is complete, as
    /// `request_is_complete` says.
    #[inline]
    pub(crate) fn size_request(&mut self, id: FlowId) -> bool {
        let to_come = self.tracker(id).map(Tracker::to_come);
        let known = matches!(to_come, Some(ToCome::Exactly(_)));
        self.flows[id].bits.set(Bits::UNSIZED, !known);
        matches!(to_come, None | Some(ToCome::Exactly(0)))
    }

    /// The request is answered: how large it was is remembered where nothing had announced it.
    #[inline]
    pub(crate) fn learn_size(&mut self, id: FlowId) {
        let flow = &mut self.flows[id];
        if flow.bits.take(Bits::UNSIZED) {
            let bytes = flow.client_next.since(flow.boundary).max(0) as u32;
            self.policies[usize::from(flow.policy)].learned.saw(bytes);
        }
    }

    /// Whether the flow stays because its request may not fit a new pod's first window. Only a pod
    /// that goes away or fails is left with such a one.
    #[inline]
    pub(crate) fn stays_with_large(&mut self, id: FlowId, ties: MoveConstraint) -> bool {
        let policy = &self.policies[usize::from(self.flows[id].policy)];
        let optional = matches!(
            (policy.spec.migration.mode, ties),
            (MigrationMode::Always, MoveConstraint::None | MoveConstraint::Cooldown)
                | (MigrationMode::WhenBetter, MoveConstraint::None)
        );
        if !optional {
            return false;
        }
        // The segment at hand is part of it.
        let at_hand = u64::from(SEGMENT_BYTES.max(self.settings.mtu));
        let fits = u64::from(FIRST_WINDOW_BYTES).saturating_sub(at_hand);
        let large = match self.to_come(id) {
            ToCome::Exactly(bytes) => bytes > fits,
            ToCome::AtLeast(bytes) => bytes > fits || policy.learned.is_large(),
        };
        if large {
            self.counters.add(Counter::StayedLarge);
        }
        large
    }

    /// A request begins at an owner that adopted the flow without one: the client has heard nothing
    /// of its window.
    pub(crate) fn begins_at_idle_owner(&mut self, id: FlowId) {
        if self.to_come(id) != ToCome::Exactly(0) {
            let edge = self.flows[id].boundary.add(FIRST_WINDOW_BYTES);
            self.wait_up_to(id, Reach::Edge(edge));
        }
    }

    /// Sets how far the owner takes bytes, and makes room to wait. False if there is none.
    pub(crate) fn wait_up_to(&mut self, id: FlowId, reach: Reach) -> bool {
        let flow = &mut self.flows[id];
        if let Some(slot) = self.copies.backlogs.slots.get_mut(usize::from(flow.backlog.0)) {
            slot.reach = reach;
            return true;
        }
        match self.copies.backlogs.take(flow.network, reach) {
            Ok(slot) => {
                flow.backlog = slot;
                flow.note_aside();
            }
            Err(limit) => self.counters.add(limit),
        }
        flow.backlog.is_some()
    }

    /// Another owner is about to be asked: it has nothing of what waits, nor of what came early.
    /// The one before has that, and may be owner again.
    #[inline]
    pub(crate) fn owner_changes(&mut self, id: FlowId) {
        let flow = &self.flows[id];
        if !flow.early_client.is_empty() && !flow.progress.is(Mark::StandbyGone) {
            self.keeps_its_legs(id);
        }
        self.drop_early(id, From::Client);
        let flow = &self.flows[id];
        if flow.client_acked == flow.client_next {
            self.drop_backlog(id);
        } else if flow.backlog.is_some() {
            self.wait_up_to(id, Reach::Unconfirmed);
        }
    }

    /// The owner is one whose window the client knows: all may go to it.
    #[inline]
    pub(crate) fn owner_is_known(&mut self, id: FlowId) {
        self.drop_early(id, From::Client);
        if self.flows[id].backlog.is_some() {
            self.wait_up_to(id, Reach::Known);
        }
    }

    /// Whether a client segment of the request that is being handed over can be kept, or wait
    /// behind those that are. Counted if not.
    pub(crate) fn may_wait(&mut self, id: FlowId, segment: &Segment) -> bool {
        if self.is_kept_next(id, segment) {
            return true;
        }
        !self.backlog_refuses(id, segment)
    }

    /// Whether a client segment cannot wait, which is counted.
    fn backlog_refuses(&mut self, id: FlowId, segment: &Segment) -> bool {
        let (flow, copies) = (&self.flows[id], pieces::count(segment));
        let Copies { backlogs, kept, requests, .. } = &self.copies;
        let share = |takes| requests.have_room(flow.network, takes);
        let of = (flow.network, flow.backlog);
        let refused = backlogs.refuses(of, copies, kept).or_else(|| {
            let has_share = kept.takes(copies).is_some_and(share);
            (!has_share).then_some(Counter::BacklogNetworkFull)
        });
        if let Some(limit) = refused {
            self.counters.add(limit);
        }
        refused.is_some()
    }

    /// So many copies of the flow's wait no more.
    fn waits_less(&mut self, id: FlowId, copies: Slots) {
        self.copies.backlogs.segments -= copies;
        self.copies.requests.returns(self.flows[id].network, copies);
    }

    /// Whether the next segment of the request goes among the kept copies: none waits in front of
    /// it, and there is room.
    pub(crate) fn is_kept_next(&self, id: FlowId, segment: &Segment) -> bool {
        let (flow, copies) = (&self.flows[id], pieces::count(segment));
        let shares = |takes| self.copies.requests.have_room(flow.network, takes);
        !flow.backlog.is_some()
            && self.copies.kept.has_room(flow.kept, copies, KEPT_PER_FLOW_MAX)
            && self.copies.kept.takes(copies).is_some_and(shares)
    }

    /// Lets a client segment wait. False if a limit is reached, which is counted: the client sends
    /// it again.
    pub(crate) fn let_wait(&mut self, id: FlowId, frame: &[u8], segment: &Segment) -> bool {
        if self.backlog_refuses(id, segment) {
            return false;
        }
        if !self.flows[id].backlog.is_some() {
            self.wait_up_to(id, Reach::Unconfirmed);
        }
        let flow = &self.flows[id];
        let Backlogs { slots, segments, .. } = &mut self.copies.backlogs;
        let waiting = &mut slots[usize::from(flow.backlog.0)].waiting;
        let before = self.copies.kept.slots_of(*waiting);
        let waits = pieces::all(frame, segment, |copy| {
            self.copies.kept.push(waiting, copy, BACKLOG_PER_FLOW_MAX)
        });
        debug_assert!(waits, "there was room");
        let mut added = self.copies.kept.slots_of(*waiting);
        added -= before;
        *segments += added;
        self.copies.requests.takes(flow.network, added);
        self.counters.add(Counter::Backlogged);
        true
    }

    /// New bytes, or the FIN, of a client whose owner's window is watched: forwarded if they are
    /// next and it takes them.
    pub(crate) fn within_window(&mut self, id: FlowId, frame: &[u8], segment: &Segment) -> Frame {
        let slot = self.flows[id].backlog;
        let Some(Backlog { waiting, reach, .. }) = self.copies.backlogs.get(slot) else {
            return Frame::Forward;
        };
        let end = segment.seq.add(segment.seq_len());
        let taken = match reach {
            Reach::Unconfirmed => false,
            Reach::Edge(edge) => end.at_or_before(*edge),
            Reach::Known => true,
        };
        if taken && waiting.is_empty() {
            return Frame::Forward;
        }
        // What waits is not among the kept copies.
        if self.flows[id].bits.has(Bits::KEPT_WHOLE) {
            self.keep_no_more(id);
        }
        let _ = self.let_wait(id, frame, segment);
        Frame::Absorb
    }

    /// The new owner has confirmed with this segment, which offers its window.
    pub(crate) fn window_begins(
        &mut self,
        now: Instant,
        id: FlowId,
        segment: &Segment,
        out: &mut impl Output,
    ) {
        let flow = &self.flows[id];
        if !flow.backlog.is_some() && self.to_come(id) == ToCome::Exactly(0) {
            return;
        }
        let edge = right_edge(flow, segment);
        if self.wait_up_to(id, Reach::Edge(edge)) {
            let _ = self.send_waiting(now, id, out);
        }
    }

    /// The owner answers with this segment although it lacks bytes of which the client was told by
    /// an earlier one that they have arrived (requests that were sent together, and a window too
    /// small for all): nobody else will send them, so the kept copies wait for its window, and are
    /// owed (`owed`). Where nothing more can wait, they go once more as they are.
    #[cold]
    pub(crate) fn owner_lacks(
        &mut self,
        now: Instant,
        id: FlowId,
        segment: &Segment,
        out: &mut impl Output,
    ) {
        let flow = &self.flows[id];
        let (edge, told) = (right_edge(flow, segment), flow.client_acked);
        if flow.kept.is_empty() {
            return;
        }
        if !self.wait_up_to(id, Reach::Edge(edge)) {
            let _ = self.replay_kept(id, out);
            return;
        }
        self.flows[id].client_acked = segment.ack;
        self.kept_wait(now, id, told, segment.ack);
        let _ = self.send_waiting(now, id, out);
    }

    /// A segment of the owner's while its window is watched.
    #[cold]
    pub(crate) fn window_moves(
        &mut self,
        now: Instant,
        id: FlowId,
        segment: &Segment,
        out: &mut impl Output,
    ) {
        let flow = &self.flows[id];
        let offered = right_edge(flow, segment);
        let slot = usize::from(flow.backlog.0);
        // It never moves back (RFC 9293 section 3.8.6), but older segments come late.
        if let Some(Backlog { reach: Reach::Edge(edge), .. }) =
            self.copies.backlogs.slots.get_mut(slot)
            && offered.after(*edge)
        {
            *edge = offered;
        }
        if self.send_waiting(now, id, out) {
            self.window_is_known(id);
        }
    }

    /// Ends the watch where nothing waits, and the client has been told of the window with all its
    /// bytes' acknowledgement.
    fn window_is_known(&mut self, id: FlowId) {
        let flow = &self.flows[id];
        let complete = flow.state != State::Request || self.to_come(id) == ToCome::Exactly(0);
        if complete && flow.client_acked == flow.client_next && self.sent_until(id).is_none() {
            self.drop_backlog(id);
        }
    }

    /// Sends what waits, as far as the owner takes it. False if it has to be tried again, which a
    /// timer does.
    pub(crate) fn send_waiting(&mut self, now: Instant, id: FlowId, out: &mut impl Output) -> bool {
        let slot = usize::from(self.flows[id].backlog.0);
        let mut sent = 0;
        while let Some(backlog) = self.copies.backlogs.slots.get_mut(slot) {
            let acked = self.flows[id].client_acked;
            backlog.owed = backlog.owed.filter(|owed| owed.until.after(acked));
            let Backlog { mut waiting, reach, owed, .. } = *backlog;
            let is_next = |copy: &&[u8]| owed.is_none_or(|owed| owed.is_next(copy, acked));
            let Some(copy) = self.copies.kept.iter(waiting).find(is_next) else {
                if reach == Reach::Known && waiting.is_empty() {
                    self.drop_backlog(id);
                }
                return true;
            };
            let Ok(Decoded::Tcp(segment)) = decode(copy) else {
                return true;
            };
            let flow = &self.flows[id];
            let end = segment.seq.add(segment.seq_len());
            let reached = match reach {
                Reach::Unconfirmed => false,
                Reach::Edge(edge) => end.at_or_before(edge) || owed.is_some_and(|owed| owed.asks),
                Reach::Known => true,
            };
            if !reached || owed.is_some_and(|owed| segment.seq.at_or_after(owed.until)) {
                return true;
            }
            // What the client repeated meanwhile, and the owner took, is done.
            if end.after(flow.client_acked) {
                let Some(mut spec) = self.to_leg(flow.owner) else {
                    return true;
                };
                // As the client would send it now: with an old timestamp the owner's kernel would
                // take it for an old duplicate.
                spec.seq = segment.seq;
                spec.ack = flow.server_acked;
                // Without urgent data, whose place is not kept.
                spec.flags = Flags(segment.flags.0 & !Flags::URG.0);
                spec.window = flow.client_window;
                spec.timestamps = Self::client_stamps(flow);
                spec.payload = segment.data(copy);
                self.numbers_of_leg(flow.owner, &mut spec);
                if sent == BACKLOG_BURST {
                    self.wheel.arm(id, now.ms() + BACKLOG_AGAIN_MS);
                    return false;
                }
                let built = match out.frame() {
                    Some(buffer) => build_segment(buffer, &spec),
                    None => {
                        self.counters.add(Counter::NoFrame);
                        self.wheel.arm(id, now.ms() + BACKLOG_AGAIN_MS);
                        return false;
                    }
                };
                if let Some(len) = built {
                    out.send(len);
                    sent += 1;
                }
                if let Some(owed) = &mut self.copies.backlogs.slots[slot].owed {
                    (owed.sent, owed.asks) = (end, false);
                    continue;
                }
            }
            let popped = self.copies.kept.pop(&mut waiting);
            self.waits_less(id, popped);
            self.copies.backlogs.slots[slot].waiting = waiting;
            if self.flows[id].bits.has(Bits::KEPT_WHOLE) {
                self.keep_no_more(id);
            }
        }
        true
    }

    /// The first byte that the owner has not been sent, if some wait.
    pub(crate) fn sent_until(&self, id: FlowId) -> Option<SeqNumber> {
        let waiting = self.copies.backlogs.waiting(self.flows[id].backlog);
        let first = self.copies.kept.iter(waiting).next()?;
        match decode(first) {
            Ok(Decoded::Tcp(segment)) => Some(segment.seq),
            _ => None,
        }
    }

    /// Forgets what waits.
    pub(crate) fn drop_backlog(&mut self, id: FlowId) {
        let slot = std::mem::replace(&mut self.flows[id].backlog, BacklogId::NONE);
        if let Some(backlog) = self.copies.backlogs.slots.get_mut(usize::from(slot.0)) {
            let copies = self.copies.kept.slots_of(backlog.waiting);
            self.copies.kept.clear(&mut backlog.waiting);
            let network = self.flows[id].network;
            self.copies.backlogs.give_back(network, slot);
            self.waits_less(id, copies);
            self.flows[id].note_aside();
        }
    }
}
