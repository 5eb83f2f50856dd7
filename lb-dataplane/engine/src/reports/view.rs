//! What the engine shows of itself: flows, counters and table sizes for people and metrics.
//! Policies and backends are `report`'s.
//!
//! Called by the control thread's requests between batches; allocates, never on the packet path.

use crate::{
    Counter, DropReason, Engine,
    backend::Backend,
    clock::Instant,
    flow::Flow,
    handover::Mark,
    ids::from_addr,
    obs::{
        cause::LastMove,
        pins::{Lost, PinReason},
    },
    states::{State, TABLE},
};
use baton_api::{Endpoint, FlowView, Micros, MoveBy};
use std::{collections::BTreeMap, net::SocketAddr};

type Label = Option<(&'static str, &'static str)>;

/// What a look at all slots of backends finds.
#[derive(Clone, Copy, Default)]
pub(crate) struct Slots {
    listed: u64,
    /// Used and all, of the backend that has the fewest left for adoptions.
    ports: (u64, u64),
}

impl Slots {
    pub(crate) fn add(&mut self, backend: &Backend) {
        self.listed += u64::from(backend.listed || backend.ports.used() > 0);
        if backend.listed {
            let all = backend.ports.all();
            let ports = ((all - backend.ports.ready()) as u64, all as u64);
            self.ports = self.ports.max(ports);
        }
    }
}

impl Engine {
    /// Every counter: metric name without prefix, label, value.
    pub fn counters(&self) -> impl Iterator<Item = (&'static str, Label, u64)> + '_ {
        let named = Counter::ALL.iter().map(|c| {
            let (name, label) = c.metric();
            (name, label, self.counters.get(*c))
        });
        let drops = DropReason::ALL
            .iter()
            .map(|r| ("drops_total", Some(("reason", r.label())), self.counters.dropped(*r)));
        let malformed = baton_packet::Malformed::ALL.iter().map(|m| {
            ("malformed_total", Some(("reason", m.label())), self.counters.malformed[*m as usize])
        });
        let lost: Vec<_> = Lost::ALL
            .iter()
            .map(|l| ("lost_total", *l, self.counters.lost[*l as usize]))
            .map(|(name, l, value)| (name, Some(("reason", l.label())), value))
            .collect();
        let mut pins: Vec<(&'static str, Label, u64)> = Vec::new();
        for reason in PinReason::all() {
            let value = self.counters.pins[reason.number()];
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
        self.counters.pins[reason.number()]
    }

    /// Flows lost since start for one reason.
    #[must_use]
    pub fn lost(&self, reason: Lost) -> u64 {
        self.counters.lost[reason as usize]
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
        let mut slots = Slots::default();
        self.backends.iter().for_each(|b| slots.add(b));
        self.tables_with(slots)
    }

    pub(crate) fn tables_with(&self, slots: Slots) -> BTreeMap<String, (u64, u64)> {
        let (listed, ports) = (slots.listed, slots.ports);
        let blocks = self.legs.rests.blocks.used();
        let entries = [
            ("flows", u64::from(self.flows.used()), u64::from(self.flows.limit())),
            ("backends", listed, u64::from(self.settings.limits.backends)),
            (
                "closing_legs",
                u64::from(self.legs.closing.used()),
                u64::from(self.legs.closing.limit()),
            ),
            (
                "translated_legs",
                u64::from(self.legs.shifts.used()),
                u64::from(self.legs.shifts.limit()),
            ),
            (
                "open_forgets",
                u64::from(self.legs.forgets.used()),
                u64::from(self.legs.forgets.limit()),
            ),
            (
                "open_transfers",
                u64::from(self.legs.transfers.used()),
                u64::from(self.legs.transfers.limit()),
            ),
            (
                "tracked_pairs",
                u64::from(self.legs.tracked.0),
                u64::from(self.settings.limits.tracked_pairs),
            ),
            ("leg_ports", ports.0, ports.1),
            ("port_blocks", blocks.0, blocks.1),
            (
                "kept_segments",
                u64::from(self.copies.kept.used().all),
                u64::from(self.copies.kept.capacity().all),
            ),
            (
                "kept_long_segments",
                u64::from(self.copies.kept.used().long),
                u64::from(self.copies.kept.capacity().long),
            ),
            (
                "early_segments",
                u64::from(self.copies.early.used().0),
                u64::from(self.copies.early.used().1),
            ),
            ("guarded_flows", u64::from(self.guards.used()), u64::from(self.guards.limit())),
            (
                "resp_sessions",
                u64::from(self.guards.sessions().0),
                u64::from(self.guards.sessions().1),
            ),
            ("affinities", u64::from(self.affinities.used()), u64::from(self.affinities.limit())),
            ("next_hops", self.net.hops.len() as u64, crate::net::routes::LIMIT_HOPS as u64),
        ];
        entries.into_iter().map(|(name, used, limit)| (name.to_owned(), (used, limit))).collect()
    }

    /// What a policy calls a backend: another one may have another name for it. Empty if it is
    /// none.
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
        let now = self.link.time(now);
        // A bounded piece of the table, however few flows live in it.
        const SLOTS_PER_CALL: usize = 4_096;
        let mut views = Vec::new();
        let slots = self.flows.slots();
        for (i, flow) in slots.iter().enumerate().skip(cursor as usize).take(SLOTS_PER_CALL) {
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
            client: SocketAddr::new(from_addr(flow.client), flow.client_port),
            frontend: Endpoint::new(from_addr(frontend.addr), frontend.port)?,
            policy: self.policies[usize::from(flow.policy)].spec.name.clone(),
            backend: named(flow.owner.backend),
            port: self.leg_port(flow.owner),
            state: flow.state.name().to_owned(),
            migrations: u32::from(flow.moves()),
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
        let by = match flow.progress {
            progress if progress.is(Mark::HandedOn) => MoveBy::Transfer,
            progress if progress.is(Mark::Shared) => MoveBy::SharedLeg,
            progress if progress.is(Mark::Translated) => MoveBy::Translation,
            _ => MoveBy::Adoption,
        };
        Some(baton_api::LastMove {
            cause: match last {
                LastMove::Moved(cause) => Some(cause.label().to_owned()),
                LastMove::TakenBack => None,
            },
            ago: Micros::from_millis(ago_ms.into()),
            by: (last != LastMove::TakenBack).then_some(by),
        })
    }
}
