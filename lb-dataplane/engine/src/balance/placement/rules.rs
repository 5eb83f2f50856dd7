//! Rules that `WhenBetter` is compared with (`make bench-placement`): each request to the least
//! outstanding ones, and Prequal's.
//!
//! Owns nothing. Both look at each member for each request, move whatever it costs, and are for
//! measurements only. Requests count by weight, as with Envoy's `LEAST_REQUEST`. What a member's
//! requests wait is asked only where a rule goes by that: to bring it up to date takes some 200
//! instructions.

use super::{Choice, Seat, Why};
use baton_api::{LIMIT_BACKENDS_PER_POLICY, MigrationMode};

/// A member is hot if more requests are in flight there than at this part of its pool (Prequal,
/// NSDI '24, section 5.1: 2^-0.25).
const HOT_QUANTILE: f64 = 0.84;

/// Where the request of a flow at `owner` goes, if not there. `in_flight`: of a member that takes
/// flows over, all its requests.
pub(crate) fn choose(
    mode: MigrationMode,
    owner: usize,
    count: usize,
    in_flight: impl Fn(usize) -> Option<f64>,
    seat: impl Fn(usize) -> Seat,
    rng: &mut fastrand::Rng,
) -> Option<Choice> {
    let start = rng.usize(..count);
    // The owner wins among equals.
    let order = std::iter::once(owner).chain((start..count).chain(0..start));
    let to = match mode {
        MigrationMode::Prequal => {
            let limit = hot_above((0..count).filter_map(&in_flight))?;
            // Hot ones by requests in flight, cold ones by latency; cold ones first.
            least(order, |at| {
                in_flight(at).map(|count| match count <= limit {
                    true => (0, seat(at).load.short_us),
                    false => (1, count),
                })
            })
        }
        _ => least(order, in_flight),
    };
    let to = to.filter(|to| *to != owner)?;
    Some(Choice {
        to,
        why: Why::Better,
        here_us: seat(owner).load.queue_us(),
        there_us: seat(to).load.queue_us(),
    })
}

/// More requests in flight, by weight, than these make a member hot.
fn hot_above(in_flight: impl Iterator<Item = f64>) -> Option<f64> {
    let mut all = [0.0; LIMIT_BACKENDS_PER_POLICY];
    let mut known = 0_usize;
    for (place, count) in all.iter_mut().zip(in_flight) {
        *place = count;
        known += 1;
    }
    let last = known.checked_sub(1)?;
    let at = ((known as f64 * HOT_QUANTILE) as usize).min(last);
    Some(*all[..known].select_nth_unstable_by(at, f64::total_cmp).1)
}

/// The first of those that cost least.
fn least<C: PartialOrd>(
    order: impl Iterator<Item = usize>,
    cost: impl Fn(usize) -> Option<C>,
) -> Option<usize> {
    let mut best: Option<(usize, C)> = None;
    for at in order {
        if let Some(cost) = cost(at)
            && best.as_ref().is_none_or(|(_, best)| cost < *best)
        {
            best = Some((at, cost));
        }
    }
    best.map(|(at, _)| at)
}
