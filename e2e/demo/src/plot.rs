//! The plot: latency over time as the checking client saw it, migration off and on, on a
//! logarithmic scale.

use crate::{
    bench::duration,
    report::{Report, Side},
};
use anyhow::{Result, anyhow};
use plotters::prelude::*;
use std::path::Path;

const SIZE: (u32, u32) = (900, 480);
const OFF: RGBColor = RGBColor(196, 64, 48);
const ON: RGBColor = RGBColor(32, 112, 176);

/// Writes the SVG.
pub fn write(path: &Path, report: &Report) -> Result<()> {
    draw(path, report).map_err(|e| anyhow!("drawing {}: {e}", path.display()))
}

fn draw(path: &Path, report: &Report) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let settings = &report.settings;
    let root = root.titled(
        &format!(
            "Latency with {} limited to {} % of a CPU: migration off and on",
            settings.throttled_pod, settings.throttle_percent
        ),
        ("sans-serif", 20),
    )?;
    let (upper, lower) = root.split_vertically(SIZE.1 - 70);
    let highest = [&report.off, &report.on]
        .iter()
        .flat_map(|s| &s.checked.windows)
        .map(|w| w.latency.max_us)
        .max()
        .unwrap_or(1);
    let mut chart = ChartBuilder::on(&upper)
        .margin(10)
        .x_label_area_size(34)
        .y_label_area_size(70)
        .build_cartesian_2d(
            0.0..settings.seconds as f64,
            // A decade of room above the highest point, for the legend.
            (10.0..(highest as f64 * 10.0).max(10_000.0)).log_scale(),
        )?;
    chart
        .configure_mesh()
        .x_desc("seconds since the run's start")
        .y_desc("latency")
        .y_label_formatter(&|us| duration(us.round() as u64))
        .x_label_formatter(&|s| format!("{s:.0}"))
        .light_line_style(WHITE)
        .draw()?;
    for (side, name, color) in
        [(&report.off, "migration off", OFF), (&report.on, "migration on", ON)]
    {
        let max = points(side, settings.seconds, |w| w.latency.max_us);
        let median = points(side, settings.seconds, |w| w.latency.p50_us);
        chart
            .draw_series(LineSeries::new(max, color.stroke_width(2)))?
            .label(format!("{name}: slowest request"))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
        chart
            .draw_series(DashedLineSeries::new(median, 5, 4, color.stroke_width(1)))?
            .label(format!("{name}: median"))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 6, y)], color.stroke_width(1)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.8))
        .border_style(RGBColor(200, 200, 200))
        .draw()?;
    let small = ("sans-serif", 13).into_font().color(&RGBColor(90, 90, 90));
    for (line, text) in [
        format!(
            "Per 250 ms: slowest request and median of the checking client (16 connections, {} and {} \
             requests, every byte checked),",
            report.off.checked.requests, report.on.checked.requests
        ),
        format!(
            "running beside wrk ({} connections: p99 {} off, {} on). Two runs, one after the other, \
             same pods, same clients.",
            settings.connections,
            duration(report.off.p99_us),
            duration(report.on.p99_us)
        ),
    ]
    .into_iter()
    .enumerate()
    {
        lower.draw(&Text::new(text, (20, 2 + 18 * line as i32), small.clone()))?;
    }
    root.present()?;
    Ok(())
}

/// (seconds, microseconds) at the middle of each window. A logarithmic scale has no zero. What
/// ended after the run's end are a few stragglers, which make no median: they are in the table's
/// figures, not here.
fn points(side: &Side, seconds: u64, value: impl Fn(&baton_lab::Window) -> u64) -> Vec<(f64, f64)> {
    side.checked
        .windows
        .iter()
        .filter(|w| w.start_ms < seconds * 1_000)
        .map(|w| {
            let middle_s = (w.start_ms as f64 + 125.0) / 1e3;
            (middle_s, (value(w) as f64).max(10.0))
        })
        .collect()
}
