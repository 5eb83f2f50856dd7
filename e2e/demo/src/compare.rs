//! HAProxy (tcp mode, one thread) and Baton (no migration) in the same place of the same lab, in turns.

use crate::{RoundArguments, kept::keep, report::grouped, rounds::Figure};
use anyhow::{Result, ensure};
use baton_api::{Migration, MigrationMode, Policy};
use baton_lab::{Lab, Listen, Nginx, NginxOptions, Options, WrkOptions, WrkReport, policy};
use serde::Serialize;
use std::{net::SocketAddr, time::Duration};

const PORT: u16 = 80;
/// Connections of the throughput measurement.
const MANY: u32 = 32;
/// The limit of the third measurement, in percent of a CPU.
const HALF: f64 = 50.0;
/// Before each measurement, so that neither side pays for cold caches of the other's turn.
const WARM_UP: Duration = Duration::from_secs(1);

/// What `compare.json` holds.
#[derive(Debug, Serialize)]
struct Comparison {
    seconds: u64,
    haproxy: Side,
    baton: Side,
    /// Baton's p50 at 1 connection divided by HAProxy's; below 1 Baton is faster.
    p50_ratio: f64,
    /// Baton's requests/s at 32 connections divided by HAProxy's; above 1 Baton is faster.
    per_second_ratio: f64,
    /// Baton's p99 at 1 connection with half a CPU divided by HAProxy's; below 1 Baton is faster.
    p99_half_cpu_ratio: f64,
}

#[derive(Debug, Serialize)]
struct Side {
    p50_us_at_1: Figure,
    per_second_at_32: Figure,
    p99_us_at_1_with_half_a_cpu: Figure,
    errors: u64,
}

#[derive(Default)]
struct Rounds {
    p50_us: Vec<f64>,
    per_second: Vec<f64>,
    p99_half_us: Vec<f64>,
    errors: u64,
}

impl Rounds {
    fn measure(&mut self, lab: &Lab, address: SocketAddr, length: Duration) -> Result<()> {
        wrk(lab, address, 1, WARM_UP)?;
        let one = wrk(lab, address, 1, length)?;
        let many = wrk(lab, address, MANY, length)?;
        self.p50_us.push(one.latency.p50_us as f64);
        self.per_second.push(many.per_second());
        lab.dataplane_pod().throttle(HALF)?;
        // Twice: Baton looks at its limit once a second.
        wrk(lab, address, 1, WARM_UP * 2)?;
        let half = wrk(lab, address, 1, length)?;
        lab.dataplane_pod().unthrottle()?;
        self.p99_half_us.push(half.latency.p99_us as f64);
        self.errors += one.errors + many.errors + half.errors;
        Ok(())
    }

    fn side(&self) -> Side {
        Side {
            p50_us_at_1: Figure::of(&self.p50_us),
            per_second_at_32: Figure::of(&self.per_second),
            p99_us_at_1_with_half_a_cpu: Figure::of(&self.p99_half_us),
            errors: self.errors,
        }
    }
}

fn wrk(lab: &Lab, address: SocketAddr, connections: u32, length: Duration) -> Result<WrkReport> {
    let report = lab
        .client()
        .wrk(&WrkOptions {
            connections,
            ..WrkOptions::new(address, length)
        })?
        .join()?;
    ensure!(report.requests > 0, "no response from {address}");
    Ok(report)
}

/// Runs the comparison. `true` if there was no error.
pub fn compare(arguments: &RoundArguments) -> Result<bool> {
    let lab = Lab::new("compare", &Options::default())?;
    let nginx = lab
        .pods()
        .iter()
        .map(|pod| Ok((pod.name().to_owned(), pod.nginx(&NginxOptions::default())?)))
        .collect::<Result<Vec<(String, Nginx)>>>()?;
    let servers: Vec<_> = nginx
        .iter()
        .map(|(name, server)| (name.clone(), server.address()))
        .collect();
    let listen = [Listen {
        checked: false,
        port: PORT,
        servers: servers.clone(),
    }];
    // HAProxy runs in the same namespace and needs the kernel's ports, so Baton's are below them here.
    let mut config = lab.dataplane_config(vec![Policy {
        migration: Migration {
            mode: MigrationMode::Never,
            ..Migration::default()
        },
        ..policy("web", PORT, &servers)
    }])?;
    config.ports = "20000-32767".into();
    let length = Duration::from_secs(arguments.seconds);
    let (mut haproxy_rounds, mut baton_rounds) = (Rounds::default(), Rounds::default());
    for round in 1..=arguments.rounds {
        let mut haproxy = lab.haproxy(&listen)?;
        haproxy_rounds.measure(&lab, haproxy.address(PORT), length)?;
        haproxy.process.kill()?;
        drop(haproxy);
        let dataplane = lab.dataplane(&config)?;
        baton_rounds.measure(&lab, dataplane.address(PORT), length)?;
        let mode = dataplane.state()?.worker.mode;
        dataplane.stop()?;
        eprintln!(
            "round {round} of {}: p50 {} and {} us, {} and {} requests/s, p99 with half a CPU {} and {} us (HAProxy, Baton in \
             {mode} mode)",
            arguments.rounds,
            last(&haproxy_rounds.p50_us),
            last(&baton_rounds.p50_us),
            last(&haproxy_rounds.per_second),
            last(&baton_rounds.per_second),
            last(&haproxy_rounds.p99_half_us),
            last(&baton_rounds.p99_half_us),
        );
    }
    let (haproxy, baton) = (haproxy_rounds.side(), baton_rounds.side());
    let comparison = Comparison {
        seconds: arguments.seconds,
        p50_ratio: baton.p50_us_at_1.median / haproxy.p50_us_at_1.median,
        per_second_ratio: baton.per_second_at_32.median / haproxy.per_second_at_32.median,
        p99_half_cpu_ratio: baton.p99_us_at_1_with_half_a_cpu.median
            / haproxy.p99_us_at_1_with_half_a_cpu.median,
        haproxy,
        baton,
    };
    let path = keep(&arguments.out, "compare.json", &comparison)?;
    print(&comparison);
    println!("Written to {}", path.display());
    lab.remove()?;
    let errors = comparison.haproxy.errors + comparison.baton.errors;
    if errors > 0 {
        eprintln!("baton-demo: {errors} errors");
    }
    Ok(errors == 0)
}

fn last(values: &[f64]) -> String {
    grouped(values.last().map_or(0, |v| v.round() as u64))
}

fn print(comparison: &Comparison) {
    let (h, b) = (&comparison.haproxy, &comparison.baton);
    println!(
        "\n{:<22}{:>24}{:>24}{:>10}",
        "median (min to max)", "HAProxy", "Baton", "ratio"
    );
    for (name, h, b, ratio) in [
        (
            "p50 us, 1 connection",
            &h.p50_us_at_1,
            &b.p50_us_at_1,
            comparison.p50_ratio,
        ),
        (
            "requests/s, 32",
            &h.per_second_at_32,
            &b.per_second_at_32,
            comparison.per_second_ratio,
        ),
        (
            "p99 us, 1, half a CPU",
            &h.p99_us_at_1_with_half_a_cpu,
            &b.p99_us_at_1_with_half_a_cpu,
            comparison.p99_half_cpu_ratio,
        ),
    ] {
        println!("{name:<22}{:>24}{:>24}{ratio:>10.2}", h.text(), b.text());
    }
}
