//! What the answer to a probe tells of the pod's load, by the real kernel: the accept queue, and
//! what became of those who want a CPU.

use crate::common::{
    Lab,
    answer::{ACKED, KEY, PORT, SEQ, adopter, load},
    ends,
    segment::{Message, SYN, Segment},
    unique, wait_for,
};
use baton_packet::{LoadReport, Pressure};
use socket2::{Domain, Socket, Type};
use std::{
    cell::Cell,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{self, Child, Command},
};

fn report(lab: &Lab, v6: bool) -> LoadReport {
    let (pod, ours) = ends(v6, 8080, PORT);
    load(lab, ours, pod).expect("a load report")
}

fn listen(lab: &Lab, address: SocketAddr, backlog: i32) -> Socket {
    lab.within_pod(|| {
        let socket =
            Socket::new(Domain::for_address(address), Type::STREAM, None).expect("a socket");
        socket.set_reuse_port(true).expect("SO_REUSEPORT");
        socket.bind(&address.into()).expect("bind");
        socket.listen(backlog).expect("listen");
        socket
    })
}

fn adopt(lab: &Lab, v6: bool, ports: impl Iterator<Item = u16>) {
    for port in ports {
        let (pod, ours) = ends(v6, 8080, port);
        lab.send(&Message::adopt().segment(ours, pod, SEQ, ACKED, &KEY));
    }
}

#[test]
fn the_accept_queue_is_as_long_as_it_is() {
    for v6 in [false, true] {
        let lab = Lab::new();
        let (_adopter, _attachment) = adopter(&lab);
        let listener = listen(&lab, ends(v6, 8080, PORT).0, 16);
        let calm = report(&lab, v6);
        // The kernel's test is "more than the backlog".
        assert_eq!((calm.queue, calm.room.get(), calm.drops), (0, 17, 0));
        adopt(&lab, v6, PORT + 1..PORT + 4);
        assert_eq!(report(&lab, v6).queue, 3);
        for left in [2, 1, 0] {
            drop(listener.accept().expect("a connection"));
            assert_eq!(report(&lab, v6).queue, left);
        }
    }
}

#[test]
fn what_a_full_queue_drops_is_counted() {
    let lab = Lab::new();
    let (_adopter, _attachment) = adopter(&lab);
    let pod = ends(false, 8080, PORT).0;
    let _listener = listen(&lab, pod, 1);
    adopt(&lab, false, PORT + 1..PORT + 3);
    let full = report(&lab, false);
    assert_eq!((full.queue, full.room.get(), full.drops), (2, 2, 0));
    for port in PORT + 3..PORT + 6 {
        let (_, from) = ends(false, 8080, port);
        lab.send(&Segment {
            from,
            to: pod,
            seq: 1,
            ack: 0,
            flags: SYN,
            window: 500,
            options: Vec::new(),
            payload: Vec::new(),
        });
    }
    let after = report(&lab, false);
    assert_eq!((after.queue, after.drops_since(&full)), (2, 3));
}

#[test]
fn of_several_listeners_on_a_port_the_sum_is_reported() {
    let lab = Lab::new();
    let (_adopter, _attachment) = adopter(&lab);
    let pod = ends(false, 8080, PORT).0;
    let _sockets: Vec<_> = (0..4).map(|_| listen(&lab, pod, 16)).collect();
    assert_eq!(report(&lab, false).room.get(), 4 * 17);
    adopt(&lab, false, PORT + 1..PORT + 12);
    assert_eq!(report(&lab, false).queue, 11);
}

#[test]
fn without_a_listener_there_is_no_report() {
    let lab = Lab::new();
    let (_adopter, _attachment) = adopter(&lab);
    let (pod, ours) = ends(false, 8080, PORT);
    assert_eq!(load(&lab, ours, pod), None);
}

/// A group of a hierarchy; its processes end and it is removed on drop.
struct Group {
    path: PathBuf,
    process: Cell<Option<Child>>,
}

/// The mount of the hierarchy with the CPU controller, if `v1`, or that of version 2.
fn mount(v1: bool) -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/mounts").expect("the kernel's list");
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (path, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
        let found = match v1 {
            true => kind == "cgroup" && options.split(',').any(|option| option == "cpu"),
            false => kind == "cgroup2",
        };
        found.then(|| path.into())
    })
}

impl Group {
    fn new(mount: &Path) -> Self {
        let path = mount.join(unique());
        fs::create_dir(&path).expect("root may make groups");
        Self { path, process: Cell::new(None) }
    }

    /// Does something as a process of the group, which this one then leaves.
    fn within<T>(&self, work: impl FnOnce() -> T) -> T {
        let mine = fs::read_to_string("/proc/self/cgroup").expect("the kernel's list");
        let mine = mine.lines().find_map(|line| line.strip_prefix("0::/"));
        let home = self.path.parent().expect("a mount").join(mine.unwrap_or(""));
        let join = |group: &Path| {
            fs::write(group.join("cgroup.procs"), process::id().to_string()).expect("join");
        };
        join(&self.path);
        let done = work();
        join(&home);
        done
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
        // A moment after its last process ended.
        wait_for("the group is removed", || fs::remove_dir(&self.path).is_ok());
    }
}

/// A process in the groups that wants a CPU all the time and is given 5 % of one.
fn throttled(group: &Group, limits: &Group, v1: bool) {
    let (file, quota) = match v1 {
        true => ("cpu.cfs_quota_us", "5000"),
        false => ("cpu.max", "5000 100000"),
    };
    fs::write(limits.path.join(file), quota).expect("a quota");
    let joins = [group, limits].map(|g| format!("echo $$ > {}/cgroup.procs", g.path.display()));
    let script = format!("{} && {} && while :; do :; done", joins[0], joins[1]);
    let child = Command::new("sh").args(["-c", &script]).spawn();
    limits.process.set(Some(child.expect("a shell")));
}

#[test]
fn a_pod_that_its_quota_stops_is_told_from_one_that_is_idle() {
    let Some(root) = mount(false) else {
        return;
    };
    let v1 = mount(true);
    let lab = Lab::new();
    let (_adopter, _attachment) = adopter(&lab);
    let (idle, busy) = (Group::new(&root), Group::new(&root));
    let limits = v1.as_deref().map(Group::new);
    if v1.is_none() {
        fs::write(root.join("cgroup.subtree_control"), "+cpu").expect("the CPU controller");
    }
    let pod = ends(false, 8080, PORT).0;
    let other = ends(false, 8081, PORT).0;
    let _idle = idle.within(|| listen(&lab, other, 16));
    let _busy = busy.within(|| listen(&lab, pod, 16));
    let of = |pod| load(&lab, ends(false, 8080, PORT).1, pod).expect("a load report");
    let (idle_before, before) = (of(other), of(pod));
    throttled(&busy, limits.as_ref().unwrap_or(&busy), v1.is_some());
    let cpu_us = |now: LoadReport, then: LoadReport| {
        let cpu = |report: LoadReport| report.pressure.map(|Pressure { cpu, .. }| cpu);
        Some(cpu(now)?.since_us(cpu(then)?))
    };
    if before.pressure.is_some() {
        // The kernel writes it down every two seconds.
        wait_for("the pressure is told", || cpu_us(of(pod), before).expect("pressure") > 1_000_000);
        assert_eq!(cpu_us(of(other), idle_before), Some(0));
    }
    assert_eq!(before.throttled.is_some(), v1.is_none());
    if let Some(none) = before.throttled {
        wait_for("throttled periods are told", || {
            let now = of(pod);
            now.throttled_now && now.throttled.expect("a quota").since_us(none) >= 290_000
        });
        assert_eq!(of(other).throttled, idle_before.throttled);
    }
}
