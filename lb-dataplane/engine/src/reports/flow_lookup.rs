//! Whose a frame is: asked about frames that come and go by whoever captures some of them. Only
//! looks.

use crate::{
    Engine,
    flow::Flow,
    ids::{Leg, from_addr, to_addr},
    tables::legs::Use,
};
use baton_packet::Decoded;
use std::net::{IpAddr, SocketAddr};

/// What is known of a frame between a client or a backend and the dataplane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowLookup<'a> {
    /// The other end: a client or a backend.
    pub peer: SocketAddr,
    /// The dataplane's end: a frontend, or a leg's port.
    pub own: SocketAddr,
    /// Whether the other end is a backend.
    pub leg: bool,
    /// The flow's client. None on a leg that is no flow's any more, and for probes.
    pub client: Option<SocketAddr>,
    /// The policy's name, known with a frontend or a flow.
    pub policy: Option<&'a str>,
    /// Names of the backends that it is about: that of the leg, the flow's owner, and the one that
    /// it comes from.
    pub backends: [Option<&'a str>; 3],
}

impl Engine {
    /// Whose a decoded frame is. An ICMP error is the segment's that it quotes. None if it is
    /// nothing of ours.
    #[must_use]
    pub fn whose(&self, frame: &Decoded) -> Option<FlowLookup<'_>> {
        let (src, dst) = match frame {
            Decoded::Tcp(segment) => {
                ((segment.src, segment.src_port), (segment.dst, segment.dst_port))
            }
            Decoded::Icmp(error) => {
                ((error.inner_src, error.inner_src_port), (error.inner_dst, error.inner_dst_port))
            }
            _ => return None,
        };
        // A leg's port and a frontend's never coincide, so at most one order of the two ends is a
        // leg of ours.
        self.sight_of_leg(src, dst)
            .or_else(|| self.sight_of_leg(dst, src))
            .or_else(|| self.sight_of_client(src, dst))
            .or_else(|| self.sight_of_client(dst, src))
    }

    fn sight_of_leg(&self, peer: (IpAddr, u16), own: (IpAddr, u16)) -> Option<FlowLookup<'_>> {
        let ours = self.net.is_source(own.0) && self.settings.ports.contains(&own.1);
        if !ours {
            return None;
        }
        let number = self.ids.backends.find(to_addr(peer.0), peer.1)?;
        let backend = self.backends.get(usize::from(number))?;
        let leg = Leg { backend: number, port: self.net.sources.number(backend.source, own) };
        let flow = match self.legs.uses.used_by(leg) {
            Some(Use::Owner(id) | Use::Standby(id)) => Some(&self.flows[id]),
            _ => None,
        };
        let mut sight = FlowLookup {
            peer: peer.into(),
            own: own.into(),
            leg: true,
            client: None,
            policy: None,
            backends: [Some(&backend.name), None, None],
        };
        if let Some(flow) = flow {
            self.fill_in(&mut sight, flow);
        }
        Some(sight)
    }

    fn sight_of_client(&self, peer: (IpAddr, u16), own: (IpAddr, u16)) -> Option<FlowLookup<'_>> {
        let frontend = self.ids.frontends.find(to_addr(own.0), own.1)?;
        let policy = self.frontends.get(usize::from(frontend))?.policy;
        let policy = self.policies.get(usize::from(policy))?;
        let mut sight = FlowLookup {
            peer: peer.into(),
            own: own.into(),
            leg: false,
            client: Some(peer.into()),
            policy: Some(&policy.spec.name),
            backends: [None; 3],
        };
        if let Some(id) = self.flows.find(to_addr(peer.0), peer.1, frontend) {
            self.fill_in(&mut sight, &self.flows[id]);
        }
        Some(sight)
    }

    fn fill_in<'a>(&'a self, sight: &mut FlowLookup<'a>, flow: &Flow) {
        sight.client = Some((from_addr(flow.client), flow.client_port).into());
        let policy = self.policies.get(usize::from(flow.policy));
        sight.policy = policy.map(|policy| policy.spec.name.as_str());
        sight.backends[1] = self.name_behind(flow.owner);
        sight.backends[2] = self.name_behind(flow.standby);
    }

    fn name_behind(&self, leg: Leg) -> Option<&str> {
        let backend = leg.is_some().then(|| usize::from(leg.backend))?;
        self.backends.get(backend).map(|b| b.name.as_str())
    }
}
