//! Going through the legs of one backend, a bounded piece at a time: when its fate is known, and while it drains.
//!
//! Owns where it is on each backend. What happens to a flow is decided by `rescue` and `drain`.

use crate::{
    Engine, Output,
    backend::Use,
    counters::Counter,
    engine::Instant,
    flow::{Bits, FlowId},
    health::Down,
    states::{Event, State},
};

/// Ports looked at in one call: 4 bytes each, so about 4 us.
const PORTS_PER_CALL: usize = 4_096;
/// Flows acted on in one call, so that packets never wait long: about 100 us of segments.
const FLOWS_PER_CALL: usize = 128;

/// Why a backend's legs are gone through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sweep {
    /// It lives: the ends that are held were meant.
    CloseStands,
    /// It is gone: its flows need other owners.
    Gone,
    /// Its process is another one now: the flows whose end is held need other owners.
    Restarted,
    /// It drains: its flows may leave, where they can.
    Drain,
}

/// What became of one flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Swept {
    /// It stays as it is.
    Stays,
    /// Something was done.
    Done,
    /// It could go, but the backends have been given enough flows in this millisecond.
    NoRoom,
}

/// A sweep in progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    pub(crate) what: Sweep,
    at: u32,
    /// A flow was seen whose policy drains the backend.
    leaving: bool,
}

impl Engine {
    /// Begins a sweep, or begins it anew. News of life or death come before a drain.
    pub(crate) fn begin_sweep(&mut self, index: u16, what: Sweep) {
        let slot = &mut self.backends[usize::from(index)].sweep;
        if what == Sweep::Drain && slot.is_some() {
            return;
        }
        *slot = Some(Progress {
            what,
            at: 0,
            leaving: false,
        });
        self.sweep_due_ms = Some(0);
    }

    /// Goes on with every sweep.
    pub(crate) fn sweep(&mut self, now: Instant, out: &mut impl Output) {
        if self.sweep_due_ms.is_none_or(|due| now.ms() < due) {
            return;
        }
        self.sweep_due_ms = None;
        for index in 0..self.backends.len() as u16 {
            if let Some(progress) = self.backends[usize::from(index)].sweep {
                let next = self.sweep_piece(now, index, progress, out);
                let (next, due_ms) = next.unzip();
                self.backends[usize::from(index)].sweep = next;
                self.sweep_due_ms = self.sweep_due_ms.into_iter().chain(due_ms).min();
            }
        }
    }

    fn sweep_piece(
        &mut self,
        now: Instant,
        index: u16,
        mut progress: Progress,
        out: &mut impl Output,
    ) -> Option<(Progress, u64)> {
        let (mut at, mut acted) = (progress.at as usize, 0);
        let all = self.backends[usize::from(index)].slots();
        let end = (at + PORTS_PER_CALL).min(all);
        while at < end && acted < FLOWS_PER_CALL {
            if let Some(Use::Owner(id)) = self.backends[usize::from(index)].used_at(at) {
                progress.at = at as u32;
                progress.leaving |= progress.what == Sweep::Drain && self.is_drained(id);
                match self.swept(now, id, progress.what, out) {
                    Swept::Stays => {}
                    Swept::Done => acted += 1,
                    Swept::NoRoom => return Some((progress, now.ms() + 1)),
                }
            }
            at += 1;
        }
        progress.at = at as u32;
        if at < all {
            return Some((progress, 0));
        }
        if progress.what == Sweep::Drain {
            let drains = &mut self.backends[usize::from(index)].drains;
            drains.is_swept(progress.leaving);
        }
        None
    }

    fn swept(&mut self, now: Instant, id: FlowId, what: Sweep, out: &mut impl Output) -> Swept {
        match (what, self.flows[id].state) {
            (Sweep::Gone, State::Held) => self.owner_gone(now, id, out),
            (Sweep::CloseStands | Sweep::Restarted, State::Held)
                if self.owner_is_replaced(now, id) =>
            {
                self.owner_gone(now, id, out);
            }
            // Connections that idle together may time out together. Each is saved once, then its close is believed.
            (Sweep::Restarted, State::Held)
                if !self.flows[id].adopted_idle()
                    && !self.flows[id].bits.has(Bits::CLOSER_LISTENS) =>
            {
                self.owner_gone(now, id, out);
            }
            (Sweep::CloseStands | Sweep::Restarted, State::Held) => {
                let flow = &self.flows[id];
                let question = &self.backends[usize::from(flow.owner.backend)].question;
                if !question.settles(flow.sent_us, flow.bits.has(Bits::CLOSER_LISTENS)) {
                    return Swept::Stays;
                }
                self.counters.add(Counter::ClosesBelieved);
                self.close_stands(now, id, out);
            }
            (Sweep::Gone, _) if self.owner_is_gone(now, id, out) => {}
            (Sweep::Drain, _) if self.is_drained(id) => return self.drain_flow(now, id, out),
            _ => return Swept::Stays,
        }
        Swept::Done
    }

    /// A flow whose owner went without a word: whether something was done.
    fn owner_is_gone(&mut self, now: Instant, id: FlowId, out: &mut impl Output) -> bool {
        let flow = &self.flows[id];
        match flow.state {
            State::SynSent => return self.syn_elsewhere(now, id, out),
            State::Fresh | State::Idle => {}
            State::Request if self.may_replay_again(id) => {}
            State::AdoptingIdle => return self.adopter_is_gone(now, id, out),
            State::Adopting if self.may_replay_again(id) => {
                return self.adopter_is_gone(now, id, out);
            }
            _ => return false,
        }
        // A process that closed its listener may still serve what it accepted; its flows leave with their next requests.
        let health = &self.backends[usize::from(flow.owner.backend)].health;
        let silent = health.down() == Some(Down::Silent);
        let request = flow.state == State::Request;
        if !silent || flow.pin.is_some() || !(request || self.at_rest(id)) || !self.may_rescue(id) {
            return false;
        }
        self.owner_silent(now, id, out);
        true
    }

    /// A flow that was given to a backend of which nothing is heard.
    fn adopter_is_gone(&mut self, now: Instant, id: FlowId, out: &mut impl Output) -> bool {
        let backend = self.flows[id].owner.backend;
        let silent = self.backends[usize::from(backend)].health.down() == Some(Down::Silent);
        if silent {
            self.fate_unknown(now, id, out);
        }
        silent
    }

    /// A flow whose SYN nobody answered asks another backend: whether there is one.
    fn syn_elsewhere(&mut self, now: Instant, id: FlowId, out: &mut impl Output) -> bool {
        let Some(leg) = self.another_for_syn(now, id) else {
            return false;
        };
        self.pending = leg;
        let _ = self.step(now, id, Event::SynRefused, out);
        true
    }
}
