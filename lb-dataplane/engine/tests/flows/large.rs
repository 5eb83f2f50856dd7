//! Requests larger than a new owner's first window: which of them move, and what of them waits
//! until the owner takes it.

mod shares;

use crate::{
    common::{Conn, Dest, End, Sent, World, answer, conn::*, policy, settings},
    drain::drain,
};
use baton_api::{BackendFailure, Micros, MigrationMode, Policy, Protocol};
use baton_engine::{Counter, Lost};
use baton_packet::{Flags, Reason};

/// Bytes of a client's segments here.
const MSS: usize = 1_400;
/// The same with jumbo frames (MTU 9,001), and the pieces in which one of these is kept.
const JUMBO: usize = 8_949;
const PIECES: u64 = 6;
/// The harness's window scale: windows are told in units of so many bytes.
const UNIT: u32 = 512;
/// Of a request that begins a hand-over so many segments go ahead.
const KEPT: usize = 8;

/// With room for so many full frames, of which kept segments are a quarter.
fn world(frames: u32, mode: MigrationMode) -> World {
    let mut s = settings();
    s.limits.kept_segments = 4 * frames;
    let mut p = policy(2);
    p.migration.mode = mode;
    World::with(s, p)
}

/// A request of `bytes` bytes behind its head, in segments.
fn segments(bytes: usize) -> Vec<Vec<u8>> {
    segments_of(bytes, MSS)
}

fn segments_of(bytes: usize, mss: usize) -> Vec<Vec<u8>> {
    let mut all = post_head(bytes);
    all.extend((0..bytes).map(|i| (i * 7 + i / 251) as u8));
    let mut segments: Vec<Vec<u8>> = vec![post_head(bytes)];
    segments.extend(all[segments[0].len()..].chunks(mss).map(<[u8]>::to_vec));
    segments
}

/// What a pod was sent on the present leg: each byte once and in order.
struct Stream {
    next: u32,
    bytes: Vec<u8>,
    fin: bool,
}

impl Stream {
    fn new(c: &Conn) -> Self {
        Self { next: c.seq, bytes: Vec::new(), fin: false }
    }

    fn take(&mut self, c: &Conn, sent: &[Sent]) {
        let leg = |s: &&Sent| s.to == Dest::Pod(c.pod) && s.segment.src_port == c.leg.port();
        for s in sent.iter().filter(leg).filter(|s| !s.is_adoption()) {
            assert!(!self.fin, "behind the FIN: {s:?}");
            assert_eq!(s.segment.seq.0, self.next, "in order, once: {s:?}");
            self.bytes.extend(s.data());
            self.next = self.next.wrapping_add(s.segment.seq_len());
            self.fin = s.segment.flags.has(Flags::FIN);
        }
    }
}

impl World {
    /// The pod acknowledges up to `ack` and offers `window` bytes; what leaves.
    fn offers(&mut self, c: &Conn, ack: u32, window: u32) -> Vec<Sent> {
        assert!(window.is_multiple_of(UNIT));
        let mut wire = self.pod_wire(c, Flags::ACK, &[]);
        wire.ack = ack;
        wire.window = (window / UNIT) as u16;
        self.inject(&wire.build())
    }

    /// A flow that moves with the first segment of `request`, since its pod drains, and of which
    /// nothing is confirmed.
    fn moving(&mut self, n: u16, request: &[u8]) -> (Conn, Stream) {
        let mut c = self.idle(n);
        drain(self, c.pod);
        let stream = Stream::new(&c);
        self.moves(&mut c, request);
        let mut stream = stream;
        stream.bytes.extend(request);
        stream.next = c.seq;
        (c, stream)
    }

    /// Sends segments of the client's, and takes what goes on to its pod.
    fn uploads(&mut self, c: &mut Conn, stream: &mut Stream, segments: &[Vec<u8>]) {
        for data in segments {
            self.run_us(10);
            let sent = self.data(c, data);
            stream.take(c, &sent);
        }
    }
}

#[test]
fn a_large_request_stays_where_moving_is_a_choice() {
    for mode in [MigrationMode::Always, MigrationMode::WhenBetter] {
        let (mut w, mut c) = world(32, mode).at_rest();
        for (n, data) in segments(100_000).iter().enumerate() {
            w.stays(&mut c, data);
            assert_eq!(w.count(Counter::StayedLarge), 1, "counted once, at {n}");
        }
        assert_eq!(w.count(Counter::MigrationsBegun), 0);
        w.served(&mut c);
        if mode == MigrationMode::Always {
            w.moves(&mut c, GET);
        }
    }
}

#[test]
fn what_fits_the_first_window_moves() {
    // 60 KiB less the segment at hand, which has at most 2 KiB.
    let fits = (60 << 10) - 2_048;
    for (bytes, moves) in [(fits, true), (fits + 1, false)] {
        let (mut w, mut c) = world(32, MigrationMode::Always).at_rest();
        match moves {
            true => drop(w.moves(&mut c, &post_head(bytes))),
            false => drop(w.stays(&mut c, &post_head(bytes))),
        }
        assert_eq!(w.count(Counter::StayedLarge), u64::from(!moves));
    }
}

#[test]
fn a_large_request_leaves_a_pod_that_drains_or_is_ejected() {
    for mode in [MigrationMode::Always, MigrationMode::WhenBetter, MigrationMode::DrainOnly] {
        let mut w = world(32, mode);
        w.moving(1, &post_head(1_000_000));
        assert_eq!(w.count(Counter::StayedLarge), 0);
    }
}

#[test]
fn commands_of_redis_and_memcached_tell_their_length_too() {
    let set: &[u8] = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1000000\r\nabc";
    let store: &[u8] = b"set k 0 0 1000000\r\nabc";
    for (protocol, small, reply, large) in [
        (Protocol::Resp, &b"*1\r\n$4\r\nPING\r\n"[..], &b"+PONG\r\n"[..], set),
        (Protocol::Memcached, b"get k\r\n", b"END\r\n", store),
    ] {
        let (mut w, mut c) = World::of(2, |p| p.protocol = protocol).opened();
        w.stays(&mut c, small);
        w.answers(&mut c, reply);
        w.stays(&mut c, large);
        assert_eq!(w.count(Counter::StayedLarge), 1, "{protocol:?}");
    }
}

/// A chunked request of so many bytes, answered, wherever it goes.
fn chunked(w: &mut World, c: &mut Conn, bytes: usize) {
    let begun = [CHUNKED, format!("{bytes:x}\r\n").as_bytes()].concat();
    let sent = w.data(c, &begun);
    take_leg(c, sent.last().expect("the request"));
    for data in vec![b'x'; bytes].chunks(MSS) {
        w.data(c, data);
    }
    w.data(c, b"\r\n0\r\n\r\n");
    w.served(c);
    w.assert_state(c, "Idle");
}

#[test]
fn of_requests_without_a_length_the_size_is_learned_and_forgotten() {
    let (mut w, mut c) = world(32, MigrationMode::Always).opened();
    chunked(&mut w, &mut c, 1_000);
    chunked(&mut w, &mut c, 1_000);
    assert_eq!(w.count(Counter::MigrationsConfirmed), 1, "nothing is known of large ones");
    let mut other = w.open(2);
    chunked(&mut w, &mut other, 200_000);
    w.stays(&mut c, CHUNKED);
    assert_eq!(w.count(Counter::StayedLarge), 1);
    w.stays(&mut c, b"0\r\n\r\n");
    w.served(&mut c);
    // One that says its length goes.
    w.exchange_anywhere(&mut c);
    assert_eq!(w.count(Counter::MigrationsConfirmed), 2);
    let mut small = 0;
    while w.count(Counter::MigrationsConfirmed) == 2 {
        chunked(&mut w, &mut c, 1_000);
        small += 1;
        assert!(small <= 16, "forgotten");
    }
    assert!(small > 4, "not at once");
    // A pod that goes away is left, whatever is known.
    chunked(&mut w, &mut other, 200_000);
    drain(&mut w, c.pod);
    w.moves(&mut c, CHUNKED);
}

#[test]
fn what_is_beyond_the_new_owners_window_waits_until_it_opens() {
    let mut w = world(256, MigrationMode::DrainOnly);
    let all = segments(100_000);
    let (mut c, mut stream) = w.moving(1, &all[0]);
    let start = c.seq;
    let (early, late) = all[1..].split_at(50);
    w.uploads(&mut c, &mut stream, early);
    assert_eq!(
        stream.next,
        start + ((KEPT - 1) * MSS) as u32,
        "the kept copies alone go ahead of the confirmation"
    );
    assert_eq!(w.count(Counter::Backlogged), 50 - (KEPT as u64 - 1));
    // Confirmed, with room for ten segments and a bit.
    let acked = stream.next;
    let sent = w.offers(&c, acked, 28 * UNIT);
    assert_eq!(sent.last().expect("the ACK").to, Dest::Client);
    stream.take(&c, &sent);
    assert_eq!(stream.next, acked + 10 * MSS as u32);
    let fresh = sent[0].stamps().expect("timestamps").0;
    assert_eq!(fresh, CLIENT_CLOCK + w.now.ms() as u32, "as the client would send it now");
    w.assert_state(&c, "Request");
    // More of the client's waits behind what waits.
    w.uploads(&mut c, &mut stream, &late[..5]);
    assert_eq!(stream.next, acked + 10 * MSS as u32);
    // An old ACK takes nothing back; the same window again brings nothing.
    let before = stream.next;
    for (ack, window) in [(acked - MSS as u32, 28 * UNIT), (acked, 28 * UNIT)] {
        let sent = w.offers(&c, ack, window);
        stream.take(&c, &sent);
        assert_eq!(stream.next, before);
    }
    // It opens with bytes that are acknowledged, without any, and widely.
    let sent = w.offers(&c, before, 28 * UNIT);
    stream.take(&c, &sent);
    assert_eq!(stream.next, before + 10 * MSS as u32);
    let sent = w.offers(&c, before, 56 * UNIT);
    stream.take(&c, &sent);
    assert_eq!(stream.next, before + 20 * MSS as u32);
    let sent = w.offers(&c, stream.next, 400 * UNIT);
    stream.take(&c, &sent);
    assert_eq!(stream.next, c.seq, "nothing waits any more");
    assert_eq!(w.table("kept_segments").0, 0);
    w.uploads(&mut c, &mut stream, &late[5..]);
    assert_eq!(stream.bytes, all.concat());
    w.served(&mut c);
    w.assert_state(&c, "Idle");
    assert_eq!(w.engine.tables()["kept_segments"].0, 0);
    assert_eq!(w.count(Counter::UnexpectedEvents), 0);
}

#[test]
fn a_pod_that_confirms_before_it_has_any_of_the_request_gets_all_of_it() {
    let mut w = world(256, MigrationMode::DrainOnly);
    let all = segments(40_000);
    let (mut c, mut stream) = w.moving(1, &all[0]);
    let boundary = c.seq - all[0].len() as u32;
    w.uploads(&mut c, &mut stream, &all[1..]);
    let sent = w.offers(&c, boundary, 128 * UNIT);
    let mut again = Stream { next: boundary, bytes: Vec::new(), fin: false };
    again.take(&c, &sent);
    assert_eq!(again.bytes, all.concat());
}

#[test]
fn a_refused_large_request_goes_back_whole() {
    let mut w = world(256, MigrationMode::DrainOnly);
    let all = segments(40_000);
    let mut c = w.idle(1);
    let old = c.clone();
    drain(&mut w, c.pod);
    let adoption = w.moves(&mut c, &all[0]);
    let mut stream = Stream::new(&c);
    w.uploads(&mut c, &mut stream, &all[1..]);
    let sent = w.inject(&answer(&adoption, Reason::AcceptQueueFull, 0));
    let mut back = Stream::new(&old);
    back.take(&old, &sent);
    assert_eq!(back.bytes, all.concat());
    assert_eq!(w.table("kept_segments").0, 0);
    // The old pod's window is the client's to know.
    assert_eq!((w.count(Counter::Rollbacks), w.count(Counter::UnexpectedEvents)), (1, 0));
}

#[test]
fn an_adoption_that_is_asked_again_brings_all_of_a_large_request() {
    let mut w = world(256, MigrationMode::DrainOnly);
    let all = segments(100_000);
    let (mut c, mut stream) = w.moving(1, &all[0]);
    let boundary = c.seq - all[0].len() as u32;
    w.uploads(&mut c, &mut stream, &all[1..]);
    // Adoption and request were lost, or met a listener.
    let sent = w.run_ms(46);
    assert!(sent[0].is_adoption());
    let mut again = Stream { next: boundary, bytes: Vec::new(), fin: false };
    again.take(&c, &sent);
    let first: usize = all[..KEPT].iter().map(Vec::len).sum();
    assert_eq!(again.bytes.len(), first);
    let sent = w.offers(&c, again.next, 256 * UNIT);
    again.take(&c, &sent);
    assert_eq!(again.bytes, all.concat());
}

#[test]
fn what_the_client_repeats_goes_through_and_is_not_sent_twice_once_it_is_acknowledged() {
    let mut w = world(256, MigrationMode::DrainOnly);
    let all = segments(60_000);
    let (mut c, mut stream) = w.moving(1, &all[0]);
    w.uploads(&mut c, &mut stream, &all[1..31]);
    let acked = stream.next;
    let sent = w.offers(&c, acked, 0);
    stream.take(&c, &sent);
    assert_eq!(stream.next, acked, "a window that is shut");
    // The client's time-out: its first unacknowledged segment probes the window.
    let mut repeated = w.client_wire(&c, PSH_ACK, &all[KEPT]);
    repeated.seq = acked;
    w.forwarded_to_pod(&c, &repeated);
    // The pod took it after all: what waited of it is done.
    let sent = w.offers(&c, acked + MSS as u32, 28 * UNIT);
    stream.next += MSS as u32;
    stream.bytes.extend(&all[KEPT]);
    stream.take(&c, &sent);
    assert_eq!(stream.next, acked + 11 * MSS as u32);
    let sent = w.offers(&c, stream.next, 400 * UNIT);
    stream.take(&c, &sent);
    w.uploads(&mut c, &mut stream, &all[31..]);
    assert_eq!(stream.bytes, all.concat());
}

#[test]
fn a_fin_waits_behind_the_bytes_in_front_of_it() {
    for (confirmed, with_data) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut w = world(256, MigrationMode::DrainOnly);
        let all = segments(40_000);
        let (mut c, mut stream) = w.moving(1, &all[0]);
        let (last, others) = all[1..].split_last().expect("segments");
        w.uploads(&mut c, &mut stream, others);
        let acked = stream.next;
        if confirmed {
            let sent = w.offers(&c, acked, 0);
            stream.take(&c, &sent);
        }
        if !with_data {
            w.uploads(&mut c, &mut stream, std::slice::from_ref(last));
        }
        let data: &[u8] = if with_data { last } else { &[] };
        let fin = w.client_wire(&c, FIN_ACK, data);
        let sent = w.inject(&fin.build());
        assert!(sent.is_empty(), "{sent:?}");
        c.seq = c.seq.wrapping_add(data.len() as u32 + 1);
        let sent = w.offers(&c, acked, 128 * UNIT);
        stream.take(&c, &sent);
        assert!(stream.fin && stream.next == c.seq);
        assert_eq!(stream.bytes, all.concat());
        w.assert_state(&c, "ClientFin");
        w.responds(&mut c, OK);
        w.pod_fin(&mut c);
        w.assert_state(&c, "Closed");
        w.ack(&mut c);
        w.run_ms(2_000);
        assert_eq!(w.state(&c), None);
        assert_eq!(w.count(Counter::UnexpectedEvents), 0);
    }
}

#[test]
fn without_a_free_frame_what_waits_goes_a_moment_later() {
    let mut w = world(256, MigrationMode::DrainOnly);
    let all = segments(40_000);
    let (mut c, mut stream) = w.moving(1, &all[0]);
    w.uploads(&mut c, &mut stream, &all[1..]);
    w.out.free = 3;
    let sent = w.offers(&c, stream.next, 128 * UNIT);
    stream.take(&c, &sent);
    assert!(stream.next != c.seq && w.count(Counter::NoFrame) > 0);
    w.out.free = usize::MAX;
    let sent = w.run_ms(2);
    stream.take(&c, &sent);
    assert_eq!(stream.bytes, all.concat());
    // The flow's own timer goes on.
    let idle = w.snapshot.policies[0].timeouts.idle;
    w.run_us(idle.0);
    assert_eq!(w.state(&c), None);
}

#[test]
fn no_more_of_one_flow_waits_than_its_limit() {
    let mut w = world(4_096, MigrationMode::DrainOnly);
    let all = segments(1_500_000);
    let (mut c, mut stream) = w.moving(1, &all[0]);
    w.careful = false;
    let fits = KEPT + 1_024;
    w.uploads(&mut c, &mut stream, &all[1..fits]);
    assert_eq!(w.count(Counter::BacklogFlowFull), 0);
    let dropped = c.seq;
    w.uploads(&mut c, &mut stream, &all[fits..=fits]);
    assert_eq!(w.count(Counter::BacklogFlowFull), 1);
    w.careful = true;
    // Nothing before it is lost, and the client's repetition of it goes through.
    let ack = stream.next;
    // Not all at once: other packets wait.
    let mut sent = w.offers(&c, ack, 65_535 * UNIT);
    assert!(sent.len() < 300, "{}", sent.len());
    sent.extend(w.run_ms(10));
    stream.take(&c, &sent);
    assert_eq!(stream.next, dropped);
    let mut repeated = w.client_wire(&c, PSH_ACK, &all[fits]);
    repeated.seq = dropped;
    let sent = w.forwarded_to_pod(&c, &repeated);
    stream.take(&c, &[sent]);
    w.uploads(&mut c, &mut stream, &all[fits + 1..]);
    assert_eq!(stream.bytes, all.concat());
}

#[test]
fn jumbo_segments_wait_in_pieces_and_arrive_whole() {
    let mut w = world(256, MigrationMode::DrainOnly);
    let all = segments_of(99_000, JUMBO);
    let (mut c, mut stream) = w.moving(1, &all[0]);
    w.uploads(&mut c, &mut stream, &all[1..]);
    // The first goes ahead, as its copies are kept; of the others, the last is a short one.
    let jumbos = all.len() as u64 - 1;
    assert_eq!(w.count(Counter::Backlogged), jumbos - 1);
    assert_eq!(w.table("kept_segments").0, 1 + (jumbos - 1) * PIECES + 1);
    let sent = w.offers(&c, stream.next, 400 * UNIT);
    stream.take(&c, &sent);
    assert_eq!(stream.next, c.seq);
    assert_eq!(stream.bytes, all.concat());
    w.served(&mut c);
    w.assert_state(&c, "Idle");
    assert_eq!(w.table("kept_segments").0, 0);
}

#[test]
fn a_jumbo_request_moves_and_outlives_its_pod() {
    let request = segments_of(JUMBO - 60, JUMBO).concat();
    for mode in [MigrationMode::Always, MigrationMode::Never] {
        let mut w = world(32, mode);
        w.change(|s| s.policies[0].on_backend_failure = BackendFailure::Replay);
        let mut c = w.idle(1);
        let boundary = c.seq;
        if mode == MigrationMode::Always {
            w.moves(&mut c, &request);
            w.offers(&c, c.seq, 128 * UNIT);
        } else {
            w.stays(&mut c, &request);
        }
        assert_eq!(w.table("kept_segments").0, PIECES);
        let sent = w.dies(c.pod, End::Rst, &[c.clone()]);
        let behind = w.adopted_from(&mut c, &sent, boundary);
        let told: Vec<u8> = behind.iter().flat_map(|s| s.data().to_vec()).collect();
        assert!(told == request, "{} bytes", told.len());
        w.served(&mut c);
        w.assert_state(&c, "Idle");
        assert_eq!(w.count(Counter::KeptFull), 0);
    }
}

#[test]
fn with_jumbo_frames_a_request_moves_if_it_fits_with_the_segment_at_hand() {
    let fits = (60 << 10) - 9_001;
    for (bytes, moves) in [(fits, true), (fits + 1, false)] {
        let mut s = settings();
        s.mtu = 9_001;
        let mut p = policy(2);
        p.migration.mode = MigrationMode::Always;
        let (mut w, mut c) = World::with(s, p).at_rest();
        match moves {
            true => drop(w.moves(&mut c, &post_head(bytes))),
            false => drop(w.stays(&mut c, &post_head(bytes))),
        }
    }
}

#[test]
fn a_flow_adopted_at_rest_has_the_first_window_of_its_owner_for_its_next_request() {
    let mut p = policy(2);
    p.migration.mode = MigrationMode::DrainOnly;
    p.drain.quiet = Micros::from_millis(10);
    let mut s = settings();
    s.limits.kept_segments = 256;
    let (mut w, mut c) = World::with(s, p).at_rest();
    drain(&mut w, c.pod);
    let sent = w.until_adoption(100);
    w.rescued(&mut c, &sent);
    let mut stream = Stream::new(&c);
    let start = c.seq;
    let all = segments(100_000);
    w.uploads(&mut c, &mut stream, &all);
    let first = stream.next.wrapping_sub(start) as usize;
    assert!(first <= 60 << 10 && first + MSS > 60 << 10, "{first}");
    let ack = stream.next;
    let sent = w.offers(&c, ack, 128 * UNIT);
    stream.take(&c, &sent);
    assert_eq!(stream.bytes, all.concat());
}

#[test]
fn a_large_request_that_comes_while_nobody_has_the_flow_waits_for_the_next_owner() {
    let (mut w, mut c) = world(256, MigrationMode::DrainOnly).at_rest();
    let dead = c.pod;
    w.adopters.fill(Some(Reason::AcceptQueueFull));
    w.run_ms(1_100);
    w.dies(dead, End::Fin, std::slice::from_ref(&c));
    w.assert_state(&c, "Orphan");
    let all = segments(40_000);
    let boundary = c.seq;
    for data in &all {
        assert!(w.data(&mut c, data).is_empty());
    }
    w.adopters[1 - dead] = Some(Reason::Ready);
    let sent = w.until_adoption(1_100);
    let adoption = sent.iter().find(|s| s.is_adoption()).expect("an adoption");
    take_leg(&mut c, adoption);
    let mut stream = Stream { next: boundary, bytes: Vec::new(), fin: false };
    stream.take(&c, &sent);
    let ack = stream.next;
    let sent = w.offers(&c, ack, 128 * UNIT);
    stream.take(&c, &sent);
    assert_eq!(stream.bytes, all.concat());
    assert_eq!(Lost::ALL.iter().map(|l| w.engine.lost(*l)).sum::<u64>(), 0);
}

#[test]
fn what_an_orphan_cannot_keep_comes_again() {
    let (mut w, mut c) = world(32, MigrationMode::DrainOnly).at_rest();
    w.adopters.fill(Some(Reason::AcceptQueueFull));
    w.run_ms(1_100);
    w.dies(c.pod, End::Fin, std::slice::from_ref(&c));
    for data in &segments(60_000)[..30] {
        assert!(w.data(&mut c, data).is_empty());
    }
    // 8 are kept, as many long ones as make a half wait; nothing is lost, as the others do not
    // count as seen.
    assert_eq!(w.table("kept_segments").0, 17);
    assert!(w.count(Counter::BacklogNetworkFull) > 0);
    w.assert_state(&c, "Orphan");
}

#[test]
fn a_client_that_resets_resets_the_pod_at_the_byte_that_it_has() {
    let mut w = world(256, MigrationMode::DrainOnly);
    let all = segments(60_000);
    let (mut c, mut stream) = w.moving(1, &all[0]);
    w.uploads(&mut c, &mut stream, &all[1..31]);
    let sent = w.offers(&c, stream.next, 28 * UNIT);
    stream.take(&c, &sent);
    let frame = w.client_wire(&c, Flags::RST, &[]).build();
    let sent = w.inject(&frame);
    assert!(
        sent.iter().any(|s| s.segment.flags.has(Flags::RST) && s.segment.seq.0 == stream.next),
        "{sent:?}"
    );
    assert_eq!(w.state(&c), None);
    assert_eq!(w.table("kept_segments").0, 0);
}

#[test]
fn a_session_is_restored_in_front_of_a_large_command() {
    let mut p: Policy = policy(2);
    p.protocol = Protocol::Resp;
    p.migration.mode = MigrationMode::DrainOnly;
    let mut s = settings();
    s.limits.kept_segments = 256;
    let (mut w, mut c) = World::with(s, p).opened();
    let select = b"*2\r\n$6\r\nSELECT\r\n$1\r\n3\r\n";
    w.stays(&mut c, select);
    w.answers(&mut c, b"+OK\r\n");
    drain(&mut w, c.pod);
    let mut command = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$40000\r\n".to_vec();
    command.extend((0..40_000).map(|i| (i * 3) as u8));
    command.extend(b"\r\n");
    let boundary = c.seq;
    let mut sent = Vec::new();
    for data in command.chunks(MSS) {
        sent.extend(w.data(&mut c, data));
    }
    let adoption = sent.iter().find(|s| s.is_adoption()).expect("an adoption");
    take_leg(&mut c, adoption);
    let behind: Vec<&[u8]> = sent.iter().map(Sent::data).filter(|d| !d.is_empty()).collect();
    assert_eq!(behind, [select], "the command waits");
    let mut wire = w.pod_wire(&c, PSH_ACK, b"+OK\r\n");
    wire.seq = c.server.wrapping_sub(5);
    wire.ack = boundary;
    wire.window = 128;
    let sent = w.inject(&wire.build());
    let mut stream = Stream { next: boundary, bytes: Vec::new(), fin: false };
    let data: Vec<Sent> = sent.into_iter().filter(|s| !s.data().is_empty()).collect();
    stream.take(&c, &data);
    assert_eq!(stream.bytes, command);
}
