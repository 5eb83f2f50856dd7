//! Connections that move by translation: to pods without host-shim, to servers and behind
//! firewalls that keep adoptions out, and beside adoptions.

mod failures;
mod firewall;
mod gvisor;
mod legless;
mod requests;
mod servers;
mod shared;

use anyhow::{Result, ensure};
use baton_api::{BackendHealth, Limits, MoveMethod};
use baton_lab::LoadReport;
use baton_ns::{Scene, until};

/// Has all policies move by one method.
fn move_by(scene: &mut Scene, method: MoveMethod) {
    for policy in &mut scene.config.policies {
        policy.migration.method = method;
    }
}

/// Pairs of ports of ours and of pods that trackers may remember: more than there are, as no
/// adopter says when they are forgotten.
const TRACKED_PAIRS: u32 = 1 << 18;

/// Starts the dataplane alone, without keys: nothing on the node helps it, and nothing adopts.
fn start_alone(scene: &mut Scene) -> Result<()> {
    scene.config.keys = Vec::new().into();
    scene.config.limits = Some(Limits { tracked_pairs: TRACKED_PAIRS, ..Limits::default() });
    scene.start_dataplane()
}

/// Moves that were translations.
fn translations(scene: &Scene) -> Result<u64> {
    scene.counter("openings_total{result=\"opened\"}")
}

/// Moves onto one backend of the HTTP policy.
fn moves_to(scene: &Scene, backend: &str) -> Result<u64> {
    Ok(scene.backend(0, backend)?.migrations_in_total)
}

/// Waits until a backend takes flows again, and nothing waits for its return.
fn wait_up(scene: &Scene, policy: usize, name: &str) -> Result<()> {
    let up = until(&format!("{name} up"), || {
        let backend = scene.backend(policy, name)?;
        ensure!(
            backend.health == BackendHealth::Up && backend.stranded == 0,
            "{}, {} stranded",
            backend.health,
            backend.stranded
        );
        Ok(())
    });
    scene.explained(up)
}

/// No client met an end: nothing marks those of a process that dies, and none is believed.
fn nobody_noticed(scene: &Scene, report: &LoadReport) -> Result<()> {
    let believed = scene.counter("closes_believed_total")?;
    let unknown = scene.counter("fates_unknown_total{outcome=\"reset\"}")?;
    let check = || {
        ensure!(report.error_count() == 0, "{:?}", report.errors);
        ensure!(believed == 0, "{believed} ends were believed");
        ensure!(unknown == 0, "{unknown} requests were given up");
        Ok(())
    };
    scene.explained(check())
}

/// No client was reset, and nothing was dropped that should not have been.
fn nothing_was_reset(scene: &Scene) -> Result<()> {
    for name in [
        "resets_sent_total{to=\"client\"}",
        "drops_total{reason=\"bad_checksum\"}",
        "fates_unknown_total{outcome=\"reset\"}",
    ] {
        let value = scene.counter(name)?;
        ensure!(value == 0, "{name}: {value}");
    }
    scene.nothing_lost(0).map(drop)
}
