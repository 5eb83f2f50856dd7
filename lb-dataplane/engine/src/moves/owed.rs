//! Copies that an owner is owed: a pod that is gone had acknowledged them to the client, which
//! sends them no more.
//!
//! Until an answer begins these are the kept copies (`Mark::CopiesOwed`). Behind that, or once the
//! client has closed its direction, they lie in front of what waits (`backlog`). Owns when they go
//! again: until the owner has acknowledged them.

use crate::{
    Engine, Output,
    clock::Instant,
    flow::Bits,
    handover::Mark,
    ids::FlowId,
    states::State,
    tables::{Owed, Reach},
    timing::{ADOPTION_TRIES_MAX, ADOPTION_WAIT_MS, BACKLOG_AGAIN_MS},
};
use baton_packet::{Decoded, SeqNumber, decode};

/// The wait behind so many tries.
fn wait_ms(tries: u8) -> u64 {
    ADOPTION_WAIT_MS << tries.min(ADOPTION_TRIES_MAX)
}

impl Engine {
    /// The number behind the last kept copy.
    fn kept_until(&self, id: FlowId) -> Option<SeqNumber> {
        match decode(self.copies.kept.last(self.flows[id].kept)?) {
            Ok(Decoded::Tcp(last)) => Some(last.seq.add(last.seq_len())),
            _ => None,
        }
    }

    /// The kept copies lie in front of what waits from now on, for which there is a place, and what
    /// begins in front of `until` is owed. What ends at `sent`, or before, was sent just now.
    pub(crate) fn kept_wait(
        &mut self,
        now: Instant,
        id: FlowId,
        until: SeqNumber,
        sent: SeqNumber,
    ) {
        let flow = &mut self.flows[id];
        let kept = std::mem::take(&mut flow.kept);
        flow.bits.set(Bits::KEPT_WHOLE, false);
        let copies = self.copies.kept.slots_of(kept);
        let backlog = &mut self.copies.backlogs.slots[usize::from(flow.backlog.0)];
        self.copies.kept.prepend(kept, &mut backlog.waiting);
        backlog.owed =
            Some(Owed { until, sent, tries: 0, again_ms: now.ms() + wait_ms(0), asks: false });
        self.copies.backlogs.segments += copies;
        self.wheel.arm(id, now.ms() + wait_ms(0));
    }

    /// The kept copies are of no use any more, but to an owner that is owed them: it answers an
    /// earlier request, or the client has closed its direction.
    #[cold]
    pub(crate) fn owes_kept(&mut self, now: Instant, id: FlowId) {
        let flow = &self.flows[id];
        let serves = matches!(flow.state, State::Response | State::ClientFin);
        let lacks = |until: &SeqNumber| until.after(flow.client_acked);
        let Some(until) = self.kept_until(id).filter(lacks).filter(|_| serves) else {
            return;
        };
        let backlog = self.copies.backlogs.get(flow.backlog);
        let reach = backlog.map_or(Reach::Known, |backlog| backlog.reach);
        if self.wait_up_to(id, reach) {
            self.kept_wait(now, id, until, until);
        }
    }

    /// When the owner is to be sent again what it is owed and what waits: `u64::MAX` if it is owed
    /// nothing of that.
    pub(crate) fn waiting_is_owed_ms(&self, now: Instant, id: FlowId) -> u64 {
        let flow = &self.flows[id];
        let owed = self.copies.backlogs.get(flow.backlog).and_then(|b| b.owed);
        let owed = owed.filter(|owed| owed.until.after(flow.client_acked));
        owed.map_or(u64::MAX, |owed| owed.again_ms.saturating_sub(now.ms()))
    }

    /// Sends the owner the copies that it is owed. When they are due again; `u64::MAX` if they are
    /// not.
    pub(crate) fn send_owed(&mut self, now: Instant, id: FlowId, out: &mut impl Output) -> u64 {
        let (flow, waits_ms) = (&self.flows[id], self.waiting_is_owed_ms(now, id));
        if waits_ms == 0 {
            return self.send_owed_waiting(now, id, out);
        }
        if flow.state != State::Request || !flow.progress.is(Mark::CopiesOwed) {
            return waits_ms;
        }
        if self.kept_until(id).is_none_or(|end| !end.after(flow.client_acked)) {
            self.flows[id].progress.set(Mark::CopiesOwed, false);
            return u64::MAX;
        }
        if !self.replay_kept(id, out) {
            return BACKLOG_AGAIN_MS;
        }
        let progress = &mut self.flows[id].progress;
        progress.tries = progress.tries.saturating_add(1);
        wait_ms(progress.tries)
    }

    /// The client repeats none of it, and the pod's kernel no window that it opened: a copy is sent
    /// whatever was heard of that.
    fn send_owed_waiting(&mut self, now: Instant, id: FlowId, out: &mut impl Output) -> u64 {
        let flow = &self.flows[id];
        let slot = usize::from(flow.backlog.0);
        let Some(owed) = &mut self.copies.backlogs.slots[slot].owed else {
            return u64::MAX;
        };
        owed.tries = owed.tries.saturating_add(1);
        let again_ms = wait_ms(owed.tries);
        (owed.sent, owed.asks) = (flow.client_acked, true);
        owed.again_ms = now.ms() + again_ms;
        match self.send_waiting(now, id, out) {
            true => again_ms,
            false => BACKLOG_AGAIN_MS,
        }
    }
}
