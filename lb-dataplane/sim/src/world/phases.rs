//! The three phases of a run: faults, calm, and nothing left.
//!
//! Owns their order and bounds. In the calm phase every open request is answered in bounded time;
//! in the last one the engine forgets everything.

use super::World;
use crate::{
    address,
    clock::{SECOND, Time},
    tcp::State,
    truth::{Conn, OwnerEnd},
};
use baton_api::{FlowView, Protocol};
use baton_engine::Instant;
use std::net::SocketAddr;

/// Longest that a request may wait once all faults are over. It holds two retransmission timeouts
/// as long as the longest phase of faults (3 s, so at most 4 s each), the engine's tries of an
/// adoption (2.9 s) and its wait for a backend (10 s), and is below the policies' idle timeout, so
/// that nothing is tidied away by it unseen.
const SERVICE_MAX: Time = 24 * SECOND;
/// Longest until the engine is empty: an idle timeout (30 s), and an old leg whose pod does not
/// close (60 s).
const EMPTY_MAX: Time = 130 * SECOND;

/// How long an application waits for an answer on a connection that is gone.
const PATIENCE: Time = 5 * SECOND;

impl World {
    pub(super) fn faults_phase(&mut self) {
        let until = self.scenario.calm_at;
        while self.one_step(until) {}
    }

    fn begin_calm(&mut self) {
        self.note(|| "*** calm".into());
        self.calm = true;
        self.poll_at = None;
        for [a, b] in self.client_links.iter_mut().chain(&mut self.pod_links) {
            a.calm();
            b.calm();
        }
        self.out.free = true;
        let epoch = self.epoch;
        for i in 0..self.pods.len() {
            self.restart(i, false);
            self.listen(i, true);
            self.pods[i].process.calm();
            self.pods[i].kernel.adopter.attached = self.scenario.adopts[i];
            self.pods[i].kernel.adopter.syncookies = true;
            self.set_pod_keys(i, epoch);
            (self.listed[i], self.draining[i], self.weights[i]) = (true, false, 1);
            self.neighbours[i] = true;
            self.happening(crate::fault::Happening::Neighbour(i, true));
            self.happening(crate::fault::Happening::Command(i, false));
            self.happening(crate::fault::Happening::Checked(i, None));
        }
        self.apply();
        for client in &mut self.clients {
            client.calm();
        }
    }

    pub(super) fn calm_phase(&mut self) {
        self.begin_calm();
        let calm_at = self.now;
        while !self.clients.iter().all(crate::client::Client::is_done) {
            let waits = |c: &crate::client::Client| c.waits_since().map(|s| s.max(calm_at));
            let oldest = self.clients.iter().filter_map(waits).min();
            self.give_up_on_ended();
            let late = oldest.is_some_and(|since| self.now > since + SERVICE_MAX);
            let until = calm_at + 2 * SERVICE_MAX;
            if late || !self.one_step(until) {
                if !self.failed() {
                    let who: Vec<String> = self
                        .clients
                        .iter()
                        .filter(|c| !c.is_done())
                        .map(crate::client::Client::describe)
                        .collect();
                    let (flows, _) = self.engine.flows(Instant(self.now), 0, 32);
                    let flows: Vec<String> = flows
                        .iter()
                        .map(|f| format!("{} {} at {} :{}", f.client, f.state, f.backend, f.port))
                        .collect();
                    self.violated(format!(
                        "service: not finished {} s after all faults ended: {}; flows: {}",
                        (self.now - calm_at) / SECOND,
                        who.join("; "),
                        flows.join("; ")
                    ));
                }
                return;
            }
        }
    }

    /// A reset that got lost is not repeated (RFC 9293), nor is anything by a pod that is another
    /// one now. So a client that only waits never learns that its connection is gone; applications
    /// have time-outs of their own for that.
    fn give_up_on_ended(&mut self) {
        for i in 0..self.clients.len() {
            let client = &self.clients[i];
            let (Some(id), Some(since)) = (client.waiting_conn(), client.waits_since()) else {
                continue;
            };
            let ended = self.truth.conns.get(&id).is_some_and(|c| c.over.is_some());
            if self.now <= since + PATIENCE {
                continue;
            }
            // Its flow was ended for a counted reason, and the reset did not reach it or was none
            // to its kernel.
            let untold = self.untold > 0 && self.flow_of(id).is_none();
            if ended || untold || self.died_unheard(id) {
                self.untold -= u64::from(untold && !ended);
                self.note(|| format!("client {i} gives up on connection {id}"));
                self.clients[i].give_up(self.now);
            }
        }
    }

    /// Whether a pod that had the connection died, or reset it, and no word of that arrived.
    fn died_unheard(&self, id: u32) -> bool {
        // The bare rule cannot tell a response that is cut short from a whole one (a limit that the
        // README names).
        let bare = self.scenario.policy.protocol == Protocol::RequestResponse;
        let conn = self.truth.conns.get(&id);
        let died = self.restarts.iter().any(|(pod, died, _)| {
            let at_death = |e: OwnerEnd| e.pod == *pod && e.at >= *died && !e.early;
            let heard = |c: &Conn| !bare && c.owner_end.is_some_and(at_death);
            self.truth.had_leg(*pod, id) && !conn.is_some_and(heard)
        });
        let had_leg = |pod: usize| self.truth.had_leg(pod, id);
        let specs = &self.scenario.pod_links;
        let cut = |pod: usize| specs[pod].iter().any(|s| !s.partitions.is_empty());
        let silent = bare
            && (0..self.pods.len()).any(|pod| (self.unreachable[pod] || cut(pod)) && had_leg(pod));
        died || silent || self.flow_of(id).is_some_and(|flow| self.owner_is_gone(&flow))
    }

    /// Whether the socket of a flow's owner was there once and is there no more.
    fn owner_is_gone(&self, flow: &FlowView) -> bool {
        let peer = SocketAddr::new(address::ours(self.scenario.pods_v6), flow.port);
        let owner = (0..self.pods.len()).find(|i| address::pod_name(*i) == flow.backend);
        owner.is_some_and(|i| {
            let kernel = &self.pods[i].kernel;
            kernel.cause(&peer).is_some() && kernel.state(&peer).is_none()
        })
    }

    fn is_empty(&self) -> bool {
        let tables = self.engine.tables();
        ["flows", "closing_legs", "kept_segments", "guarded_flows", "resp_sessions", "affinities"]
            .iter()
            .all(|name| tables.get(*name).is_some_and(|(used, _)| *used == 0))
    }

    pub(super) fn empty_phase(&mut self) {
        self.note(|| "*** all clients are done".into());
        let until = self.now + EMPTY_MAX;
        while !self.is_empty() {
            if !self.one_step(until) {
                if !self.failed() {
                    let tables = self.engine.tables();
                    let (flows, _) = self.engine.flows(Instant(self.now), 0, 32);
                    self.violated(format!("not empty in the end: {tables:?}, {flows:?}"));
                }
                return;
            }
        }
        self.left_legs_are_closed();
    }

    /// An application whose connection went to another pod has seen its end.
    fn left_legs_are_closed(&mut self) {
        for (pod, port) in self.legs.left().collect::<Vec<_>>() {
            let peer = SocketAddr::new(address::ours(self.scenario.pods_v6), port);
            let conn = self.truth.of_leg(pod, port);
            let unsent = conn.is_some_and(|id| self.unsent_resets.contains(&id));
            let told = !self.unreachable[pod] && !unsent;
            if told && self.pods[pod].kernel.state(&peer) == Some(State::Established) {
                self.violated(format!(
                    "old legs: pod {pod} never hears that its connection with port {port} is over"
                ));
            }
        }
    }
}
