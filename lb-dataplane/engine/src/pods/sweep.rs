//! Going through the legs of backends, a bounded piece of all at a time: when a backend's fate is
//! known, while it drains or answers nothing, and when another pod has its address.
//!
//! Owns where it is on each backend, and whose turn it is. What happens to a flow is decided by
//! `rescue`, `drain` and `release`.
//!
//! # Decisions
//!
//! - **Who waits for a pod that was replaced asks for the connection**, by a challenge that only a
//!   kernel without the socket answers with that number. The new number of the namespace is not
//!   enough: between the change and the probe that showed it flows came to the new pod already.
//!   Where the last segments were lost with the pod, a client with nothing to send had waited on
//!   (simulation, seed 246382401305514).
//! - **A client at rest is told of its server's end when all that came to the interface was looked
//!   at**: its next request may wait there, and goes to another pod then. A worker that wants for
//!   CPU time goes through its timers with its rings full. Measured (Apache, busy, 400 connections
//!   on two cores): 36 of 268,000 requests found their connection closed, 0 of as many since; each
//!   of those that were looked at had waited there for 1 to 24 ms when the FIN left.

use crate::{
    Engine, Output,
    backend::{Down, Progress, Sweep},
    clock::Instant,
    flow::Bits,
    handover::{Input, Then},
    ids::{FlowId, Leg},
    obs::counters::Counter,
    states::{Event, State},
    tables::legs::Use,
    timing::BEHIND_MAX_MS,
};

/// Ports looked at in one call, of all backends: 4 bytes each, so about 4 us.
const PORTS_PER_CALL: usize = 4_096;
/// Flows looked at in one call, which lie apart in memory: some 40 us.
const FLOWS_PER_CALL: usize = 256;
/// Flows acted on in one call, so that packets never wait long: about 40 us of segments; and
/// whatever else there is to do.
const ACTS_PER_CALL: usize = 64;
const ACTS_AT_LEAST: usize = 8;
/// An adoption with what was kept, for a flow that lost its owner behind a reset.
const COST_ASKED: usize = 2;
/// Looking in vain for somebody who takes a flow goes through a policy's backends.
const COST_IN_VAIN: usize = 4;

/// What became of one flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Swept {
    /// It stays as it is.
    Stays,
    /// Something was done.
    Done,
    /// A pod was asked once more.
    Asked,
    /// It could go, but the backends have been given enough flows in this millisecond.
    NoRoom,
    /// Nobody was found who would do better; the next sweep looks again.
    Nobody,
}

/// What one call may still do.
struct Room {
    ports: usize,
    flows: usize,
    acts: usize,
}

impl Room {
    fn is_used_up(&self) -> bool {
        self.ports == 0 || self.flows == 0 || self.acts == 0
    }
}

impl Engine {
    /// Begins a sweep, or begins it anew. News of life or death come before what is looked for
    /// again and again.
    pub(crate) fn begin_sweep(&mut self, index: u16, what: Sweep) {
        let slot = &mut self.backends[usize::from(index)].sweep;
        let news = matches!(what, Sweep::Gone | Sweep::CloseStands);
        if !news && slot.is_some() {
            return;
        }
        if let Some(progress) = slot
            && progress.what == what
            && news
        {
            // Those behind are told, too, and then those in front once more: begun anew each time,
            // it never came to the last ones of a pod that closes idle connections all the time.
            (progress.again, progress.until) = (progress.at, u32::MAX);
            return;
        }
        let progress =
            Progress { what, at: 0, until: u32::MAX, again: 0, waits_ms: None, leaving: false };
        if slot.replace(progress).is_none() {
            self.rounds.sweeps.push_back(index);
        }
        self.rounds.sweep_due_ms = Some(0);
    }

    /// Goes on with the sweeps, one backend after the other, as far as one call goes.
    pub(crate) fn sweep(&mut self, now: Instant, out: &mut impl Output) {
        if self.rounds.sweep_due_ms.is_none_or(|due| now.ms() < due) {
            return;
        }
        self.rounds.sweep_due_ms = None;
        let mut room = Room {
            ports: PORTS_PER_CALL,
            flows: FLOWS_PER_CALL,
            acts: self.room(ACTS_PER_CALL, ACTS_AT_LEAST),
        };
        for _ in 0..self.rounds.sweeps.len() {
            if room.is_used_up() {
                self.rounds.sweep_due_ms = Some(0);
                break;
            }
            let Some(index) = self.rounds.sweeps.pop_front() else {
                break;
            };
            // The slot may be another backend's by now.
            let Some(progress) = self.backends[usize::from(index)].sweep else {
                continue;
            };
            let next = self.sweep_piece(now, index, progress, &mut room, out);
            let (next, due_ms) = next.unzip();
            self.backends[usize::from(index)].sweep = next;
            if next.is_some() {
                self.rounds.sweeps.push_back(index);
            }
            self.rounds.sweep_due_ms = self.rounds.sweep_due_ms.into_iter().chain(due_ms).min();
        }
    }

    fn sweep_piece(
        &mut self,
        now: Instant,
        index: u16,
        mut progress: Progress,
        room: &mut Room,
        out: &mut impl Output,
    ) -> Option<(Progress, u64)> {
        if progress.what == Sweep::CloseStands && self.rounds.behind {
            let since_ms = *progress.waits_ms.get_or_insert(now.ms());
            if now.ms() < since_ms + BEHIND_MAX_MS {
                return Some((progress, since_ms + BEHIND_MAX_MS));
            }
            if since_ms > 0 {
                // Once, however many pieces follow.
                progress.waits_ms = Some(0);
                self.counters.add(Counter::EndsToldBehind);
            }
        }
        let next_busy = |engine: &Self, from: u32| {
            let ports = &engine.backends[usize::from(index)].ports;
            ports.next_busy(&engine.legs.rests, from as usize)
        };
        while progress.at < progress.until
            && let Some((port, next)) = next_busy(self, progress.at)
        {
            if room.is_used_up() {
                return Some((progress, 0));
            }
            room.ports -= 1;
            let leg = Leg { backend: index, port };
            if let Some(Use::Owner(id)) = self.legs.uses.used_by(leg) {
                room.flows -= 1;
                let leaves = progress.what == Sweep::Drain && self.is_drained(id);
                progress.leaving |= leaves;
                let swept = self.swept(now, id, progress.what, out);
                let cost = match swept {
                    // Who might take it was looked for.
                    Swept::Stays => usize::from(leaves),
                    Swept::Done if progress.what == Sweep::Gone => COST_ASKED,
                    Swept::Asked => COST_ASKED,
                    Swept::Done => 1,
                    Swept::NoRoom | Swept::Nobody => COST_IN_VAIN,
                };
                self.spend(cost);
                room.acts = room.acts.saturating_sub(cost);
                if swept == Swept::NoRoom {
                    return Some((progress, now.ms() + 1));
                }
            }
            progress.at = next as u32;
        }
        if progress.again > 0 {
            (progress.at, progress.until, progress.again) = (0, progress.again, 0);
            return Some((progress, 0));
        }
        if progress.what == Sweep::Drain {
            let drains = &mut self.backends[usize::from(index)].drains;
            drains.is_swept(progress.leaving);
        }
        None
    }

    fn swept(&mut self, now: Instant, id: FlowId, what: Sweep, out: &mut impl Output) -> Swept {
        let flow = &self.flows[id];
        let backend = &self.backends[usize::from(flow.owner.backend)];
        let input = match what {
            Sweep::Drain if self.is_drained(id) => return self.drain_flow(now, id, out),
            Sweep::Drain => return Swept::Stays,
            Sweep::Stalled => return self.ask_release(now, id, out),
            Sweep::Renewed => return self.ask_renewed(id, out),
            Sweep::Gone if flow.state == State::SynSent => {
                return if self.syn_elsewhere(now, id, out) { Swept::Done } else { Swept::Stays };
            }
            Sweep::Gone => {
                let silent = backend.liveness.down() == Some(Down::Silent);
                let open = flow.state.is_unanswered();
                Input::PodGone {
                    silent,
                    // That goes through the policy's members.
                    rescuable: silent && open && self.may_rescue(id),
                }
            }
            Sweep::CloseStands if flow.state.is_moving() && flow.progress.tries > 1 => {
                // It could not be reached, and can be now: asked when the next try is due, some
                // would be left without a try, and with a fate that nobody knows.
                self.asks_once_more(now, id, out);
                return Swept::Asked;
            }
            Sweep::CloseStands if flow.state != State::OwnerFinPending => {
                return Swept::Stays;
            }
            Sweep::CloseStands => Input::PodLives {
                replaced: self.owner_is_replaced(now, id) || self.closer_let_go(now, id),
                settled: backend
                    .liveness
                    .settles(flow.sent_us, flow.bits.has(Bits::CLOSER_LISTENS)),
                unmarked: self.end_is_unmarked(id),
            },
        };
        match self.decide(now, id, input, None, out) {
            Then::Stays => Swept::Stays,
            _ => Swept::Done,
        }
    }

    /// A flow that came to the pod before, or perhaps only before that was known, waits for a
    /// response: its pod is asked whether it has the socket. Others are told by their next request.
    fn ask_renewed(&mut self, id: FlowId, out: &mut impl Output) -> Swept {
        let flow = &self.flows[id];
        let adopter = &self.backends[usize::from(flow.owner.backend)].adopter;
        let waits = matches!(flow.state, State::Request | State::Response);
        if !waits || flow.renewed == adopter.renewed {
            return Swept::Stays;
        }
        self.challenge_owner(id, out);
        Swept::Done
    }

    /// A flow whose SYN nobody answered asks another backend: whether there is one.
    pub(crate) fn syn_elsewhere(
        &mut self,
        now: Instant,
        id: FlowId,
        out: &mut impl Output,
    ) -> bool {
        let Some(leg) = self.another_for_syn(now, id) else {
            return false;
        };
        self.redirect.leg = leg;
        let _ = self.step(now, id, Event::SynRefused, out);
        true
    }
}
