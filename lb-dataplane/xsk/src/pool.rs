//! What the workers of a port have together: the buffers, and of each queue the two rings that the
//! kernel has once, however many sockets are bound to it.
//!
//! Owns the list of free buffers, the fill and completion rings, the sockets' memory and the
//! program. A worker has its [`Share`]: some free buffers of its own, so that it seldom has to ask.
//! Never sends, never sleeps but for the lock, which is held for one batch at most.
//!
//! # Decisions
//!
//! - **Every worker has a socket on every queue** (af_xdp.rst, "XDP_SHARED_UMEM"; Linux 5.10), and
//!   the program picks the worker: legs by their port, clients by a hash. Needs no symmetric RSS,
//!   and an interface with one queue, as a Pod's veth has, feeds all workers. What the kernel has
//!   once for each queue, the fill and the completion ring, is behind one lock, which each worker
//!   takes twice for a batch of up to 64 frames.

use crate::{
    config::CACHE,
    frames::{FrameAccount, FrameId, Owner, Owners},
    interface::Interface,
    socket::{Anchor, QueueRings, Umem},
    stats::SteeringStats,
    steer::Steer,
};
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU32, Ordering},
};

/// Behind the lock.
struct Shared {
    /// Has room for all buffers.
    free: Vec<u32>,
    queues: Vec<QueueRings>,
}

/// What can be read without the lock.
#[derive(Default)]
struct Counts {
    /// Buffers given to the fill ring and not yet taken from an RX ring.
    receive: AtomicU32,
    /// Buffers put into TX rings and not yet taken from the completion ring.
    transmit: AtomicU32,
}

/// What a worker had when it flushed last.
#[derive(Default)]
struct Had {
    free: AtomicU32,
    hand: AtomicU32,
}

pub(crate) struct Pool {
    // Order of dropping: the program goes first, then the rings with what they live in, then the
    // buffers.
    steer: Mutex<Option<Steer>>,
    gro_was_on: Mutex<Option<Interface>>,
    shared: Mutex<Shared>,
    counts: Vec<Counts>,
    had: Vec<Had>,
    owners: Owners,
    total: u32,
    /// Buffers of a queue that may be with the kernel for receiving.
    receive_max: u32,
    /// Of all sockets: the rings are in them.
    _anchors: Vec<Arc<Anchor>>,
    pub(crate) umem: Umem,
}

/// What a pool is made of.
pub(crate) struct Parts {
    pub(crate) steer: Steer,
    pub(crate) queues: Vec<QueueRings>,
    pub(crate) anchors: Vec<Arc<Anchor>>,
    pub(crate) umem: Umem,
    pub(crate) frames: u32,
    pub(crate) receive_max: u32,
    pub(crate) workers: usize,
}

/// Nothing that is behind a lock is left half changed by a panic of its holder.
fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    pub(crate) fn new(parts: Parts) -> Self {
        Self {
            counts: parts.queues.iter().map(|_| Counts::default()).collect(),
            had: (0..parts.workers).map(|_| Had::default()).collect(),
            steer: Mutex::new(Some(parts.steer)),
            gro_was_on: Mutex::new(None),
            shared: Mutex::new(Shared {
                // The lowest number is taken first.
                free: (0..parts.frames).rev().collect(),
                queues: parts.queues,
            }),
            owners: Owners::new(parts.frames),
            total: parts.frames,
            receive_max: parts.receive_max,
            _anchors: parts.anchors,
            umem: parts.umem,
        }
    }

    /// Does something with the program, which is there until the first worker ends.
    pub(crate) fn with_steer<T>(&self, f: impl FnOnce(&mut Steer) -> T) -> Option<T> {
        held(&self.steer).as_mut().map(f)
    }

    pub(crate) fn steering(&self) -> SteeringStats {
        self.with_steer(|steer| steer.stats()).unwrap_or_default()
    }

    /// Whose GRO is switched on again at the end.
    pub(crate) fn restore_gro(&self, interface: Interface) {
        *held(&self.gro_was_on) = Some(interface);
    }

    /// Nothing is led here any more: as soon as one worker ends, what is for it would be left to
    /// the kernel, which answers with resets.
    pub(crate) fn detach(&self) {
        drop(held(&self.steer).take());
        if let Some(interface) = held(&self.gro_was_on).take() {
            // The interface may be gone, then there is nothing to restore.
            let _ = interface.enable_gro();
        }
    }
}

/// A worker's part.
pub(crate) struct Share {
    pub(crate) pool: Arc<Pool>,
    number: usize,
    /// Never grows beyond [`CACHE`].
    cache: Vec<u32>,
}

impl Share {
    pub(crate) fn new(pool: Arc<Pool>, number: usize) -> Self {
        let cache = Vec::with_capacity(CACHE);
        Self { pool, number, cache }
    }

    /// Takes a free buffer for `to`.
    pub(crate) fn take(&mut self, to: Owner) -> Option<FrameId> {
        if self.cache.is_empty() {
            let mut shared = held(&self.pool.shared);
            let rest = shared.free.len().saturating_sub(CACHE / 2);
            self.cache.extend(shared.free.drain(rest..));
        }
        let frame = FrameId(self.cache.pop()?);
        self.pool.owners.give(frame, Owner::Free, to);
        Some(frame)
    }

    /// Frees a buffer of `from`.
    pub(crate) fn put(&mut self, frame: FrameId, from: Owner) {
        self.pool.owners.give(frame, from, Owner::Free);
        if self.cache.len() == CACHE {
            let mut shared = held(&self.pool.shared);
            shared.free.extend(self.cache.drain(CACHE / 2..));
        }
        self.cache.push(frame.0);
    }

    #[inline]
    pub(crate) fn give(&self, frame: FrameId, from: Owner, to: Owner) {
        self.pool.owners.give(frame, from, to);
    }

    /// So many buffers came out of an RX ring of the queue.
    pub(crate) fn received(&self, queue: usize, count: u32) {
        let receive = &self.pool.counts[queue].receive;
        receive.fetch_sub(count, Ordering::Relaxed);
    }

    /// So many buffers are about to be shown to the kernel in a TX ring of the queue.
    pub(crate) fn sent(&self, queue: usize, count: u32) {
        let transmit = &self.pool.counts[queue].transmit;
        transmit.fetch_add(count, Ordering::Relaxed);
    }

    /// Takes the buffers of sent frames back, whoever sent them; returns how many.
    pub(crate) fn reap(&mut self, queue: usize) -> u32 {
        let pool = &*self.pool;
        let transmit = &pool.counts[queue].transmit;
        if transmit.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let mut shared = held(&pool.shared);
        let Shared { free, queues } = &mut *shared;
        let completion = &mut queues[queue].completion;
        let mut taken = 0;
        while let Some(address) = completion.pop() {
            let frame = pool.umem.frame_at(address);
            pool.owners.give(frame, Owner::Transmit, Owner::Free);
            free.push(frame.0);
            taken += 1;
        }
        if taken > 0 {
            completion.release();
            transmit.fetch_sub(taken, Ordering::Relaxed);
        }
        taken
    }

    /// Gives the kernel as many buffers for receiving on a queue as may be with it. False if none
    /// was left and it has none.
    pub(crate) fn refill(&mut self, queue: usize) -> bool {
        let pool = &*self.pool;
        let receive = &pool.counts[queue].receive;
        if receive.load(Ordering::Relaxed) >= pool.receive_max {
            return true;
        }
        let mut shared = held(&pool.shared);
        let Shared { free, queues } = &mut *shared;
        let fill = &mut queues[queue].fill;
        // Another worker may have filled it meanwhile.
        let wanted = pool.receive_max.saturating_sub(receive.load(Ordering::Relaxed));
        let room = fill.free(wanted).min(wanted);
        let mut given = 0;
        while given < room {
            let Some(frame) = free.pop().or_else(|| self.cache.pop()).map(FrameId) else {
                break;
            };
            pool.owners.give(frame, Owner::Free, Owner::Receive);
            let pushed = fill.push(pool.umem.fill_address(frame));
            debug_assert!(pushed, "the ring said that it has room");
            given += 1;
        }
        if given > 0 {
            receive.fetch_add(given, Ordering::Relaxed);
            fill.publish();
        }
        given > 0 || fill.pending() > 0
    }

    /// Notes what this worker has for itself; it is about to sleep.
    pub(crate) fn flushed(&self, hand: u32) {
        let had = &self.pool.had[self.number];
        had.free.store(self.cache.len() as u32, Ordering::Relaxed);
        had.hand.store(hand, Ordering::Relaxed);
    }

    /// Where all buffers are: `hand` with this worker, and `unshown` in its TX rings that the
    /// kernel was not shown yet.
    pub(crate) fn account(&self, hand: u32, unshown: u32) -> FrameAccount {
        self.flushed(hand);
        let pool = &*self.pool;
        let sum = |counts: &mut dyn Iterator<Item = &AtomicU32>| -> u32 {
            counts.map(|count| count.load(Ordering::Relaxed)).sum()
        };
        let listed = held(&pool.shared).free.len() as u32;
        let account = FrameAccount {
            free: listed + sum(&mut pool.had.iter().map(|had| &had.free)),
            receive: sum(&mut pool.counts.iter().map(|counts| &counts.receive)),
            hand: sum(&mut pool.had.iter().map(|had| &had.hand)),
            transmit: sum(&mut pool.counts.iter().map(|counts| &counts.transmit)) + unshown,
            total: pool.total,
        };
        #[cfg(debug_assertions)]
        if pool.had.len() == 1 {
            for (owner, count) in [
                (Owner::Free, account.free),
                (Owner::Receive, account.receive),
                (Owner::Hand, account.hand),
                (Owner::Transmit, account.transmit),
            ] {
                debug_assert_eq!(pool.owners.count(owner), count, "{owner:?}");
            }
        }
        account
    }
}
