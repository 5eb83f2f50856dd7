//! Shared legs: connections to pods that no flow has at present, and on which the next request of
//! any flow of the policy may travel.
//!
//! A leg that its flow has left at rest is not closed but parked, among the closing legs: both ends
//! have acknowledged all that was said on it. The next flow that goes to this pod has it without a
//! handshake, an adoption, an accept or a close: its numbers are shifted in both directions
//! ([`Shift`]).
//!
//! Owns which legs are parked and who may have one. How such a leg closes is `closing`'s; what a
//! pod's answer on it means is decided in `handover::answer`.
//!
//! # Decisions
//!
//! - **Only what a guard follows exactly shares**: a request that the guard and the pod read
//!   differently would have its rest taken for the next client's. What ties a flow to its pod pins
//!   it, and a pinned flow's leg is nobody else's. A flow with a session of its own neither leaves
//!   a leg to others nor takes one.
//! - **A leg is ready by its numbers, not by a pause.** A flow at rest has seen its pod acknowledge
//!   all that the client said, and the client all of the pod's; so the next flow's numbers begin
//!   exactly there. One that nobody has taken for 250 ms is asked, if it stays (a keepalive, whose
//!   answer says the same), and is nobody's until its pod answers. Rejected: asking each before it
//!   is taken, or after 2 ms. That is two packets, and one more of each of the next requests, as a
//!   kernel that is sent what it has acknowledges at once what comes then (`tcp_data_queue`, which
//!   calls `tcp_enter_quickack_mode`). With `LeastRequests`, nginx and 128 connections, where one
//!   in five legs that were left waited for 2 ms, it was 0.41 segments beside the 2 of each request
//!   (the pods' `/proc/net/snmp`).
//! - **A client whose window holds no full segment takes no other one's leg.** Linux cuts segments
//!   to half of the largest window that it has seen (`tcp_bound_to_half_wnd`), which another client
//!   may have offered. What then does not fit waits for the persist timer: a window each 200 ms,
//!   100 s for 3 MB (MTU 9,000, `SO_RCVBUF` 4,096).
//! - **A pod is told after 2 ms that its last response arrived**, where no request has done so.
//! - **What a pod says of its own accord ends the parking**: a time-out's message would be the next
//!   client's answer. What it sends at the very moment that a request is on its way acknowledges
//!   nothing of that, and the request goes elsewhere (`handover::answer`).
//! - **What is older than a flow's time on a leg is another client's**: a copy that was late says
//!   nothing of the request, and reaches no client (`server`).

use crate::{
    Engine, Output,
    backend::Backend,
    balance::policy::Policy,
    clock::Instant,
    flow::{Bits, Flow},
    handover::Mark,
    ids::{FlowId, Leg},
    mutants::Mutant,
    obs::counters::Counter,
    states::State,
    tables::{ParkedLeg, Parking, Promises, Shared, guard_of, legs::Use},
    timing::{
        PARKED_ACKED_AFTER_MS, PARKED_FOR_MS, PARKED_KEPT, PARKED_LOOKED_AT_MAX,
        PARKED_PER_BACKEND_MAX, PARKED_SURPLUS_MS,
    },
};
use baton_api::Legs;
use baton_guard::Tracker;
use baton_packet::{Flags, Segment, Shift};

/// Options that both ends of a leg agreed to, and that the next flow must have.
const OPTIONS: [u16; 4] = [Bits::WSCALE, Bits::SACK, Bits::TIMESTAMPS, Bits::ECN];

fn promises(flow: &Flow, backend: &Backend) -> Promises {
    let has = |bit: &u16| if flow.bits.has(*bit) { *bit } else { 0 };
    Promises {
        policy: flow.policy,
        options: OPTIONS.iter().map(has).sum(),
        scale: flow.scales & 15,
        process: backend.liveness.process(),
    }
}

impl Policy {
    /// Whether its flows share legs.
    pub(crate) fn shares_legs(&self) -> bool {
        self.spec.migration.legs == Legs::Shared && guard_of(self.spec.protocol).is_some()
    }
}

impl Engine {
    /// Whether the flow's legs may be others' before and behind it. Whom no guard follows at rest
    /// has nothing that it would have to remember.
    pub(crate) fn shares(&self, id: FlowId) -> bool {
        let flow = &self.flows[id];
        self.policies[usize::from(flow.policy)].shares_legs()
            && flow.pin.is_none()
            // Begun before the policy changed, and this client's for the pod.
            && !flow.progress.told.is_restored()
            && !flow.progress.told.begins()
            && !flow.progress.told.is_otherwise()
            && !self.has_session(id)
    }

    /// Whether the leg that the flow leaves with this request may be another one's next: the flow
    /// was at rest, and its pod stays.
    pub(crate) fn note_reusable(&mut self, id: FlowId, pod_stays: bool) {
        let ends = |tracker: &Tracker| tracker.closing() || tracker.is_odd();
        let closes = self.tracker(id).is_some_and(ends);
        let idle = self.flows[id].state == State::Idle;
        let reusable = pod_stays && idle && !closes && self.shares(id);
        self.flows[id].progress.set(Mark::Reusable, reusable);
    }

    /// Parks the leg that the flow has left, instead of closing it. `acked`: all that the client
    /// has acknowledged went to the pod. `false`: it is to be closed.
    pub(crate) fn park(&mut self, now: Instant, id: FlowId, leg: Leg, acked: bool) -> bool {
        let spoke = self.flows[id].progress.is(Mark::StandbyGone);
        let reusable = self.flows[id].progress.take(Mark::Reusable);
        if !reusable || spoke {
            return false;
        }
        let backend = &self.backends[usize::from(leg.backend)];
        if !self.legs.closing.may_park() || backend.parked.count >= PARKED_PER_BACKEND_MAX {
            self.counters.add(Counter::ParkedFull);
            return false;
        }
        let flow = &self.flows[id];
        let scale = (self.legs.shifts.of(leg)).map_or(flow.scales >> 4, |shift| shift.pod_scale);
        let parked = ParkedLeg::new(promises(flow, backend), flow.mss, scale);
        let Some(closing) = self.former_leg(id, leg, flow.boundary) else {
            return false;
        };
        let at_pod = &mut self.backends[usize::from(leg.backend)].parked;
        self.legs.closing.park(closing, parked, acked, at_pod);
        self.counters.add(Counter::LegsParked);
        let after_ms = if acked { PARKED_SURPLUS_MS } else { PARKED_ACKED_AFTER_MS };
        self.wheel.arm(self.closing_timer(closing), now.ms() + after_ms);
        true
    }

    /// What a parked leg's pod is sent in its turn, if nobody has taken the leg before: that its
    /// last response arrived, which the next request would have said; later on a keepalive, which
    /// asks whether it is still there.
    pub(crate) fn tell_parked(&mut self, now: Instant, id: u32, out: &mut impl Output) {
        self.legs.closing.unqueue(id);
        let entry = &mut self.legs.closing.legs[id as usize];
        let (leg, fin) = (entry.leg, entry.fin);
        let asks = entry.parking != Parking::Fresh;
        if asks {
            let at_pod = &mut self.backends[usize::from(leg.backend)].parked;
            self.legs.closing.asked(id, at_pod);
        } else {
            entry.parking = Parking::Ready;
        }
        if let Some(mut spec) = self.closing_spec(id) {
            spec.seq = fin;
            if asks {
                (spec.seq, spec.payload) = (fin.add(u32::MAX), &[0]);
            }
            self.emit_to(leg, spec, out);
        }
        let due_ms = now.ms() + PARKED_SURPLUS_MS;
        self.wheel.arm(self.closing_timer(id), due_ms);
    }

    /// Whether a leg whose timer is due stays parked for longer, once its pod was sent something.
    pub(crate) fn stays_parked(&self, id: u32) -> bool {
        let entry = &self.legs.closing.legs[id as usize];
        let parked = &self.backends[usize::from(entry.leg.backend)].parked;
        match entry.parking {
            Parking::Fresh => true,
            Parking::Ready => parked.count <= PARKED_KEPT,
            Parking::No | Parking::Asked | Parking::Kept => false,
        }
    }

    /// A segment, other than a RST, from a leg that is parked. Whether it is still.
    pub(crate) fn parked_says(&mut self, now: Instant, id: u32, segment: &Segment) -> bool {
        let entry = &self.legs.closing.legs[id as usize];
        let end = segment.seq.add(segment.seq_len());
        let speaks = end.after(entry.ack) || segment.flags.has(Flags::SYN);
        let answers = (segment.ack, segment.seq) == (entry.fin, entry.ack)
            && segment.flags.has(Flags::ACK)
            && segment.seq_len() == 0;
        // The next request would have to wait.
        let shut = answers && segment.window == 0;
        let at_pod = &mut self.backends[usize::from(entry.leg.backend)].parked;
        let asked = answers && entry.parking == Parking::Asked && !shut;
        let is_full = asked && at_pod.count >= PARKED_PER_BACKEND_MAX;
        if is_full {
            self.counters.add(Counter::ParkedFull);
        } else if asked {
            self.legs.closing.kept(id, at_pod);
            let more = PARKED_FOR_MS - PARKED_SURPLUS_MS;
            self.wheel.arm(self.closing_timer(id), now.ms() + more);
        }
        let ends = speaks || shut || is_full;
        if ends {
            self.unpark(id);
        }
        !ends
    }

    /// The leg is not parked any more.
    pub(crate) fn unpark(&mut self, id: u32) {
        let backend = usize::from(self.legs.closing.leg(id).backend);
        let parked = &mut self.backends[backend].parked;
        self.legs.closing.unpark(id, parked);
    }

    /// Takes a leg of those that are parked at a pod, for a flow that goes there.
    pub(crate) fn take_parked(&mut self, id: FlowId, target: u16) -> Option<(Leg, Shared)> {
        let backend = &self.backends[usize::from(target)];
        if backend.parked.count == 0 || !backend.liveness.is_usable() || !self.shares(id) {
            return None;
        }
        let flow = &self.flows[id];
        let promises = promises(flow, backend);
        let window = u32::from(flow.client_window) << (flow.scales & 15);
        let most = u32::from(flow.mss).min(window);
        let any = self.mutated(Mutant::TakeAnyLeg);
        let fits = |place: &&ParkedLeg| {
            any || (place.promises == promises && u32::from(place.mss) <= most)
        };
        let found = self.legs.closing.parked(&backend.parked);
        let place = found.take(PARKED_LOOKED_AT_MAX).find(fits)?;
        let closing = place.closing;
        let entry = &self.legs.closing.legs[closing as usize];
        let shared = Shared {
            next: entry.fin,
            pod_next: entry.ack,
            stamps: entry.stamps,
            pod_scale: place.pod_scale,
        };
        let leg = entry.leg;
        // Whatever other way the flow goes says what is full, if it matters there.
        if self.legs.shifts.is_full() && self.legs.shifts.of(leg).is_none() {
            return None;
        }
        self.unpark(closing);
        self.wheel.cancel(self.closing_timer(closing));
        self.legs.closing.remove(closing);
        self.legs.uses.assign(leg, Use::Owner(id));
        Some((leg, shared))
    }

    /// The flow has a leg that was another one's: what lies between the numbers of the two.
    pub(crate) fn share_leg(&mut self, now: Instant, id: FlowId, shared: &Shared) {
        let flow = &self.flows[id];
        let leg = flow.owner;
        let old = self.legs.shifts.of_new_owner(id, leg).unwrap_or_default();
        let here = flow.server_ts_at(now.ms32());
        let stamps = shared.stamps.filter(|_| !self.mutated(Mutant::StampsRunBack));
        let (own, pods) = stamps.unwrap_or((0, here));
        let first = self.first_client_ts(id);
        let by = |to: u32, from: u32| to.wrapping_sub(from);
        let shift = Shift {
            seq: by(flow.server_next.0, shared.pod_next.0).wrapping_add(old.seq),
            acked: by(flow.boundary.0, shared.next.0).wrapping_add(old.acked),
            stamps: by(here, pods).wrapping_add(old.stamps),
            echoes: by(first, own).wrapping_add(old.echoes),
            stamps_from: here,
            pod_scale: shared.pod_scale,
            client_scale: flow.scales >> 4,
        };
        self.legs.shifts.renew(id, leg, shift);
        let flow = &mut self.flows[id];
        if shared.stamps.is_some() {
            (flow.server_ts, flow.server_ts_ms) = (here, now.ms32());
        }
        for mark in [Mark::Opening, Mark::Translated, Mark::Shared] {
            flow.progress.set(mark, true);
        }
        flow.note_aside();
        self.counters.add(Counter::LegsShared);
    }
}
