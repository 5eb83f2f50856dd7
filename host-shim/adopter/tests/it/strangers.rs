//! End marks are set only by the process that ends its own connection, and only towards addresses
//! that sent the pod a valid message. Needs root.

use crate::common::{
    INTERFACE, Lab,
    answer::{ACKED, KEY, PORT, READY, SEQ, adopter, ask, data},
    ends, run,
    segment::{ACK, Message, PSH_ACK, RST, Received, SYN, Segment},
    unique, wait_for,
};
use baton_adopter::{Adopter, Attachment, Netns, Outcome};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::{
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    os::fd::OwnedFd,
    process::{Child, Command, Stdio},
};

const EXIT_MARK: u16 = 0xBA7E;
const LISTENER_MARK: u16 = 0xBA7F;
const FIN: u8 = 0x01;

/// A third network namespace, with a link to the pod on which both have kernels that answer.
struct Guest {
    name: String,
}

impl Guest {
    const POD: &'static str = "10.8.0.1";

    fn new(lab: &Lab) -> Self {
        let (name, pod) = (format!("{}-guest", unique()), lab.netns_name());
        run(&format!("ip netns add {name}"));
        let guest = Self { name };
        let name = &guest.name;
        run(&format!(
            "ip link add eth1 netns {pod} address 02:ba:00:00:00:03 type veth peer name eth0 netns {name} address 02:ba:00:00:00:04"
        ));
        run(&format!("ip -n {name} link set eth0 up"));
        run(&format!("ip -n {name} addr add 10.8.0.2/24 dev eth0"));
        run(&format!("ip -n {pod} addr add {}/24 dev eth1", Self::POD));
        guest.link(lab, true);
        guest
    }

    /// The pod's end of the link. Whatever it sends while that is down is lost. Neighbours are
    /// known, so that nothing waits for them.
    fn link(&self, lab: &Lab, up: bool) {
        let (name, pod) = (&self.name, lab.netns_name());
        if !up {
            return run(&format!("ip -n {pod} link set eth1 down"));
        }
        run(&format!("ip -n {pod} link set eth1 up"));
        run(&format!(
            "ip -n {pod} neigh replace 10.8.0.2 lladdr 02:ba:00:00:00:04 dev eth1 nud permanent"
        ));
        run(&format!(
            "ip -n {name} neigh replace {} lladdr 02:ba:00:00:00:03 dev eth0 nud permanent",
            Self::POD
        ));
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).output();
    }
}

/// Ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process that has nothing but a connection.
fn holder(connection: TcpStream) -> Running {
    let process =
        Command::new("sleep").arg("1000").stdin(Stdio::from(OwnedFd::from(connection))).spawn();
    Running(process.expect("sleep starts"))
}

/// The pod answers a dead connection's FIN by a reset, inline, on the back of the process that
/// exits elsewhere; and what it answers later on that CPU, by the same socket of the kernel, has
/// nothing to do with that process.
#[test]
fn resets_on_the_back_of_another_pods_exiting_process_have_no_mark() {
    let lab = Lab::new();
    let guest = Guest::new(&lab);
    let (adopter, _attachment) = adopter(&lab);
    let _second = adopter.attach(&lab.netns(), "eth1").expect("attach");
    // Both ends have spoken with a valid tag. (The guest's kernel resets the answer.)
    let at = |ip: &str, port| SocketAddr::new(ip.parse::<IpAddr>().expect("an address"), port);
    let (pod, ours) = ends(false, 8080, PORT);
    assert_eq!(ask(&lab, Message::probe(), ours, pod).0, 1, "no listener");
    let spoken =
        Message::probe().segment(at("10.8.0.2", PORT), at(Guest::POD, 8080), SEQ, ACKED, &KEY);
    let frame = spoken.frame([2, 0xba, 0, 0, 0, 4], [2, 0xba, 0, 0, 0, 3]);
    let opened = Netns::Name(guest.name.clone()).open().expect("open");
    let wire = opened
        .within(|| crate::common::packet_socket::PacketSocket::bind("eth0"))
        .expect("enter")
        .expect("a packet socket");
    wire.send(&frame, None);
    wait_for("the guest is known", || lab.count(&adopter, Outcome::NoListener) == 2);

    let listener = lab.listen(at(Guest::POD, 8080));
    let client = opened
        .within(|| TcpStream::connect(at(Guest::POD, 8080)))
        .expect("enter")
        .expect("connect");
    let (server, _) = listener.accept().expect("accept");
    drop(listener);
    // The pod's end is gone, and the guest does not know.
    guest.link(&lab, false);
    socket2::SockRef::from(&server).set_linger(Some(std::time::Duration::ZERO)).expect("set");
    drop(server);
    guest.link(&lab, true);
    wait_for("the pod's end is gone", || lab.sockets(8080) == 0);

    // All on one CPU, of which each has its own socket for resets.
    let mut one = CpuSet::new();
    one.set(0);
    let had = rustix::thread::sched_getaffinity(None).expect("affinity");
    sched_setaffinity(None, &one).expect("one CPU");
    let mut process = holder(client);
    process.0.kill().expect("kill");
    process.0.wait().expect("its end");
    let seen = wire_reset(&wire);
    assert_eq!(seen.urgent, 0, "the pod's process did not exit: {seen:?}");
    let (closed, elsewhere) = ends(false, 8081, PORT + 1);
    lab.send(&data(elsewhere, closed, SEQ, ACKED, ACK, b""));
    let stray = lab.receive(elsewhere).expect("a reset");
    sched_setaffinity(None, &had).expect("all CPUs");
    assert_eq!(stray.segment.flags & RST, RST, "{stray:?}");
    assert_eq!(stray.urgent, 0, "nobody exited: {stray:?}");
    assert_eq!(lab.count(&adopter, Outcome::ExitMarked), 0);
}

/// The reset of a dead connection that comes to the guest. (Answers are resets with ACK and an
/// option.)
fn wire_reset(wire: &crate::common::packet_socket::PacketSocket) -> Received {
    let deadline = std::time::Instant::now() + crate::common::DEADLINE;
    while let Some((frame, partial)) = wire.receive(deadline) {
        let (pod, guest) = ([2, 0xba, 0, 0, 0, 3], [2, 0xba, 0, 0, 0, 4]);
        if let Some(received) = Received::parse(&frame, partial, pod, guest)
            && received.segment.flags & RST != 0
            && received.segment.options.is_empty()
        {
            return received;
        }
    }
    panic!("the pod did not reset the dead connection")
}

/// A connection that was opened by a handshake, from an address that need not have spoken before.
fn opened(lab: &Lab, listener: &TcpListener, ours: SocketAddr, pod: SocketAddr) -> TcpStream {
    lab.send(&Segment { options: Vec::new(), ..data(ours, pod, SEQ - 1, 0, SYN, b"") });
    let answer = lab.receive(ours).expect("SYN-ACK").segment;
    lab.send(&Segment {
        options: Vec::new(),
        ..data(ours, pod, SEQ, answer.seq.wrapping_add(1), ACK, b"")
    });
    listener.accept().expect("accept").0
}

fn last(lab: &Lab, ours: SocketAddr) -> Received {
    loop {
        let received = lab.receive(ours).expect("a last segment");
        if received.segment.flags & (FIN | RST) != 0 {
            return received;
        }
    }
}

struct Served {
    lab: Lab,
    adopter: Adopter,
    _attachment: Attachment,
    listener: TcpListener,
    pod: SocketAddr,
    ours: SocketAddr,
}

impl Served {
    fn new(v6: bool) -> Self {
        let lab = Lab::new();
        let (pod, ours) = ends(v6, 8080, PORT);
        let listener = lab.listen(pod);
        let (adopter, attachment) = adopter(&lab);
        Self { lab, adopter, _attachment: attachment, listener, pod, ours }
    }

    /// The mark of what a killed process sends, and that of what this one closes, each of a new
    /// connection.
    fn marks(&self, port: u16) -> [u16; 2] {
        let from = |port| SocketAddr::new(self.ours.ip(), port);
        let connection = opened(&self.lab, &self.listener, from(port), self.pod);
        let mut process = holder(connection);
        process.0.kill().expect("kill");
        let exits = last(&self.lab, from(port)).urgent;
        let connection = opened(&self.lab, &self.listener, from(port + 1), self.pod);
        drop(connection);
        [exits, last(&self.lab, from(port + 1)).urgent]
    }

    fn marked(&self) -> u64 {
        [Outcome::ExitMarked, Outcome::ListenerMarked]
            .iter()
            .map(|outcome| self.lab.count(&self.adopter, *outcome))
            .sum()
    }
}

#[test]
fn ends_to_strangers_are_untouched_and_those_to_peers_that_probed_are_marked() {
    for v6 in [false, true] {
        let served = Served::new(v6);
        // One whose tag is wrong is a stranger still.
        let forged = Message::probe().segment(served.ours, served.pod, SEQ, ACKED, &[0; 16]);
        served.lab.send(&forged);
        wait_for("the forged probe is dropped", || {
            served.lab.count(&served.adopter, Outcome::BadTag) == 1
        });
        assert_eq!(served.marks(PORT), [0, 0]);
        assert_eq!(served.marked(), 0);
        let (reason, _) = ask(&served.lab, Message::probe(), served.ours, served.pod);
        assert_eq!(reason, READY);
        assert_eq!(served.marks(PORT + 2), [EXIT_MARK, LISTENER_MARK]);
    }
}

#[test]
fn who_probed_one_pod_is_a_stranger_to_another() {
    let probed = Served::new(false);
    let (reason, _) = ask(&probed.lab, Message::probe(), probed.ours, probed.pod);
    assert_eq!(reason, READY);
    let other = Served::new(false);
    let attached = probed.adopter.attach(&other.lab.netns(), INTERFACE);
    let _attached = attached.expect("attach");
    assert_eq!(other.marks(PORT), [0, 0]);
    assert_eq!(probed.marks(PORT), [EXIT_MARK, LISTENER_MARK]);
}

#[test]
fn a_connection_that_nobody_accepted_ends_without_a_mark() {
    let served = Served::new(false);
    let _ = ask(&served.lab, Message::probe(), served.ours, served.pod);
    let Served { lab, listener, pod, ours, adopter, _attachment } = served;
    let mut process = Command::new("sleep")
        .arg("1000")
        .stdin(Stdio::from(OwnedFd::from(listener)))
        .spawn()
        .expect("sleep starts");
    lab.send(&Message::adopt().segment(ours, pod, SEQ, ACKED, &KEY));
    lab.send(&data(ours, pod, SEQ, ACKED, PSH_ACK, b"go\n"));
    wait_for("the connection waits", || lab.sockets(8080) == 1);
    process.kill().expect("kill");
    process.wait().expect("its end");
    let reset = last(&lab, ours);
    assert_eq!(reset.segment.flags & RST, RST, "{reset:?}");
    assert_eq!(reset.urgent, 0, "no process ever had it");
    assert_eq!(lab.count(&adopter, Outcome::ExitMarked), 0);
}
