//! The header of the PROXY protocol in front of each leg of a policy with `clientAddress: ProxyV2`:
//! what pods without adopter can be told of the client.
//!
//! The leg begins so many bytes earlier in the client's sequence space, whether the client's own
//! handshake, an adoption or a handshake of ours opens it. The client knows nothing of them: until
//! the pod has acknowledged all of the header, what it acknowledges is raised to the client's first
//! byte.
//!
//! Owns which legs get a header, when it is sent, and that it is sent until it has arrived.
//!
//! # Decisions
//!
//! - **The header takes the place of the ACK that ends the client's handshake**: if it is lost, the
//!   pod's kernel repeats its SYN-ACK, and the client its ACK. So servers that speak first wait for
//!   no timer of ours. Behind that, each segment of the client's has the header in front of it
//!   until it is acknowledged; after an adoption the tries of the hand-over send it again.
//! - **Legs with a header are never shared**: the pod's application takes one for good.
//! - **The request does not wait for the header's acknowledgement**, as it does for a session's
//!   replies: a server that does not expect the header answers nothing that could be told from
//!   other answers. Health checks find it (`lb-dataplane`, `health`).

use crate::{
    Engine, Output, Verdict,
    balance::policy::Policy,
    flow::{Bits, Flow},
    ids::{FlowId, Leg, from_addr},
    mutants::Mutant,
    obs::counters::Counter,
    states::State,
};
use baton_api::ClientAddress;
use baton_packet::{
    Flags, PROXY_HEADER_MAX, Segment, SegmentSpec, SeqNumber, proxy_header, proxy_header_len,
    replace_ack, timestamps,
};
use std::net::SocketAddr;

impl Policy {
    /// Whether its pods are sent a header.
    fn introduces(&self) -> bool {
        self.spec.client_address == ClientAddress::ProxyV2
    }
}

impl Flow {
    /// The client's byte that its pods have had everything in front of. The first one behind a
    /// header that is due, and behind a session: nothing of the client's is acknowledged while the
    /// header is not.
    pub(crate) fn had_until(&self) -> SeqNumber {
        match self.state {
            State::SynSent => self.client_next,
            State::Adopting | State::AdoptingIdle => self.boundary,
            _ => self.client_acked,
        }
    }
}

impl Engine {
    /// The flow begins on its owner leg: whether that begins with a header.
    pub(crate) fn leg_begins(&mut self, id: FlowId, restored: bool) {
        let flow = &self.flows[id];
        let header = self.policies[usize::from(flow.policy)].introduces();
        if header {
            self.counters.add(Counter::LegsIntroduced);
        }
        let flow = &mut self.flows[id];
        flow.progress.told.leg_begins(header, restored);
        flow.note_aside();
    }

    /// How many bytes the owner leg begins in front of the client's.
    #[inline]
    pub(crate) fn in_front(&self, id: FlowId) -> u32 {
        let flow = &self.flows[id];
        if !flow.progress.told.is_due() {
            return 0;
        }
        self.header_len(flow)
    }

    fn header_len(&self, flow: &Flow) -> u32 {
        let name = &self.policies[usize::from(flow.policy)].spec.name;
        proxy_header_len(flow.is_v6(), name) as u32
    }

    /// The number that the pod of a leg may still expect instead of the client's first byte there.
    pub(crate) fn expected_in_front(&self, id: FlowId, leg: Leg) -> Option<SeqNumber> {
        let flow = &self.flows[id];
        if leg != flow.owner {
            // It was at rest when it was left.
            let due = flow.progress.told.is_due_at_standby();
            return due.then(|| flow.boundary.sub(self.header_len(flow)));
        }
        flow.progress.told.is_due().then(|| self.certain_at_owner(id))
    }

    /// The byte that the owner's pod has everything in front of, for certain.
    pub(crate) fn certain_at_owner(&self, id: FlowId) -> SeqNumber {
        let flow = &self.flows[id];
        match flow.state {
            State::Adopting | State::AdoptingIdle if flow.progress.told.is_due() => {
                self.adoption_start(id).0
            }
            _ => flow.had_until().sub(self.in_front(id)),
        }
    }

    /// Sends the header to the owner leg, with the numbers of `spec` but its own.
    fn emit_header(&mut self, id: FlowId, spec: SegmentSpec<'_>, out: &mut impl Output) {
        let flow = &self.flows[id];
        let owner = flow.owner;
        let frontend = &self.frontends[usize::from(flow.frontend)];
        let client = SocketAddr::new(from_addr(flow.client), flow.client_port);
        let server = SocketAddr::new(from_addr(frontend.addr), frontend.port);
        let name = &self.policies[usize::from(flow.policy)].spec.name;
        let mut bytes = [0; PROXY_HEADER_MAX];
        let Some(len) = proxy_header(&mut bytes, client, server, name) else {
            return;
        };
        let spec = SegmentSpec { flags: Flags::PSH | Flags::ACK, payload: &bytes[..len], ..spec };
        self.counters.add(Counter::HeadersSent);
        self.emit_to(owner, spec, out);
    }

    /// The header right behind an adoption, or with the ACK that ends a handshake of ours. `first`
    /// and `next` are where the leg begins in both directions. Whether there was one to send.
    pub(crate) fn introduce_heir(
        &mut self,
        id: FlowId,
        (first, next): (SeqNumber, SeqNumber),
        out: &mut impl Output,
    ) -> bool {
        let flow = &self.flows[id];
        if !flow.progress.told.is_due() {
            return false;
        }
        let Some(mut spec) = self.to_leg(flow.owner) else {
            return false;
        };
        (spec.seq, spec.ack) = (first, next);
        spec.window = flow.client_window;
        spec.timestamps =
            Self::client_stamps(flow).map(|(_, echo)| (self.first_client_ts(id), echo));
        self.emit_header(id, spec, out);
        true
    }

    /// The same once more, where the pod is not known to have heard the end of our handshake.
    pub(crate) fn introduce_again(&mut self, id: FlowId, out: &mut impl Output) -> bool {
        let flow = &self.flows[id];
        let next = flow.server_acked;
        self.introduce_heir(id, (self.certain_at_owner(id), next), out)
    }

    /// Rewrites the client's segment for its owner leg; the header goes in front of it, or, if it
    /// only acknowledges, in its place.
    #[inline]
    pub(crate) fn forward_to_owner(
        &mut self,
        frame: &mut [u8],
        segment: &Segment,
        id: FlowId,
        out: &mut impl Output,
    ) -> Verdict {
        let flow = &self.flows[id];
        let owner = flow.owner;
        if flow.progress.told.is_due() && self.introduce(frame, segment, id, out) {
            return Verdict::Absorbed;
        }
        self.forward_to_leg(frame, segment, owner)
    }

    /// Whether the header takes the segment's place, or nothing does.
    #[cold]
    fn introduce(
        &mut self,
        frame: &[u8],
        segment: &Segment,
        id: FlowId,
        out: &mut impl Output,
    ) -> bool {
        let flow = &self.flows[id];
        let end = flow.had_until();
        if segment.payload_len() > 0 && segment.seq.before(end) {
            // A late copy of what a former owner has: its bytes would be at the header's place.
            return true;
        }
        if flow.state.is_moving() || (segment.seq_len() > 0 && self.mutated(Mutant::HeaderOnce)) {
            // It went behind the adoption, and goes again with the next try.
            return false;
        }
        let Some(mut spec) = self.to_leg(flow.owner) else {
            return false;
        };
        spec.seq = self.certain_at_owner(id);
        spec.ack = if segment.flags.has(Flags::ACK) { segment.ack } else { flow.server_next };
        spec.window = segment.window;
        spec.timestamps = if flow.bits.has(Bits::TIMESTAMPS) {
            timestamps(segment.options(frame)).or_else(|| Self::client_stamps(flow))
        } else {
            None
        };
        self.emit_header(id, spec, out);
        segment.seq == end && segment.seq_len() == 0 && !segment.flags.has(Flags::RST)
    }

    /// A segment of an owner whose header is due, as its client sees it. One in the answer to an
    /// adoption of ours stays as it is.
    #[cold]
    pub(crate) fn behind_header(
        &mut self,
        frame: &mut [u8],
        segment: &Segment,
        id: FlowId,
    ) -> Segment {
        let mut segment = *segment;
        let flow = &self.flows[id];
        if flow.state.is_moving() || !segment.flags.has(Flags::ACK) {
            return segment;
        }
        let end = flow.had_until();
        let first = self.certain_at_owner(id);
        let raised = if flow.state == State::SynSent {
            segment.ack == first
        } else {
            segment.ack.at_or_after(first) && segment.ack.before(end)
        };
        if raised {
            segment.ack = end;
            replace_ack(frame, &segment);
        } else if !segment.flags.has(Flags::RST) {
            // A RST may be an adopter's answer, which has the numbers of what it answers.
            self.may_have_arrived(id, segment.ack);
        }
        segment
    }

    /// A segment of the owner's acknowledges this much.
    fn may_have_arrived(&mut self, id: FlowId, ack: SeqNumber) {
        let flow = &mut self.flows[id];
        let of_client = ack.at_or_after(flow.client_acked) && ack.at_or_before(flow.client_next);
        if of_client && flow.state != State::SynSent {
            flow.progress.told.has_arrived();
            flow.note_aside();
        }
    }

    /// A segment of an heir was judged: whether it confirms, and has the header.
    pub(crate) fn heir_introduced(&mut self, id: FlowId, segment: &Segment) {
        let flow = &mut self.flows[id];
        // Where it was told that more has arrived than it has, the header's place is known no more;
        // it has answered, though.
        let arrived = segment.ack.at_or_after(flow.boundary) || flow.client_acked != flow.boundary;
        if flow.progress.told.is_due() && flow.state.serves() && arrived {
            flow.progress.told.has_arrived();
            flow.note_aside();
        }
    }
}
