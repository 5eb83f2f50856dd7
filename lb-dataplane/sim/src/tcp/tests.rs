//! Two endpoints over a link of any quality, and the rules that the engine relies on.

use super::{
    Adopted, Config, Effect, Failure, Socket, State,
    wire::{Ends, Offer, Out, Seg, build, receive},
};
use crate::{
    clock::{MS, Queue, SECOND, Time},
    link::{Link, LinkSpec},
};
use baton_packet::{Flags, Mac, SeqNumber};

const CONFIG: Config = Config {
    mss: 1_460,
    scale: Some(7),
    sack: true,
    stamps: true,
    buffer: 65_535,
    delayed_ack_us: 40 * MS,
};

fn ends(client: bool) -> Ends {
    let (a, b) = ("10.0.0.1:40000", "10.0.0.2:80");
    let (local, remote) = if client { (a, b) } else { (b, a) };
    Ends {
        mac: Mac([1; 6]),
        via: Mac([2; 6]),
        local: local.parse().expect("an address"),
        remote: remote.parse().expect("an address"),
    }
}

/// A client and a server with a link in each direction.
struct Pair {
    now: Time,
    queue: Queue<(bool, Vec<u8>)>,
    links: [Link; 2],
    client: Socket,
    server: Option<Socket>,
    config: Config,
}

impl Pair {
    fn new(config: Config, spec: &LinkSpec, seed: u64) -> Self {
        Self {
            now: SECOND,
            queue: Queue::default(),
            links: [Link::new(spec.clone(), seed), Link::new(spec.clone(), seed + 1)],
            client: Socket::connect(config, ends(true), SeqNumber(u32::MAX - 700)),
            server: None,
            config,
        }
    }

    fn send(&mut self, to_server: bool, frames: Vec<Vec<u8>>) {
        let queue = &mut self.queue;
        for frame in frames {
            let link = &mut self.links[usize::from(to_server)];
            let _ = link.send(self.now, frame, &mut |at, f| queue.push(at, (to_server, f)));
        }
    }

    fn poll(&mut self) {
        let mut out = Vec::new();
        self.client.poll(self.now, &mut out);
        self.send(true, out);
        let mut out = Vec::new();
        if let Some(server) = &mut self.server {
            server.poll(self.now, &mut out);
        }
        self.send(false, out);
    }

    /// The next thing that happens. `false` if nothing does before `until`.
    fn step(&mut self, until: Time) -> bool {
        self.poll();
        let server = self.server.as_ref().and_then(Socket::deadline);
        let due = [self.queue.next_at(), self.client.deadline(), server];
        let Some(at) = due.into_iter().flatten().min().filter(|at| *at <= until) else {
            return false;
        };
        self.now = self.now.max(at);
        if self.queue.next_at() != Some(at) {
            return true;
        }
        let (_, (to_server, frame)) = self.queue.pop().expect("it is there");
        let Some((_, seg)) = receive(&frame) else {
            return true;
        };
        let mut out = Vec::new();
        if to_server {
            match &mut self.server {
                Some(server) => drop(server.segment(self.now, &seg, &mut out)),
                None if seg.flags == Flags::SYN => {
                    self.server =
                        Some(Socket::answer(self.config, ends(false), SeqNumber(5), &seg));
                }
                None => {}
            }
        } else {
            let _ = self.client.segment(self.now, &seg, &mut out);
        }
        self.send(!to_server, out);
        true
    }

    fn open(&mut self) {
        while self.server.as_ref().is_none_or(|s| s.state() != State::Established) {
            assert!(self.step(100 * SECOND), "the handshake ends");
        }
        assert_eq!(self.client.state(), State::Established);
    }
}

fn text(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..len).map(|_| rng.u8(..)).collect()
}

/// Both send and close; every byte arrives once and in order.
fn transfers(config: Config, spec: &LinkSpec, seed: u64, slow_reader: bool) {
    let mut pair = Pair::new(config, spec, seed);
    pair.open();
    let (up, down) = (text(seed, 30_000), text(seed + 9, 90_000));
    pair.client.send(&up);
    pair.client.close();
    let server = pair.server.as_mut().expect("open");
    server.send(&down);
    server.close();
    let (mut got_up, mut got_down) = (Vec::new(), Vec::new());
    let mut read_at = 0;
    while got_up.len() < up.len() || got_down.len() < down.len() || !pair.client.peer_closed() {
        let more = pair.step(1_000 * SECOND);
        let server = pair.server.as_mut().expect("open");
        assert_eq!((pair.client.failure(), server.failure()), (None, None));
        assert!(more || slow_reader, "it ends: {} and {}", got_up.len(), got_down.len());
        server.recv(&mut got_up, usize::MAX);
        if !slow_reader {
            pair.client.recv(&mut got_down, usize::MAX);
        } else if pair.now >= read_at || !more {
            pair.client.recv(&mut got_down, 700);
            read_at = pair.now + MS;
        }
    }
    assert!(got_up == up && got_down == down, "every byte as it was sent");
    while pair.step(2_000 * SECOND) {}
    let server = pair.server.expect("open");
    assert_eq!((pair.client.state(), server.state()), (State::Closed, State::Closed));
    assert_eq!((pair.client.failure(), server.failure()), (None, None));
}

#[test]
fn data_arrives_over_a_good_link_without_retransmissions() {
    let spec = LinkSpec { delay_us: 500, ..LinkSpec::default() };
    transfers(CONFIG, &spec, 1, false);
    let mut pair = Pair::new(CONFIG, &spec, 2);
    pair.open();
    pair.client.send(&text(2, 50_000));
    while pair.step(3 * SECOND) {}
    assert_eq!(pair.server.expect("open").unread(), 50_000);
    assert_eq!(pair.client.retransmissions, 0);
}

#[test]
fn data_arrives_over_bad_links() {
    for seed in 0..60 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let spec = LinkSpec {
            delay_us: rng.u64(..20 * MS),
            jitter_us: rng.u64(..5 * MS),
            loss: rng.u32(..1_500),
            duplicates: rng.u32(..1_000),
            reordered: rng.u32(..2_000),
            reorder_us: rng.u64(..30 * MS),
            copy_us: rng.u64(..30 * MS),
            corrupted: rng.u32(..500),
            partitions: vec![(2 * SECOND, 3 * SECOND)],
        };
        let config = Config {
            scale: rng.bool().then_some(rng.u8(..9)),
            stamps: rng.bool(),
            buffer: rng.u32(1_500..100_000),
            delayed_ack_us: if rng.bool() { 40 * MS } else { 0 },
            ..CONFIG
        };
        transfers(config, &spec, seed * 2 + 100, rng.bool());
    }
}

#[test]
fn a_closed_window_is_probed_until_it_opens() {
    let config = Config { buffer: 4_000, ..CONFIG };
    let mut pair = Pair::new(config, &LinkSpec::default(), 5);
    pair.open();
    pair.client.send(&text(5, 9_000));
    while pair.step(30 * SECOND) {}
    let server = pair.server.as_mut().expect("open");
    let held = server.unread();
    assert!((3_000..=4_000).contains(&held), "{held} bytes in a buffer of 4,000");
    let mut got = Vec::new();
    server.recv(&mut got, usize::MAX);
    while got.len() < 9_000 {
        assert!(pair.step(200 * SECOND), "{} bytes so far", got.len());
        pair.server.as_mut().expect("open").recv(&mut got, usize::MAX);
    }
    assert_eq!(got, text(5, 9_000));
}

/// A server socket as an adoption makes it, and what its answers to segments are.
struct Adoptee {
    socket: Socket,
    now: Time,
}

impl Adoptee {
    fn new() -> Self {
        let frame = build(&ends(true), &segment(1_000, 2_000, Flags(0), &[]));
        let (_, seg) = receive(&frame).expect("its own");
        let how =
            Adopted { mss: 1_400, scales: Some((7, 7)), sack: true, stamps: Some((777, 500)) };
        let config = Config { delayed_ack_us: 0, ..CONFIG };
        Self { socket: Socket::adopt(config, ends(false), SECOND, &seg, &how), now: SECOND }
    }

    fn give(&mut self, out: &Out<'_>) -> Vec<Vec<u8>> {
        let frame = build(&ends(true), out);
        let (_, seg) = receive(&frame).expect("its own");
        let mut frames = Vec::new();
        assert_eq!(self.socket.segment(self.now, &seg, &mut frames), Effect::None);
        self.socket.poll(self.now, &mut frames);
        frames
    }
}

fn segment(seq: u32, ack: u32, flags: Flags, data: &[u8]) -> Out<'_> {
    Out {
        seq: SeqNumber(seq),
        ack: Some(SeqNumber(ack)),
        flags,
        window: 500,
        offer: None,
        stamps: Some((500, 777)),
        data,
    }
}

fn one(frames: &[Vec<u8>]) -> Seg<'_> {
    assert_eq!(frames.len(), 1);
    receive(&frames[0]).expect("right checksums").1
}

#[test]
fn an_adopted_socket_goes_on_where_the_adoption_says() {
    let mut a = Adoptee::new();
    let frames = a.give(&segment(1_000, 2_000, Flags::PSH, b"GET"));
    let ack = one(&frames);
    assert_eq!((ack.seq, ack.ack), (SeqNumber(2_000), SeqNumber(1_003)));
    assert_eq!(ack.stamps, Some((777, 500)));
    a.now += 10 * MS;
    a.socket.send(b"answer");
    let mut frames = Vec::new();
    a.socket.poll(a.now, &mut frames);
    let data = one(&frames);
    assert_eq!((data.seq, data.data), (SeqNumber(2_000), &b"answer"[..]));
    assert_eq!(data.stamps, Some((787, 500)));
}

#[test]
fn a_fin_alone_on_its_way_is_sent_again() {
    let mut a = Adoptee::new();
    a.socket.send(b"answer");
    a.socket.close();
    let mut frames = Vec::new();
    a.socket.poll(a.now, &mut frames);
    assert!(one(&frames).flags.has(Flags::FIN));
    // All but the FIN is acknowledged, and nobody calls `poll` before it is due.
    let ack = build(&ends(true), &segment(1_000, 2_006, Flags(0), &[]));
    let (_, ack) = receive(&ack).expect("its own");
    let mut frames = Vec::new();
    assert_eq!(a.socket.segment(a.now, &ack, &mut frames), Effect::None);
    assert!(frames.is_empty());
    a.now = a.socket.deadline().expect("a FIN is on its way");
    a.socket.poll(a.now, &mut frames);
    let fin = one(&frames);
    assert_eq!((fin.seq, fin.data.len()), (SeqNumber(2_006), 0));
    assert!(fin.flags.has(Flags::FIN));
}

#[test]
fn a_keepalive_is_answered_at_once_and_always() {
    let mut a = Adoptee::new();
    for _ in 0..3 {
        let frames = a.give(&segment(999, 2_000, Flags(0), &[0]));
        let ack = one(&frames);
        assert_eq!((ack.seq, ack.ack), (SeqNumber(2_000), SeqNumber(1_000)));
        assert!(ack.data.is_empty());
    }
    assert_eq!(a.socket.unread(), 0);
}

#[test]
fn challenges_are_limited_and_only_an_exact_reset_counts() {
    let mut a = Adoptee::new();
    let rst = |seq| Out { ack: None, ..segment(seq, 0, Flags::RST, &[]) };
    assert_eq!(one(&a.give(&rst(1_010))).ack, SeqNumber(1_000), "a challenge");
    assert!(a.give(&rst(1_020)).is_empty(), "one in 500 ms");
    a.now += 500 * MS;
    let syn = Out { offer: Some(Offer::default()), ..segment(1_000, 2_000, Flags::SYN, &[]) };
    assert_eq!(one(&a.give(&syn)).ack, SeqNumber(1_000), "RFC 5961 section 4");
    assert!(a.give(&rst(1_000 + (1 << 30))).is_empty(), "out of the window");
    assert_eq!(a.socket.failure(), None);
    assert!(a.give(&rst(1_000)).is_empty());
    assert_eq!(a.socket.failure(), Some(Failure::Reset));
}

#[test]
fn old_timestamps_are_rejected() {
    let mut a = Adoptee::new();
    let _ = a.give(&Out { stamps: Some((600, 777)), ..segment(1_000, 2_000, Flags::PSH, b"ab") });
    let _ = a.give(&segment(1_002, 2_000, Flags::PSH, b"late"));
    assert_eq!(a.socket.unread(), 2, "PAWS");
}

#[test]
fn a_close_with_unread_bytes_is_a_reset_and_data_for_an_orphan_too() {
    let mut a = Adoptee::new();
    let _ = a.give(&segment(1_000, 2_000, Flags::PSH, b"GET"));
    assert!(!a.socket.orphan(), "unread bytes");
    let rst = a.socket.abort(a.now).expect("the peer has to know");
    assert!(receive(&rst).expect("right checksums").1.flags.has(Flags::RST));

    let mut a = Adoptee::new();
    assert!(a.socket.orphan());
    let mut frames = Vec::new();
    a.socket.poll(a.now, &mut frames);
    assert!(one(&frames).flags.has(Flags::FIN));
    assert!(a.give(&segment(1_000, 2_001, Flags(0), &[])).is_empty());
    assert_eq!(a.socket.state(), State::FinWait2);
    let frames = a.give(&segment(1_000, 2_001, Flags::PSH, b"more"));
    assert_eq!((one(&frames).flags, one(&frames).seq), (Flags::RST, SeqNumber(2_001)));
    assert_eq!(a.socket.state(), State::Closed);
}
