//! What the BPF program costs: per packet that is none of its business, and per message.
//!
//! `cargo bench -p baton-adopter` (root). Ordinary packets by `BPF_PROG_TEST_RUN`, one million
//! times each; messages by the kernel's own statistics, on real packets in a namespace, since only
//! those can be adopted.

#[path = "../tests/it/common/mod.rs"]
mod common;

use baton_adopter::{Adopter, Outcome, measure::Statistics};
use common::{
    INTERFACE, Lab,
    answer::{KEY, load},
    ends,
    segment::{Message, PSH_ACK, Segment, timestamps},
};
use std::{fs, net::SocketAddr, path::PathBuf, process, time::Instant};

const REPEAT: u32 = 1_000_000;
const MESSAGES: u16 = 20_000;
/// Of one node, or of all nodes that a dataplane asks.
const PODS: u16 = 1_000;
const FIRST_PORT: u16 = 10_000;
const ROUNDS: u64 = 20;
/// Of a dataplane's worker at most, for load reports (`LOAD_PROBES_PER_SECOND_MAX` of the engine).
const PROBES: u32 = 2_000;

fn main() {
    let lab = Lab::new();
    let adopter = Adopter::load(None).expect("the kernel takes the adopter");
    adopter.set_key(1, &KEY).expect("set a key");
    ordinary(&adopter);
    let _attachment = adopter.attach(&lab.netns(), INTERFACE).expect("attach");
    lab.learn_number(&adopter);
    let _statistics = Statistics::enable().expect("root");

    let (pod, _) = ends(false, 8080, 0);
    messages(&lab, &adopter, "probe answered (NoListener)", |ours| {
        Message::probe().segment(ours, pod, 1, 1, &KEY)
    });
    messages(&lab, &adopter, "wrong tag dropped", |ours| {
        Message::adopt().segment(ours, pod, 1, 1, &[0; 16])
    });
    if let Some(mut groups) = Groups::new() {
        groups.join("pod");
        let _listener = lab.listen(pod);
        drop(groups);
        messages(&lab, &adopter, "probe answered, in a Pod's group", |ours| {
            Message::probe().segment(ours, pod, 1, 1, &KEY)
        });
    }
    if let Some(groups) = Groups::new() {
        many_pods(&lab, &adopter, groups);
    }
    let listener = lab.listen(pod);
    messages(&lab, &adopter, "probe answered (Ready)", |ours| {
        Message::probe().segment(ours, pod, 1, 1, &KEY)
    });
    listener.set_nonblocking(true).expect("nonblocking");
    messages(&lab, &adopter, "adoption", |ours| {
        // Keeps the accept queue empty; the last one sent is in it.
        drop(listener.accept());
        Message::adopt().segment(ours, pod, 1, 1, &KEY)
    });
    let adopted = adopter.counters().expect("counters").of(Outcome::Adopted);
    assert_eq!(adopted, u64::from(MESSAGES), "each was adopted");
}

/// All of a dataplane's pods are asked in turn, so that nothing of one is in the CPU's caches when
/// it is asked again: how long the program takes, and all that the kernel does for a probe, from
/// the packet socket that sends it to the one that has the answer.
fn many_pods(lab: &Lab, adopter: &Adopter, mut groups: Groups) {
    let listeners: Vec<_> = (0..PODS)
        .map(|n| {
            groups.join(&format!("pod{n}"));
            lab.listen(ends(false, FIRST_PORT + n, 0).0)
        })
        .collect();
    groups.leave();
    // Else answers find no room.
    let drain = || while lab.peer.receive(Instant::now()).is_some() {};
    drain();
    let (pod, ours) = ends(false, FIRST_PORT, 40_000);
    let told = load(lab, ours, pod).expect("a load report");
    let known = fs::exists("/proc/pressure/cpu").expect("a directory");
    assert_eq!(told.pressure.is_some(), known, "{told:?}");
    let segments: Vec<_> = (0..PODS)
        .map(|n| {
            let (pod, ours) = ends(false, FIRST_PORT + n, 40_000);
            Message::probe().segment(ours, pod, 1, 1, &KEY)
        })
        .collect();
    let before = adopter.runs().expect("statistics");
    let rounds = (0..ROUNDS).map(|_| {
        let begun = Instant::now();
        for segment in &segments {
            lab.send(segment);
        }
        let took = begun.elapsed();
        drain();
        took
    });
    let fastest = rounds.min().expect("some rounds");
    let after = adopter.runs().expect("statistics");
    assert_eq!(after.count - before.count, u64::from(PODS) * ROUNDS);
    let program = (after.time - before.time) / (u32::from(PODS) * ROUNDS as u32);
    let all = fastest / u32::from(PODS);
    println!(
        "probes of {PODS} pods in turn: {} ns in the program, {} ns in all; {PROBES} a second are {:.2} % of a core",
        program.as_nanos(),
        all.as_nanos(),
        100.0 * f64::from(PROBES) * all.as_secs_f64()
    );
    drop(listeners);
}

/// Control groups of version 2, as deep as Pods' are; this process is in one of them or at home.
struct Groups {
    groups: Vec<PathBuf>,
    home: PathBuf,
}

impl Groups {
    fn new() -> Option<Self> {
        let mounts = fs::read_to_string("/proc/mounts").ok()?;
        let mount = mounts.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let path = fields.next()?;
            (fields.next()? == "cgroup2").then(|| PathBuf::from(path))
        })?;
        let mine = fs::read_to_string("/proc/self/cgroup").ok()?;
        let mine = mine.lines().find_map(|line| line.strip_prefix("0::/"))?;
        let home = mount.join(mine).join("cgroup.procs");
        let mut all = Self { groups: Vec::new(), home };
        all.make(mount.join(common::unique()));
        all.make(all.groups[0].join("burstable"));
        Some(all)
    }

    fn make(&mut self, path: PathBuf) {
        fs::create_dir(&path).expect("root may make groups");
        self.groups.push(path);
    }

    /// What is made from now on is a container's of that Pod.
    fn join(&mut self, pod: &str) {
        let pod = self.groups[1].join(pod);
        let container = pod.join("container");
        self.make(pod);
        self.make(container.clone());
        let procs = container.join("cgroup.procs");
        fs::write(procs, process::id().to_string()).expect("join");
    }

    fn leave(&self) {
        fs::write(&self.home, process::id().to_string()).expect("leave");
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        self.leave();
        for group in self.groups.iter().rev() {
            // What is not empty yet is of no harm.
            let _ = fs::remove_dir(group);
        }
    }
}

/// Packets that are passed on. ARP leaves at the first comparison: what it costs is the cost of
/// calling a program.
fn ordinary(adopter: &Adopter) {
    let arp = [&[2; 6][..], &[4; 6], &[8, 6], &[0; 46]].concat();
    let (_, mean) = adopter.test_run(&arp, REPEAT).expect("test run");
    println!("ARP  (an empty call)              {:>6} ns", mean.as_nanos());
    for v6 in [false, true] {
        let (to, from) = ends(v6, 8080, 40_000);
        let segment = |options: Vec<u8>, payload: usize| Segment {
            from,
            to,
            seq: 1,
            ack: 1,
            flags: PSH_ACK,
            window: 500,
            options,
            payload: vec![0x55; payload],
        };
        let sacks: Vec<u8> = [timestamps(1, 1), vec![1, 1, 5, 18], vec![7; 16]].concat();
        for (what, segment) in [
            ("data, timestamps", segment(timestamps(1, 1), 1_000)),
            ("pure ACK, timestamps", segment(timestamps(1, 1), 0)),
            ("ACK with two SACK blocks", segment(sacks, 0)),
        ] {
            let frame = segment.frame([2; 6], [4; 6]);
            let (action, mean) = adopter.test_run(&frame, REPEAT).expect("test run");
            assert_eq!(action, -1, "{what} is passed on");
            let version = if v6 { "IPv6" } else { "IPv4" };
            println!("{version} {what:<28} {:>6} ns", mean.as_nanos());
        }
    }
}

/// Sends messages one by one, so that none is lost, and prints the kernel's mean.
fn messages(lab: &Lab, adopter: &Adopter, what: &str, message: impl Fn(SocketAddr) -> Segment) {
    let before = adopter.runs().expect("statistics");
    for n in 0..MESSAGES {
        let (_, ours) = ends(false, 8080, 1_024 + n);
        lab.send(&message(ours));
        common::wait_for("the message is handled", || {
            adopter.runs().expect("statistics").count > before.count + u64::from(n)
        });
    }
    let after = adopter.runs().expect("statistics");
    let (count, time) = (after.count - before.count, after.time - before.time);
    println!(
        "IPv4 {what:<28} {:>6} ns (mean of {count} runs)",
        time.as_nanos() / u128::from(count.max(1))
    );
}
