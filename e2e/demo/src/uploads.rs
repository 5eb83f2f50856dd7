//! What moves cost large requests: uploads of 50 KB, 0.2 and 1 MB over one connection to nginx, on
//! a policy where it stays, on one that moves it at every boundary, and on one whose pod drains
//! before each upload, in turns, through the same running dataplane.

use crate::{
    RoundArguments,
    bench::{Figures, keep, succeeded, table},
    scene::{self, Baton, moves, moving},
};
use anyhow::{Context, Result, ensure};
use baton_api::MigrationMode;
use baton_lab::{Dataplane, HttpClient, Lab, content, policy};
use serde::Serialize;
use std::time::{Duration, Instant};

/// Two pods are enough to move between, and keep both warm.
const PODS: usize = 2;
/// The first fits a new pod's first window.
const SIZES: [usize; 3] = [50_000, 200_000, 1_000_000];
/// What 1 MB may take at most where moving is a choice, as a multiple of staying.
const RATIO_MAX: f64 = 1.3;
const MEDIAN: &str = "median_ms";
const P99: &str = "p99_ms";
/// Uploads of each round that nobody measures: windows and caches grow.
const WARM_UP: usize = 3;

/// One way to serve the uploads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Side {
    Never,
    Always,
    /// `DrainOnly`, and the pod that has the connection drains before each upload.
    Draining,
}

impl Side {
    const ALL: [Side; 3] = [Side::Never, Side::Always, Side::Draining];

    fn name(self) -> &'static str {
        match self {
            Side::Never => "never",
            Side::Always => "always",
            Side::Draining => "draining",
        }
    }

    fn port(self) -> u16 {
        80 + self as u16
    }

    fn mode(self) -> MigrationMode {
        match self {
            Side::Never => MigrationMode::Never,
            Side::Always => MigrationMode::Always,
            Side::Draining => MigrationMode::DrainOnly,
        }
    }
}

/// What `uploads.json` holds.
#[derive(Debug, Serialize)]
struct Report {
    uploads: Vec<Row>,
    /// Median of 1 MB with `Always` over that with `Never`.
    ratio: f64,
    /// Client segments that waited for a new owner's window, and those that could not.
    waited: u64,
    full: u64,
}

#[derive(Debug, Serialize)]
struct Row {
    side: Side,
    bytes: usize,
    /// Medians and 99th percentiles of the rounds' uploads, in ms.
    #[serde(flatten)]
    figures: Figures,
    uploads: usize,
    moves: u64,
}

fn quantile(sorted: &[f64], of: f64) -> f64 {
    let at = ((sorted.len() as f64 - 1.0) * of).round();
    sorted.get(at as usize).copied().unwrap_or(f64::NAN)
}

/// Uploads for `length`; their times in ms.
fn measure(
    lab: &Lab,
    dataplane: &Dataplane,
    side: Side,
    body: &[u8],
    length: Duration,
) -> Result<Vec<f64>> {
    let mut client = HttpClient::connect(lab.client().namespace(), dataplane.address(side.port()))?;
    let mut times = Vec::new();
    let target = format!("/upload/{}-{}", side.name(), body.len());
    let mut pod = String::new();
    let mut warm_up = WARM_UP;
    let end = Instant::now() + length;
    while warm_up > 0 || Instant::now() < end {
        if side == Side::Draining && !pod.is_empty() {
            dataplane.tool(&["drain", &pod])?;
        }
        let start = Instant::now();
        let response = client.request("PUT", &target, &[], body)?;
        let took = start.elapsed();
        ensure!(matches!(response.status, 201 | 204), "status {}", response.status);
        if side == Side::Draining && !pod.is_empty() {
            dataplane.tool(&["drain", &pod, "--undo"])?;
        }
        pod = response.pod().context("no pod is named")?.to_owned();
        if warm_up > 0 {
            warm_up -= 1;
        } else {
            times.push(took.as_secs_f64() * 1e3);
        }
    }
    Ok(times)
}

fn counter(dataplane: &Dataplane, name: &str) -> Result<u64> {
    let text = dataplane.control_text("/metrics")?;
    let name = format!("baton_dataplane_{name}");
    let of = text.lines().filter(|line| line.starts_with(&name));
    let values = of.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
    Ok(values.sum::<f64>() as u64)
}

/// Runs the measurement. `true` if 1 MB with `Always` takes no longer than it may.
pub fn uploads(arguments: &RoundArguments) -> Result<bool> {
    let lab = scene::lab("uploads", PODS)?;
    let nginx = scene::nginx(&lab)?;
    let servers = scene::named(&nginx);
    let policies =
        Side::ALL.map(|side| moving(side.mode(), policy(side.name(), side.port(), &servers)));
    let baton = Baton::start(&lab, &lab.dataplane_config(policies.into())?)?;
    let dataplane = &baton.dataplane;
    let mut rows: Vec<Row> = Vec::new();
    for side in Side::ALL {
        rows.extend(SIZES.map(|bytes| Row {
            side,
            bytes,
            figures: Figures::default(),
            uploads: 0,
            moves: 0,
        }));
    }
    let length = Duration::from_secs(arguments.seconds);
    for round in 1..=arguments.rounds {
        fastrand::shuffle(&mut rows);
        for row in &mut rows {
            let body = content(row.bytes, round);
            let name = row.side.name();
            let before = moves(&dataplane.state()?, name).0;
            let mut took = measure(&lab, dataplane, row.side, &body, length)?;
            took.sort_by(f64::total_cmp);
            row.figures.note(MEDIAN, quantile(&took, 0.5));
            row.figures.note(P99, quantile(&took, 0.99));
            row.uploads += took.len();
            row.moves += moves(&dataplane.state()?, name).0 - before;
        }
        eprintln!("round {round} of {}", arguments.rounds);
    }
    rows.sort_by_key(|row| (row.bytes, row.side));
    let largest = |side| {
        let mut rows = rows.iter();
        let row = rows.find(|r| r.side == side && r.bytes == SIZES[2]);
        row.map_or(f64::NAN, |r| r.figures.median(MEDIAN))
    };
    let report = Report {
        ratio: largest(Side::Always) / largest(Side::Never),
        waited: counter(dataplane, "backlog_segments_total")?,
        full: counter(dataplane, "backlog_full_total")?,
        uploads: rows,
    };
    let path = keep(&arguments.out, "uploads.json", &report)?;
    println!("{}", report.table());
    println!("Written to {}", path.display());
    baton.stop()?;
    lab.remove()?;
    let kept = report.ratio <= RATIO_MAX;
    let failure = (!kept).then(|| format!("1 MB took {:.2} times as long", report.ratio));
    Ok(succeeded(failure.as_slice()))
}

impl Report {
    fn table(&self) -> String {
        let columns = [
            ("upload, ms", -12),
            ("bytes", 10),
            ("median (min to max)", 24),
            ("p99", 24),
            ("uploads", 10),
            ("moves", 8),
        ];
        let rows = self.uploads.iter().map(|row| {
            let text = |name| row.figures.get(name).map_or_else(String::new, |f| format!("{f:.1}"));
            vec![
                row.side.name().to_owned(),
                row.bytes.to_string(),
                text(MEDIAN),
                text(P99),
                row.uploads.to_string(),
                row.moves.to_string(),
            ]
        });
        format!(
            "\n{}1 MB with Always: {:.2} times the time of Never (at most {RATIO_MAX}); {} segments waited, {} could not.",
            table(&columns, rows),
            self.ratio,
            self.waited,
            self.full
        )
    }
}
