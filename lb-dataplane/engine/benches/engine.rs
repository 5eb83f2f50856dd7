//! What one whole migration and the rescue of 10,000 flows cost. Packets are `packets`'.

mod support;

use baton_api::Limits;
use baton_engine::Counter;
use baton_packet::Flags;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::{collections::HashMap, time::Duration};
use support::{
    Recorder,
    common::{Conn, End, Listener, World, conn::*, policy, settings},
};

/// Flows of the pod that dies.
const RESCUED: usize = 10_000;

/// One request with adoption, response, acknowledgement, and the old leg's close: 5 frames in, 4 of
/// our own out.
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

/// A pod with 10,000 idle flows has died: verdict, sweep, adoptions at the survivors' rate,
/// confirmations.
fn rescue(c: &mut Criterion) {
    let mut group = c.benchmark_group("rescue");
    group.throughput(Throughput::Elements(RESCUED as u64));
    group.sample_size(10);
    group.bench_function("sweep_of_10000_flows", |b| {
        b.iter_custom(|times| (0..times).map(|_| one_rescue()).sum());
    });
    group.finish();
}

/// A world with idle flows of pod 0, whose ends are held.
fn stricken() -> (World, Vec<Conn>) {
    let mut s = settings();
    s.limits = Limits { flows: 16_384, ..Limits::default() };
    s.ports = 20_000..=40_000;
    let mut p = policy(4);
    for b in &mut p.backends[1..4] {
        b.weight = 0;
    }
    let mut w = World::unprobed(s, p);
    (w.strict, w.careful) = (false, false);
    w.poll();
    let flows: Vec<Conn> = (0..RESCUED as u16).map(|n| w.idle(n)).collect();
    w.change(|s| {
        for b in &mut s.policies[0].backends[1..4] {
            b.weight = 1;
        }
    });
    w.run_ms(10);
    w.listeners[0] = Listener::Silent;
    for c in &flows {
        w.ends(c, End::Fin);
    }
    (w, flows)
}

/// Time inside the engine only.
fn one_rescue() -> Duration {
    let (mut w, mut flows) = stricken();
    let of: HashMap<(u32, u32), usize> =
        flows.iter().enumerate().map(|(i, c)| ((c.seq, c.server), i)).collect();
    let mut out = Recorder::default();
    let (mut took, mut rounds) = (Duration::ZERO, 0);
    while w.count(Counter::Rescues) < RESCUED as u64 {
        rounds += 1;
        assert!(rounds < 5_000, "only {} rescued", w.count(Counter::Rescues));
        w.now.0 += 1_000;
        took += out.poll(&mut w);
        for frame in std::mem::take(&mut out.sent) {
            let sent = w.check(&frame);
            if sent.is_question() {
                let refusal = w.question_wire(&sent, false).build();
                took += out.give(&mut w, &refusal);
            } else if sent.is_adoption() {
                let conn = &mut flows[of[&(sent.segment.seq.0, sent.segment.ack.0)]];
                take_leg(conn, &sent);
                let ack = w.pod_wire(conn, Flags::ACK, &[]).build();
                took += out.give(&mut w, &ack);
            }
        }
    }
    took
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .measurement_time(Duration::from_secs(2))
        .warm_up_time(Duration::from_millis(500));
    targets = migration, rescue
}
criterion_main!(benches);
