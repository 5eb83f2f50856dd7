//! When a flow leaves its backend because of how that one does: the judgement of a pool, and the
//! decision at a boundary.
//!
//! Owns the rule `WhenBetter`. A move costs (accept, close, cold caches), so nothing moves because
//! another backend is luckier for a moment. A flow moves
//!
//! - away from a backend that is **distressed** against its pool, or that answers nothing at this
//!   moment;
//! - to one that **joins** or is on trial, until that has its share;
//! - to a shorter queue while the pool's backends are **unevenly** busy, as where few flows send
//!   most requests;
//! - from one where the mean wait is surely and lastingly longer, within a **budget** of all
//!   requests.
//!
//! Pure: members are read through `seat`, time and chance are arguments. Constant work per
//! boundary, but for a judgement at most every 2 ms, which looks at each member (256 at most). It
//! never touches flows.
//!
//! # Decisions
//!
//! - **Nothing moves for nothing** (`engine/src/balance/placement.rs`, `standing.rs`, `load.rs`,
//!   `ledger.rs`). The rule before compared peak averages at each request: noise was taken for
//!   imbalance, and 9 to 15 % of the requests of four identical pods moved, which took 8 to 38 % of
//!   their throughput. Now a backend is left because it is distressed against its pool (lower
//!   median of mean waits by Little's law over 20 ms, so that a stall counts while it lasts and one
//!   slow answer for what it is), with back-off and trial; calm has a budget of 2 moves in 1,000
//!   requests, each of which has to gain four times its measured cost for what the flow will send,
//!   four standard errors taken off; and only where backends are *unevenly busy* (utilisation over
//!   half a second, 1.4 times and 0.2 above the median) does each request go to the shorter queue.
//!   The last is what Zipf's connections need: no placement of whole connections reaches what
//!   queues reach, and utilisation is what tells their case from noise (waits do not: they differ
//!   in calm, too). Chosen in the worlds of `engine/src/balance/placement/worlds.rs` (noise,
//!   quotas, slow pods, joining pods, Zipf), which are tests, then with `make bench-placement`.
//!   Rejected: peak averages (a stall that is over is remembered for seconds); least outstanding
//!   requests in calm (10 % of requests moved on shared CPUs and nothing gained); leaving a slow
//!   pod by its 20 ms alone (every long request of a heavy tail is a stall); moving as the ratio of
//!   waits says without statistics (chases its own lag: half a second).

pub(crate) mod rules;

use crate::{
    backend::load::Reading,
    balance::standing::{Evidence, Standing},
    mutants::{Committed, Mutant},
    timing::{
        HOT_MORE_US, JUDGE_US, LEAVE_EVERY_US, PLACEMENT_SETTLE_US, REFERENCE_MIN_US, STALE_US,
        STALLED_US, UNEVEN_MEMORY_US, UNEVEN_US,
    },
};
use baton_api::LIMIT_BACKENDS_PER_POLICY;

/// A member is hot while it waits this many times longer than its pool, and longer by at least so
/// much.
pub(crate) const HOT_RATIO: f64 = 4.0;
/// Of a pool's members this part may be distressed at a time, one at least. Where more are slow,
/// all are.
const DISTRESSED_PERCENT_MAX: usize = 34;

/// A pool is uneven if one member is busy for this many times the usual part of its time, and by so
/// much more; and stays so down to the second pair, for a while.
const UNEVEN_RATIO: f64 = 1.4;
const UNEVEN_MORE: f64 = 0.2;
const EVEN_RATIO: f64 = 1.2;
const EVEN_MORE: f64 = 0.1;
const UNEVEN_PART: f64 = 0.5;
/// Queues are compared with so many others, drawn at random.
const QUEUES: usize = 4;
/// Draws of one before all are looked at.
const DRAWS: usize = 4;

/// A backend that is busier than another one, too, is left at this part of what the policy's ratio
/// is above 1.
const BUSIER_PART: f64 = 0.7;
/// Standard errors of the difference that are taken off it.
const SURE_ERRORS: f64 = 4.0;
const REQUESTS_MAX: f64 = 200.0;
/// A move must gain so many times what it costs.
const GAIN_COSTS: f64 = 4.0;
/// Of 1,000 requests so many may move for this in calm; unused ones are kept up to the second
/// number.
const BUDGET: f64 = 0.002;
const BUDGET_MAX: f64 = 8.0;
const BUDGET_FIRST: f64 = 2.0;

/// A member as it is at this moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seat {
    pub(crate) load: Reading,
    pub(crate) flows: u32,
    /// Weight times 256, slow start included.
    pub(crate) weight: u64,
    /// It takes flows.
    pub(crate) usable: bool,
    /// And takes over those of others.
    pub(crate) takes_over: bool,
}

impl Seat {
    fn per_weight(&self, amount: f64) -> f64 {
        amount * 256.0 / self.weight.max(1) as f64
    }
}

/// Why a flow moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Why {
    /// Its backend is distressed, or stalls.
    Distress,
    /// Another one joins, or comes back.
    Share,
    /// Its backend's queue is longer, in an uneven pool.
    Uneven,
    /// Its backend's mean wait is longer.
    Better,
}

/// A flow at a boundary.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asking {
    pub(crate) now_us: u64,
    /// The member that it is at.
    pub(crate) owner: usize,
    /// Since its last request.
    pub(crate) gap_us: u64,
    /// It did not move of late.
    pub(crate) rested: bool,
    /// By policy: the least gain in a queue, and the least ratio of mean waits.
    pub(crate) gain_us: f64,
    pub(crate) ratio: f64,
    /// A deliberate fault of the simulation's.
    pub(crate) committed: Committed,
}

/// Where the flow goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Choice {
    pub(crate) to: usize,
    pub(crate) why: Why,
    /// What the request was expected to wait here, and there.
    pub(crate) here_us: f64,
    pub(crate) there_us: f64,
}

/// What a pool remembers.
#[derive(Default)]
pub(crate) struct Placement {
    standings: Vec<Standing>,
    judged_us: Option<u64>,
    /// Lower medians of the settled members' readings.
    short_us: f64,
    long_us: f64,
    /// Nothing is known of more than one: the others are tried.
    alone: bool,
    /// Flows per weight of those who take any.
    fair: f64,
    /// A member that is below what it is allowed.
    receiver: Option<usize>,
    /// The part of the last time that the pool was uneven.
    uneven: f64,
    uneven_until_us: u64,
    settling_until_us: u64,
    /// Moves that calm has left.
    budget: f64,
    /// Times that a member became distressed.
    pub(crate) distressed_total: u64,
}

/// The smaller of the two middle ones, if there are two: where half of a pool is slow, the other
/// half is the measure.
fn lower_median(values: &mut [f64]) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    let at = (values.len() - 1) / 2;
    *values.select_nth_unstable_by(at, f64::total_cmp).1
}

/// A random one of so many that `good` admits, each with the same chance: the next one behind
/// others that are not admitted had theirs, too.
fn draw(count: usize, rng: &mut fastrand::Rng, good: impl Fn(usize) -> bool) -> Option<usize> {
    for _ in 0..DRAWS {
        let at = rng.usize(..count);
        if good(at) {
            return Some(at);
        }
    }
    let (mut drawn, mut seen) = (None, 0);
    for at in (0..count).filter(|at| good(*at)) {
        seen += 1;
        if rng.usize(..seen) == 0 {
            drawn = Some(at);
        }
    }
    drawn
}

impl Placement {
    /// Of so many members, of which nothing is known.
    pub(crate) fn new(members: usize) -> Self {
        Self {
            standings: vec![Standing::default(); members],
            budget: BUDGET_FIRST,
            ..Self::default()
        }
    }

    /// A member stands as it stood `before`; one that is new is as good as the others, or `joins`
    /// them.
    pub(crate) fn begin(&mut self, at: usize, before: Option<Standing>, joins: bool) {
        self.standings[at] = match before {
            Some(standing) => standing,
            None if joins => Standing::joining(),
            None => Standing::default(),
        };
    }

    /// The usual mean wait, in us.
    pub(crate) fn usual_us(&self) -> f64 {
        self.long_us
    }

    /// Whether the members are unevenly busy.
    pub(crate) fn is_uneven(&self, now_us: u64) -> bool {
        now_us < self.uneven_until_us
    }

    /// How a member stands.
    pub(crate) fn standing(&self, at: usize) -> Standing {
        self.standings.get(at).copied().unwrap_or_default()
    }

    /// Whether a new flow may go to a member that has so many.
    pub(crate) fn admits(&self, at: usize, flows: u32) -> bool {
        self.standing(at).admits(flows)
    }

    /// Compares the members with each other, if that was not done just now.
    fn judge(&mut self, now_us: u64, committed: Committed, seat: impl Fn(usize) -> Seat) {
        let age_us = match self.judged_us {
            Some(then_us) if now_us < then_us + JUDGE_US => return,
            Some(then_us) => now_us - then_us,
            None => 0,
        };
        self.judged_us = Some(now_us);
        let mut readings = [[0.0; LIMIT_BACKENDS_PER_POLICY]; 4];
        let (mut known, mut joining) = (0, false);
        let (mut flows, mut weight, mut distressed, mut busiest) = (0, 0, 0, 0.0_f64);
        for (at, standing) in self.standings.iter().enumerate() {
            let seat = seat(at);
            distressed += usize::from(standing.is_distressed());
            if !seat.usable {
                continue;
            }
            flows += u64::from(seat.flows);
            if standing.is_distressed() {
                continue;
            }
            weight += seat.weight;
            if !standing.is_settled() {
                joining = true;
                continue;
            }
            if seat.load.known && known < LIMIT_BACKENDS_PER_POLICY {
                let load = seat.load;
                let row = [load.short_us, load.long_us, standing.hot(), load.busy];
                for (column, value) in readings.iter_mut().zip(row) {
                    column[known] = value;
                }
                busiest = busiest.max(load.busy);
                known += 1;
            }
        }
        let [short_us, long_us, usual, busy] =
            readings.each_mut().map(|column| lower_median(&mut column[..known]));
        self.short_us = short_us.max(REFERENCE_MIN_US);
        self.long_us = long_us.max(REFERENCE_MIN_US);
        self.alone = known <= 1;
        self.fair = flows as f64 / (weight as f64).max(1.0);
        if joining {
            self.settling_until_us = now_us + PLACEMENT_SETTLE_US;
        }
        let (ratio, more) = if now_us < self.uneven_until_us {
            (EVEN_RATIO, EVEN_MORE)
        } else {
            (UNEVEN_RATIO, UNEVEN_MORE)
        };
        let uneven = busiest >= busy * ratio && busiest >= busy + more;
        let keep = (-(age_us as f64) / UNEVEN_MEMORY_US).exp();
        self.uneven = self.uneven * keep + if uneven { 1.0 - keep } else { 0.0 };
        if now_us < self.settling_until_us {
            (self.uneven, self.uneven_until_us) = (0.0, 0);
        } else if uneven && (self.uneven >= UNEVEN_PART || now_us < self.uneven_until_us) {
            self.uneven_until_us = now_us + UNEVEN_US;
        }
        self.receiver = None;
        let most = (self.standings.len() * DISTRESSED_PERCENT_MAX / 100).max(1);
        for (at, standing) in self.standings.iter_mut().enumerate() {
            let seat = seat(at);
            let fair = self.fair * seat.weight as f64;
            let more_us = seat.load.short_us - self.short_us;
            let hot = more_us >= HOT_MORE_US && seat.load.short_us >= HOT_RATIO * self.short_us;
            let became = standing.judge(Evidence {
                now_us,
                age_us,
                hot: seat.load.known.then_some(hot),
                usual,
                can: seat.usable && seat.takes_over,
                flows: seat.flows,
                fair,
                room: distressed < most && known > 1,
                committed,
            });
            distressed += usize::from(became);
            self.distressed_total += u64::from(became);
            let allowed = standing.allowed(now_us, fair);
            if seat.usable && seat.takes_over && f64::from(seat.flows) + 0.5 < allowed {
                self.receiver = Some(at);
            }
        }
    }

    /// Where the flow goes with this request, if anywhere. `cost_us` is what moves onto a member
    /// cost.
    pub(crate) fn decide(
        &mut self,
        asking: Asking,
        seat: impl Fn(usize) -> Seat,
        cost_us: impl Fn(usize) -> f64,
        rng: &mut fastrand::Rng,
    ) -> Option<Choice> {
        let Asking { now_us, owner, committed, .. } = asking;
        let hasty = committed.is(Mutant::MoveOnNoise);
        self.budget = (self.budget + BUDGET).min(BUDGET_MAX);
        self.judge(now_us, committed, &seat);
        let here = seat(owner);
        let standing = *self.standings.get(owner)?;
        let good = |at: usize| {
            let seat = seat(at);
            at != owner
                && seat.usable
                && seat.takes_over
                && self.standings[at].is_settled()
                && seat.load.stalled_us < STALLED_US / 2
        };
        let count = self.standings.len();
        let draw = |rng: &mut fastrand::Rng| draw(count, rng, good);
        // The best of some random ones.
        let best = |rng: &mut fastrand::Rng, draws: usize, cost: &dyn Fn(&Seat) -> f64| {
            let mut best: Option<(usize, Seat)> = None;
            for _ in 0..draws {
                let at = draw(rng)?;
                let drawn = seat(at);
                if best.is_none_or(|(_, best)| cost(&drawn) < cost(&best)) {
                    best = Some((at, drawn));
                }
            }
            best
        };
        let choice = |to, why, here_us, there_us| Some(Choice { to, why, here_us, there_us });
        if standing.sheds(here.flows) && !committed.is(Mutant::StayInDistress) {
            let flows = |seat: &Seat| seat.per_weight(f64::from(seat.flows) + 1.0);
            let (to, there) = best(rng, 2, &flows)?;
            return choice(to, Why::Distress, here.load.short_us, there.load.short_us);
        }
        if now_us < self.uneven_until_us {
            let (to, there) = best(rng, QUEUES, &|seat| seat.load.queue_us())?;
            let gain_us = here.load.queue_us() - there.load.queue_us();
            if gain_us >= asking.gain_us.max(GAIN_COSTS * cost_us(to)) {
                return choice(to, Why::Uneven, here.load.queue_us(), there.load.queue_us());
            }
        }
        if !asking.rested && !hasty {
            return None;
        }
        if here.load.stalled_us >= STALLED_US {
            let (to, there) = best(rng, 2, &|seat| seat.load.queue_us())?;
            let waited_us = here.load.stalled_us as f64;
            return choice(to, Why::Distress, waited_us, there.load.queue_us());
        }
        let beyond = f64::from(here.flows) > self.fair * here.weight as f64;
        if let Some(to) = self.receiver.filter(|to| *to != owner && beyond) {
            // Whether it has enough is looked at before the next one is given to it.
            self.receiver = None;
            let there = seat(to).load;
            return choice(to, Why::Share, here.load.long_us, there.long_us);
        }
        let calm = now_us >= self.settling_until_us && standing.is_settled();
        let soon = now_us < standing.left_us + LEAVE_EVERY_US;
        let least = 1.0 + (asking.ratio - 1.0) * BUSIER_PART;
        let long = self.alone || here.load.long_us >= least * self.long_us;
        let spent = (soon || self.budget < 1.0) && !hasty;
        if !calm || spent || !long {
            return None;
        }
        let (to, there) = best(rng, 2, &|seat| seat.load.long_us)?;
        let busier = here.per_weight(here.load.rate) >= there.per_weight(there.load.rate);
        let ratio = if busier { least } else { asking.ratio };
        // Where nobody went of late, one has to go to find out.
        let error_us = if there.load.fresh && !hasty {
            SURE_ERRORS * here.load.error_us.hypot(there.load.error_us)
        } else {
            0.0
        };
        let sure_us = here.load.long_us - there.load.long_us - error_us;
        let requests = (STALE_US / asking.gap_us.max(1) as f64).clamp(1.0, REQUESTS_MAX);
        let longer = if there.load.known {
            here.load.long_us >= ratio * there.load.long_us
        } else {
            here.load.long_us >= asking.gain_us
        };
        if !longer || sure_us * requests < GAIN_COSTS * cost_us(to) {
            return None;
        }
        self.budget -= 1.0;
        self.standings[owner].left_us = now_us;
        choice(to, Why::Better, here.load.long_us, there.load.long_us)
    }
}

/// What the rule promises whoever looks from outside: the simulation holds it to that.
pub mod promises {
    use super::{BUDGET, BUDGET_FIRST, LEAVE_EVERY_US};
    use crate::{
        balance::standing::HOT_PART,
        timing::{BACKOFF_MIN_US, HOT_MEMORY_US},
    };

    /// No flow comes back to a backend so soon after it left for a lower wait.
    pub const RETURN_MIN_US: u64 = LEAVE_EVERY_US;
    /// A backend that becomes distressed is given no flow for so long.
    pub const LEFT_ALONE_US: u64 = BACKOFF_MIN_US;
    /// A backend that waits much longer than its pool all this time is distressed.
    pub const HOT_US: u64 = (HOT_PART * HOT_MEMORY_US) as u64;

    /// In calm so many flows of a policy move at most with so many requests.
    #[must_use]
    pub fn calm_moves(requests: u64) -> u64 {
        (BUDGET_FIRST + BUDGET * requests as f64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn each_that_may_is_drawn_as_often(may: [bool; 12], seed: u64) {
            let mut rng = fastrand::Rng::with_seed(seed);
            let good = may.iter().filter(|may| **may).count();
            let mut drawn = [0; 12];
            for _ in 0..400 * good {
                drawn[draw(12, &mut rng, |at| may[at]).expect("one may")] += 1;
            }
            for (at, drawn) in drawn.into_iter().enumerate() {
                // A deviation of 20: six of them.
                let fair = if may[at] { 280..=520 } else { 0..=0 };
                proptest::prop_assert!(fair.contains(&drawn), "{drawn} of {at}");
            }
        }
    }
}

#[cfg(test)]
mod worlds;
