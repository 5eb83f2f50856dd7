//! Policies in force: which backends, how they are chosen, when a flow moves.
//!
//! Owns choice and rate limits. It never touches flows or packets. Work per choice is constant, but
//! for `WeightedRoundRobin` and `Random` on a new flow (at most 512 steps), `Always`, and finding a
//! backend that another one said (at most 256).
//!
//! # Decisions
//!
//! - **Alike waits are decided by flows**: estimates differ by chance, and if they decided, all new
//!   flows would go to the luckiest pod (64 connections at once: 0, 13, 19 and 32). The wait counts
//!   by powers of two from 512 us on.

use crate::{
    backend::Backend,
    cause::{Cause, MoveEnds},
    clock::Instant,
    counters::Counter,
    figures::OfPolicy,
    ledger::Gains,
    maglev::{Maglev, mix},
    member::{Evidence, Member},
    mutants::Committed,
    pace::{Pace, Share},
    pins::{Lost, PinReason},
    placement::{Asking, Placement, Seat, Why, rules},
    tables::Learned,
    timing::ALIKE_US,
    wrr::Wrr,
};
use baton_api::{Algorithm, BackendFailure, LoadSignal, MigrationMode, MoveMethod};
use std::sync::Arc;

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

/// The members of one address family.
pub(crate) struct Pool {
    pub(crate) members: Vec<Member>,
    /// What its flows say against each of these.
    pub(crate) evidence: Vec<Evidence>,
    maglev: Option<Arc<Maglev>>,
    wrr: Wrr,
    rotor: usize,
    /// Too few are usable to leave the others out.
    pub(crate) panic: bool,
    pub(crate) placement: Placement,
    /// What the members' loads are judged by.
    by: LoadSignal,
    /// How they may take flows over.
    method: MoveMethod,
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
    pub(crate) spec: baton_api::Policy,
    /// Where that is from: one that stays as it is is known by it.
    pub(crate) origin: Arc<baton_api::Policy>,
    /// In the snapshot in force. A policy that left it keeps its slot until its last flow is gone.
    pub(crate) listed: bool,
    /// IPv4 and IPv6.
    pub(crate) pools: [Pool; 2],
    /// Moves.
    pace: Pace,
    /// Of what is limited per second.
    share: Share,
    pub(crate) figures: OfPolicy,
    pub(crate) gains: Gains,
    pub(crate) flows: u32,
    pub(crate) flows_total: u64,
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
    /// It left, and neither a flow nor a drain of one refers to the slot: another policy may have
    /// it.
    pub(crate) is_free: bool,
    /// It waits for a judgement of its pools.
    pub(crate) judge_due: bool,
}

impl Default for Pool {
    fn default() -> Self {
        Self::new(Vec::new(), None)
    }
}

impl Pool {
    /// Of these members; `maglev` is their table, if the policy wants one.
    pub(crate) fn new(members: Vec<Member>, maglev: Option<Arc<Maglev>>) -> Self {
        let weights: Vec<u16> = members.iter().map(Member::share).collect();
        Self {
            placement: Placement::new(members.len()),
            evidence: vec![Evidence::default(); members.len()],
            members,
            maglev,
            wrr: Wrr::new(&weights),
            rotor: 0,
            panic: false,
            by: LoadSignal::Latency,
            method: MoveMethod::default(),
        }
    }

    /// Its table, if it is made of these rows.
    pub(crate) fn table_of(&self, rows: &[(u64, u16)]) -> Option<Arc<Maglev>> {
        let own = self.members.iter().map(|m| (m.identity, m.share()));
        let table = self.maglev.as_ref()?;
        own.eq(rows.iter().copied()).then(|| Arc::clone(table))
    }

    /// What is known of members that the policy had before goes on; others join if it `has_flows`.
    fn inherit(&mut self, old: &Pool, has_flows: bool) {
        let joins = has_flows && !old.members.is_empty();
        let count = old.members.len();
        // Most are in the order in which they were: each is looked for behind the one before it.
        let mut from = 0;
        for (at, member) in self.members.iter_mut().enumerate() {
            let places = (from..count).chain(0..from);
            let place = places
                .into_iter()
                .find(|p| old.members[*p].identity == member.identity);
            if let Some(place) = place {
                member.inherit(&old.members[place]);
                self.evidence[at] = old.evidence[place];
                from = place + 1;
            }
            let before = place.map(|place| old.placement.standing(place));
            self.placement.begin(at, before, joins);
        }
    }

    /// Whether the member takes flows. In panic, health does not matter.
    #[inline]
    fn usable(&self, at: usize, backends: &[Backend], now: Instant) -> bool {
        let member = self.members[at];
        let backend = &backends[usize::from(member.backend)];
        member.weight > 0
            && !member.is_leaving()
            && !backend.liveness.elsewhere
            && (self.panic || self.works(at, backends, now))
    }

    /// Whether the member takes flows, and can take over those of others.
    #[inline]
    fn takes_over(&self, at: usize, backends: &[Backend], now: Instant) -> bool {
        let backend = &backends[usize::from(self.members[at].backend)];
        self.usable(at, backends, now) && backend.adopter.takes_over(now, self.method)
    }

    /// Whether traffic and checks find nothing wrong with the member.
    #[inline]
    fn works(&self, at: usize, backends: &[Backend], now: Instant) -> bool {
        let member = self.members[at];
        member.works(&backends[usize::from(member.backend)].liveness, now)
    }

    /// The part of a member's weight that counts at present, of 256.
    #[inline]
    fn slow_share(&self, at: usize, backends: &[Backend], now: Instant) -> u64 {
        let member = &self.members[at];
        member.slow_share(&backends[usize::from(member.backend)].liveness, now)
    }

    /// Whether the policy's flows found that it fails.
    pub(crate) fn is_ejected(&self, backend: u16, backends: &[Backend], now: Instant) -> bool {
        let pod = &backends[usize::from(backend)].liveness;
        let member = self.place_of(backend).map(|at| &self.members[at]);
        pod.may_be_ejected(now) && member.is_some_and(|m| m.is_ejected(pod, now))
    }

    /// Ejects a member; until when.
    pub(crate) fn eject(&mut self, at: usize, now: Instant, first_ms: u64) -> u64 {
        self.evidence[at].eject(&mut self.members[at], now, first_ms)
    }

    /// A member as `placement` sees it.
    fn seat(&self, at: usize, backends: &[Backend], now: Instant) -> Seat {
        let member = self.members[at];
        let backend = &backends[usize::from(member.backend)];
        let usable = self.usable(at, backends, now);
        Seat {
            load: backend.reading(now, self.by),
            flows: backend.flows,
            weight: u64::from(member.weight) * self.slow_share(at, backends, now),
            usable,
            takes_over: usable && backend.adopter.takes_over(now, self.method),
        }
    }

    /// Whether a smaller share than `percent` works.
    pub(crate) fn judge(&mut self, percent: u8, backends: &[Backend], now: Instant) {
        let all = self.members.len();
        let works = (0..all).filter(|at| self.works(*at, backends, now)).count();
        self.panic = works * 100 < all * usize::from(percent);
    }

    /// How much a member has to do, heavier ones appearing idler: the expected wait by powers of
    /// two, then flows. Waits that are alike differ by chance; if they decided, new flows would all
    /// go to the luckiest pod.
    fn cost(&self, at: usize, backends: &[Backend], now: Instant) -> (u32, u64, u64) {
        let member = self.members[at];
        let backend = &backends[usize::from(member.backend)];
        let share = self.slow_share(at, backends, now);
        let weight = (u64::from(member.weight.max(1)) * share).div_ceil(256);
        let wait_us = backend.wait_us(now, self.by).saturating_mul(256) / weight;
        let flows = u64::from(backend.flows) * 256 / weight;
        (wait_us.max(ALIKE_US * 256).ilog2(), flows, wait_us)
    }

    /// The place of a backend.
    pub(crate) fn place_of(&self, backend: u16) -> Option<usize> {
        self.members.iter().position(|m| m.backend == backend)
    }

    /// The member of those that `good` admits that a client's number says (rendezvous hashing, by
    /// weight): where one is not admitted any more, only its own clients go elsewhere.
    fn of_client(&self, number: u64, good: impl Fn(usize) -> bool) -> Option<usize> {
        let draw = |member: &Member| {
            // Exponential with the weight as its rate: the least of all is its with a chance in
            // proportion to the weight.
            let even = (mix(number ^ mix(member.identity)) >> 11) as f64 + 0.5;
            -(even / (1u64 << 53) as f64).ln() / f64::from(member.weight)
        };
        let members = self.members.iter().enumerate();
        members
            .filter(|(at, member)| member.weight > 0 && good(*at))
            .map(|(at, member)| (draw(member), at))
            .min_by(|a, b| a.0.total_cmp(&b.0))
            .map(|(_, at)| at)
    }

    /// A random member that `good` admits, by its weight at this time.
    fn by_chance(
        &self,
        backends: &[Backend],
        now: Instant,
        rng: &mut fastrand::Rng,
        good: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let weights = || {
            let good = (0..self.members.len()).filter(|at| good(*at));
            good.map(|at| {
                let share = self.slow_share(at, backends, now);
                (at, u64::from(self.members[at].weight) * share)
            })
        };
        let sum: u64 = weights().map(|(_, weight)| weight).sum();
        let mut left = (sum > 0).then(|| rng.u64(..sum))?;
        for (at, weight) in weights() {
            if left < weight {
                return Some(at);
            }
            left -= weight;
        }
        None
    }

    /// The better of two random members that `good` admits (power of two choices); falls back to a
    /// scan when the draws hit none.
    fn two_choices(
        &self,
        backends: &[Backend],
        now: Instant,
        rng: &mut fastrand::Rng,
        good: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let count = self.members.len();
        if count == 0 {
            return None;
        }
        let start = rng.usize(..count);
        let first = (start..count).chain(0..start).find(|at| good(*at))?;
        let start = rng.usize(..count);
        let second = (start..count)
            .chain(0..start)
            .find(|at| *at != first && good(*at));
        Some(match second {
            Some(second) if self.cost(second, backends, now) < self.cost(first, backends, now) => {
                second
            }
            _ => first,
        })
    }
}

impl Policy {
    pub(crate) fn new(spec: &Arc<baton_api::Policy>, mut pools: [Pool; 2], share: Share) -> Self {
        for pool in &mut pools {
            (pool.by, pool.method) = (spec.load, spec.migration.method);
        }
        Self {
            share,
            spec: (**spec).clone(),
            origin: Arc::clone(spec),
            listed: true,
            pools,
            pace: Pace::default(),
            figures: OfPolicy::default(),
            gains: Gains::default(),
            flows: 0,
            flows_total: 0,
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
            is_free: false,
            judge_due: false,
        }
    }

    /// The backend for a new flow; `except` was tried already.
    pub(crate) fn choose(
        &mut self,
        v6: bool,
        client_hash: u64,
        backends: &[Backend],
        now: Instant,
        rng: &mut fastrand::Rng,
        except: Option<u16>,
    ) -> Option<u16> {
        let pool = &mut self.pools[usize::from(v6)];
        let admits = |p: &Pool, at: usize| {
            let index = p.members[at].backend;
            p.usable(at, backends, now)
                && Some(index) != except
                && p.placement.admits(at, backends[usize::from(index)].flows)
        };
        let chosen = match self.spec.algorithm {
            Algorithm::LeastOutstanding => {
                pool.two_choices(backends, now, rng, |at| admits(pool, at))
            }
            Algorithm::Maglev => pool
                .maglev
                .as_ref()
                .and_then(|m| m.pick(client_hash))
                .filter(|at| admits(pool, *at))
                .or_else(|| pool.two_choices(backends, now, rng, |at| admits(pool, at))),
            Algorithm::WeightedRoundRobin => {
                let mut wrr = std::mem::take(&mut pool.wrr);
                let draw = rng.u64(..256);
                let chosen =
                    wrr.next(|at| admits(pool, at) && draw < pool.slow_share(at, backends, now));
                pool.wrr = wrr;
                chosen.or_else(|| pool.two_choices(backends, now, rng, |at| admits(pool, at)))
            }
            Algorithm::Random => pool.by_chance(backends, now, rng, |at| admits(pool, at)),
        };
        // Better a pod that looks bad, or drains, than none; but weight 0 means none, whatever
        // happens.
        let any = |draining: bool| {
            pool.members.iter().position(|m| {
                m.weight > 0 && Some(m.backend) != except && (draining || !m.is_leaving())
            })
        };
        let chosen = chosen.or_else(|| any(false)).or_else(|| any(true));
        chosen.map(|at| pool.members[at].backend)
    }

    /// The backend that takes a new flow of the client with this number; `except` was tried
    /// already. Which members have just joined, are slow or have much to do is not asked:
    /// dataplanes do not see that alike.
    pub(crate) fn takes_client(
        &self,
        v6: bool,
        number: u64,
        backends: &[Backend],
        now: Instant,
        except: Option<u16>,
    ) -> Option<u16> {
        let pool = &self.pools[usize::from(v6)];
        let at = pool.of_client(number, |at| {
            Some(pool.members[at].backend) != except && pool.usable(at, backends, now)
        })?;
        Some(pool.members[at].backend)
    }

    /// The backend that takes over a flow of the client with this number, however many flows it was
    /// given already.
    pub(crate) fn takes_client_over(
        &self,
        v6: bool,
        number: u64,
        backends: &[Backend],
        now: Instant,
        except: Option<u16>,
    ) -> Option<u16> {
        let pool = &self.pools[usize::from(v6)];
        let at = pool.of_client(number, |at| {
            Some(pool.members[at].backend) != except && pool.takes_over(at, backends, now)
        })?;
        Some(pool.members[at].backend)
    }

    /// Whether all backends are of the other family: flows are not translated between the two.
    pub(crate) fn lacks_family(&self, v6: bool) -> bool {
        let of = |v6: bool| &self.pools[usize::from(v6)].members;
        of(v6).is_empty() && !of(!v6).is_empty()
    }

    /// Where a flow of `owner` should go at this boundary, if anywhere, and why. `ties` says what
    /// holds it there; its last request was sent `gap_us` ago.
    #[inline]
    #[expect(
        clippy::too_many_arguments,
        reason = "one decision, all that it goes by"
    )]
    pub(crate) fn choose_move(
        &mut self,
        v6: bool,
        owner: u16,
        ties: MoveConstraint,
        gap_us: u64,
        backends: &[Backend],
        now: Instant,
        committed: Committed,
        rng: &mut fastrand::Rng,
    ) -> Option<Target> {
        let pool = &mut self.pools[usize::from(v6)];
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
            let at = (1..=count)
                .map(|i| (pool.rotor + i) % count)
                .find(|at| good(pool, *at))?;
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
                let seat = |at| pool.seat(at, backends, now);
                rules::choose(mode, pool.place_of(owner)?, pool.members.len(), seat, rng)
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
        backends: &[Backend],
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
        backends: &[Backend],
        now: Instant,
        rng: &mut fastrand::Rng,
    ) -> Option<u16> {
        let method = self.spec.migration.method;
        self.choose_usable(v6, backends, now, rng, |index| {
            let backend = &backends[usize::from(index)];
            Some(index) != except
                && backend.adopter.takes_over(now, method)
                && backend.budget.has_room(now)
        })
    }

    /// Any backend that takes flows and of which this is so, the better of two.
    pub(crate) fn choose_usable(
        &self,
        v6: bool,
        backends: &[Backend],
        now: Instant,
        rng: &mut fastrand::Rng,
        so: impl Fn(u16) -> bool,
    ) -> Option<u16> {
        let pool = &self.pools[usize::from(v6)];
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
        backends: &[Backend],
        now: Instant,
    ) -> bool {
        let pool = &self.pools[usize::from(v6)];
        (0..pool.members.len()).any(|at| {
            Some(pool.members[at].backend) != except && pool.takes_over(at, backends, now)
        })
    }

    /// Whether any of its backends could ever take a flow over: where nobody can, a close need not
    /// be held back.
    pub(crate) fn ever_takes_over(&self, v6: bool, backends: &[Backend]) -> bool {
        let members = &self.pools[usize::from(v6)].members;
        let adopts = |m: &Member| backends[usize::from(m.backend)].adopter.ever_ready;
        self.translates() || members.iter().any(adopts)
    }

    /// Whether a backend takes new flows.
    pub(crate) fn takes(&self, v6: bool, backend: u16, backends: &[Backend], now: Instant) -> bool {
        let pool = &self.pools[usize::from(v6)];
        let at = pool.place_of(backend);
        at.is_some_and(|at| pool.usable(at, backends, now))
    }

    /// Whether a backend takes flows over, however many it was given already.
    pub(crate) fn takes_over(
        &self,
        v6: bool,
        backend: u16,
        backends: &[Backend],
        now: Instant,
    ) -> bool {
        let pool = &self.pools[usize::from(v6)];
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
        let baton_api::Migration {
            per_second,
            per_backend_per_second,
            ..
        } = self.spec.migration;
        let second = (now.0 / 1_000_000) as u32;
        if !self.pace.has_room(per_second, second, self.share) {
            return Err(Counter::StayedRate);
        }
        if per_backend_per_second != 0 {
            let pool = &mut self.pools[usize::from(v6)];
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

    /// Whether one more may be ejected: the share of ejected members stays within the cap.
    pub(crate) fn may_eject(&self, backends: &[Backend], now: Instant) -> bool {
        let members = || self.pools.iter().flat_map(|p| &p.members);
        let pod = |m: &Member| &backends[usize::from(m.backend)].liveness;
        let ejected = members().filter(|m| m.is_ejected(pod(m), now)).count();
        let percent = usize::from(self.spec.health.max_ejected_percent);
        (ejected + 1) * 100 <= members().count() * percent
    }

    /// Whether too few members are usable to leave the others out.
    pub(crate) fn judge(&mut self, backends: &[Backend], now: Instant) {
        let percent = self.spec.health.panic_percent;
        for pool in &mut self.pools {
            pool.judge(percent, backends, now);
        }
    }

    /// What the policy calls one of its members.
    pub(crate) fn name_of(&self, member: &Member) -> &str {
        &self.spec.backends[usize::from(member.at)].name
    }

    /// The member that a backend is, if it is one.
    pub(crate) fn member(&self, backend: u16) -> Option<&Member> {
        let members = || self.pools.iter().flat_map(|p| &p.members);
        members().find(|m| m.backend == backend)
    }
}
