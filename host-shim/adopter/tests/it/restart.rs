//! The adopter outlives its loader, and a successor takes over without missing a segment.

use crate::common::{
    INTERFACE, Lab, Pins, ends,
    segment::{Message, PSH_ACK, RST, Segment, timestamps},
};
use baton_adopter::{Adopter, Error, Hook, Netns, Outcome};
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

const KEY: [u8; 16] = [9; 16];
const SEQ: u32 = 1_000;
const ACKED: u32 = 2_000;

/// A probe is answered if and only if an adopter with the key is there; without one the kernel
/// resets.
fn adopter_is_there(lab: &Lab, port: u16) -> bool {
    let (pod, ours) = ends(false, 8081, port);
    lab.send(&Message::probe().segment(ours, pod, SEQ, ACKED, &KEY));
    let answer = lab.receive(ours).expect("an answer or a reset").segment;
    match Message::parse(&answer) {
        Some(_) => true,
        None => {
            assert_eq!((answer.flags, answer.options.len()), (RST, 0), "{answer:?}");
            false
        }
    }
}

#[test]
fn unpinned_it_ends_with_the_attachment() {
    let lab = Lab::new();
    let adopter = Adopter::load(None).expect("load");
    adopter.set_key(1, &KEY).expect("set a key");
    assert!(!adopter_is_there(&lab, 1));
    let attachment = adopter.attach(&lab.netns(), INTERFACE).expect("attach");
    assert!(attachment.alive());
    assert!(adopter_is_there(&lab, 2));
    adopter.detach(attachment).expect("detach");
    assert!(!adopter_is_there(&lab, 3));
}

/// Says so in the end, also that of a panic.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_successor_takes_over_without_a_gap() {
    let (lab, pins) = (Lab::new(), Pins::new());
    let (pod, _) = ends(false, 8080, 0);
    let listener = lab.listen(pod);
    let load = || Adopter::load(Some(&pins.0)).expect("load");
    let first = load();
    first.set_key(1, &KEY).expect("set a key");
    let attachment = first.attach(&lab.netns(), INTERFACE).expect("attach");
    lab.learn_number(&first);
    assert!(!attachment.taken_over());
    let id = attachment.id();
    // As a SIGKILL leaves it.
    drop((attachment, first));

    const RESTARTS: usize = 10;
    // Used again and again: a connection that is closed with its byte unread is reset, and its
    // tuple free.
    const PORTS: u32 = 40_000;
    let stop = AtomicBool::new(false);
    let adopted = std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            let mut adopted = 0_u32;
            // Every adoption is followed by data, and every one must be accepted: a gap would draw
            // a reset.
            while !stop.load(Ordering::Relaxed) || adopted < 200 {
                let port = u16::try_from(adopted % PORTS).expect("a port");
                let (_, ours) = ends(false, 8080, 10_000 + port);
                // The same port and number would be the same adoption.
                let seq = SEQ + adopted / PORTS;
                let message = Message::adopt();
                lab.send(&message.segment(ours, pod, seq, ACKED, &KEY));
                lab.send(&Segment {
                    from: ours,
                    to: pod,
                    seq,
                    ack: ACKED,
                    flags: PSH_ACK,
                    window: 500,
                    options: timestamps(message.tsval, message.tsecr),
                    payload: vec![1],
                });
                let reply = lab.receive(ours).expect("a reply").segment;
                assert_eq!(
                    (reply.flags & RST, reply.ack),
                    (0, seq + 1),
                    "adoption {adopted} failed: {reply:?}"
                );
                let (connection, peer) = listener.accept().expect("accept");
                assert_eq!(peer, ours);
                drop(connection);
                adopted += 1;
            }
            adopted
        });
        let until = StopAtEnd(&stop);
        for _ in 0..RESTARTS {
            let next = load();
            assert_eq!(next.reused_maps().len(), 19, "{next:?}");
            let attachment = next.attach(&lab.netns(), INTERFACE).expect("attach");
            assert!(attachment.taken_over());
            assert_eq!(attachment.id(), id);
            assert_eq!(next.pinned().expect("pins"), [id]);
        }
        drop(until);
        client.join().expect("no adoption failed")
    });

    let last = load();
    // Keys and counters went from one to the next.
    assert_eq!(last.live_epochs().expect("epochs"), [1]);
    assert_eq!(
        last.counters_of(&lab.netns()).expect("counters").of(Outcome::Adopted),
        u64::from(adopted)
    );
    last.unpin_all().expect("unpin");
    assert!(!adopter_is_there(&lab, 4));
    let left: Vec<_> = std::fs::read_dir(&pins.0)
        .expect("the directory")
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        // The kernel's own, in every BPF file system.
        .filter(|name| !name.ends_with(".debug"))
        .collect();
    assert_eq!(left, [""; 0]);
}

#[test]
fn recent_adoptions_are_remembered_across_a_restart() {
    let (lab, pins) = (Lab::new(), Pins::new());
    let (pod, ours) = ends(false, 8080, 40_000);
    let listener = lab.listen(pod);
    let load = || Adopter::load(Some(&pins.0)).expect("load");
    let first = load();
    first.set_key(1, &KEY).expect("set a key");
    let attachment = first.attach(&lab.netns(), INTERFACE).expect("attach");
    lab.learn_number(&first);
    let adoption = Message::adopt().segment(ours, pod, SEQ, ACKED, &KEY);
    lab.send(&adoption);
    let connection = listener.accept().expect("accept");
    lab.send(&Segment { flags: RST, options: timestamps(700_001, 1), ..adoption.clone() });
    crate::common::wait_for("the reset ends the socket", || lab.sockets(8080) == 0);
    drop((attachment, first, connection));

    let second = load();
    let _attachment = second.attach(&lab.netns(), INTERFACE).expect("attach");
    lab.send(&adoption);
    let answer = lab.receive(ours).expect("an answer").segment;
    let (answer, _) = Message::parse(&answer).expect("a message");
    assert_eq!(answer.mss, 5, "AlreadyAdopted");
}

#[test]
fn what_is_no_longer_wanted_is_found_and_removed() {
    let (lab, pins) = (Lab::new(), Pins::new());
    let load = || Adopter::load(Some(&pins.0)).expect("load");
    let first = load();
    first.set_key(1, &KEY).expect("set a key");
    drop(first.attach(&lab.netns(), INTERFACE).expect("attach"));
    drop(first);
    assert!(adopter_is_there(&lab, 1));
    let second = load();
    let left = second.pinned().expect("pins");
    assert_eq!(left.len(), 1);
    second.detach_id(left[0]).expect("detach");
    assert_eq!(second.pinned().expect("pins"), []);
    assert!(!adopter_is_there(&lab, 2));
}

#[test]
fn a_pin_of_an_interface_that_is_gone_is_replaced() {
    let (lab, pins) = (Lab::new(), Pins::new());
    let netns = lab.netns_name();
    crate::common::run(&format!("ip -n {netns} link add extra type veth peer name other"));
    crate::common::run(&format!("ip -n {netns} link set extra up"));
    let adopter = Adopter::load(Some(&pins.0)).expect("load");
    let first = adopter.attach(&lab.netns(), "extra").expect("attach");
    assert!(first.alive());
    crate::common::run(&format!("ip -n {netns} link del extra"));
    assert!(!first.alive());
    let index = first.id().ifindex;
    drop(first);
    // The same index again, as a recreated interface may have it.
    crate::common::run(&format!(
        "ip -n {netns} link add extra index {index} type veth peer name other"
    ));
    let second = adopter.attach(&lab.netns(), "extra").expect("attach");
    assert_eq!(second.id().ifindex, index);
    assert!(!second.taken_over());
    assert!(second.alive());
}

#[test]
fn two_loaders_do_not_share_a_directory() {
    let pins = Pins::new();
    let _first = Adopter::load(Some(&pins.0)).expect("load");
    let second = Adopter::load(Some(&pins.0)).expect_err("the directory is in use");
    assert!(matches!(second, Error::Busy { .. }), "{second}");
}

#[test]
fn clsact_adopts_takes_over_and_detaches() {
    let (lab, pins) = (Lab::new(), Pins::new());
    let load = || Adopter::load(Some(&pins.0)).expect("load");
    let first = load();
    first.set_key(1, &KEY).expect("set a key");
    let attachment = first.attach_clsact(&lab.netns(), INTERFACE).expect("attach");
    assert_eq!((attachment.id().hook, attachment.taken_over()), (Hook::Clsact, false));
    assert!(adopter_is_there(&lab, 1));
    drop((attachment, first));
    assert!(adopter_is_there(&lab, 2));
    let second = load();
    let attachment = second.attach_clsact(&lab.netns(), INTERFACE).expect("attach");
    assert!(attachment.taken_over());
    assert_eq!(second.pinned().expect("pins"), [attachment.id()]);
    second.unpin_all().expect("unpin");
    assert!(!adopter_is_there(&lab, 3));
}

#[test]
fn namespaces_and_interfaces_that_are_not_there_are_named() {
    let lab = Lab::new();
    let adopter = Adopter::load(None).expect("load");
    let missing = adopter
        .attach(&Netns::Name("bt-no-such".into()), INTERFACE)
        .expect_err("no such namespace");
    assert!(matches!(missing, Error::NetnsMissing { .. }));
    assert!(missing.to_string().contains("bt-no-such"), "{missing}");
    let file = adopter
        .attach(&Netns::Path("/etc/hostname".into()), INTERFACE)
        .expect_err("not a namespace");
    assert!(matches!(file, Error::NetnsEnter { .. }), "{file}");
    let interface = adopter.attach(&lab.netns(), "eth7").expect_err("no such interface");
    let text = interface.to_string();
    assert!(matches!(interface, Error::InterfaceMissing { .. }), "{text}");
    assert!(text.contains("eth7") && text.contains("eth0"), "{text}");
    let loopback = adopter.attach(&lab.netns(), "lo").expect_err("no Ethernet");
    assert!(matches!(loopback, Error::NotEthernet { .. }), "{loopback}");
}

#[test]
fn a_namespace_is_found_by_path_and_by_pid() {
    let lab = Lab::new();
    let adopter = Adopter::load(None).expect("load");
    adopter.set_key(1, &KEY).expect("set a key");
    let path = Netns::Path(format!("/run/netns/{}", lab.netns_name()).into());
    assert_eq!(path.open().expect("open").cookie(), lab.pod.cookie());
    let mut sleeper = std::process::Command::new("ip")
        .args(["netns", "exec", &lab.netns_name(), "sleep", "60"])
        .spawn()
        .expect("a process in the pod");
    let pid = Netns::Pid(sleeper.id());
    crate::common::wait_for("the process is in the pod", || {
        pid.open().is_ok_and(|open| open.cookie() == lab.pod.cookie())
    });
    let attachment = adopter.attach(&pid, INTERFACE).expect("attach");
    sleeper.kill().expect("kill");
    sleeper.wait().expect("wait");
    // The process is gone, the namespace has another name still: the adopter stays.
    assert!(attachment.alive());
    assert!(adopter_is_there(&lab, 1));
    // The caller is where it was.
    let here = Netns::Pid(std::process::id()).open().expect("open");
    assert_ne!(here.cookie(), lab.pod.cookie());
    assert!(lab.receive_within(ends(false, 1, 2).1, Duration::ZERO).is_none());
}
