//! Forgets: connection trackers between us and a pod are made to forget a pair of ports that
//! nothing uses any more, so that an adoption may use it again.
//!
//! A tracker remembers a closed connection for up to two minutes (`ports::REMEMBERED_MS`) and takes
//! an adoption, a segment in the middle of another connection, for an invalid one of it; where
//! those are dropped (kube-proxy in iptables mode) the flow stalls. A Forget is a SYN, with which
//! Linux's tracker (`nf_conntrack_tcp_packet`) begins anew after FINs, or after a RST in the same
//! direction. The adopter swallows it and answers with a RST; where that is the only reply, the
//! tracker drops the entry at once. So the answer, whose tag the adopter alone can make, says that
//! nobody on the way remembers the pair. What was not closed by FINs takes a RST in front and a
//! second round: the first one's answer ends whatever entry there is, the RST and SYN of the second
//! open it anew.
//!
//! Owns the open Forgets and when the next ones leave, a few at a time. A late copy finds a live
//! socket and is not answered; a late answer has another number.
//!
//! # Decisions
//!
//! - **Whoever remembers a closed leg limits how often its pair of leg port and pod can be used**
//!   (`make bench-short`, `make soak-tracked`). Before anything was done about it, 32 short
//!   connections at a time that the server closes: 13,700 to 17,500 a second while ports were
//!   fresh, 52 to 120 after 20 s (the pods' TIME_WAIT, 60 s); on average 0.31 of HAProxy's rate,
//!   0.39 on a node that tracks connections, 588 and 579 connections over 500 ms, 498 and 447 SYNs
//!   without a port. 64 connections that stay, on a node that tracks and drops what is INVALID, 30
//!   s each: with `WhenBetter` 48 of them waited over 500 ms (774 packets INVALID), with `Always`
//!   47 (960), and the table had 51,100 entries, one for each of the 51,072 pairs. With TIME_WAITs
//!   ended by a right RST and pairs forgotten before they are used again, 180,000 moves over these
//!   pairs with a kill between left 614 entries, and the longest request took 175 ms (3.2 s and
//!   51,054 before; `e2e/ns` `tracked::pairs…`, beside other builds); short connections are 1.31
//!   and 1.20 of HAProxy's rate over 10 minutes, none over 40 ms. Rejected: **`notrack` for legs as
//!   a value of the chart**. host-shim would write rules into each node's packet filter, which stay
//!   when it is killed, need nftables in its image, and are a second owner of tables that CNIs own;
//!   and segments that are not tracked are `untracked`, not `established`: a NetworkPolicy that
//!   accepts answers by `ct state established` drops them. What makes a tracker forget a pair on
//!   the wire needs no right at all.
//! - **A request that overtakes its adoption draws a bare RST, and where that is the only reply
//!   trackers remember nothing any more.** The adoption is taken a moment later; a Forget in front
//!   of its repetition was then a new connection's begin to them, which the adopter did not answer,
//!   and until that is over (120 s) all that both say is INVALID: 32 of 63,000 moves lost with 2 %
//!   held back, each after 2.8 s of silence (`baton-demo soak --migrations 60000 --tracked 49152
//!   --loss 0 --reorder 20 --connections 32`). So behind a RST no Forget is sent: what let the
//!   request through lets the adoption through. Where the RST is lost, the second Forget asks for
//!   an answer in any case. With the first one, a connection that was taken, and whose answers
//!   alone were lost, would count as closed (`TCP_CONNTRACK_CLOSE`, forgotten after 10 s of rest).

use crate::{
    Engine, Output, Verdict,
    backend::{
        keys::Message,
        ports::{Purpose, Rest},
    },
    clock::Instant,
    ids::{FlowId, Leg},
    obs::counters::Counter,
    tables::{FORGETS_MAX, Open, legs::Use},
    timing::{FORGET_IN_USE_FROM, FORGET_TRIES_MAX, FORGET_WAIT_MS},
};
use baton_packet::{
    Adoption, Flags, MessageKind, Reason, Segment, SegmentSpec, SeqNumber, build_adoption,
};
/// Forgets that leave in one call, so that frames never wait long for them: some 20 us. Under full
/// load there are some 500 calls a second; with 8, legs came faster than they were forgotten
/// (24,000 moves a second).
const SENT_PER_CALL: usize = 64;
/// So many whatever else there is to do.
const SENT_AT_LEAST: usize = 16;
/// Backends looked at in one call.
const BACKENDS_PER_CALL: usize = 64;

impl Engine {
    /// A leg to a backend over a port that may be used now for this, if there is one.
    pub(crate) fn take_port(
        &mut self,
        now: Instant,
        backend: u16,
        purpose: Purpose,
    ) -> Option<Leg> {
        let ports = &mut self.backends[usize::from(backend)].ports;
        let port = ports.take(&mut self.legs.rests, now.ms(), purpose)?;
        Some(Leg { backend, port })
    }

    /// Frees a leg's port, whose last use ended so.
    pub(crate) fn free_leg(&mut self, now: Instant, leg: Leg, rest: Rest) {
        let used = self.legs.uses.clear(leg);
        self.legs.shifts.remove(leg);
        let backend = &mut self.backends[usize::from(leg.backend)];
        if used {
            (backend.ports).give_back(&mut self.legs.rests, leg.port, now.ms(), rest);
        }
        if rest != Rest::Unforgotten && backend.forgets() {
            let rested_ms = now.ms() + u64::from(rest.ms());
            self.legs.forgets.rested_ms = self.legs.forgets.rested_ms.min(rested_ms);
        }
    }

    /// Sends the Forgets that are due, a few of them.
    pub(crate) fn send_forgets(&mut self, now: Instant, out: &mut impl Output) {
        if now.ms() >= self.legs.forgets.overdue_ms {
            self.overdue_forgets(now, out);
        }
        if now.ms() < self.legs.forgets.rested_ms || self.keys.is_empty() {
            return;
        }
        let mut left = self.room(SENT_PER_CALL, SENT_AT_LEAST);
        for _ in 0..BACKENDS_PER_CALL.min(self.backends.len()) {
            let index = self.legs.forgets.cursor;
            let Some(backend) = self.backends.get_mut(index) else {
                break;
            };
            // One that left the snapshot has nobody who answers; its ports have all the time.
            if backend.listed && backend.forgets() {
                while left > 0
                    && let Some(slot) = self.legs.forgets.place(index)
                    && let Some((port, rest)) =
                        self.backends[index].ports.take_to_forget(&mut self.legs.rests, now.ms())
                {
                    left -= 1;
                    self.spend(1);
                    self.begin_forget(now, slot, (index as u16, port), rest, out);
                }
                let next = self.backends[index].ports.next_to_forget_ms(&self.legs.rests, now.ms());
                let next_ms = next.unwrap_or(u64::MAX);
                if next_ms <= now.ms() && self.legs.forgets.place(index).is_none() {
                    self.legs.forgets.held_back = true;
                } else {
                    self.legs.forgets.round_ms = self.legs.forgets.round_ms.min(next_ms);
                }
            }
            // The next one's turn, whatever is left here.
            self.legs.forgets.cursor += 1;
            if self.legs.forgets.cursor >= self.backends.len() {
                self.legs.forgets.cursor = 0;
                self.legs.forgets.rested_ms =
                    std::mem::replace(&mut self.legs.forgets.round_ms, u64::MAX);
                return;
            }
            if left == 0 {
                return;
            }
        }
    }

    fn begin_forget(
        &mut self,
        now: Instant,
        slot: u16,
        (backend, port): (u16, u16),
        rest: Rest,
        out: &mut impl Output,
    ) {
        self.legs.uses.assign(Leg { backend, port }, Use::Forget(slot));
        let seq = self.fresh_number();
        let open = Open {
            leg: Leg { backend, port },
            seq,
            tries: 0,
            rounds: u8::from(rest != Rest::Clean),
            due_ms: u64::MAX,
        };
        self.legs.forgets.begins(slot, open);
        self.try_forget(now, slot, rest != Rest::Clean, out);
    }

    /// Sends the Forget of a slot, once more or for the first time.
    fn try_forget(&mut self, now: Instant, slot: u16, reset: bool, out: &mut impl Output) {
        let open = &mut self.legs.forgets.open[usize::from(slot)];
        let wait_ms = FORGET_WAIT_MS << open.tries;
        open.tries += 1;
        open.due_ms = now.ms() + wait_ms;
        let (leg, seq) = (open.leg, open.seq);
        self.legs.forgets.overdue_ms = self.legs.forgets.overdue_ms.min(now.ms() + wait_ms);
        if reset {
            // After which trackers take a SYN for a new connection's.
            self.reset_at(leg, seq, out);
        }
        if self.emit_forget(leg, seq, false, out) {
            self.counters.add(Counter::ForgetsSent);
        }
    }

    /// Whether one left. `in_use`: it is answered also where a connection is on the pair.
    fn emit_forget(
        &mut self,
        leg: Leg,
        seq: SeqNumber,
        in_use: bool,
        out: &mut impl Output,
    ) -> bool {
        let signs = self.signing_key(leg.backend);
        let (Some(spec), Some((epoch, key))) = (self.to_leg(leg), signs) else {
            return false;
        };
        let adopter = &self.backends[usize::from(leg.backend)].adopter;
        let message = Adoption {
            namespace: adopter.namespace,
            wscale_ok: in_use,
            ..Adoption::bare(MessageKind::Forget, epoch)
        };
        let spec = SegmentSpec { seq, window: u16::MAX, timestamps: Some((0, 0)), ..spec };
        self.emit(out, |buffer| build_adoption(buffer, &spec, &message, &key))
    }

    fn overdue_forgets(&mut self, now: Instant, out: &mut impl Output) {
        self.legs.forgets.overdue_ms = u64::MAX;
        let mut left = self.room(SENT_PER_CALL, SENT_AT_LEAST);
        for slot in 0..FORGETS_MAX as u16 {
            if left == 0 {
                // The others with the next call.
                self.legs.forgets.overdue_ms = now.ms();
                return;
            }
            let open = self.legs.forgets.open[usize::from(slot)];
            if now.ms() < open.due_ms {
                self.legs.forgets.overdue_ms = self.legs.forgets.overdue_ms.min(open.due_ms);
            } else if open.tries < FORGET_TRIES_MAX {
                // The first one may have opened an entry that no RST ended: this one takes its
                // place.
                left -= 1;
                self.spend(1);
                self.try_forget(now, slot, true, out);
            } else {
                left -= 1;
                self.counters.add(Counter::ForgetsUnanswered);
                let leg = self.legs.forgets.close(slot);
                // The last one may have opened an entry, too, in which trackers that drop what is
                // INVALID take nothing of the next client whose numbers are in front of its own.
                self.reset_at(leg, open.seq, out);
                self.free_leg(now, leg, Rest::Unforgotten);
            }
        }
    }

    /// A segment on the port of an open Forget.
    pub(crate) fn answer_to_forget(
        &mut self,
        now: Instant,
        frame: &[u8],
        segment: &Segment,
        slot: u16,
        out: &mut impl Output,
    ) -> Verdict {
        let open = self.legs.forgets.open[usize::from(slot)];
        let reason = match self.message(frame, segment, open.leg.backend) {
            Message::Answer(reason, _) => reason,
            Message::Forged => {
                self.counters.add(Counter::ForgedAnswers);
                return Verdict::Absorbed;
            }
            Message::None => {
                self.counters.add(Counter::Fenced);
                if segment.flags.has(Flags::ACK) && !segment.flags.has(Flags::RST) {
                    // Something of the pod is there: an old connection, or no adopter and a new
                    // one. Neither is anybody's.
                    self.reset_stale(open.leg, segment.ack, out);
                }
                return Verdict::Absorbed;
            }
        };
        if segment.ack != open.seq.add(1) {
            self.counters.add(Counter::LateAnswers);
            return Verdict::Absorbed;
        }
        if reason == Reason::Forgotten && open.rounds > 0 {
            let seq = self.fresh_number();
            let open = &mut self.legs.forgets.open[usize::from(slot)];
            open.rounds -= 1;
            open.tries = 0;
            open.seq = seq;
            self.try_forget(now, slot, true, out);
            return Verdict::Absorbed;
        }
        let leg = self.legs.forgets.close(slot);
        if reason == Reason::Forgotten {
            self.counters.add(Counter::ForgetsAnswered);
            if self.legs.uses.clear(leg) {
                let ports = &mut self.backends[usize::from(leg.backend)].ports;
                ports.give_back_forgotten(&mut self.legs.rests, leg.port);
            }
        } else {
            // The pod's TIME_WAIT: our RST was lost, or it takes none.
            self.counters.add(Counter::ForgetsInUse);
            self.free_leg(now, leg, Rest::Stale);
        }
        Verdict::Absorbed
    }

    /// An adoption met silence: perhaps an entry of the pair's last use dropped it. A Forget in
    /// front of the next one takes it away. Where the adoption was taken, trackers ignore a SYN,
    /// and so does the adopter: unless nobody remembers the adoption, see the head. So the next
    /// ones are answered in any case.
    pub(crate) fn forget_in_front(&mut self, id: FlowId, out: &mut impl Output) {
        let flow = &self.flows[id];
        let (leg, in_use) = (flow.owner, flow.progress.tries >= FORGET_IN_USE_FROM);
        if self.backends[usize::from(leg.backend)].forgets() {
            let seq = self.forget_number(id);
            if self.emit_forget(leg, seq, in_use, out) {
                self.counters.add(Counter::ForgetsSent);
            }
        }
    }

    /// The number of a Forget in front of an adoption: none that the pod's socket could take for
    /// the next byte.
    pub(crate) fn forget_number(&self, id: FlowId) -> SeqNumber {
        let flow = &self.flows[id];
        flow.boundary.add((1 << 31) + u32::from(flow.progress.tries))
    }
}
