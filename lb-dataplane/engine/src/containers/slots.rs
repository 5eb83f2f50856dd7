//! Counts of slots for kept copies: all, and the long ones among them.
//!
//! Owns the two sizes, how a pool is divided between them, and the parts of it that one use may
//! have. Each part is one of all slots and the same one of the long ones: who fills either kind
//! takes it from nobody. The slots themselves are `kept`'s.

use std::ops::{AddAssign, SubAssign};

/// Largest copy, in whole cache lines: a full Ethernet frame at the usual MTU of 1500 is 1514
/// bytes, and a segment of 3,000 takes two. Longer segments are kept in pieces.
pub(crate) const KEPT_BYTES: usize = 1600;
/// Largest copy in a short slot, in whole cache lines: a request of 490 bytes behind 86 of headers
/// (Ethernet, IPv6, TCP with timestamps).
pub(crate) const SHORT_BYTES: usize = 576;
/// One slot of so many is a long one: most requests are smaller than half a frame.
const LONG_PART: u32 = 4;
/// But never fewer than two requests of full frames, where there are as many slots.
const LONG_MIN: u32 = 16;

/// So many slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slots {
    pub(crate) all: u32,
    /// Of these, the ones that a full frame fits in.
    pub(crate) long: u32,
}

impl Slots {
    /// More than there are: of a segment that cannot be kept.
    pub(crate) const TOO_MANY: Self = Self { all: u16::MAX as u32, long: u16::MAX as u32 };

    /// What a pool of so many has.
    pub(crate) fn of_pool(all: u32) -> Self {
        let long = (all / LONG_PART).max(LONG_MIN).min(all);
        Self { all, long }
    }

    /// One slot for a copy of so many bytes.
    #[inline]
    pub(crate) fn one(bytes: usize) -> Self {
        Self { all: 1, long: u32::from(bytes > SHORT_BYTES) }
    }

    /// The part that one use may have, but not less than `least` of either kind.
    pub(crate) fn part(self, of: u32, least: u32) -> Self {
        Self { all: (self.all / of).max(least), long: (self.long / of).max(least) }
    }

    /// Whether so many more keep within `max`.
    #[inline]
    pub(crate) fn have_room(self, more: Self, max: Self) -> bool {
        self.all + more.all <= max.all && self.long + more.long <= max.long
    }
}

impl AddAssign for Slots {
    fn add_assign(&mut self, more: Self) {
        self.all += more.all;
        self.long += more.long;
    }
}

impl SubAssign for Slots {
    fn sub_assign(&mut self, less: Self) {
        self.all -= less.all;
        self.long -= less.long;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_is_long_but_of_few_all_are() {
        for (all, long) in [(1, 1), (16, 16), (17, 16), (64, 16), (16_384, 4_096)] {
            assert_eq!(Slots::of_pool(all), Slots { all, long });
        }
    }

    #[test]
    fn full_frames_need_long_slots() {
        assert_eq!(Slots::one(86 + 490), Slots { all: 1, long: 0 });
        assert_eq!(Slots::one(1_514), Slots { all: 1, long: 1 });
    }
}
