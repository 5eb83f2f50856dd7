//! Accounting of all tables, for tests: whatever happened, nothing may be lost or counted twice.
//!
//! Never called on the packet path; it looks at every slot of every table.

use crate::{
    Engine,
    containers::slots::Slots,
    flow::{Bits, Flow},
    handover::Mark,
    ids::{FlowId, Leg, to_addr},
    mutants::Mutant,
    obs::pins::PinReason,
    states::State,
    tables::legs::{By, Use},
};

impl Engine {
    /// Asserts that the tables agree with each other.
    ///
    /// # Panics
    /// If they do not: that is a mistake in the engine.
    #[doc(hidden)]
    pub fn check_invariants(&self) {
        let live = || {
            let slots = self.flows.slots().iter().enumerate();
            slots.filter(|(_, f)| f.state != State::Gone)
        };
        assert_eq!(live().count(), self.flows.used() as usize, "flows in use");
        let (mut kept, mut early) = (Slots::default(), Slots::default());
        for (id, flow) in live() {
            self.check_flow(id as FlowId, flow);
            kept += self.copies.kept.slots_of(flow.kept);
            early += self.copies.kept.slots_of(flow.early_client);
            early += self.copies.kept.slots_of(flow.early_server);
        }
        self.copies.early.check(early);
        let backlogs = || live().filter(|(_, f)| f.backlog.is_some());
        let mut waiting = Slots::default();
        for (_, flow) in backlogs() {
            waiting += self.copies.kept.slots_of(self.copies.backlogs.waiting(flow.backlog));
        }
        assert_eq!(self.copies.backlogs.segments(), waiting, "segments that wait");
        assert_eq!(backlogs().count(), usize::from(self.copies.backlogs.used()), "backlogs");
        assert_eq!(
            self.copies.backlogs.shared(),
            u32::from(self.copies.backlogs.used()),
            "backlogs by network"
        );
        let sessions = self.guards.sessions().0;
        assert_eq!(self.guards.shared(), sessions, "sessions by network");
        kept += waiting;
        assert_eq!(self.copies.requests.sum(), kept, "copies of requests by network");
        for id in self.copies.kept.incomplete() {
            assert!(!self.request_is_complete(id), "a complete request");
            assert!(!self.flows[id].kept.is_empty(), "an incomplete request");
        }
        kept += early;
        assert_eq!(kept, self.copies.kept.used(), "kept segments");
        let followed = live().filter(|(_, f)| self.guards.get(f.guard).is_some());
        assert_eq!(followed.count(), self.guards.used() as usize, "guards");
        for (id, flow) in self.flows.slots().iter().enumerate() {
            let timed = self.wheel.is_armed(id as u32);
            assert_eq!(timed, flow.state != State::Gone, "timer of flow {id}");
        }
        for (index, policy) in self.policies.iter().enumerate() {
            let flows = live().filter(|(_, f)| usize::from(f.policy) == index);
            assert_eq!(flows.count(), policy.flows as usize, "flows of a policy");
            let mut pinned = [0; PinReason::COUNT];
            let flows = live().filter(|(_, f)| usize::from(f.policy) == index);
            for pin in flows.filter_map(|(_, f)| f.pin) {
                pinned[pin.number()] += 1;
            }
            assert_eq!(pinned, policy.figures.pinned, "pins by reason");
        }
        for (index, frontend) in self.frontends.iter().enumerate() {
            let flows = live().filter(|(_, f)| usize::from(f.frontend) == index);
            assert_eq!(flows.count(), frontend.flows as usize, "its flows");
            let found = self.ids.frontends.find(frontend.addr, frontend.port);
            assert_eq!(found, Some(index as u16), "a frontend is found");
        }
        self.check_hops();
        self.check_affinities();
        self.check_members();
        let (mut closing, mut translated) = (0, 0);
        for index in 0..self.backends.len() {
            let (closes, shifts) = self.check_backend(index as u16);
            closing += closes;
            translated += shifts;
        }
        let takes = self.backends.iter().map(|b| b.ports.takes());
        let (held, pooled) = takes.fold((0, 0), |(a, b), (c, d)| (a + c, b + d));
        assert_eq!(held, self.legs.rests.held(), "busy ports");
        let (blocks, _) = self.legs.rests.blocks.used();
        assert_eq!(pooled as u64, blocks, "blocks of busy ports");
        assert_eq!(closing, self.legs.closing.used(), "closing legs");
        assert_eq!(translated, self.legs.shifts.used(), "translated legs");
        let used = matches!(self.redirect.by, By::Adoption);
        assert!(used, "a leg to be opened or shared, and not used");
        assert!(!self.redirect.leg.is_some(), "a leg was taken and not used");
        let sweeping = self.backends.iter().filter(|b| b.sweep.is_some()).count();
        assert!(self.rounds.sweeps.len() >= sweeping, "a sweep without a turn");
    }

    fn check_hops(&self) {
        let mut uses = [0_u32; crate::net::routes::LIMIT_HOPS];
        let live = self.flows.slots().iter();
        for flow in live.filter(|f| f.state != State::Gone) {
            if let Some(uses) = uses.get_mut(usize::from(flow.hop.0)) {
                *uses += 1;
            }
        }
        for hop in self.backends.iter().filter_map(|b| b.hop) {
            uses[usize::from(hop.0)] += 1;
        }
        assert!(self.net.hops.all_uses() == uses, "uses of hops");
    }

    fn check_flow(&self, id: FlowId, flow: &Flow) {
        let found = self.flows.find(flow.client, flow.client_port, flow.frontend);
        assert_eq!(found, Some(id), "a flow is found by its client");
        let aside = [Bits::ASIDE, Bits::SHIFTED].map(|bit| flow.bits.has(bit));
        assert_eq!(aside, <[bool; 2]>::from(flow.has_aside()), "in {:?}", flow.state);
        let used_by = |leg: Leg| self.legs.uses.used_by(leg);
        if flow.owner.is_some() {
            assert_eq!(used_by(flow.owner), Some(Use::Owner(id)));
        } else {
            let legless = flow.state.may_lack_leg();
            assert!(legless, "no owner leg in {:?}", flow.state);
        }
        let translated = self.legs.shifts.of(flow.owner).is_some();
        assert_eq!(flow.progress.is(Mark::Translated), translated);
        let place = self.legs.transfers.of(id);
        assert_eq!(flow.progress.is(Mark::Transfer), place.is_some());
        assert!(place.is_none() || flow.state.serves(), "a transfer");
        let adopting = flow.state.is_moving();
        if flow.standby.is_some() {
            assert_eq!(used_by(flow.standby), Some(Use::Standby(id)));
            assert!(adopting, "a standby leg in {:?}", flow.state);
        } else if adopting {
            assert!(flow.progress.is(Mark::StandbyGone), "no standby leg");
        }
        if flow.state.is_moving() {
            assert!(flow.causes.open().is_some(), "a move without a cause");
        } else if flow.causes.open().is_some() {
            assert!(flow.has_wish() && self.rounds.pending_moves, "a cause without a move");
            assert!(flow.state != State::Orphan && flow.pin.is_none(), "a wish");
        }
        assert!(
            flow.kept.is_empty()
                || adopting
                || matches!(flow.state, State::Request | State::OwnerFinPending | State::Orphan),
            "kept copies in {:?}",
            flow.state
        );
        let whole = flow.bits.has(Bits::KEPT_WHOLE);
        assert!(!whole || !flow.kept.is_empty(), "kept wholly, and nothing");
        assert!(
            flow.bits.has(Bits::PRELUDE) || self.tracker(id).is_none_or(|t| t.pinned().is_none()),
            "a pinned flow is followed"
        );
        let may_wait = matches!(flow.state, State::Request | State::Adopting | State::ClientFin);
        assert!(!flow.bits.has(Bits::OUTSTANDING) || may_wait);
    }

    /// Members and the slots that they share.
    fn check_members(&self) {
        let mut suspects = vec![0; self.backends.len()];
        for policy in self.policies.iter().filter(|p| p.listed) {
            for pool in &policy.pools {
                assert_eq!(pool.members.len(), pool.evidence.len(), "evidence");
                for (member, evidence) in pool.members.iter().zip(&pool.evidence) {
                    let backend = &self.backends[usize::from(member.backend)];
                    let named = policy.origin.backends[usize::from(member.at)].endpoint;
                    let at = (to_addr(named.address()), named.port());
                    assert_eq!(at, (backend.addr, backend.port), "a member's slot");
                    let process = backend.liveness.process();
                    suspects[usize::from(member.backend)] += u32::from(!evidence.is_clean(process));
                }
            }
        }
        for (backend, suspects) in self.backends.iter().zip(suspects) {
            assert_eq!(backend.liveness.suspects, suspects, "suspects");
        }
    }

    /// Returns how many legs of the backend are closing, and how many translated.
    fn check_backend(&self, index: u16) -> (u32, u32) {
        let backend = &self.backends[usize::from(index)];
        let (mut used, mut owned, mut closing, mut translated) = (0, 0, 0, 0);
        let mut from = 0;
        while let Some((port, next)) = backend.ports.next_busy(&self.legs.rests, from) {
            from = next;
            let leg = Leg { backend: index, port };
            let Some(user) = self.legs.uses.used_by(leg) else {
                continue;
            };
            used += 1;
            translated += u32::from(self.legs.shifts.of(leg).is_some());
            match user {
                Use::Owner(id) => {
                    owned += 1;
                    assert_eq!(self.flows[id].owner, leg);
                    assert_ne!(self.flows[id].state, State::Gone);
                }
                Use::Standby(id) => assert_eq!(self.flows[id].standby, leg),
                Use::Closing(id) => {
                    closing += 1;
                    assert_eq!(self.legs.closing.leg(id), leg);
                    let armed = self.wheel.is_armed(self.flows.limit() + id);
                    assert_ne!(
                        armed,
                        self.legs.closing.waits(id),
                        "armed, or waiting for its turn"
                    );
                }
                Use::Probe => assert_eq!(backend.probe_ports[0], port),
                Use::LivenessProbe => assert_eq!(backend.probe_ports[1], port),
                Use::Forget(slot) => assert_eq!(self.legs.forgets.leg(slot), leg),
                Use::Transfer(slot) => {
                    let of = self.legs.transfers.get(slot).map(|t| t.leg);
                    assert_eq!(of, Some(leg), "the leg of a transfer");
                }
            }
        }
        assert_eq!(used, backend.ports.used(), "legs of {}", backend.name);
        for (policy, of) in self.policies.iter().enumerate() {
            let mut members = of.pools.iter().flat_map(|p| &p.members);
            let member = members.any(|m| m.backend == index);
            assert_eq!(backend.policies.has(policy as u16), member, "its policies");
        }
        for (policy, of) in self.policies.iter().enumerate() {
            let drains = backend.drains.has(policy as u16);
            match of.member(index) {
                Some(member) => assert_eq!(drains, member.is_leaving(), "a member's drain"),
                None => assert!(!drains || !of.is_free, "a drain of nobody"),
            }
        }
        assert_eq!(owned, backend.flows, "flows of {}", backend.name);
        let pinned = self
            .flows
            .slots()
            .iter()
            .filter(|f| f.owner.is_some() && f.owner.backend == index && f.pin.is_some());
        let pinned = pinned.count();
        assert_eq!(pinned, backend.pinned as usize, "pins of {}", backend.name);
        let half_open = self
            .flows
            .slots()
            .iter()
            .filter(|f| f.owner.is_some() && f.owner.backend == index && f.state.is_opening());
        let counted = backend.ports.half_open(&self.legs.rests).map_or(0, |(_, count)| count);
        assert_eq!(half_open.count(), counted, "handshakes of {}", backend.name);
        let waiting = self.flows.slots().iter().filter(|f| {
            f.state != State::Gone && f.bits.has(Bits::OUTSTANDING) && f.owner.backend == index
        });
        assert_eq!(
            waiting.count(),
            backend.load.outstanding() as usize,
            "outstanding requests of {}",
            backend.name
        );
        (closing, translated)
    }
}

impl Engine {
    /// Makes the engine commit one fault from now on.
    #[cfg(feature = "mutants")]
    pub fn set_mutant(&mut self, mutant: Option<Mutant>) {
        self.committed = crate::mutants::Committed::to(mutant);
        // The short way knows no faults.
        self.predicts = mutant.is_none();
    }

    /// Before each tick: the port given back last is the next one used, without rest.
    #[cfg(feature = "mutants")]
    pub(crate) fn hurry_ports(&mut self) {
        if self.mutated(Mutant::ReusePort) {
            for backend in &mut self.backends {
                backend.ports.hurry(&mut self.legs.rests);
            }
        }
    }

    /// Whether the fault is to be committed.
    #[inline]
    pub(crate) fn mutated(&self, mutant: Mutant) -> bool {
        self.committed.is(mutant)
    }
}
