//! One frame in a hundred is lost between the node and the pods, in both directions.

use crate::{http_without_error, wire};
use anyhow::Result;
use baton_lab::HttpClient;
use baton_ns::{HTTP_PORT, Scene, nft};

const REQUESTS: u64 = 4_000;
/// Many, because most of the time they wait for the kernel's retransmission timer.
const CONNECTIONS: usize = 64;

#[test]
fn requests_move_over_lossy_legs() -> Result<()> {
    let mut scene = Scene::with_pods("loss", 3)?;
    scene.start()?;
    let router = scene.lab.router().namespace();
    for command in [
        "add table inet loss",
        "add chain inet loss forward { type filter hook forward priority 0 ; }",
        "add rule inet loss forward oifname \"pod-*\" numgen random mod 100 < 1 counter drop",
        "add rule inet loss forward iifname \"pod-*\" numgen random mod 100 < 1 counter drop",
    ] {
        nft(router, command)?;
    }
    let options = scene.http_load(CONNECTIONS, Some(REQUESTS))?;
    let (report, _) = http_without_error(&scene, options)?;
    eprintln!("{:?}", report.latency);
    let mut client =
        HttpClient::connect(scene.lab.client().namespace(), scene.address(HTTP_PORT)?)?;
    wire::rounds(&scene, &mut client)?;

    // GETs are idempotent: even one whose fate is unknown is executed again, and no client is reset.
    assert_eq!(scene.counter("resets_sent_total{to=\"client\"}")?, 0);
    assert_eq!(scene.counter("fates_unknown_total{outcome=\"reset\"}")?, 0);
    let moves = scene.counter("migrations_total")?;
    assert!(
        moves >= REQUESTS / 2,
        "only {moves} migrations in {REQUESTS} requests"
    );
    assert!(
        scene.counter("adoption_retries_total")? > 0,
        "no adoption was lost: no loss?"
    );
    eprintln!(
        "{moves} migrations, {} retries, {} rollbacks, {} replayed",
        scene.counter("adoption_retries_total")?,
        scene.counter("rollbacks_total")?,
        scene.counter("fates_unknown_total{outcome=\"replayed\"}")?
    );
    Ok(())
}
