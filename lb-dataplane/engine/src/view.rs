//! What the engine shows: state, flows and counters for people and metrics.
//!
//! Called by the control thread's requests between batches; allocates, never on the packet path.

use crate::{
    Cause, Counter, DropReason, Engine, MoveEnd,
    backend::Use,
    cause::{LastMove, MoveEnds},
    engine::Instant,
    flow::{Flow, from_addr},
    pins::{Lost, PinReason},
    placement::Placement,
    policy::Policy,
    states::{State, TABLE},
};
use baton_api::{
    BackendPlacement, BackendState, Endpoint, FlowView, Micros, PolicyPlacement, PolicyState,
};
use std::{collections::BTreeMap, net::SocketAddr};

type Label = Option<(&'static str, &'static str)>;

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
    /// Every counter: metric name without prefix, label, value.
    pub fn counters(&self) -> impl Iterator<Item = (&'static str, Label, u64)> + '_ {
        let named = Counter::ALL.iter().map(|c| {
            let (name, label) = c.metric();
            (name, label, self.counters.get(*c))
        });
        let drops = DropReason::ALL.iter().map(|r| {
            (
                "drops_total",
                Some(("reason", r.label())),
                self.counters.dropped(*r),
            )
        });
        let malformed = baton_packet::Malformed::ALL.iter().map(|m| {
            (
                "malformed_total",
                Some(("reason", m.label())),
                self.counters.malformed[*m as usize],
            )
        });
        let sum = |of: &dyn Fn(&Policy) -> u64| self.policies.iter().map(of).sum::<u64>();
        let lost: Vec<_> = Lost::ALL
            .iter()
            .map(|l| ("lost_total", *l, sum(&|p| p.lost[*l as usize])))
            .map(|(name, l, value)| (name, Some(("reason", l.label())), value))
            .collect();
        let mut pins: Vec<(&'static str, Label, u64)> = Vec::new();
        for reason in PinReason::all() {
            let value = sum(&|p| p.pins[reason.number()]);
            let label = Some(("reason", reason.label()));
            match pins.iter_mut().find(|(_, l, _)| *l == label) {
                Some((_, _, same)) => *same += value,
                None => pins.push(("pins_total", label, value)),
            }
        }
        let of_policies = lost.into_iter().chain(pins);
        let unread = self.events.overwritten();
        let unread = [("flow_events_overwritten_total", None, unread)];
        let others = of_policies.chain(unread);
        named.chain(drops).chain(malformed).chain(others)
    }

    /// Flows pinned since start for one reason.
    #[must_use]
    pub fn pinned(&self, reason: PinReason) -> u64 {
        self.policies.iter().map(|p| p.pins[reason.number()]).sum()
    }

    /// Flows lost since start for one reason.
    #[must_use]
    pub fn lost(&self, reason: Lost) -> u64 {
        self.policies.iter().map(|p| p.lost[reason as usize]).sum()
    }

    /// Flows of a backend whose end is held or that wait for another one.
    fn stranded(&self, index: u16) -> u64 {
        let backend = &self.backends[usize::from(index)];
        if !backend.health.is_down() && !backend.question.is_open() {
            return 0;
        }
        let owned = (0..backend.slots()).filter_map(|at| match backend.used_at(at) {
            Some(Use::Owner(id)) => Some(self.flows[id].state),
            _ => None,
        });
        owned
            .filter(|s| matches!(s, State::Held | State::Orphan))
            .count() as u64
    }

    /// How often each row of the declared table was taken: state, event, times.
    pub fn transitions(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> + '_ {
        TABLE
            .iter()
            .zip(self.counters.transitions)
            .map(|(row, count)| (row.from.name(), row.event.name(), count))
    }

    /// The value of one counter.
    #[must_use]
    pub fn counter(&self, counter: Counter) -> u64 {
        self.counters.get(counter)
    }

    /// Frames dropped for one reason.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.counters.dropped(reason)
    }

    /// Table sizes: name to (used, limit).
    #[must_use]
    pub fn tables(&self) -> BTreeMap<String, (u64, u64)> {
        let listed = self
            .backends
            .iter()
            .filter(|b| b.listed || b.legs_used > 0)
            .count();
        // Of the backend that has the fewest left for adoptions.
        let ports = self.backends.iter().filter(|b| b.listed).map(|b| {
            let all = b.legs_used as usize + b.ports.free();
            ((all - b.ports.ready()) as u64, all as u64)
        });
        let ports = ports.max().unwrap_or_default();
        let entries = [
            (
                "flows",
                u64::from(self.flows.used()),
                u64::from(self.flows.limit()),
            ),
            (
                "backends",
                listed as u64,
                u64::from(self.settings.limits.backends),
            ),
            (
                "closing_legs",
                u64::from(self.closing.used()),
                u64::from(self.closing.limit()),
            ),
            (
                "open_forgets",
                u64::from(self.forgets.used()),
                u64::from(self.forgets.limit()),
            ),
            (
                "tracked_pairs",
                u64::from(self.tracked),
                u64::from(self.settings.limits.tracked_pairs),
            ),
            ("leg_ports", ports.0, ports.1),
            (
                "kept_segments",
                self.kept.used() as u64,
                self.kept.capacity() as u64,
            ),
            (
                "early_segments",
                u64::from(self.early.used().0),
                u64::from(self.early.used().1),
            ),
            (
                "guarded_flows",
                u64::from(self.guards.used()),
                u64::from(self.guards.limit()),
            ),
            (
                "affinities",
                u64::from(self.affinities.used()),
                u64::from(self.affinities.limit()),
            ),
            (
                "next_hops",
                self.hops.len() as u64,
                crate::routes::LIMIT_HOPS as u64,
            ),
        ];
        entries
            .into_iter()
            .map(|(name, used, limit)| (name.to_owned(), (used, limit)))
            .collect()
    }

    /// The figures of policies and backends; the caller fills in what it knows better.
    #[must_use]
    pub fn state(&self, now: Instant) -> baton_api::State {
        let now = self.engine_time(now);
        let mut counters: BTreeMap<String, u64> = BTreeMap::new();
        for (name, label, value) in self.counters() {
            let key = match label {
                Some((label, is)) => format!("{name}{{{label}=\"{is}\"}}"),
                None => name.to_owned(),
            };
            counters.insert(key, value);
        }
        baton_api::State {
            generation: self.generation,
            policies: self
                .policies
                .iter()
                .enumerate()
                .filter(|(_, p)| p.listed || p.flows > 0)
                .map(|(i, _)| self.policy_state(i, now))
                .collect(),
            counters,
            tables: self.tables(),
            ..baton_api::State::default()
        }
    }

    fn policy_state(&self, index: usize, now: Instant) -> PolicyState {
        let policy = &self.policies[index];
        let members = policy.pools.iter().flat_map(|p| {
            let standings = (0..p.members.len()).map(|at| p.placement.standing(at));
            p.members.iter().zip(standings)
        });
        let backends = members.filter_map(|(m, standing)| {
            let b = &self.backends[usize::from(m.backend)];
            let load = b.load.reading(now.0);
            Some(BackendState {
                name: policy.name_of(m).to_owned(),
                endpoint: Endpoint::new(from_addr(&b.addr), b.port)?,
                weight: m.weight,
                draining: m.is_leaving(),
                adoptable: b.probe.adoptable(now),
                adoptable_reason: b.probe.words(now).to_owned(),
                flows: u64::from(b.flows),
                pinned: u64::from(b.pinned),
                outstanding: u64::from(load.outstanding),
                first_byte: Micros(b.estimate.average_us(now.0)),
                wait: Some(Micros(b.estimate.wait_us(now.0))),
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
                health: m.words(&b.health, now),
                stranded: self.stranded(m.backend),
                rescued_total: b.rescued,
                drain: self.drain_state(index as u16, m, now),
            })
        });
        let frontends = self
            .frontends
            .iter()
            .filter(|f| f.listed && usize::from(f.policy) == index);
        PolicyState {
            name: policy.spec.name.clone(),
            frontends: frontends
                .filter_map(|f| Endpoint::new(from_addr(&f.addr), f.port))
                .collect(),
            algorithm: policy.spec.algorithm,
            protocol: policy.spec.protocol,
            flows: u64::from(policy.flows),
            flows_total: policy.flows_total,
            migrations_total: policy.moves_total,
            rollbacks_total: policy.rollbacks_total,
            rescues_total: policy.rescues,
            replays_total: policy.replays,
            lost_total: by_reason(Lost::ALL.iter().map(|l| l.label()).zip(policy.lost)),
            pins_total: by_reason(PinReason::all().map(PinReason::label).zip(policy.pins)),
            moves_total: moves_by_cause(&policy.ends),
            panic: policy.pools.iter().any(|p| p.panic),
            placement: Some(placement_of(policy, now)),
            backends: backends.collect(),
        }
    }

    /// What a policy calls a backend: another one may have another name for it. Empty if it is none.
    pub(crate) fn backend_name(&self, policy: u16, backend: u16) -> &str {
        let policy = &self.policies[usize::from(policy)];
        let slot = self.backends.get(usize::from(backend));
        match policy.member(backend) {
            Some(member) => policy.name_of(member),
            None => slot.map_or("", |slot| &slot.name),
        }
    }

    /// Up to `max` flows from slot `cursor` on, and where to go on.
    #[must_use]
    pub fn flows(&self, now: Instant, cursor: u32, max: usize) -> (Vec<FlowView>, Option<u32>) {
        let now = self.engine_time(now);
        // A bounded piece of the table, however few flows live in it.
        const SLOTS_PER_CALL: usize = 4_096;
        let mut views = Vec::new();
        let slots = self.flows.slots();
        for (i, flow) in slots
            .iter()
            .enumerate()
            .skip(cursor as usize)
            .take(SLOTS_PER_CALL)
        {
            if views.len() >= max {
                return (views, Some(i as u32));
            }
            if flow.state != State::Gone {
                views.extend(self.flow_view(flow, now));
            }
        }
        let next = cursor as usize + SLOTS_PER_CALL;
        (views, (next < slots.len()).then_some(next as u32))
    }

    fn flow_view(&self, flow: &Flow, now: Instant) -> Option<FlowView> {
        let frontend = self.frontends.get(usize::from(flow.frontend))?;
        let named = |backend: u16| self.backend_name(flow.policy, backend).to_owned();
        Some(FlowView {
            client: SocketAddr::new(from_addr(&flow.client), flow.client_port),
            frontend: Endpoint::new(from_addr(&frontend.addr), frontend.port)?,
            policy: self.policies[usize::from(flow.policy)].spec.name.clone(),
            backend: named(flow.owner.backend),
            port: self.leg_port(flow.owner),
            state: flow.state.name().to_owned(),
            migrations: u32::from(flow.migrations),
            quiet: Micros::from_millis(u64::from(now.ms32().wrapping_sub(flow.last_ms))),
            pinned: flow.pin.map(|p| p.label().to_owned()),
            last_move: self.last_move(flow, now),
            asked_to: flow.has_wish().then(|| named(flow.standby.backend)),
        })
    }

    fn last_move(&self, flow: &Flow, now: Instant) -> Option<baton_api::LastMove> {
        // Of an orphan's time only the end of its owner is known.
        let last = flow.causes.last().filter(|_| flow.state != State::Orphan)?;
        let ago_ms = now.ms32().wrapping_sub(flow.moved_ms);
        Some(baton_api::LastMove {
            cause: match last {
                LastMove::Moved(cause) => Some(cause.label().to_owned()),
                LastMove::TakenBack => None,
            },
            ago: Micros::from_millis(ago_ms.into()),
        })
    }
}
