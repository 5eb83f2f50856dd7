//! ICMP errors about our segments, translated to the leg that the segment came from, so that path
//! MTU discovery (RFC 1191, RFC 8201) works through the dataplane. That a pod cannot be reached is
//! no client's concern while another one can be.
//!
//! # Decisions
//!
//! - **Pods are told of no path that takes less than 1,260 bytes**: a pod's kernel remembers that
//!   by address, for 10 minutes, and to it all clients have ours. One that says 552, the least that
//!   Linux takes (`net.ipv4.route.min_pmtu`), would have had the pod send to everyone in pieces of
//!   500 bytes. What is too long for such a client goes without "don't fragment", and its
//!   connection has its MSS from the next pod on. What it costs: the client waits once for the
//!   pod's retransmission time-out, where the pod's kernel would have repeated at once.

use crate::{
    Engine, Output, Verdict,
    backend::Evidence,
    clock::Instant,
    flow::MSS_MIN,
    ids::{FlowId, Leg, from_addr, to_addr},
    net::across::Across,
    obs::counters::{Counter, DropReason},
    states::State,
    tables::{From, legs::Use},
};
use baton_packet::{IcmpError, IcmpKind, Mac, NewTuple, rewrite_icmp};
use std::net::IpAddr;

/// A quoted sequence number may be this far from the flow's: anything else is a guess by a third
/// party (RFC 5927 section 4.1). What goes on is judged by the kernel that sent what is quoted,
/// which knows exactly what is under way.
const QUOTE_WINDOW: u32 = 1 << 24;
/// Pods are told of no path that takes less, and of none to an IPv6 client (RFC 8201 section 4)
/// below 1,280, which are these once an IPv4 pod hears of them.
const PATH_MTU_MIN: u32 = 1_260;
const PATH_MTU_MIN_V6: u32 = 1_280;

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
            let quoted = self.quoted_to_client(error);
            if let Some(id) = quoted
                && self.is_path_of_its_own(id, error)
            {
                return Verdict::Absorbed;
            }
            quoted.and_then(|id| self.icmp_to_leg(frame, error, id))
        };
        match translated {
            Some(len) => {
                self.counters.add(Counter::IcmpTranslated);
                Verdict::Transmit(len)
            }
            None => {
                let left = to_backend.then(|| self.pass_to_host(frame, error.end));
                left.flatten().unwrap_or(Verdict::Drop(DropReason::IcmpUnrelated))
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
        let index = self.ids.backends.find(to_addr(error.inner_dst), error.inner_dst_port)?;
        let backend = &self.backends[usize::from(index)];
        let end = (error.inner_src, error.inner_src_port);
        let leg = Leg { backend: index, port: self.net.sources.number(backend.source, end) };
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
            _ if state == State::SynSent
                && error.inner_seq.add(1).add(self.in_front(id)) == flow.client_next =>
            {
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

    /// The flow whose segment to a client met the error.
    fn quoted_to_client(&self, error: &IcmpError) -> Option<FlowId> {
        let frontend = self.ids.frontends.find(to_addr(error.inner_src), error.inner_src_port)?;
        let id = self.flows.find(to_addr(error.inner_dst), error.inner_dst_port, frontend)?;
        let far = error.inner_seq.since(self.flows[id].server_next);
        (far.unsigned_abs() <= QUOTE_WINDOW).then_some(id)
    }

    /// Whether the error says that the client's path takes less than a pod is told. Routers may cut
    /// to pieces what the owner sends, and the flow's next pods hear of it as of a client's MSS.
    /// What no pod is told is for nobody else to judge: only what its client lacks can have been
    /// too long (Linux `tcp_v4_err`).
    fn is_path_of_its_own(&mut self, id: FlowId, error: &IcmpError) -> bool {
        let Some(mtu) = error.kind.mtu() else {
            return false;
        };
        let flow = &self.flows[id];
        let owner = self.backends.get(usize::from(flow.owner.backend));
        let v4 = owner.is_some_and(|owner| !owner.addr.is_v6());
        let least = match error.v6 {
            true => PATH_MTU_MIN_V6,
            false => PATH_MTU_MIN,
        };
        let is = v4 && mtu < least;
        let acked = flow.server_acked;
        if is
            && error.inner_seq.at_or_after(acked)
            && error.inner_seq.before(self.sent_at_most(id, From::Server))
        {
            self.counters.add(Counter::NarrowPaths);
            if !error.v6 {
                let flow = &mut self.flows[id];
                let mss = (mtu as u16).saturating_sub(40).max(MSS_MIN);
                if mss < flow.mss {
                    flow.mss = mss;
                    // Who has one next may have an MSS between the two.
                    self.keeps_its_legs(id);
                }
            }
        }
        is
    }

    /// Our segment to a client met the error: the owner sent it.
    fn icmp_to_leg(&mut self, frame: &mut [u8], error: &IcmpError, id: FlowId) -> Option<usize> {
        let flow = &self.flows[id];
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
