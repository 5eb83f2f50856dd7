//! Everything that came of a measurement.
//!
//! Owns the form of `placement.json`.

use super::{
    PlacementArguments,
    run::Run,
    summary::{self, CellSummary},
    verdict::{self, Row},
};
use serde::Serialize;
use std::time::Instant;

/// Everything that `placement.json` holds.
#[derive(Debug, Serialize)]
pub struct Report {
    /// When the first run began.
    #[serde(skip)]
    pub start: Instant,
    /// From which the order followed.
    pub seed: u64,
    /// Rounds that were asked for.
    pub rounds: u32,
    /// Length of a measurement.
    pub seconds: u64,
    /// CPUs of this machine.
    pub cpus: usize,
    /// Every run, in the order of their turns.
    pub runs: Vec<Run>,
    /// Medians.
    pub cells: Vec<CellSummary>,
    /// What was to be shown, and whether it was.
    pub verdict: Vec<Row>,
}

impl Report {
    /// An empty one.
    pub fn new(arguments: &PlacementArguments, seed: u64) -> Self {
        Self {
            start: Instant::now(),
            seed,
            rounds: arguments.rounds,
            seconds: arguments.seconds,
            cpus: std::thread::available_parallelism().map_or(0, usize::from),
            runs: Vec::new(),
            cells: Vec::new(),
            verdict: Vec::new(),
        }
    }

    /// Makes the summaries of what was run, and judges them.
    pub fn judge(&mut self) {
        self.cells = summary::of(&self.runs);
        self.verdict = verdict::rows(&self.cells);
    }
}
