//! What was to be shown, and whether it was: one row for each target, with the cell that is
//! farthest from it.
//!
//! Pure: summaries in, rows out.

use super::{
    BASE, JUDGED, WITHOUT_SLOW,
    matrix::{Scenario, Server},
    summary::{CellSummary, RuleSummary},
};
use serde::Serialize;

/// One target.
#[derive(Debug, Serialize)]
pub struct Row {
    /// What it is, and the bound.
    pub target: &'static str,
    /// The measured value that is farthest from it.
    pub measured: Option<f64>,
    /// Where.
    pub cell: String,
    /// The answer.
    pub reached: Reached,
}

/// Whether a target was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reached {
    /// In all cells.
    Yes,
    /// In at least one cell not.
    No,
    /// No cell of it was run.
    NotRun,
}

/// A bound, which a figure must keep to three decimals.
#[derive(Clone, Copy)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Bound {
    /// By how much a value misses it; not above 0 if it is kept.
    fn missed_by(self, value: f64) -> f64 {
        let rounded = |v: f64| (v * 1e3).round() / 1e3;
        match self {
            Self::AtLeast(bound) => bound - rounded(value),
            Self::AtMost(bound) => rounded(value) - bound,
        }
    }
}

/// The judged rule in one cell, beside the base.
struct Judged<'a> {
    cell: &'a CellSummary,
    rule: &'a RuleSummary,
    base: &'a RuleSummary,
}

/// All targets.
pub fn rows(cells: &[CellSummary]) -> Vec<Row> {
    use Scenario as S;
    let judged: Vec<Judged<'_>> = cells
        .iter()
        .filter_map(|cell| {
            let (rule, base) = (cell.rule(JUDGED)?, cell.rule(BASE)?);
            Some(Judged { cell, rule, base })
        })
        .collect();
    let row = |target,
               bound: Bound,
               scenarios: &[S],
               value: &dyn Fn(&Judged<'_>) -> Option<f64>| {
        let found = judged
            .iter()
            .filter(|j| scenarios.contains(&j.cell.cell.scenario))
            .filter_map(|j| Some((value(j)?, j.cell.cell.name())))
            .max_by(|a, b| bound.missed_by(a.0).total_cmp(&bound.missed_by(b.0)));
        match found {
            None => Row { target, measured: None, cell: String::new(), reached: Reached::NotRun },
            Some((value, cell)) => Row {
                target,
                measured: Some(value),
                cell,
                // What is not a number is no success.
                reached: if bound.missed_by(value) <= 1e-9 { Reached::Yes } else { Reached::No },
            },
        }
    };
    let equal = [S::Identical, S::Idle];
    let slower = [S::OneAt50, S::TwiceAsSlow, S::Noisy];
    let zipf = [S::Zipf09, S::Zipf10, S::Zipf12];
    let alone = |j: &Judged<'_>, name: &str| {
        let reference = j.cell.rule(WITHOUT_SLOW)?.median(name);
        (j.cell.cell.server == Server::Node).then(|| j.rule.median(name) / reference)
    };
    let extra = |j: &Judged<'_>, name: &str| j.rule.extra.get(name).map(|f| f.median);
    // A run without this time did not get there.
    let time_to = |j: &Judged<'_>, name: &str| match j.rule.extra.get(name) {
        Some(f) if f.rounds.len() == j.rule.rounds("per_second").len() => f.median,
        _ => f64::INFINITY,
    };
    vec![
        row("identical, idle: throughput x >= 0.98", Bound::AtLeast(0.98), &equal, &|j| {
            Some(j.rule.median("per_second_ratio"))
        }),
        row("identical, idle: p99 x <= 1.05", Bound::AtMost(1.05), &equal, &|j| {
            Some(j.rule.median("p99_ratio"))
        }),
        row("identical, idle: moved % <= 0.5", Bound::AtMost(0.5), &equal, &|j| {
            Some(j.rule.median("moved_share") * 100.0)
        }),
        row("demo, one at 5 %: p99 Never / here >= 20", Bound::AtLeast(20.0), &[S::Demo], &|j| {
            Some(j.base.median("p99_us") / j.rule.median("p99_us"))
        }),
        row(
            "Node, one at 5 %: throughput / three >= 0.95",
            Bound::AtLeast(0.95),
            &[S::OneAt5],
            &|j| alone(j, "per_second"),
        ),
        row("Node, one at 5 %: p99 / three alone <= 2", Bound::AtMost(2.0), &[S::OneAt5], &|j| {
            alone(j, "p99_us")
        }),
        row("one falls to 5 %: found out, ms <= 50", Bound::AtMost(50.0), &[S::Onset], &|j| {
            Some(time_to(j, "found_after_ms"))
        }),
        row("one at 50 %, 2x slow, noisy: p99 x <= 0.7", Bound::AtMost(0.7), &slower, &|j| {
            Some(j.rule.median("p99_ratio"))
        }),
        row("one at 50 %, 2x slow, noisy: req/s x >= 1", Bound::AtLeast(1.0), &slower, &|j| {
            Some(j.rule.median("per_second_ratio"))
        }),
        row("frozen 2 s: p99 during / before <= 3", Bound::AtMost(3.0), &[S::Frozen], &|j| {
            Some(extra(j, "during_p99_us")? / extra(j, "before_p99_us")?)
        }),
        row("Zipf: p99 / that of Prequal's rule <= 1", Bound::AtMost(1.0), &zipf, &|j| {
            Some(j.rule.median("p99_us") / j.cell.rule("Prequal")?.median("p99_us"))
        }),
        row("2 to 6: 0.8 of the fair share, s <= 5", Bound::AtMost(5.0), &[S::ScaleOut], &|j| {
            Some(time_to(j, "share_after_s"))
        }),
        row("2 to 6: most moves of a flow <= 2", Bound::AtMost(2.0), &[S::ScaleOut], &|j| {
            j.rule.extra.get("moves_of_a_flow_max").map(|f| f.max)
        }),
        row("all slow: moves/s / those in calm <= 1", Bound::AtMost(1.0), &[S::AllSlow], &|j| {
            let slow = extra(j, "slow_moves_per_second")?;
            let calm = extra(j, "calm_moves_per_second")?;
            Some(if slow == 0.0 { 0.0 } else { slow / calm })
        }),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_kept_to_three_decimals() {
        assert!(Bound::AtLeast(0.98).missed_by(0.97951) <= 1e-9);
        assert!(Bound::AtLeast(0.98).missed_by(0.979) > 1e-9);
        assert!(Bound::AtMost(0.5).missed_by(0.5004) <= 1e-9);
        assert!(Bound::AtMost(0.5).missed_by(0.501) > 1e-9);
        assert!(Bound::AtMost(5.0).missed_by(f64::INFINITY) > 0.0);
    }
}
