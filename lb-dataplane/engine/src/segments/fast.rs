//! The short way of a segment: what is exactly next in its stream, on an open flow, plain in the
//! sense of `baton_packet::plain`, and right.
//!
//! Owns the tests that make a segment one of these, and what then is known without asking. What new
//! bytes mean is asked where the general way asks. [`Engine::predicted`] changes nothing before it
//! knows; a segment that is not predicted in any respect goes the general way. Both ways leave
//! equal state (`fuzz/targets.rs`, `the_short_ways_change_nothing`).

use crate::{
    Engine, Output, Verdict,
    clock::Instant,
    flow::{Bits, Flow},
    handover::Mark,
    ids::{FlowId, Leg, Tabled},
    obs::counters::{Counter, Counters},
    states::{Frame, State},
    tables::{From, legs::Use},
};
use baton_packet::{ChecksumState, Family, Plain, SeqNumber, V4, V6, plain, readdress};

/// The segment has timestamps where the flow has them.
#[inline(always)]
fn is_open(flow: &Flow, stamped: bool) -> bool {
    let bits = if stamped { Bits::TIMESTAMPS } else { 0 };
    flow.state.is_open() && flow.bits.are(bits, Bits::TIMESTAMPS)
}

/// Whether a number is between two others, of which `from` is not the later one, or one of them.
#[inline(always)]
fn is_within(number: SeqNumber, from: SeqNumber, to: SeqNumber) -> bool {
    debug_assert!(from.at_or_before(to), "{from:?} behind {to:?}");
    number.since(from).cast_unsigned() <= to.since(from).cast_unsigned()
}

/// Whether the checksums are right. A partial one is completed.
#[inline(always)]
fn is_right<F: Family, const STAMPED: bool>(
    counters: &mut Counters,
    frame: &mut [u8],
    plain: Plain<F, STAMPED>,
) -> bool {
    let state = plain.settle_checksum(frame);
    if state == ChecksumState::Partial {
        counters.add(Counter::PartialChecksums);
    }
    state != ChecksumState::Bad
}

impl Engine {
    /// Has no segment predicted: every one goes the general way. For tests that compare the two.
    #[doc(hidden)]
    pub fn set_prediction(&mut self, on: bool) {
        self.predicts = on;
    }

    /// What becomes of a frame that was predicted; otherwise it has to go the general way.
    #[inline(always)]
    pub(crate) fn predicted(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        out: &mut impl Output,
    ) -> Option<Verdict> {
        if !self.predicts {
            return None;
        }
        match plain::<V4, true>(frame) {
            Some(plain) => self.predicted_plain(now, frame, plain, out),
            None => self.predicted_other(now, frame, out),
        }
    }

    /// Apart, so that the way of most frames is no longer for them: nearly all connections have
    /// timestamps.
    #[inline(never)]
    fn predicted_other(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        out: &mut impl Output,
    ) -> Option<Verdict> {
        if let Some(plain) = plain::<V6, true>(frame) {
            self.predicted_plain(now, frame, plain, out)
        } else if let Some(plain) = plain::<V4, false>(frame) {
            self.predicted_bare(now, frame, plain, out)
        } else {
            let plain = plain::<V6, false>(frame)?;
            self.predicted_bare(now, frame, plain, out)
        }
    }

    #[inline(never)]
    fn predicted_bare<F: Tabled>(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        plain: Plain<F, false>,
        out: &mut impl Output,
    ) -> Option<Verdict> {
        self.predicted_plain(now, frame, plain, out)
    }

    #[inline(always)]
    fn predicted_plain<F: Tabled, const STAMPED: bool>(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        plain: Plain<F, STAMPED>,
        out: &mut impl Output,
    ) -> Option<Verdict> {
        if (self.net.sources).is_leg::<F>(plain.dst(frame), plain.dst_port(frame)) {
            self.predicted_backend(now, frame, plain, out)
        } else {
            self.predicted_client(now, frame, plain, out)
        }
    }

    #[inline(always)]
    fn predicted_client<F: Tabled, const STAMPED: bool>(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        plain: Plain<F, STAMPED>,
        out: &mut impl Output,
    ) -> Option<Verdict> {
        let to = F::addr(plain.dst(frame));
        let frontend = self.ids.frontends.find(to, plain.dst_port(frame))?;
        let from = F::addr(plain.src(frame));
        let id = (self.flows).find(from, plain.src_port(frame), frontend)?;
        let flow = &mut self.flows[id];
        if flow.bits.has(Bits::ASIDE) && !flow.bits.has(Bits::SHIFTED) {
            return None;
        }
        let (seq, ack) = (plain.seq(frame), plain.ack(frame));
        let predicted = seq == flow.client_next
            && is_within(ack, flow.server_acked, flow.server_next)
            && is_open(flow, STAMPED)
            && flow.client_may_send(seq);
        if !predicted || !is_right(&mut self.counters, frame, plain) {
            return None;
        }
        self.counters.add(Counter::FromClients);
        let acks_more = ack != flow.server_acked;
        flow.last_ms = now.ms32();
        flow.server_acked = ack;
        flow.client_window = plain.window(frame);
        if let Some(value) = plain.stamp(frame) {
            flow.note_client_ts(value);
        }
        if acks_more && flow.state == State::Response {
            self.comes_to_rest(now, id, out);
        }
        if plain.data_len() > 0 {
            let segment = plain.segment(frame);
            let treat = self.client_goes_on(now, frame, &segment, id, out);
            if treat != Frame::Forward || !self.flows[id].state.is_open() {
                return Some(self.client_went_on(now, frame, &segment, id, treat, acks_more, out));
            }
        }
        let flow = &self.flows[id];
        // More may be aside by now.
        if flow.bits.has(Bits::ASIDE)
            && (flow.bits.has(Bits::SHIFTED) || flow.progress.is(Mark::Translated))
        {
            let delta = plain.shift_to_pod(frame, self.legs.shifts.of_owner(id, flow.owner));
            return Some(self.pass_to_owner(frame, plain, id, delta));
        }
        Some(self.pass_to_owner(frame, plain, id, 0))
    }

    /// A segment to the flow's owner, with its numbers; `delta` is what these add to its checksum.
    #[inline(always)]
    fn pass_to_owner<F: Tabled, const STAMPED: bool>(
        &mut self,
        frame: &mut [u8],
        plain: Plain<F, STAMPED>,
        id: FlowId,
        delta: u64,
    ) -> Verdict {
        let owner = self.flows[id].owner;
        if let Some(backend) = self.backends.get(usize::from(owner.backend))
            && let Some(source) = backend.source.and_then(F::bits)
            && let Some(port) = self.net.sources.port_at_first(owner.port)
            && let Some(mac) = backend.hop.and_then(|hop| self.net.hops.mac(hop))
        {
            let ends = ((source, port), (F::of(backend.addr), backend.port));
            readdress::<F>(frame, ends, (self.settings.mac, mac), delta);
            return Verdict::Transmit(usize::from(plain.end));
        }
        plain.add_to_checksum(frame, delta);
        self.readdressed_to_leg(frame, &plain.segment(frame), owner)
    }

    #[inline(always)]
    fn predicted_backend<F: Tabled, const STAMPED: bool>(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        plain: Plain<F, STAMPED>,
        out: &mut impl Output,
    ) -> Option<Verdict> {
        let from = F::addr(plain.src(frame));
        let index = self.ids.backends.find(from, plain.src_port(frame))?;
        let backend = &self.backends[usize::from(index)];
        let (to, to_port) = (plain.dst(frame), plain.dst_port(frame));
        let leg = Leg {
            backend: index,
            port: (self.net.sources).number_of::<F>(backend.source, (to, to_port)),
        };
        let Some(Use::Owner(id)) = self.legs.uses.used_by(leg) else {
            return None;
        };
        let bits = self.flows[id].bits;
        if !bits.has(Bits::ASIDE) {
            self.predicted_of_owner::<F, STAMPED, false>(now, frame, plain, (id, leg), out)
        } else if bits.has(Bits::SHIFTED) {
            self.predicted_of_owner::<F, STAMPED, true>(now, frame, plain, (id, leg), out)
        } else {
            None
        }
    }

    /// The same from a flow's owner, whose leg is `SHIFTED` (translated) or not: apart, so that
    /// what only the former needs is no test for the latter.
    #[inline(always)]
    fn predicted_of_owner<F: Tabled, const STAMPED: bool, const SHIFTED: bool>(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        plain: Plain<F, STAMPED>,
        (id, leg): (FlowId, Leg),
        out: &mut impl Output,
    ) -> Option<Verdict> {
        let backend = &mut self.backends[usize::from(leg.backend)];
        let flow = &mut self.flows[id];
        let (mut seq, mut ack) = (plain.seq(frame), plain.ack(frame));
        let shift = SHIFTED.then(|| self.legs.shifts.of_owner(id, leg));
        if let Some(shift) = shift {
            (seq, ack) = (seq.add(shift.seq), ack.add(shift.acked));
        }
        let predicted = seq == flow.server_next
            && is_within(ack, flow.client_acked, flow.client_next)
            && is_open(flow, STAMPED)
            && flow.server_may_send(seq)
            && (plain.data_len() == 0 || !flow.is_narrower_than(plain.segment_len()));
        if !predicted || !is_right(&mut self.counters, frame, plain) {
            return None;
        }
        let mut delta = 0;
        if let Some(shift) = shift {
            delta = plain.shift_to_client(frame, shift, (seq, ack));
        }
        self.counters.add(Counter::FromBackends);
        backend.liveness.heard(now);
        flow.last_ms = now.ms32();
        flow.client_acked = ack;
        if let Some(value) = plain.stamp(frame) {
            flow.note_server_ts(now, value);
        }
        let mut treat = Frame::Forward;
        let in_response = flow.state == State::Response;
        if plain.data_len() == 0 {
            if in_response {
                self.comes_to_rest(now, id, out);
            }
        } else {
            if in_response {
                self.follow(id, From::Server, 0, plain.data(frame));
            } else {
                treat = self.server_data(now, frame, &plain.segment(frame), id, 0, out);
            }
            self.flows[id].server_next = seq.add(plain.data_len());
        }
        Some(match treat {
            Frame::Forward => self.pass_to_client(frame, plain, id, delta),
            Frame::Absorb => Verdict::Absorbed,
        })
    }

    /// To the flow's client, with its numbers; `delta` is what these add to its checksum.
    #[inline(always)]
    fn pass_to_client<F: Tabled, const STAMPED: bool>(
        &mut self,
        frame: &mut [u8],
        plain: Plain<F, STAMPED>,
        id: FlowId,
        delta: u64,
    ) -> Verdict {
        let flow = &self.flows[id];
        let frontend = &self.frontends[usize::from(flow.frontend)];
        let Some(mac) = self.client_mac(flow).filter(|_| flow.is_v6() == F::IS_V6) else {
            plain.add_to_checksum(frame, delta);
            return self.forward_to_client(frame, &plain.segment(frame), id);
        };
        let ends = ((F::of(frontend.addr), frontend.port), (F::of(flow.client), flow.client_port));
        readdress::<F>(frame, ends, (self.settings.mac, mac), delta);
        Verdict::Transmit(usize::from(plain.end))
    }
}
