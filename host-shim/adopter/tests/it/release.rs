//! Releases, by the real kernel: a request that nobody has read is taken from its socket, and any
//! other one stays. Needs root.

mod again;

use crate::common::{
    INTERFACE, Lab,
    answer::{ACKED, KEPT, KEY, PORT, RELEASED, RENEW, SEQ, adopter, answer_to, data},
    ends,
    packet_socket::read_ahead,
    run,
    segment::{FIN_ACK, Message, PSH_ACK, RST, Received, SYN, Segment},
    wait_for,
};
use baton_adopter::{Adopter, Asks, Attachment, Outcome, Pass, Releases};
use rustix::{
    event::{PollFd, PollFlags, poll},
    process::{Resource, Rlimit, getrlimit, setrlimit},
    time::Timespec,
};
use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::OwnedFd,
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

const RELEASE_MARK: u16 = 0xBA80;
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\n\r\n";

/// A pod that listens and has the adopter.
struct Pod {
    lab: Lab,
    adopter: Adopter,
    _attachment: Attachment,
    address: SocketAddr,
    listener: TcpListener,
    releases: Releases,
}

impl Pod {
    fn new(v6: bool) -> Self {
        let (address, _) = ends(v6, 8080, PORT);
        Self::listening(address, address)
    }

    fn listening(address: SocketAddr, on: SocketAddr) -> Self {
        let lab = Lab::new();
        let listener = lab.listen(on);
        let (adopter, attachment) = adopter(&lab);
        let releases = adopter.releases().expect("the kernel takes the iterator");
        Self { lab, adopter, _attachment: attachment, address, listener, releases }
    }

    fn client(&self, n: u16) -> SocketAddr {
        let (_, ours) = ends(self.address.is_ipv6(), 8080, PORT + n);
        ours
    }

    /// A connection to the pod with a request in it, as far as the pod's kernel.
    fn request(&self, ours: SocketAddr) {
        self.lab.send(&Message::adopt().segment(ours, self.address, SEQ, ACKED, &KEY));
        self.say(ours, SEQ, ACKED, REQUEST);
        self.acknowledged(ours, after(REQUEST));
    }

    fn say(&self, ours: SocketAddr, seq: u32, ack: u32, bytes: &[u8]) {
        self.lab.send(&data(ours, self.address, seq, ack, PSH_ACK, bytes));
    }

    fn acknowledged(&self, ours: SocketAddr, next: u32) {
        loop {
            let received = self.lab.receive(ours).expect("an acknowledgement").segment;
            assert_eq!(received.flags & RST, 0, "{received:?}");
            if received.ack == next {
                return;
            }
        }
    }

    fn accept(&self) -> TcpStream {
        self.listener.accept().expect("a connection").0
    }

    fn release(&self, ours: SocketAddr, seq: u32, ack: u32) -> Segment {
        Message::release().here().segment(ours, self.address, seq, ack, &KEY)
    }

    /// Asks, as the dataplane does, and has it decided.
    fn decide(&self, ours: SocketAddr, seq: u32, ack: u32) -> Pass {
        let mut asks = self.releases.asks().expect("the ring");
        self.lab.send(&self.release(ours, seq, ack));
        self.decide_asked(&mut asks, 1)
    }

    /// One pass over all that is asked, once there is so much.
    fn decide_asked(&self, asks: &mut Asks<'_>, count: usize) -> Pass {
        let cookie = self.lab.pod.cookie();
        let mut asked = std::collections::BTreeSet::new();
        wait_for("it is asked", || {
            let more = asks.gather().expect("the ring");
            for (netns, more) in more {
                assert_eq!(netns, cookie);
                asked.extend(more);
            }
            asked.len() >= count
        });
        self.releases
            .pass(&self.lab.netns(), cookie, &asked)
            .expect("a pass")
            .expect("the namespace is the same")
    }

    /// What a copy is told.
    fn told(&self, ours: SocketAddr, seq: u32, ack: u32) -> u16 {
        let segment = self.release(ours, seq, ack);
        self.lab.send(&segment);
        answer_to(&self.lab, &segment).0
    }

    fn reset(&self, ours: SocketAddr) -> Received {
        loop {
            let received = self.lab.receive(ours).expect("a reset");
            if received.segment.flags & RST != 0 {
                return received;
            }
            assert_eq!(received.urgent, 0, "{received:?}");
        }
    }

    fn count(&self, outcome: Outcome) -> u64 {
        self.lab.count(&self.adopter, outcome)
    }

    /// Both directions work.
    fn goes_on(&self, ours: SocketAddr, mut connection: &TcpStream, unread: &[u8], at: (u32, u32)) {
        let mut got = vec![0; unread.len()];
        connection.read_exact(&mut got).expect("what was unread");
        assert_eq!(got, unread);
        self.say(ours, at.0, at.1, b"more");
        self.acknowledged(ours, at.0 + 4);
        let mut got = [0; 4];
        connection.read_exact(&mut got).expect("open");
        assert_eq!(&got, b"more");
    }
}

fn after(bytes: &[u8]) -> u32 {
    SEQ + u32::try_from(bytes.len()).expect("few")
}

/// Nothing of the request is there any more, by any way that reads.
fn is_gone(mut connection: &TcpStream) {
    let error = connection.read(&mut [0; 64]).expect_err("it is gone");
    assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
    assert_eq!(connection.peek(&mut [0; 64]).expect("the end"), 0);
    assert_eq!(connection.read(&mut [0; 64]).expect("the end"), 0);
}

#[test]
fn unread_bytes_are_gone() {
    let mapped = |v6| {
        let (address, _) = ends(false, 8080, PORT);
        let any = SocketAddr::from((std::net::Ipv6Addr::UNSPECIFIED, 8080));
        match v6 {
            Some(v6) => Pod::new(v6),
            // IPv4 on a socket of IPv6.
            None => Pod::listening(address, any),
        }
    };
    for v6 in [Some(false), Some(true), None] {
        let pod = mapped(v6);
        let ours = pod.client(0);
        pod.request(ours);
        let connection = pod.accept();
        let pass = pod.decide(ours, SEQ, ACKED);
        assert_eq!((pass.released, pass.kept), (1, 0));
        let reset = pod.reset(ours);
        assert_eq!(reset.urgent, RELEASE_MARK, "{reset:?}");
        assert_eq!(reset.segment.seq, ACKED);
        is_gone(&connection);
        for _ in 0..2 {
            assert_eq!(pod.told(ours, SEQ, ACKED), RELEASED);
        }
        assert_eq!(pod.count(Outcome::ReleaseAsked), 1);
        assert_eq!(pod.count(Outcome::Released), 2);
        assert_eq!(pod.count(Outcome::ReleaseMarked), 1);
        assert_eq!(pod.count(Outcome::ListenerMarked), 0);
    }
}

#[test]
fn a_long_request_is_gone_as_a_whole() {
    const SEGMENTS: u32 = 20;
    let pod = Pod::new(false);
    let ours = pod.client(0);
    pod.lab.send(&Message::adopt().segment(ours, pod.address, SEQ, ACKED, &KEY));
    let part = [b'x'; 1_000];
    let mut next = SEQ;
    for _ in 0..SEGMENTS {
        pod.say(ours, next, ACKED, &part);
        next += 1_000;
        pod.acknowledged(ours, next);
    }
    let connection = pod.accept();
    assert_eq!(pod.decide(ours, SEQ, ACKED).released, 1);
    assert_eq!(pod.reset(ours).urgent, RELEASE_MARK);
    is_gone(&connection);
    assert_eq!(pod.told(ours, SEQ, ACKED), RELEASED);
}

/// The request was lost on the way, or has not come yet.
#[test]
fn a_connection_without_unread_bytes_is_ended_whether_it_is_accepted() {
    for accepted in [true, false] {
        let pod = Pod::new(false);
        let ours = pod.client(0);
        pod.lab.send(&Message::adopt().segment(ours, pod.address, SEQ, ACKED, &KEY));
        wait_for("there is a socket", || pod.lab.sockets(8080) == 1);
        let connection = accepted.then(|| pod.accept());
        assert_eq!(pod.decide(ours, SEQ, ACKED).released, 1);
        assert_eq!(pod.reset(ours).urgent, RELEASE_MARK);
        is_gone(&connection.unwrap_or_else(|| pod.accept()));
        assert_eq!(pod.told(ours, SEQ, ACKED), RELEASED);
        assert_eq!(pod.lab.sockets(8080), 0);
    }
}

/// Nothing can take its bytes out of it (`bpf/release.h`).
#[test]
fn a_connection_that_nobody_has_accepted_keeps_its_request() {
    for v6 in [false, true] {
        let pod = Pod::new(v6);
        let ours = pod.client(0);
        pod.request(ours);
        let pass = pod.decide(ours, SEQ, ACKED);
        assert_eq!((pass.released, pass.kept), (0, 1));
        let connection = pod.accept();
        pod.goes_on(ours, &connection, REQUEST, (after(REQUEST), ACKED));
        assert_eq!(pod.told(ours, SEQ, ACKED), KEPT);
    }
}

#[test]
fn what_has_begun_to_read_is_kept() {
    for v6 in [false, true] {
        let pod = Pod::new(v6);
        let ours = pod.client(0);
        pod.request(ours);
        let mut connection = pod.accept();
        connection.read_exact(&mut [0]).expect("a byte");
        assert_eq!(pod.decide(ours, SEQ, ACKED).kept, 1);
        assert_eq!(pod.told(ours, SEQ, ACKED), KEPT);
        pod.goes_on(ours, &connection, &REQUEST[1..], (after(REQUEST), ACKED));
        // One that asks about what is unread still, in the middle of the request, is another one.
        assert_eq!(pod.told(ours, SEQ, ACKED), KEPT);
        assert_eq!(pod.count(Outcome::Kept), 2);
        assert_eq!(pod.count(Outcome::ReleaseMarked), 0);
    }
}

/// Its application may act on what it has only looked at.
#[test]
fn what_is_read_ahead_by_an_offset_is_kept() {
    let pod = Pod::new(false);
    let ours = pod.client(0);
    pod.request(ours);
    let connection = pod.accept();
    read_ahead(&connection);
    let mut ahead = [0; REQUEST.len()];
    assert_eq!(connection.peek(&mut ahead).expect("unread"), REQUEST.len());
    assert_eq!(pod.decide(ours, SEQ, ACKED).kept, 1);
    assert_eq!(pod.told(ours, SEQ, ACKED), KEPT);
    pod.goes_on(ours, &connection, REQUEST, (after(REQUEST), ACKED));
}

#[test]
fn what_has_written_is_kept() {
    let pod = Pod::new(false);
    let ours = pod.client(0);
    pod.request(ours);
    let mut connection = pod.accept();
    connection.write_all(b"HTTP").expect("room");
    assert_eq!(pod.decide(ours, SEQ, ACKED).kept, 1);
    while pod.lab.receive(ours).expect("the response").segment.payload != b"HTTP" {}
    let segment = pod.release(ours, SEQ, ACKED);
    pod.lab.send(&segment);
    assert_eq!(answer(&pod, &segment), KEPT);
    pod.goes_on(ours, &connection, REQUEST, (after(REQUEST), ACKED + 4));
}

/// The segment with the client's acknowledgement was lost behind the dataplane, which has seen it.
#[test]
fn what_the_client_has_keeps_nothing_though_the_pod_does_not_know() {
    let pod = Pod::new(false);
    let ours = pod.client(0);
    pod.request(ours);
    let mut connection = pod.accept();
    let mut request = [0; REQUEST.len()];
    connection.read_exact(&mut request).expect("the request");
    connection.write_all(b"HTTP").expect("room");
    assert_eq!(pod.decide(ours, after(REQUEST), ACKED + 4).released, 1);
    is_gone(&connection);
}

/// The next Answer on a connection on which the kernel repeats what is not acknowledged.
fn answer(pod: &Pod, to: &Segment) -> u16 {
    loop {
        let received = pod.lab.receive(to.from).expect("an answer").segment;
        if let Some((message, _)) = Message::parse(&received) {
            return message.mss;
        }
    }
}

/// What a copy is told, once it is decided: a pass decides none whose lease is over, and the next
/// copy asks again.
fn decided(pod: &Pod, asks: &mut Asks<'_>, ours: SocketAddr) -> u16 {
    let segment = pod.release(ours, SEQ, ACKED);
    let mut told = None;
    wait_for("it is decided", || {
        pod.lab.send(&segment);
        for (cookie, asked) in asks.gather().expect("the ring") {
            pod.releases.pass(&pod.lab.netns(), cookie, &asked).expect("a pass");
        }
        let patience = Duration::from_millis(20);
        while let Some(received) = pod.lab.receive_within(ours, patience) {
            if let Some((message, _)) = Message::parse(&received.segment) {
                told = Some(message.mss);
                return true;
            }
        }
        false
    });
    told.expect("it is set")
}

#[test]
fn other_numbers_and_no_connection_are_kept() {
    let pod = Pod::new(false);
    let ours = pod.client(0);
    pod.request(ours);
    let connection = pod.accept();
    let other = pod.client(1);
    for (client, seq, ack) in [
        (ours, SEQ + 1, ACKED),
        (ours, SEQ - 1, ACKED),
        (ours, after(REQUEST), ACKED),
        (ours, SEQ, ACKED + 1),
        (ours, SEQ, ACKED - 1),
        (other, SEQ, ACKED),
    ] {
        let pass = pod.decide(client, seq, ack);
        assert_eq!((pass.released, pass.kept), (0, 1), "{client} {seq} {ack}");
        assert_eq!(pod.told(client, seq, ack), KEPT);
    }
    // What is half closed has more to it than bytes.
    pod.lab.send(&data(ours, pod.address, after(REQUEST), ACKED, FIN_ACK, b""));
    pod.acknowledged(ours, after(REQUEST) + 1);
    assert_eq!(pod.decide(ours, SEQ, ACKED).kept, 1);
    let mut all = Vec::new();
    (&connection).read_to_end(&mut all).expect("a clean end");
    assert_eq!(all, REQUEST);
}

#[test]
fn what_is_not_for_this_namespace_or_not_of_a_key_holder_asks_nobody() {
    let pod = Pod::new(false);
    let ours = pod.client(0);
    pod.request(ours);
    let _connection = pod.accept();
    let mut elsewhere = Message::release().here();
    elsewhere.namespace ^= 1;
    let segment = elsewhere.segment(ours, pod.address, SEQ, ACKED, &KEY);
    pod.lab.send(&segment);
    assert_eq!(answer_to(&pod.lab, &segment).0, RENEW);
    let release = Message::release().here();
    let good = release.segment(ours, pod.address, SEQ, ACKED, &KEY);
    for (segment, outcome) in [
        (release.segment(ours, pod.address, SEQ, ACKED, &[1; 16]), Outcome::BadTag),
        (release.epoch(9).segment(ours, pod.address, SEQ, ACKED, &KEY), Outcome::UnknownEpoch),
        (Segment { flags: SYN, ..good.clone() }, Outcome::BadLayout),
    ] {
        pod.lab.send(&segment);
        wait_for("it is counted", || pod.count(outcome) == 1);
    }
    let mut asks = pod.releases.asks().expect("the ring");
    assert!(asks.gather().expect("the ring").is_empty());
    assert_eq!(pod.count(Outcome::ReleaseAsked), 0);
    // The next number is no message's: the pod's own TCP takes it for an ACK without bytes.
    let mut next = good;
    next.options[3] += 2;
    pod.lab.send(&next);
    pod.lab.send(&data(ours, pod.address, after(REQUEST), ACKED, PSH_ACK, b"?"));
    pod.acknowledged(ours, after(REQUEST) + 1);
    let counted = pod.adopter.counters().expect("counters");
    let of_messages: u64 = counted.iter().map(|(_, count)| count).sum();
    assert_eq!(of_messages, 1 + 1 + 3, "adopted, Renew, and three refused");
}

#[test]
fn a_thousand_are_released_in_one_pass_and_others_stay() {
    const MANY: u16 = 1_000;
    allow_descriptors(2 * u64::from(MANY));
    let pod = Pod::new(false);
    let mut asks = pod.releases.asks().expect("the ring");
    let connections: Vec<_> = (0..MANY)
        .map(|n| {
            pod.request(pod.client(n));
            pod.accept()
        })
        .collect();
    // Every second one.
    for n in (0..MANY).step_by(2) {
        pod.lab.send(&pod.release(pod.client(n), SEQ, ACKED));
    }
    let pass = pod.decide_asked(&mut asks, usize::from(MANY) / 2);
    assert_eq!((pass.released, pass.kept), (usize::from(MANY) / 2, 0));
    for (n, connection) in (0..MANY).zip(&connections) {
        if n % 2 == 0 {
            is_gone(connection);
        } else {
            let mut got = [0; REQUEST.len()];
            (&*connection).read_exact(&mut got).expect("its request");
            assert_eq!(got, REQUEST);
        }
    }
    assert_eq!(pod.count(Outcome::ReleaseMarked), u64::from(MANY) / 2, "each reset");
}

fn allow_descriptors(enough: u64) {
    let had = getrlimit(Resource::Nofile);
    let more = Rlimit {
        current: had.current.map(|now| now.max(enough)),
        maximum: had.maximum.map(|max| max.max(enough)),
    };
    setrlimit(Resource::Nofile, more).expect("root may");
}

#[test]
fn a_stopped_process_that_goes_on_reads_nothing() {
    let pod = Pod::new(false);
    let ours = pod.client(0);
    pod.lab.send(&Message::adopt().segment(ours, pod.address, SEQ, ACKED, &KEY));
    let connection = pod.accept();
    let mut process = Command::new("sh")
        .args(["-c", "echo begun; while read line; do echo \"$line\"; done"])
        .stdin(Stdio::from(OwnedFd::from(connection)))
        .stdout(Stdio::piped())
        .spawn()
        .expect("sh starts");
    let mut said = process.stdout.take().expect("piped");
    let mut begun = [0; 6];
    said.read_exact(&mut begun).expect("its first line");
    assert_eq!(&begun, b"begun\n");
    run(&format!("kill -STOP {}", process.id()));
    wait_for("it has stopped", || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.id()));
        stat.is_ok_and(|stat| stat.contains(") T "))
    });
    pod.say(ours, SEQ, ACKED, b"line\n");
    pod.acknowledged(ours, SEQ + 5);
    assert_eq!(pod.decide(ours, SEQ, ACKED).released, 1);
    run(&format!("kill -CONT {}", process.id()));
    let mut rest = String::new();
    said.read_to_string(&mut rest).expect("its output");
    assert_eq!(rest, "");
    process.wait().expect("its end");
    assert_eq!(pod.reset(ours).urgent, RELEASE_MARK);
}

/// Each request is released or read, never both and never neither.
#[test]
fn a_reader_at_the_same_moment_has_all_or_nothing() {
    const ROUNDS: u16 = 30;
    // Their resets must fit into what the packet socket holds.
    const EACH: u16 = 100;
    let pod = Pod::new(false);
    let mut asks = pod.releases.asks().expect("the ring");
    let (mut released, mut read) = (0, 0);
    for round in 0..ROUNDS {
        let clients = || (round * EACH..(round + 1) * EACH).map(|n| pod.client(n));
        let connections: Vec<_> = clients()
            .map(|ours| {
                pod.request(ours);
                pod.accept()
            })
            .collect();
        for ours in clients() {
            pod.lab.send(&pod.release(ours, SEQ, ACKED));
        }
        let cookie = pod.lab.pod.cookie();
        let mut asked = std::collections::BTreeSet::new();
        wait_for("all are asked", || {
            for more in asks.gather().expect("the ring").into_values() {
                asked.extend(more);
            }
            asked.len() == usize::from(EACH)
        });
        let passed = AtomicBool::new(false);
        let got: Vec<bool> = std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                // In the middle of the pass: when the first one is over. Behind it, if none is.
                let flags = PollFlags::empty();
                let first = |connection| PollFd::new(connection, flags);
                let mut any: Vec<_> = connections.iter().map(first).collect();
                let a_moment = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
                loop {
                    let ended = poll(&mut any, Some(&a_moment)).expect("they are open");
                    if ended > 0 || passed.load(Ordering::Acquire) {
                        break;
                    }
                }
                let read = |mut connection: &TcpStream| {
                    let mut bytes = [0; 64];
                    match connection.read(&mut bytes) {
                        Ok(count) => {
                            assert_eq!(&bytes[..count], REQUEST);
                            true
                        }
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
                            false
                        }
                    }
                };
                connections.iter().map(read).collect()
            });
            pod.releases
                .pass(&pod.lab.netns(), cookie, &asked)
                .expect("a pass")
                .expect("the namespace is the same");
            passed.store(true, Ordering::Release);
            reader.join().expect("the reader")
        });
        for (ours, got) in clients().zip(got) {
            let told = decided(&pod, &mut asks, ours);
            assert_eq!(told, if got { KEPT } else { RELEASED }, "{ours}");
            *(if got { &mut read } else { &mut released }) += 1;
        }
    }
    assert!(released >= u32::from(ROUNDS), "{released}");
    println!("{read} read, {released} released");
}

#[test]
fn without_the_iterator_all_is_kept_at_once() {
    let lab = Lab::new();
    let (address, ours) = ends(false, 8080, PORT);
    let listener = lab.listen(address);
    let adopter = Adopter::load_without_releases(None).expect("the kernel takes the adopter");
    adopter.set_key(1, &KEY).expect("set a key");
    let _attachment = adopter.attach(&lab.netns(), INTERFACE).expect("attach");
    lab.learn_number(&adopter);
    assert!(adopter.releases().is_err());
    lab.send(&Message::adopt().segment(ours, address, SEQ, ACKED, &KEY));
    listener.accept().expect("it adopts");
    let release = Message::release().here().segment(ours, address, SEQ, ACKED, &KEY);
    for _ in 0..2 {
        lab.send(&release);
        wait_for("it is answered", || {
            loop {
                let received = lab.receive(ours).expect("an answer").segment;
                if let Some((message, _)) = Message::parse(&received) {
                    break message.mss == KEPT;
                }
            }
        });
    }
    assert_eq!(lab.count(&adopter, Outcome::Kept), 2);
}
