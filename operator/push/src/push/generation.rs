//! Numbers of snapshots: an epoch of leadership in the upper half, a count in the lower.
//!
//! Owns how a number is found that a dataplane will take. Knows no dataplane.

/// Which term of leadership: transitions of the Lease + 1, or a counter kept in the state
/// directory. A leader has a larger one than its predecessor, so that its first snapshot replaces
/// whatever that one pushed last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Epoch(pub u32);

const COUNT_BITS: u32 = 32;

impl Epoch {
    /// The one in which a generation was given out.
    #[must_use]
    pub const fn of(generation: u64) -> Self {
        // What remains after the shift has 32 bits.
        Self((generation >> COUNT_BITS) as u32)
    }

    /// The first generation of this epoch is one more.
    #[must_use]
    pub const fn base(self) -> u64 {
        (self.0 as u64) << COUNT_BITS
    }
}

/// The next generation in `epoch` that is larger than `highest`; none if there is no larger number.
#[must_use]
pub const fn generation_after(epoch: Epoch, highest: u64) -> Option<u64> {
    let base = epoch.base();
    if base > highest { base.checked_add(1) } else { highest.checked_add(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_generation_is_above_the_highest_and_in_the_epoch_or_a_later_one() {
        for (epoch, highest, next) in [
            (1, 0, Some((1 << 32) + 1)),
            (1, (1 << 32) + 1, Some((1 << 32) + 2)),
            (2, (1 << 32) + 77, Some((2 << 32) + 1)),
            (2, (3 << 32) + 5, Some((3 << 32) + 6)),
            // A count that runs over goes on in the next epoch.
            (1, (1 << 32) + 0xffff_ffff, Some(2 << 32)),
            (u32::MAX, u64::MAX - 1, Some(u64::MAX)),
            (u32::MAX, u64::MAX, None),
        ] {
            assert_eq!(generation_after(Epoch(epoch), highest), next);
        }
        assert_eq!(Epoch::of((7 << 32) + 9), Epoch(7));
    }
}
