//! Ends at pods whose adopters tell who holds the listener.

use crate::common::{Conn, EPOCH, End, Listener, Sent, World, answer, answer_with};
use baton_engine::{Counter, Lost};
use baton_packet::{AdoptionKey, EndMark, Listener as Held, ListenerReport, Reason};
use std::num::NonZeroU8;

pub fn told(id: u16, holders: u8) -> ListenerReport {
    ListenerReport {
        marks_exits: true,
        forgets: false,
        transfers: false,
        between_nodes: false,
        restores: false,
        listener: NonZeroU8::new(holders).map(|holders| Held { id, holders, several: false }),
    }
}

/// Several listeners on the port: the sum of their inode numbers, and of those who hold them.
fn group(id: u16, holders: u8) -> ListenerReport {
    let mut told = told(id, holders);
    told.listener = told.listener.map(|l| Held { several: true, ..l });
    told
}

/// Two pods, in each of them a master and two workers, and what is known of them.
pub fn telling() -> World {
    telling_of(told(7, 3))
}

fn telling_of(told: ListenerReport) -> World {
    let mut w = World::new(2);
    w.told.fill(told);
    w.run_ms(2_200);
    w
}

/// Idle connections of one pod, `count` of them at least.
fn at_one_pod(w: &mut World, count: usize) -> (usize, Vec<Conn>) {
    let mut flows: Vec<Conn> = (1..=4 * count as u16).map(|n| w.idle(n)).collect();
    let at = flows[0].pod;
    flows.retain(|c| c.pod == at);
    assert!(flows.len() >= count, "{}", flows.len());
    (at, flows)
}

fn ends_of(sent: &[Sent], how: End) -> usize {
    let to_client = World::to_client(sent);
    assert!(to_client.iter().all(|s| s.is(how.flags())), "{sent:?}");
    to_client.len()
}

#[test]
fn where_the_listener_is_held_as_before_an_end_is_one_round_trip_late() {
    for how in End::BOTH {
        let (mut w, c) = telling().at_rest();
        assert!(w.ends(&c, how).is_empty(), "asked first");
        assert_eq!(w.asked, [c.pod]);
        assert_eq!(ends_of(&w.poll(), how), 1);
        assert_eq!(w.count(Counter::LivenessProbesSent), 1);
        assert_eq!(w.count(Counter::ClosesBelieved), 1);
    }
}

/// Connections that have been idle since the same moment time out together: that is no restart,
/// with one listener or with several that are held as before (`SO_REUSEPORT`, as nginx's `listen
/// ... reuseport`, or a process for each CPU).
#[test]
fn all_flows_of_a_pod_may_time_out_together() {
    let worlds: [fn() -> World; 2] = [telling, || telling_of(group(40, 4))];
    for (how, world) in End::BOTH.into_iter().flat_map(|how| worlds.map(|world| (how, world))) {
        let mut w = world();
        let (_, flows) = at_one_pod(&mut w, 6);
        let mut sent = Vec::new();
        for c in &flows {
            sent.extend(w.ends(c, how));
        }
        sent.extend(w.run_ms(2));
        assert_eq!(ends_of(&sent, how), flows.len());
        assert_eq!(w.count(Counter::Rescues), 0);
        assert_eq!(w.count(Counter::BackendsRestarted), 0);
    }
}

#[test]
fn what_ends_while_the_pod_is_asked_waits_for_the_next_answer() {
    let mut w = telling();
    let (at, flows) = at_one_pod(&mut w, 2);
    w.adopters[at] = None;
    w.listeners[at] = Listener::Silent;
    w.ends(&flows[0], End::Fin);
    w.now.0 += 100;
    w.ends(&flows[1], End::Fin);
    assert_eq!(w.count(Counter::LivenessProbesSent), 1);
    w.adopters[at] = Some(Reason::Ready);
    w.listeners[at] = Listener::Listens;
    // The kernel answers, and what it says is watched.
    assert_eq!(ends_of(&w.run_ms(1_100), End::Fin), 2);
}

/// nginx's workers let go of the listener, then of idle connections; its master may have it for a
/// while.
#[test]
fn where_one_lets_go_of_the_listener_its_end_is_awaited() {
    for goes in [true, false] {
        let (mut w, mut c) = telling().at_rest();
        w.told[c.pod] = told(7, 2);
        w.ends(&c, End::Fin);
        assert!(World::to_client(&w.run_ms(900)).is_empty(), "watched");
        w.assert_state(&c, "OwnerFinPending");
        if goes {
            w.stops(c.pod);
            let sent = w.run_ms(10);
            w.rescued(&mut c, &sent);
            assert_eq!(Lost::ALL.iter().map(|l| w.engine.lost(*l)).sum::<u64>(), 0);
        } else {
            // A configuration was loaded anew: old workers leave, the server stays.
            assert_eq!(ends_of(&w.run_ms(200), End::Fin), 1);
        }
    }
}

/// One of several processes went, with its listener or with a share in all, or another joined: who
/// ends a flow without a listener of its own has let go of it, also where the others stay.
#[test]
fn where_the_listeners_of_a_group_change_who_ends_without_one_goes() {
    for now in [group(40, 3), group(33, 3), group(41, 4), told(7, 1)] {
        let changes = now.listener.map(|l| l.id) != Some(40);
        let (mut w, mut c) = telling_of(group(40, 4)).at_rest();
        let at = c.pod;
        w.told[at] = now;
        let mut sent = w.ends(&c, End::Fin);
        sent.extend(w.run_ms(1));
        if changes {
            w.rescued(&mut c, &sent);
        } else {
            sent.extend(w.run_ms(899));
            assert!(World::to_client(&sent).is_empty(), "{now:?}");
            assert_eq!(ends_of(&w.run_ms(200), End::Fin), 1, "{now:?}");
        }
        assert_eq!(w.count(Counter::BackendsRestarted), 0);
    }
}

/// What that costs where a process without listener means to close, the child of one: within a
/// second the client is not told.
#[test]
fn a_close_is_told_again_a_second_after_the_listeners_of_a_group_changed() {
    for (later_ms, told) in [(990, false), (1_010, true)] {
        let mut w = telling_of(group(40, 4));
        let (at, flows) = at_one_pod(&mut w, 2);
        w.told[at] = group(33, 3);
        // An end makes the pod be asked at once.
        w.ends_listening(&flows[0], End::Fin);
        assert_eq!(ends_of(&w.poll(), End::Fin), 1);
        w.run_ms(later_ms);
        let mut sent = w.ends(&flows[1], End::Fin);
        sent.extend(w.run_ms(1_010));
        assert_eq!(World::to_client(&sent).len(), usize::from(told), "{later_ms}");
    }
}

/// A probe between the two: what it told is remembered for long enough.
#[test]
fn a_probe_just_before_the_end_hides_nothing() {
    let (mut w, mut c) = telling().at_rest();
    w.told.fill(told(7, 2));
    let probes = w.count(Counter::ProbesReady);
    while w.count(Counter::ProbesReady) < probes + 2 {
        w.run_us(100);
    }
    w.ends(&c, End::Fin);
    assert!(World::to_client(&w.run_ms(20)).is_empty());
    w.stops(c.pod);
    let sent = w.run_ms(10);
    w.rescued(&mut c, &sent);
}

#[test]
fn where_nobody_listens_any_more_the_flow_is_rescued_at_once() {
    let (mut w, mut c) = telling().at_rest();
    w.stops(c.pod);
    let mut sent = w.ends(&c, End::Fin);
    sent.extend(w.run_ms(1));
    w.rescued(&mut c, &sent);
    w.exchange_anywhere(&mut c);
}

/// The next process listens by then: each end is rescued, as often as it takes.
#[test]
fn where_another_process_listens_the_flow_is_rescued() {
    let (mut w, mut c) = telling().at_rest();
    // A flow of the same millisecond would be taken for the new one's.
    w.run_ms(1);
    for id in 8..12 {
        let at = c.pod;
        w.told[at] = told(id, 3);
        let mut sent = w.ends(&c, End::Fin);
        // The pod is still being watched for its last end.
        sent.extend(w.run_ms(6));
        w.rescued(&mut c, &sent);
        assert_ne!(c.pod, at);
        w.run_ms(100);
    }
    assert_eq!(w.count(Counter::BackendsRestarted), 4);
    assert_eq!(w.count(Counter::Rescues), 4);
    // It stays, and what it ends then it meant.
    w.run_ms(1_100);
    assert!(w.ends(&c, End::Fin).is_empty());
    assert_eq!(ends_of(&w.run_ms(1), End::Fin), 1);
}

/// A pod without the newest key, or whose adopter is gone, is asked with a SYN. Who is not told of
/// the listener any more waits as long as a server takes to go.
#[test]
fn a_question_that_no_adopter_answers_goes_to_the_kernel() {
    for bare_reset in [false, true] {
        let (mut w, c) = telling().at_rest();
        w.adopters[c.pod] = None;
        let mut sent = w.ends(&c, End::Fin);
        assert!(w.asked.is_empty());
        if bare_reset {
            let probe = w.last_probe.clone().expect("the question");
            sent.extend(w.inject(&w.reset_of(&probe).build()));
        } else {
            assert!(w.run_ms(59).is_empty());
            sent.extend(w.run_ms(1));
        }
        assert_eq!(w.asked, [c.pod], "with a SYN");
        sent.extend(w.run_ms(900));
        assert!(World::to_client(&sent).is_empty(), "watched");
        assert_eq!(ends_of(&w.run_ms(200), End::Fin), 1);
    }
}

/// Only the adopter's word makes an end stand at once, so that it is asked for once more.
#[test]
fn a_lost_question_is_asked_again() {
    for how in End::BOTH {
        let (mut w, c) = telling().at_rest();
        w.adopters[c.pod] = None;
        w.ends(&c, how);
        assert!(World::to_client(&w.run_ms(19)).is_empty());
        w.adopters[c.pod] = Some(Reason::Ready);
        assert_eq!(ends_of(&w.run_ms(2), how), 1);
        assert_eq!(w.count(Counter::LivenessProbesSent), 2);
    }
}

/// Two were lost, and the kernel's word is watched for a second: the adopter, asked at once in ten,
/// ends that.
#[test]
fn the_adopters_word_ends_the_watch_for_which_it_was_missing() {
    let (mut w, c) = telling().at_rest();
    w.adopters[c.pod] = None;
    w.ends(&c, End::Fin);
    assert!(World::to_client(&w.run_ms(61)).is_empty());
    assert_eq!(w.asked, [c.pod], "with a SYN");
    w.adopters[c.pod] = Some(Reason::Ready);
    assert_eq!(ends_of(&w.run_ms(110), End::Fin), 1);
}

/// What is in the way of an adoption says nothing of who closed.
#[test]
fn an_end_stands_where_nothing_can_be_adopted() {
    for reason in [Reason::AcceptQueueFull, Reason::SyncookiesOff, Reason::KernelRefused] {
        for how in End::BOTH {
            let (mut w, c) = telling().at_rest();
            w.adopters[c.pod] = Some(reason);
            let mut sent = w.ends(&c, how);
            sent.extend(w.poll());
            assert_eq!(ends_of(&sent, how), 1, "{reason:?}");
        }
    }
}

/// Nor is a server that shuts down believed then.
#[test]
fn who_lets_go_of_a_listener_with_a_full_accept_queue_is_watched() {
    let (mut w, mut c) = telling().at_rest();
    w.adopters[c.pod] = Some(Reason::AcceptQueueFull);
    w.told[c.pod] = told(7, 2);
    let mut sent = w.ends(&c, End::Fin);
    sent.extend(w.run_ms(40));
    assert!(World::to_client(&sent).is_empty(), "watched");
    w.stops(c.pod);
    let sent = w.run_ms(10);
    w.rescued(&mut c, &sent);
}

/// Its listener is watched for as long as it may take to shut down.
#[test]
fn an_older_adopter_with_a_full_accept_queue_tells_nothing() {
    let (mut w, c) = telling().at_rest();
    w.adopters[c.pod] = Some(Reason::AcceptQueueFull);
    w.told[c.pod] = ListenerReport::default();
    let mut sent = w.ends(&c, End::Fin);
    sent.extend(w.run_ms(900));
    assert!(World::to_client(&sent).is_empty());
    assert_eq!(ends_of(&w.run_ms(200), End::Fin), 1);
}

/// Anybody in the pod's network may answer; only the adopter's word counts.
#[test]
fn forged_answers_to_a_question_are_fenced() {
    let (mut w, c) = telling().at_rest();
    w.adopters[c.pod] = None;
    w.ends(&c, End::Fin);
    let probe = w.last_probe.clone().expect("the question");
    let fenced = w.count(Counter::Fenced);
    let field = told(7, 3).field();
    let key = AdoptionKey::from_bytes([1; 16]);
    let forged = answer_with(&probe, Reason::Ready, field, EPOCH, &key);
    assert!(w.inject(&forged).is_empty());
    // The answer to another question.
    let mut other = probe.clone();
    other.segment.seq = other.segment.seq.add(1);
    assert!(w.inject(&answer(&other, Reason::Ready, field)).is_empty());
    assert_eq!(w.count(Counter::Fenced), fenced + 2);
    w.assert_state(&c, "OwnerFinPending");
    assert!(World::to_client(&w.poll()).is_empty());
}

/// nginx listens, then forks: a count from in between would be met again when the first worker lets
/// go.
#[test]
fn the_holders_of_a_new_listener_are_not_counted_yet() {
    let mut w = World::new(2);
    w.told.fill(told(7, 1));
    w.run_ms(1_100);
    w.told.fill(told(8, 1));
    w.run_ms(1_100);
    let mut c = w.idle(1);
    w.told[c.pod] = told(8, 2);
    w.ends(&c, End::Fin);
    assert!(World::to_client(&w.run_ms(40)).is_empty(), "watched");
    w.stops(c.pod);
    let sent = w.run_ms(10);
    w.rescued(&mut c, &sent);
}

/// A FIN behind data that the client took late comes when another process has listened for long. It
/// has no mark.
#[test]
fn the_late_end_of_a_process_that_was_replaced_is_no_close() {
    let mut w = telling();
    let (at, mut flows) = at_one_pod(&mut w, 2);
    w.told[at] = told(8, 3);
    w.run_ms(1_100);
    for c in &mut flows[..2] {
        let mut sent = w.ends(c, End::Fin);
        assert!(World::to_client(&sent).is_empty());
        sent.extend(w.run_ms(1));
        w.rescued(c, &sent);
    }
    // What the next process has accepted is its own to close.
    let mut next = w.idle(500);
    for n in 501..520 {
        if next.pod == at {
            break;
        }
        next = w.idle(n);
    }
    assert_eq!(next.pod, at);
    w.run_ms(2_200);
    w.ends(&next, End::Fin);
    assert_eq!(ends_of(&w.run_ms(1), End::Fin), 1);
}

/// What the pod may be about to do does not matter where the process that closed goes on: one that
/// shuts down lets go of its listener first.
#[test]
fn an_end_by_a_process_that_listens_is_one_round_trip_late_whatever_the_pod_has_lost() {
    type Pod = fn(&mut World, usize);
    let pods: [(&str, Pod); 5] = [
        ("as ever", |_, _| ()),
        ("one let go", |w, at| w.told[at] = told(7, 2)),
        ("one exited", |w, at| {
            let other = (2..50).map(|n| w.idle(n)).find(|c| c.pod == at);
            let frame = w.marked_end(&other.expect("one there"), End::Fin, EndMark::Exiting);
            w.inject(&frame);
        }),
        ("being watched", |w, at| {
            let other = (2..50).map(|n| w.idle(n)).find(|c| c.pod == at);
            w.told[at] = told(7, 2);
            w.ends(&other.expect("one there"), End::Fin);
            let sent = w.run_ms(42);
            assert!(World::to_client(&sent).is_empty(), "watched");
        }),
        ("nothing is told", |w, at| {
            w.told[at] = ListenerReport::default();
        }),
    ];
    for (what, pod) in pods {
        for how in End::BOTH {
            let (mut w, c) = telling().at_rest();
            pod(&mut w, c.pod);
            let mut sent = w.ends_listening(&c, how);
            sent.extend(w.poll());
            assert_eq!(ends_of(&sent, how), 1, "{what}");
            assert_eq!(w.count(Counter::OwnersListening), 1);
            let l4 = usize::from(World::to_client(&sent)[0].segment.l4);
            assert_eq!(World::to_client(&sent)[0].frame[l4 + 18..l4 + 20], [0, 0], "no mark");
        }
    }
}

/// A server that began this moment closes what it means to.
#[test]
fn an_end_by_a_process_that_listens_needs_no_past() {
    for known in [ListenerReport::default(), told(7, 1)] {
        let mut w = World::new(2);
        w.told.fill(known);
        w.run_ms(20);
        let c = w.idle(1);
        let mut sent = w.ends_listening(&c, End::Fin);
        sent.extend(w.poll());
        assert_eq!(ends_of(&sent, End::Fin), 1);
    }
}

/// Connections that time out together, at a pod whose adopter tells nothing, are no death either.
#[test]
fn many_ends_by_a_process_that_listens_stand() {
    let mut w = telling_of(ListenerReport::default());
    let (_, flows) = at_one_pod(&mut w, 8);
    let mut sent = Vec::new();
    for c in &flows {
        sent.extend(w.ends_listening(c, End::Fin));
    }
    sent.extend(w.run_ms(1));
    assert_eq!(ends_of(&sent, End::Fin), flows.len());
}

/// Some servers close their connections first, and their listener right behind.
#[test]
fn a_process_that_listened_a_round_trip_ago_is_gone_all_the_same() {
    let (mut w, mut c) = telling().at_rest();
    w.stops(c.pod);
    let mut sent = w.ends_listening(&c, End::Fin);
    sent.extend(w.run_ms(1));
    w.rescued(&mut c, &sent);
}
