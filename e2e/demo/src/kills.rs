//! The demo's second act: pods are killed and started again in turn under load, behind Baton and behind HAProxy.
//!
//! Both sides have the same load, the same kills at the same times and the same way of counting: a connection that is
//! reset or closed under the client is an error, and so is every answer that is not right to the last byte. The client
//! connects again and goes on.

use crate::{kill_report::KillSide, progress::Progress, report::grouped, run::WEB};
use anyhow::Result;
use baton_api::PolicyState;
use baton_lab::{Dataplane, Haproxy, HttpEcho, Lab, Listen, LoadOptions, Nginx};
use std::{
    net::SocketAddr,
    sync::atomic::Ordering,
    thread,
    time::{Duration, Instant},
};

/// Persistent connections, each with its next request out as soon as the last is answered.
const CONNECTIONS: usize = 64;
/// A pod's nginx is killed so often. It listens again some 50 ms later and is asked about that every 100 ms.
const INTERVAL: Duration = Duration::from_millis(250);
/// Load before the first kill and after the last.
const CALM: Duration = Duration::from_millis(500);
const TICK: Duration = Duration::from_millis(50);

/// Kills behind the running dataplane.
pub fn behind_baton(
    lab: &Lab,
    nginx: &mut [(String, Nginx)],
    dataplane: &Dataplane,
    (port, seconds): (u16, u64),
) -> Result<KillSide> {
    let before = figures(dataplane)?;
    let mut side = run(
        lab,
        nginx,
        dataplane.address(port),
        seconds,
        "kills, Baton",
        || Ok(figures(dataplane)?.0 - before.0),
    )?;
    let after = figures(dataplane)?;
    side.rescued = after.0 - before.0;
    side.replayed = after.1 - before.1;
    Ok(side)
}

/// The same kills behind HAProxy, set up against them as far as it can be, in the dataplane's place.
pub fn behind_haproxy(
    lab: &Lab,
    nginx: &mut [(String, Nginx)],
    (port, seconds): (u16, u64),
) -> Result<KillSide> {
    // Baton's ports are of no use to HAProxy, which takes the kernel's.
    let place = lab.dataplane_pod().namespace();
    place.set_sysctl("net/ipv4/ip_local_reserved_ports", "\n")?;
    let servers = nginx
        .iter()
        .map(|(name, server)| (name.clone(), server.address()))
        .collect();
    let listen = Listen {
        port,
        servers,
        checked: true,
    };
    let haproxy: Haproxy = lab.haproxy(&[listen])?;
    run(
        lab,
        nginx,
        haproxy.address(port),
        seconds,
        "kills, HAProxy",
        || Ok(0),
    )
}

fn run(
    lab: &Lab,
    nginx: &mut [(String, Nginx)],
    address: SocketAddr,
    seconds: u64,
    label: &str,
    rescued: impl Fn() -> Result<u64>,
) -> Result<KillSide> {
    let length = Duration::from_secs(seconds);
    let options = LoadOptions {
        connections: CONNECTIONS,
        ..LoadOptions::new(address)
    };
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
        let server = &mut nginx[at].1;
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

/// Rescues and replays of the demo's policy so far.
fn figures(dataplane: &Dataplane) -> Result<(u64, u64)> {
    let state = dataplane.state()?;
    let web = state.policies.iter().find(|p| p.name == WEB);
    Ok(web.map_or((0, 0), |p: &PolicyState| (p.rescues_total, p.replays_total)))
}
