//! Unmodified memcached in every pod: connections move between all commands, and what ties one to
//! its server stays.

use crate::no_error;
use anyhow::{Context, Result, ensure};
use baton_api::Protocol;
use baton_lab::{
    LoadOptions, MEMCACHED_PORT, MemcachedCheck, MemcachedClient, Pod, Server, policy,
};
use baton_ns::{Scene, always, until};

/// Index of the memcached policy; 0 is the HTTP one of every scene.
const POLICY: usize = 1;
const CONNECTIONS: usize = 16;
/// Exchanges of one to forty commands.
const EXCHANGES: u64 = 20_400;
/// A connection's first exchange finds it where it was opened. A probe may come late, so that a few
/// stay.
const MOVES_MIN: u64 = EXCHANGES * 49 / 50;

#[test]
fn every_exchange_moves_and_each_command_is_executed_once() -> Result<()> {
    let (mut scene, servers) = scene("memcached")?;
    scene.start()?;
    let addresses: Vec<_> = servers.iter().map(Server::address).collect();
    let options = LoadOptions::of(scene.address(MEMCACHED_PORT)?, CONNECTIONS, Some(EXCHANGES));
    let place = scene.lab.client().namespace();
    let load = MemcachedCheck::start(place, &addresses, options)?;
    let report = scene.explained(MemcachedCheck::finish(load))?;
    scene.explained(no_error(&report, Some(EXCHANGES)))?;
    let figures = scene.nothing_lost(POLICY)?;
    eprintln!(
        "{} moves, {:.0} exchanges/s, stays: {}, pins: {:?}",
        figures.migrations_total,
        report.per_second(),
        scene.counter("stays_total{reason=\"kept_full\"}")?,
        figures.pins_total
    );
    let enough = || {
        ensure!(figures.migrations_total >= MOVES_MIN, "{} moves", figures.migrations_total);
        ensure!(figures.pins_total.is_empty(), "{:?}", figures.pins_total);
        Ok(())
    };
    scene.explained(enough())?;
    assert_eq!(scene.counter("resets_sent_total{to=\"client\"}")?, 0);
    assert_eq!(scene.counter("rollbacks_total")?, 0);
    Ok(())
}

/// What a connection says, what it is answered, and the reason of the pin.
struct Case {
    name: &'static str,
    says: Vec<u8>,
    reply: &'static [u8],
    pin: &'static str,
    /// Whether the text protocol goes on behind it.
    goes_on: bool,
}

fn case(name: &'static str, says: impl Into<Vec<u8>>, reply: &'static [u8]) -> Case {
    Case { name, says: says.into(), reply, pin: "unparsable", goes_on: true }
}

/// A header of the binary protocol, a no-op: magic, then the operation (doc/protocol-binary.txt).
const fn binary_noop<const MAGIC: u8>() -> [u8; 24] {
    let mut header = [0; 24];
    (header[0], header[1]) = (MAGIC, 0x0a);
    header
}

fn cases() -> [Case; 6] {
    [
        case("a command that is not known", "bogus\r\n", b"ERROR\r\n"),
        case(
            "a quiet meta command, which a miss does not answer",
            "mg baton:none v q\r\nmn\r\n",
            b"MN\r\n",
        ),
        case(
            "a value longer than it says, whose rest is a command to the server",
            "set baton:bad 0 0 2\r\nlonger\r\n",
            b"CLIENT_ERROR bad data chunk\r\nERROR\r\n",
        ),
        Case {
            pin: "head_too_long",
            ..case(
                "a line of 70,000 bytes",
                format!("get{}\r\n", " baton:none".repeat(6_400)),
                b"END\r\n",
            )
        },
        Case {
            pin: "monitor",
            goes_on: false,
            ..case("a watcher, whose server speaks when it likes", "watch fetchers\r\n", b"OK\r\n")
        },
        Case {
            pin: "binary",
            goes_on: false,
            ..case("the binary protocol", binary_noop::<0x80>(), const { &binary_noop::<0x81>() })
        },
    ]
}

#[test]
fn what_cannot_be_followed_is_pinned_and_served() -> Result<()> {
    let (mut scene, servers) = scene("mcpins")?;
    let place = scene.lab.client().namespace().clone();
    for server in &servers {
        MemcachedClient::connect(&place, server.address())?.set("baton:key", b"value")?;
    }
    scene.start()?;
    let address = scene.address(MEMCACHED_PORT)?;
    for case in &cases() {
        let result = stays(&scene, MemcachedClient::connect(&place, address)?, case);
        scene.explained(result.context(case.name))?;
    }
    // `quit` is a close that the client asked for.
    let mut client = MemcachedClient::connect(&place, address)?;
    for _ in 0..3 {
        works(&mut client)?;
    }
    client.send(b"quit\r\n")?;
    client.end()?;
    scene.nothing_lost(POLICY)?;
    assert_eq!(scene.counter("stranded_total")?, 0, "taken for a pod's death");
    assert_eq!(scene.counter("resets_sent_total{to=\"client\"}")?, 0);
    Ok(())
}

fn stays(scene: &Scene, mut client: MemcachedClient, case: &Case) -> Result<()> {
    let pins = || -> Result<u64> {
        let pins = scene.policy(POLICY)?.pins_total;
        Ok(pins.get(case.pin).copied().unwrap_or(0))
    };
    let before = pins()?;
    // The binary protocol shows in the first byte of a connection only.
    if case.pin != "binary" {
        works(&mut client)?;
    }
    client.send(&case.says)?;
    client.expect(case.reply)?;
    until("counted", || {
        let counted = pins()? - before;
        ensure!(counted == 1, "{counted} pinned as {}", case.pin);
        Ok(())
    })?;
    let moved = scene.policy(POLICY)?.migrations_total;
    if case.goes_on {
        for _ in 0..10 {
            works(&mut client)?;
        }
    }
    ensure!(scene.policy(POLICY)?.migrations_total == moved, "it moved");
    Ok(())
}

fn works(client: &mut MemcachedClient) -> Result<()> {
    client.send(b"get baton:key\r\n")?;
    client.expect(b"VALUE baton:key 0 5\r\nvalue\r\nEND\r\n")
}

/// Three pods with memcached beside nginx, and a policy that moves at every boundary.
fn scene(name: &str) -> Result<(Scene, Vec<Server>)> {
    let mut scene = Scene::with_pods(name, 3)?;
    let servers = scene.lab.in_each_pod(Pod::memcached)?;
    let backends: Vec<_> = servers.iter().map(Server::named).collect();
    let mut cache = policy("cache", MEMCACHED_PORT, &backends);
    cache.protocol = Protocol::Memcached;
    cache.migration = always();
    scene.config.policies.push(cache);
    Ok((scene, servers))
}
