//! The soak over a faulty path: so many migrations while packets are lost and reordered, and nobody
//! may notice.
//!
//! Real nginx and redis; every answer is checked, those of 1 byte to 1 MB too, and how often each
//! INCR was executed is counted in the servers. One pod after the other drains meanwhile. Many
//! connections, because one that lost a packet waits for the kernel's retransmission timer (200 ms
//! and more) while the others go on. Owns the order of things; the verdict is `soak_report`'s, what
//! happens to pods is `soak`'s. `--tracked`: on a node which tracks connections and drops what
//! tracking calls INVALID, as kube-proxy's rule in iptables mode does.

use crate::{
    LEG_PORTS, SoakArguments,
    bench::{grouped, keep, succeeded},
    progress::Progress,
    scene::{self, Baton, moving},
    soak_report::{Before, Outcome, SoakReport, Tracked},
};
use anyhow::{Context, Result, ensure};
use baton_api::{Limits, MigrationMode, MoveMethod, Policy, Protocol};
use baton_lab::{
    FaultRates, Faults, HttpEcho, HttpRanges, LoadOptions, Pod, Progress as LoadProgress,
    REDIS_PORT, RedisCheck, Server, Side, Way, allow_files, policy,
};
use std::{
    collections::BTreeMap,
    sync::atomic::Ordering,
    thread,
    time::{Duration, Instant},
};

const HTTP_PORT: u16 = 80;
const PODS: usize = 4;
/// Connections for each one with responses of up to 1 MB, which would leave no CPU for the others.
const PER_LARGE: usize = 8;
/// A pod drains, and then none, for so long each.
const DRAIN: Duration = Duration::from_secs(3);
const LOOK: Duration = Duration::from_millis(250);
/// All connections are open, and no further migration for this long: something is stuck.
const STUCK: Duration = Duration::from_secs(60);
/// A socket that was adopted has measured no round trip, so its kernel may repeat a lost response
/// after 3, 9, 21, 45 and 93 s only. Behind the fifth loss in a row something else is wrong.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Time series are not looked at here.
const WINDOW: Duration = Duration::from_secs(10);
/// Files of this process beside the connections.
const FILES: u64 = 1_024;

/// Runs it. `true` if nobody noticed.
pub fn soak(arguments: &SoakArguments, wanted: u64) -> Result<bool> {
    let seed = arguments.seed.unwrap_or_else(|| fastrand::u64(..));
    let rates = FaultRates {
        lost: arguments.loss,
        held: arguments.reorder,
        doubled: arguments.duplicate,
        corrupted: arguments.corrupt,
    };
    eprintln!(
        "Soak of {} migrations (method {:?}), seed {seed}; of 1,000 packets at each veth in each direction {} are lost, {} held back, \
         {} doubled, {} corrupted",
        grouped(wanted),
        arguments.method,
        rates.lost,
        rates.held,
        rates.doubled,
        rates.corrupted
    );
    let connections = usize::from(arguments.connections);
    allow_files(FILES + 2 * u64::from(arguments.connections))?;
    let lab = scene::lab("soakpath", PODS)?;
    let (nginx, servers) = (scene::nginx(&lab)?, lab.in_each_pod(Pod::redis)?);
    let tracker = arguments.tracked.map(|_| lab.track()).transpose()?;
    let mut config = lab.dataplane_config(policies(&nginx, &servers, arguments.method))?;
    if let Some(tracked_pairs) = arguments.tracked {
        config.ports = LEG_PORTS.into();
        config.limits = Some(Limits { tracked_pairs, ..Limits::default() });
    }
    let baton = Baton::start(&lab, &config)?;
    let dataplane = &baton.dataplane;

    let large = connections.div_ceil(PER_LARGE);
    let load = |port, connections| LoadOptions {
        timeout: TIMEOUT,
        window: WINDOW,
        ..baton.load(port, connections)
    };
    let client = lab.client().namespace();
    let addresses: Vec<_> = servers.iter().map(Server::address).collect();
    let web = HttpEcho::start(client, load(HTTP_PORT, connections))?;
    let redis = RedisCheck::start(client, &addresses, load(REDIS_PORT, connections))?;
    let files = HttpRanges::start(client, load(HTTP_PORT, large))?;
    let faults = lab.faults(seed)?;
    // A load makes all its connections before its first request.
    let all = [web.progress(), redis.progress(), files.progress()];
    let has_ended = || web.is_finished() || redis.is_finished() || files.is_finished();
    wait("all loads have made their connections", || {
        ensure!(!has_ended(), "the connections cannot be made");
        Ok(all.iter().all(|p| p.requests.load(Ordering::Relaxed) > 0))
    })?;
    for side in [Side::Pods, Side::Clients] {
        faults.set_both(side, rates)?;
    }
    let start = Instant::now();
    let moved = || -> Result<u64> {
        let state = dataplane.state()?;
        let moved = state.counters.get("migrations_total").copied();
        moved.context("no counter migrations_total")
    };
    // What was done before there were faults does not count.
    let before = Before {
        migrations: moved()?,
        requests: all[0].requests.load(Ordering::Relaxed),
        commands: all[1].requests.load(Ordering::Relaxed),
        files: all[2].requests.load(Ordering::Relaxed),
    };
    let wanted_in_all = wanted + before.migrations;
    // Each second turn ends the drain of the turn before it.
    let drain = |turn: u64| {
        let pod = nginx[turn as usize / 2 % PODS].pod().name();
        let undo = (turn % 2 == 1).then_some("--undo");
        let words: Vec<&str> = ["drain", pod].into_iter().chain(undo).collect();
        dataplane.tool(&words).map(drop)
    };
    let mut entries_max = 0;
    let mut look = || -> Result<()> {
        if let Some(tracker) = &tracker {
            entries_max = entries_max.max(tracker.entries()?);
        }
        Ok(())
    };
    let drains = watch(&all, has_ended, &faults, drain, wanted_in_all, moved, &mut look)?;
    for p in all {
        p.enough();
    }
    wait("all loads have ended", || {
        Ok(web.is_finished() && redis.is_finished() && files.is_finished())
    })?;
    let seconds = start.elapsed().as_secs_f64();
    faults.calm()?;
    let (web, _) = web.join()?;
    let (files, _) = files.join()?;
    let redis = RedisCheck::finish(redis)?;
    let mut by_path = BTreeMap::new();
    for side in [Side::Pods, Side::Clients] {
        for way in [Way::From, Way::To] {
            let name = format!("{way:?} {side:?}").to_lowercase();
            by_path.insert(name, faults.counts(side, way)?);
        }
    }
    let outcome = Outcome {
        seed,
        wanted,
        before,
        method: arguments.method,
        connections: (2 * connections + large) as u64,
        drains,
        rates,
        seconds,
        web: &web,
        redis: &redis,
        files: &files,
        faults: by_path,
        faults_unasked: faults.unasked()?,
        tracked: match (&tracker, arguments.tracked) {
            (Some(tracker), Some(limit)) => Some(Tracked {
                // Clients' connections are there, too, and one that counts at each redis.
                limit: u64::from(limit) + (2 * connections + large + servers.len()) as u64,
                entries_max,
                invalid: tracker.invalid()?,
            }),
            _ => None,
        },
    };
    let report = SoakReport::new(outcome, &dataplane.state()?);
    let path = keep(&arguments.out, "report.json", &report)?;
    println!("{}\nReport: {}", report.text(), path.display());
    let shown = succeeded(&report.failures());
    drop(faults);
    baton.stop()?;
    lab.remove()?;
    Ok(shown)
}

/// Every request moves its connection, but a connection's first.
fn policies(nginx: &[Server], servers: &[Server], method: MoveMethod) -> Vec<Policy> {
    let redis =
        Policy { protocol: Protocol::Resp, ..policy("redis", REDIS_PORT, &scene::named(servers)) };
    let mut all = [policy("web", HTTP_PORT, &scene::named(nginx)), redis]
        .map(|policy| moving(MigrationMode::Always, policy));
    for policy in &mut all {
        policy.migration.method = method;
    }
    all.to_vec()
}

/// Looks until it is so. A load gives up on a request after [`TIMEOUT`]; what takes longer will not
/// come.
fn wait(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let since = Instant::now();
    while !is_so()? {
        ensure!(since.elapsed() < TIMEOUT + STUCK, "waited in vain: {what}");
        thread::sleep(LOOK);
    }
    Ok(())
}

/// Shows how far it is until there were enough migrations. One pod after the other drains; how many
/// did.
fn watch(
    loads: &[&LoadProgress; 3],
    has_ended: impl Fn() -> bool,
    faults: &Faults,
    drain: impl Fn(u64) -> Result<()>,
    wanted: u64,
    moved: impl Fn() -> Result<u64>,
    look: &mut impl FnMut() -> Result<()>,
) -> Result<u64> {
    let mut progress = Progress::start("soak", None);
    let (mut last, mut since) = (0, Instant::now());
    let (mut turns, mut turned) = (0, Instant::now());
    loop {
        let now = moved()?;
        if now >= wanted {
            break;
        }
        ensure!(!has_ended(), "a load has ended by itself");
        if now > last {
            (last, since) = (now, Instant::now());
        }
        ensure!(since.elapsed() < STUCK, "no migration for {STUCK:?}: {now} of {wanted}");
        if turned.elapsed() >= DRAIN {
            drain(turns)?;
            (turns, turned) = (turns + 1, Instant::now());
        }
        look()?;
        let errors = loads.map(|p| p.errors.load(Ordering::Relaxed));
        let done = faults.total()?;
        progress.tick(&format!(
            "{} of {} migrations, {} errors; packets {} lost, {} held back",
            grouped(now),
            grouped(wanted),
            grouped(errors.iter().sum()),
            grouped(done.lost),
            grouped(done.held),
        ));
        thread::sleep(LOOK);
    }
    progress.finish();
    Ok(turns.div_ceil(2))
}
