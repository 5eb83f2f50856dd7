//! What a packet costs: forwarding in a table of 50,000 flows, and one whole migration.
//!
//! Every forwarding figure includes copying the frame into a fresh buffer; `copy` measures that alone.

mod support;

use baton_engine::{Counter, Verdict};
use baton_packet::Flags;
use criterion::{Criterion, criterion_group, criterion_main};
use std::{hint::black_box, time::Duration};
use support::{
    FLOWS, Kind, Loaded,
    common::{Conn, World, conn::*},
};

fn forwarding(c: &mut Criterion) {
    for v6 in [false, true] {
        let family = if v6 { "ipv6" } else { "ipv4" };
        let mut loaded = Loaded::new(v6, FLOWS);
        let mut group = c.benchmark_group(format!("forward/{family}"));
        for (name, kind) in [
            ("ack_64", Kind::Ack),
            ("request_200", Kind::Request),
            ("data_1448", Kind::Response),
        ] {
            group.bench_function(format!("{name}/hot_flow"), |b| {
                b.iter(|| {
                    let verdict = loaded.forward(kind, 7);
                    debug_assert!(matches!(verdict, Verdict::Transmit(_)));
                    black_box(verdict)
                });
            });
            let mut rng = fastrand::Rng::with_seed(1);
            group.bench_function(format!("{name}/random_of_50000"), |b| {
                b.iter(|| black_box(loaded.forward(kind, rng.usize(..FLOWS))));
            });
            group.bench_function(format!("{name}/copy"), |b| {
                b.iter(|| black_box(loaded.copy(kind, 7)));
            });
            let mut rng = fastrand::Rng::with_seed(1);
            group.bench_function(format!("{name}/copy_random_of_50000"), |b| {
                b.iter(|| black_box(loaded.copy(kind, rng.usize(..FLOWS))));
            });
        }
        group.finish();
    }
}

/// One request with adoption, response, acknowledgement, and the old leg's close: 5 frames in, 4 of our own out.
fn migration(c: &mut Criterion) {
    let mut w = World::new(2);
    w.strict = false;
    let mut conn: Conn = w.idle(1);
    let mut out = support::Recorder::default();
    c.bench_function("migration/adoption_commit_close", |b| {
        b.iter_custom(|times| {
            let mut took = Duration::ZERO;
            for _ in 0..times {
                took += one_migration(&mut w, &mut conn, &mut out);
            }
            took
        });
    });
    assert!(w.count(Counter::LegsClosed) + 2 > w.count(Counter::MigrationsConfirmed));
}

/// Time inside the engine only; building the frames that the two ends send is not counted.
fn one_migration(w: &mut World, c: &mut Conn, out: &mut support::Recorder) -> Duration {
    let mut took = Duration::ZERO;
    let old = c.clone();
    let request = w.client_wire(c, PSH_ACK, GET).build();
    took += out.give(w, &request);
    let adoption = w.check(&out.sent[0]);
    assert!(adoption.message().is_some(), "it moves");
    take_leg(c, &adoption);
    c.seq = c.seq.wrapping_add(GET.len() as u32);
    let response = w.pod_wire(c, PSH_ACK, OK).build();
    took += out.give(w, &response);
    c.server = c.server.wrapping_add(OK.len() as u32);
    let ack = w.client_wire(c, Flags::ACK, &[]).build();
    took += out.give(w, &ack);
    w.now.0 += 10_000;
    took += out.poll(w);
    let mut last = old;
    last.seq = last.seq.wrapping_add(1);
    let fin = w.pod_wire(&last, FIN_ACK, &[]).build();
    took += out.give(w, &fin);
    // Ports come back from quarantine, and the pods stay ready, outside the measurement.
    w.run_ms(20);
    took
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .measurement_time(Duration::from_secs(2))
        .warm_up_time(Duration::from_millis(500));
    targets = forwarding, migration
}
criterion_main!(benches);
