//! What restores a session (`AUTH`, `SELECT`) at a new owner: bytes in front of the request, whose
//! replies the client never sees.
//!
//! The adoption then starts that many bytes earlier in the sequence space of both directions; the
//! request is held back until the replies are exactly right, so that no command ever runs in
//! another session than its client's.
//!
//! # Decisions
//!
//! - **A session (`AUTH`, `SELECT`) travels in front of the request, and the request waits for the
//!   replies.** The first design had both sent together; but a pod with fewer databases or another
//!   password would then execute the request in the wrong session. It costs one more round trip on
//!   flows that have such a session, and nothing on others.

use crate::{
    Engine, Output,
    flow::Bits,
    handover::{Mark, Restored},
    ids::FlowId,
    obs::{counters::Counter, pins::PinReason},
};
use baton_guard::{PRELUDE_MAX, Prelude, prelude_reply_matches};
use baton_packet::{Flags, Segment, SeqNumber};

impl Engine {
    fn prelude(&self, id: FlowId, bytes: &mut [u8; PRELUDE_MAX]) -> Option<Prelude> {
        self.guards.prelude(self.flows[id].guard, bytes)
    }

    /// Whether the flow has a session that another owner would have to be told.
    pub(crate) fn has_session(&self, id: FlowId) -> bool {
        self.prelude(id, &mut [0; PRELUDE_MAX]).is_some()
    }

    /// Notes whether the hand-over that begins has a session to restore.
    pub(crate) fn prepare_prelude(&mut self, id: FlowId) {
        let needed = self.has_session(id);
        let flow = &mut self.flows[id];
        flow.progress.set(Mark::PreludeHalf, false);
        flow.bits.set(Bits::PRELUDE, needed);
    }

    /// Where an adoption of the flow begins in both directions.
    pub(crate) fn adoption_start(&self, id: FlowId) -> (SeqNumber, SeqNumber) {
        let (client, server) = self.session_start(id);
        (client.sub(self.in_front(id)), server)
    }

    /// Where what restores a session begins, or the request, if nothing does.
    fn session_start(&self, id: FlowId) -> (SeqNumber, SeqNumber) {
        let flow = &self.flows[id];
        let (client, server) = (flow.boundary, flow.server_next);
        if !flow.bits.has(Bits::PRELUDE) {
            return (client, server);
        }
        match self.prelude(id, &mut [0; PRELUDE_MAX]) {
            Some(p) => (
                client.add(u32::from(p.len).wrapping_neg()),
                server.add(u32::from(p.reply).wrapping_neg()),
            ),
            None => (client, server),
        }
    }

    /// The restoring bytes, right behind the adoption and the header.
    pub(crate) fn send_prelude(&mut self, id: FlowId, out: &mut impl Output) {
        let mut bytes = [0; PRELUDE_MAX];
        let (client, server) = self.session_start(id);
        let (Some(prelude), Some(mut spec)) =
            (self.prelude(id, &mut bytes), self.to_leg(self.flows[id].owner))
        else {
            return;
        };
        let flow = &self.flows[id];
        spec.seq = client;
        spec.ack = server;
        spec.flags = Flags::PSH | Flags::ACK;
        spec.window = flow.client_window;
        spec.timestamps =
            Self::client_stamps(flow).map(|(_, echo)| (self.first_client_ts(id), echo));
        spec.payload = &bytes[..usize::from(prelude.len)];
        let owner = flow.owner;
        self.counters.add(Counter::SessionsRestored);
        self.emit_to(owner, spec, out);
    }

    /// Judges a segment of a new owner whose session is being restored.
    pub(crate) fn restored(&mut self, id: FlowId, frame: &[u8], segment: &Segment) -> Restored {
        let Some(prelude) = self.prelude(id, &mut [0; PRELUDE_MAX]) else {
            return Restored::Not;
        };
        let (_, start) = self.adoption_start(id);
        let data = segment.data(frame);
        let at = segment.seq.since(start);
        let flow = &mut self.flows[id];
        let half = i32::from(prelude.reply / 2);
        let first = if flow.progress.is(Mark::PreludeHalf) { half } else { 0 };
        let end = at.saturating_add(data.len() as i32);
        // Bytes in front of it are missing, and come again, or it has none that are new. One that
        // is repeated may have both replies.
        if at < 0 || at > first || end <= first {
            return Restored::Partly;
        }
        let end = end as usize;
        if end > usize::from(prelude.reply) || !prelude_reply_matches(at as u16, data) {
            self.pin(id, PinReason::SessionRefused);
            return Restored::Not;
        }
        if end == usize::from(prelude.reply) {
            flow.bits.set(Bits::PRELUDE, false);
            flow.progress.set(Mark::PreludeHalf, false);
            if flow.pin.is_some() {
                // It was kept for its session only.
                self.drop_guard(id);
            }
            return Restored::Wholly;
        }
        if end as i32 == half {
            flow.progress.set(Mark::PreludeHalf, true);
        }
        Restored::Partly
    }
}
