//! A flood of SYNs from addresses that do not exist, while a real client works.

use crate::{http_without_error, more, no_error};
use anyhow::{Result, ensure};
use baton_api::{Limits, Micros, Timeouts};
use baton_ns::{HTTP_PORT, RawIp, Scene, until};

/// A fiftieth of the flood.
const PIECE: u32 = 1_000;
const CONNECTIONS: usize = 8;
/// Fewer than the flood needs.
const FLOWS: u32 = 4_096;

#[test]
fn a_syn_flood_harms_no_one_who_is_connected() -> Result<()> {
    let mut scene = Scene::with_pods("flood", 3)?;
    scene.config.limits = Some(Limits { flows: FLOWS, ..Limits::default() });
    scene.config.policies[0].timeouts =
        Timeouts { handshake: Micros::from_secs(1), ..Timeouts::default() };
    scene.start()?;
    let load = scene.echo(CONNECTIONS, None)?;
    more(&load, 1_000)?;

    let frontend = scene.address(HTTP_PORT)?;
    let raw = RawIp::open(scene.lab.client().namespace())?;
    // In pieces, each answered by progress of the real client: the flood must not win by the
    // sender's CPU alone.
    for piece in 0..50 {
        raw.flood(frontend, piece * PIECE..(piece + 1) * PIECE)?;
        more(&load, 20)?;
    }
    let replaced = scene.counter("half_open_replaced_total")?;
    assert!(replaced > 0, "handshakes that are not complete have no bound");
    until("drained", || {
        let (used, _) = scene.state()?.tables["flows"];
        ensure!(used == CONNECTIONS as u64, "{used} flows");
        Ok(())
    })?;
    assert!(scene.counter("timeouts_total{state=\"handshake\"}")? > 0);
    more(&load, 1_000)?;
    let (report, _) = load.stop()?;
    no_error(&report, None)?;
    eprintln!("{replaced} SYNs gave way to newer ones; {:?}", report.latency);
    // New connections have room again.
    let options = scene.http_load(64, Some(6_400))?;
    http_without_error(&scene, options)?;
    Ok(())
}
