//! The figures of policies and backends, gathered a bounded piece at a time between batches of
//! packets.
//!
//! Owns how far a report is. Allocates, never on the packet path. No snapshot comes into force
//! while one is made.

use crate::{
    BackendFigures, Cause, Engine, MoveEnd, PolicyFigures,
    balance::{placement::Placement, policy::Policy},
    clock::Instant,
    ids::{Leg, from_addr},
    obs::{
        cause::MoveEnds,
        pins::{Lost, PinReason},
    },
    pods::drain::Waiting,
    reports::view::Slots,
    tables::legs::Use,
};
use baton_api::{
    Adoptability, BackendPlacement, BackendState, Endpoint, Micros, PolicyPlacement, PolicyState,
};
use std::collections::BTreeMap;

/// What one piece may cost, in units of about 0.1 us: some 50 us, and twice that where memory is
/// cold.
const PIECE: usize = 256;
/// A policy; a backend's state and figures, some 20 texts.
const COST_POLICY: usize = 40;
const COST_BACKEND: usize = 24;
/// Ports looked at for one unit.
const COST_PORT: usize = 1;
/// A flow, which lies apart in memory.
const COST_FLOW: usize = 2;

/// A report in the making.
#[derive(Default)]
pub struct Reporting {
    stage: Stage,
    at: usize,
    slots: Slots,
    /// Where each policy shown is among those shown, by its slot.
    places: Vec<Option<u16>>,
    /// The next member of the policy, and how far its legs were gone through.
    member: usize,
    legs: Seen,
    state: baton_api::State,
    figures: Vec<PolicyFigures>,
}

/// What is gathered next.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Slots,
    Policies,
    Frontends,
    Done,
}

/// What the legs of a backend that is down or drains show.
#[derive(Default)]
pub(crate) struct Seen {
    at: usize,
    /// Flows whose end is held or that wait for another owner.
    stranded: u64,
    pub(crate) waiting: Waiting,
}

impl Reporting {
    /// The state, without the counters, and the figures that only metrics show.
    #[must_use]
    pub fn end(self) -> (baton_api::State, Vec<PolicyFigures>) {
        (self.state, self.figures)
    }
}

/// Reasons that happened, with their counts.
fn by_reason(counts: impl Iterator<Item = (&'static str, u64)>) -> BTreeMap<String, u64> {
    let mut map = BTreeMap::new();
    for (label, count) in counts.filter(|(_, count)| *count > 0) {
        *map.entry(label.to_owned()).or_default() += count;
    }
    map
}

/// Moves that happened, by cause and end.
fn moves_by_cause(ends: &MoveEnds) -> BTreeMap<String, BTreeMap<String, u64>> {
    let causes = Cause::ALL.iter().zip(ends);
    let causes = causes.map(|(cause, ends)| {
        let ends = MoveEnd::ALL.iter().map(|e| e.label()).zip(*ends);
        (cause.label().to_owned(), by_reason(ends))
    });
    causes.filter(|(_, ends)| !ends.is_empty()).collect()
}

/// What a policy's backends are compared by. Of two families the slower one counts.
fn placement_of(policy: &Policy, now: Instant) -> PolicyPlacement {
    let pools = || policy.pools.iter().map(|p| &p.placement);
    let usual_us = pools().map(Placement::usual_us).fold(0.0, f64::max);
    PolicyPlacement {
        usual_wait: Micros(usual_us as u64),
        uneven: pools().any(|p| p.is_uneven(now.0)),
        distressed_total: pools().map(|p| p.distressed_total).sum(),
        expected: Micros(policy.gains.expected_us),
        won: Micros(policy.gains.won_us),
        lost: Micros(policy.gains.lost_us),
    }
}

impl Engine {
    /// The figures of policies and backends; the caller fills in what it knows better.
    #[must_use]
    pub fn state(&self, now: Instant) -> baton_api::State {
        let mut state = self.report(now).0;
        for (name, label, value) in self.counters() {
            let key = match label {
                Some((label, is)) => format!("{name}{{{label}=\"{is}\"}}"),
                None => name.to_owned(),
            };
            state.counters.insert(key, value);
        }
        state
    }

    /// What only metrics show, of the policies and backends that [`Engine::state`] shows.
    #[must_use]
    pub fn figures(&self) -> Vec<PolicyFigures> {
        self.report(self.events.now).1
    }

    fn report(&self, now: Instant) -> (baton_api::State, Vec<PolicyFigures>) {
        let mut report = Reporting::default();
        while !self.report_piece(now, &mut report) {}
        report.end()
    }

    /// Goes on with a report; whether it is complete.
    pub fn report_piece(&self, now: Instant, report: &mut Reporting) -> bool {
        let now = self.link.time(now);
        let mut left = PIECE;
        while left > 0 {
            let cost = match report.stage {
                Stage::Slots => self.report_slot(report),
                Stage::Policies => self.report_policy(now, report),
                Stage::Frontends => self.report_frontend(report),
                Stage::Done => return true,
            };
            match cost {
                Some(cost) => left = left.saturating_sub(cost),
                None => {
                    report.at = 0;
                    report.stage = match report.stage {
                        Stage::Slots => Stage::Policies,
                        Stage::Policies => Stage::Frontends,
                        Stage::Frontends | Stage::Done => {
                            report.state.generation = self.generation;
                            report.state.tables = self.tables_with(report.slots);
                            Stage::Done
                        }
                    };
                }
            }
        }
        false
    }

    fn report_slot(&self, report: &mut Reporting) -> Option<usize> {
        report.slots.add(self.backends.get(report.at)?);
        report.at += 1;
        Some(1)
    }

    /// The next policy, or the next of its backends, or more of that one's legs.
    fn report_policy(&self, now: Instant, report: &mut Reporting) -> Option<usize> {
        let policy = self.policies.get(report.at)?;
        if report.places.is_empty() {
            // Moving what is there to larger memory would take long.
            report.places.reserve(self.policies.len());
            report.state.policies.reserve(self.policies.len());
            report.figures.reserve(self.policies.len());
        }
        if !policy.listed && policy.flows == 0 {
            report.places.push(None);
            report.at += 1;
            return Some(1);
        }
        if report.places.len() == report.at {
            report.places.push(Some(report.state.policies.len() as u16));
            report.state.policies.push(policy_state(policy, now));
            let mut figures = policy.figures.shown(&policy.spec.name);
            let members = policy.pools.iter().map(|p| p.members.len());
            figures.backends.reserve(members.sum());
            report.figures.push(figures);
            return Some(COST_POLICY);
        }
        let [v4, v6] = policy.pools.each_ref();
        let (pool, at) = match report.member.checked_sub(v4.members.len()) {
            None => (v4, report.member),
            Some(at) => (v6, at),
        };
        let Some(member) = pool.members.get(at) else {
            report.member = 0;
            report.at += 1;
            return Some(1);
        };
        let index = member.backend;
        let number = report.at as u16;
        if let Some(cost) = self.report_legs(now, (number, index), &mut report.legs) {
            return Some(cost);
        }
        report.member += 1;
        let legs = std::mem::take(&mut report.legs);
        let b = &self.backends[usize::from(index)];
        let load = b.load.reading(now.0);
        let standing = pool.placement.standing(at);
        if let Some(figures) = report.figures.last_mut() {
            figures.backends.push(BackendFigures {
                name: policy.name_of(member).to_owned(),
                first_byte: b.figures.first_byte.clone(),
                flows_begun: b.figures.begun,
                leg_ports: b.ports.all() as u64,
                ready_leg_ports: b.ports.ready() as u64,
            });
        }
        let (Some(shown), Some(endpoint)) =
            (report.state.policies.last_mut(), Endpoint::new(from_addr(b.addr), b.port))
        else {
            return Some(COST_BACKEND);
        };
        shown.backends.push(BackendState {
            name: policy.name_of(member).to_owned(),
            endpoint,
            weight: member.weight,
            draining: member.is_leaving(),
            adoptability: self.adoptability(now, b),
            flows: u64::from(b.flows),
            pinned: u64::from(b.pinned),
            outstanding: u64::from(load.outstanding),
            first_byte: Micros(b.estimate.average_us(now.0)),
            wait: Some(Micros(b.wait_us(now, policy.spec.load))),
            load: b.telemetry.shown(now),
            transfers: b.liveness.transfers(),
            unlike: b.adopter.unlike,
            placement: Some(BackendPlacement {
                standing: standing.label().to_owned(),
                mean_wait: Micros(load.long_us as u64),
                error: Micros(load.error_us as u64),
                recent_wait: Micros(load.short_us as u64),
                stalled: Micros(load.stalled_us),
                move_cost: Micros(b.move_cost.us() as u64),
            }),
            requests_total: b.requests,
            migrations_in_total: b.moves_in,
            migrations_out_total: b.moves_out,
            health: member.health(&b.liveness, now),
            stranded: legs.stranded,
            rescued_total: b.rescued,
            drain: self.drain_state(number, member, now, legs.waiting),
        });
        Some(COST_BACKEND)
    }

    /// Whether a backend can take connections over, and why not.
    pub(crate) fn adoptability(
        &self,
        now: Instant,
        backend: &crate::backend::Backend,
    ) -> Adoptability {
        if self.keys.is_empty() {
            return Adoptability::NoKey;
        }
        let marks = backend.liveness.marks_ends();
        backend.adopter.adoptability(now, marks)
    }

    /// Goes through more of the legs of a policy's backend that is down or that it drains.
    fn report_legs(
        &self,
        now: Instant,
        (policy, index): (u16, u16),
        legs: &mut Seen,
    ) -> Option<usize> {
        let backend = &self.backends[usize::from(index)];
        let strands = backend.liveness.is_down() || backend.liveness.is_probed();
        let drains = backend.drains.has(policy);
        if !strands && !drains {
            return None;
        }
        let mut cost = 0;
        let from = legs.at;
        while cost < PIECE
            && let Some((port, next)) = backend.ports.next_busy(&self.legs.rests, legs.at)
        {
            let used = self.legs.uses.used_by(Leg { backend: index, port });
            legs.at = next;
            cost += COST_PORT;
            let (Some(Use::Owner(id)) | Some(Use::Standby(id))) = used else {
                continue;
            };
            cost += COST_FLOW;
            let owner = matches!(used, Some(Use::Owner(_)));
            if drains && self.flows[id].policy == policy {
                self.note_waiting(id, !owner, now, &mut legs.waiting);
            }
            let state = self.flows[id].state;
            let stranded = strands && owner && state.lacks_owner();
            legs.stranded += u64::from(stranded);
        }
        (legs.at > from).then_some(cost.max(1))
    }

    fn report_frontend(&self, report: &mut Reporting) -> Option<usize> {
        let frontend = self.frontends.get(report.at)?;
        report.at += 1;
        let place = report.places.get(usize::from(frontend.policy)).copied();
        if let Some(place) = place.flatten()
            && frontend.listed
            && let Some(endpoint) = Endpoint::new(from_addr(frontend.addr), frontend.port)
            && let Some(policy) = report.state.policies.get_mut(usize::from(place))
        {
            policy.frontends.push(endpoint);
        }
        Some(1)
    }
}

/// A policy, but for its backends and frontends.
fn policy_state(policy: &Policy, now: Instant) -> PolicyState {
    let members = policy.pools.iter().map(|p| p.members.len()).sum();
    PolicyState {
        name: policy.spec.name.clone(),
        frontends: Vec::new(),
        algorithm: policy.spec.algorithm,
        protocol: policy.spec.protocol,
        flows: u64::from(policy.flows),
        flows_total: policy.flows_total,
        migrations_total: policy.moves_total,
        rollbacks_total: policy.rollbacks_total,
        rescues_total: policy.rescues,
        replays_total: policy.replays,
        lost_total: by_reason(Lost::ALL.iter().map(|l| l.label()).zip(policy.lost)),
        pinned: by_reason(policy.figures.pinned()),
        pins_total: by_reason(PinReason::all().map(PinReason::label).zip(policy.pins)),
        moves_total: moves_by_cause(&policy.ends),
        panic: policy.pools.iter().any(|p| p.panic),
        placement: Some(placement_of(policy, now)),
        backends: Vec::with_capacity(members),
    }
}
