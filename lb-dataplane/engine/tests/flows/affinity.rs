//! Client-IP affinity: flows of one address stay together, move together, and are remembered for a
//! time in a table with an end.

use crate::common::{Conn, End, Sent, World, conn::*, endpoint, pod, policy, settings, wire::Wire};
use baton_api::{Affinity, Algorithm, ClientIp, Health, Micros, MigrationMode, Policy};
use baton_engine::Counter;
use baton_packet::{Flags, Reason};
use std::collections::BTreeSet;

const TIMEOUT_MS: u64 = 2_000;

fn together(pods: usize) -> Policy {
    let mut p = policy(pods);
    p.migration.mode = MigrationMode::WhenBetter;
    p.affinity =
        Some(Affinity { client_ip: ClientIp { timeout: Micros::from_millis(TIMEOUT_MS) } });
    p
}

fn world(pods: usize) -> World {
    World::with(settings(), together(pods))
}

/// Connection `n` of the client whose address ends with `host`.
fn of(host: u8, n: u16) -> Conn {
    let mut c = Conn::new(n);
    c.client.set_ip([192, 0, 2, host].into());
    c
}

/// Flows of one client, at rest.
fn flows(w: &mut World, host: u8, numbers: std::ops::Range<u16>) -> Vec<Conn> {
    numbers.map(|n| w.idle_as(of(host, n))).collect()
}

fn pods(flows: &[Conn]) -> BTreeSet<usize> {
    flows.iter().map(|c| c.pod).collect()
}

fn resets(w: &mut World, c: &Conn) {
    w.inject(&w.client_wire(c, Flags::RST, &[]).build());
    assert_eq!(w.state(c), None);
}

fn drain(w: &mut World, pod: usize, on: bool) {
    assert_eq!(w.engine.drain(w.now, None, &format!("pod-{pod}"), on), 1);
}

#[test]
fn flows_of_one_client_have_one_pod_with_every_algorithm() {
    for algorithm in [
        Algorithm::LeastOutstanding,
        Algorithm::WeightedRoundRobin,
        Algorithm::Maglev,
        Algorithm::Random,
    ] {
        let mut p = together(4);
        p.algorithm = algorithm;
        let mut w = World::with(settings(), p);
        let first = flows(&mut w, 5, 0..10);
        assert_eq!(pods(&first).len(), 1, "{algorithm:?}");
        let others: Vec<Conn> = (10..30).map(|h| w.open_as(of(h, 1))).collect();
        assert!(pods(&others).len() > 1, "{algorithm:?}");
        for c in &others {
            let again = w.open_as(of(c.client.ip().to_string()[8..].parse().expect("host"), 2));
            assert_eq!(again.pod, c.pod, "{algorithm:?}");
        }
        assert_eq!(w.table("affinities").0, 21);
    }
}

/// A dataplane with this seed whose clients have opened a connection each: where these are.
fn spread(seed: u64, p: &Policy, change: impl Fn(&mut World)) -> Vec<usize> {
    let mut s = settings();
    s.seed = seed;
    s.limits.flows = 256;
    s.limits.affinities = 256;
    let mut w = World::with(s, p.clone());
    change(&mut w);
    (1..=120).map(|host| w.open_as(of(host, 1)).pod).collect()
}

/// Two replicas are the default, and a client's next connection may come to the other one.
#[test]
fn dataplanes_choose_the_same_pod_for_a_client_whatever_their_seeds_are() {
    for algorithm in [
        Algorithm::LeastOutstanding,
        Algorithm::WeightedRoundRobin,
        Algorithm::Maglev,
        Algorithm::Random,
    ] {
        let mut p = together(5);
        p.algorithm = algorithm;
        let first = spread(1, &p, |_| ());
        assert_eq!(first, spread(2, &p, |_| ()), "{algorithm:?}");
        assert_eq!(first, spread(77, &p, |_| ()), "{algorithm:?}");
        let all_drain = |w: &mut World| (0..5).for_each(|pod| drain(w, pod, true));
        assert_eq!(first, spread(3, &p, all_drain), "{algorithm:?}, all drain");
        for pod in 0..5 {
            let share = first.iter().filter(|at| **at == pod).count();
            assert!((12..=36).contains(&share), "{algorithm:?}: {share} of 120");
        }
    }
}

#[test]
fn where_a_pod_takes_no_clients_only_its_own_go_elsewhere() {
    let p = together(5);
    let all = spread(1, &p, |_| ());
    for gone in 0..5 {
        let mut fewer = p.clone();
        let leaves = endpoint(pod(false, gone));
        fewer.backends.retain(|b| b.endpoint != leaves);
        let left = spread(2, &fewer, |_| ());
        let drained = spread(3, &p, |w| drain(w, gone, true));
        assert_eq!(left, drained);
        let mut new = BTreeSet::new();
        for (before, after) in all.iter().zip(&left) {
            if *before == gone {
                new.insert(*after);
            } else {
                assert_eq!(before, after);
            }
        }
        assert_eq!(new.len(), 4, "they spread over all others");
    }
}

#[test]
fn clients_are_shared_out_by_weight() {
    let mut p = together(2);
    p.backends[1].weight = 3;
    let heavy = spread(1, &p, |_| ()).into_iter().sum::<usize>();
    assert!((75..=105).contains(&heavy), "{heavy} of 120");
}

/// Flows of one client on two dataplanes leave for the same pod.
#[test]
fn dataplanes_move_a_client_to_the_same_pod() {
    let mut went = BTreeSet::new();
    for seed in 1..=5 {
        let mut s = settings();
        s.seed = seed;
        let mut w = World::with(s, together(5));
        let mut c = w.idle_as(of(5, 1));
        drain(&mut w, c.pod, true);
        w.moves(&mut c, GET);
        went.insert(c.pod);
    }
    assert_eq!(went.len(), 1);
}

#[test]
fn each_family_and_each_policy_has_its_own_clients() {
    let mut w = world(3);
    let mut other = together(3);
    other.name = "other".into();
    for end in &mut other.frontends {
        *end = endpoint(std::net::SocketAddr::new(end.address(), 81));
    }
    w.change(|s| s.policies.push(other));
    w.open_as(of(5, 1));
    let mut c = of(5, 2);
    c.frontend.set_port(81);
    w.open_as(c);
    w.open_as(Conn::of(3, true));
    assert_eq!(w.table("affinities").0, 3);
}

#[test]
fn a_client_is_remembered_until_its_time_after_its_last_flow() {
    let mut w = world(2);
    // It is not where its address says.
    let own = w.open_as(of(5, 0));
    drain(&mut w, own.pod, true);
    resets(&mut w, &own);
    let first = w.idle_as(of(5, 1));
    drain(&mut w, own.pod, false);
    assert_ne!(first.pod, own.pod);
    let second = w.idle_as(of(5, 2));
    resets(&mut w, &first);
    // One flow is left: no time runs.
    w.run_ms(3 * TIMEOUT_MS);
    assert_eq!(w.table("affinities").0, 1);
    resets(&mut w, &second);
    w.run_ms(TIMEOUT_MS - 1);
    let third = w.idle_as(of(5, 3));
    assert_eq!(third.pod, first.pod);
    w.run_ms(TIMEOUT_MS);
    resets(&mut w, &third);
    w.run_ms(TIMEOUT_MS);
    assert_eq!(w.table("affinities").0, 0);
    assert_eq!(w.open_as(of(5, 4)).pod, own.pod);
}

/// Anybody can send SYNs, with any address.
#[test]
fn who_only_begins_takes_nobodys_place() {
    let mut s = settings();
    s.limits.affinities = 8;
    let mut w = World::with(s, together(2));
    // It is not where its address says.
    let own = w.open_as(of(5, 0));
    drain(&mut w, own.pod, true);
    resets(&mut w, &own);
    let kept = w.idle_as(of(5, 1));
    drain(&mut w, own.pod, false);
    resets(&mut w, &kept);
    for host in 10..30 {
        let mut c = of(host, 1);
        w.syn(&mut c);
        // The one is answered, the other one refused.
        let wire = match host % 2 {
            0 => w.synack_wire(&c),
            _ => Wire { ack: c.seq.wrapping_add(1), ..w.pod_wire(&c, RST_ACK, &[]) },
        };
        w.inject(&wire.build());
    }
    assert_eq!(w.table("affinities").0, 1);
    assert_eq!(w.open_as(of(5, 2)).pod, kept.pod);
    // Those who are let go of had none to lose.
    w.run_ms(60_000);
    assert_eq!(w.table("affinities").0, 1);
}

#[test]
fn no_flow_moves_because_another_pod_is_better() {
    for affinity in [together(2).affinity, None] {
        let mut p = together(2);
        p.affinity = affinity;
        let mut w = World::with(settings(), p);
        let mut c = w.idle_as(of(5, 1));
        for _ in 0..3 {
            w.data(&mut c, GET);
            w.run_ms(80);
            if w.count(Counter::MigrationsBegun) > 0 {
                break;
            }
            w.served(&mut c);
        }
        // Without affinity it does move.
        let moves = w.count(Counter::MigrationsBegun);
        assert_eq!(moves, u64::from(affinity.is_none()));
    }
}

#[test]
fn flows_leave_a_draining_pod_together_with_their_requests() {
    for mode in [MigrationMode::DrainOnly, MigrationMode::WhenBetter] {
        let mut p = together(5);
        p.migration.mode = mode;
        let mut w = World::with(settings(), p);
        let mut ours = flows(&mut w, 5, 0..6);
        let old = ours[0].pod;
        drain(&mut w, old, true);
        for c in &mut ours {
            w.moves(c, POST);
            w.served(c);
        }
        assert_eq!(pods(&ours).len(), 1, "{mode:?}");
        assert_ne!(ours[0].pod, old);
        assert_eq!(w.open_as(of(5, 100)).pod, ours[0].pod);
        // The drain ends, and the client stays where it is now.
        drain(&mut w, old, false);
        assert_eq!(w.open_as(of(5, 101)).pod, ours[0].pod);
    }
}

#[test]
fn flows_at_rest_leave_a_draining_pod_together() {
    let mut w = world(5);
    let mut ours = flows(&mut w, 5, 0..6);
    drain(&mut w, ours[0].pod, true);
    w.run_ms(90);
    let sent = w.until_adoption(70);
    for c in &mut ours {
        w.rescued(c, &sent);
    }
    assert_eq!(pods(&ours).len(), 1);
}

/// More flows than one pod is given in a millisecond: the others wait for it.
#[test]
fn a_drain_waits_for_the_clients_pod_rather_than_part_its_flows() {
    let mut w = world(5);
    let mut ours = flows(&mut w, 5, 0..30);
    drain(&mut w, ours[0].pod, true);
    let mut left: Vec<usize> = (0..ours.len()).collect();
    for _ in 0..200 {
        let sent = w.run_ms(1);
        left.retain(|i| {
            let c = &mut ours[*i];
            let mine = |s: &Sent| s.is_adoption() && s.segment.seq.0 == c.seq;
            let adopted = sent.iter().any(mine);
            if adopted {
                w.rescued(c, &sent);
            }
            !adopted
        });
    }
    assert!(left.is_empty());
    assert_eq!(pods(&ours).len(), 1);
    assert!(w.count(Counter::AdoptionsDelayed) > 0);
}

#[test]
fn what_a_clients_address_says_comes_second() {
    let mut w = world(3);
    let first = w.open_as(of(5, 1));
    drain(&mut w, first.pod, true);
    let second = w.open_as(of(5, 2));
    assert_ne!(second.pod, first.pod);
    drain(&mut w, first.pod, false);
    resets(&mut w, &first);
    assert_eq!(w.open_as(of(5, 1)).pod, second.pod);
}

#[test]
fn flows_of_a_dead_pod_go_on_together() {
    for how in End::BOTH {
        let mut w = world(5);
        let mut ours = flows(&mut w, 5, 0..5);
        let dead = ours[0].pod;
        let sent = w.dies(dead, how, &ours);
        for c in &mut ours {
            w.rescued(c, &sent);
        }
        assert_eq!(pods(&ours).len(), 1);
        assert_ne!(ours[0].pod, dead);
        w.starts(dead);
        w.run_ms(3_000);
        assert_eq!(w.open_as(of(5, 100)).pod, ours[0].pod);
    }
}

#[test]
fn a_pod_that_refuses_to_adopt_gets_none_of_them() {
    let mut w = world(3);
    let mut ours = flows(&mut w, 5, 0..2);
    drain(&mut w, ours[0].pod, true);
    let adoption = w.moves(&mut ours[0], GET);
    let refuses = ours[0].pod;
    w.adopters[refuses] = Some(Reason::AcceptQueueFull);
    w.inject(&crate::common::answer(&adoption, Reason::AcceptQueueFull, 0));
    w.moves(&mut ours[1], GET);
    assert_ne!(ours[1].pod, refuses);
    assert_eq!(w.open_as(of(5, 100)).pod, ours[1].pod);
}

#[test]
fn a_refused_connection_takes_its_client_elsewhere() {
    let mut w = world(3);
    let first = w.open_as(of(5, 1));
    let mut c = of(5, 2);
    w.syn(&mut c);
    assert_eq!(c.pod, first.pod);
    let mut refusal = w.synack_wire(&c);
    (refusal.flags, refusal.seq) = (RST_ACK, 0);
    w.stops(c.pod);
    let again = one(w.inject(&refusal.build()));
    take_leg(&mut c, &again);
    assert_ne!(c.pod, first.pod);
    assert_eq!(w.open_as(of(5, 3)).pod, c.pod);
}

/// Closes instead of an answer, for which the pod is ejected.
fn eject(w: &mut World, c: &mut Conn) {
    w.stays(c, POST);
    w.ends(c, End::Fin);
    assert_eq!(w.count(Counter::Ejections), 1);
}

#[test]
fn flows_leave_an_ejected_pod_together_if_they_may_move_at_all() {
    for (mode, leave) in [
        (MigrationMode::WhenBetter, true),
        (MigrationMode::DrainOnly, false),
        (MigrationMode::Never, false),
    ] {
        let mut p = together(5);
        p.migration.mode = mode;
        p.health = Health { failure_threshold: 1, panic_percent: 0, ..Health::default() };
        let mut w = World::with(settings(), p);
        let mut ours = flows(&mut w, 5, 0..4);
        let mut bad = w.open_as(of(5, 50));
        eject(&mut w, &mut bad);
        for c in &mut ours {
            if leave {
                w.moves(c, GET);
                w.responds(c, OK);
            } else {
                w.exchange(c);
            }
        }
        assert_eq!(pods(&ours).len(), 1, "{mode:?}");
        assert_eq!(ours[0].pod != bad.pod, leave, "{mode:?}");
        // New ones go elsewhere in either case.
        assert_ne!(w.open_as(of(5, 60)).pod, bad.pod);
    }
}

#[test]
fn in_panic_an_ejected_pod_keeps_its_clients() {
    let mut p = together(5);
    p.health = Health { failure_threshold: 1, panic_percent: 100, ..Health::default() };
    let mut w = World::with(settings(), p);
    let mut c = w.idle_as(of(5, 1));
    let mut bad = w.open_as(of(5, 2));
    eject(&mut w, &mut bad);
    w.exchange(&mut c);
    assert_eq!(w.open_as(of(5, 3)).pod, c.pod);
}

#[test]
fn new_flows_do_not_follow_to_a_pod_that_takes_none() {
    type Change = fn(&mut World, usize);
    let changes: [Change; 3] = [
        |w, i| w.change(|s| s.policies[0].backends[i].weight = 0),
        |w, i| w.change(|s| s.policies[0].backends[i].draining = true),
        |w, i| {
            let at = endpoint(pod(false, i));
            w.engine.set_health(w.now, "web", at, Some(false));
        },
    ];
    for change in changes {
        let mut w = world(3);
        let old = w.idle_as(of(5, 1)).pod;
        change(&mut w, old);
        let new = w.open_as(of(5, 2)).pod;
        assert_ne!(new, old);
        assert_eq!(w.open_as(of(5, 3)).pod, new);
    }
}

#[test]
fn a_full_table_forgets_the_client_that_was_used_the_longest_time_ago() {
    let mut s = settings();
    s.limits.affinities = 3;
    let mut p = together(2);
    p.algorithm = Algorithm::WeightedRoundRobin;
    p.timeouts.idle = Micros::from_secs(5);
    let mut w = World::with(s, p);
    let quiet: Vec<Conn> = (1..=2).map(|host| w.idle_as(of(host, 1))).collect();
    let kept = w.idle_as(of(3, 1));
    for c in &quiet {
        resets(&mut w, c);
    }
    assert_eq!(w.table("affinities"), (3, 3));
    // Client 1 has had no flow for longer than client 2; client 3 was opened before, but it has
    // one.
    w.idle_as(of(4, 1));
    assert_eq!(w.count(Counter::AffinitiesReplaced), 1);
    for (host, n, pod) in [(3, 2, kept.pod), (2, 2, quiet[1].pod)] {
        assert_eq!(w.open_as(of(host, n)).pod, pod);
    }
    assert_eq!(w.count(Counter::AffinitiesReplaced), 1);
    // Now all have flows: client 4 opened one the longest time ago, then client 3.
    w.idle_as(of(6, 1));
    assert_eq!(w.count(Counter::AffinitiesReplaced), 2);
    w.open_as(of(3, 3));
    assert_eq!(w.count(Counter::AffinitiesReplaced), 2);
    let anew = w.open_as(of(4, 2));
    assert_eq!(w.count(Counter::AffinitiesReplaced), 3);
    assert_eq!(w.open_as(of(4, 3)).pod, anew.pod, "remembered anew");
    assert_eq!(w.table("affinities"), (3, 3));
    // Whoever was forgotten in between: in the end nothing is left.
    w.run_ms(10_000);
    assert_eq!((w.table("flows").0, w.table("affinities").0), (0, 0));
}

#[test]
fn a_snapshot_forgets_who_has_no_affinity_any_more_and_pods_that_left() {
    let mut w = world(3);
    let mut ours = flows(&mut w, 5, 0..2);
    let idle = w.idle_as(of(6, 1));
    resets(&mut w, &idle);
    let gone = ours[0].pod;
    w.change(|s| {
        let leaves = [endpoint(pod(false, gone)), endpoint(pod(false, idle.pod))];
        s.policies[0].backends.retain(|b| !leaves.contains(&b.endpoint));
    });
    assert_eq!(w.table("affinities").0, 1, "one with flows");
    for c in &mut ours {
        w.moves(c, GET);
        w.responds(c, OK);
    }
    assert_eq!(pods(&ours).len(), 1);
    w.change(|s| s.policies[0].affinity = None);
    assert_eq!(w.table("affinities").0, 0);
    resets(&mut w, &ours[0]);
    w.change(|s| s.policies[0].affinity = together(1).affinity);
    w.open_as(of(5, 50));
    assert_eq!(w.table("affinities").0, 1);
    // A flow from before is not counted.
    resets(&mut w, &ours[1]);
    w.change(|s| s.policies.clear());
    assert_eq!(w.table("affinities").0, 0);
}

/// A flow that was open before its policy wanted affinity brings its client along when it has to
/// move.
#[test]
fn a_flow_from_before_takes_its_client_along() {
    let mut p = together(4);
    p.affinity = None;
    let mut w = World::with(settings(), p);
    let mut c = w.idle_as(of(5, 1));
    w.change(|s| s.policies[0].affinity = together(1).affinity);
    drain(&mut w, c.pod, true);
    w.moves(&mut c, GET);
    assert_eq!(w.table("affinities").0, 1);
    assert_eq!(w.open_as(of(5, 2)).pod, c.pod);
}

#[test]
fn a_policy_without_affinity_remembers_nobody() {
    let mut w = World::new(3);
    let mut c = w.idle_as(of(5, 1));
    w.moves(&mut c, GET);
    assert_eq!(w.table("affinities"), (0, 64));
}

/// Where a client belongs follows from its address: a share that grows would have its flows at two
/// pods, by how long each dataplane has known the new one. None is said to have one.
#[test]
fn a_pod_that_comes_has_all_its_clients_at_once_and_is_not_said_to_begin_slowly() {
    let with = |slow_start: Micros| {
        let mut p = together(4);
        p.slow_start = slow_start;
        let late = p.backends.remove(3);
        let mut w = World::with(settings(), p);
        w.change(|s| s.policies[0].backends.push(late));
        let state = w.engine.state(w.now).policies.remove(0);
        let all: Vec<usize> = (1..=40).map(|host| w.idle_as(of(host, 0)).pod).collect();
        (all, state.backends[3].health.to_string())
    };
    let (at_once, word) = with(Micros(0));
    assert_eq!(word, "up");
    let (slowly, word) = with(Micros::from_secs(3_600));
    assert_eq!(word, "up");
    assert_eq!(slowly, at_once);
    assert!(at_once.iter().filter(|pod| **pod == 3).count() > 3, "{at_once:?}");
}
