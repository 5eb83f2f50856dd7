//! The frontier: p99 against the share of requests that moved. A panel for each cell; each run a
//! dot, medians larger.

use super::{report::Report, summary::CellSummary};
use crate::bench::duration;
use anyhow::{Result, anyhow};
use plotters::{
    coord::{Shift, combinators::BindKeyPoints},
    prelude::*,
};
use std::path::Path;

const COLUMNS: usize = 3;
const PANEL: (u32, u32) = (330, 250);
const LEGEND_HEIGHT: u32 = 60;
/// By the order of first appearance.
const COLORS: [RGBColor; 8] = [
    RGBColor(110, 110, 110),
    RGBColor(196, 64, 48),
    RGBColor(32, 112, 176),
    RGBColor(220, 150, 20),
    RGBColor(60, 150, 70),
    RGBColor(140, 80, 170),
    RGBColor(20, 160, 160),
    RGBColor(150, 100, 60),
];
/// A logarithmic scale has no zero: shares below 0.01 % stand there.
const SHARE_MIN_PERCENT: f64 = 0.01;

/// Writes the SVG.
pub fn write(path: &Path, report: &Report) -> Result<()> {
    draw(path, report).map_err(|e| anyhow!("drawing {}: {e}", path.display()))
}

fn draw(path: &Path, report: &Report) -> Result<(), Box<dyn std::error::Error>> {
    let rows = report.cells.len().div_ceil(COLUMNS).max(1);
    let size = (PANEL.0 * COLUMNS as u32, PANEL.1 * rows as u32 + LEGEND_HEIGHT);
    let root = SVGBackend::new(path, size).into_drawing_area();
    root.fill(&WHITE)?;
    let (head, body) = root.split_vertically(LEGEND_HEIGHT);
    let mut names: Vec<&str> = Vec::new();
    for rule in report.cells.iter().flat_map(|c| &c.rules) {
        if !names.contains(&rule.rule.as_str()) {
            names.push(&rule.rule);
        }
    }
    let small = ("sans-serif", 13).into_font().color(&RGBColor(60, 60, 60));
    head.draw(&Text::new(
        format!(
            "p99 against requests that moved; each of {} runs a dot, medians ringed (seed {})",
            report.runs.len(),
            report.seed
        ),
        (12, 8),
        ("sans-serif", 16).into_font(),
    ))?;
    for (i, name) in names.iter().enumerate() {
        let x = 16 + 120 * i as i32;
        head.draw(&Circle::new((x, 44), 5, COLORS[i % COLORS.len()].filled()))?;
        head.draw(&Text::new((*name).to_owned(), (x + 10, 37), small.clone()))?;
    }
    let panels = body.split_evenly((rows, COLUMNS));
    for (panel, cell) in panels.iter().zip(&report.cells) {
        draw_cell(panel, report, cell, &names)?;
    }
    root.present()?;
    Ok(())
}

fn draw_cell(
    panel: &DrawingArea<SVGBackend<'_>, Shift>,
    report: &Report,
    cell: &CellSummary,
    names: &[&str],
) -> Result<(), Box<dyn std::error::Error>> {
    let percent = |share: f64| (share * 100.0).max(SHARE_MIN_PERCENT);
    let runs: Vec<_> = report.runs.iter().filter(|r| r.cell == cell.cell).collect();
    let p99 = |us: u64| us.max(1) as f64;
    let least = runs.iter().map(|r| p99(r.latency.p99_us)).fold(f64::MAX, f64::min);
    let most = runs.iter().map(|r| p99(r.latency.p99_us)).fold(1.0, f64::max);
    // A range of a factor of 4 at least holds a tick.
    let (low, high) = (least / 2.0, most * 2.0);
    let mut chart = ChartBuilder::on(panel)
        .caption(cell.cell.name(), ("sans-serif", 14))
        .margin(8)
        .x_label_area_size(28)
        .y_label_area_size(62)
        .build_cartesian_2d(
            (SHARE_MIN_PERCENT * 0.7..150.0).log_scale(),
            (low..high).log_scale().with_key_points(ticks(low, high)),
        )?;
    chart
        .configure_mesh()
        .x_labels(5)
        .x_label_formatter(&|p| format!("{p} %"))
        .y_label_formatter(&|us| duration(us.round() as u64))
        .light_line_style(WHITE)
        .draw()?;
    for (i, name) in names.iter().enumerate() {
        let color = COLORS[i % COLORS.len()];
        chart.draw_series(runs.iter().filter(|r| r.rule == *name).map(|r| {
            Circle::new((percent(r.moved_share), p99(r.latency.p99_us)), 3, color.mix(0.6).filled())
        }))?;
        if let Some(rule) = cell.rule(name) {
            let at = (percent(rule.median("moved_share")), rule.median("p99_us").max(1.0));
            chart.draw_series([Circle::new(at, 7, color.stroke_width(2))])?;
        }
    }
    Ok(())
}

/// 1, 2 and 5 times each power of ten in the range.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    (0..10)
        .flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(power)))
        .filter(|tick| (low..=high).contains(tick))
        .collect()
}
