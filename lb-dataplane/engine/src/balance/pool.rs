//! The members of one address family of a policy: which of them takes a flow.
//!
//! Owns what is known of each member, and the ways to choose one of them. Whether and why a flow
//! moves is `policy`'s. Work per choice is constant, but for `WeightedRoundRobin`, `Random` and
//! weights that differ (at most 1,024 steps), and finding a backend that another one said (at most
//! 256).
//!
//! # Decisions
//!
//! - **Alike waits are decided by flows**: estimates differ by chance, and if they decided, all new
//!   flows would go to the luckiest pod (64 connections at once: 0, 13, 19 and 32). The wait counts
//!   by powers of two from 512 us on.
//! - **A member is drawn, not looked for**: the next one behind those that take nothing had their
//!   chances too, and in a rollout the old pods stand side by side (of 8 members with 4 of them
//!   leaving, the next one was drawn five times as often as the others).

use crate::{
    backend::Backends,
    balance::{
        maglev::{Maglev, mix},
        member::{Evidence, Member},
        placement::{Placement, Seat},
        wrr::Wrr,
    },
    clock::Instant,
    timing::ALIKE_US,
};
use baton_api::{Algorithm, LoadSignal, MoveMethod};
use std::sync::Arc;

/// Before all members are looked at.
const DRAWS: usize = 4;

/// The members of one address family.
pub(crate) struct Pool {
    pub(crate) members: Vec<Member>,
    /// What its flows say against each of these.
    pub(crate) evidence: Vec<Evidence>,
    maglev: Option<Arc<Maglev>>,
    wrr: Wrr,
    pub(crate) rotor: usize,
    /// All that have a weight have the same.
    alike: bool,
    /// Too few are usable to leave the others out.
    pub(crate) panic: bool,
    pub(crate) placement: Placement,
    /// What the members' loads are judged by.
    by: LoadSignal,
    /// How they may take flows over.
    method: MoveMethod,
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
        let mut known = members.iter().map(|m| m.weight).filter(|w| *w > 0);
        let first = known.next();
        Self {
            alike: known.all(|weight| Some(weight) == first),
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

    /// What the members' loads are judged by, and how they may take flows over.
    pub(crate) fn set_rules(&mut self, by: LoadSignal, method: MoveMethod) {
        (self.by, self.method) = (by, method);
    }

    /// Its table, if it is made of these rows.
    pub(crate) fn table_of(&self, rows: &[(u64, u16)]) -> Option<Arc<Maglev>> {
        let own = self.members.iter().map(|m| (m.identity, m.share()));
        let table = self.maglev.as_ref()?;
        own.eq(rows.iter().copied()).then(|| Arc::clone(table))
    }

    /// What is known of members that the policy had before goes on; others join if it `has_flows`.
    pub(crate) fn inherit(&mut self, old: &Pool, has_flows: bool) {
        let joins = has_flows && !old.members.is_empty();
        let count = old.members.len();
        // Most are in the order in which they were: each is looked for behind the one before it.
        let mut from = 0;
        for (at, member) in self.members.iter_mut().enumerate() {
            let places = (from..count).chain(0..from);
            let place = places.into_iter().find(|p| old.members[*p].identity == member.identity);
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
    pub(crate) fn usable(&self, at: usize, backends: &Backends, now: Instant) -> bool {
        let member = self.members[at];
        let backend = &backends[usize::from(member.backend)];
        member.is_wanted()
            && !backend.liveness.elsewhere
            && (self.panic || self.works(at, backends, now))
    }

    /// Whether the member takes flows, and can take over those of others.
    #[inline]
    pub(crate) fn takes_over(&self, at: usize, backends: &Backends, now: Instant) -> bool {
        let backend = &backends[usize::from(self.members[at].backend)];
        self.usable(at, backends, now) && backend.adopter.takes_over(now, self.method)
    }

    /// Whether traffic and checks find nothing wrong with the member.
    #[inline]
    fn works(&self, at: usize, backends: &Backends, now: Instant) -> bool {
        let member = self.members[at];
        member.works(&backends[usize::from(member.backend)].liveness, now)
    }

    /// The part of a member's weight that counts at present, of 256.
    #[inline]
    fn slow_share(&self, at: usize, backends: &Backends, now: Instant) -> u64 {
        let member = &self.members[at];
        member.slow_share(&backends[usize::from(member.backend)].liveness, now)
    }

    /// Whether the policy's flows found that it fails.
    pub(crate) fn is_ejected(&self, backend: u16, backends: &Backends, now: Instant) -> bool {
        let pod = &backends[usize::from(backend)].liveness;
        let member = self.place_of(backend).map(|at| &self.members[at]);
        pod.may_be_ejected(now) && member.is_some_and(|m| m.is_ejected(pod, now))
    }

    /// Ejects a member; until when.
    pub(crate) fn eject(&mut self, at: usize, now: Instant, first_ms: u64) -> u64 {
        self.evidence[at].eject(&mut self.members[at], now, first_ms)
    }

    /// A member as `placement` sees it.
    pub(crate) fn seat(&self, at: usize, backends: &Backends, now: Instant) -> Seat {
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

    /// All requests of a member that takes flows over, with one more, by its weight at this time.
    pub(crate) fn in_flight(&self, at: usize, backends: &Backends, now: Instant) -> Option<f64> {
        let member = self.members[at];
        let backend = &backends[usize::from(member.backend)];
        let counts = self.takes_over(at, backends, now);
        counts.then(|| {
            let weight = u64::from(member.weight) * self.slow_share(at, backends, now);
            (f64::from(backend.in_flight(now, self.by)) + 1.0) / weight as f64
        })
    }

    /// Whether a smaller share than `percent` of those that are to take flows works.
    pub(crate) fn judge(&mut self, percent: u8, backends: &Backends, now: Instant) {
        let wanted = || (0..self.members.len()).filter(|at| self.members[*at].is_wanted());
        let works = wanted().filter(|at| self.works(*at, backends, now)).count();
        self.panic = works * 100 < wanted().count() * usize::from(percent);
    }

    /// How much a member has to do, heavier ones appearing idler: the expected wait by powers of
    /// two, then flows. Waits that are alike differ by chance; if they decided, new flows would all
    /// go to the luckiest pod.
    fn cost(&self, at: usize, backends: &Backends, now: Instant) -> (u32, u64, u64) {
        let member = self.members[at];
        let backend = &backends[usize::from(member.backend)];
        let share = self.slow_share(at, backends, now);
        let flows = u64::from(backend.flows) * 65_536 / (u64::from(member.weight.max(1)) * share);
        // They are drawn by their weights: each of these waits is as good as the other's.
        let wait_us = backend.wait_us(now, self.by);
        (wait_us.max(ALIKE_US).ilog2(), flows, wait_us)
    }

    /// The place of a backend.
    pub(crate) fn place_of(&self, backend: u16) -> Option<usize> {
        self.members.iter().position(|m| m.backend == backend)
    }

    /// The backend for a new flow; `except` was tried already.
    pub(crate) fn choose(
        &mut self,
        algorithm: Algorithm,
        client_hash: u64,
        backends: &Backends,
        now: Instant,
        rng: &mut fastrand::Rng,
        except: Option<u16>,
    ) -> Option<u16> {
        let pool = self;
        let admits = |p: &Pool, at: usize| {
            let index = p.members[at].backend;
            p.usable(at, backends, now)
                && Some(index) != except
                && p.placement.admits(at, backends[usize::from(index)].flows)
        };
        let chosen = match algorithm {
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
        let chosen = chosen.or_else(|| {
            let pick = |good: &dyn Fn(usize) -> bool| pool.two_choices(backends, now, rng, good);
            pool.last_resort(backends, now, except, pick)
        });
        chosen.map(|at| pool.members[at].backend)
    }

    /// Who takes a flow where nobody is to take one: better a member that has its share already
    /// than one that drains, that than one that looks bad, and any than none; but weight 0 means
    /// none, whatever happens. `pick` is asked for one of those that are as good.
    pub(crate) fn last_resort(
        &self,
        backends: &Backends,
        now: Instant,
        except: Option<u16>,
        mut pick: impl FnMut(&dyn Fn(usize) -> bool) -> Option<usize>,
    ) -> Option<usize> {
        let takes = |at: usize, drains: bool, fails: bool| {
            let member = &self.members[at];
            member.weight > 0
                && Some(member.backend) != except
                && (drains || !member.is_leaving())
                && (fails || self.works(at, backends, now))
        };
        let steps = [(false, false), (true, false), (false, true), (true, true)];
        let mut steps = steps.into_iter();
        steps.find_map(|(drains, fails)| pick(&|at| takes(at, drains, fails)))
    }

    /// The member of those that `good` admits that a client's number says (rendezvous hashing, by
    /// weight): where one is not admitted any more, only its own clients go elsewhere.
    pub(crate) fn of_client(&self, number: u64, good: impl Fn(usize) -> bool) -> Option<usize> {
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
        backends: &Backends,
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

    /// The better of two random members that `good` admits (power of two choices). Where weights
    /// differ, members are drawn by these, and both may be the same: otherwise a member has two of
    /// `count` flows at most, whatever its weight.
    pub(crate) fn two_choices(
        &self,
        backends: &Backends,
        now: Instant,
        rng: &mut fastrand::Rng,
        good: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let count = self.members.len();
        if count == 0 {
            return None;
        }
        let better = |first, second| {
            let cost = |at| self.cost(at, backends, now);
            if cost(second) < cost(first) { second } else { first }
        };
        if !self.alike {
            let mut draw = || self.by_chance(backends, now, rng, &good);
            return Some(better(draw()?, draw()?));
        }
        let first = self.draw(backends, now, rng, None, &good)?;
        let second = self.draw(backends, now, rng, Some(first), &good);
        Some(second.map_or(first, |second| better(first, second)))
    }

    /// A random member that `good` admits, in slow start by its part: whichever comes up first in
    /// a few draws, else by the sum of all. Where all have the same weight.
    fn draw(
        &self,
        backends: &Backends,
        now: Instant,
        rng: &mut fastrand::Rng,
        except: Option<usize>,
        good: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let others = self.members.len() - usize::from(except.is_some());
        for _ in 0..if others == 0 { 0 } else { DRAWS } {
            let at = rng.usize(..others);
            let at = at + usize::from(except.is_some_and(|except| at >= except));
            if good(at) {
                let share = self.slow_share(at, backends, now);
                if share == 256 || rng.u64(..256) < share {
                    return Some(at);
                }
            }
        }
        self.by_chance(backends, now, rng, |at| Some(at) != except && good(at))
    }
}
