//! What all runs say together: medians, and ratios to the base rule within each round.
//!
//! Pure: runs in, figures out.

use super::{BASE, matrix::Cell, run::Run};
use crate::bench::Figures;
use serde::Serialize;

/// One cell.
#[derive(Debug, Serialize)]
pub struct CellSummary {
    /// The cell.
    #[serde(flatten)]
    pub cell: Cell,
    /// Its rules, the base first.
    pub rules: Vec<RuleSummary>,
}

/// One rule in one cell.
#[derive(Debug, Serialize)]
pub struct RuleSummary {
    /// Its name.
    pub rule: String,
    /// The run's own, and `_ratio`: the same divided by that of the base in the same round.
    #[serde(flatten)]
    pub figures: Figures,
    /// Errors of all rounds.
    pub errors: u64,
    /// What only this condition has; of runs that have it.
    pub extra: Figures,
}

/// Summaries of what was run.
pub fn of(runs: &[Run]) -> Vec<CellSummary> {
    let mut cells: Vec<Cell> = Vec::new();
    for run in runs {
        if !cells.contains(&run.cell) {
            cells.push(run.cell);
        }
    }
    cells.sort_by_key(|c| (c.scenario, c.server, c.connections));
    let summary = |cell| {
        let of_cell: Vec<&Run> = runs.iter().filter(|r| r.cell == cell).collect();
        let mut names: Vec<&str> = Vec::new();
        for run in &of_cell {
            if !names.contains(&run.rule.as_str()) {
                names.push(&run.rule);
            }
        }
        // By name but the base first: the order of turns is random.
        names.sort_by_key(|n| (*n != BASE, *n));
        let rules = names.iter().map(|n| rule(n, &of_cell)).collect();
        CellSummary { cell, rules }
    };
    cells.into_iter().map(summary).collect()
}

impl CellSummary {
    /// A rule of this cell.
    pub fn rule(&self, name: &str) -> Option<&RuleSummary> {
        self.rules.iter().find(|r| r.rule == name)
    }
}

fn rule(name: &str, of_cell: &[&Run]) -> RuleSummary {
    let mut runs: Vec<&Run> = of_cell.iter().copied().filter(|r| r.rule == name).collect();
    runs.sort_by_key(|r| r.round);
    let (mut figures, mut extra) = (Figures::default(), Figures::default());
    for run in &runs {
        for (name, value) in FIGURES {
            figures.note(name, value(run));
        }
        let base = of_cell.iter().find(|b| b.rule == BASE && b.round == run.round);
        if let Some(base) = base {
            figures.note("per_second_ratio", run.per_second / base.per_second);
            let p99 = |run: &Run| run.latency.p99_us as f64;
            figures.note("p99_ratio", p99(run) / p99(base));
        }
        for (name, value) in &run.extra {
            extra.note(name, *value);
        }
    }
    RuleSummary {
        rule: name.to_owned(),
        figures,
        errors: runs.iter().map(|r| r.errors).sum(),
        extra,
    }
}

type Value = fn(&Run) -> f64;

/// What a run says, by name.
const FIGURES: [(&str, Value); 7] = [
    ("per_second", |r| r.per_second),
    ("p50_us", |r| r.latency.p50_us as f64),
    ("p99_us", |r| r.latency.p99_us as f64),
    ("p999_us", |r| r.latency.p999_us as f64),
    ("moved_share", |r| r.moved_share),
    ("dataplane_cpu_us", |r| r.dataplane_cpu_us),
    ("servers_cpu_us", |r| r.servers_cpu_us),
];

impl RuleSummary {
    /// The median of one of its figures.
    pub fn median(&self, name: &str) -> f64 {
        self.figures.median(name)
    }

    /// Of each round.
    pub fn rounds(&self, name: &str) -> &[f64] {
        self.figures.get(name).map_or(&[], |f| &f.rounds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::matrix::default_cells;
    use baton_lab::Latency;
    use std::collections::BTreeMap;

    fn run(rule: &str, round: u32, per_second: f64, p99_us: u64) -> Run {
        Run {
            cell: default_cells()[0],
            rule: rule.to_owned(),
            round,
            number: 0,
            per_second,
            latency: Latency { p99_us, ..Latency::default() },
            moved_share: 0.0,
            moves: 0,
            rollbacks: 0,
            moves_by_cause: BTreeMap::new(),
            dataplane_cpu_us: 0.0,
            servers_cpu_us: 0.0,
            others_cpu_share: 0.0,
            errors: 1,
            errors_by_kind: BTreeMap::new(),
            unsent: 0,
            extra: BTreeMap::new(),
        }
    }

    /// The machine is twice as fast in the second round and four times in the third; the rule is
    /// always at 0.8.
    #[test]
    fn ratios_are_those_within_a_round_whatever_the_machine_does_between_rounds() {
        let runs = [
            run("Other", 2, 160.0, 50),
            run(BASE, 1, 100.0, 200),
            run("Other", 1, 80.0, 100),
            run(BASE, 3, 400.0, 20),
            run(BASE, 2, 200.0, 100),
            run("Other", 3, 320.0, 10),
        ];
        let cells = of(&runs);
        let [cell] = &cells[..] else {
            panic!("{} cells", cells.len());
        };
        assert_eq!(cell.rules[0].rule, BASE);
        let other = cell.rule("Other").unwrap();
        assert_eq!(other.rounds("per_second_ratio"), [0.8; 3]);
        assert_eq!(other.rounds("p99_ratio"), [0.5; 3]);
        assert_eq!(other.rounds("per_second"), [80.0, 160.0, 320.0]);
        assert_eq!((other.median("per_second"), other.errors), (160.0, 3));
        assert_eq!(cell.rules[0].rounds("per_second_ratio"), [1.0; 3]);
    }
}
