//! Draining backends: their flows leave, with their next request, or without one after a quiet time.
//!
//! Owns each drain's figures and deadline, and the closing of flows that the deadline meets. Moving is `adopt`'s.

use crate::{
    Cause, Engine, Output, Verdict,
    counters::Counter,
    engine::Instant,
    flow::{Bits, FlowId, Leg, from_addr},
    guards::guard_of,
    pins::Lost,
    rescue::ADOPTIONS_PER_MS,
    states::{Event, State},
    sweep::{Sweep, Swept},
};
use baton_api::{DrainState, Micros, MigrationMode, OnDeadline, Protocol};
use baton_packet::{Flags, Segment};
use std::collections::BTreeMap;

/// FINs of our own to a client before it is reset instead; 200 ms between the first two (Linux `TCP_RTO_MIN`), doubling.
const FIN_TRIES_MAX: u8 = 5;
const FIN_WAIT_MS: u64 = 200;

/// What is in progress at the deadline has so long to end: with the default deadline, as long as Kubernetes leaves a pod
/// behind it (`terminationGracePeriodSeconds`, 30 s).
const CUT_AFTER_MS: u64 = 5_000;

/// The figures of a drain.
#[derive(Clone, Copy)]
pub(crate) struct Drain {
    since_ms: u64,
    /// Flows when it began, and those that came and went since.
    flows: u64,
    moved_before: u64,
    closed: u64,
}

/// What the flows of a draining backend wait for: a pin or something else, with their counts.
#[derive(Default)]
pub(crate) struct Waiting {
    flows: u64,
    deadline_ms: u64,
    what: BTreeMap<(bool, &'static str), u64>,
}

/// Adoptions per millisecond towards one backend that were begun without a request.
#[derive(Clone, Copy, Default)]
pub(crate) struct Budget {
    ms: u64,
    used: u16,
}

impl Budget {
    pub(crate) fn has_room(&self, now: Instant) -> bool {
        self.ms != now.ms() || self.used < ADOPTIONS_PER_MS
    }

    pub(crate) fn spend(&mut self, now: Instant) {
        if self.ms != now.ms() {
            *self = Self {
                ms: now.ms(),
                used: 0,
            };
        }
        self.used += 1;
    }
}

/// Where no guard knows whether a response is complete, its last segment may be lost: its sender repeats it within this time
/// (Linux `TCP_RTO_MIN` is 200 ms, twice that for the second try, and the same again in between).
const QUIET_UNGUARDED_US: u64 = 1_000_000;

/// How long a flow at rest stays with a draining backend without a request of its own.
fn quiet_us(spec: &baton_api::Policy) -> u64 {
    match guard_of(spec.protocol) {
        Some(_) => spec.drain.quiet.0,
        None => spec.drain.quiet.0.max(QUIET_UNGUARDED_US),
    }
}

impl Engine {
    /// Drains the backends of this name, or ends that, beside what the snapshot says. How many there are of the name.
    pub fn drain(&mut self, now: Instant, policy: Option<&str>, name: &str, on: bool) -> usize {
        let now = self.engine_time(now);
        let mut found = Vec::new();
        for p in self.policies.iter().filter(|p| p.listed) {
            if policy.is_some_and(|wanted| wanted != p.spec.name) {
                continue;
            }
            for member in p.pools.iter().flat_map(|p| &p.members) {
                if self.backends[usize::from(member.backend)].name == name {
                    found.push(member.backend);
                }
            }
        }
        found.sort_unstable();
        found.dedup();
        for index in &found {
            self.backends[usize::from(*index)].drained = on;
            self.look_over_drain(now, usize::from(*index));
        }
        found.len()
    }

    /// Begins, continues or ends the drain of a backend.
    pub(crate) fn look_over_drain(&mut self, now: Instant, index: usize) {
        let backend = &mut self.backends[index];
        let leaves = backend.is_draining() || !backend.listed;
        if !leaves {
            backend.drain = None;
            return;
        }
        if backend.drain.is_none() {
            backend.drain = Some(Drain {
                since_ms: now.ms(),
                flows: u64::from(backend.flows),
                moved_before: backend.moves_out + backend.rescued,
                closed: 0,
            });
        }
        if backend.flows > 0 {
            self.begin_sweep(index as u16, Sweep::Drain);
        }
    }

    /// A flow of a draining backend.
    pub(crate) fn drain_flow(&mut self, now: Instant, id: FlowId, out: &mut impl Output) -> Swept {
        let flow = &self.flows[id];
        let policy = &self.policies[usize::from(flow.policy)];
        let spec = &policy.spec.drain;
        let quiet_us = quiet_us(&policy.spec);
        let (deadline_ms, on_deadline) = (spec.deadline.0 / 1_000, spec.on_deadline);
        let quiet_ms = u64::from(now.ms32().wrapping_sub(flow.last_ms));
        let open = matches!(flow.state, State::Idle | State::Fresh);
        if open && flow.all_acked() && quiet_ms * 1_000 >= quiet_us {
            match self.move_idle(now, id, out) {
                Swept::Stays => {}
                swept => return swept,
            }
        }
        let backend = usize::from(self.flows[id].owner.backend);
        let since_ms = self.backends[backend]
            .drain
            .map_or(now.ms(), |d| d.since_ms);
        let late_ms = now.ms().checked_sub(since_ms + deadline_ms);
        let Some(late_ms) = late_ms.filter(|_| on_deadline == OnDeadline::Close) else {
            return Swept::Stays;
        };
        let Some(event) = self.drain_ends(id, late_ms) else {
            return Swept::Stays;
        };
        self.count_lost(id, Lost::DrainDeadline);
        if let Some(drain) = &mut self.backends[backend].drain {
            drain.closed += 1;
        }
        let flow = &mut self.flows[id];
        flow.boundary = flow.client_next;
        flow.tries = 0;
        let _ = self.step(now, id, event, out);
        Swept::Done
    }

    /// How a flow ends whose drain's deadline was so long ago, if it does now: in order where it is at rest.
    fn drain_ends(&self, id: FlowId, late_ms: u64) -> Option<Event> {
        let flow = &self.flows[id];
        let acked = flow.all_acked();
        let cut = late_ms >= CUT_AFTER_MS;
        match flow.state {
            State::Idle | State::Fresh => {
                (acked && !self.closing.is_full()).then_some(Event::DrainClose)
            }
            // The client has said all. Of a pinned flow nobody knows whether an answer is to come.
            State::ClientFin => {
                let outstanding = flow.bits.has(Bits::OUTSTANDING) && flow.pin.is_none();
                if acked && !outstanding && self.answered(id) {
                    Some(Event::DrainClose)
                } else {
                    cut.then_some(Event::DrainCut)
                }
            }
            // The server has said all, and the client has it.
            State::ServerFin => (acked || cut).then_some(Event::DrainCut),
            State::Request | State::Response => cut.then_some(Event::DrainCut),
            // These have timers of their own.
            _ => None,
        }
    }

    /// Moves a flow at rest without waiting for its next request.
    fn move_idle(&mut self, now: Instant, id: FlowId, out: &mut impl Output) -> Swept {
        let flow = &self.flows[id];
        let policy = &self.policies[usize::from(flow.policy)];
        if flow.pin.is_some()
            || policy.spec.migration.mode == MigrationMode::Never
            || policy.moved_enough(flow.migrations)
            || !self.at_rest(id)
            || self.closing.is_full()
            || policy.spec.protocol == Protocol::None
        {
            return Swept::Stays;
        }
        let (owner, v6) = (flow.owner.backend, flow.bits.has(Bits::V6));
        let Some(leg) = self.rescue_leg(now, id, Some(owner), out) else {
            let policy = &self.policies[usize::from(self.flows[id].policy)];
            return if policy.someone_adopts(v6, Some(owner), &self.backends, now) {
                Swept::NoRoom
            } else {
                Swept::Stays
            };
        };
        self.begin_idle_move(now, id, leg, Cause::Drain, out);
        Swept::Done
    }

    /// Gives a flow at rest to the backend of `leg`.
    pub(crate) fn begin_idle_move(
        &mut self,
        now: Instant,
        id: FlowId,
        leg: Leg,
        cause: Cause,
        out: &mut impl Output,
    ) {
        self.flows[id].boundary = self.flows[id].client_next;
        self.hand_over(id, leg, cause);
        self.counters.add(Counter::MigrationsBegun);
        let _ = self.step(now, id, Event::MoveIdle, out);
    }

    /// The wait before our FIN is repeated.
    pub(crate) fn parted_wait_ms(&self, id: FlowId) -> u64 {
        FIN_WAIT_MS << self.flows[id].tries.min(FIN_TRIES_MAX)
    }

    /// The client has not closed its direction yet.
    pub(crate) fn parted_due(&mut self, now: Instant, id: FlowId, out: &mut impl Output) {
        let flow = &mut self.flows[id];
        flow.tries += 1;
        let event = if flow.tries < FIN_TRIES_MAX {
            Event::Doubt
        } else {
            Event::Timeout
        };
        let _ = self.step(now, id, event, out);
    }

    /// A segment from the client of a flow that Baton closed.
    pub(crate) fn client_of_parted(
        &mut self,
        now: Instant,
        segment: &Segment,
        id: FlowId,
        out: &mut impl Output,
    ) -> Verdict {
        let flow = &mut self.flows[id];
        let end = segment.seq.add(segment.payload_len());
        if segment.payload_len() > 0 && end.after(flow.client_next) {
            // It sent a request before it knew.
            let _ = self.step(now, id, Event::ClientData, out);
        } else if segment.flags.has(Flags::FIN) && end == flow.client_next {
            flow.client_next = end.add(1);
            let _ = self.step(now, id, Event::ClientFin, out);
        }
        Verdict::Absorbed
    }

    /// The owner leg of a flow that Baton closes goes to the closing table.
    pub(crate) fn close_owner(&mut self, now: Instant, id: FlowId, out: &mut impl Output) {
        let leg = std::mem::replace(&mut self.flows[id].owner, Leg::NONE);
        if !leg.is_some() {
            return;
        }
        self.leaves(id, leg.backend);
        self.close_leg(now, id, leg, self.flows[id].client_next, out);
    }

    /// How far the drain of a backend is, whose flows wait for these things.
    pub(crate) fn drain_state(
        &self,
        index: u16,
        now: Instant,
        waiting: Waiting,
    ) -> Option<DrainState> {
        let backend = &self.backends[usize::from(index)];
        let drain = backend.drain?;
        let moved = (backend.moves_out + backend.rescued).saturating_sub(drain.moved_before);
        let gone = moved + drain.closed + waiting.flows;
        let left_ms = (drain.since_ms + waiting.deadline_ms).saturating_sub(now.ms());
        let what = waiting.what.into_iter();
        Some(DrainState {
            by_command: backend.drained,
            since: Micros::from_millis(now.ms().saturating_sub(drain.since_ms)),
            left: Micros::from_millis(left_ms),
            moved,
            ended: drain.flows.saturating_sub(gone),
            closed: drain.closed,
            waiting: what
                .map(|((pinned, what), count)| {
                    let pin = if pinned { "pinned: " } else { "" };
                    (format!("{pin}{what}"), count)
                })
                .collect(),
        })
    }

    /// One more flow of a draining backend, or on its way there: it may come back.
    pub(crate) fn note_waiting(&self, id: FlowId, now: Instant, waiting: &mut Waiting) {
        waiting.flows += 1;
        let spec = &self.policies[usize::from(self.flows[id].policy)].spec;
        waiting.deadline_ms = waiting.deadline_ms.max(spec.drain.deadline.0 / 1_000);
        *waiting.what.entry(self.waits_for(id, now)).or_default() += 1;
    }

    fn waits_for(&self, id: FlowId, now: Instant) -> (bool, &'static str) {
        let flow = &self.flows[id];
        let policy = &self.policies[usize::from(flow.policy)];
        let spec = &policy.spec;
        if let Some(pin) = flow.pin {
            return (true, pin.label());
        }
        let quiet_for_us = u64::from(now.ms32().wrapping_sub(flow.last_ms)) * 1_000;
        let what = match flow.state {
            State::Idle | State::Fresh if !self.at_rest(id) => "state of its own there",
            State::Idle | State::Fresh if spec.migration.mode == MigrationMode::Never => {
                "its end: migration.mode is Never"
            }
            State::Idle | State::Fresh if policy.moved_enough(flow.migrations) => {
                "its end: migration.perFlow moves made"
            }
            State::Idle | State::Fresh if quiet_for_us < quiet_us(spec) => "quiet time",
            State::Idle | State::Fresh => "no other backend can adopt now",
            State::Held | State::Orphan | State::Adopting | State::AdoptingIdle => "adoption",
            State::SynSent | State::SynAcked => "handshake",
            State::Request | State::Response => "request in progress",
            State::ClientFin => "the server's close, as the client has closed",
            State::ServerFin => "the client's close, as the server has closed",
            State::Closed | State::Parted | State::Gone => "closing",
        };
        (false, what)
    }

    /// Names of the backends in force, for whoever asked for another one.
    #[must_use]
    pub fn backend_names(&self) -> Vec<String> {
        let listed = self.backends.iter().filter(|b| b.listed);
        let mut names: Vec<String> = listed
            .map(|b| format!("{} ({}:{})", b.name, from_addr(&b.addr), b.port))
            .collect();
        names.sort_unstable();
        names
    }

    /// What every hand-over from a living owner begins with.
    pub(crate) fn hand_over(&mut self, id: FlowId, leg: Leg, cause: Cause) {
        if cause != Cause::Manual {
            self.drop_wish(id);
        }
        let flow = &mut self.flows[id];
        flow.causes.begin(cause);
        flow.tries = 1;
        (flow.asked, flow.refusals) = (0, 0);
        flow.bits.set(Bits::STANDBY_GONE | Bits::CLIENT_FIN, false);
        self.pending = leg;
        self.prepare_prelude(id);
    }
}
