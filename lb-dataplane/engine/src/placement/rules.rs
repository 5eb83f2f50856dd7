//! Rules that `WhenBetter` is compared with (`make bench-placement`): each request to the least
//! outstanding ones, and Prequal's.
//!
//! Owns nothing. Both look at each member for each request, move whatever it costs, and are for
//! measurements only.

use super::{Choice, Seat, Why};
use baton_api::{LIMIT_BACKENDS_PER_POLICY, MigrationMode};

/// A member is hot if more requests are in flight there than at this part of its pool (Prequal,
/// NSDI '24, section 5.1: 2^-0.25).
const HOT_QUANTILE: f64 = 0.84;

/// Where the request of a flow at `owner` goes, if not there.
pub(crate) fn choose(
    mode: MigrationMode,
    owner: usize,
    count: usize,
    seat: impl Fn(usize) -> Seat,
    rng: &mut fastrand::Rng,
) -> Option<Choice> {
    let mut in_flight = [0; LIMIT_BACKENDS_PER_POLICY];
    let mut known = 0;
    for seat in (0..count).map(&seat).filter(|s| s.usable && s.takes_over) {
        in_flight[known] = seat.load.outstanding;
        known += 1;
    }
    let in_flight = &mut in_flight[..known];
    in_flight.sort_unstable();
    let at = ((known as f64 * HOT_QUANTILE) as usize).min(known.checked_sub(1)?);
    let limit = in_flight[at];
    // Hot ones by requests in flight, cold ones by latency; cold ones first.
    let cost = |seat: &Seat| match mode {
        MigrationMode::Prequal if seat.load.outstanding <= limit => (0, seat.load.short_us),
        MigrationMode::Prequal => (1, f64::from(seat.load.outstanding)),
        _ => (0, f64::from(seat.load.outstanding)),
    };
    let start = rng.usize(..count);
    let mut best: Option<(usize, Seat)> = None;
    // The owner wins among equals.
    for at in std::iter::once(owner).chain((start..count).chain(0..start)) {
        let this = seat(at);
        let lower = best.is_none_or(|(_, best)| cost(&this) < cost(&best));
        if this.usable && this.takes_over && lower {
            best = Some((at, this));
        }
    }
    let (to, there) = best.filter(|(at, _)| *at != owner)?;
    Some(Choice {
        to,
        why: Why::Better,
        here_us: seat(owner).load.queue_us(),
        there_us: there.load.queue_us(),
    })
}
