//! Moves that somebody asks for: one flow, to a named backend or to the best other one.
//!
//! Owns what is in the way of it, and the wish that waits at the flow until its next
//! request. Moving is `adopt`'s, and every limit of the policy holds; only whether another backend
//! is *better* is not asked.
//!
//! # Decisions
//!
//! - **A pending migration waits at the flow itself**: the fields of the standby leg, which it does
//!   not have then, and four bits. It takes the same rows of the table as any other move, within
//!   the policy's limits; granted once, never tried again.
//! - **The flow is looked for in pieces**: without a frontend it may be of any of some 33,000, and
//!   a look at each takes 0.1 us. No snapshot comes into force meanwhile.

use crate::{
    Cause, Engine, Output, PinReason,
    balance::policy::Policy,
    clock::Instant,
    flow::Flow,
    ids::{FlowId, Leg, from_addr, to_addr},
    obs::events::What,
    pods::sweep::Swept,
    states::State,
    tables::guard_of,
};
use baton_api::{Adoptability, BackendHealth, MigrateReply, MigrationMode, Protocol};
use std::net::SocketAddr;

/// Which flow is to move, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Migrate {
    /// The client's end.
    pub client: SocketAddr,
    /// The address and port that it connected to; needed only where the client has several flows
    /// from one port.
    pub frontend: Option<SocketAddr>,
    /// Name of the backend; none: the best other one.
    pub to: Option<String>,
}

/// Frontends that one piece looks at: some 50 us.
const PIECE: usize = 512;

/// An order that is carried out.
pub struct MigrateOrder {
    wanted: Migrate,
    /// The next slot of a frontend.
    at: usize,
    /// Slots to which the client has a flow, at most [`NAMES_MAX`].
    found: Vec<u16>,
}

impl MigrateOrder {
    /// Have this flow move.
    #[must_use]
    pub fn new(wanted: Migrate) -> Self {
        Self { wanted, at: 0, found: Vec::new() }
    }
}

/// Why a flow is not moved. Nothing has changed then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MigrateError {
    /// There is no such flow.
    #[error("no flow of {0} is here: it has ended, or goes another way")]
    NoFlow(SocketAddr),
    /// The client's address and port have several flows.
    #[error("{client} has flows to {frontends}: say which is meant by its frontend")]
    SeveralFlows {
        /// The client.
        client: SocketAddr,
        /// Their frontends.
        frontends: String,
    },
    /// The policy has no backend of the name.
    #[error("policy `{policy}` has no backend `{name}`: expected one of {known}")]
    UnknownBackend {
        /// The policy.
        policy: String,
        /// As asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// It is there.
    #[error("the flow is on `{0}` already")]
    There(String),
    /// It never moves.
    #[error("the flow is pinned: {}", .0.label())]
    Pinned(PinReason),
    /// It is opening or closing, or its owner ended.
    #[error("the flow is in state {0}: only an open flow whose backend lives is moved")]
    State(&'static str),
    /// An adoption is open.
    #[error("the flow is being moved at this moment")]
    Moving,
    /// Nothing can be signed.
    #[error("the dataplane has no adoption key, so nothing moves")]
    NoKey,
    /// No begin of a request is known.
    #[error("the policy says `protocol: None`, so no begin of a request is known to move at")]
    NoBoundaries,
    /// The policy moves nothing.
    #[error("the policy says `migration.mode: Never`")]
    Never,
    /// The policy has affinity.
    #[error("the policy's affinity keeps all flows of this client together")]
    Affinity,
    /// Its moves are used up.
    #[error("the flow has made the {0} moves that `migration.perFlow` of its policy allows")]
    MovedEnough(u32),
    /// The backend that is asked for cannot take it.
    #[error("`{name}` cannot take it: {why}")]
    NotReady {
        /// Its name.
        name: String,
        /// Why.
        why: NotReady,
    },
    /// No other backend can take it.
    #[error(
        "no other backend of policy `{0}` can take it now: none is up, takes connections over and does not drain"
    )]
    Nobody(String),
}

/// Why a backend cannot take a flow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReady {
    /// Its flows leave it.
    #[error("it drains")]
    Drains,
    /// It takes no new ones.
    #[error("its weight is 0")]
    Weightless,
    /// It cannot take any over.
    #[error("it cannot adopt: {0}")]
    CannotAdopt(Adoptability),
    /// It does not work.
    #[error("it is {0}")]
    Down(BackendHealth),
}

/// Names that an error tells.
const NAMES_MAX: usize = 20;

impl Engine {
    /// Carries an order out at once, however long that takes.
    ///
    /// # Errors
    /// What is in the way.
    pub fn migrate(
        &mut self,
        now: Instant,
        wanted: &Migrate,
        out: &mut impl Output,
    ) -> Result<MigrateReply, MigrateError> {
        let mut order = MigrateOrder::new(wanted.clone());
        loop {
            if let Some(result) = self.migrate_piece(now, &mut order, out) {
                return result;
            }
        }
    }

    /// Goes on with an order; once the flow is found, what became of it or what is in the way.
    pub fn migrate_piece(
        &mut self,
        now: Instant,
        order: &mut MigrateOrder,
        out: &mut impl Output,
    ) -> Option<Result<MigrateReply, MigrateError>> {
        let wanted = &order.wanted;
        let (client, port) = (to_addr(wanted.client.ip()), wanted.client.port());
        let slots = self.frontends.iter().enumerate();
        for (slot, frontend) in slots.skip(order.at).take(PIECE) {
            let meant = wanted
                .frontend
                .is_none_or(|f| to_addr(f.ip()) == frontend.addr && f.port() == frontend.port);
            if meant
                && order.found.len() < NAMES_MAX
                && self.flows.find(client, port, slot as u16).is_some()
            {
                order.found.push(slot as u16);
            }
        }
        order.at += PIECE;
        if order.at < self.frontends.len() && order.found.len() < NAMES_MAX {
            return None;
        }
        let id = self.flow_of(order);
        Some(id.and_then(|id| self.migrate_flow(now, id, order.wanted.to.as_deref(), out)))
    }

    /// Has one flow move: at once if it is at rest or both applications cooperate (`transfer`),
    /// otherwise with its next request. A further wish takes the place of the one before.
    fn migrate_flow(
        &mut self,
        now: Instant,
        id: FlowId,
        to: Option<&str>,
        out: &mut impl Output,
    ) -> Result<MigrateReply, MigrateError> {
        let now = self.link.time(now);
        self.events.now = now;
        let target = self.may_migrate(now, id, to)?;
        let flow = &self.flows[id];
        let reply = |engine: &Self, to: Option<u16>, begun| MigrateReply {
            policy: engine.policies[usize::from(engine.flows[id].policy)].spec.name.clone(),
            from: engine.backend_name(engine.flows[id].policy, owner_before(engine, id)).to_owned(),
            to: to.map(|b| engine.backend_name(engine.flows[id].policy, b).to_owned()),
            begun,
        };
        if self.rests_surely(flow, id)
            && !self.legs.closing.is_full()
            && let Some(leg) = self.idle_leg(now, id, target, out)
        {
            self.wish(id, Some(leg.backend));
            self.begin_idle_move(now, id, leg, Cause::Manual, out);
            return Ok(reply(self, Some(leg.backend), true));
        }
        let begun = self.ask_transfer(now, id, target, Cause::Manual, out) == Swept::Done;
        self.wish(id, target);
        Ok(reply(self, target, begun))
    }

    /// The flow that is meant. Some that were found may have ended since.
    fn flow_of(&self, order: &MigrateOrder) -> Result<FlowId, MigrateError> {
        let client = order.wanted.client;
        let of = |slot: &u16| self.flows.find(to_addr(client.ip()), client.port(), *slot);
        let found: Vec<FlowId> = order.found.iter().filter_map(of).collect();
        match found[..] {
            [] => Err(MigrateError::NoFlow(client)),
            [id] => Ok(id),
            _ => {
                let ends = found.iter().map(|id| {
                    let slot = &self.frontends[usize::from(self.flows[*id].frontend)];
                    SocketAddr::new(from_addr(slot.addr), slot.port).to_string()
                });
                Err(MigrateError::SeveralFlows { client, frontends: some_of(ends.collect()) })
            }
        }
    }

    /// Whether nothing lasting is in the way, and which backend is asked for.
    fn may_migrate(
        &self,
        now: Instant,
        id: FlowId,
        to: Option<&str>,
    ) -> Result<Option<u16>, MigrateError> {
        let flow = &self.flows[id];
        let (owner, v6) = (flow.owner.backend, flow.is_v6());
        let policy = &self.policies[usize::from(flow.policy)];
        if let Some(pin) = flow.pin {
            return Err(MigrateError::Pinned(pin));
        }
        match flow.state {
            state if state.is_open() => {}
            State::Adopting | State::AdoptingIdle => return Err(MigrateError::Moving),
            state => return Err(MigrateError::State(state.name())),
        }
        if !self.hands_over(flow.policy) {
            return Err(MigrateError::NoKey);
        }
        if policy.spec.protocol == Protocol::None {
            return Err(MigrateError::NoBoundaries);
        }
        if policy.spec.migration.mode == MigrationMode::Never {
            return Err(MigrateError::Never);
        }
        if policy.spec.affinity.is_some() {
            return Err(MigrateError::Affinity);
        }
        if policy.moved_enough(flow.moves()) {
            return Err(MigrateError::MovedEnough(policy.spec.migration.per_flow));
        }
        let Some(name) = to else {
            return if policy.someone_takes_over(v6, Some(owner), &self.backends, now) {
                Ok(None)
            } else {
                Err(MigrateError::Nobody(policy.spec.name.clone()))
            };
        };
        let members = &policy.pools[policy.pool_of(v6)].members;
        let named = members.iter().find(|m| policy.name_of(m) == name);
        let Some(member) = named else {
            let known = members.iter();
            let known = known.map(|m| policy.name_of(m).to_owned());
            return Err(MigrateError::UnknownBackend {
                policy: policy.spec.name.clone(),
                name: name.to_owned(),
                known: some_of(known.collect()),
            });
        };
        if member.backend == owner {
            return Err(MigrateError::There(name.to_owned()));
        }
        if policy.takes_over(v6, member.backend, &self.backends, now) {
            return Ok(Some(member.backend));
        }
        let backend = &self.backends[usize::from(member.backend)];
        let health = member.health(&backend.liveness, now);
        let why = if member.is_leaving() {
            NotReady::Drains
        } else if member.weight == 0 {
            NotReady::Weightless
        } else if health.is_up() {
            NotReady::CannotAdopt(self.adoptability(now, backend))
        } else {
            NotReady::Down(health)
        };
        Err(MigrateError::NotReady { name: name.to_owned(), why })
    }

    /// Whether the flow is at rest and known to be: where no guard follows it, only a request says
    /// so.
    fn rests_surely(&self, flow: &Flow, id: FlowId) -> bool {
        let protocol = self.policies[usize::from(flow.policy)].spec.protocol;
        flow.state.is_quiet()
            && flow.all_acked()
            && self.at_rest(id)
            && guard_of(protocol).is_some()
    }

    /// A leg for a flow at rest: to the backend that is asked for, or to the best.
    fn idle_leg(
        &mut self,
        now: Instant,
        id: FlowId,
        target: Option<u16>,
        out: &mut impl Output,
    ) -> Option<Leg> {
        let owner = self.flows[id].owner.backend;
        match target {
            None => self.rescue_leg(now, id, Some(owner), out),
            Some(to) => {
                let room = self.backends[usize::from(to)].budget.has_room(now);
                (room && out.frame().is_some()).then(|| self.idle_leg_to(now, id, to)).flatten()
            }
        }
    }

    /// Notes that the flow is to move.
    fn wish(&mut self, id: FlowId, target: Option<u16>) {
        let flow = &mut self.flows[id];
        flow.causes.begin(Cause::Manual);
        flow.standby = Leg { backend: target.unwrap_or(Leg::NONE.backend), ..Leg::NONE };
        (self.rounds.pending_moves, self.rounds.new_pending_moves) = (true, true);
        self.tell(id, What::MoveAsked);
    }

    /// The backend that a flow goes to with this request because somebody asked for it, if it can
    /// have it now.
    #[inline]
    pub(crate) fn asked_target(&mut self, now: Instant, id: FlowId) -> Option<u16> {
        if self.flows[id].has_wish() {
            return self.grant(now, id);
        }
        None
    }

    #[cold]
    fn grant(&mut self, now: Instant, id: FlowId) -> Option<u16> {
        let flow = &self.flows[id];
        let (owner, v6) = (flow.owner.backend, flow.is_v6());
        let policy: &Policy = &self.policies[usize::from(flow.policy)];
        let to = flow.standby.backend;
        let any = to == Leg::NONE.backend;
        let members = &policy.pools[policy.pool_of(v6)].members;
        let member = any || members.iter().any(|m| m.backend == to);
        let forbidden =
            policy.spec.migration.mode == MigrationMode::Never || policy.spec.affinity.is_some();
        if forbidden || !member || to == owner {
            // The policy has changed since.
            self.drop_pending_move(id);
            return None;
        }
        if any {
            return policy.choose_heir(v6, owner, &self.backends, now, &mut self.rng);
        }
        policy.takes_over(v6, to, &self.backends, now).then_some(to)
    }

    /// The flow's wish, if it has one, is not granted any more.
    pub(crate) fn drop_pending_move(&mut self, id: FlowId) {
        if self.flows[id].has_wish() {
            self.tell(id, What::MoveDropped);
            let flow = &mut self.flows[id];
            flow.causes.drop_open();
            flow.standby = Leg::NONE;
        }
    }
}

/// Whose the flow was when it was asked for.
fn owner_before(engine: &Engine, id: FlowId) -> u16 {
    let flow = &engine.flows[id];
    if flow.state.is_moving() { flow.standby.backend } else { flow.owner.backend }
}

/// Names, but not too many.
fn some_of(mut names: Vec<String>) -> String {
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    names.truncate(NAMES_MAX);
    if all > NAMES_MAX {
        names.push(format!("{} more", all - NAMES_MAX));
    }
    names.join(", ")
}

impl Flow {
    /// Somebody asked to have it moved, and that has not begun.
    #[inline]
    pub(crate) fn has_wish(&self) -> bool {
        self.causes.open() == Some(Cause::Manual) && !self.state.is_moving()
    }
}
