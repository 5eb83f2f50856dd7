//! host-shims: a pod's application hands a connection to that of another pod
//! (`docs/adoption-wire.md`, Transfers).
//!
//! Owns when and whether that is done. What applications and kernels give and take is theirs.

use super::{Event, World};
use crate::{
    address,
    clock::{MS, Time},
    pod::adopter::Question,
};
use baton_packet::{Reason, Which};
use std::net::{IpAddr, SocketAddr};

/// What host-shim was told of so long ago it does not do any more.
const LEASE: Time = 200 * MS;
/// Transfers of 100 that an application or host-shim refuses.
const REFUSED: u32 = 15;

impl World {
    /// The adopter of a pod tells its host-shim.
    pub(super) fn transfer_asked(&mut self, pod: usize, question: Question) {
        let most = [MS, 5 * MS, LEASE][self.shim_rng.usize(..3)];
        let wait = self.shim_rng.u64(..=most);
        self.queue.push(self.now + wait, Event::Transfer(pod, question));
    }

    /// Both applications were asked.
    pub(super) fn transfer(&mut self, from: usize, question: Question) {
        let reason = match self.try_transfer(from, &question) {
            true => Reason::Moved,
            false => Reason::Kept,
        };
        self.note(|| format!("pod {from} hands on :{}: {reason:?}", question.peer.port()));
        let adopter = &mut self.pods[from].kernel.adopter;
        adopter.transferred(question, reason);
    }

    fn try_transfer(&mut self, from: usize, question: &Question) -> bool {
        let to = question.to;
        let nodes = &self.scenario.nodes;
        let target = (0..self.pods.len()).find(|pod| {
            let adopter = &self.pods[*pod].kernel.adopter;
            let is_it = match to.which {
                Which::Namespace(number) => adopter.namespace.0 == number,
                Which::Address(middle) => match address::pod(self.scenario.pods_v6, *pod).ip() {
                    IpAddr::V6(v6) => {
                        let all = u128::from(v6);
                        ((all >> 32) as u64, all as u32) == (middle, to.address_end)
                    }
                    IpAddr::V4(_) => false,
                },
            };
            let told = [&self.pods[from].kernel.adopter.told, &adopter.told];
            let reached = nodes[*pod] == nodes[from] || told.iter().all(|t| t.between_nodes);
            is_it && adopter.told.transfers && reached
        });
        let Some(target) = target.filter(|target| *target != from) else {
            return false;
        };
        let peer = SocketAddr::new(question.peer.ip(), to.peer_port);
        let there = &self.pods[target];
        let takes = there.process.takes() && there.kernel.is_free(&peer);
        if !takes || self.shim_rng.u32(..100) < REFUSED {
            return false;
        }
        let here = &mut self.pods[from];
        if !here.kernel.adopter.told.transfers || here.kernel.socket(&question.peer).is_none() {
            return false;
        }
        let Some(conn) = here.process.hand_out(&question.peer) else {
            return false;
        };
        let Some(socket) = here.kernel.hand_out(&question.peer) else {
            here.process.take_over(self.now, question.peer, conn);
            return false;
        };
        let legs = [(from, question.peer.port()), (target, to.peer_port)];
        let next = socket.rcv_nxt();
        self.legs.ends(legs[0]);
        if let Some(id) = self.truth.transferred(legs[0], legs[1], next) {
            let start = Some(question.numbers);
            let checked = self.legs.sent(self.now, legs[1], id, start, false);
            self.expect(checked);
        }
        let there = &mut self.pods[target];
        there.kernel.take_over(self.now, peer, socket);
        there.process.take_over(self.now, peer, conn);
        self.step_pod(target);
        true
    }
}
