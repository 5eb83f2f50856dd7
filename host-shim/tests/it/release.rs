//! The daemon decides Releases: at once, for all that are asked of a pod, and what was asked while
//! none ran.

use crate::daemon::common::{
    Lab, ends,
    segment::{Message, NAMESPACE, PSH_ACK, RST, Received, Segment, timestamps},
    wait_for,
};
use crate::daemon::{Daemon, Files, KEY, answer, free_address};
use std::{
    io::{ErrorKind, Read},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::atomic::Ordering,
};

const SEQ: u32 = 1_000;
const ACKED: u32 = 2_000;
const RELEASED: u16 = 11;
const KEPT: u16 = 12;
const RELEASE_MARK: u16 = 0xBA80;
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\n\r\n";

/// A connection with a request that nobody reads.
fn stalled(lab: &Lab, listener: &TcpListener, ours: SocketAddr, pod: SocketAddr) -> TcpStream {
    let message = Message::adopt();
    lab.send(&message.segment(ours, pod, SEQ, ACKED, &KEY));
    lab.send(&Segment {
        from: ours,
        to: pod,
        seq: SEQ,
        ack: ACKED,
        flags: PSH_ACK,
        window: 500,
        options: timestamps(message.tsval + 1, message.tsecr),
        payload: REQUEST.to_vec(),
    });
    let acknowledged = lab.receive(ours).expect("an acknowledgement").segment;
    assert_eq!(acknowledged.flags & RST, 0, "{acknowledged:?}");
    listener.accept().expect("a connection").0
}

fn release(ours: SocketAddr, pod: SocketAddr) -> Segment {
    Message::release().here().segment(ours, pod, SEQ, ACKED, &KEY)
}

/// Sends copies, as the dataplane does, until one is answered; and the marks that were seen.
fn told(lab: &Lab, ours: SocketAddr, pod: SocketAddr) -> (u16, Vec<u16>) {
    let (mut reason, mut marks) = (None, Vec::new());
    wait_for("it is answered", || {
        lab.send(&release(ours, pod));
        let patience = std::time::Duration::from_millis(20);
        while let Some(Received { segment, urgent, .. }) = lab.receive_within(ours, patience) {
            if let Some((message, _)) = Message::parse(&segment) {
                reason = Some(message.mss);
            } else if segment.flags & RST != 0 {
                marks.push(urgent);
            }
        }
        reason.is_some()
    });
    (reason.expect("answered"), marks)
}

fn is_gone(mut connection: &TcpStream) {
    let error = connection.read(&mut [0; 64]).expect_err("it is gone");
    assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
}

#[test]
fn it_releases_what_was_asked_also_before_it_started() {
    let (lab, files, control) = (Lab::new(), Files::new(), free_address());
    files.config(&format!(
        "keys: [{{epoch: 1, file: KEY}}]\npods:\n  - {{name: a, netns: {{name: {}}}, interface: eth0}}\n\
         control: {control}\npin: PINS\n",
        lab.netns_name()
    ));
    let (pod, _) = ends(false, 8080, 0);
    let ours = |n: u16| ends(false, 8080, 40_000 + n).1;
    let listener = lab.listen(pod);
    let first = Daemon::start(&files, control, &[]);
    let number = answer(&lab, 1, &KEY).expect("the adopter answers");
    NAMESPACE.store(number.namespace, Ordering::Relaxed);

    let connection = stalled(&lab, &listener, ours(0), pod);
    assert_eq!(told(&lab, ours(0), pod), (RELEASED, vec![RELEASE_MARK]));
    is_gone(&connection);
    let mut connection = stalled(&lab, &listener, ours(1), pod);
    connection.read_exact(&mut [0]).expect("a byte");
    assert_eq!(told(&lab, ours(1), pod), (KEPT, vec![]));
    let state = first.state();
    let decided = &state["releases"]["decided"];
    assert_eq!((&decided["released"], &decided["kept"]), (&1.into(), &1.into()));
    let (_, metrics) = first.get("/metrics");
    for line in [
        "baton_shim_releases_total{decision=\"released\"} 1",
        "baton_shim_releases_total{decision=\"kept\"} 1",
        "baton_shim_release_pass_seconds_count 2",
        "baton_shim_can_release 1",
        "baton_shim_adoption_segments_total{outcome=\"release_marked\"} 1",
    ] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }

    // Killed: the adopter goes on asking, and the successor decides.
    let connection = stalled(&lab, &listener, ours(2), pod);
    first.signal("KILL");
    first.wait();
    lab.send(&release(ours(2), pod));
    let second = Daemon::start(&files, control, &[]);
    assert_eq!(told(&lab, ours(2), pod), (RELEASED, vec![RELEASE_MARK]));
    is_gone(&connection);
    // What its predecessor decided is still so.
    assert_eq!(told(&lab, ours(0), pod), (RELEASED, vec![]));
    assert_eq!(told(&lab, ours(1), pod), (KEPT, vec![]));
    second.signal("TERM");
    assert!(second.wait().success());
}
