//! Snapshots put in force while flows live.

use crate::common::{Conn, Dest, World, conn::*, endpoint, frontend, pod, policy, settings};
use baton_api::{Algorithm, Legs, Micros, MigrationMode, Policy, PolicyState, Protocol, Snapshot};
use baton_engine::{ApplyError, Counter, DropReason, Engine, Instant, Verdict};
use proptest::prelude::*;

#[test]
fn a_changed_policy_touches_no_flow() {
    let mut w = World::new(3);
    let mut flows: Vec<Conn> = (0..6).map(|n| w.idle(n)).collect();
    w.change(|s| {
        let p = &mut s.policies[0];
        p.migration.mode = MigrationMode::Never;
        p.algorithm = Algorithm::Maglev;
    });
    for c in &mut flows {
        w.exchange(c);
    }
    assert_eq!(w.count(Counter::MigrationsBegun), 0, "the new mode is in force");
    w.change(|s| s.policies[0].migration.mode = MigrationMode::Always);
    for c in &mut flows {
        w.moves(c, GET);
        w.responds(c, OK);
    }
    let state = w.engine.state(w.now);
    assert_eq!(state.generation, 3);
    assert_eq!(state.policies.len(), 1);
    assert_eq!((state.policies[0].flows, state.policies[0].flows_total), (6, 6));
    assert_eq!(state.policies[0].migrations_total, 6, "figures go on");
}

#[test]
fn a_policy_that_is_removed_keeps_its_flows_and_takes_no_new_ones() {
    let (mut w, mut c) = World::new(2).at_rest();
    let mut adopting = w.idle(2);
    w.moves(&mut adopting, GET);
    w.change(|s| s.policies.clear());
    for _ in 0..3 {
        w.exchange(&mut c);
    }
    w.served(&mut adopting);
    assert!(w.inject(&w.syn_wire(&Conn::new(9)).build()).is_empty());
    assert_eq!(w.verdict, Verdict::Drop(DropReason::NotOurs));
    assert!(w.engine.steering().frontends.contains(&(frontend(false).ip(), 80)), "flows live");
    let end = |w: &mut World, c: &Conn| {
        let rst = w.client_wire(c, baton_packet::Flags::RST, &[]).build();
        w.inject(&rst);
    };
    end(&mut w, &c);
    end(&mut w, &adopting);
    w.run_ms(120_000);
    assert!(w.engine.steering().frontends.is_empty());
    assert!(w.engine.state(w.now).policies.is_empty());
    assert_eq!(w.table("backends").0, 0, "nothing refers to the pods any more");
}

#[test]
fn a_retired_pod_keeps_its_flows_until_they_move() {
    let (mut w, mut c) = World::new(2).at_rest();
    let old = c.pod;
    let mut quiet =
        (2..).map(|n| w.idle(n)).find(|q| q.pod == old).expect("a second flow of the pod");
    let mut busy = quiet.clone();
    while busy.pod != old || busy.client == quiet.client {
        busy = w.open(busy.client.port() - 30_000 + 1);
    }
    w.stays(&mut busy, POST);
    w.change(|s| {
        s.policies[0].backends.retain(|b| b.endpoint != endpoint(pod(false, old)));
        s.policies[0].migration.mode = MigrationMode::WhenBetter;
    });
    // Its next request leaves it, although it is the faster one for all we know.
    w.moves(&mut c, GET);
    assert_ne!(c.pod, old);
    w.served(&mut c);
    // Without a request it leaves after the quiet time.
    let sent = w.until_adoption(200);
    w.rescued(&mut quiet, &sent);
    assert_ne!(quiet.pod, old);
    // What is outstanding is answered where it is.
    w.served(&mut busy);
    w.moved_exchange(&mut busy);
    let state = w.engine.state(w.now);
    assert!(state.policies[0].backends.iter().all(|b| b.name != format!("pod-{old}")));
    w.run_ms(60_000);
    // Its slot is used again by another pod.
    w.change(|s| {
        let mut b = s.policies[0].backends[0].clone();
        (b.name, b.endpoint) = ("pod-7".into(), endpoint(pod(false, 7)));
        s.policies[0].backends.push(b);
    });
    assert_eq!(w.table("backends").0, 4);
    for n in 10..30 {
        w.idle(n);
    }
}

#[test]
fn new_flows_go_to_new_pods() {
    let mut w = World::new(1);
    w.change(|s| s.policies[0] = policy(4));
    let mut seen = [false; 4];
    for n in 0..40 {
        seen[w.open(n).pod] = true;
    }
    assert_eq!(seen, [true; 4]);
}

#[test]
fn an_older_generation_is_refused_and_an_equal_one_is_not() {
    let mut w = World::new(2);
    w.snapshot.generation = 5;
    w.apply();
    w.apply();
    let mut older = w.snapshot.clone();
    older.generation = 4;
    older.policies.clear();
    let error = w.engine.apply(w.now, &older).expect_err("a refusal");
    assert_eq!(error, ApplyError::Stale { offered: 4, current: 5 });
    w.idle(1);
}

#[test]
fn conflicts_are_refused_and_nothing_changes() {
    let (mut w, mut c) = World::new(2).at_rest();
    let mut refuse = |change: &dyn Fn(&mut baton_api::Snapshot)| {
        let mut s = w.snapshot.clone();
        s.generation += 1;
        change(&mut s);
        w.engine.apply(w.now, &s).expect_err("a refusal")
    };
    let at = |text: &str| text.parse::<baton_api::Endpoint>().expect("an endpoint");
    for conflicting in ["10.0.0.9:40005", "0.0.0.0:40127", "[fd00::9]:40000"] {
        let error = refuse(&|s| s.policies[0].frontends.push(at(conflicting)));
        assert!(
            matches!(&error, ApplyError::PortConflict { path, .. } if path == "policies[0].frontends[2]"),
            "{error}"
        );
    }
    let error = refuse(&|s| s.policies[0].frontends.push(at("0.0.0.0:80")));
    assert!(error.to_string().contains("10.0.0.9"), "{error}");
    let error = refuse(&|s| {
        let many = (1..30).map(|i| {
            let mut b = s.policies[0].backends[0].clone();
            (b.name, b.endpoint) = (format!("x{i}"), at(&format!("10.0.3.{i}:80")));
            b
        });
        let many: Vec<_> = many.collect();
        s.policies[0].backends.extend(many);
    });
    assert!(matches!(error, ApplyError::TooManyBackends { needed: 33, limit: 16 }), "{error}");
    let error = refuse(&|s| s.policies[0].frontends.clear());
    assert!(matches!(error, ApplyError::Invalid(_)), "{error}");
    assert_eq!(w.engine.state(w.now).generation, 1);
    w.moves(&mut c, GET);
    // A virtual address may use any port: it is not the legs' source.
    w.responds(&mut c, OK);
    w.change(|s| s.policies[0].frontends.push(at("10.0.9.9:40005")));
    let mut vip = Conn::new(50);
    vip.frontend = "10.0.9.9:40005".parse().expect("an address");
    let sent = w.syn(&mut vip);
    assert!(matches!(sent.to, Dest::Pod(_)));
}

#[test]
fn an_unspecified_frontend_means_our_own_addresses() {
    let mut p = policy(2);
    p.frontends =
        ["0.0.0.0:80", "[::]:80"].iter().map(|t| t.parse().expect("an endpoint")).collect();
    let mut w = World::with(settings(), p);
    w.idle(1);
    w.idle_as(Conn::of(2, true));
}

#[test]
fn a_policy_without_pods_drops_new_flows_and_says_why() {
    let mut w = World::with(settings(), policy(0));
    assert!(w.inject(&w.syn_wire(&Conn::new(1)).build()).is_empty());
    assert_eq!(w.verdict, Verdict::Drop(DropReason::NoBackend));
}

#[test]
fn two_policies_are_told_apart_by_their_frontends() {
    let mut w = World::new(1);
    w.change(|s| {
        let mut other = policy(4);
        other.name = "other".into();
        other.backends.retain(|b| b.name.starts_with("pod-3"));
        other.frontends = vec![endpoint(std::net::SocketAddr::new(frontend(false).ip(), 81))];
        s.policies.push(other);
    });
    let mut c = Conn::new(1);
    c.frontend.set_port(81);
    let c = w.idle_as(c);
    let d = w.idle(1);
    assert_eq!((c.pod, d.pod), (3, 0), "the same client, two frontends");
    let (flows, _) = w.engine.flows(w.now, 0, 10);
    assert_eq!(flows.len(), 2);
    assert_ne!(flows[0].policy, flows[1].policy);
}

const ALGORITHMS: [Algorithm; 4] = [
    Algorithm::LeastOutstanding,
    Algorithm::WeightedRoundRobin,
    Algorithm::Maglev,
    Algorithm::Random,
];

/// A policy named by `number` with some of eight pods, which policies share.
fn some_policy(number: usize, pods: u8, odd: u8, algorithm: usize, address: u8) -> Policy {
    let mut p = policy(8);
    p.name = format!("p{number}");
    p.frontends =
        vec![endpoint(format!("10.9.{address}.1:{}", 80 + number).parse().expect("an address"))];
    p.backends.retain(|b| {
        let index = b.endpoint.address();
        (0..8).any(|i| pods >> i & 1 == 1 && (pod(false, i).ip() == index))
    });
    for (i, backend) in p.backends.iter_mut().enumerate() {
        backend.weight = u16::from(odd >> (i % 8) & 1) + 1;
        backend.draining = odd & pods == 1 << i;
    }
    p.algorithm = ALGORITHMS[algorithm];
    p
}

/// What a state says that does not depend on what was before.
fn plain(mut policies: Vec<PolicyState>) -> Vec<PolicyState> {
    policies.sort_by(|a, b| a.name.cmp(&b.name));
    for backend in policies.iter_mut().flat_map(|p| &mut p.backends) {
        // Since when a drain goes on depends on the past; whether there is one does not.
        if let Some(drain) = &mut backend.drain {
            drain.since = Micros(0);
            drain.left = Micros(0);
        }
    }
    policies
}

proptest! {
    /// Slots are used again and policies that stay are left alone; nobody may notice.
    #[test]
    fn snapshots_in_a_row_come_to_the_same_as_the_last_one_alone(
        all in proptest::collection::vec(
            proptest::collection::btree_map(0usize..5, (any::<u8>(), any::<u8>(), 0usize..4, 0u8..2), 0..5),
            1..8,
        ),
    ) {
        let now = Instant(50_000_000);
        let snapshots: Vec<Snapshot> = all
            .into_iter()
            .zip(1..)
            .map(|(policies, generation)| Snapshot {
                generation,
                policies: policies
                    .into_iter()
                    .map(|(n, (pods, odd, algorithm, address))| some_policy(n, pods, odd, algorithm, address))
                    .collect(),
            })
            .collect();
        let last = snapshots.last().expect("at least one");
        let mut row = Engine::new(settings(), now).expect("settings");
        for snapshot in &snapshots {
            row.apply(now, snapshot).expect("a good snapshot");
            row.check_invariants();
        }
        let mut alone = Engine::new(settings(), now).expect("settings");
        alone.apply(now, last).expect("a good snapshot");
        let listed = |engine: &Engine| {
            let names: Vec<_> = last.policies.iter().map(|p| p.name.clone()).collect();
            let mut policies = engine.state(now).policies;
            policies.retain(|p| names.contains(&p.name));
            plain(policies)
        };
        prop_assert_eq!(listed(&row), listed(&alone));
        let steering = |engine: &Engine| {
            let mut all = engine.steering().frontends;
            all.sort_unstable();
            all
        };
        prop_assert_eq!(steering(&row), steering(&alone));
    }
}

/// Round robin goes on where it was when another policy changes.
#[test]
fn a_policy_that_is_as_it_was_is_left_alone() {
    let mut w = World::of(3, |p| p.algorithm = Algorithm::WeightedRoundRobin);
    let first = w.open(0).pod;
    w.change(|s| s.policies.push(some_policy(3, 0b111, 0, 0, 1)));
    let second = w.open(1).pod;
    w.change(|s| s.policies[1].algorithm = Algorithm::Random);
    let mut all = vec![first, second, w.open(2).pod];
    all.sort_unstable();
    assert_eq!(all, [0, 1, 2]);
}

/// What was said before, nobody followed: a session, an upgrade, a request without its answer.
#[test]
fn flows_that_were_begun_under_another_protocol_stay_where_they_are() {
    let mut w = World::new(2);
    w.change(|s| s.policies[0].protocol = Protocol::None);
    let mut old = w.idle(1);
    w.change(|s| {
        s.policies[0].protocol = Protocol::Http1;
        s.policies[0].migration.legs = Legs::Shared;
    });
    assert_eq!(w.pins(), 1);
    w.exchange(&mut old);
    w.run_ms(50);
    w.assert_state(&old, "Idle");
    let mut new = w.idle(2);
    w.moves(&mut new, GET);
    assert_eq!(w.pins(), 1);
}

/// Ports that rest take room in tables of all backends until they are ready.
#[test]
fn a_slot_that_another_pod_has_at_once_leaks_nothing_of_the_ports_that_rest() {
    let mut w = World::new(1);
    for n in 0..100 {
        let c = w.open(n);
        w.inject(&w.client_wire(&c, baton_packet::Flags::RST, &[]).build());
    }
    // A slot is free with the snapshot behind the one that its backend left with.
    for next in [7, 8] {
        w.change(|s| {
            let b = &mut s.policies[0].backends[0];
            (b.name, b.endpoint) = (format!("pod-{next}"), endpoint(pod(false, next)));
        });
    }
    assert_eq!(w.table("backends").0, 2);
    w.idle(200);
    w.engine.check_invariants();
}
