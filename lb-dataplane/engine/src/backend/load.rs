//! How long requests wait at a backend: a mean with its uncertainty, over a short and a long time.
//!
//! Owns two decaying windows per backend. By Little's law the mean wait of a window is its area
//! (requests times the time that they waited) divided by its answers. What is not answered yet
//! counts too, so a stall shows while it lasts; and one slow answer among many weighs what it is,
//! where a peak average (`estimate`) keeps it for seconds. It never chooses a backend: `placement`
//! compares these readings.

use crate::timing::{LONG_US, SHORT_US};
/// The mean before counts as so many answers: the first answer after a pause is not all that is
/// known.
const KNOWN_ANSWERS: f64 = 1.0;
/// Answers of one busy period resemble each other: the standard error is at least this part of the
/// mean.
const ERROR_PART_MIN: f64 = 0.05;

/// One decaying window.
#[derive(Clone, Copy, Default)]
struct Window {
    /// Requests times microseconds.
    area: f64,
    answers: f64,
    /// The mean at the last answer, in us; 0: none yet.
    known_us: f64,
}

impl Window {
    /// What both have seen, at the same moment. Decaying sums are added; what was known counts by
    /// how much each has seen.
    fn joined(self, other: Self) -> Self {
        let answers = self.answers + other.answers;
        let part = |window: Self| (window.answers + KNOWN_ANSWERS) * window.known_us;
        let knowing = |window: Self| {
            if window.known_us > 0.0 { window.answers + KNOWN_ANSWERS } else { 0.0 }
        };
        let known = knowing(self) + knowing(other);
        Self {
            area: self.area + other.area,
            answers,
            known_us: if known > 0.0 { (part(self) + part(other)) / known } else { 0.0 },
        }
    }

    fn advance(&mut self, outstanding: f64, age_us: f64, constant_us: f64) -> f64 {
        let keep = (-age_us / constant_us).exp();
        self.area = self.area * keep + outstanding * constant_us * (1.0 - keep);
        self.answers *= keep;
        keep
    }

    fn answered(&mut self) {
        self.answers += 1.0;
        self.known_us = self.mean_us();
    }

    fn mean_us(&self) -> f64 {
        (self.area + self.known_us * KNOWN_ANSWERS) / (self.answers + KNOWN_ANSWERS)
    }
}

/// A load as numbers.
pub(crate) type LoadRow = [u64; 11];

/// The load of one backend. All zero is a backend of which nothing is known. 96 bytes.
#[derive(Clone, Default)]
pub(crate) struct Load {
    short: Window,
    long: Window,
    /// Squares of the long window's answers.
    squares: f64,
    /// Microseconds of the long window with something outstanding.
    busy: f64,
    /// When the windows were right.
    at_us: u64,
    /// The last answer, or the first request after a time with none outstanding.
    progress_us: u64,
    outstanding: u32,
    seen: bool,
}

/// What a pod's kernel says of its load, as the choice of a backend counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pressed {
    /// Connections before one more, whoever made them.
    pub(crate) queue: u32,
    /// How long one more request is expected to wait at least.
    pub(crate) wait_us: u64,
}

/// What a [`Load`] says at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Reading {
    /// Anything is known.
    pub(crate) known: bool,
    /// And it is of late.
    pub(crate) fresh: bool,
    pub(crate) outstanding: u32,
    /// Mean wait over the short and the long window.
    pub(crate) short_us: f64,
    pub(crate) long_us: f64,
    /// Standard error of `long_us`.
    pub(crate) error_us: f64,
    /// The part of the long window with something outstanding.
    pub(crate) busy: f64,
    /// For how long one request keeps the backend busy.
    pub(crate) each_us: f64,
    /// Answers per second.
    pub(crate) rate: f64,
    /// For how long nothing was answered although something was outstanding.
    pub(crate) stalled_us: u64,
    /// No request is expected to wait less, as the pod's kernel says.
    pub(crate) pressed_us: f64,
}

impl Reading {
    /// Expected wait of one more request behind the outstanding ones.
    pub(crate) fn queue_us(&self) -> f64 {
        ((f64::from(self.outstanding) + 1.0) * self.each_us).max(self.pressed_us)
    }

    /// With what the pod's kernel says, which counts like a wait that was measured.
    pub(crate) fn at_least(self, pressed: Pressed) -> Self {
        let pressed_us = pressed.wait_us as f64;
        Self {
            known: self.known || pressed.wait_us > 0,
            outstanding: self.outstanding.max(pressed.queue),
            short_us: self.short_us.max(pressed_us),
            long_us: self.long_us.max(pressed_us),
            pressed_us,
            ..self
        }
    }
}

impl Load {
    fn advance(&mut self, now_us: u64) {
        let age_us = now_us.saturating_sub(self.at_us) as f64;
        if age_us > 0.0 {
            let outstanding = f64::from(self.outstanding);
            self.short.advance(outstanding, age_us, SHORT_US);
            let keep = self.long.advance(outstanding, age_us, LONG_US);
            self.squares *= keep;
            let busy = if self.outstanding > 0 { LONG_US } else { 0.0 };
            self.busy = self.busy * keep + busy * (1.0 - keep);
            self.at_us = now_us;
        }
    }

    /// A request was sent to the backend.
    pub(crate) fn request(&mut self, now_us: u64) {
        self.advance(now_us);
        if self.outstanding == 0 {
            self.progress_us = now_us;
        }
        self.outstanding = self.outstanding.saturating_add(1);
    }

    /// The first byte of a response arrived, `took_us` after its request was sent.
    pub(crate) fn answered(&mut self, now_us: u64, took_us: u64) {
        self.advance(now_us);
        self.outstanding = self.outstanding.saturating_sub(1);
        self.seen = true;
        self.progress_us = now_us;
        self.squares += took_us as f64 * took_us as f64;
        self.short.answered();
        self.long.answered();
    }

    /// A request will not be answered here: it was moved, or its connection was reset. Its wait so
    /// far counts.
    pub(crate) fn forget(&mut self, now_us: u64) {
        self.advance(now_us);
        self.outstanding = self.outstanding.saturating_sub(1);
    }

    /// A request's own place in the books: how many are outstanding.
    pub(crate) fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// The mean wait as it was at the last answer, without what waits since.
    pub(crate) fn usual_us(&self) -> f64 {
        self.long.known_us
    }

    /// Anything was ever sent there.
    pub(crate) fn is_known(&self) -> bool {
        self.seen || self.outstanding > 0
    }

    /// What this and another worker's requests say together.
    pub(crate) fn joined(&self, other: &Self, now_us: u64) -> Self {
        let (mut a, mut b) = (self.clone(), other.clone());
        // Another worker's clock may be ahead by the time that its row took to come.
        let now_us = now_us.max(a.at_us).max(b.at_us);
        a.advance(now_us);
        b.advance(now_us);
        Self {
            short: a.short.joined(b.short),
            long: a.long.joined(b.long),
            squares: a.squares + b.squares,
            // Busy with either: as if they knew nothing of each other.
            busy: a.busy + b.busy - a.busy * b.busy / LONG_US,
            at_us: now_us,
            progress_us: a.progress_us.max(b.progress_us),
            outstanding: a.outstanding.saturating_add(b.outstanding),
            seen: a.seen || b.seen,
        }
    }

    /// As numbers, for other workers' engines.
    pub(crate) fn to_row(&self) -> LoadRow {
        let Self { short, long, squares, busy, at_us, progress_us, outstanding, seen } = self;
        [
            short.area.to_bits(),
            short.answers.to_bits(),
            short.known_us.to_bits(),
            long.area.to_bits(),
            long.answers.to_bits(),
            long.known_us.to_bits(),
            squares.to_bits(),
            busy.to_bits(),
            *at_us,
            *progress_us,
            u64::from(*outstanding) << 1 | u64::from(*seen),
        ]
    }

    /// From such numbers. They may be of two moments, a microsecond apart.
    pub(crate) fn from_row(row: &LoadRow) -> Self {
        let window = |at: usize| Window {
            area: f64::from_bits(row[at]),
            answers: f64::from_bits(row[at + 1]),
            known_us: f64::from_bits(row[at + 2]),
        };
        Self {
            short: window(0),
            long: window(3),
            squares: f64::from_bits(row[6]),
            busy: f64::from_bits(row[7]),
            at_us: row[8],
            progress_us: row[9],
            outstanding: (row[10] >> 1) as u32,
            seen: row[10] & 1 == 1,
        }
    }

    /// What is known at this time.
    pub(crate) fn reading(&self, now_us: u64) -> Reading {
        let mut now = self.clone();
        now.advance(now_us);
        let long_us = now.long.mean_us();
        // Where hardly anything was answered of late, the mean is as uncertain as it is large.
        let error_us = if now.long.answers < 1.0 {
            long_us
        } else {
            let variance = (now.squares / now.long.answers - long_us * long_us).max(0.0);
            (variance / now.long.answers).sqrt()
        };
        Reading {
            known: self.is_known(),
            fresh: now.long.answers >= 1.0,
            outstanding: self.outstanding,
            short_us: now.short.mean_us(),
            long_us,
            error_us: error_us.max(long_us * ERROR_PART_MIN),
            busy: now.busy / LONG_US,
            each_us: (now.busy + now.long.known_us) / (now.long.answers + KNOWN_ANSWERS),
            rate: now.long.answers * 1e6 / LONG_US,
            stalled_us: if self.outstanding == 0 {
                0
            } else {
                now_us.saturating_sub(self.progress_us)
            },
            pressed_us: 0.0,
        }
    }
}

/// What the others said, by worker and by slot of a backend of ours.
pub(crate) struct Others {
    each: Vec<Box<[Load]>>,
}

impl Others {
    /// With room for so many slots, if there are other workers.
    pub(crate) fn new(workers: u32, slots: usize) -> Self {
        let each = match workers {
            0 | 1 => Vec::new(),
            more => (0..more).map(|_| vec![Load::default(); slots].into_boxed_slice()).collect(),
        };
        Self { each }
    }

    /// The slot is another backend's from now on.
    pub(crate) fn forget(&mut self, slot: usize) {
        for said in &mut self.each {
            if let Some(said) = said.get_mut(slot) {
                *said = Load::default();
            }
        }
    }

    /// Notes what another worker says; what all of them say together, if there is such a worker and
    /// slot.
    pub(crate) fn hear(
        &mut self,
        now_us: u64,
        worker: usize,
        slot: usize,
        said: &LoadRow,
    ) -> Option<Load> {
        *self.each.get_mut(worker)?.get_mut(slot)? = Load::from_row(said);
        let each = self.each.iter().filter_map(|said| said.get(slot));
        Some(each.fold(Load::default(), |all, said| all.joined(said, now_us)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many requests at a time, each answered after `took_us`, from one moment to another.
    fn steady(load: &mut Load, from_us: u64, until_us: u64, at_a_time: u64, took_us: u64) {
        for now_us in (from_us..until_us).step_by(took_us as usize) {
            for _ in 0..at_a_time {
                load.request(now_us);
            }
            for _ in 0..at_a_time {
                load.answered(now_us + took_us, took_us);
            }
        }
    }

    #[test]
    fn is_small() {
        assert_eq!(size_of::<Load>(), 88);
    }

    #[test]
    fn a_steady_wait_is_read_as_it_is() {
        let mut load = Load::default();
        steady(&mut load, 0, 4_000_000, 4, 500);
        let reading = load.reading(4_000_000);
        for us in [reading.short_us, reading.long_us] {
            assert!((us - 500.0).abs() < 10.0, "{reading:?}");
        }
        assert!((reading.busy - 1.0).abs() < 0.01, "{reading:?}");
        assert!((reading.each_us - 125.0).abs() < 2.0, "{reading:?}");
        assert!((reading.rate - 8_000.0).abs() < 40.0, "{reading:?}");
    }

    #[test]
    fn a_stall_shows_while_it_lasts_and_soon_no_more() {
        let mut load = Load::default();
        steady(&mut load, 0, 1_000_000, 8, 200);
        for _ in 0..8 {
            load.request(1_000_000);
        }
        let at = |load: &Load, ms: u64| load.reading(1_000_000 + ms * 1_000).short_us;
        assert!(at(&load, 3) < 260.0, "a slice: {}", at(&load, 3));
        assert!(at(&load, 30) > 800.0, "a stall: {}", at(&load, 30));
        assert_eq!(load.reading(1_030_000).stalled_us, 30_000);
        for _ in 0..8 {
            load.answered(1_030_000, 30_000);
        }
        assert_eq!(load.reading(1_030_000).stalled_us, 0);
        steady(&mut load, 1_030_000, 1_130_000, 8, 200);
        assert!(at(&load, 130) < 230.0, "over: {}", at(&load, 130));
    }

    #[test]
    fn what_was_known_lasts_while_nothing_is_asked() {
        let mut load = Load::default();
        steady(&mut load, 0, 1_000_000, 1, 300);
        let reading = load.reading(60_000_000);
        assert!((reading.short_us - 300.0).abs() < 5.0, "{reading:?}");
        assert!((reading.long_us - 300.0).abs() < 5.0, "{reading:?}");
        assert!(reading.known && reading.error_us >= 295.0, "{reading:?}");
        assert!(!Load::default().reading(1).known);
    }

    /// Two workers that each see a part of the requests know together what one would that sees all.
    #[test]
    fn what_two_workers_see_is_what_one_would() {
        let mut random = fastrand::Rng::with_seed(7);
        let (mut both, mut parts) = (Load::default(), [Load::default(), Load::default()]);
        let mut open: Vec<(usize, u64)> = Vec::new();
        let mut now_us = 0;
        for _ in 0..20_000 {
            now_us += random.u64(1..60);
            if open.len() < 12 && random.bool() {
                let worker = random.usize(..2);
                both.request(now_us);
                parts[worker].request(now_us);
                open.push((worker, now_us));
            } else if !open.is_empty() {
                let (worker, sent_us) = open.swap_remove(random.usize(..open.len()));
                both.answered(now_us, now_us - sent_us);
                parts[worker].answered(now_us, now_us - sent_us);
            }
        }
        let row = parts[1].to_row();
        let joined = parts[0].joined(&Load::from_row(&row), now_us);
        let (one, two) = (both.reading(now_us), joined.reading(now_us));
        assert_eq!(one.outstanding, two.outstanding);
        assert_eq!(one.stalled_us, two.stalled_us);
        let near = |a: f64, b: f64, part: f64| (a - b).abs() <= part * a.max(1.0);
        assert!(near(one.rate, two.rate, 1e-9), "{one:?} {two:?}");
        assert!(near(one.short_us, two.short_us, 0.01), "{one:?} {two:?}");
        assert!(near(one.long_us, two.long_us, 0.01), "{one:?} {two:?}");
        assert!(near(one.error_us, two.error_us, 0.05), "{one:?} {two:?}");
        // Which of their busy times were the same, the sums do not say.
        let apart = parts.map(|part| part.reading(now_us).busy);
        let bounds = f64::max(apart[0], apart[1])..=(apart[0] + apart[1]).min(1.0);
        for busy in [one.busy, two.busy] {
            assert!(bounds.contains(&busy), "{busy} in {bounds:?}");
        }
    }

    #[test]
    fn nothing_joined_changes_nothing() {
        let mut load = Load::default();
        steady(&mut load, 0, 1_000_000, 3, 300);
        load.request(1_000_000);
        let joined = load.joined(&Load::default(), 1_000_500);
        assert_eq!(joined.reading(1_000_500), load.reading(1_000_500));
    }

    #[test]
    fn requests_that_are_taken_away_count_for_their_wait() {
        let mut load = Load::default();
        steady(&mut load, 0, 1_000_000, 1, 300);
        load.request(1_000_000);
        load.forget(1_100_000);
        assert!(load.reading(1_100_000).short_us > 5_000.0);
        load.forget(1_100_000);
        assert_eq!(load.reading(1_100_000).outstanding, 0);
    }
}
