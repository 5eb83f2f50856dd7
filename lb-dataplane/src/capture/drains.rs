//! The control thread's end of a capture: the copies of all workers in the order of their times.
//!
//! Owns a tap and a drain for each worker, which share the capture's limits. Never waits.

use super::{Drain, Order, Packet, Tap, tap};
use baton_engine::Instant;
use std::sync::atomic::Ordering;

/// What the taps of all workers copied.
pub struct Drains {
    each: Vec<(Drain, Option<Packet>)>,
}

/// What became of frames, of all workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Meant by the filter.
    pub matched: u64,
    /// Lost because the control thread or the asker is too slow.
    pub ring_full: u64,
    /// Lost because they are too many bytes per second.
    pub rate: u64,
    /// Not looked at.
    pub unseen: u64,
}

/// Both ends of a capture by so many workers that begins now.
pub fn taps(order: &Order, workers: usize, now: Instant) -> (Vec<Tap>, Drains) {
    let both = (0..workers).map(|_| tap(order, workers, now));
    let (mut taps, drains): (Vec<Tap>, Vec<Drain>) = both.unzip();
    taps.iter_mut().skip(1).for_each(|tap| tap.first = false);
    let each = drains.into_iter().map(|drain| (drain, None)).collect();
    (taps, Drains { each })
}

impl Drains {
    /// The oldest copy that is there, and whose buffer it is in, for [`Drains::give_back`].
    pub fn next(&mut self) -> Option<(usize, Packet)> {
        for (drain, head) in &mut self.each {
            if head.is_none() {
                *head = drain.full.try_recv().ok();
            }
        }
        let heads = self.each.iter().enumerate();
        let heads = heads.filter_map(|(at, (_, head))| Some((head.as_ref()?.at_ns, at)));
        let (_, oldest) = heads.min()?;
        Some((oldest, self.each[oldest].1.take()?))
    }

    /// It was handed on.
    pub fn give_back(&mut self, of: usize, packet: Packet) {
        // The tap may be gone already.
        let _ = self.each[of].0.empty.try_send(packet);
    }

    /// What became of frames until now.
    pub fn totals(&self) -> Totals {
        let mut all = Totals::default();
        for (drain, _) in &self.each {
            let counts = &drain.counts;
            all.matched += counts.matched.load(Ordering::Relaxed);
            all.ring_full += counts.ring_full.load(Ordering::Relaxed);
            all.rate += counts.rate.load(Ordering::Relaxed);
            all.unseen += counts.unseen.load(Ordering::Relaxed);
        }
        all
    }
}

impl Totals {
    /// All that are not in the file.
    pub fn lost(self) -> u64 {
        self.ring_full + self.rate + self.unseen
    }
}
