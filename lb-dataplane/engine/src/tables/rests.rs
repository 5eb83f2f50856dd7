//! Ports that rest or whose handshake is under way, of all backends.
//!
//! Owns one slab for the queues of all `Ports`, so that a backend costs no memory for ports that
//! nobody used, and the bound on how many pairs of a port and a pod are busy in all. What a queue
//! means is `ports`' own. It carries the pool of `blocks` along, which all `Ports` share too.

use crate::tables::blocks::Blocks;

/// No entry, end of a list.
pub(crate) const NONE: u32 = u32::MAX;
/// Pairs that may rest beside those in use: as many as Linux's connection trackers remember by
/// default on a machine of 16 GB or more (`nf_conntrack_max`). More cannot be remembered anyway.
pub(crate) const RESTING_MAX: usize = 262_144;
/// Of these, room for rescues and drains.
pub(crate) const RESERVE: usize = RESTING_MAX / 8;

/// 32 bits that need no alignment: with it an entry would have 12 bytes for its 10.
#[derive(Clone, Copy)]
struct Loose([u16; 2]);

impl Loose {
    fn new(value: u32) -> Self {
        Self([(value >> 16) as u16, value as u16])
    }

    fn get(self) -> u32 {
        u32::from(self.0[0]) << 16 | u32::from(self.0[1])
    }
}

#[derive(Clone, Copy)]
struct Entry {
    offset: u16,
    next: Loose,
    /// Of a port that rests: since when (ms, wrapping). Of one that is half open: the entry in
    /// front of it in its queue.
    other: Loose,
}

const _: () = assert!(size_of::<Entry>() == 10);

/// A list of ports, the one that is used next in front.
#[derive(Clone, Copy)]
pub(crate) struct Queue {
    head: u32,
    tail: u32,
    len: u32,
}

/// The slab. A port that is busy, used or not, has room for its entry from the moment it is taken.
pub(crate) struct Rests {
    entries: Box<[Entry]>,
    free: u32,
    spare: usize,
    /// Which ports are busy, of all backends.
    pub(crate) blocks: Blocks,
}

impl Default for Queue {
    fn default() -> Self {
        Self { head: NONE, tail: NONE, len: 0 }
    }
}

impl Queue {
    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }
}

impl Rests {
    /// For so many ports in use, and what rests beside them.
    pub(crate) fn new(used: usize, blocks: Blocks) -> Self {
        let all = used + RESTING_MAX;
        let entry = |at: usize| Entry {
            offset: 0,
            next: Loose::new(if at + 1 < all { at as u32 + 1 } else { NONE }),
            other: Loose::new(0),
        };
        Self {
            entries: (0..all).map(entry).collect(),
            free: if all == 0 { NONE } else { 0 },
            spare: all,
            blocks,
        }
    }

    /// How many further ports may become busy.
    pub(crate) fn spare(&self) -> usize {
        self.spare
    }

    /// As many may rest of one backend and more become busy: what there is room for, without what
    /// is kept for rescues and drains.
    pub(crate) fn spare_for_each(&self) -> usize {
        self.spare.saturating_sub(RESERVE)
    }

    /// How many are busy.
    pub(crate) fn held(&self) -> usize {
        self.entries.len() - self.spare
    }

    /// One more is busy.
    pub(crate) fn hold(&mut self) {
        debug_assert!(self.spare > 0, "asked before");
        self.spare = self.spare.saturating_sub(1);
    }

    /// One less.
    pub(crate) fn let_go(&mut self) {
        self.spare += 1;
    }

    /// Puts a port that is busy at the end of a queue.
    fn push(&mut self, queue: &mut Queue, offset: u16, other: u32) -> u32 {
        let at = self.free;
        let Some(entry) = self.entries.get_mut(at as usize) else {
            debug_assert!(false, "every busy port has room");
            return NONE;
        };
        self.free = entry.next.get();
        *entry = Entry { offset, next: Loose::new(NONE), other: Loose::new(other) };
        match self.entries.get_mut(queue.tail as usize) {
            Some(last) => last.next = Loose::new(at),
            None => queue.head = at,
        }
        queue.tail = at;
        queue.len += 1;
        at
    }

    /// A port rests.
    pub(crate) fn rests(&mut self, queue: &mut Queue, offset: u16, now_ms: u64) {
        self.push(queue, offset, now_ms as u32);
    }

    /// The handshake on a port begins; its entry.
    pub(crate) fn begins(&mut self, queue: &mut Queue, offset: u16) -> u32 {
        let before = queue.tail;
        self.push(queue, offset, before)
    }

    /// The handshake of an entry is complete, or over.
    pub(crate) fn completes(&mut self, queue: &mut Queue, at: u32) {
        let Some(entry) = self.entries.get(at as usize).copied() else {
            return;
        };
        match self.entries.get_mut(entry.other.get() as usize) {
            Some(before) => before.next = entry.next,
            None => queue.head = entry.next.get(),
        }
        match self.entries.get_mut(entry.next.get() as usize) {
            Some(after) => after.other = entry.other,
            None => queue.tail = entry.other.get(),
        }
        queue.len -= 1;
        self.gives_back(at);
    }

    fn gives_back(&mut self, at: u32) {
        self.entries[at as usize].next = Loose::new(self.free);
        self.free = at;
    }

    /// The first of a queue.
    pub(crate) fn first(&self, queue: &Queue) -> Option<u16> {
        Some(self.entries.get(queue.head as usize)?.offset)
    }

    /// How long the first of a queue has rested.
    pub(crate) fn age_ms(&self, queue: &Queue, now_ms: u64) -> Option<u32> {
        let first = self.entries.get(queue.head as usize)?;
        Some((now_ms as u32).wrapping_sub(first.other.get()))
    }

    /// Takes the first off a queue of ports that rest.
    pub(crate) fn pop(&mut self, queue: &mut Queue) -> Option<u16> {
        let at = queue.head;
        let entry = self.entries.get(at as usize).copied()?;
        queue.head = entry.next.get();
        if queue.head == NONE {
            queue.tail = NONE;
        }
        queue.len -= 1;
        self.gives_back(at);
        Some(entry.offset)
    }
}
