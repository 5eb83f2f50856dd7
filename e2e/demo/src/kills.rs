//! The demo's second act: pods are killed and started again in turn under load, behind Baton and
//! behind HAProxy.
//!
//! Both sides have the same load, the same kills at the same times and the same way of counting: a
//! connection that is reset or closed under the client is an error, and so is every answer that is
//! not right to the last byte. The client connects again and goes on.

use crate::{
    bench::{Columns, duration, grouped, table},
    progress::Progress,
    scene,
};
use anyhow::Result;
use baton_api::PolicyState;
use baton_lab::{Counts, Dataplane, HttpEcho, Lab, Listen, LoadOptions, Server};
use serde::Serialize;
use std::{
    net::SocketAddr,
    sync::atomic::Ordering,
    thread,
    time::{Duration, Instant},
};

/// Persistent connections, each with its next request out as soon as the last is answered.
const CONNECTIONS: usize = 64;
/// A pod's nginx is killed so often. It listens again some 50 ms later and is asked about that
/// every 100 ms.
const INTERVAL: Duration = Duration::from_millis(250);
/// Load before the first kill and after the last.
const CALM: Duration = Duration::from_millis(500);
const TICK: Duration = Duration::from_millis(50);

/// Kills behind the running dataplane.
pub fn behind_baton(
    lab: &Lab,
    nginx: &mut [Server],
    dataplane: &Dataplane,
    policy: &str,
    (port, seconds): (u16, u64),
) -> Result<KillSide> {
    let before = figures(dataplane, policy)?;
    let mut side = run(lab, nginx, dataplane.address(port), seconds, "kills, Baton", || {
        Ok(figures(dataplane, policy)?.0 - before.0)
    })?;
    let after = figures(dataplane, policy)?;
    side.rescued = after.0 - before.0;
    side.replayed = after.1 - before.1;
    Ok(side)
}

/// The same kills behind HAProxy, set up against them as far as it can be, in the dataplane's
/// place.
pub fn behind_haproxy(
    lab: &Lab,
    nginx: &mut [Server],
    (port, seconds): (u16, u64),
) -> Result<KillSide> {
    // Baton's ports are of no use to HAProxy, which takes the kernel's.
    let place = lab.dataplane_pod().namespace();
    place.set_sysctl("net/ipv4/ip_local_reserved_ports", "\n")?;
    let servers = scene::named(nginx);
    let listen = Listen { port, servers, checked: true };
    let haproxy = lab.haproxy(&[listen])?;
    run(lab, nginx, haproxy.address(port), seconds, "kills, HAProxy", || Ok(0))
}

fn run(
    lab: &Lab,
    nginx: &mut [Server],
    address: SocketAddr,
    seconds: u64,
    label: &str,
    rescued: impl Fn() -> Result<u64>,
) -> Result<KillSide> {
    let length = Duration::from_secs(seconds);
    let options = LoadOptions::of(address, CONNECTIONS, None);
    let load = HttpEcho::start(lab.client().namespace(), options)?;
    let mut progress = Progress::start(label, Some(length + 2 * CALM));
    let (start, mut kills) = (Instant::now(), 0u32);
    let mut tick = |kills: u32| -> Result<()> {
        let live = load.progress();
        progress.tick(&format!(
            "{kills} kills, {} requests, {} client errors, {} rescued",
            grouped(live.requests.load(Ordering::Relaxed)),
            grouped(live.errors.load(Ordering::Relaxed)),
            grouped(rescued()?),
        ));
        Ok(())
    };
    loop {
        let due = CALM + INTERVAL * kills;
        if due >= CALM + length {
            break;
        }
        while start.elapsed() < due {
            tick(kills)?;
            thread::sleep(TICK.min(due.saturating_sub(start.elapsed())));
        }
        let at = kills as usize % nginx.len();
        let server = &mut nginx[at];
        server.process.crash()?;
        server.restart()?;
        kills += 1;
    }
    let end = start.elapsed() + CALM;
    while start.elapsed() < end {
        tick(kills)?;
        thread::sleep(TICK);
    }
    progress.finish();
    let (report, _) = load.stop()?;
    Ok(KillSide {
        requests: report.requests,
        client_errors: report.error_count(),
        kills: u64::from(kills),
        rescued: 0,
        replayed: 0,
        errors: report.errors,
        p99_us: report.latency.p99_us,
        max_us: report.latency.max_us,
    })
}

/// Rescues and replays of a policy so far.
fn figures(dataplane: &Dataplane, policy: &str) -> Result<(u64, u64)> {
    let state = dataplane.state()?;
    let found = state.policies.iter().find(|p| p.name == policy);
    Ok(found.map_or((0, 0), |p: &PolicyState| (p.rescues_total, p.replays_total)))
}

/// The same kills behind both load balancers.
#[derive(Debug, Serialize)]
pub struct Kills {
    /// Behind Baton.
    pub baton: KillSide,
    /// Behind HAProxy.
    pub haproxy: KillSide,
}

/// What clients saw of pods that were killed.
#[derive(Debug, Default, Serialize)]
pub struct KillSide {
    /// Right answers.
    pub requests: u64,
    /// Connections that ended under the client, and wrong answers.
    pub client_errors: u64,
    /// Pods killed and started again.
    pub kills: u64,
    /// Connections that went on at another pod, or at the restarted one.
    pub rescued: u64,
    /// Requests that were sent again.
    pub replayed: u64,
    /// The errors by kind.
    pub errors: Counts,
    /// 99 % of the answers took at most this long.
    pub p99_us: u64,
    /// The longest.
    pub max_us: u64,
}

type Shown = fn(&KillSide) -> String;

impl Kills {
    /// Why the act did not show what it is for; empty if it did.
    pub fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        let baton = &self.baton;
        if baton.client_errors > 0 {
            failures.push(format!(
                "clients saw {} errors while pods behind Baton were killed: {:?}",
                baton.client_errors, baton.errors
            ));
        }
        if baton.rescued == 0 {
            failures.push("no connection was rescued from a killed pod".into());
        }
        failures
    }

    /// The kills, behind both, 72 columns wide.
    pub fn table(&self) -> String {
        let columns: &Columns = &[("", -28), ("HAProxy", 22), ("Baton", 22)];
        let rows: [(&str, Shown); 7] = [
            ("pods killed and restarted", |s| grouped(s.kills)),
            ("requests", |s| grouped(s.requests)),
            ("errors that clients saw", |s| grouped(s.client_errors)),
            ("connections rescued", |s| grouped(s.rescued)),
            ("requests replayed", |s| grouped(s.replayed)),
            ("latency p99", |s| duration(s.p99_us)),
            ("latency max", |s| duration(s.max_us)),
        ];
        let sides =
            |(name, of): (&str, Shown)| vec![name.to_owned(), of(&self.haproxy), of(&self.baton)];
        table(columns, rows.map(sides))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kill_side(client_errors: u64, rescued: u64) -> KillSide {
        KillSide {
            requests: 1_234_567,
            client_errors,
            kills: 40,
            rescued,
            replayed: rescued / 2,
            errors: Counts::new(),
            p99_us: 900,
            max_us: 120_000,
        }
    }

    fn kills(baton: KillSide) -> Kills {
        Kills { baton, haproxy: kill_side(640, 0) }
    }

    #[test]
    fn the_table_of_kills_fits_and_holds_both_sides() {
        let table = kills(kill_side(0, 100)).table();
        assert!(table.lines().all(|l| l.len() <= 80), "{table}");
        for text in ["640", "1,234,567", "120.0 ms", "100", "50"] {
            assert!(table.contains(text), "{text} is not in\n{table}");
        }
    }

    #[test]
    fn errors_and_missing_rescues_are_failures() {
        assert_eq!(kills(kill_side(0, 100)).failures(), [""; 0]);
        for baton in [kill_side(1, 100), kill_side(0, 0)] {
            assert_eq!(kills(baton).failures().len(), 1);
        }
    }
}
