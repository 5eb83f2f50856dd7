//! Every request moves its connection while packets are lost, reordered, corrupted and doubled on
//! the way, on the pods' side, on the clients' side and on both: every answer right, no client
//! reset, and the figures say why.
//!
//! Real nginx and redis, real kernels at both ends, faults by a BPF program in between
//! (`baton_lab::Faults`). Redis counts in its servers how often each INCR was executed, so a
//! request executed twice shows as well.

use crate::no_error;
use anyhow::{Result, ensure};
use baton_api::Protocol;
use baton_lab::{
    FaultCounts, FaultRates, Faults, HttpEcho, LoadOptions, RedisCheck, Server, Side, Way,
};
use baton_ns::{HTTP_PORT, REDIS_POLICY, REDIS_PORT, Scene, kernel_counters, until};

const PODS: usize = 3;
const SEED: u64 = 4;
/// Of each load. Many, because most of the time they wait for the kernel's retransmission timer.
const CONNECTIONS: usize = 128;
/// Of each load.
const REQUESTS: u64 = 8_000;
const PER_MILLE: u32 = 10;

const POD: &[Side] = &[Side::Pods];
const CLIENT: &[Side] = &[Side::Clients];
const BOTH: &[Side] = &[Side::Pods, Side::Clients];

/// What remains after both loads ended well.
struct Seen {
    scene: Scene,
    faults: Faults,
}

impl Seen {
    fn side(&self, side: Side) -> Result<FaultCounts> {
        let mut both = self.faults.counts(side, Way::From)?;
        both += self.faults.counts(side, Way::To)?;
        Ok(both)
    }

    fn counter(&self, name: &str) -> Result<u64> {
        self.scene.counter(name)
    }
}

/// HTTP and redis at once under `rates` on `sides`, and what must hold whatever the faults are.
fn under(name: &str, sides: &[Side], rates: FaultRates) -> Result<Seen> {
    in_scene(Scene::with_pods(name, PODS)?, name, sides, rates)
}

fn in_scene(mut scene: Scene, name: &str, sides: &[Side], rates: FaultRates) -> Result<Seen> {
    scene.add_redis()?;
    // INCR is executed at most once, GET and ECHO may be twice.
    scene.config.policies[REDIS_POLICY].protocol = Protocol::Resp;
    scene.start()?;
    let faults = scene.lab.faults(SEED)?;
    let client = scene.lab.client().namespace();
    let options = |port| -> Result<LoadOptions> {
        Ok(LoadOptions::of(scene.address(port)?, CONNECTIONS, Some(REQUESTS)))
    };
    let servers: Vec<_> = scene.redis.iter().map(Server::address).collect();
    let redis = RedisCheck::start(client, &servers, options(REDIS_PORT)?)?;
    let web = HttpEcho::start(client, options(HTTP_PORT)?)?;
    // Only now: what a load says to the servers directly, before and behind it, shall not count.
    for side in sides {
        faults.set_both(*side, rates)?;
    }
    let (web, _) = web.join()?;
    until("the redis load over", || {
        ensure!(redis.is_finished(), "it is not");
        Ok(())
    })?;
    faults.calm()?;
    let redis = RedisCheck::finish(redis)?;
    let state = scene.state()?;
    let told: Vec<_> = state.counters.iter().filter(|(_, v)| **v > 0).collect();
    eprintln!(
        "{name}: {:.0} and {:.0} a second, p99 {} and {} us, {:?}\n{told:?}",
        web.per_second(),
        redis.per_second(),
        web.latency.p99_us,
        redis.latency.p99_us,
        faults.total()?
    );
    no_error(&web, Some(REQUESTS))?;
    no_error(&redis, Some(REQUESTS))?;

    for policy in &state.policies {
        let lost: u64 = policy.lost_total.values().sum();
        assert_eq!(lost, 0, "{}: {:?}", policy.name, policy.lost_total);
        // Lost and late packets are no reason to follow a connection no more.
        let pinned: u64 = policy.pins_total.values().sum();
        assert_eq!(pinned, 0, "{}: {:?}", policy.name, policy.pins_total);
        // Each request but a connection's first moves; one stays here and there, where an
        // acknowledgement is late.
        let moves = policy.migrations_total;
        let least = (REQUESTS - CONNECTIONS as u64) * 9 / 10;
        assert!(moves >= least, "{}: only {moves} moves", policy.name);
    }
    let seen = Seen { scene, faults };
    for counter in [
        "fates_unknown_total{outcome=\"reset\"}",
        "unexpected_events_total",
        "backends_down_total{reason=\"silent\"}",
        "backends_down_total{reason=\"no_listener\"}",
        "backends_restarted_total",
        "forged_answers_total",
    ] {
        assert_eq!(seen.counter(counter)?, 0, "{counter}");
    }
    // A late copy of a closed connection's segment draws a reset, as from any kernel. No other was
    // sent.
    let resets = seen.counter("resets_sent_total{to=\"client\"}")?;
    let of_no_flow = seen.counter("drops_total{reason=\"no_flow\"}")?;
    assert!(resets <= of_no_flow, "{resets} resets, {of_no_flow} late copies");
    // The client's kernel says so too: none of its connections ended by a reset.
    let kernel = kernel_counters(seen.scene.lab.client().namespace())?;
    assert_eq!(kernel["Tcp.EstabResets"], 0);
    // Nothing was lost or left in order but by the dice.
    assert_eq!(seen.faults.unasked()?, 0);
    Ok(seen)
}

fn lossy(name: &str, sides: &[Side]) -> Result<Seen> {
    let seen = under(name, sides, FaultRates::loss(PER_MILLE))?;
    let total = seen.faults.total()?;
    assert!(total.lost > 100, "{total:?}");
    Ok(seen)
}

#[test]
fn loss_at_the_pods() -> Result<()> {
    let seen = lossy("p-loss", POD)?;
    assert!(seen.counter("adoption_retries_total")? > 0);
    Ok(())
}

#[test]
fn loss_at_the_clients() -> Result<()> {
    let seen = lossy("c-loss", CLIENT)?;
    // Adoptions are not on the lossy way: none is taken back, whatever clients send again.
    assert_eq!(seen.counter("rollbacks_total")?, 0);
    Ok(())
}

fn reordered(name: &str, sides: &[Side]) -> Result<Seen> {
    reordered_in(Scene::with_pods(name, PODS)?, name, sides)
}

fn reordered_in(scene: Scene, name: &str, sides: &[Side]) -> Result<Seen> {
    let seen = in_scene(scene, name, sides, FaultRates::reordering(5 * PER_MILLE))?;
    for side in sides {
        let counts = seen.side(*side)?;
        assert!(counts.held > 100 && counts.overtaken > 50, "{counts:?}");
    }
    Ok(seen)
}

#[test]
fn reordering_at_the_pods() -> Result<()> {
    let seen = reordered("p-order", POD)?;
    // A request that overtakes its adoption meets the listener, whose bare reset says nothing.
    assert!(seen.counter("adoption_retries_total")? > 0);
    Ok(())
}

/// At that reset the node forgets the connection, and drops from then on what is INVALID to it.
#[test]
fn reordering_at_the_pods_of_a_node_that_tracks() -> Result<()> {
    let scene = Scene::with_pods("p-track", PODS)?;
    let _tracker = scene.lab.track()?;
    let seen = reordered_in(scene, "p-track", POD)?;
    assert_eq!(seen.counter("rollbacks_total")?, 0);
    Ok(())
}

#[test]
fn reordering_at_the_clients() -> Result<()> {
    reordered("c-order", CLIENT).map(drop)
}

fn corrupted(name: &str, sides: &[Side]) -> Result<Seen> {
    let seen = under(name, sides, FaultRates::corruption(PER_MILLE))?;
    assert!(seen.faults.spared() < 10, "{}", seen.faults.spared());
    to_the_dataplane(&seen)?;
    to_the_others(&seen)?;
    Ok(seen)
}

#[test]
fn corruption_at_the_pods() -> Result<()> {
    let seen = corrupted("p-flip", POD)?;
    assert!(seen.counter("adoption_retries_total")? > 0);
    Ok(())
}

#[test]
fn corruption_at_the_clients() -> Result<()> {
    corrupted("c-flip", CLIENT).map(drop)
}

/// Each corrupted frame that came to the dataplane was dropped: by the engine, or by the kernel
/// where a flipped port made it one that is not ours.
fn to_the_dataplane(seen: &Seen) -> Result<()> {
    let mut came = seen.faults.counts(Side::Pods, Way::From)?;
    came += seen.faults.counts(Side::Clients, Way::From)?;
    let kernel = seen.scene.lab.dataplane_pod().namespace();
    until("every corrupted frame to the dataplane dropped", || {
        let engine = seen.counter("drops_total{reason=\"bad_checksum\"}")?;
        let malformed = seen.counter("drops_total{reason=\"malformed\"}")?;
        let kernel = kernel_counters(kernel)?["Tcp.InCsumErrors"];
        let surely = came.corrupted - came.corrupted_offset;
        ensure!(
            engine > 0 && (surely..=came.corrupted).contains(&(engine + kernel)),
            "{came:?}, {engine} by the engine, {kernel} by the kernel"
        );
        // Nothing is malformed but what a flipped data offset makes so.
        ensure!(malformed <= came.corrupted_offset, "{malformed} {came:?}");
        Ok(())
    })
}

/// Each corrupted frame that came to a pod or client was dropped: by its kernel, or by the adopter
/// in a pod.
fn to_the_others(seen: &Seen) -> Result<()> {
    let mut came = seen.faults.counts(Side::Pods, Way::To)?;
    came += seen.faults.counts(Side::Clients, Way::To)?;
    let lab = &seen.scene.lab;
    until("every corrupted frame from the dataplane dropped", || {
        let mut dropped = 0;
        for place in lab.pods().iter().chain(lab.clients()) {
            dropped += kernel_counters(place.namespace())?["Tcp.InCsumErrors"];
        }
        for outcome in ["bad_checksum", "bad_tag", "bad_layout", "unknown_epoch", "stray_answer"] {
            dropped += seen.scene.shim_counter(&[&format!("\"{outcome}\"")])?;
        }
        let surely = came.corrupted - came.corrupted_offset;
        ensure!((surely..=came.corrupted).contains(&dropped), "{came:?}, {dropped} dropped");
        Ok(())
    })
}

fn doubled(name: &str, sides: &[Side]) -> Result<Seen> {
    let seen = under(name, sides, FaultRates::duplication(5 * PER_MILLE))?;
    for side in sides {
        let counts = seen.side(*side)?;
        assert!(counts.doubled_late > 100, "{counts:?}");
    }
    Ok(seen)
}

#[test]
fn duplication_at_the_pods() -> Result<()> {
    let seen = doubled("p-twice", POD)?;
    // What comes twice comes a second time from legs that own nothing any more.
    assert!(seen.counter("fenced_segments_total")? > 0);
    // A second adoption finds the first one's socket, or the trace of it.
    assert!(seen.scene.shim_counter(&["\"repeated\""])? > 0);
    Ok(())
}

#[test]
fn duplication_at_the_clients() -> Result<()> {
    doubled("c-twice", CLIENT).map(drop)
}

#[test]
fn everything_everywhere() -> Result<()> {
    let rates = FaultRates {
        lost: PER_MILLE,
        corrupted: PER_MILLE,
        held: 2 * PER_MILLE,
        doubled: 2 * PER_MILLE,
    };
    let seen = under("p-all", BOTH, rates)?;
    for side in [Side::Pods, Side::Clients] {
        for way in [Way::From, Way::To] {
            let counts = seen.faults.counts(side, way)?;
            let each = [counts.lost, counts.corrupted, counts.held, counts.doubled];
            assert!(each.iter().all(|n| *n > 0), "{side:?} {way:?} {counts:?}");
        }
    }
    assert!(seen.counter("adoption_retries_total")? > 0);
    assert!(seen.counter("drops_total{reason=\"bad_checksum\"}")? > 0);
    to_the_dataplane(&seen)?;
    to_the_others(&seen)
}
