//! Connections in the middle of a message: their pod's application is asked to hand them to that of
//! another pod (`docs/adoption-wire.md`, Transfers), where both cooperate.
//!
//! Owns when that is asked, of which flows, and what the answers are. Streams and their numbers go
//! on, so that nothing here looks at what they carry.
//!
//! # Decisions
//!
//! - **The engine holds nothing back meanwhile**: the pod that has the connection goes on to be its
//!   owner until the first segment from the new pair, or an authenticated Moved. What is lost in
//!   between, some 0.1 ms, both kernels repeat. Rejected: holding segments until the answer comes,
//!   which needs memory for a window of each flow, and waits for whatever does not answer.
//! - **While the question is open the flow moves in no other way of its own accord**: were another
//!   pod asked to adopt it and refused, the flow would go back to an owner that may have handed it
//!   on meanwhile. One that has to move (its owner ended) drops the transfer; a pod that speaks up
//!   after that is reset.
//! - **A pod of another node is as good as one of the same**, where both host-shims say that they
//!   reach others; what it costs more is some round trips while nothing stands still, and one and a
//!   half while the connection does. Who may go where by namespaces of Kubernetes is host-shim's to
//!   judge: here all backends are of one policy.
//! - **The new pod may see us at another address**, and is told which: on a node's network its own
//!   pods do, others' do not. Rejected: pods that see the same one alone. Of two Pods of a
//!   Deployment on two nodes neither could hand on anything to the other, and downloads under way
//!   were cut with the Pod (`BATON_E2E_DATAPLANE=DaemonSet make e2e`).
//! - **Only where an adoption cannot do it**: a flow that will be between two requests soon moves
//!   then, which costs its application nothing. So a drain asks for those flows that are still in
//!   the middle of a message after [`TRANSFER_AFTER_MS`], and for pinned ones.

use crate::{
    Engine, Output, Verdict,
    backend::{Backend, keys::Message, ports::Rest},
    clock::Instant,
    flow::Bits,
    handover::{Mark, is_left_over, may_be_transferred, shows_heir},
    ids::{Addr, FlowId, Leg},
    mutants::Mutant,
    obs::{cause::Cause, counters::Counter, events::What},
    pods::sweep::Swept,
    tables::{Stage, Transfer, legs::Use},
    timing::{
        TRANSFER_AFTER_MS, TRANSFER_AGAIN_MS, TRANSFER_ASK_MS, TRANSFER_DONE_MS, TRANSFER_OPEN_MS,
        TRANSFER_REST_MS,
    },
};
use baton_api::{MigrationMode, Protocol};
use baton_packet::{Adoption, Destination, Reason, Segment, Which, build_adoption, build_segment};

/// Questions repeated in one call: some 20 us.
const REPEATED_PER_CALL: usize = 64;
const REPEATED_AT_LEAST: usize = 16;

/// How the owner's host-shim is told which pod `heir` is; `None` if it cannot hand anything to it.
fn which(owner: &Backend, heir: &Backend) -> Option<Which> {
    let number = Which::Namespace(heir.adopter.namespace);
    let same_node = heir.keyring.node == owner.keyring.node;
    if same_node {
        return Some(number);
    }
    let both = [owner, heir].map(|pod| pod.liveness.transfers_between_nodes());
    if both != [true, true] {
        return None;
    }
    if heir.addr.is_v6() { address_beside(owner.addr, heir.addr) } else { Some(number) }
}

/// The part of an IPv6 address that is said beside its last four bytes, if the rest is as it is in
/// the owner's.
fn address_beside(owner: Addr, heir: Addr) -> Option<Which> {
    let begin_alike = heir.high >> 32 == owner.high >> 32;
    begin_alike.then_some(Which::Address(heir.high << 32 | heir.low >> 32))
}

impl Engine {
    /// A flow that leaves its pod, in the middle of a message or never between two: it is handed
    /// on, if it can be.
    pub(crate) fn drain_by_transfer(
        &mut self,
        now: Instant,
        id: FlowId,
        since_ms: u64,
        out: &mut impl Output,
    ) -> Swept {
        let flow = &self.flows[id];
        let protocol = self.policies[usize::from(flow.policy)].spec.protocol;
        let adoptable = flow.pin.is_none() && protocol != Protocol::None;
        let soon = adoptable && (flow.state.is_quiet() || now.ms() < since_ms + TRANSFER_AFTER_MS);
        if soon {
            return Swept::Stays;
        }
        self.ask_transfer(now, id, None, Cause::Drain, out)
    }

    /// Asks for a flow's transfer, to a pod or to the best one, if it can be had.
    pub(crate) fn ask_transfer(
        &mut self,
        now: Instant,
        id: FlowId,
        to: Option<u16>,
        cause: Cause,
        out: &mut impl Output,
    ) -> Swept {
        let flow = &self.flows[id];
        let policy = &self.policies[usize::from(flow.policy)];
        let owner = &self.backends[usize::from(flow.owner.backend)];
        let asks = owner.liveness.transfers()
            && owner.adopter.namespace != 0
            && owner.adopter.renewed == flow.renewed
            && !owner.liveness.is_down()
            && !flow.progress.is(Mark::Transfer)
            // host-shim would have the new socket see the dataplane's.
            && !flow.progress.told.is_restored()
            && !flow.backlog.is_some()
            && policy.spec.migration.mode != MigrationMode::Never
            && !policy.moved_enough(flow.moves())
            && out.frame().is_some();
        if !asks || !may_be_transferred(&self.handover_view(now, id)) {
            return Swept::Stays;
        }
        let policy = self.flows[id].policy;
        if !self.legs.transfers.has_room(policy) {
            self.counters.add(Counter::TransfersFull);
            return Swept::Stays;
        }
        let heir = match self.heir_leg(now, id, to) {
            Ok(heir) => heir,
            Err(swept) => return swept,
        };
        let flow = &mut self.flows[id];
        let transfer = Transfer {
            flow: id,
            policy,
            stage: Stage::Asked,
            leg: heir,
            seq: flow.client_next,
            ack: flow.server_next,
            cause,
            begun_ms: now.ms(),
            due_ms: now.ms() + TRANSFER_AGAIN_MS,
        };
        let Some(slot) = self.legs.transfers.open(transfer) else {
            return Swept::Stays;
        };
        flow.progress.set(Mark::Transfer, true);
        self.legs.uses.assign(heir, Use::Transfer(slot));
        self.tell(id, What::TransferAsked);
        self.send_transfer(slot, out);
        Swept::Done
    }

    /// A pair towards a pod that takes the flow: with an application that cooperates, which the
    /// owner's can reach.
    fn heir_leg(&mut self, now: Instant, id: FlowId, to: Option<u16>) -> Result<Leg, Swept> {
        let flow = &self.flows[id];
        let from = flow.owner;
        let owner = &self.backends[usize::from(from.backend)];
        let held = self.held_elsewhere(now, id, Some(from.backend));
        let takes = |index: u16| {
            let backend = &self.backends[usize::from(index)];
            index != from.backend
                && to.is_none_or(|to| to == index)
                && held.is_none_or(|held| held == index)
                && backend.liveness.transfers()
                && backend.adopter.namespace != 0
                && backend.addr.is_v6() == owner.addr.is_v6()
                && which(owner, backend).is_some()
        };
        let has_room =
            |index: u16| takes(index) && self.backends[usize::from(index)].budget.has_room(now);
        let policy = &self.policies[usize::from(flow.policy)];
        let (v6, all, rng) = (flow.is_v6(), &self.backends, &mut self.rng);
        let Some(chosen) = policy.choose_usable(v6, all, now, rng, has_room) else {
            let someone = policy.choose_usable(v6, all, now, rng, takes).is_some();
            return Err(if someone { Swept::NoRoom } else { Swept::Stays });
        };
        self.take_leg(now, id, chosen).ok_or(Swept::Stays)
    }

    /// One more copy of the question.
    fn send_transfer(&mut self, slot: u16, out: &mut impl Output) {
        let Some(transfer) = self.legs.transfers.get(slot).copied() else {
            return;
        };
        let owner = self.flows[transfer.flow].owner;
        let heir = &self.backends[usize::from(transfer.leg.backend)];
        let [.., a, b, c, d] = heir.addr.low.to_be_bytes();
        let Some(which) = which(&self.backends[usize::from(owner.backend)], heir) else {
            return;
        };
        let (Some(mut spec), Some(there), Some((epoch, key))) =
            (self.to_leg(owner), self.to_leg(transfer.leg), self.signing_key(owner.backend))
        else {
            return;
        };
        let destination = Destination {
            which,
            port: heir.port,
            peer_port: there.src_port,
            // On a node's network, its own pods and others'.
            peer: (there.src != spec.src).then_some(there.src),
            address_end: u32::from_be_bytes([a, b, c, d]),
        };
        (spec.seq, spec.ack) = (transfer.seq, transfer.ack);
        let namespace = self.backends[usize::from(owner.backend)].adopter.namespace;
        let (mut spec, message) = destination.into_message(&spec, namespace, epoch);
        let block = destination.block(&spec, &message, &key);
        spec.payload = block.as_ref().map_or(&[], |block| block);
        if self.emit(out, |buffer| build_adoption(buffer, &spec, &message, &key)) {
            self.counters.add(Counter::TransfersAsked);
        }
    }

    /// Questions that nobody has answered yet, and flows that may be asked for again.
    pub(crate) fn transfers_due(&mut self, now: Instant, out: &mut impl Output) {
        if now.ms() < self.legs.transfers.due_ms {
            return;
        }
        let mut left = self.room(REPEATED_PER_CALL, REPEATED_AT_LEAST);
        let (mut from, mut next_ms) = (0, u64::MAX);
        loop {
            let (due, later_ms) = self.legs.transfers.next_due(from, now);
            next_ms = next_ms.min(later_ms);
            let Some(slot) = due else { break };
            if left == 0 {
                next_ms = now.ms();
                break;
            }
            left -= 1;
            self.spend(1);
            from = slot + 1;
            next_ms = next_ms.min(self.transfer_due(now, slot, out));
        }
        self.legs.transfers.due_ms = next_ms;
    }

    /// One of them; when it is due again.
    fn transfer_due(&mut self, now: Instant, slot: u16, out: &mut impl Output) -> u64 {
        let Some(transfer) = self.legs.transfers.get(slot).copied() else {
            return u64::MAX;
        };
        if transfer.stage != Stage::Asked {
            self.end_transfer(now, slot);
            return u64::MAX;
        }
        let waited_ms = now.ms().saturating_sub(transfer.begun_ms);
        let due_ms = if waited_ms < TRANSFER_ASK_MS {
            self.send_transfer(slot, out);
            now.ms() + TRANSFER_AGAIN_MS
        } else if waited_ms < TRANSFER_OPEN_MS {
            transfer.begun_ms + TRANSFER_OPEN_MS
        } else {
            self.counters.add(Counter::TransfersUnanswered);
            return self.transfer_fails(now, slot);
        };
        self.legs.transfers.is_due(slot, due_ms);
        due_ms
    }

    /// The flow stays where it is, and is not asked for again for a while.
    fn transfer_fails(&mut self, now: Instant, slot: u16) -> u64 {
        if let Some(transfer) = self.legs.transfers.get(slot).copied() {
            self.free_leg(now, transfer.leg, Rest::Quiet);
            self.tell(transfer.flow, What::TransferFailed);
        }
        let due_ms = now.ms() + TRANSFER_REST_MS;
        let (stage, leg) = (Stage::Failed, Leg::NONE);
        self.legs.transfers.goes_on(slot, stage, leg, due_ms);
        due_ms
    }

    /// The flow ends or goes another way.
    #[cold]
    pub(crate) fn drop_transfer(&mut self, now: Instant, id: FlowId) {
        let slot = self.legs.transfers.of(id);
        debug_assert!(slot.is_some(), "a mark without a place");
        if let Some(slot) = slot {
            self.end_transfer(now, slot);
        }
    }

    /// There is nothing more to do.
    fn end_transfer(&mut self, now: Instant, slot: u16) {
        let Some(transfer) = self.legs.transfers.close(slot) else {
            return;
        };
        let flow = &mut self.flows[transfer.flow];
        flow.progress.set(Mark::Transfer, false);
        if transfer.leg.is_some() {
            self.free_leg(now, transfer.leg, Rest::Quiet);
        }
    }

    /// The flow's transfer, if its owner may hand it on at any moment.
    fn open_transfer(&self, id: FlowId) -> Option<(u16, Transfer)> {
        if !self.flows[id].progress.is(Mark::Transfer) {
            return None;
        }
        let slot = self.legs.transfers.of(id)?;
        let transfer = *self.legs.transfers.get(slot)?;
        (transfer.stage == Stage::Asked).then_some((slot, transfer))
    }

    /// Whether there is one.
    pub(crate) fn transfer_is_open(&self, id: FlowId) -> bool {
        self.open_transfer(id).is_some()
    }

    /// A segment from the pair that a Transfer named, or from the one that the flow had before.
    pub(crate) fn on_transfer(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        segment: &Segment,
        slot: u16,
        out: &mut impl Output,
    ) -> Verdict {
        let Some(transfer) = self.legs.transfers.get(slot).copied() else {
            return Verdict::Absorbed;
        };
        let id = transfer.flow;
        let window = self.flows[id].client_window_max();
        let numbers = self.handover_view(now, id).numbers;
        let ours = match transfer.stage {
            Stage::Asked => shows_heir(frame, segment, &numbers, window),
            Stage::Done | Stage::Failed => is_left_over(segment),
        };
        if !ours {
            self.counters.add(Counter::Fenced);
            return Verdict::Absorbed;
        }
        if transfer.stage == Stage::Asked {
            self.inherit(now, slot, out);
        }
        self.on_owner(now, frame, segment, id, out)
    }

    /// A message from the pod of a flow that it was asked to hand on.
    pub(crate) fn answer_to_transfer(
        &mut self,
        now: Instant,
        frame: &[u8],
        segment: &Segment,
        id: FlowId,
        out: &mut impl Output,
    ) -> Verdict {
        let owner = self.flows[id].owner.backend;
        let namespace = self.backends[usize::from(owner)].adopter.namespace;
        let asked =
            self.open_transfer(id).filter(|(_, t)| (segment.seq, segment.ack) == (t.ack, t.seq));
        // An answer to another question about the same numbers names another port.
        let settles = |says: &Adoption| {
            let port = |t: &Transfer| u32::from(self.leg_port(t.leg));
            says.namespace == namespace && asked.is_some_and(|(_, t)| says.server_ts == port(&t))
        };
        match (self.message(frame, segment, owner), asked) {
            (Message::Answer(Reason::Moved, says), Some((slot, _))) if settles(&says) => {
                self.inherit(now, slot, out);
            }
            (Message::Answer(Reason::Kept, says), Some((slot, _))) if settles(&says) => {
                if self.mutated(Mutant::InheritWhatIsKept) {
                    self.inherit(now, slot, out);
                    return Verdict::Absorbed;
                }
                self.counters.add(Counter::TransfersKept);
                self.transfer_fails(now, slot);
            }
            (Message::Answer(Reason::Renew, _), Some((slot, _))) => {
                // Another pod than the one that has the flow, of which nobody knows.
                self.counters.add(Counter::TransfersUnanswered);
                self.transfer_fails(now, slot);
                self.backends[usize::from(owner)].adopter.forget(0);
                self.rounds.probes.by(now.ms());
            }
            (Message::Forged, _) => self.counters.add(Counter::ForgedAnswers),
            _ => self.counters.add(Counter::Fenced),
        }
        Verdict::Absorbed
    }

    /// The other pod has the flow.
    fn inherit(&mut self, now: Instant, slot: u16, out: &mut impl Output) {
        let Some(transfer) = self.legs.transfers.get(slot).copied() else {
            return;
        };
        let id = transfer.flow;
        self.counters.add(Counter::TransfersDone);
        let outstanding = self.flows[id].bits.has(Bits::OUTSTANDING);
        self.request_forgotten(now, id);
        let old = self.flows[id].owner;
        self.leaves(id, old.backend);
        self.own_leg(id, transfer.leg);
        if outstanding {
            self.request_begins(now, id);
        }
        let flow = &mut self.flows[id];
        flow.progress.leg_is_new();
        flow.causes.begin(transfer.cause);
        flow.standby = old;
        self.has_moved(now, id);
        self.flows[id].progress.set(Mark::HandedOn, true);
        // Its socket ended without a word, and there is nobody to close it for.
        self.legs.uses.assign(old, Use::Transfer(slot));
        let due_ms = now.ms() + TRANSFER_DONE_MS;
        self.legs.transfers.goes_on(slot, Stage::Done, old, due_ms);
        self.tell_heir(id, out);
    }

    /// What the client acknowledged while the socket stood still did not reach it, and the client
    /// says it again only if it hears data: Linux answers other old segments twice a second
    /// (`tcp_oow_rate_limited`), and the socket begins with a time-out of a second.
    fn tell_heir(&mut self, id: FlowId, out: &mut impl Output) {
        let flow = &self.flows[id];
        let Some(mut spec) = self.to_leg(flow.owner) else {
            return;
        };
        (spec.seq, spec.ack) = (flow.client_next, flow.server_acked);
        spec.window = flow.client_window;
        spec.timestamps = Self::client_stamps(flow);
        self.emit(out, |buffer| build_segment(buffer, &spec));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_four_bytes_of_ipv6_must_be_alike() {
        let of = |high, low| Addr { high, low };
        let owner = of(0xfd00_0001_0000_0002, 3);
        let heir = of(0xfd00_0001_aaaa_bbbb, 0xcccc_dddd_0000_0007);
        let middle = Which::Address(0xaaaa_bbbb_cccc_dddd);
        assert_eq!(address_beside(owner, heir), Some(middle));
        let elsewhere = of(0xfd00_0002_aaaa_bbbb, heir.low);
        assert_eq!(address_beside(owner, elsewhere), None);
    }
}
