//! Segments from clients: which event they are for their flow, and what the flow learns from them.

use crate::{
    Engine, Output, Verdict,
    boundary::{self, Pin},
    counters::{Counter, DropReason},
    engine::Instant,
    flow::{Bits, FlowId, to_addr},
    states::{Event, Frame, State},
};
use baton_api::Protocol;
use baton_packet::{Flags, STRIPPED_FROM_CLIENTS, Segment, strip_options, timestamps};

impl Engine {
    pub(crate) fn on_client(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        segment: &Segment,
        frontend: u16,
        out: &mut impl Output,
    ) -> Verdict {
        let client = to_addr(segment.src);
        let found = self.flows.find(&client, segment.src_port, frontend);
        let flags = segment.flags;
        if strip_options(frame, segment, STRIPPED_FROM_CLIENTS) {
            self.counters.add(Counter::OptionsStripped);
        }
        if flags.has(Flags::SYN) {
            if flags.any(Flags::ACK | Flags::RST | Flags::FIN) {
                return Verdict::Drop(DropReason::BadFlags);
            }
            return self.client_syn(now, frame, segment, frontend, found, out);
        }
        let Some(id) = found else {
            self.reset_unknown(now, frame, segment, Counter::ResetsToClients, out);
            return Verdict::Drop(DropReason::NoFlow);
        };
        if flags.has(Flags::RST) {
            return self.client_rst(now, frame, segment, id, out);
        }
        if !flags.has(Flags::ACK) {
            return Verdict::Drop(DropReason::BadFlags);
        }
        self.client_segment(now, frame, segment, id, out)
    }

    fn client_rst(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        segment: &Segment,
        id: FlowId,
        out: &mut impl Output,
    ) -> Verdict {
        let flow = &self.flows[id];
        let owner = flow.owner;
        // Only an exact number resets (RFC 5961 section 3.2). Any other is for the backend's kernel to judge.
        let exact = segment.seq == flow.client_next;
        let verdict = self.forward_to_leg(frame, segment, owner);
        if exact {
            let _ = self.step(now, id, Event::ClientRst, out);
        }
        verdict
    }

    #[inline]
    fn client_segment(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        segment: &Segment,
        id: FlowId,
        out: &mut impl Output,
    ) -> Verdict {
        let flow = &mut self.flows[id];
        if flow.state == State::SynSent {
            // Nothing can be acknowledged yet.
            return Verdict::Drop(DropReason::NoFlow);
        }
        flow.last_ms = now.ms32();
        if !flow.client_may_send(segment.seq) {
            self.counters.add(Counter::BeyondWindow);
            let owner = self.flows[id].owner;
            return self.forward_to_leg(frame, segment, owner);
        }
        if segment.ack.after(flow.server_acked) && segment.ack.at_or_before(flow.server_next) {
            flow.server_acked = segment.ack;
        }
        if segment.seq.at_or_after(flow.client_acked) {
            flow.client_window = segment.window;
            if flow.bits.has(Bits::TIMESTAMPS)
                && let Some((value, _)) = timestamps(segment.options(frame))
            {
                flow.client_ts = value;
            }
        }
        match flow.state {
            State::SynAcked if segment.ack == flow.server_next => {
                let _ = self.step(now, id, Event::Established, out);
            }
            State::Response if flow.all_acked() => {
                let _ = self.step(now, id, Event::AllAcked, out);
            }
            _ => {}
        }
        let end = segment.seq.add(segment.seq_len());
        let mut treat = Frame::Forward;
        if end.after(self.flows[id].client_next) {
            if segment.payload_len() > 0 {
                treat = self.client_data(now, frame, segment, id, out);
            }
            self.flows[id].client_next = end;
            if segment.flags.has(Flags::FIN) {
                if self.flows[id].state == State::Adopting {
                    self.flows[id].bits.set(Bits::CLIENT_FIN, true);
                    if segment.payload_len() == 0 {
                        // One with data is kept with its data.
                        self.keep(id, frame, segment);
                    }
                } else {
                    treat = self.step(now, id, Event::ClientFin, out);
                }
            }
        }
        match treat {
            Frame::Forward => {
                let owner = self.flows[id].owner;
                self.forward_to_leg(frame, segment, owner)
            }
            Frame::Absorb => Verdict::Absorbed,
        }
    }

    /// New bytes from the client.
    fn client_data(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        segment: &Segment,
        id: FlowId,
        out: &mut impl Output,
    ) -> Frame {
        let flow = &self.flows[id];
        let protocol = self.policies[usize::from(flow.policy)].spec.protocol;
        let data = segment.data(frame);
        // The sequence-number half of the boundary rule; `Idle` is the rest of it.
        let at_rest = segment.seq == flow.client_next
            && segment.ack == flow.server_next
            && flow.all_acked()
            && !segment.flags.has(Flags::FIN);
        match flow.state {
            State::Idle | State::Fresh if at_rest => {
                let idle = flow.state == State::Idle;
                let start = boundary::start(protocol, data);
                self.flows[id].bits.set(Bits::IDEMPOTENT, start.idempotent);
                self.counters.add(Counter::Requests);
                if let Some(pin) = start.pin {
                    self.pin(id, pin.into());
                } else if idle && !start.boundary && protocol == Protocol::Http1 {
                    self.counters.add(Counter::StayedNoMethod);
                } else if idle && start.boundary {
                    self.counters.add(Counter::Boundaries);
                    if self.prepare_move(now, frame, segment, id, out) {
                        return self.step(now, id, Event::Move, out);
                    }
                }
                self.step(now, id, Event::ClientData, out)
            }
            State::Adopting => {
                if boundary::overlap(protocol, data).is_some() {
                    self.pin(id, Pin::Pipelined.into());
                }
                self.keep(id, frame, segment);
                Frame::Forward
            }
            State::Idle | State::Fresh | State::Response => {
                // The client went on before the answer was complete: where the next request begins is
                // beyond the bare rule from here on.
                if protocol != Protocol::None {
                    self.pin(id, Pin::Pipelined.into());
                }
                self.counters.add(Counter::Requests);
                self.step(now, id, Event::ClientData, out)
            }
            State::Request => {
                if boundary::overlap(protocol, data).is_some() {
                    self.pin(id, Pin::Pipelined.into());
                }
                Frame::Forward
            }
            _ => Frame::Forward,
        }
    }

    /// Keeps a copy of a client segment while its request's fate is open.
    pub(crate) fn keep(&mut self, id: FlowId, frame: &[u8], segment: &Segment) -> bool {
        let mut list = self.flows[id].kept;
        let kept = self
            .kept
            .push(&mut list, &frame[..usize::from(segment.end)]);
        self.flows[id].kept = list;
        if !kept {
            self.flows[id].bits.set(Bits::KEPT_WHOLE, false);
            self.counters.add(Counter::KeptFull);
        }
        kept
    }

    /// The flow never moves again; counted once.
    pub(crate) fn pin(&mut self, id: FlowId, why: Counter) {
        let bits = &mut self.flows[id].bits;
        if !bits.has(Bits::PINNED) {
            bits.set(Bits::PINNED, true);
            self.counters.add(why);
        }
    }
}

impl From<Pin> for Counter {
    fn from(pin: Pin) -> Self {
        match pin {
            Pin::Pipelined => Counter::PinnedPipelined,
            Pin::Upgrade => Counter::PinnedUpgrade,
        }
    }
}
