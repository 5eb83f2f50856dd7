//! Figures that only metrics show: how long moves and answers take, what is pinned now, why clients
//! were reset, where flows began.
//!
//! Owns their shape and labels; whoever sees a thing happen adds it. Fixed memory per policy and
//! backend, nothing allocated but for reports, and no figure is ever asked for a decision.
//!
//! # Decisions
//!
//! - **Times are counted by powers of two**, from 128 us to 4.2 s, for moves per policy and first
//!   bytes per backend: one shift finds the bucket, nothing is allocated, and 19 samples per
//!   backend is what a scrape can bear. A packet's instructions are what they were
//!   (`tools/instructions.sh`). Figures that nobody but metrics wants are not in `/v1/state`, which
//!   the operator asks for all the time.

use crate::obs::pins::PinReason;

/// Bounds of a [`Latency`], each twice the one before. Twice, because quantiles are drawn between
/// two bounds; no more of them, because each is a sample per policy and backend in every scrape (19
/// with infinity, sum and count).
pub const LATENCY_BOUNDS: usize = 16;
/// The first bound is 2^7 = 128 us, about what a cached answer on a pod network takes; the last one
/// 2^22 us = 4.2 s, behind the last try of an adoption (`adopt::ADOPTION_TRIES_MAX`).
const FIRST_POWER: usize = 7;

/// Times by powers of two.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// Not cumulative; behind the bounds what took longer than all.
    counts: [u64; LATENCY_BOUNDS + 1],
    sum_us: u64,
}

impl Latency {
    /// One that took so long. A bound belongs to its own bucket, as Prometheus has it.
    #[inline]
    pub fn add(&mut self, us: u64) {
        // The lowest power of two that is not below it.
        let power = (u64::BITS - us.saturating_sub(1).leading_zeros()) as usize;
        self.counts[power.saturating_sub(FIRST_POWER).min(LATENCY_BOUNDS)] += 1;
        self.sum_us = self.sum_us.saturating_add(us);
    }

    /// Those of another engine, too.
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
        self.sum_us = self.sum_us.saturating_add(other.sum_us);
    }

    /// Upper bounds in us, and how many were not above each.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut below = 0;
        let bounds = self.counts.iter().take(LATENCY_BOUNDS).enumerate();
        bounds.map(move |(at, count)| {
            below += count;
            (1 << (FIRST_POWER + at), below)
        })
    }

    /// How many there were.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// All of them together, in us.
    #[must_use]
    pub const fn sum_us(&self) -> u64 {
        self.sum_us
    }
}

/// Why a client's connection was reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::VariantArray, strum::IntoStaticStr)]
#[repr(u8)]
#[strum(serialize_all = "snake_case")]
pub enum Reset {
    /// A segment of no flow.
    NoFlow,
    /// No backend took the connection.
    Refused,
    /// The dataplane has no address of the backends' family.
    NoFamily,
    /// The backend reset it.
    Backend,
    /// The backend is gone and nothing saved the flow.
    Lost,
    /// Nothing was heard for the policy's time.
    Timeout,
    /// A drain's deadline, or Baton had closed it already, and the client did not.
    Closed,
}

impl Reset {
    /// All of them.
    pub const ALL: &'static [Self] = <Self as strum::VariantArray>::VARIANTS;

    /// The metric label.
    #[must_use]
    pub fn label(self) -> &'static str {
        self.into()
    }

    /// What it means, for people.
    #[must_use]
    pub const fn help(self) -> &'static str {
        match self {
            Reset::NoFlow => {
                "A segment of no connection that is known, as after a restart of the dataplane."
            }
            Reset::Refused => "No backend accepted the connection.",
            Reset::NoFamily => {
                "The backends have addresses of one IP family only, of which the dataplane has none."
            }
            Reset::Backend => "The backend's own reset, passed on.",
            Reset::Lost => {
                "The backend died and nothing saved the connection; `policy_lost_total` has the reasons."
            }
            Reset::Timeout => "Idle or half closed for longer than the policy allows.",
            Reset::Closed => {
                "In progress at a drain's deadline, or closed before, and not by the client."
            }
        }
    }
}

/// Of one policy.
#[derive(Clone)]
pub(crate) struct OfPolicy {
    /// From an adoption that leaves to its confirmation.
    pub(crate) moves: Latency,
    /// Flows that live and can never move, by reason.
    pub(crate) pinned: [u32; PinReason::COUNT],
    /// By reason.
    pub(crate) resets: [u64; Reset::ALL.len()],
    /// SYNs of clients that `allowFrom` does not name.
    pub(crate) not_allowed: u64,
}

impl Default for OfPolicy {
    fn default() -> Self {
        Self {
            moves: Latency::default(),
            pinned: [0; PinReason::COUNT],
            resets: [0; Reset::ALL.len()],
            not_allowed: 0,
        }
    }
}

impl OfPolicy {
    /// Flows that live and can never move, by reason.
    pub(crate) fn pinned(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = PinReason::all().zip(self.pinned);
        counts.map(|(reason, count)| (reason.label(), u64::from(count)))
    }

    /// The policy's figures, but for those of its backends.
    pub(crate) fn shown(&self, name: &str) -> PolicyFigures {
        let mut pinned: Vec<(&'static str, u64)> = Vec::new();
        for (reason, count) in self.pinned() {
            // Two reasons may share a label.
            match pinned.iter_mut().find(|(label, _)| *label == reason) {
                Some((_, same)) => *same += count,
                None if count > 0 => pinned.push((reason, count)),
                None => {}
            }
        }
        let resets = Reset::ALL.iter().zip(self.resets);
        PolicyFigures {
            name: name.to_owned(),
            moves: self.moves.clone(),
            pinned,
            resets: resets.map(|(why, count)| (why.label(), count)).collect(),
            not_allowed: self.not_allowed,
            backends: Vec::new(),
        }
    }
}

/// Of one backend.
#[derive(Clone, Default)]
pub(crate) struct OfBackend {
    /// Time to the first byte of responses.
    pub(crate) first_byte: Latency,
    /// Flows that began here.
    pub(crate) begun: u64,
}

/// One policy's figures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyFigures {
    /// Its name.
    pub name: String,
    /// From an adoption that leaves to its confirmation.
    pub moves: Latency,
    /// Flows that live and can never move, by reason; only reasons that there are.
    pub pinned: Vec<(&'static str, u64)>,
    /// Resets that clients got, by reason.
    pub resets: Vec<(&'static str, u64)>,
    /// SYNs of clients that `allowFrom` does not name.
    pub not_allowed: u64,
    /// Its backends.
    pub backends: Vec<BackendFigures>,
}

/// One backend's figures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackendFigures {
    /// Its name.
    pub name: String,
    /// Time to the first byte of responses.
    pub first_byte: Latency,
    /// New flows that it accepted.
    pub flows_begun: u64,
    /// Ports of its legs, with each of our addresses.
    pub leg_ports: u64,
    /// Of these, the ones that moves may use now.
    pub ready_leg_ports: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_its_own_bucket() {
        for (us, bound) in [
            (0, Some(128)),
            (1, Some(128)),
            (128, Some(128)),
            (129, Some(256)),
            (256, Some(256)),
            (257, Some(512)),
            (1 << 22, Some(1 << 22)),
            ((1 << 22) + 1, None),
            (u64::MAX, None),
        ] {
            let mut latency = Latency::default();
            latency.add(us);
            let first = latency.buckets().find(|(_, count)| *count == 1);
            assert_eq!(first.map(|(bound, _)| bound), bound, "{us}");
            assert_eq!((latency.count(), latency.sum_us()), (1, us));
        }
    }

    #[test]
    fn buckets_are_cumulative_and_their_bounds_double() {
        let mut latency = Latency::default();
        for us in [100, 200, 200, 3_000, 10_000_000] {
            latency.add(us);
        }
        let buckets: Vec<(u64, u64)> = latency.buckets().collect();
        assert_eq!(buckets.len(), LATENCY_BOUNDS);
        assert_eq!(buckets[..3], [(128, 1), (256, 3), (512, 3)]);
        assert_eq!(buckets[LATENCY_BOUNDS - 1], (4_194_304, 4));
        assert!(buckets.windows(2).all(|two| two[1].0 == 2 * two[0].0));
        assert_eq!(latency.count(), 5);
        assert_eq!(latency.sum_us(), 10_003_500);
    }

    #[test]
    fn numbers_are_places_in_the_list() {
        for (number, reset) in Reset::ALL.iter().enumerate() {
            assert_eq!(*reset as usize, number);
        }
    }
}
