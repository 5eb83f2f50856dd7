//! Keys per node: what is signed for a pod, and who may answer for it.

use crate::common::{EPOCH, World, answer, answer_with, conn::*, key, policy, settings};
use baton_api::{Policy, node_key};
use baton_engine::Counter;
use baton_packet::{AdoptionKey, Reason};

const NODES: [&str; 2] = ["node-a", "node-b"];

fn of_node(master: &AdoptionKey, node: &str) -> AdoptionKey {
    AdoptionKey::from_bytes(node_key(master.bytes(), node))
}

/// Two pods, each in both families, on a node each.
fn on_nodes() -> Policy {
    let mut p = policy(2);
    for (i, backend) in p.backends.iter_mut().enumerate() {
        backend.node = Some(NODES[i % 2].into());
    }
    p
}

/// Their nodes' adopters have the keys that they should have.
fn world() -> World {
    let mut w = World::unprobed(settings(), on_nodes());
    w.keys[0] = of_node(&key(), NODES[0]);
    w.keys[1] = of_node(&key(), NODES[1]);
    w.poll();
    w
}

fn adoptable(w: &World) -> Vec<bool> {
    let state = w.engine.state(w.now);
    let backends = state.policies[0].backends.iter();
    backends.map(|b| b.adoptability.is_ready()).collect()
}

#[test]
fn each_pod_is_sent_what_its_nodes_key_signs_and_answers_with_it() {
    let mut w = world();
    assert_eq!(adoptable(&w), [true; 4]);
    assert_eq!(w.count(Counter::ForgedAnswers), 0);
    let mut c = w.idle(1);
    for _ in 0..4 {
        // The harness reads it with the receiving pod's key only.
        w.moved_exchange(&mut c);
    }
}

#[test]
fn another_nodes_key_and_the_dataplanes_own_say_nothing_for_a_pod() {
    let (mut w, mut c) = world().at_rest();
    let adoption = w.moves(&mut c, GET);
    for (i, forger) in [w.keys[1 - c.pod].clone(), key()].iter().enumerate() {
        let forged = answer_with(&adoption, Reason::NoListener, 0, EPOCH, forger);
        assert!(w.inject(&forged).is_empty());
        assert_eq!(w.count(Counter::ForgedAnswers), i as u64 + 1);
        assert_eq!(w.count(Counter::Rollbacks), 0);
    }
    assert_eq!(w.inject(&answer(&adoption, Reason::NoListener, 0)).len(), 1);
    assert_eq!(w.count(Counter::Rollbacks), 1);
}

#[test]
fn a_pod_whose_adopter_has_another_nodes_keys_is_not_moved_to() {
    let mut w = World::unprobed(settings(), on_nodes());
    w.keys[0] = of_node(&key(), NODES[0]);
    w.keys[1] = of_node(&key(), NODES[0]);
    // It cannot read what it is sent, so it is silent.
    w.adopters[1] = None;
    w.run_ms(2_000);
    assert_eq!(adoptable(&w), [true, false, true, false]);
}

#[test]
fn a_pod_that_comes_from_another_node_is_asked_with_that_ones_key() {
    let mut w = world();
    w.adopters[1] = None;
    w.change(|s| {
        for i in [1, 3] {
            s.policies[0].backends[i].node = Some("node-c".into());
        }
    });
    assert_eq!(
        adoptable(&w),
        [true, false, true, false],
        "what was said of it came from another node"
    );
    w.keys[1] = of_node(&key(), "node-c");
    w.adopters[1] = Some(Reason::Ready);
    w.run_ms(300);
    assert_eq!(adoptable(&w), [true; 4]);
    assert_eq!(w.count(Counter::ForgedAnswers), 0);
    let mut c = w.idle(1);
    w.moves(&mut c, GET);
    // Back to the dataplane's own keys.
    w.change(|s| s.policies[0].backends[1].node = None);
    assert_eq!(adoptable(&w), [true, false, true, true]);
    w.keys[1] = key();
    w.run_ms(300);
    assert!(adoptable(&w)[1]);
}

#[test]
fn a_snapshot_that_names_the_same_nodes_asks_nobody_anew() {
    let mut w = world();
    w.adopters.fill(None);
    w.change(|s| s.policies[0].response_timeout = None);
    w.change(|s| s.policies[0].backends[0].weight = 3);
    assert_eq!(adoptable(&w), [true; 4]);
}

#[test]
fn who_names_a_shared_pods_node_knows_more_than_who_does_not() {
    for named_first in [true, false] {
        let mut w = world();
        w.change(|s| {
            let mut other = on_nodes();
            other.name = "zzz".into();
            other.frontends = vec!["10.0.0.9:81".parse().expect("an endpoint")];
            let nameless = if named_first { &mut other } else { &mut s.policies[0] };
            for backend in &mut nameless.backends {
                backend.node = None;
            }
            s.policies.push(other);
        });
        assert_eq!(adoptable(&w), [true; 4], "{named_first}");
        w.run_ms(5_000);
        assert_eq!(adoptable(&w), [true; 4], "{named_first}");
        assert_eq!(w.count(Counter::ForgedAnswers), 0);
    }
}

#[test]
fn keys_are_exchanged_for_every_node() {
    let mut w = world();
    let next = AdoptionKey::from_bytes([9; 16]);
    let mut c = w.idle(1);
    let adoption = w.moves(&mut c, GET);
    let (old, other) = (w.keys[c.pod].clone(), 1 - c.pod);
    w.engine.set_keys(&[(EPOCH + 1, next.clone()), (EPOCH, key())]);
    assert_eq!(adoptable(&w), [false; 4], "Ready was said to another key");
    // The answer to what the old one signed counts, if it is that node's.
    let forged = answer_with(&adoption, Reason::NoListener, 0, EPOCH, &w.keys[other]);
    assert!(w.inject(&forged).is_empty());
    let forged =
        answer_with(&adoption, Reason::NoListener, 0, EPOCH + 1, &of_node(&next, NODES[other]));
    assert!(w.inject(&forged).is_empty());
    assert_eq!(w.count(Counter::ForgedAnswers), 2);
    let late = answer_with(&adoption, Reason::NoListener, 0, EPOCH, &old);
    assert_eq!(w.inject(&late).len(), 1, "rolled back");
    for (index, node) in NODES.iter().enumerate() {
        w.keys[index] = of_node(&next, node);
    }
    let probe = {
        w.adopters.fill(None);
        w.run_ms(1);
        w.last_probe.clone().expect("asked again")
    };
    assert_eq!(probe.message().expect("the new key").epoch, EPOCH + 1);
}
