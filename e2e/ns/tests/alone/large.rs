//! Requests larger than a new pod's first receive window: they stay where moving is a choice, and
//! lose no time where they must go.

use crate::wire::{VARIANTS, offer_all_but, small, upload_bytes};
use anyhow::{Context, Result, ensure};
use baton_api::{Migration, MigrationMode};
use baton_lab::{HttpClient, content};
use baton_ns::{HTTP_PORT, Scene, kernel_counters};

const SIZES: [usize; 2] = [200_000, 1_000_000];
/// Uploads of each size.
const UPLOADS: u64 = 20;

#[test]
fn large_requests_stay_where_moving_is_a_choice() -> Result<()> {
    let mut scene = Scene::with_pods("large-stay", 2)?;
    scene.start()?;
    let mut client =
        HttpClient::connect(scene.lab.client().namespace(), scene.address(HTTP_PORT)?)?;
    let mut moves = 0;
    for size in SIZES {
        for n in 0..UPLOADS {
            // The small one in front moves, the upload stays with its pod.
            let pod = small(&mut client, n)?;
            let bytes = content(size, fastrand::u64(..));
            let on = upload_bytes(&scene, &mut client, &format!("stay-{n}"), &bytes)?;
            ensure!(on == pod, "upload {n} of {size} bytes went from {pod} to {on}");
            moves += 1;
        }
    }
    let stayed = scene.counter("stays_total{reason=\"large\"}")?;
    // The first request has nowhere to move from.
    assert_eq!(stayed, 2 * UPLOADS);
    assert_eq!(scene.counter("migrations_total")?, moves - 1);
    scene.nothing_lost(0)?;
    Ok(())
}

#[test]
fn large_requests_leave_draining_pods_without_a_retransmission_time_out() -> Result<()> {
    let mut scene = Scene::with_pods("large-drain", 2)?;
    scene.config.policies[0].migration =
        Migration { mode: MigrationMode::DrainOnly, ..Migration::default() };
    scene.start()?;
    let namespace = scene.lab.client().namespace();
    for (what, off) in VARIANTS {
        offer_all_but(namespace, off)?;
        let mut client = HttpClient::connect(namespace, scene.address(HTTP_PORT)?)?;
        for size in SIZES {
            let (moves, waited) =
                (scene.counter("migrations_total")?, scene.counter("backlog_segments_total")?);
            // The same without a drain: what time-outs there are without moves.
            let before = timeouts(&scene)?;
            for n in 0..UPLOADS {
                put(&scene, &mut client, n, size)?;
            }
            let staying = timeouts(&scene)? - before;
            let before = timeouts(&scene)?;
            // What the first one leaves is a wide window.
            let mut pod = put(&scene, &mut client, 0, size)?;
            for n in 1..=UPLOADS {
                scene.dataplane()?.tool(&["drain", &pod])?;
                let on = put(&scene, &mut client, n, size)?;
                ensure!(on != pod, "{what}: upload {n} of {size} bytes stayed on {pod}");
                scene.dataplane()?.tool(&["drain", &pod, "--undo"])?;
                pod = on;
            }
            let moves = scene.counter("migrations_total")? - moves;
            let waited = scene.counter("backlog_segments_total")? - waited;
            let moving = timeouts(&scene)? - before;
            eprintln!(
                "{what}: {UPLOADS} uploads of {size} bytes: {waited} segments waited, {moving} time-outs \
                 moving, {staying} staying"
            );
            assert_eq!(moves, UPLOADS, "{what}");
            ensure!(waited > 0, "{what}: nothing waited for a window");
            // A pod that gets no CPU for 200 ms has its client time out while bytes wait for its
            // window: 5 in 20 at a load of 15 on two CPUs, none on an idle machine.
            ensure!(moving * 2 < UPLOADS, "{what}: {moving} time-outs, {staying} staying");
        }
    }
    scene.nothing_lost(0)?;
    Ok(())
}

fn put(scene: &Scene, client: &mut HttpClient, n: u64, size: usize) -> Result<String> {
    let bytes = content(size, fastrand::u64(..));
    upload_bytes(scene, client, &format!("drain-{n}"), &bytes)
}

/// Retransmission time-outs in the client's namespace.
fn timeouts(scene: &Scene) -> Result<u64> {
    let counters = kernel_counters(scene.lab.client().namespace())?;
    let found = counters.get("TcpExt.TCPTimeouts").copied();
    found.context("no TCPTimeouts")
}
