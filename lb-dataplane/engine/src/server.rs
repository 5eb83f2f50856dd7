//! Segments from backends: which leg, which event, and what the flow learns from them.

use crate::{
    Engine, Output, Verdict,
    adopt::Judged,
    backend::Use,
    boundary::{self, Answer},
    counters::{Counter, DropReason},
    engine::Instant,
    flow::{Bits, FlowId},
    states::{Event, Frame, State},
};
use baton_api::Protocol;
use baton_packet::{Flags, Segment, parse_adoption, timestamps};

impl Engine {
    pub(crate) fn on_backend(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        segment: &Segment,
        backend: u16,
        out: &mut impl Output,
    ) -> Verdict {
        match self.backends[usize::from(backend)].used_by(segment.dst_port) {
            Some(Use::Owner(id)) => self.on_owner(now, frame, segment, id, out),
            Some(Use::Standby(id)) => self.on_standby(now, segment, id),
            Some(Use::Closing(id)) => self.on_closing(now, frame, segment, id, out),
            Some(Use::Probe) => self.answer_to_probe(now, frame, segment, backend),
            None => {
                self.reset_unknown(now, frame, segment, Counter::ResetsToBackends, out);
                Verdict::Drop(DropReason::NoLeg)
            }
        }
    }

    #[inline]
    fn on_owner(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        segment: &Segment,
        id: FlowId,
        out: &mut impl Output,
    ) -> Verdict {
        self.flows[id].last_ms = now.ms32();
        match self.flows[id].state {
            State::SynSent => return self.answer_to_syn(now, frame, segment, id, out),
            State::Adopting => {
                if let Judged::Done(verdict) = self.answer_to_adoption(now, frame, segment, id, out)
                {
                    return verdict;
                }
            }
            _ => {}
        }
        if segment.flags.has(Flags::RST) {
            if parse_adoption(frame, segment).is_some() {
                // A late answer to an adoption that was sent twice: between the pod's adopter and us.
                self.counters.add(Counter::Fenced);
                return Verdict::Absorbed;
            }
            let exact = segment.seq == self.flows[id].server_next;
            let verdict = self.forward_to_client(frame, segment, id);
            if exact {
                let _ = self.step(now, id, Event::ServerRst, out);
            }
            return verdict;
        }
        let flow = &mut self.flows[id];
        if !flow.server_may_send(segment.seq) {
            self.counters.add(Counter::BeyondWindow);
            return self.forward_to_client(frame, segment, id);
        }
        if segment.flags.has(Flags::ACK)
            && segment.ack.after(flow.client_acked)
            && segment.ack.at_or_before(flow.client_next)
        {
            flow.client_acked = segment.ack;
        }
        if flow.bits.has(Bits::TIMESTAMPS)
            && let Some((value, _)) = timestamps(segment.options(frame))
            && value.wrapping_sub(flow.server_ts) as i32 >= 0
        {
            flow.server_ts = value;
            flow.server_ts_ms = now.ms32();
        }
        let mut treat = Frame::Forward;
        let end = segment.seq.add(segment.seq_len());
        if end.after(flow.server_next) {
            // Judged before the number moves on, so that the first bytes of an answer are known as such.
            let first = segment.seq == flow.server_next;
            flow.server_next = end;
            if segment.payload_len() > 0 {
                treat = self.server_data(now, frame, segment, id, first, out);
            }
            if segment.flags.has(Flags::FIN) {
                treat = self.step(now, id, Event::ServerFin, out);
            }
        } else if flow.state == State::Response && flow.all_acked() {
            treat = self.step(now, id, Event::AllAcked, out);
        }
        match treat {
            Frame::Forward => self.forward_to_client(frame, segment, id),
            Frame::Absorb => Verdict::Absorbed,
        }
    }

    /// New bytes from the owner.
    fn server_data(
        &mut self,
        now: Instant,
        frame: &[u8],
        segment: &Segment,
        id: FlowId,
        first: bool,
        out: &mut impl Output,
    ) -> Frame {
        let flow = &self.flows[id];
        let protocol = self.policies[usize::from(flow.policy)].spec.protocol;
        match flow.state {
            State::Request if first => match boundary::answer(protocol, segment.data(frame)) {
                Answer::Interim => return Frame::Forward,
                Answer::Upgraded => self.pin(id, Counter::PinnedUpgrade),
                Answer::Final => {}
            },
            State::Fresh if protocol != Protocol::None => {
                self.pin(id, Counter::PinnedServerFirst);
            }
            _ => {}
        }
        self.step(now, id, Event::ServerData, out)
    }
}
