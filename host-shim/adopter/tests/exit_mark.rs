//! The last segments of a process that exits carry the mark, and no others do. Needs root.

mod common;

use baton_adopter::{Adopter, Attachment, Outcome};
use common::{
    INTERFACE, Lab,
    answer::{ACKED, KEY, PORT, SEQ, adopter, data},
    ends,
    segment::{ACK, Checksum, Message, PSH_ACK, RST, Received},
    wait_for,
};
use std::{
    net::SocketAddr,
    os::fd::OwnedFd,
    process::{Child, Command, Stdio},
};

const EXIT_MARK: u16 = 0xBA7E;
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
            (adopter, attachment.expect("attach"))
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
        // Only now: a process that ends before our own descriptor is closed is not the one who ends the connection.
        lab.send(&data(ours, pod, SEQ, ACKED, PSH_ACK, b"go\n"));
        Self {
            lab,
            adopter,
            _attachment: Some(attachment),
            ours,
            process,
        }
    }

    /// The connection's last segment from the pod.
    fn last(&self) -> Received {
        loop {
            let received = self.lab.receive(self.ours).expect("a last segment");
            assert_ne!(received.checksum, Checksum::Wrong, "{received:?}");
            if received.segment.flags & (FIN | RST) != 0 {
                return received;
            }
            assert_eq!(received.urgent, 0, "{received:?}");
        }
    }

    fn marked(&self) -> u64 {
        self.lab.count(&self.adopter, Outcome::ExitMarked)
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
    served
        .lab
        .send(&data(elsewhere, closed, SEQ, ACKED, ACK, b""));
    let reset = served.lab.receive(elsewhere).expect("a reset");
    assert_eq!(reset.segment.flags & RST, RST, "{reset:?}");
    assert_eq!(reset.urgent, 0);
    assert_eq!(served.marked(), 0);
}
