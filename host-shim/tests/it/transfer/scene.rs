//! A client and two pods that have the same address; the client's route says which of them it
//! reaches, in place of a dataplane that translates. Transfers are asked as a dataplane does.

use crate::daemon::{
    Daemon, Files, KEY,
    common::{PEER_MAC, POD_MAC, packet_socket::PacketSocket, run, unique, wait_for},
    free_address,
};
use baton_adopter::{Netns, OpenNetns};
use baton_files::Server;
use baton_packet::{
    Adoption, AdoptionKey, Decoded, Destination, Flags, ListenerReport, Mac, MessageKind, Reason,
    SegmentSpec, SeqNumber, build_adoption, decode, parse_adoption,
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
    /// Of the pods' namespaces.
    numbers: [u64; 2],
}

/// What was heard of one Transfer.
#[derive(Debug)]
pub struct Told {
    pub reason: Reason,
}

impl Scene {
    pub fn new() -> Self {
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
            run(&format!(
                "ip -n {client} addr add fd09::1/128 dev pod{n} nodad"
            ));
            run(&format!("ip -n {pod} link set eth0 up"));
            run(&format!("ip -n {pod} addr add 10.9.0.2/32 dev eth0"));
            run(&format!("ip -n {pod} addr add fd09::2/128 dev eth0 nodad"));
            for (own, other) in [("10.9.0.2", "10.9.0.1"), ("fd09::2", "fd09::1")] {
                run(&format!("ip -n {pod} route add {other} dev eth0"));
                run(&format!(
                    "ip -n {pod} neigh add {other} lladdr 02:ba:00:00:00:02 dev eth0"
                ));
                run(&format!(
                    "ip -n {client} neigh add {own} lladdr 02:ba:00:00:00:01 dev pod{n}"
                ));
            }
        }
        run(&format!("ip -n {client} addr add 10.9.0.1/32 dev lo"));
        for setting in ["all", "default", "pod0", "pod1"] {
            run(&format!(
                "ip netns exec {client} sysctl -qw net.ipv4.conf.{setting}.rp_filter=0"
            ));
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
        let (files, control) = (Files::new(), free_address());
        files.config(&format!(
            "keys: [{{epoch: 1, file: KEY}}]\npods:\n  - {{name: a, netns: {{name: {}}}, interface: eth0}}\n  \
             - {{name: b, netns: {{name: {}}}, interface: eth0}}\ncontrol: {control}\npin: PINS\n\
             log: {{level: debug}}\n",
            spaces[1], spaces[2]
        ));
        let daemon = Daemon::start(&files, control, &[]);
        let [client, a, b] = spaces.map(|name| Netns::Name(name).open().expect("just made"));
        let mut scene = Self {
            name,
            client,
            pods: [a, b],
            files,
            daemon,
            numbers: [0; 2],
        };
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

    pub fn route_to(&self, pod: usize) {
        let client = format!("{}-client", self.name);
        run(&format!(
            "ip -n {client} route replace 10.9.0.2 dev pod{pod} src 10.9.0.1"
        ));
        run(&format!(
            "ip -n {client} -6 route replace fd09::2 dev pod{pod} src fd09::1"
        ));
    }

    /// A file server in a pod, that host-shim knows.
    pub fn serve(&self, pod: usize, directory: PathBuf, at: &str) -> Arc<Server> {
        let (server, listener) = self.pods[pod]
            .within(|| {
                let listener = TcpListener::bind(at).expect("the port is free");
                let link = Link::connect(&[PORT]).expect("a link");
                (Arc::new(Server::new(directory, link)), listener)
            })
            .expect("enter the pod");
        let (taker, acceptor) = (Arc::clone(&server), Arc::clone(&server));
        std::thread::spawn(move || taker.take_over());
        std::thread::spawn(move || acceptor.accept(&listener));
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

    fn packets(&self, pod: usize) -> PacketSocket {
        let bound = self
            .client
            .within(|| PacketSocket::bind(&format!("pod{pod}")));
        bound.expect("enter the client").expect("a packet socket")
    }

    /// The number of a pod's namespace, and what is said of its listener.
    pub fn probe(&self, pod: usize) -> (u64, ListenerReport) {
        let packets = self.packets(pod);
        let ours = SocketAddr::new(peer(false), 50_000);
        let spec = spec(ours, address(false), 1, 2);
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
        let end = match stream.peer_addr().expect("connected").ip() {
            IpAddr::V4(v4) => u32::from(v4),
            IpAddr::V6(v6) => u32::from_be_bytes(*v6.octets().last_chunk().expect("16 bytes")),
        };
        Destination {
            namespace: self.numbers[pod],
            port: PORT,
            peer_port: stream.local_addr().expect("connected").port(),
            address_end: end,
        }
    }

    /// Asks once and does not wait.
    pub fn ask(&self, stream: &TcpStream, from: usize, to: Destination, seq: u32) {
        let (ours, pod) = ends(stream);
        let spec = spec(ours, pod.ip(), seq, 2);
        let (spec, message) = to.into_message(&spec, self.numbers[from], 1);
        let frame = message_frame(&spec, &message);
        self.packets(from).send(&frame, None);
    }

    pub fn transfer_to(&self, stream: &TcpStream, from: usize, to: Destination, seq: u32) -> Told {
        let packets = self.packets(from);
        let (ours, pod) = ends(stream);
        let spec = spec(ours, pod.ip(), seq, 2);
        let (spec, message) = to.into_message(&spec, self.numbers[from], 1);
        let (reason, _) = exchange(&packets, &spec, &message);
        Told { reason }
    }

    pub fn metric(&self, line: &str) -> u64 {
        self.figure(line) as u64
    }

    pub fn figure(&self, line: &str) -> f64 {
        let (_, metrics) = self.daemon.get("/metrics");
        let value = metrics
            .lines()
            .find_map(|l| l.strip_prefix(line)?.strip_prefix(' ')?.parse().ok());
        value.unwrap_or_else(|| panic!("{line} is not in {metrics}"))
    }

    pub fn ended(&self, how: &str) -> u64 {
        self.metric(&format!("baton_shim_transfers_total{{result=\"{how}\"}}"))
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
