//! Who has which buffer of the UMEM.
//!
//! Owns, in debug builds, the owner of every buffer, so that one that is given twice or to two
//! owners stops the program at once. Never touches a buffer's bytes, and has no list of free ones:
//! that is the pool's.

#[cfg(debug_assertions)]
use std::sync::atomic::{AtomicU8, Ordering};

/// Number of a buffer in the UMEM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FrameId(pub(crate) u32);

/// Where a buffer is. Each is in exactly one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Owner {
    /// On the free list, or with a worker that has taken some from there.
    Free,
    /// In the fill ring, with the kernel for receiving, or in an RX ring.
    Receive,
    /// Between being taken and being given on.
    Hand,
    /// In a TX ring, with the kernel for sending, or in a completion ring.
    Transmit,
}

/// Buffers by place; the sum is the number of buffers. With several workers it is exact while none
/// of them is in the middle of a call, and all have flushed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameAccount {
    /// On the free list, or with a worker that has taken some from there.
    pub free: u32,
    /// In fill rings, with the kernel for receiving, and in RX rings.
    pub receive: u32,
    /// Held for the next [`crate::Tx::frame`].
    pub hand: u32,
    /// In TX rings, with the kernel for sending, and in completion rings.
    pub transmit: u32,
    /// All there are.
    pub total: u32,
}

impl FrameAccount {
    /// Every buffer is in exactly one place.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.free + self.receive + self.hand + self.transmit == self.total
    }
}

/// The owner of each buffer; knows nothing in release builds.
#[derive(Debug)]
pub(crate) struct Owners {
    #[cfg(debug_assertions)]
    of: Vec<AtomicU8>,
}

impl Owners {
    /// All free.
    pub(crate) fn new(total: u32) -> Self {
        #[cfg(not(debug_assertions))]
        let _ = total;
        Self {
            #[cfg(debug_assertions)]
            of: (0..total).map(|_| AtomicU8::new(Owner::Free as u8)).collect(),
        }
    }

    /// Notes that a buffer went from one owner to another.
    #[inline]
    pub(crate) fn give(&self, frame: FrameId, from: Owner, to: Owner) {
        #[cfg(debug_assertions)]
        {
            let before = self.of[frame.0 as usize].swap(to as u8, Ordering::Relaxed);
            assert_eq!(before, from as u8, "frame {} goes to {to:?}", frame.0);
        }
        #[cfg(not(debug_assertions))]
        let _ = (frame, from, to);
    }

    /// Buffers of an owner, counted one by one; debug builds only.
    #[cfg(debug_assertions)]
    pub(crate) fn count(&self, owner: Owner) -> u32 {
        let owned = |o: &&AtomicU8| o.load(Ordering::Relaxed) == owner as u8;
        self.of.iter().filter(owned).count() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "frame 0 goes to Free")]
    fn giving_back_twice_is_caught() {
        let owners = Owners::new(1);
        owners.give(FrameId(0), Owner::Free, Owner::Hand);
        owners.give(FrameId(0), Owner::Hand, Owner::Free);
        owners.give(FrameId(0), Owner::Hand, Owner::Free);
    }
}
