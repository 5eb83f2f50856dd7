//! A client and two pods; the client's route says which of them it reaches. Pods of one node have
//! the same address, in place of a dataplane that translates; those of two nodes, each with a
//! host-shim of its own, have addresses of their own, which rules translate. Transfers are asked as
//! a dataplane does.

use crate::daemon::{
    Daemon, Files, KEY,
    common::{PEER_MAC, POD_MAC, packet_socket::PacketSocket, run, unique, wait_for},
    free_address,
};
use baton_adopter::{Netns, OpenNetns};
use baton_files::Server;
use baton_packet::{
    Adoption, AdoptionKey, Decoded, Destination, Flags, ListenerReport, Mac, MessageKind, Reason,
    SegmentSpec, SeqNumber, Which, build_adoption, decode, parse_adoption,
};
use baton_sdk::Link;
use std::{
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

/// Longer than anything here takes; a test that fails ends.
pub const LONG: Duration = Duration::from_secs(60);
/// As a dataplane repeats a message.
const REPEAT: Duration = Duration::from_millis(20);
pub const PORT: u16 = 80;

pub struct Scene {
    name: String,
    pub client: OpenNetns,
    pub pods: [OpenNetns; 2],
    files: Files,
    pub daemon: Daemon,
    /// Of the second pod's node, where that is another one.
    pub other: Option<(Files, Daemon)>,
    /// Of the pods' namespaces.
    numbers: [u64; 2],
}

/// Where host-shims reach pods of other nodes.
pub const FAR_PORT: u16 = 17_464;

/// What was heard of one Transfer.
#[derive(Debug)]
pub struct Told {
    pub reason: Reason,
}

impl Scene {
    pub fn new() -> Self {
        Self::with(None)
    }

    /// Two nodes, each with one of the pods, whose names and key files are these.
    pub fn between(nodes: [(&str, &str); 2]) -> Self {
        Self::with(Some(nodes))
    }

    fn with(nodes: Option<[(&str, &str); 2]>) -> Self {
        let name = unique();
        let spaces = ["client", "pod0", "pod1"].map(|end| format!("{name}-{end}"));
        for space in &spaces {
            run(&format!("ip netns add {space}"));
            run(&format!("ip -n {space} link set lo up"));
        }
        let client = &spaces[0];
        for (n, pod) in spaces[1..].iter().enumerate() {
            run(&format!(
                "ip link add eth0 netns {pod} address 02:ba:00:00:00:01 type veth peer name pod{n} netns {client} address 02:ba:00:00:00:02"
            ));
            run(&format!("ip -n {client} link set pod{n} up"));
            run(&format!("ip -n {client} addr add fd09::1/128 dev pod{n} nodad"));
            run(&format!("ip -n {pod} link set eth0 up"));
            let end = if nodes.is_some() { 2 + n } else { 2 };
            run(&format!("ip -n {pod} addr add 10.9.0.{end}/32 dev eth0"));
            run(&format!("ip -n {pod} addr add fd09::{end}/128 dev eth0 nodad"));
            for (own, other) in [("10.9.0.2", "10.9.0.1"), ("fd09::2", "fd09::1")] {
                run(&format!("ip -n {pod} route add {other} dev eth0"));
                run(&format!("ip -n {pod} neigh add {other} lladdr 02:ba:00:00:00:02 dev eth0"));
                run(&format!("ip -n {client} neigh add {own} lladdr 02:ba:00:00:00:01 dev pod{n}"));
            }
        }
        run(&format!("ip -n {client} addr add 10.9.0.1/32 dev lo"));
        for setting in ["all", "default", "pod0", "pod1"] {
            run(&format!("ip netns exec {client} sysctl -qw net.ipv4.conf.{setting}.rp_filter=0"));
        }
        // Answers are for the dataplane, which is a packet socket here, and look like resets to the
        // client.
        for rule in [
            "add table inet answers",
            "add chain inet answers in { type filter hook prerouting priority -300 ; }",
            "add rule inet answers in meta l4proto tcp @th,160,16 0xfd1c drop",
        ] {
            run(&format!("ip netns exec {client} nft {rule}"));
        }
        if nodes.is_some() {
            join_nodes(&spaces);
        }
        let start = |key: &str, pods: &[(&str, &String)], more: &str| {
            let (files, control) = (Files::new(), free_address());
            let pods = pods.iter().map(|(pod, space)| {
                format!("  - {{name: {pod}, netns: {{name: {space}}}, interface: eth0}}\n")
            });
            let pods: String = pods.collect();
            files.config(&format!(
                "keys: [{{epoch: 1, file: {key}}}]\npods:\n{pods}control: {control}\npin: PINS\n\
                 log: {{level: debug}}\n{more}"
            ));
            let daemon = Daemon::start(&files, control, &[]);
            (files, daemon)
        };
        let far = format!("transfers: {{port: {FAR_PORT}}}\n");
        let ((files, daemon), other) = match nodes {
            None => {
                let both = [("a", &spaces[1]), ("b", &spaces[2])];
                (start("KEY", &both, ""), None)
            }
            Some([(a, a_key), (b, b_key)]) => {
                let other = start(b_key, &[(b, &spaces[2])], &far);
                (start(a_key, &[(a, &spaces[1])], &far), Some(other))
            }
        };
        let [client, a, b] = spaces.map(|name| Netns::Name(name).open().expect("just made"));
        let mut scene = Self { name, client, pods: [a, b], files, daemon, other, numbers: [0; 2] };
        scene.numbers = [0, 1].map(|pod| scene.probe(pod).0);
        scene.route_to(0);
        scene
    }

    /// Starts another host-shim over the same pods.
    pub fn restart(&mut self, kill: bool) {
        let control = free_address();
        let text = std::fs::read_to_string(self.files.path("shim.yaml")).expect("written");
        let old = format!("control: {}", self.daemon.control());
        let text = text.replace(&old, &format!("control: {control}"));
        self.files.write("shim.yaml", &text, 0o644);
        self.daemon.signal(if kill { "KILL" } else { "TERM" });
        self.daemon.ended();
        self.daemon = Daemon::start(&self.files, control, &["--keep-on-exit"]);
    }

    /// The client takes no reset of a kernel without the socket, as none comes through a dataplane
    /// from a pod that had the connection. The route follows a moment later than a dataplane does,
    /// so that the old pod may be told of bytes that it never sent.
    pub fn fence(&self) {
        run(&format!(
            "ip netns exec {}-client nft add rule inet answers in tcp flags & (rst | ack) == rst drop",
            self.name
        ));
    }

    pub fn route_to(&self, pod: usize) {
        let client = format!("{}-client", self.name);
        run(&format!("ip -n {client} route replace 10.9.0.2 dev pod{pod} src 10.9.0.1"));
        run(&format!("ip -n {client} -6 route replace fd09::2 dev pod{pod} src fd09::1"));
    }

    /// A file server in a pod, that host-shim knows.
    pub fn serve(&self, pod: usize, directory: PathBuf, at: &str) -> Arc<Server> {
        let server = self.pods[pod]
            .within(|| {
                let listener = TcpListener::bind(at).expect("the port is free");
                let link = Link::connect(&[PORT]).expect("a link");
                let server = Arc::new(Server::new(directory, link));
                let (taker, acceptor) = (Arc::clone(&server), Arc::clone(&server));
                std::thread::spawn(move || taker.take_over());
                std::thread::spawn(move || acceptor.accept(&listener));
                server
            })
            .expect("enter the pod");
        self.knows(pod);
        server
    }

    /// Waits until the adopter says that the application cooperates.
    pub fn knows(&self, pod: usize) {
        wait_for("host-shim knows it", || self.probe(pod).1.transfers);
    }

    pub fn connect(&self, v6: bool) -> TcpStream {
        let to = SocketAddr::new(address(v6), PORT);
        let stream = self.client.within(|| TcpStream::connect(to));
        let stream = stream.expect("enter the client").expect("it listens");
        stream.set_read_timeout(Some(LONG)).expect("an option");
        stream.set_write_timeout(Some(LONG)).expect("an option");
        stream
    }

    /// Of a pod, as the one that asks it reaches it.
    fn address(&self, pod: usize, v6: bool) -> IpAddr {
        match (self.other.is_some() && pod == 1, v6) {
            (false, _) => address(v6),
            (true, false) => [10, 9, 0, 3].into(),
            (true, true) => "fd09::3".parse().expect("an address"),
        }
    }

    /// The host-shim of a pod's node.
    pub fn daemon_of(&self, pod: usize) -> &Daemon {
        match &self.other {
            Some((_, daemon)) if pod == 1 => daemon,
            _ => &self.daemon,
        }
    }

    fn packets(&self, pod: usize) -> PacketSocket {
        let bound = self.client.within(|| PacketSocket::bind(&format!("pod{pod}")));
        bound.expect("enter the client").expect("a packet socket")
    }

    /// The number of a pod's namespace, and what is said of its listener.
    pub fn probe(&self, pod: usize) -> (u64, ListenerReport) {
        let packets = self.packets(pod);
        let ours = SocketAddr::new(peer(false), 50_000);
        let spec = spec(ours, self.address(pod, false), 1, 2);
        let message = Adoption::bare(MessageKind::Probe, 1);
        let (_, answer) = exchange(&packets, &spec, &message);
        let report = ListenerReport::from_field(answer.server_ts);
        (answer.namespace, report)
    }

    /// Asks a pod to hand the client's connection to the other one, until it is answered, and leads
    /// the client there if it is moved.
    pub fn transfer(&self, stream: &TcpStream, from: usize, seq: u32) -> Told {
        let to = self.destination(stream, 1 - from);
        let told = self.transfer_to(stream, from, to, seq);
        if told.reason == Reason::Moved {
            self.route_to(1 - from);
        }
        told
    }

    pub fn destination(&self, stream: &TcpStream, pod: usize) -> Destination {
        let v6 = stream.peer_addr().expect("connected").is_ipv6();
        let (end, middle) = match self.address(pod, v6) {
            IpAddr::V4(v4) => (u32::from(v4), None),
            IpAddr::V6(v6) => {
                let all = u128::from(v6);
                (all as u32, self.other.is_some().then_some((all >> 32) as u64))
            }
        };
        Destination {
            which: middle.map_or(Which::Namespace(self.numbers[pod]), Which::Address),
            port: PORT,
            peer_port: stream.local_addr().expect("connected").port(),
            peer: None,
            address_end: end,
        }
    }

    /// Asks once and does not wait.
    pub fn ask(&self, stream: &TcpStream, from: usize, to: Destination, seq: u32) {
        let (ours, pod) = ends(stream);
        let spec = spec(ours, self.address(from, pod.is_ipv6()), seq, 2);
        let (spec, message) = to.into_message(&spec, self.numbers[from], 1);
        let frame = message_frame(&spec, &message);
        self.packets(from).send(&frame, None);
    }

    pub fn transfer_to(&self, stream: &TcpStream, from: usize, to: Destination, seq: u32) -> Told {
        let packets = self.packets(from);
        let (ours, pod) = ends(stream);
        let spec = spec(ours, self.address(from, pod.is_ipv6()), seq, 2);
        let (mut spec, message) = to.into_message(&spec, self.numbers[from], 1);
        let block = to.block(&spec, &message, &AdoptionKey::from_bytes(KEY));
        spec.payload = block.as_ref().map_or(&[], |block| block);
        let (reason, _) = exchange(&packets, &spec, &message);
        Told { reason }
    }

    pub fn metric(&self, line: &str) -> u64 {
        self.figure(line) as u64
    }

    pub fn figure(&self, line: &str) -> f64 {
        self.figure_of(0, line)
    }

    /// Of the host-shim of a pod's node.
    pub fn figure_of(&self, pod: usize, line: &str) -> f64 {
        let (_, metrics) = self.daemon_of(pod).get("/metrics");
        let value =
            metrics.lines().find_map(|l| l.strip_prefix(line)?.strip_prefix(' ')?.parse().ok());
        value.unwrap_or_else(|| panic!("{line} is not in {metrics}"))
    }

    /// On all nodes.
    pub fn ended(&self, how: &str) -> u64 {
        let line = format!("baton_shim_transfers_total{{result=\"{how}\"}}");
        let nodes = if self.other.is_some() { 2 } else { 1 };
        (0..nodes).map(|pod| self.figure_of(pod, &line) as u64).sum()
    }

    /// Of those that another node offered to a pod.
    pub fn received(&self, pod: usize, how: &str) -> u64 {
        let line = format!("baton_shim_transfers_received_total{{result=\"{how}\"}}");
        self.figure_of(pod, &line) as u64
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for end in ["client", "pod0", "pod1"] {
            let _ = std::process::Command::new("ip")
                .args(["netns", "del", &format!("{}-{end}", self.name)])
                .output();
        }
    }
}

/// The client's namespace leads from pod to pod, and makes the second one look like the first to
/// the client.
fn join_nodes(spaces: &[String; 3]) {
    let [client, pods @ ..] = spaces;
    run(&format!(
        "ip netns exec {client} sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1"
    ));
    for (n, pod) in pods.iter().enumerate() {
        let (own, other) = (2 + n, 3 - n);
        for (family, net, length) in [("-4", "10.9.0.", 32), ("-6", "fd09::", 128)] {
            run(&format!("ip {family} -n {pod} route add {net}{other}/{length} dev eth0"));
            run(&format!(
                "ip {family} -n {pod} neigh add {net}{other} lladdr 02:ba:00:00:00:02 dev eth0"
            ));
            run(&format!(
                "ip {family} -n {client} neigh replace {net}{own} lladdr 02:ba:00:00:00:01 dev pod{n}"
            ));
            let table = 100 + n;
            run(&format!(
                "ip {family} -n {client} route add {net}{own}/{length} dev pod{n} table {table}"
            ));
            run(&format!(
                "ip {family} -n {client} rule add iif pod{} to {net}{own} lookup {table}",
                1 - n
            ));
        }
    }
    for rule in [
        "add table inet second",
        "add chain inet second in { type filter hook prerouting priority -200 ; }",
        "add chain inet second out { type filter hook postrouting priority 200 ; }",
        "add rule inet second in iifname pod1 ip saddr 10.9.0.3 tcp sport 80 ip saddr set 10.9.0.2",
        "add rule inet second in iifname pod1 ip6 saddr fd09::3 tcp sport 80 ip6 saddr set fd09::2",
        "add rule inet second out oifname pod1 ip daddr 10.9.0.2 tcp dport 80 ip daddr set 10.9.0.3",
        "add rule inet second out oifname pod1 ip6 daddr fd09::2 tcp dport 80 ip6 daddr set fd09::3",
    ] {
        run(&format!("ip netns exec {client} nft {rule}"));
    }
}

fn address(v6: bool) -> IpAddr {
    let text = if v6 { "fd09::2" } else { "10.9.0.2" };
    text.parse().expect("an address")
}

fn peer(v6: bool) -> IpAddr {
    let text = if v6 { "fd09::1" } else { "10.9.0.1" };
    text.parse().expect("an address")
}

fn spec(ours: SocketAddr, pod: IpAddr, seq: u32, ack: u32) -> SegmentSpec<'static> {
    SegmentSpec {
        src_mac: Mac(PEER_MAC),
        dst_mac: Mac(POD_MAC),
        src: ours.ip(),
        dst: pod,
        src_port: ours.port(),
        dst_port: PORT,
        seq: SeqNumber(seq),
        ack: SeqNumber(ack),
        flags: Flags::ACK,
        window: 0,
        timestamps: None,
        payload: &[],
    }
}

fn ends(stream: &TcpStream) -> (SocketAddr, SocketAddr) {
    let ours = stream.local_addr().expect("connected");
    (ours, stream.peer_addr().expect("connected"))
}

fn message_frame(spec: &SegmentSpec<'_>, message: &Adoption) -> Vec<u8> {
    let mut frame = [0; 160];
    let key = AdoptionKey::from_bytes(KEY);
    let length = build_adoption(&mut frame, spec, message, &key).expect("it fits");
    frame[..length].to_vec()
}

/// Sends copies of a message until one is answered.
fn exchange(
    packets: &PacketSocket,
    spec: &SegmentSpec<'_>,
    message: &Adoption,
) -> (Reason, Adoption) {
    let key = AdoptionKey::from_bytes(KEY);
    let frame = message_frame(spec, message);
    let deadline = Instant::now() + LONG;
    while Instant::now() < deadline {
        packets.send(&frame, None);
        let patience = Instant::now() + REPEAT;
        while let Some((received, _)) = packets.receive(patience) {
            let Ok(Decoded::Tcp(segment)) = decode(&received) else {
                continue;
            };
            let asked = (segment.dst_port, segment.seq) == (spec.src_port, spec.ack);
            let Some(raw) = parse_adoption(&received, &segment).filter(|_| asked) else {
                continue;
            };
            let answer = raw.verify(&key).expect("the tag is right");
            if let MessageKind::Answer(reason) = answer.kind {
                return (reason, answer);
            }
        }
    }
    panic!("{message:?} is never answered");
}
