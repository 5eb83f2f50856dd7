//! A pusher against made-up dataplanes over real sockets.

use crate::common::{Fake, Operator, policies, quick, until};
use baton_api::{NodeKeys, node_key, transfer_key};
use baton_push::{
    Files,
    keys::{KeySet, Stored},
    push::{Outcome, Plain, Target, TargetKind, Unreached, Version},
};
use std::{sync::Arc, time::Duration};

const BASE: u64 = 1 << 32;

fn operator(epoch: u32) -> Operator {
    Operator::new(epoch, quick(), Arc::new(Plain))
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|n| (*n).to_owned()).collect()
}

#[tokio::test]
async fn content_is_pushed_once_and_an_operator_that_starts_again_pushes_nothing() {
    let fake = Fake::start().await;
    let mut first = operator(1);
    first.targets(&[("a", &fake)]);
    // Nothing is pushed before anything is published, but the state is looked at.
    first.state().await;
    assert_eq!(fake.puts(), []);
    let version = first.publish(&["x", "y"]);
    assert_eq!(first.acknowledged("a", version).await, (BASE + 1, true));
    assert_eq!(fake.puts(), [(BASE + 1, names(&["x", "y"]))]);
    assert_eq!(first.figures().dataplanes_in_sync, 1);
    assert_eq!(first.figures().pushes_accepted, 1);
    drop(first);

    let mut second = operator(2);
    let version = second.publish(&["x", "y"]);
    second.targets(&[("a", &fake)]);
    assert_eq!(second.acknowledged("a", version).await, (BASE + 1, false));
    assert_eq!(fake.puts().len(), 1);
    let version = second.publish(&["y"]);
    assert_eq!(second.acknowledged("a", version).await, (2 * BASE + 1, true));
}

#[tokio::test]
async fn what_came_while_a_slow_dataplane_was_busy_is_pushed_as_one() {
    let fake = Fake::start().await;
    fake.gate.forget_permits(1_000_000);
    let mut op = operator(1);
    op.publish(&["p0"]);
    op.targets(&[("a", &fake)]);
    until("the push is under way", || fake.inner().reads == 1).await;
    let mut version = Version(0);
    for i in 1..=50 {
        version = op.publish(&[&format!("p{i}")]);
        tokio::task::yield_now().await;
    }
    fake.gate.add_permits(100);
    op.acknowledged("a", version).await;
    let puts = fake.puts();
    assert!(puts.len() <= 2, "{puts:?}");
    assert_eq!(puts.last().expect("one").1, ["p50"]);
}

#[tokio::test]
async fn a_dataplane_that_hangs_delays_no_other() {
    let (hangs, works) = (Fake::start().await, Fake::start().await);
    hangs.gate.forget_permits(1_000_000);
    let mut op = operator(1);
    op.targets(&[("a", &hangs), ("b", &works)]);
    for i in 0..20 {
        let version = op.publish(&[&format!("p{i}")]);
        op.acknowledged("b", version).await;
    }
    assert_eq!(hangs.puts(), []);
    assert_eq!(op.figures().dataplanes_in_sync, 1);
}

#[tokio::test]
async fn reports_that_nobody_reads_delay_nobody() {
    let fake = Fake::start().await;
    let mut op = operator(1);
    op.targets(&[("a", &fake)]);
    // Far more than the channel holds.
    for i in 0..600 {
        op.publish(&[&format!("p{i}")]);
        let n = i + 1;
        until("the push", || op.figures().pushes_accepted >= n).await;
    }
    assert_eq!(fake.puts().last().expect("one").1, ["p599"]);
    // Whoever reads at last gets the newest.
    op.acknowledged("a", Version(600)).await;
}

#[tokio::test]
async fn a_refusal_names_the_policy_and_is_not_hammered() {
    let fake = Fake::start().await;
    fake.inner().refuses = Some("bad".to_owned());
    let mut op = operator(1);
    op.targets(&[("a", &fake)]);
    let version = op.publish(&["a", "bad", "z"]);
    let refusal = op
        .report("a refusal", |report| match &report.result {
            Outcome::Refused { version: v, refusal } if *v == version => Some(refusal.clone()),
            _ => None,
        })
        .await;
    assert_eq!(refusal.policy.as_deref(), Some("bad"));
    assert_eq!(refusal.field.as_deref(), Some("policies[1].frontends[0]"));
    assert_eq!(refusal.problem, "port 80 is one of the legs' ports: expected another");
    // Ten looks later it was still offered once.
    for _ in 0..10 {
        op.report("a state", |r| match r.result {
            Outcome::State { in_sync, .. } => {
                assert!(!in_sync);
                Some(())
            }
            _ => None,
        })
        .await;
    }
    assert_eq!(fake.puts().len(), 1);
    let version = op.publish(&["a", "z"]);
    op.acknowledged("a", version).await;
    assert_eq!(op.figures().pushes_refused, 1);
}

#[tokio::test]
async fn a_dataplane_that_started_again_is_brought_up_to_date_by_itself() {
    let fake = Fake::start().await;
    let mut op = operator(1);
    op.targets(&[("a", &fake)]);
    let version = op.publish(&["x"]);
    op.acknowledged("a", version).await;
    fake.restart();
    assert_eq!(op.acknowledged("a", version).await, (BASE + 2, true));
    // Also if nobody notices that the connection ended: the state tells.
    fake.inner().snapshot = None;
    assert_eq!(op.acknowledged("a", version).await, (BASE + 3, true));
    assert!(op.figures().restarts >= 1);
}

#[tokio::test]
async fn a_connection_that_idles_and_is_closed_is_no_failure() {
    let fake = Fake::start().await;
    fake.inner().closes = true;
    let mut op = operator(1);
    op.targets(&[("a", &fake)]);
    for i in 0..30 {
        let version = op.publish(&[&format!("p{i}")]);
        op.acknowledged("a", version).await;
        op.state().await;
    }
    assert_eq!(op.figures().failures, 0);
    let connections = fake.inner().connections;
    assert!(connections > 30, "{connections} connections");
}

#[tokio::test]
async fn one_connection_serves_all_requests() {
    let fake = Fake::start().await;
    let mut op = operator(1);
    op.targets(&[("a", &fake)]);
    for i in 0..30 {
        let version = op.publish(&[&format!("p{i}")]);
        op.acknowledged("a", version).await;
    }
    assert_eq!(fake.inner().connections, 1);
}

#[tokio::test]
async fn who_is_unreachable_is_told_and_found_again() {
    let fake = Fake::start().await;
    fake.set_down(true);
    let mut settings = quick();
    // So long that only a changed set of targets ends the wait.
    settings.backoff_max = Duration::from_secs(3_600);
    settings.backoff_min = Duration::from_millis(40);
    let mut op = Operator::new(1, settings, Arc::new(Plain));
    let version = op.publish(&["x"]);
    op.targets(&[("a", &fake)]);
    let problem = op
        .report("unreachable", |report| match &report.result {
            Outcome::Unreachable(Unreached { problem, failures, .. }) if *failures >= 5 => {
                Some(problem.clone())
            }
            _ => None,
        })
        .await;
    assert!(!problem.is_empty());
    fake.set_down(false);
    let other = Fake::start().await;
    op.targets(&[("a", &fake), ("b", &other)]);
    op.acknowledged("a", version).await;
    // Who is no target any more is left alone.
    op.targets(&[("b", &other)]);
    let version = op.publish(&["y"]);
    op.acknowledged("b", version).await;
    until("a's task ends", || op.figures().dataplanes == 1).await;
    assert_eq!(fake.puts().len(), 1);
}

#[tokio::test]
async fn a_retired_class_is_only_looked_at() {
    let fake = Fake::start().await;
    let mut op = operator(1);
    op.targets(&[("a", &fake)]);
    let version = op.publish(&["x"]);
    op.acknowledged("a", version).await;
    op.pusher.retire("c");
    until("out of sync", || op.figures().dataplanes_in_sync == 0).await;
    op.looks(3).await;
    assert_eq!(fake.generation(), BASE + 1);
    let version = op.publish(&["x"]);
    assert_eq!(version, Version(1));
    op.acknowledged("a", version).await;
    assert_eq!(fake.puts().len(), 1);
}

#[tokio::test]
async fn a_shim_is_looked_at() {
    let fake = Fake::start().await;
    fake.inner().key_epochs = vec![3, 4];
    let mut op = operator(1);
    op.publish(&["x"]);
    op.pusher.set_targets(&[("node".to_owned(), shim(&fake, "n"))].into()).expect("few");
    for _ in 0..3 {
        let epochs = op
            .report("a shim", |report| match &report.result {
                Outcome::Shim(state) => Some(state.key_epochs.clone()),
                _ => None,
            })
            .await;
        assert_eq!(epochs, [3, 4]);
    }
    assert_eq!(fake.inner().reads, 0);
    assert_eq!((op.figures().shims, op.figures().dataplanes), (1, 0));
    // Its keys are its own configuration's.
    op.keys.send_replace(Some(stored(&[1], 1)));
    op.looks(3).await;
    assert!(fake.inner().keys.is_empty());
}

fn shim(fake: &Fake, node: &str) -> Target {
    Target { address: fake.address, kind: TargetKind::Shim { node: node.into() } }
}

/// Keys as they are stored, the one of epoch N of bytes N.
fn stored(epochs: &[u8], current: u8) -> Arc<Stored> {
    let mut files = Files::new();
    for epoch in epochs {
        files.insert(format!("epoch-{epoch}"), format!("{epoch:02x}").repeat(16));
    }
    files.insert("current", current.to_string());
    of_files(&files, &[])
}

fn of_files(files: &Files, excluded: &[&str]) -> Arc<Stored> {
    Arc::new(Stored {
        keys: KeySet::from_files(files).expect("good").expect("some"),
        excluded: excluded.iter().map(|node| (*node).to_owned()).collect(),
    })
}

#[tokio::test]
async fn each_shim_is_sent_the_keys_of_its_own_node() {
    let fakes = [Fake::start().await, Fake::start().await];
    for fake in &fakes {
        let mut inner = fake.inner();
        (inner.takes_keys, inner.key_epochs) = (true, Vec::new());
    }
    let sent = |at: usize| fakes[at].inner().keys.clone();
    let mut op = operator(1);
    let nodes = ["node-1", "node-2"];
    let targets = (0..2).map(|i| (format!("shim/{i}"), shim(&fakes[i], nodes[i])));
    op.pusher.set_targets(&targets.collect()).expect("few");
    op.looks(4).await;
    assert!(sent(0).is_empty() && sent(1).is_empty(), "none are stored");

    op.keys.send_replace(Some(stored(&[7], 7)));
    let of = |keys: &NodeKeys| keys.checked().expect("keys");
    let key = |epoch: u8, node: &str| {
        let master = [epoch; 16];
        (epoch, node_key(&master, node), transfer_key(&master))
    };
    for (at, node) in nodes.into_iter().enumerate() {
        until("sent", || !sent(at).is_empty()).await;
        assert_eq!(sent(at)[0].node, node);
        assert_eq!(of(&sent(at)[0]), [key(7, node)]);
    }
    // A rotation: the one to sign with first, and the shim's own word of what it has.
    op.keys.send_replace(Some(stored(&[7, 8], 8)));
    let node = nodes[0];
    until("both", || sent(0).len() == 2).await;
    let both = [key(8, node), key(7, node)];
    assert_eq!(of(&sent(0)[1]), both);
    let epochs = op.report("its epochs", |report| match &report.result {
        Outcome::Shim(state) if state.key_epochs.len() == 2 => Some(state.key_epochs.clone()),
        _ => None,
    });
    assert_eq!(epochs.await, [8, 7]);
    op.looks(4).await;
    assert_eq!(sent(0).len(), 2, "what it has is not sent again");
    // It lost one, or started again with what an older one left.
    fakes[0].inner().key_epochs = vec![7];
    until("again", || sent(0).len() == 3).await;
    let before = op.figures().failures;
    fakes[0].set_down(true);
    until("it is away", || op.figures().failures > before).await;
    fakes[0].set_down(false);
    until("to the new process", || sent(0).len() == 4).await;
    assert_eq!(of(&sent(0)[3]), both);
    // A key of the same epoch that is another one.
    let mut files = stored(&[7, 8], 8).keys.to_files();
    files.insert("epoch-7", "ab".repeat(16));
    op.keys.send_replace(Some(of_files(&files, &[])));
    until("the other one", || sent(0).len() == 5).await;
    assert_eq!(of(&sent(0)[4])[1].1, node_key(&[0xab; 16], node));
    until("the other one", || sent(1).len() == 3).await;
    // A node that is excluded gets none, whatever becomes of the others', and all when it is let
    // in.
    files.insert("epoch-9", "09".repeat(16));
    op.keys.send_replace(Some(of_files(&files, &[node])));
    until("to the other node", || sent(1).len() == 4).await;
    op.looks(4).await;
    assert_eq!(sent(0).len(), 5);
    op.keys.send_replace(Some(of_files(&files, &[])));
    until("it is let in", || sent(0).len() == 6).await;
    assert_eq!(of(&sent(0)[5]).len(), 3);
    op.looks(4).await;
    assert_eq!(sent(1).len(), 4, "the same keys are not sent again");
}

#[tokio::test]
async fn a_push_under_way_ends_before_the_pusher_does() {
    let fake = Fake::start().await;
    fake.gate.forget_permits(1_000_000);
    let mut op = operator(1);
    op.publish(&["x"]);
    op.targets(&[("a", &fake)]);
    until("the push is under way", || fake.inner().reads == 1).await;
    // Waits at the gate: only then is it known to be there.
    let gate = Arc::clone(&fake.gate);
    let metrics = Arc::clone(&op.metrics);
    let stopped = tokio::spawn(op.pusher.shutdown(crate::common::DEADLINE));
    tokio::task::yield_now().await;
    gate.add_permits(1);
    stopped.await.expect("ended");
    assert_eq!(metrics.figures().dataplanes, 0);
    let pushed = metrics.figures().pushes_accepted;
    assert_eq!(fake.puts().len() as u64, pushed);
}

#[tokio::test]
async fn the_largest_content_goes_out_whole_and_is_recognised() {
    let names: Vec<String> = (0..5_000).map(|i| format!("ns/policy-{i:04}/http")).collect();
    let mut all = (*policies(&names.iter().map(String::as_str).collect::<Vec<_>>())).clone();
    for policy in all.values_mut() {
        let policy = Arc::make_mut(policy);
        let backend = policy.backends[0].clone();
        policy.backends = (0..10_u16)
            .map(|i| baton_api::Backend {
                name: format!("deployment-7d4b9c6f5-{i:05}"),
                endpoint: format!("10.0.{i}.1:8080").parse().expect("an endpoint"),
                ..backend.clone()
            })
            .collect();
    }
    let all = Arc::new(all);
    let fake = Fake::start().await;
    let mut op = operator(1);
    let begin = std::time::Instant::now();
    let version = op.pusher.publish("c", &all).expect("written");
    println!("5,000 policies with 50,000 backends are written within {:?}", begin.elapsed());
    op.targets(&[("a", &fake)]);
    op.acknowledged("a", version).await;
    let figures = op.figures();
    println!("pushed {} bytes within {} us", figures.pushed_bytes, figures.push_micros);
    let mut one = (*all).clone();
    one.insert(
        "ns/policy-0001/http".to_owned(),
        Arc::clone(&policies(&["ns/policy-0001/http"])["ns/policy-0001/http"]),
    );
    let begin = std::time::Instant::now();
    let version = op.pusher.publish("c", &Arc::new(one)).expect("written");
    println!("one changed policy is written within {:?}", begin.elapsed());
    op.acknowledged("a", version).await;
    assert_eq!(fake.puts().len(), 2);
    let mut second = operator(2);
    second.pusher.publish("c", &all).expect("written");
    let mut changed = (*all).clone();
    changed.insert(
        "ns/policy-0001/http".to_owned(),
        Arc::clone(&policies(&["ns/policy-0001/http"])["ns/policy-0001/http"]),
    );
    let version = second.pusher.publish("c", &Arc::new(changed)).expect("written");
    second.targets(&[("a", &fake)]);
    assert_eq!(second.acknowledged("a", version).await, (BASE + 2, false));
    assert_eq!(fake.puts().len(), 2);
}
