//! Forgets what can have no effect any more, so that states that behave alike are one state.
//!
//! Owns only that. What it takes out could also have been lost, or could not have been seen by
//! anybody.

use crate::{
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
        let World {
            flow, net, pods, ..
        } = &mut self.world;
        if fencing {
            flow.closing.clear();
        }
        let (owner, standby) = (flow.owner, flow.standby);
        let live = |leg: Leg| Some(leg) == owner || Some(leg) == standby;
        // Ends of a leg that is nobody's may be lost; only an execution there would matter.
        net.forget(|p| {
            !live(p.leg)
                && match p.way {
                    Way::FromPod => fencing,
                    Way::ToPod => !matches!(p.wire, Wire::Adopt { .. } | Wire::Data { .. }),
                }
        });
        let adopts = |net: &InFlight, leg| has(net, leg, |w| matches!(w, Wire::Adopt { .. }));
        let asks = |net: &InFlight, leg| has(net, leg, |w| matches!(w, Wire::Data { .. }));
        let before = net.clone();
        net.forget(|Packet { way, leg, wire }| {
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
                        !adopts(&before, *leg) && pod.socket(leg.port).is_none_or(|s| *seq < s.rcv)
                    }
                    _ => false,
                }
        });
        for (number, pod) in pods.iter_mut().enumerate() {
            let leg = |port| Leg {
                pod: number as u8,
                port,
            };
            let known = |port: u8| live(leg(port)) || adopts(net, leg(port));
            pod.recent.retain(|d| known(d.port));
            pod.sockets
                .retain(|s| live(leg(s.port)) || s.unread() || asks(net, leg(s.port)) || !fencing);
        }
    }
}

fn has(net: &InFlight, leg: Leg, what: impl Fn(&Wire) -> bool) -> bool {
    net.each()
        .any(|p| p.way == Way::ToPod && p.leg == leg && what(&p.wire))
}
