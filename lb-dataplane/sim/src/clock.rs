//! The virtual clock and what is to happen on it.
//!
//! Owns the order of events: by time, and among those of one time by insertion. It never looks at
//! what happens and never goes back.

use std::{cmp::Reverse, collections::BinaryHeap};

/// Microseconds since the world began.
pub type Time = u64;

/// One millisecond.
pub const MS: Time = 1_000;
/// One second.
pub const SECOND: Time = 1_000_000;

/// Events that may wait at one time. A world has some tens of connections, each with at most some
/// tens of frames in flight; more is a storm, which is a mistake worth to be told.
pub const EVENTS_MAX: usize = 20_000;

struct Entry<E> {
    at: Time,
    order: u64,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// Events in the order in which they happen.
pub struct Queue<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    next_order: u64,
    overflow: bool,
}

impl<E> Default for Queue<E> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), next_order: 0, overflow: false }
    }
}

impl<E> Queue<E> {
    /// Adds an event. Beyond [`EVENTS_MAX`] it is lost, and [`Queue::overflowed`] says so from then
    /// on.
    pub fn push(&mut self, at: Time, event: E) {
        if self.heap.len() >= EVENTS_MAX {
            self.overflow = true;
            return;
        }
        let order = self.next_order;
        self.next_order += 1;
        self.heap.push(Reverse(Entry { at, order, event }));
    }

    /// When the next event happens.
    #[must_use]
    pub fn next_at(&self) -> Option<Time> {
        self.heap.peek().map(|Reverse(entry)| entry.at)
    }

    /// Takes the next event.
    pub fn pop(&mut self) -> Option<(Time, E)> {
        self.heap.pop().map(|Reverse(e)| (e.at, e.event))
    }

    /// How many wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// Whether an event was lost.
    #[must_use]
    pub fn overflowed(&self) -> bool {
        self.overflow
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_then_insertion_decides() {
        let mut queue = Queue::default();
        for (at, name) in [(5, "c"), (3, "a"), (5, "d"), (3, "b"), (9, "e")] {
            queue.push(at, name);
        }
        assert_eq!((queue.len(), queue.next_at()), (5, Some(3)));
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, [(3, "a"), (3, "b"), (5, "c"), (5, "d"), (9, "e")]);
        assert!(queue.is_empty() && !queue.overflowed());
    }

    #[test]
    fn a_full_queue_says_so() {
        let mut queue = Queue::default();
        for at in 0..=EVENTS_MAX as Time {
            queue.push(at, ());
        }
        assert_eq!(queue.len(), EVENTS_MAX);
        assert!(queue.overflowed());
    }
}
