//! What takes long is done in pieces, between which packets are served, and comes to the same.

use crate::common::{
    Conn, Dest, End, Listener, World, backend, endpoint, frontend, pod, pod_mac, policy, settings,
};
use baton_api::{Algorithm, Backend, MigrationMode, Policy, Snapshot, SnapshotError, State};
use baton_engine::{
    Counter, DrainOrder, Migrate, MigrateError, MigrateOrder, Objection, Planner, Prepared,
    Reporting, SteeredEnds, Verdict,
};
use baton_packet::Flags;
use proptest::prelude::*;
use std::net::SocketAddr;

/// Policy number `n` with a frontend of its own and these pods.
fn numbered(n: u16, pods: impl IntoIterator<Item = usize>) -> Policy {
    let mut p = policy(0);
    p.name = format!("p{n}");
    p.frontends = vec![endpoint(SocketAddr::new(frontend(false).ip(), 100 + n))];
    p.backends = pods.into_iter().map(|i| backend(false, i)).collect();
    p
}

/// So many pods that a table of them is gone through in several pieces.
fn many(n: u16) -> Policy {
    let mut p = numbered(n, []);
    p.backends = (0..250)
        .map(|i| {
            Backend::new(
                format!("many-{n}-{i}"),
                endpoint(SocketAddr::new([10, 0, 100 + n as u8, i].into(), 8_080)),
            )
        })
        .collect();
    p
}

/// Puts the world's snapshot in force in pieces, `between` which something happens. How many there
/// were.
fn in_pieces(w: &mut World, prepared: &mut Prepared, mut between: impl FnMut(&mut World)) -> u32 {
    let mut pieces = 1;
    while !w.engine.apply_piece(w.now, prepared).expect("a good snapshot") {
        w.engine.check_invariants();
        between(w);
        pieces += 1;
    }
    w.engine.check_invariants();
    pieces
}

fn roomy() -> baton_engine::Settings {
    let mut s = settings();
    s.limits.backends = 2_000;
    s.limits.flows = 512;
    s
}

#[test]
fn packets_are_served_between_the_pieces_of_a_snapshot() {
    let s = roomy();
    let mut planner = Planner::new(&s, 7);
    let mut p = policy(2);
    p.migration.mode = MigrationMode::Never;
    let mut w = World::with(s, p);
    (w.careful, w.strict) = (false, false);
    let mut open = w.idle(1);
    w.snapshot.generation += 1;
    w.snapshot.policies.extend((1..5).map(many));
    let mut prepared = planner.prepare(&w.snapshot, None).expect("a good snapshot").remove(0);
    let mut n = 10;
    let pieces = in_pieces(&mut w, &mut prepared, |w| {
        w.exchange(&mut open);
        w.open(n);
        n += 1;
    });
    planner.in_force(&mut prepared);
    assert!(pieces > 10, "{pieces}");
    assert_eq!(w.engine.state(w.now).policies.len(), 5);
    // They go, and what is left of them comes back to whoever frees it.
    w.snapshot.generation += 1;
    w.snapshot.policies.truncate(1);
    let mut prepared = planner.prepare(&w.snapshot, None).expect("a good snapshot").remove(0);
    let pieces = in_pieces(&mut w, &mut prepared, |w| w.exchange(&mut open));
    assert!(pieces > 2, "{pieces}");
    assert_eq!(w.table("backends").0, 4, "two pods of each family");
}

#[test]
fn a_refused_snapshot_changes_nothing_however_many_pieces_there_were() {
    let mut s = roomy();
    // It knows of more room than there is, as where backends linger.
    let mut planner = Planner::new(&s, 7);
    s.limits.backends = 600;
    let mut w = World::with(s, many(1));
    w.careful = false;
    w.snapshot.generation += 1;
    w.snapshot.policies = vec![many(1), many(2), many(3)];
    let before = w.engine.state(w.now);
    let mut prepared = planner.prepare(&w.snapshot, None).expect("good by itself").remove(0);
    let refused = loop {
        match w.engine.apply_piece(w.now, &mut prepared) {
            Ok(true) => panic!("750 backends in a table of 600"),
            Ok(false) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(refused.to_string(), "750 backends are more than limits.backends, 600");
    assert_eq!(w.engine.state(w.now), before);
}

#[test]
fn a_report_is_gathered_in_pieces_while_packets_are_served() {
    let mut w = World::with(roomy(), policy(2));
    (w.careful, w.strict) = (false, false);
    w.snapshot.policies.extend((1..4).map(many));
    w.snapshot.generation += 1;
    w.apply();
    let mut report = Reporting::default();
    let mut pieces = 0;
    while !w.engine.report_piece(w.now, &mut report) {
        w.open(pieces);
        pieces += 1;
    }
    assert!(pieces > 10, "{pieces}");
    let (state, figures) = report.end();
    let whole = w.engine.state(w.now);
    let names = |s: &State| -> Vec<(String, usize)> {
        let policies = s.policies.iter();
        policies.map(|p| (p.name.clone(), p.backends.len())).collect()
    };
    assert_eq!(names(&state), names(&whole));
    assert_eq!(state.tables.len(), whole.tables.len());
    assert_eq!(figures.len(), 4);
    assert!(figures.iter().all(|f| f.backends.len() >= 4));
}

/// Whatever is named, each turn looks at a bounded number of members and slots.
#[test]
fn an_order_to_drain_is_carried_out_in_pieces() {
    let mut s = roomy();
    s.limits.flows = 1_024;
    let mut w = World::unprobed(s, policy(2));
    (w.careful, w.strict) = (false, false);
    w.snapshot.policies.extend((1..8).map(many));
    for p in &mut w.snapshot.policies[1..] {
        p.backends.push(backend(false, 1));
    }
    w.snapshot.generation += 1;
    w.apply();
    w.run_ms(10);
    let drained = |w: &World| -> Vec<(String, String)> {
        let policies = w.engine.state(w.now).policies;
        let all = policies.iter().flat_map(|p| {
            let leaves = p.backends.iter().filter(|b| b.draining);
            leaves.map(|b| (p.name.clone(), b.name.clone()))
        });
        all.collect()
    };
    let mut client = 0;
    let members: usize = w.snapshot.policies.iter().map(|p| p.backends.len()).sum();
    for on in [true, false] {
        let mut order = DrainOrder::new(None, "pod-1".to_owned(), on);
        let (mut pieces, mut most) = (1, 0);
        let backends = loop {
            let before = drained(&w).len();
            let done = w.engine.drain_piece(w.now, &mut order);
            most = most.max(before.abs_diff(drained(&w).len()));
            if let Some(backends) = done {
                break backends;
            }
            w.engine.check_invariants();
            w.open(client);
            client += 1;
            pieces += 1;
        };
        assert_eq!(backends, 1);
        assert!(pieces >= members / 512, "{pieces} pieces");
        assert_eq!(drained(&w).len(), if on { 8 } else { 0 });
        assert!((1..8).contains(&most), "{most} in one piece");
        if on {
            assert!(drained(&w).iter().all(|(_, backend)| backend == "pod-1"));
            assert!((100..110).all(|n| w.open(n).pod == 0));
        }
    }
    assert_eq!(w.engine.drain(w.now, None, "pod-99", true), 0);
}

/// As many frontends as there may be, twice as many slots while all are replaced.
#[test]
fn what_is_steered_is_gathered_in_pieces() {
    let mut w = World::unprobed(roomy(), policy(2));
    (w.careful, w.strict) = (false, false);
    w.engine.share_ports();
    let mut open = w.idle(1);
    let ports = |from: u16| {
        move |n: u16| {
            let mut p = numbered(0, [0]);
            p.name = format!("p{from}-{n}");
            let own = (0..16).map(|i| SocketAddr::new(frontend(false).ip(), from + n * 16 + i));
            p.frontends = own.map(endpoint).collect();
            p
        }
    };
    for from in [1_000, 20_000] {
        w.snapshot.policies = (0..1_000).map(ports(from)).collect();
        w.snapshot.generation += 1;
        w.apply();
    }
    let mut ends = SteeredEnds::default();
    let (mut pieces, mut most) = (1, 0);
    loop {
        let before = ends.frontends.len();
        let done = w.engine.steering_piece(&mut ends);
        most = most.max(ends.frontends.len() - before);
        if done {
            break;
        }
        w.exchange(&mut open);
        pieces += 1;
    }
    assert!(pieces >= 32_000 / 2_048 && most <= 2_048, "{pieces} {most}");
    // Those in force, and the one by which the flow came.
    assert_eq!(ends.frontends.len(), 16_001);
    assert!(ends.frontends.contains(&(open.frontend.ip(), open.frontend.port())));
    let backends = ends.backends.expect("others share the ports");
    assert_eq!(backends.len(), if open.pod == 0 { 1 } else { 2 });
    assert!(ends.sources.is_empty());
}

#[test]
fn a_flow_that_shall_move_is_looked_for_in_pieces() {
    let mut w = World::with(roomy(), policy(2));
    (w.careful, w.strict) = (false, false);
    w.snapshot.policies[0].migration.mode = MigrationMode::DrainOnly;
    w.snapshot.policies[0]
        .frontends
        .extend((0..2_000).map(|n| endpoint(SocketAddr::new(frontend(false).ip(), 1_000 + n))));
    w.snapshot.generation += 1;
    w.apply();
    let open = w.idle(1);
    let wanted = |port: u16| Migrate {
        client: SocketAddr::new(open.client.ip(), port),
        frontend: None,
        to: None,
    };
    let mut pieces = 0;
    let mut carry_out = |w: &mut World, wanted: Migrate| {
        let mut order = MigrateOrder::new(wanted);
        loop {
            pieces += 1;
            if let Some(result) = w.engine.migrate_piece(w.now, &mut order, &mut w.out) {
                return result;
            }
        }
    };
    let nobody = wanted(1);
    let none = carry_out(&mut w, nobody.clone());
    assert_eq!(none, Err(MigrateError::NoFlow(nobody.client)));
    let moved = carry_out(&mut w, wanted(open.client.port()));
    assert!(moved.is_ok(), "{moved:?}");
    assert!(pieces >= 2 * (2_000 / 512), "{pieces}");
}

/// The flows of many pods that go at once are looked at in turn: no pod's wait for all of
/// another's.
#[test]
fn pods_that_die_together_are_swept_in_turn() {
    let mut s = settings();
    s.limits.flows = 2_048;
    s.limits.closing_legs = 2_048;
    s.ports = 40_000..=40_999;
    let mut w = World::unprobed(s, policy(8));
    (w.careful, w.strict) = (false, false);
    w.run_ms(10);
    let flows: Vec<Conn> = (0..1_000).map(|n| w.idle(n)).collect();
    for listener in &mut w.listeners[..6] {
        *listener = Listener::Refuses;
    }
    w.run_ms(10);
    for c in &flows {
        if c.pod < 6 {
            w.ends(c, End::Fin);
        }
    }
    let mut most = 0;
    for _ in 0..200 {
        w.now.0 += 1_000;
        loop {
            let before = w.count(Counter::MigrationsBegun) + w.count(Counter::Rescues);
            let due = w.engine.next_deadline().is_some_and(|due| due <= w.now);
            if !due {
                break;
            }
            let sent = w.poll();
            most = most.max(sent.len());
            let after = w.count(Counter::MigrationsBegun) + w.count(Counter::Rescues);
            if after == before && sent.is_empty() {
                break;
            }
        }
    }
    assert!((1..=160).contains(&most), "{most} segments in one call");
    let asked: std::collections::BTreeSet<usize> = w.asked.iter().copied().collect();
    assert!((0..6).all(|pod| asked.contains(&pod)), "{asked:?}");
}

/// What becomes of one policy.
#[derive(Clone, Debug)]
struct Turn {
    there: bool,
    /// As bits.
    pods: u8,
    drain: u8,
    maglev: bool,
    together: bool,
    /// Wants a frontend that its neighbour may have, too.
    swapped: bool,
    /// Somebody objects to it.
    objected: bool,
}

#[derive(Clone, Debug)]
struct Change {
    policies: Vec<Turn>,
    /// What a piece may cost.
    piece: usize,
}

fn change() -> impl Strategy<Value = Change> {
    let one = (
        prop::bool::weighted(0.8),
        any::<[u8; 2]>(),
        any::<[bool; 2]>(),
        prop::bool::weighted(0.3),
        prop::bool::weighted(0.2),
    );
    let one = one.prop_map(|(there, [pods, drain], [maglev, together], swapped, objected)| Turn {
        there,
        pods,
        drain,
        maglev,
        together,
        swapped,
        objected,
    });
    let policies = prop::collection::vec(one, 4);
    let change = (policies, prop_oneof![1..40_usize, 40..600_usize]);
    change.prop_map(|(policies, piece)| Change { policies, piece })
}

fn snapshot(change: &Change, generation: u64) -> Snapshot {
    let policies = (0..).zip(&change.policies);
    let there = policies.filter(|(_, turn)| turn.there);
    let policies = there.map(|(n, turn)| {
        let mut p = numbered(n, (0..8).filter(|i| turn.pods >> i & 1 == 1));
        for (i, backend) in p.backends.iter_mut().enumerate() {
            backend.draining = turn.drain >> i & 1 == 1;
        }
        if turn.maglev {
            p.algorithm = Algorithm::Maglev;
        }
        p.affinity = turn.together.then(|| baton_api::Affinity { client_ip: Default::default() });
        if turn.swapped {
            let port = 200 + n / 2;
            p.frontends.push(endpoint(SocketAddr::new(frontend(false).ip(), port)));
        }
        p
    });
    Snapshot { generation, policies: policies.collect() }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever snapshots follow each other, what a planner made ready and pieces put in force,
    /// however small they are and whatever clients come in between, is what one call puts in force.
    #[test]
    fn pieces_come_to_the_same_as_one_call(changes in prop::collection::vec(change(), 1..8)) {
        // Small pieces are many, and so are clients between them.
        let mut s = settings();
        s.limits.flows = 8_192;
        s.ports = 40_000..=43_999;
        let mut planner = Planner::new(&s, 7);
        let world = || {
            let mut w = World::unprobed(s.clone(), policy(1));
            w.strict = false;
            w.poll();
            w
        };
        let (mut whole, mut pieces) = (world(), world());
        pieces.careful = false;
        let mut client = 0;
        for (generation, change) in (2..).zip(&changes) {
            let snapshot = snapshot(change, generation);
            let there = change.policies.iter().filter(|turn| turn.there);
            let objections: Vec<Objection> = (there.enumerate())
                .filter(|(_, turn)| turn.objected)
                .map(|(p, _)| {
                    let path = format!("policies[{p}]");
                    (p, SnapshotError { path, problem: "no".into() })
                })
                .collect();
            let told = whole.engine.apply_each(whole.now, &snapshot, &objections).expect("sorted");
            whole.engine.check_invariants();
            let mut prepared = planner.prepare(&snapshot, Some(&objections)).expect("sorted").remove(0);
            prepared.cut(change.piece);
            in_pieces(&mut pieces, &mut prepared, |w| {
                client += 1;
                let mut conn = Conn::new(1_000 + client);
                conn.frontend = SocketAddr::new(frontend(false).ip(), 100 + client % 4);
                w.inject(&w.syn_wire(&conn).build());
                if client % 3 == 0 {
                    w.inject(&w.client_wire(&conn, Flags::RST, &[]).build());
                }
            });
            prop_assert_eq!(prepared.applied(), &told);
            planner.in_force(&mut prepared);
            for w in [&mut whole, &mut pieces] {
                for at in 0..8 {
                    w.engine.set_neighbour(pod(false, at).ip(), Some(pod_mac(at)));
                }
                w.run_ms(200);
            }
            let shown = |w: &World| {
                let policies = w.engine.state(w.now).policies;
                let policies = policies.iter().map(|p| {
                    let backends = p.backends.iter();
                    let backends: Vec<_> = backends
                        .map(|b| {
                            let drains = b.drain.as_ref().map(|d| d.by_command);
                            let (name, health) = (b.name.clone(), b.health.clone());
                            (name, b.draining, drains, b.adoptability.is_ready(), health)
                        })
                        .collect();
                    let mut frontends: Vec<_> = p.frontends.iter().map(|f| f.port()).collect();
                    frontends.sort_unstable();
                    (p.name.clone(), p.algorithm, frontends, backends)
                });
                let mut policies: Vec<_> = policies.filter(|p| !p.2.is_empty()).collect();
                policies.sort_by(|a, b| a.0.cmp(&b.0));
                policies
            };
            let served = shown(&whole);
            prop_assert_eq!(&served, &shown(&pieces));
            // A new flow of each policy goes to one of its pods.
            for n in 0..4 {
                let name = format!("p{n}");
                let policy = served.iter().find(|p| p.0 == name);
                let names = policy.map(|p| p.3.iter().map(|b| b.0.clone()).collect::<Vec<_>>());
                let mut conn = Conn::new(generation as u16 * 10 + n);
                conn.frontend = SocketAddr::new(frontend(false).ip(), 100 + n);
                let syn = pieces.syn_wire(&conn).build();
                let sent = pieces.inject(&syn);
                let taken = matches!(pieces.verdict, Verdict::Transmit(_));
                let names = names.unwrap_or_default();
                prop_assert_eq!(taken, !names.is_empty(), "{:?} {:?}", pieces.verdict, sent);
                if let Some(Dest::Pod(at)) = sent.last().map(|s| s.to) {
                    let name = format!("pod-{at}");
                    prop_assert!(names.contains(&name), "{}", name);
                }
                let rst = pieces.client_wire(&conn, Flags::RST, &[]).build();
                pieces.inject(&rst);
            }
        }
    }
}
