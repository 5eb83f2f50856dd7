//! Policies in force: which backends, how they are chosen, when a flow moves.
//!
//! Owns choice and rate limits. It never touches flows or packets. Work per choice is constant, but for
//! `WeightedRoundRobin` on a new flow (at most 256 steps) and `Always` (the same).

use crate::{
    backend::Backend,
    engine::Instant,
    maglev::Maglev,
    pins::{Lost, PinReason},
    wrr::Wrr,
};
use baton_api::{Algorithm, MigrationMode};

/// Expected waits below this are all alike: wake-ups on a busy machine take as long.
const ALIKE_US: u64 = 512;

/// A backend as a policy sees it.
#[derive(Clone, Copy)]
pub(crate) struct Member {
    pub(crate) backend: u16,
    pub(crate) weight: u16,
    pub(crate) draining: bool,
    /// The policy's active check says no.
    pub(crate) unhealthy: bool,
}

/// What holds a flow where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ties {
    /// It moved a short while ago.
    Resting,
    /// Nothing but a good owner.
    Rested,
    /// Nothing: its owner drains or is gone.
    Leaving,
}

/// The members of one address family.
pub(crate) struct Pool {
    pub(crate) members: Vec<Member>,
    maglev: Option<Maglev>,
    wrr: Wrr,
    rotor: usize,
    /// Too few are usable to leave the others out.
    pub(crate) panic: bool,
}

/// One policy.
pub(crate) struct Policy {
    pub(crate) spec: baton_api::Policy,
    /// In the snapshot in force. A policy that left it keeps its slot until its last flow is gone.
    pub(crate) listed: bool,
    /// IPv4 and IPv6.
    pub(crate) pools: [Pool; 2],
    tokens: u32,
    tokens_second: u64,
    pub(crate) flows: u32,
    pub(crate) flows_total: u64,
    pub(crate) moves_total: u64,
    pub(crate) rollbacks_total: u64,
    pub(crate) rescues: u64,
    pub(crate) replays: u64,
    pub(crate) lost: [u64; Lost::ALL.len()],
    pub(crate) pins: [u64; PinReason::COUNT],
}

impl Default for Pool {
    fn default() -> Self {
        Self {
            members: Vec::new(),
            maglev: None,
            wrr: Wrr::new(&[]),
            rotor: 0,
            panic: false,
        }
    }
}

impl Pool {
    pub(crate) fn new(members: Vec<Member>, identities: &[u64], algorithm: Algorithm) -> Self {
        let weight = |m: &Member| if m.draining { 0 } else { m.weight };
        let maglev = (algorithm == Algorithm::Maglev && !members.is_empty()).then(|| {
            let table: Vec<_> = identities
                .iter()
                .zip(&members)
                .map(|(id, m)| (*id, weight(m)))
                .collect();
            Maglev::build(&table)
        });
        let weights: Vec<u16> = members.iter().map(weight).collect();
        Self {
            members,
            maglev,
            wrr: Wrr::new(&weights),
            rotor: 0,
            panic: false,
        }
    }

    /// Whether the member takes flows. In panic, health does not matter.
    #[inline]
    fn usable(&self, at: usize, backends: &[Backend], now: Instant) -> bool {
        let member = self.members[at];
        let backend = &backends[usize::from(member.backend)];
        member.weight > 0
            && !member.draining
            && !backend.drained
            && (self.panic || self.works(at, backends, now))
    }

    /// Whether the member takes flows and can adopt.
    #[inline]
    fn adopts(&self, at: usize, backends: &[Backend], now: Instant) -> bool {
        let backend = &backends[usize::from(self.members[at].backend)];
        self.usable(at, backends, now) && backend.probe.adoptable(now)
    }

    /// Whether traffic and checks find nothing wrong with the member.
    #[inline]
    fn works(&self, at: usize, backends: &[Backend], now: Instant) -> bool {
        let member = self.members[at];
        !member.unhealthy && backends[usize::from(member.backend)].health.is_usable(now)
    }

    /// Whether a smaller share than `percent` works.
    pub(crate) fn judge(&mut self, percent: u8, backends: &[Backend], now: Instant) {
        let all = self.members.len();
        let works = (0..all).filter(|at| self.works(*at, backends, now)).count();
        self.panic = works * 100 < all * usize::from(percent);
    }

    /// How much a member has to do, heavier ones appearing idler: the expected wait by powers of two, then flows.
    /// Waits that are alike differ by chance; if they decided, new flows would all go to the luckiest pod.
    fn cost(&self, at: usize, backends: &[Backend], now: Instant) -> (u32, u64, u64) {
        let member = self.members[at];
        let backend = &backends[usize::from(member.backend)];
        let weight = (u64::from(member.weight.max(1)) * backend.health.share(now)).div_ceil(256);
        let wait_us = backend.estimate.wait_us(now.0).saturating_mul(256) / weight;
        let flows = u64::from(backend.flows) * 256 / weight;
        (wait_us.max(ALIKE_US * 256).ilog2(), flows, wait_us)
    }

    /// The better of two random members that `good` admits (power of two choices); falls back to a scan
    /// when the draws hit none.
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
    pub(crate) fn new(spec: baton_api::Policy, pools: [Pool; 2]) -> Self {
        Self {
            spec,
            listed: true,
            pools,
            tokens: 0,
            tokens_second: 0,
            flows: 0,
            flows_total: 0,
            moves_total: 0,
            rollbacks_total: 0,
            rescues: 0,
            replays: 0,
            lost: [0; Lost::ALL.len()],
            pins: [0; PinReason::COUNT],
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
            p.usable(at, backends, now) && Some(p.members[at].backend) != except
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
                let chosen = wrr.next(|at| {
                    let share = backends[usize::from(pool.members[at].backend)]
                        .health
                        .share(now);
                    admits(pool, at) && draw < share
                });
                pool.wrr = wrr;
                chosen.or_else(|| pool.two_choices(backends, now, rng, |at| admits(pool, at)))
            }
        };
        // Better a pod that looks bad, or drains, than none; but weight 0 means none, whatever happens.
        let any = |draining: bool| {
            pool.members.iter().position(|m| {
                let drains = m.draining || backends[usize::from(m.backend)].drained;
                m.weight > 0 && Some(m.backend) != except && (draining || !drains)
            })
        };
        let chosen = chosen.or_else(|| any(false)).or_else(|| any(true));
        chosen.map(|at| pool.members[at].backend)
    }

    /// Where a flow of `owner` should go at this boundary, if anywhere. `ties` says what holds it there.
    pub(crate) fn choose_move(
        &mut self,
        v6: bool,
        owner: u16,
        ties: Ties,
        backends: &[Backend],
        now: Instant,
        rng: &mut fastrand::Rng,
    ) -> Option<u16> {
        let pool = &mut self.pools[usize::from(v6)];
        let migration = self.spec.migration;
        let good =
            |p: &Pool, at: usize| p.members[at].backend != owner && p.adopts(at, backends, now);
        match migration.mode {
            MigrationMode::Never if ties != Ties::Leaving => None,
            MigrationMode::Always => {
                let count = pool.members.len();
                let at = (1..=count)
                    .map(|i| (pool.rotor + i) % count)
                    .find(|at| good(pool, *at))?;
                pool.rotor = at;
                Some(pool.members[at].backend)
            }
            MigrationMode::Never | MigrationMode::WhenBetter => {
                let current = &backends[usize::from(owner)];
                let here = current.estimate.wait_us(now.0);
                let leaving = ties == Ties::Leaving;
                if !leaving && (ties == Ties::Resting || here < migration.gain.0) {
                    return None;
                }
                let at = pool.two_choices(backends, now, rng, |at| good(pool, at))?;
                let target = pool.members[at].backend;
                let there = backends[usize::from(target)].estimate.wait_us(now.0);
                let better = here.saturating_sub(there) >= migration.gain.0
                    && here.saturating_mul(100)
                        >= there.saturating_mul(u64::from(migration.ratio_percent));
                (leaving || better).then_some(target)
            }
        }
    }

    /// Any adoptable backend but `except`, the better of two.
    pub(crate) fn choose_adoptable(
        &self,
        v6: bool,
        except: u16,
        backends: &[Backend],
        now: Instant,
        rng: &mut fastrand::Rng,
    ) -> Option<u16> {
        let pool = &self.pools[usize::from(v6)];
        let at = pool.two_choices(backends, now, rng, |at| {
            pool.members[at].backend != except && pool.adopts(at, backends, now)
        })?;
        Some(pool.members[at].backend)
    }

    /// Any adoptable backend that may be given one more flow this millisecond, the better of two.
    pub(crate) fn choose_rescue(
        &self,
        v6: bool,
        except: Option<u16>,
        backends: &[Backend],
        now: Instant,
        rng: &mut fastrand::Rng,
    ) -> Option<u16> {
        let pool = &self.pools[usize::from(v6)];
        let at = pool.two_choices(backends, now, rng, |at| {
            let index = pool.members[at].backend;
            Some(index) != except
                && pool.adopts(at, backends, now)
                && backends[usize::from(index)].budget.has_room(now)
        })?;
        Some(pool.members[at].backend)
    }

    /// Whether any backend but `except` adopts, however many flows it was given already.
    pub(crate) fn someone_adopts(
        &self,
        v6: bool,
        except: Option<u16>,
        backends: &[Backend],
        now: Instant,
    ) -> bool {
        let pool = &self.pools[usize::from(v6)];
        (0..pool.members.len())
            .any(|at| Some(pool.members[at].backend) != except && pool.adopts(at, backends, now))
    }

    /// Whether any of its backends could ever adopt: where nobody can, a close need not be held back.
    pub(crate) fn ever_adoptable(&self, v6: bool, backends: &[Backend]) -> bool {
        let members = &self.pools[usize::from(v6)].members;
        members
            .iter()
            .any(|m| backends[usize::from(m.backend)].probe.ever_ready())
    }

    /// Takes one move from this second's budget.
    pub(crate) fn may_move(&mut self, now: Instant) -> bool {
        let per_second = self.spec.migration.per_second;
        if per_second == 0 {
            return true;
        }
        let second = now.0 / 1_000_000;
        if second != self.tokens_second {
            self.tokens_second = second;
            self.tokens = per_second;
        }
        let may = self.tokens > 0;
        self.tokens = self.tokens.saturating_sub(1);
        may
    }

    /// The flow counts of its predecessor under the same name go on.
    pub(crate) fn inherit(&mut self, old: &Policy) {
        self.flows = old.flows;
        self.flows_total = old.flows_total;
        self.moves_total = old.moves_total;
        self.rollbacks_total = old.rollbacks_total;
        (self.rescues, self.replays) = (old.rescues, old.replays);
        (self.lost, self.pins) = (old.lost, old.pins);
        let known = || old.pools.iter().flat_map(|p| &p.members);
        for member in self.pools.iter_mut().flat_map(|p| &mut p.members) {
            member.unhealthy = known().any(|m| m.backend == member.backend && m.unhealthy);
        }
    }
}
