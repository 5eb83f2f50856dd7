//! The demo: two runs of wrk, migration off and on, with one pod throttled; redis-benchmark with a
//! migration per command; then pods that are killed under load.
//!
//! Its only input is a directory of ordinary manifests, which the operator reads and the dataplane
//! is programmed with.
//!
//! Beside wrk runs a client of our own on 16 paced connections from another client namespace. It
//! checks every byte, which wrk does not, and gives the latency over time for the plot.

use crate::{
    DemoArguments,
    bench::{grouped, keep, succeeded, wrapped},
    kills::{self, Kills},
    plot,
    progress::Progress,
    report::{RedisSide, Report, Settings, Side},
    scene::{self, moves},
};
use anyhow::Result;
use baton_lab::{
    Counts, Dataplane, HttpEcho, Lab, LoadOptions, Operator, Options, Pod, REDIS_PORT,
    RedisBenchOptions, WrkOptions,
};
use std::{
    thread,
    time::{Duration, Instant},
};

/// Pods of the manifests.
const PODS: u16 = 4;
/// What the dataplane calls the manifests' policies: namespace, name, listener.
const WEB: &str = "shop/web/http";
const REDIS: &str = "shop/redis/redis";
/// wrk's persistent connections.
const CONNECTIONS: u32 = 64;
/// The checking client's connections: enough that some start on the throttled pod (each does with
/// chance 1 in 4).
const CHECKING_CONNECTIONS: usize = 16;
/// Pace of each of them: 16 connections every 20 ms are 800 requests a second at most, little
/// beside wrk's.
const CHECKING_PACE: Duration = Duration::from_millis(20);
/// Length of the plot's windows.
const PLOT_WINDOW: Duration = Duration::from_millis(250);
/// redis-benchmark's persistent connections.
const REDIS_CONNECTIONS: u32 = 32;
const HTTP_PORT: u16 = 80;
const KILL_CONDITIONS: &str = "64 persistent connections, the next request as soon as the last is answered; every \
    250 ms one pod's nginx is killed (kill -9 of all its processes) and started again. HAProxy: tcp mode, health \
    checks every 100 ms, retries, redispatch, sessions of a server that is down are ended. An error is a connection \
    that ended under the client, or a wrong answer.";
const SAMPLE_INTERVAL: Duration = Duration::from_millis(250);

/// Runs the demo. `true` if it showed what it is for.
pub fn demo(arguments: &DemoArguments) -> Result<bool> {
    eprintln!(
        "Setting up {PODS} pods with nginx and redis around a router, clients and a dataplane …"
    );
    let lab = Lab::new("demo", &Options::with_clients(usize::from(PODS)))?;
    let mut nginx = scene::nginx(&lab)?;
    let _redis = lab.in_each_pod(Pod::redis)?;
    let operator = lab.operator(&arguments.manifests)?;
    let shim = lab.shim(&lab.operated_shim(&operator)?)?;
    let slow = &lab.pods()[0];
    slow.throttle(arguments.throttle)?;

    let config = lab.operated_dataplane(&operator)?;
    let off = {
        let dataplane = scene::dataplane(&lab, &config)?;
        let side = http_run(&lab, &dataplane, arguments, "migration off")?;
        dataplane.stop()?;
        side
    };
    operator.edit(
        "web.yaml",
        "    mode: Never\n  onStall: Wait\n",
        "    mode: WhenBetter\n  onStall: Release\n",
    )?;
    let dataplane = scene::dataplane(&lab, &config)?;
    let on = http_run(&lab, &dataplane, arguments, "migration on")?;

    // Redis shows what a migration per command does, not what a slow pod does.
    slow.unthrottle()?;
    let redis_side = redis_run(&lab, &dataplane, arguments)?;

    let act = (HTTP_PORT, arguments.kill_seconds);
    let baton = kills::behind_baton(&lab, &mut nginx, &dataplane, WEB, act)?;
    let status = dataplane.tool(&["status"])?;
    dataplane.stop()?;
    let haproxy = kills::behind_haproxy(&lab, &mut nginx, act)?;

    let report = Report {
        settings: Settings {
            seconds: arguments.seconds,
            pods: PODS,
            connections: CONNECTIONS,
            throttled_pod: slow.name().to_owned(),
            throttle_percent: arguments.throttle,
            think_ms: arguments.think_ms,
        },
        off,
        on,
        redis: redis_side,
        kills: Kills { baton, haproxy },
    };
    let json = keep(&arguments.out, "report.json", &report)?;
    let svg = arguments.out.join("report.svg");
    plot::write(&svg, &report)?;

    println!("\n{}", report.table());
    println!("{}\n", wrapped(&report.sentence()));
    println!("{}\n", wrapped(&report.conditions()));
    println!("{}\n", wrapped(&report.redis_sentence()));
    println!("{}", report.kills.table());
    println!("{}\n", wrapped(KILL_CONDITIONS));
    println!("$ lb-dataplane status\n{status}");
    println!("Report: {} and {}", json.display(), svg.display());
    let shown = succeeded(&report.failures());
    if arguments.keep {
        slow.throttle(arguments.throttle)?;
        lab.reserve_ports(&config)?;
        hold(&lab, &operator, &lab.dataplane(&config)?);
    }
    shim.stop()?;
    operator.stop()?;
    lab.remove()?;
    Ok(shown)
}

fn http_run(
    lab: &Lab,
    dataplane: &Dataplane,
    arguments: &DemoArguments,
    label: &str,
) -> Result<Side> {
    let length = Duration::from_secs(arguments.seconds);
    let address = dataplane.address(HTTP_PORT);
    let wrk_client = lab.client();
    let mut wrk = wrk_client.wrk(&WrkOptions {
        target: "/page".into(),
        connections: CONNECTIONS,
        think: Duration::from_millis(arguments.think_ms),
        headers: vec![("Accept-Encoding".into(), "gzip".into())],
        ..WrkOptions::new(address, length)
    })?;
    let checking = HttpEcho::start(
        lab.clients()[1].namespace(),
        LoadOptions {
            connections: CHECKING_CONNECTIONS,
            duration: Some(length),
            pace: Some(CHECKING_PACE),
            window: PLOT_WINDOW,
            ..LoadOptions::new(address)
        },
    )?;
    let mut progress = Progress::start(label, Some(length));
    let mut per_pod = Counts::new();
    while wrk.process.try_wait()?.is_none() {
        let state = dataplane.state()?;
        let mut now = Counts::new();
        for flow in dataplane.flows()? {
            if flow.client.ip() == wrk_client.ipv4() {
                *now.entry(flow.backend).or_default() += 1;
            }
        }
        // The last look before wrk closes its connections counts.
        if now.values().sum::<u64>() >= u64::from(CONNECTIONS) {
            per_pod = now;
        }
        let requests: u64 = state
            .policies
            .iter()
            .filter(|p| p.name == WEB)
            .flat_map(|p| &p.backends)
            .map(|b| b.requests_total)
            .sum();
        let spread: Vec<_> = per_pod.values().map(u64::to_string).collect();
        progress.tick(&format!(
            "{} requests, {} moved, connections {}",
            grouped(requests),
            grouped(moves(&state, WEB).0),
            spread.join("/"),
        ));
        let _ = wrk.process.wait(SAMPLE_INTERVAL);
    }
    progress.finish();
    let wrk = wrk.join()?;
    let (checked, _) = checking.join()?;
    for pod in lab.pods() {
        per_pod.entry(pod.name().to_owned()).or_default();
    }
    let (migrations, rollbacks) = moves(&dataplane.state()?, WEB);
    Ok(Side::new(&wrk, checked, per_pod, migrations, rollbacks))
}

fn redis_run(lab: &Lab, dataplane: &Dataplane, arguments: &DemoArguments) -> Result<RedisSide> {
    // The pods' redis servers share nothing, which redis-benchmark does not notice: it does not
    // look at values.
    let tests = ["set", "get"].map(str::to_owned).to_vec();
    let options = RedisBenchOptions {
        address: dataplane.address(REDIS_PORT),
        commands: arguments.redis_commands / tests.len() as u64,
        tests,
        connections: REDIS_CONNECTIONS,
        // A thousand commands a second is far below what any machine that runs this does.
        deadline: Duration::from_secs(60 + arguments.redis_commands / 1_000),
    };
    let before = moves(&dataplane.state()?, REDIS);
    let mut bench = lab.client().redis_benchmark(&options)?;
    let mut progress = Progress::start("redis-benchmark", None);
    let start = Instant::now();
    while bench.process.try_wait()?.is_none() && start.elapsed() < options.deadline {
        let moved = moves(&dataplane.state()?, REDIS).0 - before.0;
        progress.tick(&format!("{} commands moved their connection", grouped(moved)));
        let _ = bench.process.wait(SAMPLE_INTERVAL);
    }
    progress.finish();
    let report = bench.join()?;
    let after = moves(&dataplane.state()?, REDIS);
    Ok(RedisSide {
        commands: report.commands,
        errors: report.errors,
        migrations: after.0 - before.0,
        rollbacks: after.1 - before.1,
        tests: report.tests,
    })
}

/// Says how to look around, and waits for Ctrl-C, which removes everything.
fn hold(lab: &Lab, operator: &Operator, dataplane: &Dataplane) {
    let enter = |name: &str| format!("ip netns exec {name} bash");
    println!("\nThe lab stays up until Ctrl-C (files in {}).", lab.directory().display());
    println!("  client:    {}", enter(lab.client().namespace().name()));
    println!("  dataplane: {}", enter(lab.dataplane_pod().namespace().name()));
    println!("  node:      {}", enter(lab.router().namespace().name()));
    for pod in lab.pods() {
        println!("  {}:     {}", pod.name(), enter(pod.namespace().name()));
    }
    println!(
        "  try:       ip netns exec {} curl -si http://{}/echo/hello",
        lab.client().namespace().name(),
        dataplane.address(HTTP_PORT)
    );
    println!("  manifests, which count when they change: {}", operator.manifests().display());
    loop {
        thread::park();
    }
}
