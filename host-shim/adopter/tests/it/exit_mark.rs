//! The last segments of a process that exits carry the exit mark, those of one that listens the
//! listener mark, and no others do. Needs root.

use crate::common::{
    INTERFACE, Lab,
    answer::{ACKED, KEY, PORT, SEQ, adopter, data},
    ends,
    segment::{ACK, Checksum, FIN_ACK, Message, PSH_ACK, RST, Received},
    wait_for,
};
use baton_adopter::{Adopter, Attachment, Outcome};
use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    os::fd::{AsRawFd, OwnedFd},
    process::{Child, Command, Stdio},
};

const EXIT_MARK: u16 = 0xBA7E;
const LISTENER_MARK: u16 = 0xBA7F;
const UNREAD_MARK: u16 = 0xBA81;
/// `DESCRIPTORS_MAX` of the program.
const DESCRIPTORS_MAX: i32 = 1_024;
const FIN: u8 = 0x01;

/// A connection that a process of its own has as its standard input, and nobody else.
struct Served {
    lab: Lab,
    adopter: Adopter,
    _attachment: Option<Attachment>,
    ours: SocketAddr,
    process: Child,
}

impl Served {
    fn new(v6: bool, clsact: bool, script: &str) -> Self {
        let lab = Lab::new();
        let (pod, ours) = ends(v6, 8080, PORT);
        let listener = lab.listen(pod);
        let (adopter, attachment) = if clsact {
            let adopter = Adopter::load(None).expect("the kernel takes the adopter");
            adopter.set_key(1, &KEY).expect("set a key");
            let attachment = adopter.attach_clsact(&lab.netns(), INTERFACE);
            let attachment = attachment.expect("attach");
            lab.learn_number(&adopter);
            (adopter, attachment)
        } else {
            adopter(&lab)
        };
        lab.send(&Message::adopt().segment(ours, pod, SEQ, ACKED, &KEY));
        let (connection, _) = listener.accept().expect("accept");
        let process = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::from(OwnedFd::from(connection)))
            .spawn()
            .expect("sh starts");
        // Only now: a process that ends before our own descriptor is closed is not the one who ends
        // the connection.
        lab.send(&data(ours, pod, SEQ, ACKED, PSH_ACK, b"go\n"));
        Self { lab, adopter, _attachment: Some(attachment), ours, process }
    }

    fn last(&self) -> Received {
        last(&self.lab, self.ours)
    }

    fn marked(&self) -> u64 {
        self.lab.count(&self.adopter, Outcome::ExitMarked)
    }
}

/// A connection's last segment from the pod.
fn last(lab: &Lab, ours: SocketAddr) -> Received {
    loop {
        let received = lab.receive(ours).expect("a last segment");
        assert_ne!(received.checksum, Checksum::Wrong, "{received:?}");
        if received.segment.flags & (FIN | RST) != 0 {
            return received;
        }
        assert_eq!(received.urgent, 0, "{received:?}");
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_killed_process_marks_its_fin() {
    for (v6, clsact) in [(false, false), (true, false), (false, true)] {
        let mut served = Served::new(v6, clsact, "read line; read line");
        // What it has not read would make its end a reset.
        let read = || {
            let pod = &served.lab.pod;
            let text = pod.within(|| std::fs::read_to_string("/proc/thread-self/net/tcp"));
            let text6 = pod.within(|| std::fs::read_to_string("/proc/thread-self/net/tcp6"));
            let both = [text, text6].map(|t| t.expect("enter").expect("the kernel lists sockets"));
            both.iter()
                .flat_map(|t| t.lines())
                .filter(|l| l.split_whitespace().nth(3) == Some("01"))
                .all(|l| l.contains(" 00000000:00000000 "))
        };
        wait_for("the process reads its line", read);
        served.process.kill().expect("kill");
        let last = served.last();
        assert_eq!(last.segment.flags & (FIN | RST), FIN, "{last:?}");
        assert_eq!(last.urgent, EXIT_MARK);
        // Nobody acknowledges it.
        let again = served.last();
        assert_eq!(again.segment.seq, last.segment.seq);
        assert_eq!(again.urgent, EXIT_MARK, "a repetition");
        assert!(served.marked() >= 2);
    }
}

#[test]
fn a_process_that_ends_by_itself_marks_its_fin() {
    let served = Served::new(false, false, "read line");
    let last = served.last();
    assert_eq!(last.segment.flags & (FIN | RST), FIN, "{last:?}");
    assert_eq!(last.urgent, EXIT_MARK);
}

#[test]
fn a_killed_process_that_left_bytes_unread_marks_its_reset() {
    let mut served = Served::new(false, false, "exec sleep 1000");
    served.process.kill().expect("kill");
    let last = served.last();
    assert_eq!(last.segment.flags & (FIN | RST), RST, "{last:?}");
    assert_eq!(last.urgent, EXIT_MARK);
}

#[test]
fn a_process_that_closes_and_lives_on_marks_nothing() {
    let mut served = Served::new(false, false, "read line; exec 0<&-; exec sleep 1000");
    let last = served.last();
    assert_eq!(last.segment.flags & (FIN | RST), FIN, "{last:?}");
    assert_eq!(last.urgent, 0);
    assert_eq!(served.process.try_wait().expect("it runs"), None);
    // The kernel's own reset, in nobody's name.
    let (closed, elsewhere) = ends(false, 8081, PORT + 1);
    served.lab.send(&data(elsewhere, closed, SEQ, ACKED, ACK, b""));
    let reset = served.lab.receive(elsewhere).expect("a reset");
    assert_eq!(reset.segment.flags & RST, RST, "{reset:?}");
    assert_eq!(reset.urgent, 0);
    assert_eq!(served.marked(), 0);
}

/// A connection of this test's own process.
struct Accepted {
    lab: Lab,
    adopter: Adopter,
    _attachment: Attachment,
    ours: SocketAddr,
    pod: SocketAddr,
    listener: Option<TcpListener>,
    connection: Option<TcpStream>,
}

impl Accepted {
    fn new(v6: bool) -> Self {
        let mut accepted = Self::listening(v6);
        accepted.accept();
        accepted
    }

    fn listening(v6: bool) -> Self {
        let lab = Lab::new();
        let (pod, ours) = ends(v6, 8080, PORT);
        let listener = lab.listen(pod);
        let (adopter, attachment) = adopter(&lab);
        Self {
            lab,
            adopter,
            _attachment: attachment,
            ours,
            pod,
            listener: Some(listener),
            connection: None,
        }
    }

    fn accept(&mut self) {
        let adopt = Message::adopt().segment(self.ours, self.pod, SEQ, ACKED, &KEY);
        self.lab.send(&adopt);
        let listener = self.listener.as_ref().expect("open");
        self.connection = Some(listener.accept().expect("accept").0);
    }

    fn last(&self) -> Received {
        last(&self.lab, self.ours)
    }

    /// The mark of the FIN that it sends if it closes now.
    fn mark_of_fin(&mut self) -> u16 {
        drop(self.connection.take());
        let last = self.last();
        assert_eq!(last.segment.flags & (FIN | RST), FIN, "{last:?}");
        last.urgent
    }

    fn counted(&self, outcome: Outcome) -> u64 {
        self.lab.count(&self.adopter, outcome)
    }
}

#[test]
fn a_process_that_listens_marks_what_it_closes() {
    for v6 in [false, true] {
        let mut closes = Accepted::new(v6);
        assert_eq!(closes.mark_of_fin(), LISTENER_MARK);
        // Nobody acknowledges it. What becomes of the listener says nothing of a close that was
        // meant.
        drop(closes.listener.take());
        let again = closes.last();
        assert_eq!(again.segment.flags & (FIN | RST), FIN, "{again:?}");
        assert_eq!(again.urgent, LISTENER_MARK, "a repetition");
        assert!(closes.counted(Outcome::ListenerMarked) >= 2);
        assert_eq!(closes.counted(Outcome::ExitMarked), 0);

        let mut resets = Accepted::new(v6);
        resets.lab.send(&data(resets.ours, resets.pod, SEQ, ACKED, PSH_ACK, b"?"));
        let connection = resets.connection.as_ref().expect("open");
        let unread = connection.peek(&mut [0]).expect("what was sent");
        assert_eq!(unread, 1);
        drop(resets.connection.take());
        let last = resets.last();
        assert_eq!(last.segment.flags & (FIN | RST), RST, "{last:?}");
        assert_eq!(last.urgent, LISTENER_MARK);
    }
}

/// Apache does so before it closes.
#[test]
fn a_process_that_shuts_its_side_down_says_whether_it_had_read_all() {
    for (read, ends, mark) in [
        (1, false, UNREAD_MARK),
        (2, false, LISTENER_MARK),
        (1, true, UNREAD_MARK),
        // The client's own end is no byte of a request.
        (2, true, LISTENER_MARK),
    ] {
        let pod = Accepted::new(read == 1);
        (pod.lab).send(&data(pod.ours, pod.pod, SEQ, ACKED, PSH_ACK, b"??"));
        let mut connection = pod.connection.as_ref().expect("open");
        connection.read_exact(&mut b"??"[..read].to_vec()).expect("read");
        if ends {
            (pod.lab).send(&data(pod.ours, pod.pod, SEQ + 2, ACKED, FIN_ACK, b""));
            // It waits for the end, and takes nothing.
            let left = connection.peek(&mut [0; 2]).expect("there");
            assert_eq!(left, 2 - read);
        }
        connection.shutdown(Shutdown::Write).expect("shutdown");
        let last = pod.last();
        assert_eq!(last.segment.flags & (FIN | RST), FIN, "{last:?}");
        assert_eq!(last.urgent, mark, "{read} read, FIN: {ends}");
    }
}

/// As the worker of a server that shuts down, while its master still listens.
#[test]
fn a_process_that_let_go_of_its_listener_marks_nothing() {
    let mut pod = Accepted::listening(false);
    let listener = pod.listener.as_ref().expect("open");
    let listener = listener.try_clone().expect("another descriptor");
    // Before there is a connection, which it would have until it has become another program.
    let mut master = Command::new("sleep")
        .arg("1000")
        .stdin(Stdio::from(OwnedFd::from(listener)))
        .spawn()
        .expect("sleep starts");
    pod.accept();
    drop(pod.listener.take());
    let mark = pod.mark_of_fin();
    master.kill().expect("kill");
    master.wait().expect("its end");
    assert_eq!(mark, 0);
    assert_eq!(pod.counted(Outcome::ListenerMarked), 0);
}

/// Only that one's process tells of the connections of a port.
#[test]
fn a_listener_of_another_port_or_pod_is_none() {
    let mut pod = Accepted::new(false);
    drop(pod.listener.take());
    let _port = pod.lab.listen(ends(false, 8081, PORT).0);
    let other = Lab::new();
    let _pod = other.listen(ends(false, 8080, PORT).0);
    assert_eq!(pod.mark_of_fin(), 0);
}

#[test]
fn a_listener_behind_many_descriptors_is_not_found_and_that_is_counted() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let enough = u64::try_from(4 * DESCRIPTORS_MAX).expect("positive");
    let had = getrlimit(Resource::Nofile);
    let more = Rlimit {
        current: Some(had.current.unwrap_or(enough).max(enough)),
        maximum: had.maximum.map(|max| max.max(enough)),
    };
    setrlimit(Resource::Nofile, more).expect("root may");
    for (at, mark, counted) in [(DESCRIPTORS_MAX - 1, LISTENER_MARK, 0), (DESCRIPTORS_MAX, 0, 1)] {
        let mut pod = Accepted::new(false);
        let listener = pod.listener.take().expect("open");
        let moved = rustix::io::fcntl_dupfd_cloexec(&listener, at).expect("another descriptor");
        assert_eq!(moved.as_raw_fd(), at, "nobody else has so many");
        drop(listener);
        assert_eq!(pod.mark_of_fin(), mark);
        assert_eq!(pod.counted(Outcome::TooManyDescriptors), counted);
    }
}

/// The kernel sends it while anybody runs, this test's own process perhaps.
#[test]
fn a_fin_behind_data_that_the_client_took_late_is_in_nobodys_name() {
    let mut pod = Accepted::new(false);
    let connection = pod.connection.as_mut().expect("open");
    // Much more than leaves at once.
    connection.set_nonblocking(true).expect("set");
    let sent = connection.write(&[7; 200_000]).expect("room");
    drop(pod.connection.take());
    let (mut next, end) = (ACKED, ACKED + u32::try_from(sent).expect("few"));
    loop {
        let received = pod.lab.receive(pod.ours).expect("more").segment;
        if received.flags & FIN != 0 {
            break;
        }
        next = received.seq + u32::try_from(received.payload.len()).expect("few");
        pod.lab.send(&data(pod.ours, pod.pod, SEQ, next, ACK, b""));
    }
    assert!(next > ACKED && end > next, "the FIN came later, with the rest");
    assert_eq!(pod.counted(Outcome::ListenerMarked), 0);
}
