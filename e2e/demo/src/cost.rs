//! What one migration costs a request: p50 at 1 connection with nginx, on a policy where connections stay and on
//! one where they move for every request, in turns, through the same running dataplane.

use crate::{
    RoundArguments,
    kept::keep,
    phases::{PhaseRounds, Phases},
    rounds::Figure,
    run::{moves, wait_adoptable},
};
use anyhow::{Result, ensure};
use baton_api::{Migration, MigrationMode, Policy};
use baton_lab::{Dataplane, Lab, Nginx, NginxOptions, Options, WrkOptions, policy};
use serde::Serialize;
use std::{net::SocketAddr, time::Duration};

const STAY_PORT: u16 = 80;
const MOVE_PORT: u16 = 81;
/// Two pods are enough to move between, and keep both warm.
const PODS: usize = 2;

/// What `migration.json` holds.
#[derive(Debug, Serialize)]
struct Cost {
    seconds: u64,
    stay: Side,
    migrate: Side,
    /// Median p50 of moving less that of staying.
    difference_us: f64,
    /// Migrations per request of the moving side; 1 if each request moved.
    migrations_per_request: f64,
    /// Where the time goes, step by step, with a server that says so.
    phases: Phases,
}

#[derive(Debug, Serialize)]
struct Side {
    p50_us: Figure,
    p99_us: Figure,
    /// CPU time of the dataplane per request.
    dataplane_cpu_us: Figure,
    /// CPU time of all nginx per request, kernel work on their behalf included.
    nginx_cpu_us: Figure,
    requests: u64,
    errors: u64,
    migrations: u64,
    rollbacks: u64,
}

#[derive(Default)]
struct Rounds {
    p50_us: Vec<f64>,
    p99_us: Vec<f64>,
    dataplane_cpu_us: Vec<f64>,
    nginx_cpu_us: Vec<f64>,
    requests: u64,
    errors: u64,
}

impl Rounds {
    fn measure(
        &mut self,
        lab: &Lab,
        dataplane: &Dataplane,
        nginx: &[(String, Nginx)],
        port: u16,
        length: Duration,
    ) -> Result<()> {
        let cpu = || {
            let servers: Duration = nginx.iter().map(|(_, n)| n.process.cpu_time()).sum();
            (dataplane.process.cpu_time(), servers)
        };
        let before = cpu();
        let report = lab
            .client()
            .wrk(&WrkOptions {
                connections: 1,
                ..WrkOptions::new(dataplane.address(port), length)
            })?
            .join()?;
        let after = cpu();
        ensure!(report.requests > 0, "no response on port {port}");
        let each = |d: Duration| d.as_secs_f64() * 1e6 / report.requests as f64;
        self.p50_us.push(report.latency.p50_us as f64);
        self.p99_us.push(report.latency.p99_us as f64);
        self.dataplane_cpu_us.push(each(after.0 - before.0));
        self.nginx_cpu_us.push(each(after.1 - before.1));
        self.requests += report.requests;
        self.errors += report.errors;
        Ok(())
    }

    fn side(&self, (migrations, rollbacks): (u64, u64)) -> Side {
        Side {
            p50_us: Figure::of(&self.p50_us),
            p99_us: Figure::of(&self.p99_us),
            dataplane_cpu_us: Figure::of(&self.dataplane_cpu_us),
            nginx_cpu_us: Figure::of(&self.nginx_cpu_us),
            requests: self.requests,
            errors: self.errors,
            migrations,
            rollbacks,
        }
    }
}

/// Runs the measurement. `true` if there was no error and each request of the moving side moved.
pub fn migration_cost(arguments: &RoundArguments) -> Result<bool> {
    let options = Options {
        pods: PODS,
        ..Options::default()
    };
    let lab = Lab::new("cost", &options)?;
    let nginx = lab
        .pods()
        .iter()
        .map(|pod| Ok((pod.name().to_owned(), pod.nginx(&NginxOptions::default())?)))
        .collect::<Result<Vec<(String, Nginx)>>>()?;
    let servers: Vec<_> = nginx
        .iter()
        .map(|(name, server)| (name.clone(), server.address()))
        .collect();
    let shim = lab.shim(&lab.shim_config()?)?;
    let mut phases = PhaseRounds::start(&lab)?;
    let with = |name: &str, port, mode, servers: &[(String, SocketAddr)]| Policy {
        migration: Migration {
            mode,
            cooldown: Default::default(),
            ..Migration::default()
        },
        ..policy(name, port, servers)
    };
    let mut policies = vec![
        with("stay", STAY_PORT, MigrationMode::Never, &servers),
        with("move", MOVE_PORT, MigrationMode::Always, &servers),
    ];
    policies.extend(phases.policies(with));
    let config = lab.dataplane_config(policies)?;
    lab.reserve_ports(&config)?;
    let dataplane = lab.dataplane(&config)?;
    wait_adoptable(&dataplane)?;
    let length = Duration::from_secs(arguments.seconds);
    let (mut stay, mut migrate) = (Rounds::default(), Rounds::default());
    for round in 1..=arguments.rounds {
        stay.measure(&lab, &dataplane, &nginx, STAY_PORT, length)?;
        migrate.measure(&lab, &dataplane, &nginx, MOVE_PORT, length)?;
        phases.measure(&lab, &dataplane)?;
        eprintln!(
            "round {round} of {}: p50 {} us staying, {} us moving",
            arguments.rounds,
            stay.p50_us.last().unwrap_or(&f64::NAN),
            migrate.p50_us.last().unwrap_or(&f64::NAN),
        );
    }
    let state = dataplane.state()?;
    let (stay, migrate) = (
        stay.side(moves(&state, "stay")),
        migrate.side(moves(&state, "move")),
    );
    let cost = Cost {
        seconds: arguments.seconds,
        difference_us: migrate.p50_us.median - stay.p50_us.median,
        migrations_per_request: migrate.migrations as f64 / migrate.requests as f64,
        phases: phases.finish(&state),
        stay,
        migrate,
    };
    let path = keep(&arguments.out, "migration.json", &cost)?;
    print(&cost);
    cost.phases.print();
    println!("Written to {}", path.display());
    dataplane.stop()?;
    shim.stop()?;
    lab.remove()?;
    let errors = cost.stay.errors + cost.migrate.errors;
    // The first request of each round's connection has nowhere to move from.
    let moved = cost.migrate.migrations + 2 * arguments.rounds >= cost.migrate.requests;
    if errors > 0 || !moved {
        eprintln!(
            "baton-demo: {errors} errors, {:.3} migrations per request",
            cost.migrations_per_request
        );
    }
    Ok(errors == 0 && moved)
}

fn print(cost: &Cost) {
    println!(
        "\n{:<24}{:>22}{:>22}{:>12}",
        "median (min to max), us", "staying", "moving", "difference"
    );
    let (s, m) = (&cost.stay, &cost.migrate);
    for (name, stay, moving) in [
        ("p50 of a request", &s.p50_us, &m.p50_us),
        ("p99 of a request", &s.p99_us, &m.p99_us),
        (
            "CPU of the dataplane",
            &s.dataplane_cpu_us,
            &m.dataplane_cpu_us,
        ),
        ("CPU of nginx", &s.nginx_cpu_us, &m.nginx_cpu_us),
    ] {
        println!(
            "{name:<24}{:>22}{:>22}{:>12.1}",
            stay.text(),
            moving.text(),
            moving.median - stay.median
        );
    }
    println!(
        "{} requests moved {} times, {} rollbacks, {} errors.",
        m.requests, m.migrations, m.rollbacks, m.errors
    );
}
