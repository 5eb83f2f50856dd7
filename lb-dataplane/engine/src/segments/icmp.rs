//! ICMP errors about our segments, translated to the leg that the segment came from, so that path
//! MTU discovery (RFC 1191, RFC 8201) works through the dataplane. That a pod cannot be reached is
//! no client's concern while another one can be.

use crate::{
    Engine, Output, Verdict,
    backend::Evidence,
    clock::Instant,
    ids::{FlowId, Leg, from_addr, to_addr},
    net::across::Across,
    obs::counters::{Counter, DropReason},
    states::State,
    tables::legs::Use,
};
use baton_packet::{IcmpError, IcmpKind, Mac, NewTuple, rewrite_icmp};
use std::net::IpAddr;

/// A quoted sequence number may be this far from the flow's: anything else is a guess by a third
/// party (RFC 5927 section 4.1).
const QUOTE_WINDOW: u32 = 1 << 24;

impl Engine {
    pub(crate) fn icmp(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        error: &IcmpError,
        out: &mut impl Output,
    ) -> Verdict {
        let to_backend = self.net.is_source(error.inner_src)
            && self.settings.ports.contains(&error.inner_src_port);
        let translated = if to_backend {
            let quoted = self.quoted_to_backend(error);
            if let Some((id, _)) = quoted
                && self.is_reached_elsewhere(now, id, error, out)
            {
                return Verdict::Absorbed;
            }
            quoted.and_then(|(id, leg)| self.icmp_to_client(frame, error, id, leg))
        } else {
            self.icmp_to_leg(frame, error)
        };
        match translated {
            Some(len) => {
                self.counters.add(Counter::IcmpTranslated);
                Verdict::Transmit(len)
            }
            None => {
                let left = to_backend.then(|| self.pass_to_host(frame, error.end));
                left.flatten()
                    .unwrap_or(Verdict::Drop(DropReason::IcmpUnrelated))
            }
        }
    }

    /// The error with other addresses; those of the other family it gets when all is done
    /// (`across`).
    fn readdressed_error(
        &mut self,
        frame: &mut [u8],
        error: &IcmpError,
        outer: (IpAddr, IpAddr),
        inner: NewTuple,
        macs: (Mac, Mac),
    ) -> Option<usize> {
        if error.v6 == inner.dst.is_ipv6() {
            rewrite_icmp(frame, error, outer, inner, macs).ok()?;
        } else if error.has_words_across() {
            self.net.across = Some(Across::Error(*error, outer, inner, macs));
        } else {
            return None;
        }
        Some(usize::from(error.end))
    }

    /// The flow, and its owner leg, whose segment to a backend met the error.
    fn quoted_to_backend(&self, error: &IcmpError) -> Option<(FlowId, Leg)> {
        let index = self
            .ids
            .backends
            .find(to_addr(error.inner_dst), error.inner_dst_port)?;
        let backend = &self.backends[usize::from(index)];
        let end = (error.inner_src, error.inner_src_port);
        let leg = Leg {
            backend: index,
            port: self.net.sources.number(backend.source, end),
        };
        let Use::Owner(id) = self.legs.uses.used_by(leg)? else {
            return None;
        };
        let shift = self.legs.shifts.of(leg).unwrap_or_default();
        let seq = error.inner_seq.add(shift.acked);
        let far = seq.since(self.flows[id].client_next).unsigned_abs();
        (far <= QUOTE_WINDOW).then_some((id, leg))
    }

    /// Whether another pod is asked, or the move ends otherwise: a client's kernel gives up a
    /// connection that opens where it hears that (Linux `tcp_v4_err`).
    fn is_reached_elsewhere(
        &mut self,
        now: Instant,
        id: FlowId,
        error: &IcmpError,
        out: &mut impl Output,
    ) -> bool {
        let flow = &self.flows[id];
        let (state, pod) = (flow.state, flow.owner.backend);
        match error.kind {
            IcmpKind::FragmentationNeeded { .. } | IcmpKind::PacketTooBig { .. } => false,
            _ if state.is_moving() => true,
            _ if state == State::SynSent && error.inner_seq.add(1) == flow.client_next => {
                let elsewhere = self.syn_elsewhere(now, id, out);
                self.learn(now, pod, Evidence::Doubt, out);
                elsewhere
            }
            _ => false,
        }
    }

    /// The client sent it.
    fn icmp_to_client(
        &mut self,
        frame: &mut [u8],
        error: &IcmpError,
        id: FlowId,
        leg: Leg,
    ) -> Option<usize> {
        let flow = &self.flows[id];
        let shift = self.legs.shifts.of(leg).unwrap_or_default();
        let frontend = &self.frontends[usize::from(flow.frontend)];
        let (ours, client) = (from_addr(frontend.addr), from_addr(flow.client));
        let inner = NewTuple {
            src: client,
            dst: ours,
            src_port: flow.client_port,
            dst_port: frontend.port,
        };
        let macs = (self.settings.mac, self.client_mac(flow)?);
        shift.quoted_to_client(frame, error);
        self.readdressed_error(frame, error, (ours, client), inner, macs)
    }

    /// Our segment to a client met the error: the owner sent it.
    fn icmp_to_leg(&mut self, frame: &mut [u8], error: &IcmpError) -> Option<usize> {
        let frontend = self
            .ids
            .frontends
            .find(to_addr(error.inner_src), error.inner_src_port)?;
        let id = self
            .flows
            .find(to_addr(error.inner_dst), error.inner_dst_port, frontend)?;
        let flow = &self.flows[id];
        if error.inner_seq.since(flow.server_next).unsigned_abs() > QUOTE_WINDOW {
            return None;
        }
        let spec = self.to_leg(flow.owner)?;
        let inner = NewTuple {
            src: spec.dst,
            dst: spec.src,
            src_port: spec.dst_port,
            dst_port: spec.src_port,
        };
        let macs = (spec.src_mac, spec.dst_mac);
        if let Some(shift) = self.legs.shifts.of(flow.owner) {
            // Its kernel believes an error only if the number is one that it has sent (Linux
            // `tcp_v4_err`).
            shift.quoted_to_pod(frame, error);
        }
        self.readdressed_error(frame, error, (spec.src, spec.dst), inner, macs)
    }
}
