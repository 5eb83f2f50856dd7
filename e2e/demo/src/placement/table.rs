//! The tables: each cell with its rules, and what was to be shown. At most 80 columns wide.
//!
//! Only words and numbers; judges nothing.

use super::{
    report::Report,
    summary::RuleSummary,
    verdict::{Reached, Row},
};
use crate::bench::{Columns, duration, line, table};
use std::fmt::Write as _;

const COLUMNS: &Columns = &[
    ("rule", -13),
    ("req/s", 7),
    ("x", 6),
    ("p50", 9),
    ("p99", 9),
    ("x", 6),
    ("p99.9", 9),
    ("moved %", 8),
    ("dp", 4),
    ("srv", 5),
    ("err", 4),
];

/// Medians of all rounds, cell by cell.
pub fn cells(report: &Report) -> String {
    let mut text = format!(
        "\nMedians of {} rounds of {} s; ratios (x) to the first rule within each round.\n\
         CPU in us per request: dataplane (dp) and servers (srv).\n\n{}",
        report.rounds,
        report.seconds,
        table(COLUMNS, [])
    );
    for cell in &report.cells {
        // Writing to a string does not fail.
        let _ = writeln!(text, "\n{}", cell.cell.name());
        for rule in &cell.rules {
            let _ = writeln!(text, "{}", line(COLUMNS, &row(rule)));
        }
        for rule in &cell.rules {
            if rule.extra.all().next().is_some() {
                let extra: Vec<_> = rule
                    .extra
                    .all()
                    .map(|(name, figure)| format!("{name} {}", short(figure.median)))
                    .collect();
                let _ = writeln!(text, "  {}: {}", rule.rule, extra.join(", "));
            }
        }
    }
    let disturbed = report.runs.iter().filter(|r| r.is_disturbed()).count();
    if disturbed > 0 {
        let _ = writeln!(
            text,
            "\nDISTURBED: in {disturbed} of {} runs other processes used more than 3 % of the CPUs.",
            report.runs.len()
        );
    }
    text
}

fn row(rule: &RuleSummary) -> Vec<String> {
    let us = |name| duration(rule.median(name).round() as u64);
    vec![
        rule.rule.clone(),
        format!("{:.0}", rule.median("per_second")),
        format!("{:.2}", rule.median("per_second_ratio")),
        us("p50_us"),
        us("p99_us"),
        format!("{:.2}", rule.median("p99_ratio")),
        us("p999_us"),
        format!("{:.2}", rule.median("moved_share") * 100.0),
        format!("{:.0}", rule.median("dataplane_cpu_us")),
        format!("{:.0}", rule.median("servers_cpu_us")),
        rule.errors.to_string(),
    ]
}

fn short(value: f64) -> String {
    if value.abs() >= 100.0 { format!("{value:.0}") } else { format!("{value:.3}") }
}

/// What was to be shown.
pub fn verdict(rows: &[Row]) -> String {
    let columns =
        [("must show", -44), ("measured", 10), ("", 2), ("reached", -9), ("worst cell", -30)];
    let cells = rows.iter().map(|row| {
        let reached = match row.reached {
            Reached::Yes => "yes",
            Reached::No => "NO",
            Reached::NotRun => "not run",
        };
        let measured = row.measured.map_or_else(String::new, |m| format!("{m:.3}"));
        [row.target, &measured, "", reached, &row.cell].map(str::to_owned).to_vec()
    });
    table(&columns, cells)
}
