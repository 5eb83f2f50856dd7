//! Who has which buffer of the UMEM.
//!
//! Owns the list of free buffers and, in debug builds, the owner of every buffer, so that one that is
//! given twice or to two owners stops the program at once. Never touches a buffer's bytes.

/// Number of a buffer in the UMEM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FrameId(pub(crate) u32);

/// Where a buffer is. Each is in exactly one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// On the free list.
    Free,
    /// In the fill ring, with the kernel for receiving, or in an RX ring.
    Receive,
    /// Between being taken and being given on.
    Hand,
    /// In a TX ring, with the kernel for sending, or in a completion ring.
    Transmit,
}

/// Buffers by place; the sum is the number of buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameAccount {
    /// On the free list.
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

#[derive(Debug)]
pub(crate) struct Frames {
    free: Vec<u32>,
    total: u32,
    #[cfg(debug_assertions)]
    owners: Vec<Owner>,
}

impl Frames {
    /// All free.
    pub(crate) fn new(total: u32) -> Self {
        Self {
            // The lowest number is taken first.
            free: (0..total).rev().collect(),
            total,
            #[cfg(debug_assertions)]
            owners: vec![Owner::Free; total as usize],
        }
    }

    pub(crate) fn total(&self) -> u32 {
        self.total
    }

    pub(crate) fn free_count(&self) -> u32 {
        self.free.len() as u32
    }

    /// Takes a free buffer for `to`.
    pub(crate) fn take(&mut self, to: Owner) -> Option<FrameId> {
        let frame = FrameId(self.free.pop()?);
        self.give(frame, Owner::Free, to);
        Some(frame)
    }

    /// Puts a buffer of `from` back on the free list, which has room for all by construction.
    pub(crate) fn put(&mut self, frame: FrameId, from: Owner) {
        self.give(frame, from, Owner::Free);
        self.free.push(frame.0);
    }

    /// Notes that a buffer went from one owner to another.
    #[inline]
    pub(crate) fn give(&mut self, frame: FrameId, from: Owner, to: Owner) {
        #[cfg(debug_assertions)]
        {
            let owner = &mut self.owners[frame.0 as usize];
            assert_eq!(*owner, from, "frame {} goes to {to:?}", frame.0);
            *owner = to;
        }
        #[cfg(not(debug_assertions))]
        let _ = (frame, from, to);
    }

    /// Buffers of an owner, counted one by one; debug builds only.
    #[cfg(debug_assertions)]
    pub(crate) fn count(&self, owner: Owner) -> u32 {
        self.owners.iter().filter(|o| **o == owner).count() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_frame_is_taken_once() {
        let mut frames = Frames::new(3);
        let taken: Vec<_> = (0..3)
            .map(|_| frames.take(Owner::Hand).expect("one is left"))
            .collect();
        assert_eq!(taken, [FrameId(0), FrameId(1), FrameId(2)]);
        assert_eq!(frames.take(Owner::Hand), None);
        frames.put(FrameId(1), Owner::Hand);
        assert_eq!(frames.take(Owner::Receive), Some(FrameId(1)));
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "frame 0 goes to Free")]
    fn giving_back_twice_is_caught() {
        let mut frames = Frames::new(1);
        let frame = frames.take(Owner::Hand).expect("one is left");
        frames.put(frame, Owner::Hand);
        frames.put(frame, Owner::Hand);
    }
}
