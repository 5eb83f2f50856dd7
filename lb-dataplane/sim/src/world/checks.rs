//! What is checked by looking at the engine after every step: its books, its counters, its timers.
//!
//! Owns no state of the world. What passes between the parties is judged in `wire` and `truth`.

use super::{Next, STEPS_MAX, World};
use crate::{address, clock::Time};
use baton_api::FlowView;
use baton_engine::{Counter, Engine, Instant, Lost, PinReason, states::TABLE};
use baton_packet::SeqNumber;
use std::{collections::BTreeMap, net::SocketAddr};

/// Steps in a row at one and the same time: some frames for each of the connections, and no more.
const SPIN_MAX: u32 = 20_000;

/// Counters that explain ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Legs that were reset, or would have been with a frame to do it.
    pub legs_reset: u64,
    /// Flows that ended for a counted reason.
    pub ends: u64,
    /// Sessions restored.
    pub sessions: u64,
}

impl Counts {
    /// The engine's at present.
    #[must_use]
    pub fn of(engine: &Engine) -> Self {
        let lost: u64 = Lost::ALL.iter().map(|reason| engine.lost(*reason)).sum();
        let timeouts: u64 =
            [Counter::TimeoutsHandshake, Counter::TimeoutsIdle, Counter::TimeoutsHalfClosed]
                .iter()
                .map(|c| engine.counter(*c))
                .sum();
        let refused = TABLE.iter().position(|row| row.event.name() == "SynRefusedByAll");
        let refused = refused.and_then(|row| engine.transitions().nth(row));
        Self {
            ends: lost + timeouts + refused.map_or(0, |(_, _, count)| count),
            sessions: engine.counter(Counter::SessionsRestored),
            legs_reset: engine.counter(Counter::LegsReset),
        }
    }
}

impl World {
    /// When the engine has to be polled; the worker may be late.
    pub(super) fn engine_deadline(&mut self) -> Time {
        let Some(due) = self.engine.next_deadline() else {
            return Time::MAX;
        };
        let due = due.0.max(self.now);
        if self.scenario.poll_lag == 0 || self.calm {
            return due;
        }
        match self.poll_at {
            Some(at) => at.min(due + self.scenario.poll_lag),
            None => {
                let at = due + self.rng.u64(..=self.scenario.poll_lag);
                self.poll_at = Some(at);
                at
            }
        }
    }

    /// After each step.
    pub(super) fn check_step(&mut self, who: Next) {
        if self.spinning > SPIN_MAX {
            let deadline = self.engine.next_deadline();
            self.violated(format!("time stands still: {who:?} again, engine due at {deadline:?}"));
        }
        if self.step > STEPS_MAX {
            self.violated(format!("the run does not end: {STEPS_MAX} steps"));
        }
        if self.queue.overflowed() {
            self.violated("frames: too many events wait at one time");
        }
        if !std::mem::take(&mut self.touched) {
            return;
        }
        // Its panic is this run's violation.
        self.engine.check_invariants();
        if self.engine.counter(Counter::UnexpectedEvents) > 0 {
            self.violated("an event that no row of the state machine foresees");
        }
        // Whatever the network loses, doubles and reorders.
        let gap = PinReason::all().find(|pin| pin.label() == "gap");
        if gap.is_none_or(|gap| self.engine.pinned(gap) > 0) {
            self.violated("a guard was shown bytes behind missing ones");
        }
        if self.out.broken {
            self.violated("frames: sent without a free frame");
        }
    }

    /// A pod executes a request of a connection on a socket whose peer it takes for that client.
    pub(super) fn check_client(&mut self, sees: Option<SocketAddr>, conn: u32) {
        let Some(seen) = sees else { return };
        self.stats.restored += 1;
        let client = address::client_at(seen.ip(), self.clients.len());
        if !client.is_some_and(|c| self.truth.had_port(c, seen.port(), conn)) {
            self.violated(format!("a pod took the client of connection {conn} for {seen}"));
        }
    }

    /// A pod executes a request: where nothing is wrong, a flow moves for a reason and stays where
    /// it is otherwise.
    pub(super) fn watch_placement(&mut self, pod: usize, conn: u32) {
        if let Some(watch) = &mut self.watch
            && !self.calm
        {
            let checked = watch.executes(self.now, pod, conn);
            self.expect(checked);
        }
    }

    /// The connection and view of the flow whose owner leg is this one; numbers of the client's and
    /// the server's direction tell connections of one and the same port apart.
    pub(super) fn flow_on(
        &self,
        pod: usize,
        port: u16,
        of_client: Option<SeqNumber>,
        of_server: Option<SeqNumber>,
    ) -> Option<(u32, FlowView)> {
        let name = address::pod_name(pod);
        let view = self.flows().into_iter().find(|v| v.port == port && v.backend == name)?;
        let client = address::client_at(view.client.ip(), self.clients.len())?;
        let conn = self.truth.of_numbers(client, view.client.port(), of_client, of_server)?;
        Some((conn, view))
    }

    /// All flows.
    pub(super) fn flows(&self) -> Vec<FlowView> {
        self.engine.flows(Instant(self.now), 0, usize::MAX).0
    }

    /// The flow of a connection.
    pub(super) fn flow_of(&self, id: u32) -> Option<FlowView> {
        self.flows().into_iter().find(|v| {
            let client = address::client_at(v.client.ip(), self.clients.len());
            client.and_then(|c| self.truth.of_client(c, v.client.port())) == Some(id)
        })
    }

    /// The states of all flows, for the trace.
    pub(super) fn states(&self) -> BTreeMap<String, (String, String, u16)> {
        let of = |v: FlowView| (v.client.to_string(), (v.state, v.backend, v.port));
        self.flows().into_iter().map(of).collect()
    }

    /// Notes the verdict and every change of state since.
    pub(super) fn note_states(
        &mut self,
        before: &BTreeMap<String, (String, String, u16)>,
        why: &str,
    ) {
        let after = self.states();
        let mut changes = Vec::new();
        for (client, (state, backend, port)) in &after {
            match before.get(client) {
                Some(old) if old.0 == *state && old.2 == *port => {}
                Some(old) => {
                    changes.push(format!("{client} {} => {state} ({backend} :{port})", old.0));
                }
                None => changes.push(format!("{client} new => {state} ({backend} :{port})")),
            }
        }
        for (client, old) in before.iter().filter(|(c, _)| !after.contains_key(*c)) {
            changes.push(format!("{client} {} => Gone", old.0));
        }
        if !changes.is_empty() || why.starts_with("Drop") {
            self.note(|| format!("{why}: {}", changes.join("; ")));
        }
    }
}
