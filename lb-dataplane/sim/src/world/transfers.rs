//! host-shims: a pod's application hands a connection to that of another pod
//! (`docs/adoption-wire.md`, Transfers).
//!
//! Owns when and whether that is done. What applications and kernels give and take is theirs.

use super::{Event, World};
use crate::{
    clock::{MS, Time},
    pod::adopter::Question,
};
use baton_packet::Reason;
use std::net::SocketAddr;

/// What host-shim was told of so long ago it does not do any more.
const LEASE: Time = 200 * MS;
/// Transfers of 100 that an application or host-shim refuses.
const REFUSED: u32 = 15;

impl World {
    /// The adopter of a pod tells its host-shim.
    pub(super) fn transfer_asked(&mut self, pod: usize, question: Question) {
        let most = [MS, 5 * MS, LEASE][self.shim_rng.usize(..3)];
        let wait = self.shim_rng.u64(..=most);
        self.queue
            .push(self.now + wait, Event::Transfer(pod, question));
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
        let target = self.pods.iter().position(|pod| {
            let adopter = &pod.kernel.adopter;
            adopter.namespace.0 == to.namespace && adopter.told.transfers
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
