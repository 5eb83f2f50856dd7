//! Where workers read what the others have measured of backends.
//!
//! Owns the shared memory and how often it is looked at: each millisecond while there is work, a
//! bounded piece between two batches, and never while a worker sleeps. What the rows mean is
//! `exchange`'s. Nobody waits for anybody: a row may be of two moments, which for a mean over
//! thousands of requests is as good.

use crate::{
    clock::Instant,
    timing::EXCHANGE_EVERY_US,
    workers::exchange::{Measures, ROW, Row},
};
use std::{
    array,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

/// Rows looked at in one turn: for each slot those of the others, and with each of these what all
/// have said is added up anew.
const LOOKS: usize = 768;

/// What one worker has written.
struct Page {
    /// Slots that it has.
    used: AtomicUsize,
    rows: Box<[[AtomicU64; ROW]]>,
}

/// The rows of all workers.
pub struct Board {
    pages: Vec<Page>,
}

/// A worker's place at it.
pub struct Seat {
    board: Arc<Board>,
    worker: usize,
    /// Slots in one turn.
    piece: usize,
    /// The next slot, and when the next look begins.
    at: usize,
    due_us: u64,
}

impl Board {
    /// A seat for each of so many workers with room for so many backends; none where there is
    /// nobody to tell.
    pub fn seats(workers: usize, backends: u16) -> Vec<Option<Seat>> {
        if workers < 2 {
            return vec![None];
        }
        // Twice: as many slots as an engine has.
        let slots = 2 * usize::from(backends);
        let page = || Page {
            used: AtomicUsize::new(0),
            rows: (0..slots).map(|_| array::from_fn(|_| AtomicU64::new(0))).collect(),
        };
        let board = Arc::new(Self { pages: (0..workers).map(|_| page()).collect() });
        let seat = |worker| Seat {
            board: Arc::clone(&board),
            worker,
            piece: (LOOKS / (workers * (workers - 1))).max(1),
            at: 0,
            due_us: 0,
        };
        (0..workers).map(|worker| Some(seat(worker))).collect()
    }
}

impl Seat {
    /// Goes on with the exchange, if it is time.
    pub fn turn(&mut self, engine: &mut impl Measures, now: Instant) {
        if now.0 < self.due_us {
            return;
        }
        let slots = self.at..self.at + self.piece;
        self.write(engine, slots.clone());
        let pages = self.board.pages.iter().enumerate();
        let mut used = engine.slots();
        for (worker, page) in pages.filter(|(worker, _)| *worker != self.worker) {
            let of_page = page.used.load(Ordering::Relaxed).min(page.rows.len());
            used = used.max(of_page);
            let there = slots.start.min(of_page)..slots.end.min(of_page);
            for numbers in &page.rows[there] {
                let row: Row = array::from_fn(|at| numbers[at].load(Ordering::Relaxed));
                if row != [0; ROW] {
                    engine.take(now, worker, &row);
                }
            }
        }
        self.at = slots.end;
        if self.at >= used {
            (self.at, self.due_us) = (0, now.0 + EXCHANGE_EVERY_US);
        }
    }

    fn write(&self, engine: &impl Measures, slots: std::ops::Range<usize>) {
        let Some(page) = self.board.pages.get(self.worker) else {
            return;
        };
        let own = engine.slots().min(page.rows.len());
        for slot in slots.start.min(own)..slots.end.min(own) {
            let row = engine.row(slot).unwrap_or([0; ROW]);
            for (number, value) in page.rows[slot].iter().zip(row) {
                number.store(value, Ordering::Relaxed);
            }
        }
        page.used.store(own, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Says a number of each slot, and notes what it is told.
    struct Fake {
        says: Vec<u64>,
        told: BTreeMap<(usize, u64), u64>,
    }

    impl Measures for Fake {
        fn slots(&self) -> usize {
            self.says.len()
        }

        fn row(&self, slot: usize) -> Option<Row> {
            let said = self.says[slot];
            let mut row = [0; ROW];
            (row[0], row[ROW - 1]) = (slot as u64 + 1, said);
            (said > 0).then_some(row)
        }

        fn take(&mut self, _: Instant, worker: usize, row: &Row) {
            self.told.insert((worker, row[0] - 1), row[ROW - 1]);
        }
    }

    fn fake(says: Vec<u64>) -> Fake {
        Fake { says, told: BTreeMap::new() }
    }

    #[test]
    fn each_hears_the_others_a_piece_at_a_time_and_again_after_a_millisecond() {
        // A sixth of them, as each of three reads of two others.
        const PIECE: usize = LOOKS / 6;
        let slots = 2 * PIECE + 10;
        let mut seats = Board::seats(3, 200);
        let all = |first: u64| (0..slots as u64).map(|slot| first + slot).collect();
        let mut workers = [fake(all(1_000)), fake(all(2_000)), fake(Vec::new())];
        workers[0].says[5] = 0;
        let turn = |seats: &mut [Option<Seat>], workers: &mut [Fake], at_us| {
            for (seat, worker) in seats.iter_mut().zip(workers) {
                let seat = seat.as_mut().expect("a seat");
                seat.turn(worker, Instant(at_us));
            }
        };
        turn(&mut seats, &mut workers, 1);
        assert_eq!(workers[1].told.len(), PIECE - 1, "a piece, and nothing of slot 5");
        for _ in 0..3 {
            turn(&mut seats, &mut workers, 2);
        }
        assert_eq!(workers[1].told.len(), slots - 1);
        assert_eq!(workers[2].told.len(), 2 * slots - 1, "of both others");
        assert_eq!(workers[1].told[&(0, 7)], 1_007);
        assert!(!workers[1].told.contains_key(&(1, 7)), "not of itself");
        workers[0].says[7] = 9;
        turn(&mut seats, &mut workers, 900);
        assert_eq!(workers[1].told[&(0, 7)], 1_007, "not yet");
        turn(&mut seats, &mut workers, 1_100);
        assert_eq!(workers[1].told[&(0, 7)], 9);
    }

    #[test]
    fn one_worker_has_nobody_to_tell() {
        assert!(Board::seats(1, 100).iter().all(Option::is_none));
    }
}
