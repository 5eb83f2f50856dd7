//! HAProxy (tcp mode, one thread) and Baton (no migration) in the same place of the same lab, in
//! turns.

use crate::{
    RoundArguments,
    bench::{Figures, grouped, keep, succeeded, table},
    scene::{self, moving},
};
use anyhow::{Result, ensure};
use baton_api::MigrationMode;
use baton_lab::{Lab, Listen, LoadReport, WrkOptions, policy};
use serde::Serialize;
use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

const PORT: u16 = 80;
const PODS: usize = 4;
/// Connections of the throughput measurement.
const MANY: u32 = 32;
/// The limit of the third measurement, in percent of a CPU.
const HALF: f64 = 50.0;
/// Before each measurement, so that neither side pays for cold caches of the other's turn.
const WARM_UP: Duration = Duration::from_secs(1);

const P50: &str = "p50_us_at_1";
const PER_SECOND: &str = "per_second_at_32";
const P99_HALF: &str = "p99_us_at_1_with_half_a_cpu";
const ROWS: [(&str, &str); 3] = [
    (P50, "p50 us, 1 connection"),
    (PER_SECOND, "requests/s, 32"),
    (P99_HALF, "p99 us, 1, half a CPU"),
];

/// What `compare.json` holds.
#[derive(Debug, Default, Serialize)]
struct Comparison {
    seconds: u64,
    haproxy: Figures,
    baton: Figures,
    /// Baton's medians divided by HAProxy's.
    ratios: BTreeMap<&'static str, f64>,
    errors: u64,
}

/// A turn of one side; gives the errors.
fn measure(side: &mut Figures, lab: &Lab, address: SocketAddr, length: Duration) -> Result<u64> {
    wrk(lab, address, 1, WARM_UP)?;
    let one = wrk(lab, address, 1, length)?;
    let many = wrk(lab, address, MANY, length)?;
    lab.dataplane_pod().throttle(HALF)?;
    // Twice: Baton looks at its limit once a second.
    wrk(lab, address, 1, WARM_UP * 2)?;
    let half = wrk(lab, address, 1, length)?;
    lab.dataplane_pod().unthrottle()?;
    side.note(P50, one.latency.p50_us as f64);
    side.note(PER_SECOND, many.per_second());
    side.note(P99_HALF, half.latency.p99_us as f64);
    Ok(one.error_count() + many.error_count() + half.error_count())
}

fn wrk(lab: &Lab, address: SocketAddr, connections: u32, length: Duration) -> Result<LoadReport> {
    let options = WrkOptions { connections, ..WrkOptions::new(address, length) };
    let report = lab.client().wrk(&options)?.join()?;
    ensure!(report.requests > 0, "no response from {address}");
    Ok(report)
}

/// Runs the comparison. `true` if there was no error.
pub fn compare(arguments: &RoundArguments) -> Result<bool> {
    let lab = scene::lab("compare", PODS)?;
    let nginx = scene::nginx(&lab)?;
    let servers = scene::named(&nginx);
    let listen = [Listen { checked: false, port: PORT, servers: servers.clone() }];
    // HAProxy runs in the same namespace and needs the kernel's ports, so Baton's are below them
    // here.
    let policy = moving(MigrationMode::Never, policy("web", PORT, &servers));
    let mut config = lab.dataplane_config(vec![policy])?;
    config.ports = crate::LEG_PORTS.into();
    let length = Duration::from_secs(arguments.seconds);
    let mut all = Comparison { seconds: arguments.seconds, ..Comparison::default() };
    for round in 1..=arguments.rounds {
        let mut haproxy = lab.haproxy(&listen)?;
        all.errors += measure(&mut all.haproxy, &lab, haproxy.address(PORT), length)?;
        haproxy.process.kill()?;
        drop(haproxy);
        let dataplane = lab.dataplane(&config)?;
        all.errors += measure(&mut all.baton, &lab, dataplane.address(PORT), length)?;
        let mode = dataplane.state()?.worker.mode;
        dataplane.stop()?;
        let both = |name| {
            let of = |side: &Figures| grouped(side.latest(name).round() as u64);
            format!("{} and {}", of(&all.haproxy), of(&all.baton))
        };
        eprintln!(
            "round {round} of {}: p50 {} us, {} requests/s, p99 with half a CPU {} us (HAProxy, Baton in {mode} mode)",
            arguments.rounds,
            both(P50),
            both(PER_SECOND),
            both(P99_HALF),
        );
    }
    all.ratios =
        ROWS.map(|(name, _)| (name, all.baton.median(name) / all.haproxy.median(name))).into();
    let path = keep(&arguments.out, "compare.json", &all)?;
    let columns = [("median (min to max)", -22), ("HAProxy", 24), ("Baton", 24), ("ratio", 10)];
    let row = |(name, text): (&str, &str)| {
        let ratio = format!("{:.2}", all.ratios[name]);
        vec![text.to_owned(), all.haproxy.text(name), all.baton.text(name), ratio]
    };
    println!("\n{}", table(&columns, ROWS.map(row)));
    println!("Written to {}", path.display());
    lab.remove()?;
    let errors = (all.errors > 0).then(|| format!("{} errors", all.errors));
    Ok(succeeded(errors.as_slice()))
}
