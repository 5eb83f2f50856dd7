//! RESP sessions go with the flow: `AUTH` and `SELECT` in front of the request, their replies
//! absorbed, and no command ever in another session than its client's.

use crate::common::{Conn, Dest, End, Sent, World, answer, conn::*, policy, settings};
use baton_api::{BackendFailure, MigrationMode, Protocol};
use baton_engine::{Counter, Lost, PinReason};
use baton_guard::Pin;
use baton_packet::{Flags, Reason};
use std::net::SocketAddr;

const AUTH: &[u8] = b"*3\r\n$4\r\nAUTH\r\n$2\r\nme\r\n$6\r\nsecret\r\n";
const INCR: &[u8] = b"*2\r\n$4\r\nINCR\r\n$1\r\na\r\n";
const READ: &[u8] = b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n";
const PONG: &[u8] = b"+PONG\r\n";

fn world(mode: MigrationMode) -> World {
    world_with_room(mode, settings().limits.resp_sessions)
}

/// With room for so many sessions.
fn world_with_room(mode: MigrationMode, sessions: u32) -> World {
    let mut s = settings();
    s.limits.resp_sessions = sessions;
    let mut p = policy(3);
    p.protocol = Protocol::Resp;
    p.migration.mode = mode;
    World::with(s, p)
}

/// A command that stays, and its reply.
fn command(w: &mut World, c: &mut Conn, bytes: &[u8], reply: &[u8]) {
    w.stays(c, bytes);
    w.answers(c, reply);
}

/// A flow whose session is made by these commands, all answered with OK. It stays where it is while
/// it is made.
fn with_session(w: &mut World, n: u16, commands: &[&[u8]]) -> Conn {
    let mut c = w.open(n);
    let free = std::mem::replace(&mut w.out.free, 0);
    for bytes in commands {
        command(w, &mut c, bytes, PLUS_OK);
    }
    w.out.free = free;
    w.assert_state(&c, "Idle");
    c
}

/// An adoption that restores a session: checks adoption and prelude, and that nothing else left for
/// the new pod.
struct Restoring {
    adoption: Sent,
    /// What the new pod expects and is expected to send first.
    client: u32,
    server: u32,
}

fn restores(
    w: &World,
    c: &mut Conn,
    boundary: u32,
    sent: &[Sent],
    commands: &[&[u8]],
) -> Restoring {
    let at = sent.iter().position(Sent::is_adoption).expect("an adoption");
    let prelude = commands.concat();
    let client = boundary.wrapping_sub(prelude.len() as u32);
    let server = c.server.wrapping_sub(5 * commands.len() as u32);
    let (adoption, behind) = (&sent[at], &sent[at + 1..]);
    assert_eq!(adoption.segment.seq.0, client, "earlier by the prelude");
    assert_eq!(adoption.segment.ack.0, server, "earlier by its replies");
    take_leg(c, adoption);
    let mine: Vec<_> = behind.iter().filter(|s| s.to == adoption.to).collect();
    assert_eq!(mine.len(), 1, "the request waits: {sent:?}");
    assert_eq!(mine[0].data(), prelude);
    assert_eq!((mine[0].segment.seq.0, mine[0].segment.ack.0), (client, server));
    assert_eq!(mine[0].segment.src_port, c.leg.port());
    w.assert_state(c, w.state(c).as_deref().expect("a flow"));
    Restoring { adoption: adoption.clone(), client, server }
}

/// A segment of the new pod's from offset `at` of the replies on.
fn reply(w: &mut World, c: &Conn, r: &Restoring, acked: u32, at: u32, bytes: &[u8]) -> Vec<Sent> {
    let mut wire = w.pod_wire(c, PSH_ACK, bytes);
    wire.seq = r.server.wrapping_add(at);
    wire.ack = acked;
    w.inject(&wire.build())
}

/// What leaves once the session is restored: the request, if there is one, and an ACK of the
/// replies.
fn restored(c: &Conn, sent: &[Sent], request: &[u8]) {
    assert!(sent.iter().all(|s| s.to == Dest::Pod(c.pod)), "nothing to the client: {sent:?}");
    let bytes: Vec<u8> = sent.iter().flat_map(|s| s.data().to_vec()).collect();
    assert_eq!(bytes, request);
    assert!(sent.iter().any(|s| s.segment.ack.0 == c.server), "acknowledged");
}

#[test]
fn a_session_goes_in_front_of_the_request_and_its_replies_are_absorbed() {
    for commands in [&[AUTH][..], &[SELECT], &[AUTH, SELECT]] {
        for (split, collapsed) in [(false, false), (true, false), (true, true)] {
            let mut w = world(MigrationMode::Always);
            let mut c = with_session(&mut w, 1, commands);
            let old = c.clone();
            let boundary = c.seq;
            let sent = w.data(&mut c, INCR);
            let r = restores(&w, &mut c, boundary, &sent, commands);
            w.assert_state(&c, "Adopting");
            let replies = PLUS_OK.repeat(commands.len());
            let sent = if split && commands.len() == 2 {
                assert!(reply(&mut w, &c, &r, boundary, 0, PLUS_OK).is_empty());
                w.assert_state(&c, "Adopting");
                // Repeated, as after a loss.
                assert!(reply(&mut w, &c, &r, boundary, 0, PLUS_OK).is_empty());
                // Its kernel repeats both in one (Linux `tcp_retrans_try_collapse`).
                let again = if collapsed { 0 } else { 5 };
                reply(&mut w, &c, &r, boundary, again, &replies[again as usize..])
            } else {
                reply(&mut w, &c, &r, boundary, 0, &replies)
            };
            restored(&c, &sent, INCR);
            w.assert_state(&c, "Request");
            w.answers(&mut c, b":1\r\n");
            w.assert_state(&c, "Idle");
            assert_eq!(w.count(Counter::SessionsRestored), 1);
            assert_eq!(w.count(Counter::MigrationsConfirmed), 1);
            // The old leg is closed where it was left, and the session goes on with the next move.
            let fin = one(w.run_ms(10));
            assert_eq!((fin.to, fin.segment.seq.0), (Dest::Pod(old.pod), old.seq));
            let boundary = c.seq;
            let sent = w.data(&mut c, PING);
            let r = restores(&w, &mut c, boundary, &sent, commands);
            let sent = reply(&mut w, &c, &r, boundary, 0, &replies);
            restored(&c, &sent, PING);
            w.responds(&mut c, PONG);
        }
    }
}

/// No frame is free for the request when its session is restored, and the client may have heard
/// from an earlier pod that it arrived: it is owed.
#[test]
fn a_request_for_which_no_frame_is_free_follows_later() {
    let mut w = world(MigrationMode::Always);
    let mut c = with_session(&mut w, 1, &[SELECT]);
    let boundary = c.seq;
    let sent = w.data(&mut c, INCR);
    let r = restores(&w, &mut c, boundary, &sent, &[SELECT]);
    w.out.free = 0;
    assert!(reply(&mut w, &c, &r, boundary, 0, PLUS_OK).is_empty());
    w.assert_state(&c, "Request");
    assert!(w.run_ms(20).is_empty());
    w.out.free = usize::MAX;
    let sent = w.run_ms(5);
    let owed: Vec<&Sent> = sent.iter().filter(|s| !s.data().is_empty()).collect();
    assert_eq!(owed.len(), 1, "{owed:?}");
    assert_eq!((owed[0].to, owed[0].data()), (Dest::Pod(c.pod), INCR));
    w.answers(&mut c, b":1\r\n");
}

/// The acknowledgement of the replies was lost, so the new pod says them again: the client has
/// nothing to do with them, and the pod gets the ACK that it waits for.
#[test]
fn replies_that_come_again_are_acknowledged_and_reach_no_client() {
    let mut w = world(MigrationMode::Always);
    let mut c = with_session(&mut w, 1, &[AUTH]);
    let boundary = c.seq;
    let sent = w.data(&mut c, INCR);
    let r = restores(&w, &mut c, boundary, &sent, &[AUTH]);
    restored(&c, &reply(&mut w, &c, &r, boundary, 0, PLUS_OK), INCR);
    let mut again = w.pod_wire(&c, PSH_ACK, PLUS_OK);
    (again.seq, again.ack) = (r.server, boundary);
    let ack = one(w.inject(&again.build()));
    assert_eq!(ack.to, Dest::Pod(c.pod));
    assert!(ack.data().is_empty());
    assert_eq!(ack.segment.ack.0, c.server, "which tells the pod");
    assert_eq!(w.count(Counter::FencedData), 1);
    w.assert_state(&c, "Request");
    w.answers(&mut c, b":1\r\n");
    w.assert_state(&c, "Idle");
}

#[test]
fn a_plain_flow_needs_no_prelude() {
    let (mut w, mut c) = world(MigrationMode::Always).opened();
    command(&mut w, &mut c, PING, PONG);
    w.moves(&mut c, INCR);
    w.responds(&mut c, b":1\r\n");
    assert_eq!(w.count(Counter::SessionsRestored), 0);
    assert_eq!(w.table("guarded_flows").0, 1, "until the answer is acknowledged");
    w.ack(&mut c);
    assert_eq!(w.table("guarded_flows").0, 0);
}

#[test]
fn a_refused_session_gives_the_request_back_and_pins() {
    for wrong in
        [&b"-WRONGPASS invalid\r\n"[..], b"+OK\r\n-ERR\r\n", b"+OK\r\n+OK\r\n+OK\r\n", b"$"]
    {
        let mut w = world(MigrationMode::Always);
        let mut c = with_session(&mut w, 1, &[AUTH, SELECT]);
        let old = c.clone();
        let sent = w.data(&mut c, INCR);
        let r = restores(&w, &mut c, old.seq, &sent, &[AUTH, SELECT]);
        let sent = reply(&mut w, &c, &r, old.seq, 0, wrong);
        assert!(World::to_client(&sent).is_empty());
        assert!(
            sent.iter().any(|s| s.to == Dest::Pod(c.pod) && s.segment.flags.has(Flags::RST)),
            "the new pod's socket is not left open: {sent:?}"
        );
        let back: Vec<_> = sent.iter().filter(|s| s.to == Dest::Pod(old.pod)).collect();
        assert_eq!(back.len(), 1);
        assert_eq!((back[0].data(), back[0].segment.src_port), (INCR, old.leg.port()));
        (c.pod, c.leg) = (old.pod, old.leg);
        assert_eq!(w.engine.pinned(PinReason::SessionRefused), 1);
        w.answers(&mut c, b":1\r\n");
        // Never again.
        command(&mut w, &mut c, PING, PONG);
        assert_eq!(w.count(Counter::MigrationsBegun), 1);
        assert_eq!(w.table("kept_segments").0, 0);
    }
}

#[test]
fn a_lost_prelude_is_sent_again_with_its_adoption() {
    let mut w = world(MigrationMode::Always);
    let mut c = with_session(&mut w, 1, &[AUTH, SELECT]);
    let boundary = c.seq;
    let sent = w.data(&mut c, INCR);
    let r = restores(&w, &mut c, boundary, &sent, &[AUTH, SELECT]);
    let again = w.run_ms(46);
    let r2 = restores(&w, &mut c, boundary, &again, &[AUTH, SELECT]);
    assert_eq!((r.client, r.server), (r2.client, r2.server));
    // The pod had the adoption and not the prelude: its bare ACK is no confirmation.
    let sent = reply(&mut w, &c, &r, r.client, 0, b"");
    assert!(sent.is_empty(), "{sent:?}");
    w.assert_state(&c, "Adopting");
    let sent = reply(&mut w, &c, &r, boundary, 0, b"+OK\r\n+OK\r\n");
    restored(&c, &sent, INCR);
}

#[test]
fn what_the_client_repeats_waits_for_the_session_too() {
    let mut w = world(MigrationMode::Always);
    let mut c = with_session(&mut w, 1, &[AUTH]);
    let boundary = c.seq;
    let sent = w.data(&mut c, INCR);
    let r = restores(&w, &mut c, boundary, &sent, &[AUTH]);
    let mut again = w.client_wire(&c, PSH_ACK, INCR);
    again.seq = boundary;
    assert!(w.inject(&again.build()).is_empty(), "no command before its session");
    // More of the same command, and the client's FIN.
    let sent = w.inject(&w.client_wire(&c, FIN_ACK, &[]).build());
    assert!(sent.is_empty(), "{sent:?}");
    c.seq = c.seq.wrapping_add(1);
    let sent = reply(&mut w, &c, &r, boundary, 0, PLUS_OK);
    restored(&c, &sent, INCR);
    w.assert_state(&c, "ClientFin");
    w.responds(&mut c, b":1\r\n");
    w.pod_fin(&mut c);
}

#[test]
fn a_session_is_rescued() {
    let mut w = world(MigrationMode::Never);
    let mut c = with_session(&mut w, 1, &[AUTH, SELECT]);
    let sent = w.dies(c.pod, End::Fin, &[c.clone()]);
    let boundary = c.seq;
    let r = restores(&w, &mut c, boundary, &sent, &[AUTH, SELECT]);
    w.assert_state(&c, "AdoptingIdle");
    let sent = reply(&mut w, &c, &r, boundary, 0, b"+OK\r\n+OK\r\n");
    restored(&c, &sent, b"");
    w.assert_state(&c, "Idle");
    command(&mut w, &mut c, PING, PONG);
    assert_eq!(w.count(Counter::Rescues), 1);
}

/// The pod before acknowledged the command to the client, which will not repeat it: Baton has to.
#[test]
fn a_command_that_gets_lost_behind_the_session_goes_again() {
    let mut w = world(MigrationMode::Never);
    let mut c = with_session(&mut w, 1, &[AUTH]);
    let boundary = c.seq;
    w.stays(&mut c, READ);
    let ack = w.pod_wire(&c, Flags::ACK, &[]);
    w.forwarded_to_client(&c, &ack);
    let sent = w.dies(c.pod, End::Rst, &[c.clone()]);
    let r = restores(&w, &mut c, boundary, &sent, &[AUTH]);
    let sent = reply(&mut w, &c, &r, boundary, 0, PLUS_OK);
    restored(&c, &sent, READ);
    let copies = |sent: Vec<Sent>| sent.iter().filter(|s| s.data() == READ).count();
    for _ in 0..3 {
        assert!(copies(w.run_ms(3_000)) > 0);
    }
    let ack = w.pod_wire(&c, Flags::ACK, &[]);
    w.forwarded_to_client(&c, &ack);
    assert_eq!(copies(w.run_ms(5_000)), 0);
    w.responds(&mut c, b"$-1\r\n");
    w.ack(&mut c);
    w.assert_state(&c, "Idle");
}

/// Of two that were sent together, the second one: whoever answers the first without it, and
/// whether the client closes its direction, changes nothing of that.
#[test]
fn a_command_that_gets_lost_behind_the_session_and_an_answered_one_goes_again() {
    for (answered, closes) in [(true, false), (true, true), (false, true)] {
        let mut w = world(MigrationMode::Never);
        let mut c = with_session(&mut w, 1, &[AUTH]);
        let boundary = c.seq;
        w.stays(&mut c, READ);
        // A copy of its own.
        let long = format!("*2\r\n$3\r\nGET\r\n$600\r\n{}\r\n", "a".repeat(600));
        w.data(&mut c, long.as_bytes());
        w.pod_ack(&c);
        let sent = w.dies(c.pod, End::Rst, &[c.clone()]);
        let r = restores(&w, &mut c, boundary, &sent, &[AUTH]);
        let sent = reply(&mut w, &c, &r, boundary, 0, PLUS_OK);
        restored(&c, &sent, &[READ, long.as_bytes()].concat());
        if answered {
            let mut wire = w.pod_wire(&c, PSH_ACK, b"$-1\r\n");
            wire.ack = boundary.wrapping_add(READ.len() as u32);
            c.server_sent(PSH_ACK, b"$-1\r\n");
            w.inject(&wire.build());
        }
        if closes {
            w.client_sends(&mut c, FIN_ACK, &[]);
        }
        let copies = |sent: Vec<Sent>| {
            let is = |s: &&Sent| s.data() == long.as_bytes();
            sent.iter().filter(is).count()
        };
        for _ in 0..3 {
            assert!(copies(w.run_ms(3_000)) > 0, "{answered} {closes}");
        }
        let mut ack = w.pod_wire(&c, Flags::ACK, &[]);
        ack.ack = boundary.wrapping_add((READ.len() + long.len()) as u32);
        w.inject(&ack.build());
        assert_eq!(copies(w.run_ms(5_000)), 0);
    }
}

/// Its bytes would be at the place of those that restore the session, which may be lost on the way.
#[test]
fn a_late_copy_of_a_command_does_not_reach_who_restores_the_session() {
    let mut w = world(MigrationMode::Never);
    let mut c = with_session(&mut w, 1, &[AUTH]);
    command(&mut w, &mut c, PING, PONG);
    let mut copy = w.client_wire(&c, PSH_ACK, PING);
    copy.seq = c.seq.wrapping_sub(PING.len() as u32);
    let sent = w.dies(c.pod, End::Fin, &[c.clone()]);
    let boundary = c.seq;
    let r = restores(&w, &mut c, boundary, &sent, &[AUTH]);
    w.assert_state(&c, "AdoptingIdle");
    assert!(w.inject(&copy.build()).is_empty());
    let sent = reply(&mut w, &c, &r, boundary, 0, PLUS_OK);
    restored(&c, &sent, b"");
    // Then it is the pod's to judge, which has all of it.
    assert_eq!(one(w.inject(&copy.build())).to, Dest::Pod(c.pod));
    command(&mut w, &mut c, PING, PONG);
}

#[test]
fn a_command_that_comes_while_the_session_is_rescued_waits_for_it() {
    let mut w = world(MigrationMode::Never);
    let mut c = with_session(&mut w, 1, &[AUTH]);
    let sent = w.dies(c.pod, End::Rst, &[c.clone()]);
    let boundary = c.seq;
    let r = restores(&w, &mut c, boundary, &sent, &[AUTH]);
    assert!(w.data(&mut c, INCR).is_empty());
    w.assert_state(&c, "Adopting");
    let sent = reply(&mut w, &c, &r, boundary, 0, PLUS_OK);
    restored(&c, &sent, INCR);
    w.answers(&mut c, b":1\r\n");
    w.assert_state(&c, "Idle");
}

/// Found by the simulation (seed 98084459404309): the retry went without the session, so that the
/// command could run in another.
#[test]
fn a_command_that_pins_while_the_session_is_rescued_does_not_take_it_away() {
    const SUBSCRIBE: &[u8] = b"*2\r\n$9\r\nSUBSCRIBE\r\n$1\r\na\r\n";
    let mut w = world(MigrationMode::Never);
    let mut c = with_session(&mut w, 1, &[AUTH]);
    let sent = w.dies(c.pod, End::Rst, &[c.clone()]);
    let boundary = c.seq;
    restores(&w, &mut c, boundary, &sent, &[AUTH]);
    assert!(w.data(&mut c, SUBSCRIBE).is_empty());
    // The adoption got lost.
    let sent = w.until_adoption(200);
    let r = restores(&w, &mut c, boundary, &sent, &[AUTH]);
    let sent = reply(&mut w, &c, &r, boundary, 0, PLUS_OK);
    restored(&c, &sent, b"");
    // No copy is kept of what pins: the client sends it again.
    let mut again = w.client_wire(&c, PSH_ACK, SUBSCRIBE);
    again.seq = boundary;
    let sent = w.inject(&again.build());
    assert!(sent.iter().any(|s| s.to == Dest::Pod(c.pod) && s.data() == SUBSCRIBE), "{sent:?}");
}

#[test]
fn a_session_that_the_rescuer_refuses_is_lost_and_counted() {
    for with_command in [false, true] {
        let mut w = world(MigrationMode::Never);
        let mut c = with_session(&mut w, 1, &[AUTH]);
        let sent = w.dies(c.pod, End::Fin, &[c.clone()]);
        let boundary = c.seq;
        let r = restores(&w, &mut c, boundary, &sent, &[AUTH]);
        if with_command {
            w.data(&mut c, INCR);
        }
        let sent = reply(&mut w, &c, &r, boundary, 0, b"-WRONGPASS\r\n");
        let told = one(World::to_client(&sent).into_iter().cloned().collect());
        assert!(told.is(RST_ACK));
        assert_eq!(w.state(&c), None);
        assert_eq!(w.engine.lost(Lost::Pinned), 1);
        assert_eq!(w.engine.pinned(PinReason::SessionRefused), 1);
        assert_eq!(w.count(Counter::UnexpectedEvents), 0);
        assert!(sent.iter().any(|s| s.to == Dest::Pod(c.pod)), "the new pod is told");
    }
}

#[test]
fn an_adoption_with_a_session_that_is_refused_rolls_back_without_a_pin() {
    let mut w = world(MigrationMode::Always);
    let mut c = with_session(&mut w, 1, &[SELECT]);
    let old = c.clone();
    let sent = w.data(&mut c, INCR);
    let r = restores(&w, &mut c, old.seq, &sent, &[SELECT]);
    let back = one(w.inject(&answer(&r.adoption, Reason::AcceptQueueFull, 0)));
    assert_eq!((back.to, back.data()), (Dest::Pod(old.pod), INCR));
    (c.pod, c.leg) = (old.pod, old.leg);
    w.answers(&mut c, b":1\r\n");
    let boundary = c.seq;
    let sent = w.data(&mut c, PING);
    restores(&w, &mut c, boundary, &sent, &[SELECT]);
}

#[test]
fn silence_while_a_session_is_restored_puts_no_command_at_stake() {
    // Even with a command that is not idempotent: nobody can have executed it.
    let mut w = world(MigrationMode::Always);
    let mut c = with_session(&mut w, 1, &[SELECT]);
    let old = c.clone();
    let sent = w.data(&mut c, INCR);
    restores(&w, &mut c, old.seq, &sent, &[SELECT]);
    let sent = w.run_ms(2_900);
    assert!(World::to_client(&sent).is_empty());
    assert!(sent.iter().any(|s| s.to == Dest::Pod(old.pod) && s.data() == INCR));
    assert_eq!(w.count(Counter::FateReset), 0);
}

#[test]
fn a_transaction_holds_its_flow_and_watch_does_too() {
    let begin = b"*1\r\n$5\r\nMULTI\r\n";
    let watch = b"*2\r\n$5\r\nWATCH\r\n$1\r\na\r\n";
    let exec = b"*1\r\n$4\r\nEXEC\r\n";
    let unwatch = b"*1\r\n$7\r\nUNWATCH\r\n";
    for (first, last, last_reply) in
        [(&begin[..], &exec[..], &b"*1\r\n:1\r\n"[..]), (&watch[..], &unwatch[..], PLUS_OK)]
    {
        let (mut w, mut c) = world(MigrationMode::Always).opened();
        command(&mut w, &mut c, first, PLUS_OK);
        let reply: &[u8] = if first == begin { b"+QUEUED\r\n" } else { b":1\r\n" };
        for _ in 0..3 {
            command(&mut w, &mut c, INCR, reply);
            w.assert_state(&c, "Idle");
        }
        assert_eq!(w.count(Counter::MigrationsBegun), 0);
        // Drained, it waits for its end.
        w.engine.drain(w.now, None, &format!("pod-{}", c.pod), true);
        assert!(w.run_ms(300).is_empty());
        let state = w.engine.state(w.now);
        let drain = state.policies[0].backends[c.pod].drain.clone().expect("a drain");
        assert_eq!(drain.waiting, [("state of its own there".to_owned(), 1)].into());
        command(&mut w, &mut c, last, last_reply);
        w.moves(&mut c, PING);
        w.responds(&mut c, PONG);
    }
}

#[test]
fn a_transaction_dies_with_its_pod() {
    for leaving in [false, true] {
        let (mut w, mut c) = world(MigrationMode::Never).opened();
        command(&mut w, &mut c, b"*1\r\n$5\r\nMULTI\r\n", PLUS_OK);
        if leaving {
            w.engine.drain(w.now, None, &format!("pod-{}", c.pod), true);
        }
        w.pod_fin(&mut c);
        assert_eq!(w.engine.lost(Lost::Pinned), u64::from(leaving));
    }
}

#[test]
fn reading_commands_are_replayed_and_writing_ones_are_not() {
    for (bytes, failure, again) in [
        (READ, BackendFailure::ReplayIdempotent, true),
        (INCR, BackendFailure::ReplayIdempotent, false),
        (INCR, BackendFailure::Replay, true),
    ] {
        let mut p = policy(2);
        p.protocol = Protocol::Resp;
        p.on_backend_failure = failure;
        p.migration.mode = MigrationMode::Never;
        let (mut w, mut c) = World::with(settings(), p).opened();
        command(&mut w, &mut c, PING, PONG);
        let boundary = c.seq;
        w.stays(&mut c, bytes);
        let sent = w.dies(c.pod, End::Rst, &[c.clone()]);
        if again {
            let behind = w.adopted_from(&mut c, &sent, boundary);
            assert_eq!(one(behind).data(), bytes);
            w.responds(&mut c, b":1\r\n");
        } else {
            assert_eq!(World::to_client(&sent).len(), 1);
            assert_eq!(w.engine.lost(Lost::FateUnknown), 1);
        }
    }
}

#[test]
fn what_cannot_be_restored_pins() {
    for (bytes, pin) in [
        (&b"*2\r\n$9\r\nSUBSCRIBE\r\n$1\r\na\r\n"[..], Pin::Subscribe),
        (b"*1\r\n$7\r\nMONITOR\r\n", Pin::Monitor),
        (b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n", Pin::Hello),
        (b"*3\r\n$6\r\nCLIENT\r\n$8\r\nTRACKING\r\n$2\r\nON\r\n", Pin::ClientState),
        (b"*2\r\n$6\r\nSELECT\r\n$6\r\n123456\r\n", Pin::Session),
    ] {
        let (mut w, mut c) = world(MigrationMode::Always).opened();
        command(&mut w, &mut c, PING, PONG);
        w.data(&mut c, bytes);
        assert_eq!(w.engine.pinned(PinReason::Guard(pin)), 1, "{pin:?}");
        assert_eq!(w.count(Counter::MigrationsBegun), 0, "{pin:?}");
    }
}

#[test]
fn without_room_to_remember_a_session_a_flow_is_pinned_and_served() {
    let mut w = world_with_room(MigrationMode::Always, 1);
    let mut flows: Vec<Conn> = (0..3).map(|n| w.open(n)).collect();
    let exchange = |w: &mut World, c: &mut Conn, command: &[u8]| {
        w.stays(c, command);
        w.answers(c, b"+OK\r\n");
    };
    exchange(&mut w, &mut flows[0], AUTH);
    assert_eq!(w.table("resp_sessions"), (1, 1));
    exchange(&mut w, &mut flows[1], AUTH);
    assert_eq!(w.engine.pinned(PinReason::Guard(Pin::SessionsFull)), 1);
    assert_eq!((w.pins(), w.table("resp_sessions")), (1, (1, 1)));
    // What needs no session moves as ever.
    exchange(&mut w, &mut flows[2], b"SET a 1\r\n");
    w.moves(&mut flows[2], b"GET a\r\n");
    // The room is free again once its flow ends.
    let frame = w.client_wire(&flows[0], Flags::RST, &[]).build();
    w.inject(&frame);
    assert_eq!(w.table("resp_sessions"), (0, 1));
    assert_eq!(w.table("guarded_flows").0, 1);
}

#[test]
fn the_clients_of_one_network_have_half_of_the_room_for_sessions() {
    let mut w = world_with_room(MigrationMode::Always, 4);
    let mut login = |n: u8, network: u8| {
        let mut c = Conn::of(0, false);
        c.client = SocketAddr::from(([192, 0, 2, network], 10_000 + u16::from(n)));
        let mut c = w.open_as(c);
        w.stays(&mut c, AUTH);
        w.answers(&mut c, b"+OK\r\n");
        (w.engine.pinned(PinReason::Guard(Pin::SessionsFull)), w.table("resp_sessions").0)
    };
    let of_one: Vec<_> = (0..3).map(|n| login(n, 1)).collect();
    assert_eq!(of_one, [(0, 1), (0, 2), (1, 2)]);
    let of_another: Vec<_> = (0..3).map(|n| login(n, 2)).collect();
    assert_eq!(of_another, [(1, 3), (1, 4), (2, 4)]);
}
