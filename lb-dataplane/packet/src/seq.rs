//! TCP sequence numbers. Owns their wrapping arithmetic; never an ordering of its own, because on a
//! circle "less than" is not transitive.

/// A TCP sequence number (RFC 9293 section 3.4). Deliberately without `Ord`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SeqNumber(pub u32);

impl SeqNumber {
    /// `n` bytes later.
    #[inline]
    #[must_use]
    pub const fn add(self, n: u32) -> Self {
        Self(self.0.wrapping_add(n))
    }

    /// `n` bytes earlier.
    #[inline]
    #[must_use]
    pub const fn sub(self, n: u32) -> Self {
        Self(self.0.wrapping_sub(n))
    }

    /// Bytes from `earlier` to here; negative if `earlier` is in fact later. Meaningful for numbers
    /// less than 2 GiB apart, which the largest TCP window (1 GiB) guarantees.
    #[inline]
    #[must_use]
    pub const fn since(self, earlier: Self) -> i32 {
        self.0.wrapping_sub(earlier.0).cast_signed()
    }

    /// Whether this number precedes `other`.
    #[inline]
    #[must_use]
    pub const fn before(self, other: Self) -> bool {
        self.since(other) < 0
    }

    /// Whether this number follows `other`.
    #[inline]
    #[must_use]
    pub const fn after(self, other: Self) -> bool {
        other.before(self)
    }

    /// Whether this number precedes or is `other`.
    #[inline]
    #[must_use]
    pub const fn at_or_before(self, other: Self) -> bool {
        !self.after(other)
    }

    /// Whether this number follows or is `other`.
    #[inline]
    #[must_use]
    pub const fn at_or_after(self, other: Self) -> bool {
        !self.before(other)
    }

    /// The later of the two.
    #[inline]
    #[must_use]
    pub const fn max(self, other: Self) -> Self {
        if self.before(other) { other } else { self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_wraps() {
        let late = SeqNumber(u32::MAX - 1);
        let early = late.add(5);
        assert_eq!(early, SeqNumber(3));
        assert_eq!(early.sub(5), late);
        assert_eq!(early.since(late), 5);
        assert_eq!(late.since(early), -5);
        assert!(late.before(early) && early.after(late));
        assert!(!late.after(early) && !early.before(late));
        assert!(late.at_or_before(late) && late.at_or_after(late));
        assert!(late.at_or_before(early) && !late.at_or_after(early));
        assert_eq!(late.max(early), early);
        assert_eq!(early.max(late), early);
    }

    #[test]
    fn exactly_one_direction_holds_on_the_whole_window() {
        for distance in [1, 2, 65_535, 1 << 30, (1u32 << 31) - 1] {
            for start in [0, 1, u32::MAX, 1 << 31, 0x7fff_ffff] {
                let (a, b) = (SeqNumber(start), SeqNumber(start).add(distance));
                assert!(a.before(b) && b.after(a) && !b.before(a) && !a.after(b));
            }
        }
    }
}
