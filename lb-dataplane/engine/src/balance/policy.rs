//! Policies in force: which backends, how they are chosen, when a flow moves.
//!
//! Owns why and when a flow moves, and rate limits. It never touches flows or packets; which member
//! of those that may is `pool`'s. Work per choice is constant, but for what `pool` says and for
//! `Always`.

use crate::{
    backend::Backends,
    balance::{
        allowed::Allowed,
        member::Member,
        placement::{Asking, Why, rules},
        pool::Pool,
    },
    clock::Instant,
    containers::pace::{Pace, Share},
    mutants::Committed,
    obs::{
        cause::{Cause, MoveEnds},
        counters::Counter,
        figures::OfPolicy,
        ledger::Gains,
        pins::{Lost, PinReason},
    },
    tables::Learned,
};
use baton_api::{BackendFailure, MigrationMode};
use std::{net::IpAddr, sync::Arc};

/// What holds a flow where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MoveConstraint {
    /// It moved a short while ago.
    Cooldown,
    /// Nothing but a good owner.
    None,
    /// The other flows of its client.
    Affinity,
    /// The same, but its owner is ejected.
    OwnerEjected,
    /// Nothing: its owner drains, or left the snapshot.
    OwnerLeaves,
    /// Nothing: its owner is known to be dead.
    OwnerDown,
}

impl MoveConstraint {
    /// Why the flow goes wherever it can, better or not; none: something holds it, or it may stay.
    fn cause(self) -> Option<Cause> {
        match self {
            MoveConstraint::OwnerDown => Some(Cause::Down),
            MoveConstraint::OwnerLeaves => Some(Cause::Drain),
            MoveConstraint::OwnerEjected => Some(Cause::Ejected),
            MoveConstraint::Cooldown | MoveConstraint::None | MoveConstraint::Affinity => None,
        }
    }
}

/// Where a flow goes at a boundary, and why.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) backend: u16,
    pub(crate) cause: Cause,
    /// What the request was expected to wait at its owner, and there; nothing where that is not the
    /// reason.
    pub(crate) waits_us: Option<(f64, f64)>,
}

/// One policy.
pub(crate) struct Policy {
    /// Without its backends.
    pub(crate) spec: baton_api::Policy,
    /// Where that is from, with them: one that stays as it is is known by it.
    pub(crate) origin: Arc<baton_api::Policy>,
    /// In the snapshot in force. A policy that left it keeps its slot until its last flow is gone.
    pub(crate) listed: bool,
    /// IPv4 and IPv6.
    pub(crate) pools: [Pool; 2],
    /// Whose flows are opened; without it everybody's.
    allowed: Option<Allowed>,
    /// Moves.
    pace: Pace,
    /// Of what is limited per second.
    share: Share,
    pub(crate) figures: OfPolicy,
    pub(crate) gains: Gains,
    pub(crate) flows: u32,
    pub(crate) flows_total: u64,
    /// Pairs towards its members that are not in use and that trackers may remember, when its pools
    /// were last judged.
    pub(crate) remembered: u32,
    pub(crate) moves_total: u64,
    pub(crate) rollbacks_total: u64,
    pub(crate) rescues: u64,
    pub(crate) replays: u64,
    pub(crate) lost: [u64; Lost::ALL.len()],
    pub(crate) pins: [u64; PinReason::COUNT],
    /// How large its requests of unannounced length are.
    pub(crate) learned: Learned,
    /// Moves that ended.
    pub(crate) ends: MoveEnds,
    /// The last event of flows before the slot was its.
    pub(crate) since_event: u64,
    /// The number of the snapshot that named it last.
    pub(crate) applied: u64,
    /// The number of the snapshot with which its protocol became another one: older flows are
    /// pinned.
    pub(crate) protocol_since: u64,
    /// It left, and neither a flow nor a drain of one refers to the slot: another policy may have
    /// it.
    pub(crate) is_free: bool,
    /// It waits for a judgement of its pools.
    pub(crate) judge_due: bool,
}

impl Policy {
    pub(crate) fn new(spec: &Arc<baton_api::Policy>, mut pools: [Pool; 2], share: Share) -> Self {
        for pool in &mut pools {
            pool.set_rules(spec.load, spec.migration.method);
        }
        let mut own = (**spec).clone();
        own.backends = Vec::new();
        Self {
            share,
            spec: own,
            origin: Arc::clone(spec),
            listed: true,
            allowed: Allowed::new(spec.allow_from.as_deref()),
            pools,
            pace: Pace::default(),
            figures: OfPolicy::default(),
            gains: Gains::default(),
            flows: 0,
            flows_total: 0,
            remembered: 0,
            moves_total: 0,
            rollbacks_total: 0,
            rescues: 0,
            replays: 0,
            lost: [0; Lost::ALL.len()],
            pins: [0; PinReason::COUNT],
            learned: Learned::default(),
            ends: MoveEnds::default(),
            since_event: 0,
            applied: 0,
            protocol_since: 0,
            is_free: false,
            judge_due: false,
        }
    }

    /// Whether a client may open a flow. One that may not is counted.
    #[inline]
    pub(crate) fn lets_in(&mut self, client: IpAddr) -> bool {
        let lets = self.allowed.as_ref().is_none_or(|all| all.has(client));
        self.figures.not_allowed += u64::from(!lets);
        lets
    }

    /// The backend for a new flow; `except` was tried already.
    pub(crate) fn choose(
        &mut self,
        v6: bool,
        client_hash: u64,
        backends: &Backends,
        now: Instant,
        rng: &mut fastrand::Rng,
        except: Option<u16>,
    ) -> Option<u16> {
        let pool = &mut self.pools[self.pool_of(v6)];
        pool.choose(self.spec.algorithm, client_hash, backends, now, rng, except)
    }

    /// The backend that takes a new flow of the client with this number; `except` was tried
    /// already. Which members have just joined, are slow or have much to do is not asked:
    /// dataplanes do not see that alike.
    pub(crate) fn takes_client(
        &self,
        v6: bool,
        number: u64,
        backends: &Backends,
        now: Instant,
        except: Option<u16>,
    ) -> Option<u16> {
        let pool = &self.pools[self.pool_of(v6)];
        let of_client = |good: &dyn Fn(usize) -> bool| pool.of_client(number, good);
        let usable =
            |at: usize| Some(pool.members[at].backend) != except && pool.usable(at, backends, now);
        let at =
            of_client(&usable).or_else(|| pool.last_resort(backends, now, except, of_client))?;
        Some(pool.members[at].backend)
    }

    /// The backend that takes over a flow of the client with this number, however many flows it was
    /// given already.
    pub(crate) fn takes_client_over(
        &self,
        v6: bool,
        number: u64,
        backends: &Backends,
        now: Instant,
        except: Option<u16>,
    ) -> Option<u16> {
        let pool = &self.pools[self.pool_of(v6)];
        let at = pool.of_client(number, |at| {
            Some(pool.members[at].backend) != except && pool.takes_over(at, backends, now)
        })?;
        Some(pool.members[at].backend)
    }

    /// Which of the pools takes clients of a family: that of the same one, as long as it has
    /// members; between the families each segment is written anew (`across`).
    #[inline]
    pub(crate) fn pool_of(&self, v6: bool) -> usize {
        let own = usize::from(v6);
        if self.pools[own].members.is_empty() { 1 - own } else { own }
    }

    /// Where a flow of `owner` should go at this boundary, if anywhere, and why. `ties` says what
    /// holds it there; its last request was sent `gap_us` ago.
    #[inline]
    #[expect(clippy::too_many_arguments, reason = "one decision, all that it goes by")]
    pub(crate) fn choose_move(
        &mut self,
        v6: bool,
        owner: u16,
        ties: MoveConstraint,
        gap_us: u64,
        backends: &Backends,
        now: Instant,
        committed: Committed,
        rng: &mut fastrand::Rng,
    ) -> Option<Target> {
        let pool = &mut self.pools[self.pool_of(v6)];
        let mode = self.spec.migration.mode;
        let good =
            |p: &Pool, at: usize| p.members[at].backend != owner && p.takes_over(at, backends, now);
        let at_place = |p: &Pool, at: usize, cause| Target {
            backend: p.members[at].backend,
            cause,
            waits_us: None,
        };
        if ties == MoveConstraint::Affinity {
            return None;
        }
        if mode == MigrationMode::Always {
            let cause = ties.cause().unwrap_or(Cause::EveryRequest);
            let count = pool.members.len();
            let at = (1..=count).map(|i| (pool.rotor + i) % count).find(|at| good(pool, *at))?;
            pool.rotor = at;
            return Some(at_place(pool, at, cause));
        }
        if let Some(cause) = ties.cause() {
            let goes = match mode {
                MigrationMode::Never => {
                    ties == MoveConstraint::OwnerDown
                        && self.spec.on_backend_failure != BackendFailure::Reset
                }
                MigrationMode::DrainOnly => ties != MoveConstraint::OwnerEjected,
                _ => true,
            };
            let at = goes.then(|| pool.two_choices(backends, now, rng, |at| good(pool, at)))??;
            return Some(at_place(pool, at, cause));
        }
        let choice = match mode {
            MigrationMode::WhenBetter => {
                let asking = Asking {
                    now_us: now.0,
                    owner: pool.place_of(owner)?,
                    gap_us,
                    rested: ties == MoveConstraint::None,
                    gain_us: self.spec.migration.gain.0 as f64,
                    ratio: f64::from(self.spec.migration.ratio_percent) / 100.0,
                    committed,
                };
                let mut placement = std::mem::take(&mut pool.placement);
                let cost_us = |at: usize| {
                    let backend = pool.members[at].backend;
                    backends[usize::from(backend)].move_cost.us()
                };
                let seat = |at| pool.seat(at, backends, now);
                let choice = placement.decide(asking, seat, cost_us, rng);
                pool.placement = placement;
                choice
            }
            MigrationMode::LeastRequests | MigrationMode::Prequal => {
                let in_flight = |at| pool.in_flight(at, backends, now);
                let seat = |at| pool.seat(at, backends, now);
                let (owner, count) = (pool.place_of(owner)?, pool.members.len());
                rules::choose(mode, owner, count, in_flight, seat, rng)
            }
            _ => None,
        }?;
        Some(Target {
            backend: pool.members[choice.to].backend,
            cause: match choice.why {
                Why::Distress => Cause::Distress,
                Why::Share => Cause::Share,
                Why::Uneven => Cause::Uneven,
                Why::Better => Cause::Better,
            },
            waits_us: Some((choice.here_us, choice.there_us)),
        })
    }

    /// Any backend but `except` that takes flows over, the better of two.
    pub(crate) fn choose_heir(
        &self,
        v6: bool,
        except: u16,
        backends: &Backends,
        now: Instant,
        rng: &mut fastrand::Rng,
    ) -> Option<u16> {
        let method = self.spec.migration.method;
        self.choose_usable(v6, backends, now, rng, |index| {
            let adopter = &backends[usize::from(index)].adopter;
            index != except && adopter.takes_over(now, method)
        })
    }

    /// Any backend that takes flows over and may be given one more this millisecond, the better of
    /// two.
    pub(crate) fn choose_rescue(
        &self,
        v6: bool,
        except: Option<u16>,
        shares: bool,
        backends: &Backends,
        now: Instant,
        rng: &mut fastrand::Rng,
    ) -> Option<u16> {
        let method = self.spec.migration.method;
        self.choose_usable(v6, backends, now, rng, |index| {
            let backend = &backends[usize::from(index)];
            Some(index) != except
                && backend.adopter.takes_over(now, method)
                && (backend.budget.has_room(now) || (shares && backend.parked.count > 0))
        })
    }

    /// Any backend that takes flows and of which this is so, the better of two.
    pub(crate) fn choose_usable(
        &self,
        v6: bool,
        backends: &Backends,
        now: Instant,
        rng: &mut fastrand::Rng,
        so: impl Fn(u16) -> bool,
    ) -> Option<u16> {
        let pool = &self.pools[self.pool_of(v6)];
        let at = pool.two_choices(backends, now, rng, |at| {
            so(pool.members[at].backend) && pool.usable(at, backends, now)
        })?;
        Some(pool.members[at].backend)
    }

    /// Whether any backend but `except` takes flows over, however many it was given already.
    pub(crate) fn someone_takes_over(
        &self,
        v6: bool,
        except: Option<u16>,
        backends: &Backends,
        now: Instant,
    ) -> bool {
        let pool = &self.pools[self.pool_of(v6)];
        (0..pool.members.len()).any(|at| {
            Some(pool.members[at].backend) != except && pool.takes_over(at, backends, now)
        })
    }

    /// Whether any of its backends could ever take a flow over: where nobody can, a close need not
    /// be held back.
    pub(crate) fn ever_takes_over(&self, v6: bool, backends: &Backends) -> bool {
        let members = &self.pools[self.pool_of(v6)].members;
        let adopts = |m: &Member| backends[usize::from(m.backend)].adopter.ever_ready;
        self.translates() || members.iter().any(adopts)
    }

    /// Whether a backend takes new flows.
    pub(crate) fn takes(&self, v6: bool, backend: u16, backends: &Backends, now: Instant) -> bool {
        let pool = &self.pools[self.pool_of(v6)];
        let at = pool.place_of(backend);
        at.is_some_and(|at| pool.usable(at, backends, now))
    }

    /// Whether a backend takes flows over, however many it was given already.
    pub(crate) fn takes_over(
        &self,
        v6: bool,
        backend: u16,
        backends: &Backends,
        now: Instant,
    ) -> bool {
        let pool = &self.pools[self.pool_of(v6)];
        let at = pool.place_of(backend);
        at.is_some_and(|at| pool.takes_over(at, backends, now))
    }

    /// Whether a flow that moved so often stays where it is from now on.
    pub(crate) fn moved_enough(&self, migrations: u16) -> bool {
        let limit = self.spec.migration.per_flow;
        limit != 0 && u32::from(migrations) >= limit
    }

    /// Counts a move onto `target` for this second, or says which limit is against it.
    pub(crate) fn may_move(&mut self, v6: bool, target: u16, now: Instant) -> Result<(), Counter> {
        let baton_api::Migration { per_second, per_backend_per_second, .. } = self.spec.migration;
        let second = (now.0 / 1_000_000) as u32;
        if !self.pace.has_room(per_second, second, self.share) {
            return Err(Counter::StayedRate);
        }
        if per_backend_per_second != 0 {
            let pool = &mut self.pools[self.pool_of(v6)];
            let at = pool.place_of(target);
            let member = at.and_then(|at| pool.members.get_mut(at));
            if let Some(member) = member {
                let limit = per_backend_per_second;
                if !member.pace.has_room(limit, second, self.share) {
                    return Err(Counter::StayedBackend);
                }
                member.pace.spend(second);
            }
        }
        self.pace.spend(second);
        Ok(())
    }

    /// The counts of its predecessor under the same name go on.
    pub(crate) fn inherit(&mut self, old: &Policy) {
        for (pool, old_pool) in self.pools.iter_mut().zip(&old.pools) {
            pool.inherit(old_pool, old.flows > 0);
        }
        (self.pace, self.flows) = (old.pace, old.flows);
        self.figures = old.figures.clone();
        self.gains = old.gains;
        self.flows_total = old.flows_total;
        self.moves_total = old.moves_total;
        self.rollbacks_total = old.rollbacks_total;
        (self.rescues, self.replays) = (old.rescues, old.replays);
        (self.lost, self.pins) = (old.lost, old.pins);
        (self.ends, self.since_event) = (old.ends, old.since_event);
        self.learned = old.learned;
        self.judge_due = old.judge_due;
    }

    /// Whether one more may be ejected: of those that are to take flows, the share of ejected ones
    /// stays within the cap.
    pub(crate) fn may_eject(&self, backends: &Backends, now: Instant) -> bool {
        let members = || self.pools.iter().flat_map(|p| &p.members);
        let members = || members().filter(|m| m.is_wanted());
        let pod = |m: &Member| &backends[usize::from(m.backend)].liveness;
        let ejected = members().filter(|m| m.is_ejected(pod(m), now)).count();
        let percent = usize::from(self.spec.health.max_ejected_percent);
        (ejected + 1) * 100 <= members().count() * percent
    }

    /// Whether too few members are usable to leave the others out.
    pub(crate) fn judge(&mut self, backends: &Backends, now: Instant) {
        let percent = self.spec.health.panic_percent;
        for pool in &mut self.pools {
            pool.judge(percent, backends, now);
        }
    }

    /// What the policy calls one of its members.
    pub(crate) fn name_of(&self, member: &Member) -> &str {
        &self.origin.backends[usize::from(member.at)].name
    }

    /// The member that a backend is, if it is one.
    pub(crate) fn member(&self, backend: u16) -> Option<&Member> {
        let members = || self.pools.iter().flat_map(|p| &p.members);
        members().find(|m| m.backend == backend)
    }
}
