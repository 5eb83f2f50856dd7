//! Flows outlive their owner: held ends, adoption by a pure ACK, requests that come meanwhile,
//! waiting, giving up.

use crate::common::{
    Conn, Dest, End, Listener, Sent, World, answer, conn::*, endpoint, pod, policy, settings,
};
use baton_api::{BackendFailure, MigrationMode, Policy, Protocol, Snapshot};
use baton_engine::{Counter, Lost, PinReason};
use baton_packet::{Flags, Reason};

/// Lets the other pod adopt again.
fn somebody_comes(w: &mut World, dead: usize) -> Vec<Sent> {
    w.adopters[1 - dead] = Some(Reason::Ready);
    w.until_adoption(1_100)
}

#[test]
fn a_flow_at_rest_outlives_its_pod_and_the_client_sees_nothing() {
    for how in End::BOTH {
        for v6 in [false, true] {
            let mut w = World::new(3);
            let mut c = w.idle_as(Conn::of(1, v6));
            let dead = c.pod;
            let sent = w.dies(dead, how, &[c.clone()]);
            assert!(World::to_client(&sent).is_empty(), "{sent:?}");
            w.rescued(&mut c, &sent);
            assert_ne!(c.pod, dead);
            w.exchange_anywhere(&mut c);
            assert_eq!(w.count(Counter::Rescues), 1);
            assert_eq!(w.count(Counter::Stranded), 1);
            let closed = u64::from(matches!(how, End::Fin));
            assert_eq!(w.count(Counter::OwnersClosed), closed);
            assert_eq!(w.count(Counter::OwnersReset), 1 - closed);
            assert_eq!(Lost::ALL.iter().map(|l| w.engine.lost(*l)).sum::<u64>(), 0);
            let state = w.engine.state(w.now);
            assert_eq!(state.policies[0].rescues_total, 1);
            assert_eq!(state.policies[0].replays_total, 0);
            assert_eq!(w.count(Counter::UnexpectedEvents), 0);
        }
    }
}

#[test]
fn a_flow_without_a_request_yet_is_rescued_too() {
    for how in End::BOTH {
        let (mut w, mut c) = World::new(2).opened();
        let sent = w.dies(c.pod, how, &[c.clone()]);
        w.rescued(&mut c, &sent);
        w.exchange_anywhere(&mut c);
    }
}

#[test]
fn the_new_owner_is_adopted_with_the_options_and_clock_of_the_old_one() {
    let (mut w, mut c) = World::new(2).at_rest();
    let present = c.clone();
    let ended_at = w.now.ms();
    let sent = w.dies(c.pod, End::Fin, &[c.clone()]);
    let adoption = sent.iter().find(|s| s.is_adoption()).expect("an adoption");
    let message = w.expect_adoption(adoption, &present);
    assert_eq!(message.mss, 1_460);
    assert_eq!((message.server_wscale, message.client_wscale), (9, 7));
    let later = u64::from(message.server_ts.wrapping_sub(present.seen_ts));
    assert!(later <= w.now.ms() - ended_at, "the clock goes on");
    w.rescued(&mut c, &sent);
}

#[test]
fn a_lost_adoption_of_a_flow_at_rest_is_sent_again() {
    let (mut w, mut c) = World::new(2).at_rest();
    let sent = w.dies(c.pod, End::Fin, &[c.clone()]);
    w.adopted(&mut c, &sent);
    let again = w.run_ms(46);
    assert_eq!(again.len(), 2, "adoption and keepalive: {again:?}");
    assert!(again[0].is_adoption());
    assert_eq!(again[0].segment.src_port, c.leg.port(), "the same leg");
    w.confirms(&c);
    assert_eq!(w.count(Counter::Rescues), 1);
}

#[test]
fn flows_are_spread_over_the_survivors() {
    let mut s = settings();
    s.limits.flows = 256;
    let mut w = World::with(s, policy(4));
    let mut flows: Vec<Conn> = (0..120).map(|n| w.idle(n)).collect();
    let dead = flows[0].pod;
    let sent = w.dies(dead, End::Fin, &flows);
    let later = w.run_ms(60);
    let sent = [sent, later].concat();
    let mut per_pod = [0; 4];
    for c in flows.iter_mut().filter(|c| c.pod == dead) {
        w.adopted(c, &sent);
        w.confirms(c);
    }
    for c in &flows {
        per_pod[c.pod] += 1;
    }
    assert_eq!(per_pod[dead], 0);
    assert!(per_pod.iter().filter(|n| **n > 0).all(|n| (32..=48).contains(n)), "{per_pod:?}");
}

#[test]
fn no_more_than_sixteen_flows_a_millisecond_go_to_one_survivor() {
    let mut s = settings();
    s.limits.flows = 128;
    let mut p = policy(2);
    p.backends[1].weight = 0;
    let mut w = World::with(s, p);
    let mut flows: Vec<Conn> = (0..100).map(|n| w.idle(n)).collect();
    w.change(|s| s.policies[0].backends[1].weight = 1);
    w.run_ms(5);
    w.stops(0);
    let mut first = Vec::new();
    for c in &flows {
        first.extend(w.ends(c, End::Fin));
    }
    let mut all = Vec::new();
    for _ in 0..200 {
        let mut sent = std::mem::take(&mut first);
        sent.extend(w.run_us(1_000));
        let adoptions = sent.iter().filter(|s| s.is_adoption()).count();
        // The ends of the window may cut two of the budget's milliseconds.
        assert!(adoptions <= 2 * 16, "{adoptions} in a millisecond");
        for s in sent {
            if s.is_adoption() {
                let c = flows
                    .iter_mut()
                    .find(|c| c.seq == s.segment.seq.0 && c.server == s.segment.ack.0);
                let c = c.expect("its flow");
                take_leg(c, &s);
                let c = c.clone();
                w.confirms(&c);
            }
            all.push(s);
        }
    }
    let adoptions = all.iter().filter(|s| s.is_adoption()).count();
    assert_eq!(adoptions, 100, "each once, with retries and no losses");
    assert_eq!(w.count(Counter::Rescues), 100);
    assert!(w.count(Counter::AdoptionsDelayed) > 0, "and is counted");
}

#[test]
fn a_request_that_comes_while_the_end_is_held_goes_to_the_new_owner() {
    for lives in [false, true] {
        let (mut w, mut c) = World::new(2).at_rest();
        let boundary = c.seq;
        if !lives {
            w.stops(c.pod);
        }
        assert!(w.ends(&c, End::Fin).is_empty());
        w.assert_state(&c, "OwnerFinPending");
        // A POST: nobody has seen it, so it may go anywhere, whether the pod lives or not.
        let sent = w.data(&mut c, POST);
        let behind = w.adopted_from(&mut c, &sent, boundary);
        assert_eq!(one(behind).data(), POST);
        w.assert_state(&c, "Adopting");
        w.served(&mut c);
        w.assert_state(&c, "Idle");
        assert_eq!(w.engine.state(w.now).policies[0].replays_total, 0, "it is no replay");
    }
}

#[test]
fn a_request_that_comes_while_nobody_adopts_waits_for_whoever_does() {
    let (mut w, mut c) = World::orphan(End::Fin);
    let (dead, boundary) = (c.pod, c.seq);
    assert!(w.data(&mut c, &post_head(4)).is_empty());
    assert!(w.data(&mut c, b"body").is_empty());
    w.assert_state(&c, "Orphan");
    let sent = somebody_comes(&mut w, dead);
    let behind = w.adopted_from(&mut c, &sent, boundary);
    let bytes: Vec<u8> = behind.iter().flat_map(|s| s.data().to_vec()).collect();
    assert_eq!(bytes, [&post_head(4)[..], b"body"].concat());
    w.served(&mut c);
    w.assert_state(&c, "Idle");
}

#[test]
fn a_request_behind_an_adoption_at_rest_follows_it() {
    for confirmed_first in [true, false] {
        let (mut w, mut c) = World::new(2).at_rest();
        let sent = w.dies(c.pod, End::Fin, &[c.clone()]);
        w.adopted(&mut c, &sent);
        let before = c.clone();
        w.stays(&mut c, GET);
        w.assert_state(&c, "Adopting");
        if confirmed_first {
            // The answer to the keepalive, which crossed the request.
            w.inject(&w.pod_wire(&before, Flags::ACK, &[]).build());
            w.assert_state(&c, "Request");
        }
        w.served(&mut c);
        w.assert_state(&c, "Idle");
    }
}

#[test]
fn a_client_that_closes_during_an_adoption_at_rest_closes_at_the_new_owner() {
    let (mut w, mut c) = World::new(2).at_rest();
    let sent = w.dies(c.pod, End::Fin, &[c.clone()]);
    w.adopted(&mut c, &sent);
    w.client_fin(&mut c);
    let ack = w.pod_wire(&c, Flags::ACK, &[]);
    w.inject(&ack.build());
    w.assert_state(&c, "ClientFin");
    w.pod_fin(&mut c);
    w.assert_state(&c, "Closed");
}

#[test]
fn a_client_that_closes_or_resets_while_nobody_has_its_flow_is_answered() {
    // FIN at rest: closed in order in the dead pod's name.
    let (mut w, mut c) = World::orphan(End::Fin);
    let sent = w.inject(&w.client_wire(&c, FIN_ACK, &[]).build());
    c.seq = c.seq.wrapping_add(1);
    let fin = one(World::to_client(&sent).into_iter().cloned().collect());
    assert!(fin.is(FIN_ACK));
    assert_eq!((fin.segment.seq.0, fin.segment.ack.0), (c.server, c.seq));
    w.assert_state(&c, "Closed");
    c.server = c.server.wrapping_add(1);
    w.inject(&w.client_wire(&c, Flags::ACK, &[]).build());
    w.run_ms(1_100);
    assert_eq!(w.state(&c), None);

    // FIN behind a request: it goes with the request, which is answered.
    let (mut w, mut c) = World::orphan(End::Fin);
    let (dead, boundary) = (c.pod, c.seq);
    assert!(w.data(&mut c, GET).is_empty());
    assert!(w.inject(&w.client_wire(&c, FIN_ACK, &[]).build()).is_empty());
    c.seq = c.seq.wrapping_add(1);
    w.assert_state(&c, "Orphan");
    let sent = somebody_comes(&mut w, dead);
    let behind = w.adopted_from(&mut c, &sent, boundary);
    let bytes: Vec<u8> = behind.iter().flat_map(|s| s.data().to_vec()).collect();
    assert_eq!(bytes, GET);
    assert!(behind.last().expect("the request").segment.flags.has(Flags::FIN));
    w.responds(&mut c, OK);
    w.assert_state(&c, "ClientFin");
    w.pod_fin(&mut c);
    w.assert_state(&c, "Closed");

    // Data that could not be kept, with FIN: never acknowledged.
    let (mut w, c) = World::orphan(End::Fin);
    let mut wire = w.client_wire(&c, FIN_ACK, GET);
    wire.seq = wire.seq.wrapping_add(10);
    let sent = w.inject(&wire.build());
    let sent = [sent, w.run_ms(50)].concat();
    assert!(World::to_client(&sent).iter().all(|s| !s.is(FIN_ACK)), "{sent:?}");

    // RST.
    for with_request in [false, true] {
        let (mut w, mut c) = World::orphan(End::Fin);
        if with_request {
            w.data(&mut c, GET);
        }
        let sent = w.inject(&w.client_wire(&c, Flags::RST, &[]).build());
        assert!(World::to_client(&sent).is_empty());
        assert_eq!(w.state(&c), None);
        assert_eq!(w.table("kept_segments").0, 0);
    }
}

#[test]
fn a_client_that_closes_or_resets_while_the_end_is_held_is_let_go() {
    let (mut w, mut c) = World::new(2).at_rest();
    w.ends(&c, End::Fin);
    let sent = w.inject(&w.client_wire(&c, FIN_ACK, &[]).build());
    assert_eq!(World::to_client(&sent).len(), 1, "the FIN that was held");
    w.assert_state(&c, "Closed");
    c = w.idle(2);
    w.ends(&c, End::Rst);
    w.inject(&w.client_wire(&c, FIN_ACK, &[]).build());
    assert_eq!(w.state(&c), None, "the RST that was held");
    c = w.idle(3);
    w.ends(&c, End::Fin);
    w.inject(&w.client_wire(&c, Flags::RST, &[]).build());
    assert_eq!(w.state(&c), None);
}

#[test]
fn what_nobody_adopts_in_ten_seconds_is_lost_and_counted() {
    let (mut w, mut c) = World::orphan(End::Fin);
    w.data(&mut c, GET);
    assert!(World::to_client(&w.run_ms(9_900)).is_empty());
    w.assert_state(&c, "Orphan");
    let sent = w.run_ms(200);
    let rst = one(World::to_client(&sent).into_iter().cloned().collect());
    assert!(rst.is(RST_ACK));
    assert_eq!(rst.segment.seq.0, c.server, "exact");
    assert_eq!(w.engine.lost(Lost::NoBackend), 1);
    let lost = &w.engine.state(w.now).policies[0].lost_total;
    assert_eq!(lost.get("no_backend"), Some(&1));
}

/// Where a pod is replaced only after its end (strategy `Recreate`, one replica), no backend is
/// named for a while.
#[test]
fn flows_wait_for_the_successor_of_the_only_pod() {
    for with_request in [false, true] {
        let (mut w, mut c) = World::with(settings(), policy(1)).at_rest();
        let successor = |s: &mut Snapshot| {
            let mut b = policy(1).backends.remove(0);
            (b.name, b.endpoint) = ("pod-1".into(), endpoint(pod(false, 1)));
            s.policies[0].backends = vec![b];
        };
        let boundary = c.seq;
        if with_request {
            w.stays(&mut c, GET);
        }
        w.change(|s| s.policies[0].backends.clear());
        let sent = w.dies(0, End::Fin, &[c.clone()]);
        assert!(World::to_client(&sent).is_empty(), "{sent:?}");
        w.assert_state(&c, "Orphan");
        assert!(World::to_client(&w.run_ms(3_000)).is_empty());
        w.change(successor);
        w.starts(1);
        let sent = w.until_adoption(500);
        if with_request {
            w.adopted_from(&mut c, &sent, boundary);
            w.served(&mut c);
        } else {
            w.rescued(&mut c, &sent);
        }
        assert_eq!(c.pod, 1);
        w.exchange(&mut c);
        assert_eq!(w.engine.lost(Lost::NoBackend), 0);
    }
}

/// Nobody will ever be named any more: the client is told at once, and why.
#[test]
fn the_end_of_a_pod_whose_policy_was_removed_passes_and_is_counted() {
    let (mut w, c) = World::new(2).at_rest();
    w.change(|s| s.policies.clear());
    let sent = w.ends(&c, End::Fin);
    assert_eq!(World::to_client(&sent).len(), 1);
    assert_eq!(w.engine.lost(Lost::NoBackend), 1);
}

#[test]
fn refused_rescues_do_not_wait_for_ever() {
    for with_request in [false, true] {
        let (mut w, mut c) = World::orphan(End::Fin);
        if with_request {
            w.data(&mut c, POST);
        }
        // Ready to every probe, and every adoption is refused.
        w.adopters[1 - c.pod] = Some(Reason::Ready);
        let (mut ms, mut refusals) = (0, 0);
        while !matches!(w.state(&c).as_deref(), None | Some("FinSentToClient")) {
            ms += 1;
            assert!(ms < 15_000, "in {:?}", w.state(&c));
            for s in w.run_ms(1) {
                if s.is_adoption() {
                    w.inject(&answer(&s, Reason::AcceptQueueFull, 0));
                    refusals += 1;
                }
            }
        }
        assert!(refusals > 5, "{refusals}");
        assert_eq!(w.engine.lost(Lost::NoBackend), 1);
    }
}

#[test]
fn a_pod_that_comes_back_takes_its_own_flows_again() {
    let (mut w, mut c) = World::with(settings(), policy(1)).at_rest();
    let sent = w.dies(0, End::Fin, &[c.clone()]);
    assert!(sent.is_empty());
    w.assert_state(&c, "Orphan");
    let sent = w.run_ms(1_000);
    assert!(World::to_client(&sent).is_empty());
    w.starts(0);
    let sent = w.until_adoption(200);
    w.rescued(&mut c, &sent);
    w.exchange(&mut c);
    w.run_ms(1_000);
    let down = w.count(Counter::BackendsWithoutListener);
    assert_eq!(w.count(Counter::BackendsBack), down);
    assert!(down > 0);
}

type Change = fn(&mut Policy);

#[test]
fn where_nothing_is_to_be_rescued_an_end_passes_at_once() {
    let cases: [(&str, Change); 3] = [
        ("policy Reset", |p| {
            p.on_backend_failure = BackendFailure::Reset;
        }),
        ("protocol None", |p| p.protocol = Protocol::None),
        ("nobody ever adopted", |_| {}),
    ];
    for (what, change) in cases {
        for how in End::BOTH {
            let mut p = policy(2);
            change(&mut p);
            let mut w = World::unprobed(settings(), p);
            if what == "nobody ever adopted" {
                w.adopters.fill(None);
            }
            w.poll();
            let c = w.idle(1);
            let wire = w.pod_wire(&c, how.flags(), &[]);
            w.forwarded_to_client(&c, &wire);
            assert!(w.asked.is_empty(), "{what}");
        }
    }
}

#[test]
fn a_pinned_flow_ends_at_once_and_is_counted_where_its_pod_goes_away() {
    for leaving in [false, true] {
        let (mut w, mut c) = World::new(2).opened();
        w.answers(&mut c, b"220 mail\r\n");
        assert_eq!(w.engine.pinned(PinReason::ServerFirst), 1);
        if leaving {
            w.engine.drain(w.now, None, &format!("pod-{}", c.pod), true);
        }
        w.pod_fin(&mut c);
        w.assert_state(&c, "ServerFin");
        assert_eq!(w.engine.lost(Lost::Pinned), u64::from(leaving));
    }
}

#[test]
fn an_unacknowledged_response_waits_and_the_dead_pods_kernel_repeats_it() {
    let (mut w, mut c) = World::new(2).opened();
    w.stays(&mut c, GET);
    let dead = c.pod;
    w.stops(dead);
    // The response and the FIN together: only the FIN is held back.
    let wire = w.pod_wire(&c, FIN_ACK | Flags::PSH, OK);
    let sent = one(w.inject(&wire.build()));
    assert_eq!((sent.to, sent.data()), (Dest::Client, OK));
    assert!(sent.is(PSH_ACK), "without FIN");
    w.assert_state(&c, "OwnerFinPending");
    assert!(w.run_ms(60).is_empty());
    w.assert_state(&c, "Orphan");
    // The client lacks it, and the kernel of the dead pod sends it again with its FIN.
    let sent = one(w.inject(&wire.build()));
    assert_eq!((sent.to, sent.data()), (Dest::Client, OK));
    assert!(sent.is(PSH_ACK), "without FIN");
    c.server = c.server.wrapping_add(OK.len() as u32);
    // The acknowledgement goes to that kernel, and the flow to another pod.
    let sent = w.inject(&w.client_wire(&c, Flags::ACK, &[]).build());
    assert!(sent.iter().any(|s| s.to == Dest::Pod(dead) && s.segment.ack.0 == c.server));
    w.rescued(&mut c, &sent);
    w.exchange_anywhere(&mut c);
}

/// It may be from before its time on this leg.
#[test]
fn of_an_owner_that_is_gone_the_client_gets_nothing_that_it_has() {
    let (mut w, mut c) = World::of(2, |p| p.migration.mode = MigrationMode::Never).opened();
    let earlier = w.pod_wire(&c, PSH_ACK, OK).build();
    w.exchange(&mut c);
    w.stays(&mut c, GET);
    w.stops(c.pod);
    let response = w.pod_wire(&c, FIN_ACK | Flags::PSH, OK).build();
    let _ = w.inject(&response);
    let _ = w.run_ms(60);
    w.assert_state(&c, "Orphan");
    assert!(w.inject(&earlier).is_empty());
    assert_eq!(one(w.inject(&response)).data(), OK, "what it lacks");
}

#[test]
fn a_response_that_is_never_acknowledged_ends_in_a_reset() {
    let (mut w, mut c) = World::new(2).opened();
    w.stays(&mut c, GET);
    w.responds(&mut c, OK);
    let sent = w.dies(c.pod, End::Fin, &[c.clone()]);
    assert!(sent.is_empty());
    assert!(World::to_client(&w.run_ms(2_900)).is_empty());
    let sent = w.run_ms(200);
    assert!(one(World::to_client(&sent).into_iter().cloned().collect()).is(RST_ACK));
    assert_eq!(w.engine.lost(Lost::ResponseUnacknowledged), 1);
}

/// Found by the simulator (seed 46970789075758): it was told a clean end behind bytes that it never
/// got.
#[test]
fn a_client_that_closes_without_all_of_a_dead_pods_response_is_told_the_truth() {
    for repeated in [false, true] {
        let (mut w, mut c) = World::new(2).opened();
        w.stays(&mut c, GET);
        w.responds(&mut c, OK);
        let response = Conn { server: c.server.wrapping_sub(OK.len() as u32), ..c.clone() };
        w.dies(c.pod, End::Fin, &[c.clone()]);
        let fin = w.client_wire(&response, FIN_ACK, &[]);
        assert!(w.inject(&fin.build()).is_empty());
        w.assert_state(&c, "Orphan");
        if repeated {
            // The dead pod's kernel still has it.
            let wire = w.pod_wire(&response, PSH_ACK, OK);
            assert_eq!(one(w.inject(&wire.build())).to, Dest::Client);
            let sent = w.inject(&w.client_wire(&c, FIN_ACK, &[]).build());
            let end = one(World::to_client(&sent).into_iter().cloned().collect());
            assert!(end.is(FIN_ACK), "{end:?}");
            assert_eq!(w.engine.lost(Lost::ResponseUnacknowledged), 0);
        } else {
            let sent = w.run_ms(3_200);
            let end = one(World::to_client(&sent).into_iter().cloned().collect());
            assert!(end.is(RST_ACK), "{end:?}");
            assert_eq!(w.engine.lost(Lost::ResponseUnacknowledged), 1);
        }
    }
}

#[test]
fn a_dead_pods_late_segments_are_fenced() {
    let (mut w, mut c) = World::new(2).at_rest();
    let old = c.clone();
    w.listeners[c.pod] = Listener::Silent;
    w.ends(&c, End::Fin);
    for flags in [FIN_ACK, RST_ACK, Flags::ACK] {
        assert!(w.inject(&w.pod_wire(&old, flags, &[]).build()).is_empty());
    }
    assert!(w.inject(&w.pod_wire(&old, PSH_ACK, b"new data").build()).is_empty());
    w.assert_state(&c, "OwnerFinPending");
    w.stops(c.pod);
    let sent = w.until_adoption(100);
    w.rescued(&mut c, &sent);
    let sent = w.inject(&w.pod_wire(&old, PSH_ACK, b"late").build());
    assert!(World::to_client(&sent).is_empty());
}
