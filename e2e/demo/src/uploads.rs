//! What moves cost large requests: uploads of 50 KB, 0.2 and 1 MB over one connection to nginx, on a policy where it stays, on one that
//! moves it at every boundary, and on one whose pod drains before each upload, in turns, through the same running dataplane.

use crate::{
    RoundArguments,
    kept::keep,
    rounds::Figure,
    run::{moves, wait_adoptable},
};
use anyhow::{Context, Result, ensure};
use baton_api::{Migration, MigrationMode, Policy};
use baton_lab::{Dataplane, HttpClient, Lab, NginxOptions, Options, content, policy};
use serde::Serialize;
use std::time::{Duration, Instant};

/// Two pods are enough to move between, and keep both warm.
const PODS: usize = 2;
/// The first fits a new pod's first window.
const SIZES: [usize; 3] = [50_000, 200_000, 1_000_000];
/// What 1 MB may take at most where moving is a choice, as a multiple of staying.
const RATIO_MAX: f64 = 1.3;
/// Uploads of each round that nobody measures: windows and caches grow.
const WARM_UP: usize = 3;

/// One way to serve the uploads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    side: &'static str,
    bytes: usize,
    /// Medians and 99th percentiles of the rounds' uploads, in ms.
    median_ms: Figure,
    p99_ms: Figure,
    uploads: usize,
    moves: u64,
}

#[derive(Default)]
struct Times {
    median_ms: Vec<f64>,
    p99_ms: Vec<f64>,
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
        ensure!(
            matches!(response.status, 201 | 204),
            "status {}",
            response.status
        );
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
    let options = Options {
        pods: PODS,
        ..Options::default()
    };
    let lab = Lab::new("uploads", &options)?;
    let nginx = lab
        .pods()
        .iter()
        .map(|pod| Ok((pod.name().to_owned(), pod.nginx(&NginxOptions::default())?)))
        .collect::<Result<Vec<_>>>()?;
    let servers: Vec<_> = nginx
        .iter()
        .map(|(n, s)| (n.clone(), s.address()))
        .collect();
    let shim = lab.shim(&lab.shim_config()?)?;
    let policies = Side::ALL.map(|side| Policy {
        migration: Migration {
            mode: side.mode(),
            cooldown: Default::default(),
            ..Migration::default()
        },
        ..policy(side.name(), side.port(), &servers)
    });
    let config = lab.dataplane_config(policies.into())?;
    lab.reserve_ports(&config)?;
    let dataplane = lab.dataplane(&config)?;
    wait_adoptable(&dataplane)?;
    let mut times: Vec<(Side, usize, Times)> = Vec::new();
    for side in Side::ALL {
        times.extend(SIZES.map(|bytes| (side, bytes, Times::default())));
    }
    let length = Duration::from_secs(arguments.seconds);
    for round in 1..=arguments.rounds {
        fastrand::shuffle(&mut times);
        for (side, bytes, times) in &mut times {
            let body = content(*bytes, round);
            let before = moves(&dataplane.state()?, side.name()).0;
            let mut took = measure(&lab, &dataplane, *side, &body, length)?;
            took.sort_by(f64::total_cmp);
            times.median_ms.push(quantile(&took, 0.5));
            times.p99_ms.push(quantile(&took, 0.99));
            times.uploads += took.len();
            times.moves += moves(&dataplane.state()?, side.name()).0 - before;
        }
        eprintln!("round {round} of {}", arguments.rounds);
    }
    times.sort_by_key(|(side, bytes, _)| (*bytes, *side as u8));
    let rows: Vec<Row> = times
        .iter()
        .map(|(side, bytes, times)| Row {
            side: side.name(),
            bytes: *bytes,
            median_ms: Figure::of(&times.median_ms),
            p99_ms: Figure::of(&times.p99_ms),
            uploads: times.uploads,
            moves: times.moves,
        })
        .collect();
    let largest = |side: Side| {
        let row = rows
            .iter()
            .find(|r| r.side == side.name() && r.bytes == SIZES[2]);
        row.map_or(f64::NAN, |r| r.median_ms.median)
    };
    let report = Report {
        ratio: largest(Side::Always) / largest(Side::Never),
        waited: counter(&dataplane, "backlog_segments_total")?,
        full: counter(&dataplane, "backlog_full_total")?,
        uploads: rows,
    };
    let path = keep(&arguments.out, "uploads.json", &report)?;
    print(&report);
    println!("Written to {}", path.display());
    dataplane.stop()?;
    shim.stop()?;
    lab.remove()?;
    Ok(report.ratio <= RATIO_MAX)
}

fn print(report: &Report) {
    let text = |f: &Figure| format!("{:.1} ({:.1} to {:.1})", f.median, f.min, f.max);
    println!(
        "\n{:<12}{:>10}{:>24}{:>24}{:>10}{:>8}",
        "upload, ms", "bytes", "median (min to max)", "p99", "uploads", "moves"
    );
    for row in &report.uploads {
        println!(
            "{:<12}{:>10}{:>24}{:>24}{:>10}{:>8}",
            row.side,
            row.bytes,
            text(&row.median_ms),
            text(&row.p99_ms),
            row.uploads,
            row.moves
        );
    }
    println!(
        "1 MB with Always: {:.2} times the time of Never (at most {RATIO_MAX}); {} segments waited, {} could not.",
        report.ratio, report.waited, report.full
    );
}
