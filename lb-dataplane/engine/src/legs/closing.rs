//! Legs whose flow has moved away: closed in the client's name so that the old owner's application
//! sees a clean end of stream.
//!
//! Owns the table of closing legs and the pace at which they begin to close: a few at a time, so
//! that they never hold up responses for long. Nothing that such a leg sends ever reaches a client.
//!
//! # Decisions
//!
//! - **Old legs close paced**: an eighth of those that wait, 32 at most, for every 250 us that
//!   passed, so that no request waits behind a burst of them and each is closed within some 2 ms.
//!   Our FIN acknowledges the last response: with one fortieth every 250 us, and turns of a busy
//!   worker counted as one, legs waited up to 1 s and the pods' kernels sent tail loss probes for
//!   them.
//! - **What a move costs its request at the median is the pod's kernel** (`make bench-migration`):
//!   the adoption's way and the socket 8 us, accept and epoll 3 us, the dataplane 1 us, the rest
//!   caches and the CPU that closing the old leg takes on two cores. On one machine, one run after
//!   the other, closes in a burst every 10 ms and as they are now: 21 and 21 us more at p50 (57
//!   staying), 597 and 137 us more at p99. A pace of 1 ms changed nothing. Less needs a leg without
//!   an accept.
//! - **A pod that closes first is left without TIME_WAIT**: once both ends have acknowledged all,
//!   one RST with the number that it expects ends it, and the leg's port is free although the flow
//!   lingers; a client that repeats its FIN is answered by us.

use crate::{
    Engine, Output, Verdict,
    backend::ports::Rest,
    clock::Instant,
    flow::Bits,
    ids::{FlowId, Leg, NONE},
    obs::counters::Counter,
    tables::{ClosingLeg, Parking, legs::Use},
    timing::{
        CLOSE_PACE_US, CLOSE_WITHIN_US, CLOSES_PER_PACE_MAX, CLOSING_FIN_TRIES_MAX,
        CLOSING_FIN_WAIT_MS, CLOSING_HELD_UP_MAX,
    },
};
use baton_packet::{Flags, Segment, SegmentSpec, SeqNumber, parse_adoption};

/// Nor that a worker that was late makes up for. One that waits for its CPU has turns of
/// milliseconds, and must still close as many legs as move.
const CLOSES_AT_ONCE_MAX: u64 = 8 * CLOSES_PER_PACE_MAX;
/// In one call, so that frames do not wait long: usually, some 40 us, and whatever else there is to
/// do.
const CLOSES_PER_CALL_MAX: usize = 128;
const CLOSES_AT_LEAST: usize = 16;

impl Engine {
    pub(crate) fn closing_timer(&self, id: u32) -> u32 {
        self.flows.limit() + id
    }

    /// Closes a flow's former leg, which was sent nothing behind `reached`, in its turn, if there
    /// is room for it.
    pub(crate) fn begin_close(
        &mut self,
        now: Instant,
        id: FlowId,
        leg: Leg,
        reached: SeqNumber,
    ) -> Option<u32> {
        let closing = self.former_leg(id, leg, reached)?;
        self.queue_closing(now, closing);
        Some(closing)
    }

    /// It has its turn with the others.
    pub(crate) fn queue_closing(&mut self, now: Instant, id: u32) {
        if self.legs.closing.waiting == 0 {
            self.legs.closing.pace_us = now.0 + CLOSE_PACE_US;
        }
        self.legs.closing.queue(id);
    }

    /// Puts a flow's former leg into the table, if that is not full.
    pub(crate) fn former_leg(&mut self, id: FlowId, leg: Leg, reached: SeqNumber) -> Option<u32> {
        let flow = &self.flows[id];
        let entry = ClosingLeg {
            leg,
            fin: reached,
            from: (self.expected_in_front(id, leg)).unwrap_or(flow.boundary),
            reached,
            ack: flow.server_next,
            // The pod's FIN needs room (Linux `tcp_snd_wnd_test`), also where the client has none.
            window: flow.client_window.max(1),
            stamps: flow.bits.has(Bits::TIMESTAMPS).then_some((flow.client_ts, flow.server_ts)),
            tries: 0,
            held_up: 0,
            fin_acked: false,
            pod_fin: false,
            pod_waits: false,
            waits: false,
            parking: Parking::No,
            parked: u16::MAX,
            before: NONE,
            next: NONE,
        };
        let closing = self.legs.closing.insert(entry)?;
        self.legs.uses.assign(leg, Use::Closing(closing));
        Some(closing)
    }

    /// Begins the closes whose turn it is.
    pub(crate) fn closes_due(&mut self, now: Instant, out: &mut impl Output) {
        if self.legs.closing.waiting == 0 || now.0 < self.legs.closing.pace_us {
            return;
        }
        // A worker that was late makes up for it.
        let since_us = CLOSE_PACE_US + (now.0 - self.legs.closing.pace_us);
        self.legs.closing.pace_us = now.0 + CLOSE_PACE_US;
        let count = (u64::from(self.legs.closing.most) * since_us).div_ceil(CLOSE_WITHIN_US);
        let most = since_us.div_ceil(CLOSE_PACE_US) * CLOSES_PER_PACE_MAX;
        let wanted = count.min(most).min(CLOSES_AT_ONCE_MAX);
        let room = self.room(CLOSES_PER_CALL_MAX, CLOSES_AT_LEAST);
        for _ in 0..wanted.min(room as u64) {
            let id = self.legs.closing.first;
            if id != NONE {
                self.spend(1);
                match self.legs.closing.legs[id as usize].parking {
                    Parking::No => self.send_fin(now, id, out),
                    _ => self.tell_parked(now, id, out),
                }
            }
        }
        if wanted > room as u64 {
            // The others leave with the next calls.
            self.legs.closing.pace_us = now.0;
        }
    }

    pub(crate) fn closing_spec(&self, id: u32) -> Option<SegmentSpec<'static>> {
        let entry = &self.legs.closing.legs[id as usize];
        let mut spec = self.to_leg(entry.leg)?;
        spec.ack = entry.ack;
        spec.window = entry.window;
        spec.timestamps = entry.stamps;
        Some(spec)
    }

    fn send_fin(&mut self, now: Instant, id: u32, out: &mut impl Output) {
        self.legs.closing.unqueue(id);
        let spec = self.closing_spec(id).map(|spec| SegmentSpec {
            seq: self.legs.closing.legs[id as usize].fin,
            flags: Flags::FIN | Flags::ACK,
            ..spec
        });
        let leg = self.legs.closing.legs[id as usize].leg;
        let left = spec.is_some_and(|spec| self.emit_to(leg, spec, out));
        let entry = &mut self.legs.closing.legs[id as usize];
        // One that had no frame or no next hop is no try, for a while.
        let wait = if left || entry.held_up >= CLOSING_HELD_UP_MAX {
            let wait = CLOSING_FIN_WAIT_MS << entry.tries.min(CLOSING_FIN_TRIES_MAX);
            entry.tries += 1;
            wait
        } else {
            entry.held_up += 1;
            CLOSING_FIN_WAIT_MS
        };
        self.wheel.arm(self.closing_timer(id), now.ms() + wait);
    }

    fn end_close(&mut self, now: Instant, id: u32, how: Counter) {
        self.wheel.cancel(self.closing_timer(id));
        self.unpark(id);
        let leg = self.legs.closing.remove(id);
        let clean = how == Counter::LegsClosed;
        self.free_leg(now, leg, if clean { Rest::Clean } else { Rest::Quiet });
        self.counters.add(how);
    }

    /// The timer of a closing leg.
    pub(crate) fn closing_due(&mut self, now: Instant, id: u32, out: &mut impl Output) {
        if self.stays_parked(id) {
            return self.queue_closing(now, id);
        }
        self.unpark(id);
        let entry = &self.legs.closing.legs[id as usize];
        if !entry.fin_acked && entry.tries < CLOSING_FIN_TRIES_MAX {
            return self.send_fin(now, id, out);
        }
        if let Some(mut spec) = self.closing_spec(id) {
            let entry = &self.legs.closing.legs[id as usize];
            // Only the exact number resets (RFC 5961 section 3.2). Whether the FIN arrived is not
            // known before it is acknowledged.
            let (leg, fin) = (entry.leg, entry.fin);
            let numbers = [fin, fin.add(1)];
            spec.flags = Flags::RST | Flags::ACK;
            spec.window = 0;
            self.counters.add(Counter::ResetsToBackends);
            for seq in &numbers[usize::from(entry.fin_acked)..] {
                spec.seq = *seq;
                self.emit_to(leg, spec, out);
            }
        }
        self.end_close(now, id, Counter::LegsReset);
    }

    /// A segment from a closing leg.
    pub(crate) fn on_closing(
        &mut self,
        now: Instant,
        frame: &[u8],
        segment: &Segment,
        id: u32,
        out: &mut impl Output,
    ) -> Verdict {
        self.counters.add(Counter::Fenced);
        if segment.flags.has(Flags::RST) {
            // A pod without the socket answers each of our FINs with an exact one. Others may be
            // late answers to adoptions, or nobody's.
            let exact = segment.seq == self.legs.closing.legs[id as usize].ack;
            if exact && parse_adoption(frame, segment).is_none() {
                self.end_close(now, id, Counter::LegsReset);
            }
            return Verdict::Absorbed;
        }
        let entry = &mut self.legs.closing.legs[id as usize];
        let stamp = baton_packet::timestamps(segment.options(frame)).map(|(value, _)| value);
        if let Some(value) = stamp
            && let Some((_, echo)) = &mut entry.stamps
        {
            *echo = value;
        }
        let spoke = entry.parking != Parking::No && !self.parked_says(now, id, segment);
        let entry = &mut self.legs.closing.legs[id as usize];
        if entry.tries > 0 && segment.ack == entry.fin.add(1) && !entry.fin_acked {
            entry.fin_acked = true;
            let due_ms = now.ms() + self.legs.closing.wait_ms(id);
            self.wheel.arm(self.closing_timer(id), due_ms);
        }
        let entry = &mut self.legs.closing.legs[id as usize];
        // Its kernel says which byte it wants next: the FIN was in front of that, or behind a gap.
        let elsewhere = entry.tries > 0
            && !entry.fin_acked
            && segment.ack != entry.fin
            && segment.ack.at_or_after(entry.from)
            && segment.ack.at_or_before(entry.reached);
        if elsewhere {
            entry.fin = segment.ack;
        }
        if segment.payload_len() > 0 {
            self.counters.add(Counter::FencedData);
        }
        let end = segment.seq.add(segment.seq_len());
        let in_order = segment.seq == entry.ack;
        let closes = (segment.flags.has(Flags::FIN) && in_order) || spoke;
        if in_order {
            entry.ack = end;
            let fin = segment.flags.has(Flags::FIN);
            entry.pod_waits |= fin && !entry.fin_acked;
            entry.pod_fin |= fin;
        }
        if (closes && entry.tries == 0) || (elsewhere && entry.tries < CLOSING_FIN_TRIES_MAX) {
            // The application closed before our FIN left, or the FIN has to go again: it also
            // acknowledges.
            self.send_fin(now, id, out);
            return Verdict::Absorbed;
        }
        let finished = entry.fin_acked && entry.pod_fin;
        if segment.seq_len() > 0
            && let Some(mut spec) = self.closing_spec(id)
        {
            let entry = &self.legs.closing.legs[id as usize];
            spec.seq = entry.fin.add(u32::from(entry.tries > 0));
            self.emit_to(entry.leg, spec, out);
        }
        if finished {
            let entry = &self.legs.closing.legs[id as usize];
            if entry.pod_waits {
                self.end_time_wait(entry.leg, entry.fin.add(1), out);
            }
            self.end_close(now, id, Counter::LegsClosed);
        }
        Verdict::Absorbed
    }
}
