//! Whose a frame is, from the first to the last of a connection, on both of its sides.

use crate::common::{Conn, World, conn::*, ours};
use baton_engine::FlowLookup;

fn sight<'a>(w: &'a World, frame: &[u8]) -> Option<FlowLookup<'a>> {
    w.engine.whose(&baton_packet::decode(frame).expect("a frame"))
}

#[test]
fn a_frame_is_its_flows_in_both_directions_and_on_both_sides() {
    for v6 in [false, true] {
        let mut w = World::new(2);
        let mut c = w.idle_as(Conn::of(1, v6));
        let from_client = w.client_wire(&c, PSH_ACK, GET).build();
        let to_pod = w.data(&mut c, GET).pop().expect("the request");
        take_leg(&mut c, &to_pod);
        let from_pod = w.pod_wire(&c, PSH_ACK, OK).build();
        let to_client = w.responds(&mut c, OK);
        let pod = c.pod_name();
        for (frame, leg) in [
            (&from_client, false),
            (&to_pod.frame, true),
            (&from_pod, true),
            (&to_client.frame, false),
        ] {
            let seen = sight(&w, frame).expect("ours");
            assert_eq!((seen.client, seen.policy), (Some(c.client), Some("web")));
            assert!(seen.backends.contains(&Some(pod.as_str())), "{seen:?}");
            assert_eq!(seen.leg, leg);
            let ends =
                if leg { (to_pod.segment.dst, ours(v6)) } else { (c.client.ip(), c.frontend.ip()) };
            assert_eq!((seen.peer.ip(), seen.own.ip()), ends);
        }
    }
}

#[test]
fn while_a_flow_moves_both_pods_are_its_and_afterwards_the_old_leg_is_nobodys() {
    let (mut w, mut c) = World::new(2).at_rest();
    let old = c.clone();
    let adoption = w.moves(&mut c, GET);
    assert_ne!(old.pod, c.pod);
    let late = w.pod_wire(&old, PSH_ACK, &[]).build();
    let (new_name, old_name) = (c.pod_name(), old.pod_name());
    for frame in [&adoption.frame, &late] {
        let seen = sight(&w, frame).expect("ours");
        assert_eq!(seen.client, Some(c.client));
        for name in [&new_name, &old_name] {
            assert!(seen.backends.contains(&Some(name.as_str())), "{seen:?}");
        }
    }
    w.served(&mut c);
    let seen = sight(&w, &late).expect("ours");
    assert_eq!((seen.client, seen.policy), (None, None));
    assert_eq!(seen.backends, [Some(old_name.as_str()), None, None]);
    let seen = sight(&w, &adoption.frame).expect("ours");
    assert_eq!(seen.backends, [Some(new_name.as_str()), Some(new_name.as_str()), None]);
}

#[test]
fn what_is_no_flows_yet_has_a_policy_and_a_stranger_has_nothing() {
    let w = World::new(2);
    let c = Conn::of(1, false);
    let syn = w.syn_wire(&c).build();
    let seen = sight(&w, &syn).expect("for a frontend");
    assert_eq!((seen.client, seen.policy), (Some(c.client), Some("web")));
    assert_eq!(seen.backends, [None; 3]);
    let mut stranger = c;
    stranger.frontend.set_port(81);
    assert_eq!(sight(&w, &w.syn_wire(&stranger).build()), None);
}
