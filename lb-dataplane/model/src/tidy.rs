//! Forgets what can have no effect any more, so that states that behave alike are one state.
//!
//! Owns only that. What it takes out could also have been lost, or could not have been seen by
//! anybody.

use crate::{
    pod::Socket,
    step::Run,
    wire::{InFlight, Leg, Network, Packet, Way, Wire},
    world::World,
};
use baton_engine::states::State;

impl Run<'_> {
    /// After each step.
    pub fn tidy(&mut self) {
        if self.config.network == Network::Counted {
            if self.state() == State::Gone {
                self.world.flow.closing.clear();
            }
            return;
        }
        let fencing = self.config.safeguards.fencing;
        let World { flow, net, pods, .. } = &mut self.world;
        if fencing {
            flow.closing.clear();
        }
        let (owner, standby) = (flow.owner, flow.standby);
        let live = |leg: Leg| Some(leg) == owner || Some(leg) == standby;
        let closing = &flow.closing;
        flow.shifts.retain(|(leg, _)| live(*leg) || closing.contains(leg));
        // Ends of a leg that is nobody's may be lost; only an execution there would matter.
        net.forget(|p| {
            !live(p.leg)
                && match p.way {
                    Way::FromPod => fencing,
                    Way::ToPod => !matches!(p.wire, Wire::Adopt { .. } | Wire::Data { .. }),
                }
        });
        // A handshake that is over needs neither its end nor its answer again: what that would make
        // the dataplane send is on its way already.
        let shifts = &flow.shifts;
        net.forget(|p| {
            let pod = &pods[usize::from(p.leg.pod)];
            let half = pod.socket(p.leg.port).is_some_and(|s| s.half);
            let opened = shifts.iter().any(|(leg, _)| *leg == p.leg);
            match p.wire {
                Wire::Opens { .. } => pod.recent.iter().any(|d| d.port == p.leg.port),
                Wire::SynAck { .. } => opened && !half,
                _ => false,
            }
        });
        let adopts = |net: &InFlight, leg| has(net, leg, |w| matches!(w, Wire::Adopt { .. }));
        let asks = |net: &InFlight, leg| has(net, leg, |w| matches!(w, Wire::Data { .. }));
        let before = net.clone();
        net.forget(|packet| {
            let Packet { way, leg, isn, wire } = packet;
            let pod = &pods[usize::from(leg.pod)];
            *way == Way::ToPod
                && !live(*leg)
                && match wire {
                    Wire::Adopt { seq, ack } => {
                        !asks(&before, *leg)
                            || pod
                                .recent
                                .iter()
                                .any(|d| (d.port, d.seq, d.ack) == (leg.port, *seq, *ack))
                    }
                    Wire::Data { seq, .. } => {
                        let is_new = |s: &Socket| s.isn == *isn && *seq >= s.rcv;
                        !adopts(&before, *leg) && !pod.socket(leg.port).is_some_and(is_new)
                    }
                    _ => false,
                }
        });
        for (number, pod) in pods.iter_mut().enumerate() {
            let leg = |port| Leg { pod: number as u8, port };
            let known = |port: u8| live(leg(port)) || adopts(net, leg(port));
            pod.recent.retain(|d| known(d.port));
            pod.handshakes.retain(|(port, _)| live(leg(*port)));
            pod.sockets
                .retain(|s| live(leg(s.port)) || s.unread() || asks(net, leg(s.port)) || !fencing);
        }
    }
}

fn has(net: &InFlight, leg: Leg, what: impl Fn(&Wire) -> bool) -> bool {
    net.each().any(|p| p.way == Way::ToPod && p.leg == leg && what(&p.wire))
}
