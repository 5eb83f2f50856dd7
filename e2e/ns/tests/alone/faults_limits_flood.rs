//! 600,000 SYNs from as many addresses, 10,000 a second for a minute, with the chart's limits,
//! while real clients work, new ones come and a pod is killed. How a flood's flows end by their
//! timer is in `flood`.

use crate::{more, no_error};
use anyhow::{Context, Result, ensure};
use baton_api::{Limits, State};
use baton_lab::{HttpClient, HttpEcho, Load, Pod};
use baton_ns::{HTTP_PORT, RawIp, Scene, kernel_counters, until};
use std::{
    fs,
    ops::Range,
    thread,
    time::{Duration, Instant},
};

const SYNS: u32 = 600_000;
/// Between two pieces it is looked at whether all are accounted for and the real clients get on.
const PIECE: u32 = 1_000;
const PACE: Duration = Duration::from_millis(100);
const CONNECTIONS: u64 = 64;
/// Connections that are opened one after the other meanwhile, each with a request.
const NEW: u32 = 120;
/// Fewer than the flood has SYNs in the time that a handshake may take (63 s), by far: 10,000
/// towards each pod.
const PORTS: &str = "20000-29999";
/// Handshakes towards one pod that are not complete: a quarter of the ports; and those of the last
/// 250 ms.
const HALF_OPEN: u64 = 2_500;
const YOUNG: u64 = 2_500;
/// Tables and rings are there from the start; what grows are pages of them that are touched for the
/// first time: flows, their timers and keys, 16,384 kept segments of 2 KiB.
const TOUCHED_KIB_MAX: u64 = 64 << 10;
/// Once all is touched, memory stays: what is left is the control thread's.
const GROWTH_KIB_MAX: u64 = 2 << 10;

#[test]
fn a_minute_of_10_000_syns_a_second_harms_no_one_who_is_connected() -> Result<()> {
    let mut scene = Scene::with_pods("synflood", 3)?;
    scene.config.limits = Some(Limits::default());
    scene.config.ports = PORTS.into();
    scene.start()?;
    let load = scene.echo(CONNECTIONS as usize, None)?;
    more(&load, 2_000)?;
    let (fates_before, overrun_before) = (fates(&scene.state()?), overruns(&scene)?);
    let (memory_before, repeated_before) = (memory_kib(&scene)?, syns_repeated(&scene)?);
    let flood = RawIp::open(scene.lab.client().namespace())?;
    // As many are half open as may be after the first half; the second shall cost no memory.
    pour(&scene, &load, &flood, 0..SYNS / 2)?;
    let memory_half = memory_kib(&scene)?;
    scene.nginx[0].process.crash()?;
    pour(&scene, &load, &flood, SYNS / 2..SYNS)?;
    let memory = memory_kib(&scene)?;

    // Every SYN opened a flow or was dropped for a counted reason: by the dataplane, or by a full
    // queue on its way.
    let state = scene.state()?;
    let flows = state.tables["flows"].0;
    ensure!(
        flows <= 3 * HALF_OPEN + YOUNG + CONNECTIONS + u64::from(NEW),
        "{flows} flows: handshakes that are not complete have no bound"
    );
    assert!(scene.counter("half_open_replaced_total")? > 0);
    let [opened, full, no_port] = [0, 1, 2].map(|i| fates(&state)[i] - fates_before[i]);
    let overrun = overruns(&scene)? - overrun_before;
    let seen = opened + full + no_port;
    let repeated = syns_repeated(&scene)? - repeated_before;
    eprintln!(
        "{opened} opened, {full} found the table full, {no_port} no port, {overrun} frames overran a queue; {repeated} SYNs of \
         real clients repeated; {memory_before} KiB before, {memory_half} at half, {memory} after"
    );
    // The new clients' are among them, and perhaps a repeated one.
    let explained = seen <= u64::from(SYNS + 2 * NEW) && seen + overrun >= u64::from(SYNS + NEW);
    ensure!(explained, "these are not {SYNS} and {NEW}");
    assert_eq!(full, 0, "the table of flows is full");
    // A client repeats its SYN after 1 s.
    ensure!(repeated <= overrun, "{repeated} times a new client waited for a second");
    ensure!(
        memory_half <= memory_before + TOUCHED_KIB_MAX && memory <= memory_half + GROWTH_KIB_MAX,
        "memory grew"
    );
    let moved = scene.counter("migrations_total")?;
    more(&load, 2_000)?;
    ensure!(scene.counter("migrations_total")? > moved, "nothing moves");
    let (report, _) = load.stop()?;
    // With a move at each request, a connection leaves the dead pod with its next one: whether any
    // is idle for long enough to be rescued is chance, but that the death is known is not.
    ensure!(
        scene.counter("backends_down_total{reason=\"no_listener\"}")? > 0,
        "the pod's death was not noticed"
    );
    scene.explained(no_error(&report, None))?;
    scene.nothing_lost(0)?;
    assert_eq!(scene.counter("resets_sent_total{to=\"client\"}")?, 0);
    Ok(())
}

fn pour(scene: &Scene, load: &Load<HttpEcho>, flood: &RawIp, numbers: Range<u32>) -> Result<()> {
    let seen = || -> Result<u64> { Ok(fates(&scene.state()?).iter().sum()) };
    let (from, overrun) = (seen()?, overruns(scene)?);
    let address = scene.address(HTTP_PORT)?;
    let begun = Instant::now();
    for (piece, first) in (1_u32..).zip(numbers.step_by(PIECE as usize)) {
        // 10,000 SYNs a second.
        let due = begun + (piece - 1) * PACE;
        thread::sleep(due.saturating_duration_since(Instant::now()));
        flood.flood(address, first..first + PIECE)?;
        let wanted = u64::from(piece) * u64::from(PIECE);
        let all = until("a piece of the flood accounted for", || {
            let mut now = seen()? - from;
            if now < wanted {
                now += overruns(scene)? - overrun;
            }
            ensure!(now >= wanted, "{now} of {wanted}");
            Ok(())
        });
        scene.explained(all)?;
        // The real clients get on meanwhile, and new ones come.
        more(load, 100)?;
        if piece % (SYNS / PIECE / NEW) == 0 {
            scene.explained(comes_new(scene))?;
        }
    }
    Ok(())
}

/// A new connection and its first request.
fn comes_new(scene: &Scene) -> Result<()> {
    let client = scene.lab.client().namespace();
    let mut new = HttpClient::connect(client, scene.address(HTTP_PORT)?)?;
    let answer = new.get("/")?;
    ensure!(answer.status == 200, "status {}", answer.status);
    Ok(())
}

/// SYNs that real clients had to send again.
fn syns_repeated(scene: &Scene) -> Result<u64> {
    let counters = kernel_counters(scene.lab.client().namespace())?;
    counters.get("TcpExt.TCPSynRetrans").copied().context("none")
}

/// What became of SYNs: a flow, no room for one, no port for one.
fn fates(state: &State) -> [u64; 3] {
    [
        "flows_opened_total",
        "drops_total{reason=\"flow_table_full\"}",
        "drops_total{reason=\"no_port\"}",
    ]
    .map(|name| state.counters[name])
}

/// Frames that found a queue full on their way: at the node's end of the client's link, at either
/// end of the dataplane's, or in its ring. The real clients' are among them, and the last two may
/// count the same frame.
fn overruns(scene: &Scene) -> Result<u64> {
    let dropped = |place: &Pod, link: &str, way: &str| -> Result<u64> {
        let shown = ["-j", "-s", "link", "show", link];
        let links = place.namespace().ip(&shown)?;
        let links: serde_json::Value = serde_json::from_str(&links)?;
        let count = links[0]["stats64"][way]["dropped"].as_u64();
        count.with_context(|| format!("no drops in {links}"))
    };
    let (node, own) = (scene.lab.router(), scene.lab.dataplane_pod());
    let on_links = dropped(node, "client", "rx")?
        + dropped(node, "dataplane", "tx")?
        + dropped(own, "eth0", "rx")?;
    let state = scene.state()?;
    let io = state.counters.iter().filter(|(name, _)| name.starts_with("io_drops_total"));
    Ok(on_links + io.map(|(_, count)| count).sum::<u64>())
}

/// Resident memory of the dataplane.
fn memory_kib(scene: &Scene) -> Result<u64> {
    let pid = scene.dataplane()?.process.pid();
    let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let value = text.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    let value = value.and_then(|v| v.split_whitespace().next());
    value.context("VmRSS")?.parse().context("VmRSS")
}
