//! Client blocks: which segments have them, and for whom there is none.

use crate::common::{
    Conn, Dest, EPOCH, End, Sent, World, answer, conn::*, key, pod, policy, settings,
};
use baton_api::{Adoptability, ClientAddress, Legs, MoveMethod};
use baton_engine::{Counter, DropReason};
use baton_packet::{
    CLIENT_BLOCK_BYTES, ClientBlock, EndMark, Flags, ListenerReport, Reason, parse_client_block,
};

fn restores() -> ListenerReport {
    ListenerReport { marks_exits: true, restores: true, ..ListenerReport::default() }
}

/// A world whose policy restores, and whose pods can.
fn world(pods: usize, change: impl FnOnce(&mut baton_api::Policy)) -> World {
    let mut policy = policy(pods);
    policy.client_address = ClientAddress::Restore;
    change(&mut policy);
    let mut w = World::unprobed(settings(), policy);
    w.told.fill(restores());
    w.poll();
    w
}

fn adoptability(w: &World, pod: usize) -> Adoptability {
    w.engine.state(w.now).policies[0].backends[pod].adoptability
}

fn block(sent: &Sent) -> Option<ClientBlock> {
    parse_client_block(&sent.frame, &sent.segment)?.verify(&key())
}

#[track_caller]
fn expect_block(w: &World, c: &Conn, sent: &Sent) {
    let told = block(sent).expect("a block with the right tag");
    assert_eq!((told.client, told.port), (c.client.ip(), c.client.port()));
    assert_eq!((told.epoch, told.namespace), (EPOCH & 15, w.namespaces[0]));
}

#[test]
fn each_copy_of_the_syn_says_whose_it_is() {
    for v6 in [false, true] {
        let mut w = world(2, |_| ());
        let mut c = Conn::of(7, v6);
        let first = w.syn(&mut c);
        expect_block(&w, &c, &first);
        w.run_ms(900);
        let again = one(w.inject(&w.syn_wire(&c).build()));
        expect_block(&w, &c, &again);
        let same = |s: &Sent| (s.to, s.segment.src_port, s.segment.seq);
        assert_eq!(same(&first), same(&again));
        // What follows has none: it is the client's, as it is.
        w.accepts(&mut c);
        w.exchange(&mut c);
        let counts = [Counter::LegsRestored, Counter::LegsHidden].map(|c| w.count(c));
        assert_eq!(counts, [1, 0]);
    }
}

#[test]
fn what_the_client_offers_reaches_the_pod_beside_the_block() {
    let mut plain = World::new(1);
    let mut c = Conn::new(7);
    let forwarded = plain.syn(&mut c);
    let mut w = world(1, |_| ());
    let told = w.syn(&mut Conn::new(7));
    let offer = |s: &Sent| baton_packet::parse_syn_options(s.segment.options(&s.frame));
    let mut offers = [offer(&forwarded), offer(&told)];
    for offer in &mut offers {
        // Another moment.
        offer.timestamps = offer.timestamps.map(|_| (0, 0));
    }
    assert_eq!(offers[0], offers[1]);
    assert_eq!(told.segment.window, forwarded.segment.window);
    assert_eq!(told.segment.seq, forwarded.segment.seq);
}

#[test]
fn data_in_a_syn_is_left_out_and_comes_again() {
    let mut w = world(1, |_| ());
    let mut c = Conn::new(7);
    let mut wire = w.syn_wire(&c);
    wire.data = b"early".to_vec();
    let sent = one(w.inject(&wire.build()));
    expect_block(&w, &c, &sent);
    take_leg(&mut c, &sent);
    w.accepts(&mut c);
    w.exchange(&mut c);
}

#[test]
fn an_adoption_says_it_and_each_copy_of_it() {
    for v6 in [false, true] {
        let mut w = world(2, |_| ());
        let mut c = w.idle_as(Conn::of(7, v6));
        let sent = w.data(&mut c, GET);
        assert!(sent[0].is_adoption(), "{sent:?}");
        // To a kernel whose adopter is gone it is nothing new.
        let begins = sent[1].segment.seq.sub(CLIENT_BLOCK_BYTES as u32);
        assert_eq!(sent[0].segment.seq, begins);
        expect_block(&w, &c, &sent[0]);
        assert!(block(&sent[1]).is_none());
        assert_eq!(sent[1].data(), GET);
        let again = w.run_ms(60);
        let again = again.iter().find(|s| s.is_adoption()).expect("a copy");
        expect_block(&w, &c, again);
        take_leg(&mut c, &sent[0]);
        w.responds(&mut c, OK);
    }
}

#[test]
fn a_handshake_of_ours_says_it() {
    let mut w = world(2, |p| p.migration.method = MoveMethod::Translation);
    let mut c = w.idle(7);
    let syn = one(w.data(&mut c, GET));
    assert!(syn.is(Flags::SYN));
    expect_block(&w, &c, &syn);
}

/// An adoption that nobody answers has legs to its pod opened by handshakes for a while, and after
/// a process of the pod exited, nobody knows who listens: it is the same pod all the same.
#[test]
fn a_pod_whose_adopter_is_in_doubt_is_told() {
    for silent in [true, false] {
        let mut w = world(2, |p| {
            p.migration.method = match silent {
                true => MoveMethod::Auto,
                false => MoveMethod::Translation,
            };
        });
        let mut all: Vec<Conn> = (7..12).map(|n| w.idle(n)).collect();
        let gone = all.pop().expect("five");
        all.retain(|c| c.pod != gone.pod);
        let mut c = all.pop().expect("of two pods");
        if silent {
            let mut asks = all.pop().expect("two at that pod");
            // One that is not done twice is asked about as often as it can be.
            assert!(w.data(&mut asks, &post_head(0))[0].is_adoption());
            // No longer than until the next probe's answer.
            for _ in 0..4_000 {
                if adoptability(&w, gone.pod).is_ready() {
                    w.run_ms(1);
                }
            }
        } else {
            w.inject(&w.marked_end(&gone, End::Fin, EndMark::Exiting));
        }
        let doubt = match silent {
            true => Adoptability::AdoptionsLost,
            false => Adoptability::NotProbed,
        };
        assert_eq!(adoptability(&w, gone.pod), doubt);
        let syn = one(w.data(&mut c, GET));
        assert!(syn.is(Flags::SYN) && syn.to == Dest::Pod(gone.pod), "{syn:?}");
        assert!(block(&syn).is_some());
        assert_eq!(w.count(Counter::LegsHidden), 0);
    }
}

#[test]
fn who_is_not_asked_yet_gets_no_syn() {
    let mut policy = policy(2);
    policy.client_address = ClientAddress::Restore;
    let mut w = World::unprobed(settings(), policy);
    w.told.fill(restores());
    let mut c = Conn::new(7);
    assert!(w.inject(&w.syn_wire(&c).build()).is_empty());
    assert_eq!(w.dropped(DropReason::NotAsked), 1);
    assert_eq!(w.state(&c), None);
    w.poll();
    let sent = w.syn(&mut c);
    expect_block(&w, &c, &sent);
    // One that joins gets none before it was asked, whatever share of new flows it has.
    w.change(|s| {
        let joins = crate::common::backend(false, 2);
        s.policies[0].backends.push(joins);
    });
    for n in 10..40 {
        let sent = w.syn(&mut Conn::new(n));
        assert_ne!(sent.to, Dest::Pod(2));
        assert!(block(&sent).is_some());
    }
    assert_eq!(w.dropped(DropReason::NotAsked), 1);
    w.poll();
    let takes = (40..70).filter(|n| w.syn(&mut Conn::new(*n)).to == Dest::Pod(2));
    assert!(takes.count() > 0);
    assert_eq!(w.count(Counter::LegsHidden), 0);
}

#[test]
fn pods_that_cannot_see_the_dataplane() {
    // No adopter; an older one; and one that refuses adoptions, but restores.
    for (adopter, told, hidden) in [
        (None, ListenerReport::default(), 1),
        (Some(Reason::Ready), ListenerReport { restores: false, ..restores() }, 1),
        (Some(Reason::KernelRefused), restores(), 0),
    ] {
        let mut policy = policy(1);
        policy.client_address = ClientAddress::Restore;
        let mut w = World::unprobed(settings(), policy);
        w.told.fill(told);
        w.adopters.fill(adopter);
        w.poll();
        let c = Conn::new(7);
        // Of a pod that answers nothing the client's SYNs wait until it was asked often enough.
        let mut sent = w.inject(&w.syn_wire(&c).build());
        for _ in 0..10 {
            if sent.is_empty() {
                w.run_ms(1_000);
                sent = w.inject(&w.syn_wire(&c).build());
            }
        }
        let sent = one(sent);
        assert_eq!(block(&sent).is_none(), hidden == 1, "{adopter:?}");
        let counts = [Counter::LegsHidden, Counter::LegsRestored].map(|c| w.count(c));
        assert_eq!(counts, [hidden, 1 - hidden], "{adopter:?}");
    }
}

#[test]
fn a_pod_is_not_told_of_itself() {
    let mut w = world(1, |_| ());
    let mut c = Conn::new(7);
    c.client.set_ip(pod(false, 0).ip());
    let sent = w.inject(&w.syn_wire(&c).build());
    assert!(block(&one(sent)).is_none());
    assert_eq!(w.count(Counter::LegsHidden), 1);
}

#[test]
fn what_a_policy_does_not_ask_for_is_not_told() {
    let mut w = world(2, |p| p.client_address = ClientAddress::Hidden);
    let sent = w.syn(&mut Conn::new(7));
    assert!(sent.data().is_empty());
    let counts = [Counter::LegsRestored, Counter::LegsHidden].map(|c| w.count(c));
    assert_eq!(counts, [0, 0]);
}

#[test]
fn a_restored_leg_stays_its_clients_when_the_policy_changes() {
    for (address, parked) in [(ClientAddress::Restore, 0), (ClientAddress::Hidden, 1)] {
        let mut w = world(2, |p| {
            p.client_address = address;
            p.migration.method = MoveMethod::Translation;
        });
        let mut c = w.idle(7);
        w.change(|s| {
            s.policies[0].client_address = ClientAddress::Hidden;
            s.policies[0].migration.legs = Legs::Shared;
        });
        let mut p = crate::translation::moved(&mut w, &mut c, GET);
        crate::translation::pod_says(&mut w, (&mut c, &mut p), PSH_ACK, OK);
        let _ = w.run_ms(4);
        assert_eq!(w.count(Counter::LegsParked), parked);
    }
}

/// The adoption by another pod, on a leg that is not restored, comes to nothing.
#[test]
fn so_it_does_when_a_move_is_taken_back() {
    for (address, parked) in [(ClientAddress::Restore, 0), (ClientAddress::Hidden, 1)] {
        let mut w = world(2, |p| p.client_address = address);
        let mut c = w.idle(7);
        w.change(|s| {
            s.policies[0].client_address = ClientAddress::Hidden;
            s.policies[0].migration.legs = Legs::Shared;
        });
        let old = c.clone();
        let adoption = w.moves(&mut c, GET);
        let back = w.inject(&answer(&adoption, Reason::NoListener, 0));
        let back = back.last().expect("the request");
        assert_eq!((back.to, back.data()), (Dest::Pod(old.pod), GET));
        (c.pod, c.leg) = (old.pod, old.leg);
        w.served(&mut c);
        let _ = w.run_ms(20);
        assert_eq!(w.count(Counter::LegsParked), parked);
    }
}
