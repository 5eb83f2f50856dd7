//! Figures of one run and of many: what happened how often, and which rows of the declared table
//! were taken.
//!
//! Owns sums and their text. It never decides whether a run was right.

use crate::{fault::Fault, link::Fate, steady::Seen};
use baton_engine::states::TABLE;
use std::{collections::BTreeMap, fmt::Write};

/// What is counted.
#[derive(Clone, Debug)]
pub struct Stats {
    /// Runs.
    pub seeds: u64,
    /// Steps: calls of the engine, and of clients and pods.
    pub steps: u64,
    /// Frames given to the engine.
    pub frames: u64,
    /// Connections.
    pub connections: u64,
    /// Requests begun.
    pub requests: u64,
    /// Responses that clients have wholly.
    pub answered: u64,
    /// Executions, and those of requests that had been executed before.
    pub executions: u64,
    /// Executions of a request that had been executed before.
    pub replays: u64,
    /// Migrations that were confirmed.
    pub migrations: u64,
    /// Adoptions taken back.
    pub rollbacks: u64,
    /// Flows rescued.
    pub rescues: u64,
    /// Requests that pods let go of.
    pub releases: u64,
    /// Connections that another pod's application took.
    pub transfers: u64,
    /// Requests executed by pods that saw their clients.
    pub restored: u64,
    /// Virtual time.
    pub virtual_us: u64,
    /// Frames by what became of them on links.
    pub fates: [u64; Fate::ALL.len()],
    /// Worlds by wild fault.
    pub faults: [u64; Fault::ALL.len()],
    /// Ends that clients saw, by explanation.
    pub ends: BTreeMap<&'static str, u64>,
    /// Of steady worlds: what moved.
    pub steady: Seen,
    /// How often each row of the declared table was taken.
    pub rows: Vec<u64>,
    /// The engine's counters by name.
    pub counters: BTreeMap<String, u64>,
}

impl Default for Stats {
    fn default() -> Self {
        Self {
            seeds: 0,
            steps: 0,
            frames: 0,
            connections: 0,
            requests: 0,
            answered: 0,
            executions: 0,
            replays: 0,
            migrations: 0,
            rollbacks: 0,
            rescues: 0,
            releases: 0,
            transfers: 0,
            restored: 0,
            virtual_us: 0,
            fates: [0; Fate::ALL.len()],
            faults: [0; Fault::ALL.len()],
            ends: BTreeMap::new(),
            steady: Seen::default(),
            rows: vec![0; TABLE.len()],
            counters: BTreeMap::new(),
        }
    }
}

impl Stats {
    /// Adds another run's, or other runs', figures.
    pub fn add(&mut self, other: &Stats) {
        for (sum, more) in [
            (&mut self.seeds, other.seeds),
            (&mut self.steps, other.steps),
            (&mut self.frames, other.frames),
            (&mut self.connections, other.connections),
            (&mut self.requests, other.requests),
            (&mut self.answered, other.answered),
            (&mut self.executions, other.executions),
            (&mut self.replays, other.replays),
            (&mut self.migrations, other.migrations),
            (&mut self.rollbacks, other.rollbacks),
            (&mut self.rescues, other.rescues),
            (&mut self.releases, other.releases),
            (&mut self.transfers, other.transfers),
            (&mut self.restored, other.restored),
            (&mut self.virtual_us, other.virtual_us),
        ] {
            *sum += more;
        }
        let each = |sums: &mut [u64], more: &[u64]| {
            for (sum, more) in sums.iter_mut().zip(more) {
                *sum += more;
            }
        };
        each(&mut self.fates, &other.fates);
        each(&mut self.faults, &other.faults);
        each(&mut self.rows, &other.rows);
        self.steady.add(&other.steady);
        for (name, more) in &other.ends {
            *self.ends.entry(name).or_default() += more;
        }
        for (name, more) in &other.counters {
            *self.counters.entry(name.clone()).or_default() += more;
        }
    }

    /// Rows of the declared table that no run took.
    #[must_use]
    pub fn unreached(&self) -> Vec<String> {
        let rows = TABLE.iter().zip(&self.rows);
        rows.filter(|(_, taken)| **taken == 0)
            .map(|(row, _)| format!("{} + {}", row.from.name(), row.event.name()))
            .collect()
    }

    /// The summary for people; with the rows of the declared table that were never taken, where
    /// many runs make that worth saying.
    #[must_use]
    pub fn table(&self, name_unreached: bool) -> String {
        let mut text = String::new();
        let mut row = |name: &str, value: String| {
            let _ = writeln!(text, "  {name:<28} {value:>14}");
        };
        for (name, value) in [
            ("seeds", self.seeds),
            ("steps", self.steps),
            ("frames to the engine", self.frames),
            ("connections", self.connections),
            ("requests begun", self.requests),
            ("answered", self.answered),
            ("executions", self.executions),
            ("of these once more", self.replays),
            ("migrations", self.migrations),
            ("rollbacks", self.rollbacks),
            ("rescues", self.rescues),
            ("releases", self.releases),
            ("transfers", self.transfers),
            ("restored", self.restored),
        ] {
            row(name, value.to_string());
        }
        row("virtual time", format!("{} s", self.virtual_us / 1_000_000));
        let _ = writeln!(text, "ends that clients saw:");
        for (name, count) in &self.ends {
            let _ = writeln!(text, "  {name:<28} {count:>14}");
        }
        let _ = writeln!(text, "frames on links:");
        for (fate, count) in Fate::ALL.iter().zip(self.fates) {
            let _ = writeln!(text, "  {:<28} {count:>14}", fate.name());
        }
        let _ = writeln!(text, "worlds by wild fault:");
        let kinds: Vec<String> = Fault::ALL
            .iter()
            .zip(self.faults)
            .map(|(fault, count)| format!("{} {count}", fault.name()))
            .collect();
        for line in kinds.chunks(6) {
            let _ = writeln!(text, "  {}", line.join(", "));
        }
        let _ = writeln!(text, "{}", self.steady);
        let unreached = self.unreached();
        let _ = writeln!(
            text,
            "rows of the declared table: {} of {} taken",
            self.rows.len() - unreached.len(),
            self.rows.len()
        );
        for row in unreached.iter().filter(|_| name_unreached) {
            let _ = writeln!(text, "  never: {row}");
        }
        text
    }
}
