//! The tables: each cell with its rules, and what was to be shown. At most 80 columns wide.
//!
//! Only words and numbers; judges nothing.

use super::{
    summary::{Report, RuleSummary},
    verdict::{Reached, Row},
};
use crate::report::duration;
use std::fmt::Write as _;

/// Medians of all rounds, cell by cell.
pub fn cells(report: &Report) -> String {
    let mut text = format!(
        "\nMedians of {} rounds of {} s; ratios (x) to the first rule within each round.\n\
         CPU in us per request: dataplane (dp) and servers (srv).\n\n\
         {:<13}{:>7}{:>6}{:>9}{:>9}{:>6}{:>9}{:>8}{:>4}{:>5}{:>4}\n",
        report.rounds,
        report.seconds,
        "rule",
        "req/s",
        "x",
        "p50",
        "p99",
        "x",
        "p99.9",
        "moved %",
        "dp",
        "srv",
        "err"
    );
    for cell in &report.cells {
        // Writing to a string does not fail.
        let _ = writeln!(text, "\n{}", cell.cell.name());
        for rule in &cell.rules {
            let _ = writeln!(text, "{}", line(rule));
        }
        for rule in &cell.rules {
            if !rule.extra.is_empty() {
                let extra: Vec<_> = rule
                    .extra
                    .iter()
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

fn line(rule: &RuleSummary) -> String {
    let us = |value: f64| duration(value.round() as u64);
    format!(
        "{:<13}{:>7.0}{:>6.2}{:>9}{:>9}{:>6.2}{:>9}{:>8.2}{:>4.0}{:>5.0}{:>4}",
        rule.rule,
        rule.per_second.median,
        rule.per_second_ratio.median,
        us(rule.p50_us.median),
        us(rule.p99_us.median),
        rule.p99_ratio.median,
        us(rule.p999_us.median),
        rule.moved_share.median * 100.0,
        rule.dataplane_cpu_us.median,
        rule.servers_cpu_us.median,
        rule.errors
    )
}

fn short(value: f64) -> String {
    if value.abs() >= 100.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.3}")
    }
}

/// What was to be shown.
pub fn verdict(rows: &[Row]) -> String {
    let mut text = format!(
        "{:<44}{:>10}  {:<9}{}\n",
        "must show", "measured", "reached", "worst cell"
    );
    for row in rows {
        let reached = match row.reached {
            Reached::Yes => "yes",
            Reached::No => "NO",
            Reached::NotRun => "not run",
        };
        let measured = row.measured.map_or_else(String::new, |m| format!("{m:.3}"));
        let _ = writeln!(
            text,
            "{:<44}{measured:>10}  {reached:<9}{}",
            row.target, row.cell
        );
    }
    text
}
