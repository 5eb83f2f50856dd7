//! The single-producer single-consumer rings that AF_XDP shares with the kernel.
//!
//! Owns the cursors of one side. Indices run freely over `u32` and wrap; a slot is `index & (size -
//! 1)`. Never decides what an entry means, never calls the kernel. Tests run both sides in plain
//! memory.
#![expect(unsafe_code, reason = "entries and indices live in memory shared with the kernel")]

use std::{
    ptr::NonNull,
    sync::atomic::{AtomicU32, Ordering},
};

/// Where the parts of a ring are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingMemory<T> {
    pub(crate) producer: NonNull<AtomicU32>,
    pub(crate) consumer: NonNull<AtomicU32>,
    pub(crate) entries: NonNull<T>,
    /// A power of two.
    pub(crate) size: u32,
}

/// The side that puts entries in.
#[derive(Debug)]
pub(crate) struct Producer<T> {
    ring: RingMemory<T>,
    /// Next index to write; ahead of the shared one by what is not yet published.
    head: u32,
    /// The consumer's index when last looked at.
    tail_seen: u32,
}

/// The side that takes entries out.
#[derive(Debug)]
pub(crate) struct Consumer<T> {
    ring: RingMemory<T>,
    /// Next index to read; ahead of the shared one by what is not yet released.
    tail: u32,
    /// The producer's index when last looked at.
    head_seen: u32,
}

// SAFETY: the pointers are into memory of the process; each side is used by one thread at a time
// (`&mut self`).
unsafe impl<T: Send> Send for Producer<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Consumer<T> {}

impl<T: Copy> Producer<T> {
    /// # Safety
    /// The memory is valid for the life of the value, the indices are aligned, `entries` has `size`
    /// slots, `size` is a power of two, and there is no other producer.
    pub(crate) unsafe fn new(ring: RingMemory<T>) -> Self {
        debug_assert!(ring.size.is_power_of_two());
        // SAFETY: valid by contract.
        let (head, tail_seen) = unsafe {
            (
                ring.producer.as_ref().load(Ordering::Relaxed),
                ring.consumer.as_ref().load(Ordering::Acquire),
            )
        };
        Self { ring, head, tail_seen }
    }

    /// Slots free for writing; looks at the consumer only if fewer than `wanted` are known.
    pub(crate) fn free(&mut self, wanted: u32) -> u32 {
        let free = self.ring.size - self.head.wrapping_sub(self.tail_seen);
        if free >= wanted {
            return free;
        }
        self.look();
        self.ring.size - self.head.wrapping_sub(self.tail_seen)
    }

    fn look(&mut self) {
        // SAFETY: valid by the contract of `new`.
        self.tail_seen = unsafe { self.ring.consumer.as_ref().load(Ordering::Acquire) };
    }

    /// Writes one entry if there is a free slot; the other side sees it after [`Self::publish`].
    pub(crate) fn push(&mut self, entry: T) -> bool {
        if self.free(1) == 0 {
            return false;
        }
        let slot = (self.head & (self.ring.size - 1)) as usize;
        // SAFETY: `slot < size`, and a free slot is not read by the consumer.
        unsafe { self.ring.entries.add(slot).write(entry) };
        self.head = self.head.wrapping_add(1);
        true
    }

    /// Shows all written entries to the consumer.
    pub(crate) fn publish(&mut self) {
        // SAFETY: valid by the contract of `new`.
        unsafe {
            self.ring.producer.as_ref().store(self.head, Ordering::Release);
        }
    }

    /// Entries written and not yet taken by the consumer.
    pub(crate) fn pending(&mut self) -> u32 {
        self.look();
        self.head.wrapping_sub(self.tail_seen)
    }
}

impl<T: Copy> Consumer<T> {
    /// # Safety
    /// As [`Producer::new`], and there is no other consumer.
    pub(crate) unsafe fn new(ring: RingMemory<T>) -> Self {
        debug_assert!(ring.size.is_power_of_two());
        // SAFETY: valid by contract.
        let (tail, head_seen) = unsafe {
            (
                ring.consumer.as_ref().load(Ordering::Relaxed),
                ring.producer.as_ref().load(Ordering::Acquire),
            )
        };
        Self { ring, tail, head_seen }
    }

    /// Entries ready for reading; looks at the producer only if none is known.
    pub(crate) fn available(&mut self) -> u32 {
        let known = self.head_seen.wrapping_sub(self.tail);
        if known > 0 {
            return known;
        }
        // SAFETY: valid by the contract of `new`.
        self.head_seen = unsafe { self.ring.producer.as_ref().load(Ordering::Acquire) };
        self.head_seen.wrapping_sub(self.tail)
    }

    /// The entry that is taken after so many others, if it is there.
    pub(crate) fn peek(&mut self, after: u32) -> Option<T>
    where
        T: Copy,
    {
        if self.available() <= after {
            return None;
        }
        let slot = (self.tail.wrapping_add(after) & (self.ring.size - 1)) as usize;
        // SAFETY: `slot < size`, and the acquire load of the producer's index made the entry
        // visible.
        Some(unsafe { self.ring.entries.add(slot).read() })
    }

    /// Takes one entry if there is one; its slot is free for the producer after [`Self::release`].
    pub(crate) fn pop(&mut self) -> Option<T> {
        if self.available() == 0 {
            return None;
        }
        let slot = (self.tail & (self.ring.size - 1)) as usize;
        // SAFETY: `slot < size`, and the acquire load of the producer's index made the entry
        // visible.
        let entry = unsafe { self.ring.entries.add(slot).read() };
        self.tail = self.tail.wrapping_add(1);
        Some(entry)
    }

    /// Gives all taken slots back to the producer.
    pub(crate) fn release(&mut self) {
        // SAFETY: valid by the contract of `new`.
        unsafe {
            self.ring.consumer.as_ref().store(self.tail, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    /// Both sides of a ring in memory of our own.
    struct Bench {
        producer: Producer<u64>,
        consumer: Consumer<u64>,
        // Boxes: the rings point into them.
        _indices: Box<[AtomicU32; 2]>,
        _entries: Box<[u64]>,
    }

    fn bench(size: u32, start: u32) -> Bench {
        let mut indices = Box::new([AtomicU32::new(start), AtomicU32::new(start)]);
        let mut entries = vec![0xa5a5_a5a5_a5a5_a5a5; size as usize].into_boxed_slice();
        let first = indices.as_mut_ptr();
        let ring = RingMemory {
            producer: NonNull::new(first).expect("box"),
            // SAFETY: the array has two elements.
            consumer: NonNull::new(unsafe { first.add(1) }).expect("box"),
            entries: NonNull::new(entries.as_mut_ptr()).expect("box"),
            size,
        };
        // SAFETY: the boxes live as long as the bench; one producer, one consumer.
        let (producer, consumer) = unsafe { (Producer::new(ring), Consumer::new(ring)) };
        Bench { producer, consumer, _indices: indices, _entries: entries }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Push,
        Publish,
        Pop,
        Release,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => Just(Step::Push),
            2 => Just(Step::Publish),
            4 => Just(Step::Pop),
            2 => Just(Step::Release),
        ]
    }

    proptest! {
        #[test]
        fn behaves_as_a_queue(
            bits in 0_u32..6,
            near_wrap in any::<bool>(),
            random in any::<u32>(),
            steps in prop::collection::vec(step(), 0..600),
        ) {
            let size = 1 << bits;
            let start = if near_wrap { u32::MAX - random % 40 } else { random };
            let mut bench = bench(size, start);
            // Written, of which `shown` are published; taken out of which `held` are not released.
            let (mut queue, mut shown, mut held) = (VecDeque::new(), 0, 0);
            let mut next = 0_u64;
            for step in steps {
                match step {
                    Step::Push => {
                        let room = queue.len() + held < size as usize;
                        prop_assert_eq!(bench.producer.free(1) > 0, room);
                        prop_assert_eq!(bench.producer.push(next), room);
                        if room {
                            queue.push_back(next);
                            next += 1;
                        }
                    }
                    Step::Publish => {
                        bench.producer.publish();
                        shown = queue.len();
                    }
                    Step::Pop => {
                        let expected = if shown > 0 { queue.pop_front() } else { None };
                        prop_assert_eq!(bench.consumer.pop(), expected);
                        if expected.is_some() {
                            shown -= 1;
                            held += 1;
                        }
                    }
                    Step::Release => {
                        bench.consumer.release();
                        held = 0;
                    }
                }
                prop_assert_eq!(bench.producer.pending() as usize, queue.len() + held);
                let free = bench.producer.free(size);
                prop_assert_eq!(free as usize, size as usize - queue.len() - held);
            }
        }
    }

    #[test]
    fn two_threads_lose_nothing_across_the_wrap() {
        const COUNT: u64 = 200_000;
        let Bench { mut producer, mut consumer, _indices, _entries } = bench(64, u32::MAX - 1000);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut next = 0;
                while next < COUNT {
                    while next < COUNT && producer.push(next) {
                        next += 1;
                    }
                    producer.publish();
                    std::thread::yield_now();
                }
            });
            let mut expected = 0;
            while expected < COUNT {
                while let Some(value) = consumer.pop() {
                    assert_eq!(value, expected);
                    expected += 1;
                }
                consumer.release();
                std::thread::yield_now();
            }
        });
    }
}
