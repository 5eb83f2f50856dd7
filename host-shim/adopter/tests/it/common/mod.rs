//! A pod and its neighbour, each in a network namespace of its own, for tests that need root.
//!
//! The neighbour is a bare packet socket: its namespace has no address, so that no kernel answers
//! in its place.
#![allow(dead_code, reason = "each test binary uses another part")]

pub mod answer;
pub mod packet_socket;
pub mod segment;

use baton_adopter::{Adopter, Netns, OpenNetns, Outcome};
use packet_socket::PacketSocket;
use segment::{Received, Segment};
use std::{
    cell::Cell,
    net::{IpAddr, SocketAddr, TcpListener},
    num::NonZeroU32,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::{self, Command},
    sync::{
        Mutex, MutexGuard, Once, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

/// Long enough for a busy machine; nothing waits this long when all is well.
pub const DEADLINE: Duration = Duration::from_secs(5);
/// The pod's interface.
pub const INTERFACE: &str = "eth0";

pub const POD_MAC: [u8; 6] = [0x02, 0xba, 0, 0, 0, 1];
pub const PEER_MAC: [u8; 6] = [0x02, 0xba, 0, 0, 0, 2];

/// Two namespaces and the wire between them; removed on drop.
pub struct Lab {
    name: String,
    pub pod: OpenNetns,
    pub peer: PacketSocket,
    /// Received while looking for another.
    passed: Mutex<Vec<Received>>,
    _alone: Option<Alone>,
}

/// One test with labs at a time: what another one starts has this process's descriptors until it
/// has become another program, so that nothing that is closed meanwhile is closed. A test may have
/// several labs.
struct Alone(MutexGuard<'static, ()>);

thread_local! {
    static IS_ALONE: Cell<bool> = const { Cell::new(false) };
}

impl Alone {
    fn new() -> Option<Self> {
        static ONE: Mutex<()> = Mutex::new(());
        let already = IS_ALONE.replace(true);
        (!already).then(|| Self(ONE.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        IS_ALONE.set(false);
    }
}

/// Runs a command that must succeed.
pub fn run(command: &str) {
    let mut words = command.split_whitespace();
    let program = words.next().expect("a command");
    let output =
        Command::new(program).args(words).output().unwrap_or_else(|e| panic!("`{command}`: {e}"));
    assert!(
        output.status.success(),
        "`{command}`: {} {}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

fn attempt(command: &str) {
    let mut words = command.split_whitespace();
    let program = words.next().expect("a command");
    let _ = Command::new(program).args(words).output();
}

/// A name that no other test of any process has: `bt-<pid>-<n>`.
pub fn unique() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    static CLEAN: Once = Once::new();
    CLEAN.call_once(remove_what_dead_tests_left);
    format!("bt-{}-{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn remove_what_dead_tests_left() {
    let names = |dir: &str| -> Vec<String> {
        std::fs::read_dir(dir)
            .into_iter()
            .flatten()
            .filter_map(|e| e.ok()?.file_name().into_string().ok())
            .collect()
    };
    let dead = |name: &str| {
        let pid = name.strip_prefix("bt-").and_then(|rest| rest.split('-').next());
        pid.is_some_and(|pid| pid.parse::<u32>().is_ok() && !Path::new("/proc").join(pid).exists())
    };
    for name in names("/run/netns").iter().filter(|n| dead(n)) {
        attempt(&format!("ip netns del {name}"));
    }
    for name in names("/run").iter().filter(|n| dead(n) && n.ends_with("-bpf")) {
        attempt(&format!("umount /run/{name}"));
        attempt(&format!("rmdir /run/{name}"));
    }
}

impl Lab {
    /// Messages are for this lab's pod from now on.
    pub fn learn_number(&self, adopter: &Adopter) {
        let number = adopter.namespace_number(self.pod.cookie());
        let number = number.expect("a number").expect("it is attached");
        segment::NAMESPACE.store(number, Ordering::Relaxed);
    }

    /// How often the adopter counted an outcome in the pod.
    pub fn count(&self, adopter: &Adopter, outcome: Outcome) -> u64 {
        let counters = adopter.counters_of(&self.netns());
        counters.expect("counters").of(outcome)
    }

    pub fn new() -> Self {
        let alone = Alone::new();
        let name = unique();
        let (pod, peer) = (format!("{name}-pod"), format!("{name}-peer"));
        for netns in [&pod, &peer] {
            run(&format!("ip netns add {netns}"));
            run(&format!("ip -n {netns} link set lo up"));
        }
        run(&format!("ip netns exec {peer} sysctl -qw net.ipv6.conf.all.disable_ipv6=1"));
        run(&format!(
            "ip link add {INTERFACE} netns {pod} address 02:ba:00:00:00:01 type veth peer name wire netns {peer} address 02:ba:00:00:00:02"
        ));
        run(&format!("ip -n {peer} link set wire up"));
        run(&format!("ip -n {pod} link set {INTERFACE} up"));
        for (address, neighbour) in [("10.7.0.1/24", "10.7.0.2"), ("fd07::1/64", "fd07::2")] {
            let nodad = if address.contains(':') { "nodad" } else { "" };
            run(&format!("ip -n {pod} addr add {address} dev {INTERFACE} {nodad}"));
            run(&format!(
                "ip -n {pod} neigh add {neighbour} lladdr 02:ba:00:00:00:02 dev {INTERFACE}"
            ));
        }
        let open = |name: String| Netns::Name(name).open().expect("the namespace was just made");
        let peer = open(peer)
            .within(|| PacketSocket::bind("wire"))
            .expect("enter the peer's namespace")
            .expect("a packet socket");
        Self { pod: open(pod), peer, name, passed: Mutex::default(), _alone: alone }
    }

    pub fn netns_name(&self) -> String {
        format!("{}-pod", self.name)
    }

    pub fn netns(&self) -> Netns {
        Netns::Name(self.netns_name())
    }

    pub fn sysctl(&self, setting: &str) {
        run(&format!("ip netns exec {} sysctl -qw {setting}", self.netns_name()));
    }

    /// Does something in the pod's network.
    pub fn within_pod<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.pod.within(work).expect("enter the pod")
    }

    /// A plain listener, as any application makes one.
    pub fn listen(&self, address: SocketAddr) -> TcpListener {
        self.pod.within(|| TcpListener::bind(address)).expect("enter the pod").expect("listen")
    }

    /// A listener that takes MPTCP connections too; `None` where the kernel has no MPTCP, and so no
    /// such listeners.
    pub fn listen_mptcp(&self, address: SocketAddr) -> Option<OwnedFd> {
        use rustix::net::{AddressFamily, Protocol, SocketType, bind, listen, socket};
        const IPPROTO_MPTCP: NonZeroU32 = NonZeroU32::new(262).unwrap();
        let protocol = Some(Protocol::from_raw(IPPROTO_MPTCP));
        self.pod
            .within(|| {
                let fd = socket(AddressFamily::INET, SocketType::STREAM, protocol).ok()?;
                bind(&fd, &address).expect("bind");
                listen(&fd, 16).expect("listen");
                Some(fd)
            })
            .expect("enter the pod")
    }

    /// How many TCP sockets that are no listeners the pod has on a local port, in any state.
    pub fn sockets(&self, port: u16) -> usize {
        const LISTEN: &str = "0A";
        let lines = self
            .pod
            .within(|| {
                ["tcp", "tcp6"].map(|file| {
                    std::fs::read_to_string(format!("/proc/thread-self/net/{file}"))
                        .expect("the kernel lists sockets")
                })
            })
            .expect("enter the pod");
        let suffix = format!(":{port:04X}");
        lines
            .iter()
            .flat_map(|text| text.lines().skip(1))
            .filter(|line| {
                let fields: Vec<&str> = line.split_whitespace().collect();
                fields[1].ends_with(&suffix) && fields[3] != LISTEN
            })
            .count()
    }

    pub fn send(&self, segment: &Segment) {
        self.peer.send(&segment.frame(PEER_MAC, POD_MAC), None);
    }

    /// As a neighbour on the same machine sends it: the checksum is left to the device.
    pub fn send_partial(&self, segment: &Segment) {
        self.peer.send(
            &segment.frame_with_partial_checksum(PEER_MAC, POD_MAC),
            Some(segment.l3_bytes() + 14),
        );
    }

    /// The next segment from the pod to that end of ours.
    pub fn receive(&self, ours: SocketAddr) -> Option<Received> {
        self.receive_within(ours, DEADLINE)
    }

    /// What came to that end of ours while another was looked for; what was kept before it is
    /// forgotten.
    pub fn receive_queued(&self, ours: SocketAddr) -> Option<Received> {
        let passed = std::mem::take(&mut *self.passed.lock().expect("the list"));
        passed.into_iter().rfind(|r| r.segment.to == ours)
    }

    pub fn receive_within(&self, ours: SocketAddr, patience: Duration) -> Option<Received> {
        let deadline = Instant::now() + patience;
        while let Some((frame, partial)) = self.peer.receive(deadline) {
            if let Some(received) = Received::parse(&frame, partial, POD_MAC, PEER_MAC) {
                if received.segment.to == ours {
                    return Some(received);
                }
                self.passed.lock().expect("the list").push(received);
            }
        }
        None
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for end in ["pod", "peer"] {
            attempt(&format!("ip netns del {}-{end}", self.name));
        }
    }
}

/// A BPF file system of its own; unmounted on drop, which ends everything pinned in it.
pub struct Pins(pub PathBuf);

impl Pins {
    pub fn new() -> Self {
        Self(PathBuf::from(format!("/run/{}-bpf", unique())))
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        attempt(&format!("umount {}", self.0.display()));
        attempt(&format!("rmdir {}", self.0.display()));
    }
}

/// The pod's address and ours.
pub fn ends(v6: bool, pod_port: u16, our_port: u16) -> (SocketAddr, SocketAddr) {
    let (pod, ours): (IpAddr, IpAddr) = if v6 {
        ("fd07::1".parse().expect("v6"), "fd07::2".parse().expect("v6"))
    } else {
        ("10.7.0.1".parse().expect("v4"), "10.7.0.2".parse().expect("v4"))
    };
    (SocketAddr::new(pod, pod_port), SocketAddr::new(ours, our_port))
}

/// Waits until something holds; panics with `what` if it never does.
pub fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
