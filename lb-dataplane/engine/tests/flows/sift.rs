//! Snapshots of which some policies cannot be taken: these are refused by name, all others are
//! served.

use crate::common::{Conn, World, endpoint, frontend, policy, settings};
use baton_api::{Backend, LIMIT_FRONTENDS, LIMIT_POLICIES, Policy, RefusedPolicy, SnapshotError};
use baton_engine::{Applied, ApplyError};
use proptest::prelude::*;
use std::net::SocketAddr;

fn at(text: &str) -> baton_api::Endpoint {
    text.parse().expect("an endpoint")
}

/// A policy at this port with these of the pods.
fn named(name: &str, port: u16, pods: std::ops::Range<usize>) -> Policy {
    let mut p = policy(pods.end);
    p.name = name.into();
    p.frontends = vec![endpoint(SocketAddr::new(frontend(false).ip(), port))];
    p.backends.retain(|b| pods.clone().any(|i| b.name == format!("pod-{i}")));
    p
}

/// Offers these policies as the next generation.
fn offer(w: &mut World, policies: Vec<Policy>) -> Applied {
    w.snapshot.policies = policies;
    w.snapshot.generation += 1;
    let applied = w.engine.apply_each(w.now, &w.snapshot, &[]).expect("taken");
    w.neighbours();
    w.engine.check_invariants();
    applied
}

fn refused(applied: &Applied) -> Vec<(&str, bool)> {
    let all = applied.refused.iter();
    all.map(|r| (r.policy.as_str(), r.kept)).collect()
}

fn in_force(w: &World) -> Vec<String> {
    let all = w.engine.state(w.now).policies.into_iter();
    let listed = all.filter(|p| !p.frontends.is_empty());
    let mut names: Vec<_> = listed.map(|p| p.name).collect();
    names.sort_unstable();
    names
}

fn serves(w: &mut World, n: u16, port: u16) {
    let mut c = Conn::new(n);
    c.frontend.set_port(port);
    let mut c = w.idle_as(c);
    w.exchange_anywhere(&mut c);
}

type Spoil = fn(&mut Policy);

#[test]
fn one_bad_policy_of_three_is_refused_by_name_and_the_others_are_served() {
    let spoilt: [(Spoil, &str); 7] = [
        (
            |p| p.frontends.push(at("0.0.0.0:40005")),
            "frontends[1]: port 40005 is in the range of leg ports 40000-40127: choose another port or range",
        ),
        (
            |p| p.frontends.push(at("224.0.0.1:80")),
            "frontends[1]: 224.0.0.1 is not an address that clients connect to",
        ),
        (
            |p| p.frontends.push(at("10.0.0.9:80")),
            "frontends[1]: 10.0.0.9:80 is already a frontend of policy `a`",
        ),
        (
            |p| p.frontends.extend(["10.0.0.9:90", "0.0.0.0:90"].map(at)),
            "frontends[2]: 0.0.0.0:90 means 10.0.0.9 here, as 10.0.0.9:90 does",
        ),
        (
            |p| p.frontends.push(at("0.0.0.0:82")),
            "frontends[1]: 0.0.0.0:82 means 10.0.0.9:82 here, which is already a frontend of policy `c`",
        ),
        (|p| p.frontends.clear(), "frontends: at least one address and port is needed"),
        (
            |p| {
                p.backends = (1..30u8)
                    .map(|i| Backend::new(format!("x{i}"), at(&format!("10.0.3.{i}:80"))))
                    .collect();
            },
            "31 backends are more than limits.backends, 16",
        ),
    ];
    for (spoil, message) in spoilt {
        let mut w = World::with(settings(), named("a", 80, 0..1));
        let good = vec![named("a", 80, 0..1), named("c", 82, 1..2)];
        assert_eq!(offer(&mut w, good), Applied::default());
        let mut b = named("b", 81, 0..2);
        spoil(&mut b);
        let all = vec![named("a", 80, 0..1), b, named("c", 82, 1..2)];
        let applied = offer(&mut w, all.clone());
        let expected = RefusedPolicy { policy: "b".into(), message: message.into(), kept: false };
        // The number of backends depends on how many families the harness gives each pod.
        if message.contains("limits.backends") {
            assert!(applied.refused[0].message.ends_with("limits.backends, 16"));
            assert!(applied.may_pass);
        } else {
            assert_eq!(applied.refused, [expected]);
            assert!(!applied.may_pass, "{message}");
        }
        assert_eq!(in_force(&w), ["a", "c"], "{message}");
        assert_eq!(w.engine.state(w.now).generation, 3);
        w.run_ms(200);
        serves(&mut w, 1, 80);
        serves(&mut w, 2, 82);
        // As a file says it, nothing of it is taken.
        w.snapshot.generation += 1;
        assert!(w.engine.apply(w.now, &w.snapshot).is_err());
        assert_eq!(w.engine.state(w.now).generation, 3);
        // The next one without the fault serves all.
        assert_eq!(offer(&mut w, vec![named("b", 81, 0..2)]), Applied::default());
        w.run_ms(200);
        serves(&mut w, 3, 81);
    }
}

#[test]
fn a_bad_change_of_a_policy_leaves_what_it_had_and_its_flows() {
    let mut w = World::new(2);
    let good = w.snapshot.policies[0].clone();
    let mut c = w.idle(1);
    let mut bad = good.clone();
    bad.frontends.push(at("0.0.0.0:40005"));
    bad.backends.clear();
    let applied = offer(&mut w, vec![bad, named("other", 90, 0..1)]);
    assert_eq!(refused(&applied), [("web", true)]);
    assert_eq!(in_force(&w), ["other", "web"]);
    w.exchange_anywhere(&mut c);
    w.idle(2);
    // Offered once more it is still refused.
    let again = w.snapshot.policies.clone();
    assert_eq!(refused(&offer(&mut w, again)), [("web", true)]);
    w.exchange_anywhere(&mut c);
    // Who takes it back has what was in force all the time.
    assert_eq!(offer(&mut w, vec![good]), Applied::default());
    w.exchange_anywhere(&mut c);
}

#[test]
fn what_others_object_to_is_refused_like_the_rest() {
    let mut w = World::new(1);
    let mut bad = named("bad", 9_910, 0..1);
    bad.backends.truncate(1);
    w.snapshot.policies.push(bad);
    w.snapshot.generation += 1;
    let objection = SnapshotError {
        path: "policies[1].frontends[0]".into(),
        problem: "it is where health is asked for".into(),
    };
    let applied = w.engine.apply_each(w.now, &w.snapshot, &[(1, objection)]).expect("taken");
    let message = "frontends[0]: it is where health is asked for";
    assert_eq!(applied.refused[0].message, message);
    assert_eq!(in_force(&w), ["web"]);
    w.idle(1);
}

#[test]
fn a_frontend_in_force_is_taken_from_nobody_who_still_wants_it() {
    let mut w = World::with(settings(), named("m", 80, 0..1));
    // First in the snapshot, and yet later; the one that has it changed, too.
    let mut changed = named("m", 80, 0..1);
    changed.backends[0].weight = 7;
    let applied = offer(&mut w, vec![named("a", 80, 0..1), changed.clone()]);
    assert_eq!(refused(&applied), [("a", false)]);
    assert_eq!(in_force(&w), ["m"]);
    // It gives the frontend up: the other one has it, in the same snapshot.
    let moved = named("m", 81, 0..1);
    let applied = offer(&mut w, vec![named("a", 80, 0..1), moved.clone()]);
    assert_eq!(applied, Applied::default());
    // One that cannot be taken claims nothing: what it had before goes to who may have it.
    let mut bad = named("m", 40_005, 0..1);
    bad.frontends = vec![at("0.0.0.0:40005")];
    let applied = offer(&mut w, vec![named("b", 81, 0..1), bad]);
    assert_eq!(refused(&applied), [("m", false)]);
    assert_eq!(in_force(&w), ["b"]);
}

/// Backends of nobody else, so many.
fn crowd(mut p: Policy, count: usize, net: u8) -> Policy {
    p.backends = (0..count)
        .map(|i| Backend::new(format!("x{i}"), at(&format!("10.0.{net}.{}:80", i + 1))))
        .collect();
    p
}

#[test]
fn who_comes_makes_nobody_leave() {
    // 16 backends are possible.
    let mut w = World::with(settings(), crowd(named("m", 80, 0..1), 8, 3));
    let all = |own: usize, new: usize| {
        vec![crowd(named("a", 81, 0..1), new, 4), crowd(named("m", 80, 0..1), own, 3)]
    };
    let applied = offer(&mut w, all(8, 9));
    assert_eq!((refused(&applied), applied.may_pass), (vec![("a", false)], true));
    // It grows before another one comes.
    assert_eq!(refused(&offer(&mut w, all(12, 5))), [("a", false)]);
    assert_eq!(offer(&mut w, all(12, 4)), Applied::default());
    // Too much for itself is its own trouble, and it keeps what it had.
    assert_eq!(refused(&offer(&mut w, all(13, 4))), [("m", true)]);
    assert_eq!(refused(&offer(&mut w, all(13, 5))), [("a", true), ("m", true)]);
    assert_eq!(in_force(&w), ["a", "m"]);
    // One grows by what another one, further back, gives up.
    assert_eq!(offer(&mut w, all(10, 6)), Applied::default());
}

#[test]
fn backends_with_flows_count_and_once_they_are_gone_the_same_snapshot_fits() {
    let mut w = World::with(settings(), named("m", 80, 0..1));
    let c = {
        let mut c = Conn::new(1);
        c.frontend.set_port(80);
        w.idle_as(c)
    };
    let wanted = vec![crowd(named("a", 81, 0..1), 16, 4)];
    let applied = offer(&mut w, wanted.clone());
    assert_eq!((refused(&applied), applied.may_pass), (vec![("a", false)], true));
    w.inject(&w.client_wire(&c, baton_packet::Flags::RST, &[]).build());
    w.run_ms(120_000);
    // The same generation once more.
    let applied = w.engine.apply_each(w.now, &w.snapshot, &[]).expect("taken");
    assert_eq!(applied, Applied::default());
    assert_eq!(in_force(&w), ["a"]);
}

#[test]
fn policies_and_frontends_beyond_the_tables_are_refused_and_the_first_are_served() {
    let mut w = World::new(1);
    let mut all: Vec<Policy> = (0..LIMIT_POLICIES + 2)
        .map(|i| {
            let mut p = policy(0);
            p.name = format!("p{i}");
            p.frontends = vec![at(&format!("10.{}.{}.1:80", 1 + i / 250, i % 250))];
            p
        })
        .collect();
    // The one in force comes last, and stays.
    all.push(w.snapshot.policies[0].clone());
    let applied = offer(&mut w, all);
    let expected = ["p1023", "p1024", "p1025"].map(|name| (name, false));
    assert_eq!(refused(&applied), expected);
    assert!(applied.may_pass);
    w.idle(1);
    let mut large = policy(0);
    large.name = "large".into();
    large.frontends =
        (0..LIMIT_FRONTENDS).map(|i| at(&format!("10.7.{}.{}:80", i / 250, i % 250 + 1))).collect();
    let small = w.snapshot.policies.pop().expect("the first one");
    let applied = offer(&mut w, vec![large, small]);
    assert_eq!(refused(&applied), [("large", false)]);
    assert!(applied.refused[0].message.starts_with("frontends: at most 16384"));
    assert_eq!(in_force(&w), ["web"]);
    w.idle(2);
}

#[test]
fn names_that_two_policies_have_are_a_fault_of_the_whole_snapshot() {
    let mut w = World::new(1);
    let twice = vec![named("b", 81, 0..1), named("b", 82, 0..1)];
    w.snapshot.policies = twice;
    w.snapshot.generation += 1;
    let error = w.engine.apply_each(w.now, &w.snapshot, &[]);
    assert!(matches!(error, Err(ApplyError::Invalid(e)) if e.path == "policies[1].name"));
    assert_eq!(in_force(&w), ["web"]);
}

/// What a generated policy is like.
#[derive(Clone, Debug)]
struct Odd {
    port: u16,
    own: bool,
    backends: usize,
    net: u8,
    weight: u16,
}

fn odd() -> impl Strategy<Value = Odd> {
    // Some ports are the legs', some are others' as well.
    let port = prop_oneof![8 => 80u16..86, 1 => Just(40_005u16)];
    (port, any::<bool>(), 0usize..9, 0u8..3, 1u16..3)
        .prop_map(|(port, own, backends, net, weight)| Odd { port, own, backends, net, weight })
}

proptest! {
    /// Whatever is offered: what is not refused is in force as it is, and what is refused is as it
    /// was or not there. Who is in force and is offered unchanged stays.
    #[test]
    fn refusals_touch_the_refused_only(
        all in proptest::collection::vec(
            proptest::collection::btree_map(0usize..6, odd(), 0..6),
            1..6,
        ),
    ) {
        let mut w = World::with(settings(), policy(0));
        let mut had: Vec<Policy> = w.snapshot.policies.clone();
        for policies in all {
            let offered: Vec<Policy> = policies
                .into_iter()
                .map(|(n, odd)| {
                    let mut p = crowd(policy(0), odd.backends, odd.net);
                    p.name = format!("p{n}");
                    let address = if odd.own { "0.0.0.0" } else { "10.9.0.1" };
                    p.frontends = vec![at(&format!("{address}:{}", odd.port))];
                    p.backends.iter_mut().for_each(|b| b.weight = odd.weight);
                    p
                })
                .collect();
            let applied = offer(&mut w, offered.clone());
            let state = w.engine.state(w.now);
            let listed = |name: &str| {
                let mut all = state.policies.iter();
                all.find(|p| p.name == name && !p.frontends.is_empty())
            };
            let mut has = Vec::new();
            for p in &offered {
                let refusal = applied.refused.iter().find(|r| r.policy == p.name);
                let before = had.iter().find(|h| h.name == p.name);
                prop_assert!(refusal.is_none() || before != Some(p), "{} stays", p.name);
                let now = match refusal {
                    None => Some(p),
                    Some(r) if r.kept => before,
                    Some(_) => None,
                };
                prop_assert_eq!(now.is_some(), listed(&p.name).is_some());
                if let (Some(now), Some(state)) = (now, listed(&p.name)) {
                    let ends = |backends: Vec<(baton_api::Endpoint, u16)>| backends;
                    let is = state.backends.iter().map(|b| (b.endpoint, b.weight)).collect();
                    let shall = now.backends.iter().map(|b| (b.endpoint, b.weight)).collect();
                    prop_assert_eq!(ends(is), ends(shall));
                    has.push(now.clone());
                }
            }
            let named = state.policies.iter().filter(|p| !p.frontends.is_empty()).count();
            prop_assert_eq!(named, has.len());
            // Nobody is refused for what a refused one wanted: the rest alone fits as well.
            let mut steering = w.engine.steering().frontends;
            steering.sort_unstable();
            let count = steering.len();
            steering.dedup();
            prop_assert_eq!(steering.len(), count);
            had = has;
        }
    }
}
