//! Network namespaces with a veth pair, frames, and a raw client at the far end.
#![expect(unsafe_code, reason = "raw sockets of the test client")]
#![allow(dead_code, reason = "each test binary uses a part")]

use baton_xsk::{Config, Disposition, ModeChoice, Port, Steering};
use std::{
    fs::File,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// How long anything that must happen may take.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub const PORT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
pub const CLIENT_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
pub const PORT_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
/// A frontend that is no address of the interface.
pub const VIRTUAL_V4: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 9);
pub const CLIENT_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1);
pub const PORT_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2);
/// Sources of raw frames: no addresses of the client's kernel, which would answer to what comes
/// back with resets.
pub const RAW_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 101);
pub const RAW_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 0x101);
pub const INTERFACE: &str = "eth0";
pub const MODES: [ModeChoice; 3] = [ModeChoice::Native, ModeChoice::Generic, ModeChoice::Packet];

pub fn steering() -> Steering {
    Steering {
        frontends: vec![(PORT_V4.into(), 80), (VIRTUAL_V4.into(), 443), (PORT_V6.into(), 80)],
        by_address: Vec::new(),
        addresses: vec![PORT_V4.into(), PORT_V6.into()],
        ports: 20_000..=29_999,
        backends: None,
    }
}

pub fn config(mode: ModeChoice) -> Config {
    Config { mode, ..Config::new(INTERFACE) }
}

fn ip(arguments: &str) {
    let output = Command::new("ip")
        .args(arguments.split_whitespace())
        .output()
        .expect("iproute2 is installed");
    assert!(
        output.status.success(),
        "ip {arguments}: {} (these tests need root)",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Removes what tests that were killed have left.
fn sweep() {
    let Ok(entries) = std::fs::read_dir("/run/netns") else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(rest) = name.strip_prefix("bt-xsk-") else {
            continue;
        };
        let pid = rest.split('-').next().unwrap_or_default();
        if !std::path::Path::new("/proc").join(pid).exists() {
            // Another test that starts at the same moment may have removed it.
            let _ = Command::new("ip").args(["netns", "del", &name]).output();
        }
    }
}

/// Two namespaces joined by a veth pair: `eth0` with the port's addresses, and the client's end.
pub struct Lab {
    port: String,
    client: String,
}

impl Lab {
    pub fn new() -> Self {
        Self::with_queues(1)
    }

    pub fn with_queues(queues: u32) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        static SWEEP: std::sync::Once = std::sync::Once::new();
        SWEEP.call_once(sweep);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let pid = std::process::id();
        let lab = Self {
            port: format!("bt-xsk-{pid}-{number}p"),
            client: format!("bt-xsk-{pid}-{number}c"),
        };
        let (p, c) = (&lab.port, &lab.client);
        ip(&format!("netns add {p}"));
        ip(&format!("netns add {c}"));
        let count = format!("numrxqueues {queues} numtxqueues {queues}");
        ip(&format!(
            "-n {p} link add eth0 address 02:00:00:00:00:02 {count} type veth \
             peer name eth0 netns {c} address 02:00:00:00:00:01 {count}"
        ));
        for (name, v4, v6) in [
            (p, PORT_V4.to_string(), PORT_V6.to_string()),
            (c, CLIENT_V4.to_string(), CLIENT_V6.to_string()),
        ] {
            ip(&format!("-n {name} addr add {v4}/24 dev eth0"));
            ip(&format!("-n {name} addr add {v6}/64 dev eth0 nodad"));
            ip(&format!("-n {name} link set lo up"));
            ip(&format!("-n {name} link set eth0 up"));
        }
        ip(&format!("-n {c} route add {VIRTUAL_V4}/32 via {PORT_V4}"));
        lab.in_client(|| {
            for family in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
                std::fs::write(format!("/proc/sys/net/{family}"), "0").expect("root may");
            }
        });
        lab
    }

    pub fn ip_in_port(&self, arguments: &str) {
        ip(&format!("-n {} {arguments}", self.port));
    }

    pub fn ip_in_client(&self, arguments: &str) {
        ip(&format!("-n {} {arguments}", self.client));
    }

    pub fn output_in_port(&self, program: &str, arguments: &[&str]) -> String {
        output_in(&self.port, program, arguments)
    }

    /// Runs in a thread whose network namespace is the port's.
    pub fn in_port<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        inside(&self.port, f)
    }

    /// Runs in a thread whose network namespace is the client's.
    pub fn in_client<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        inside(&self.client, f)
    }

    pub fn open(&self, config: &Config) -> Port {
        let mut ports = self.open_all(config, &steering());
        assert_eq!(ports.len(), 1);
        ports.remove(0)
    }

    /// A port for each worker.
    pub fn open_all(&self, config: &Config, steering: &Steering) -> Vec<Port> {
        self.in_port(|| Port::open(config, steering).expect("the port opens").0)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for name in [&self.port, &self.client] {
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}

fn output_in(namespace: &str, program: &str, arguments: &[&str]) -> String {
    let output = Command::new("ip")
        .args(["netns", "exec", namespace, program])
        .args(arguments)
        .output()
        .expect("iproute2 is installed");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn inside<T: Send>(namespace: &str, f: impl FnOnce() -> T + Send) -> T {
    let file = File::open(format!("/run/netns/{namespace}")).expect("the namespace exists");
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                .expect("root may enter a namespace");
            f()
        });
        worker.join().unwrap_or_else(|e| std::panic::resume_unwind(e))
    })
}

/// Attaches a program that passes everything, as another CNI might have one.
pub fn attach_passing_xdp(interface: &str, flags: u32) {
    use libbpf_rs::libbpf_sys::{self, bpf_insn};
    // r0 = XDP_PASS; exit
    let mut program = [bpf_insn::default(), bpf_insn::default()];
    program[0].code = 0xb7;
    program[0].imm = 2;
    program[1].code = 0x95;
    let name = std::ffi::CString::new(interface).expect("no zero byte");
    // SAFETY: strings, instructions and the null options are valid for the calls; the descriptor is
    // ours to close.
    unsafe {
        let fd = libbpf_sys::bpf_prog_load(
            libbpf_sys::BPF_PROG_TYPE_XDP,
            c"passes".as_ptr(),
            c"Apache-2.0".as_ptr(),
            program.as_ptr(),
            program.len() as u64,
            std::ptr::null_mut(),
        );
        assert!(fd >= 0, "{}", io::Error::from_raw_os_error(-fd));
        let index = libc::if_nametoindex(name.as_ptr());
        let result = libbpf_sys::bpf_xdp_attach(index as i32, fd, flags, std::ptr::null());
        assert_eq!(result, 0);
        libc::close(fd);
    }
}

/// An eventfd that nobody has written to.
pub fn eventfd() -> OwnedFd {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("eventfd")
}

/// An Ethernet, IP and TCP frame with right checksums.
pub fn tcp(
    from: (IpAddr, u16),
    to: (IpAddr, u16),
    sequence: u32,
    flags: &str,
    payload: &[u8],
) -> Vec<u8> {
    use etherparse::PacketBuilder;
    let ethernet = PacketBuilder::ethernet2(CLIENT_MAC, PORT_MAC);
    let network = match (from.0, to.0) {
        (IpAddr::V4(a), IpAddr::V4(b)) => ethernet.ipv4(a.octets(), b.octets(), 64),
        (IpAddr::V6(a), IpAddr::V6(b)) => ethernet.ipv6(a.octets(), b.octets(), 64),
        _ => panic!("both addresses are of one family"),
    };
    let mut step = network.tcp(from.1, to.1, sequence, 65_000);
    if flags.contains('S') {
        step = step.syn();
    }
    if flags.contains('A') {
        step = step.ack(sequence ^ 0x5555);
    }
    if flags.contains('P') {
        step = step.psh();
    }
    if flags.contains('F') {
        step = step.fin();
    }
    let mut frame = Vec::new();
    step.write(&mut frame, payload).expect("a Vec takes all");
    frame
}

/// Swaps Ethernet and IP addresses and TCP ports: an answer whose checksums stay right.
pub fn swap(frame: &mut [u8]) {
    let (a, b) = frame[..12].split_at_mut(6);
    a.swap_with_slice(b);
    let (at, len, l4) = if frame[12] == 0x08 {
        (26, 4, 14 + usize::from(frame[14] & 15) * 4)
    } else {
        (22, 16, 54)
    };
    let (a, b) = frame[at..at + 2 * len].split_at_mut(len);
    a.swap_with_slice(b);
    let (a, b) = frame[l4..l4 + 4].split_at_mut(2);
    a.swap_with_slice(b);
}

/// A packet socket at the client's end.
pub struct Raw {
    fd: OwnedFd,
}

impl Raw {
    pub fn open(lab: &Lab) -> Self {
        Self::open_for(lab, libc::ETH_P_ALL as u16)
    }

    /// Sees one Ethernet protocol only.
    pub fn open_for(lab: &Lab, protocol: u16) -> Self {
        lab.in_client(|| {
            let protocol = i32::from(protocol.to_be());
            // SAFETY: no pointers are passed.
            let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW, protocol) };
            assert!(fd >= 0, "{}", io::Error::last_os_error());
            // SAFETY: the kernel just gave this descriptor to us.
            let fd = unsafe { OwnedFd::from_raw_fd(fd) };
            let raw = Self { fd };
            raw.option(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1);
            raw.option(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, 64 << 20);
            raw.option(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, 64 << 20);
            // SAFETY: a terminated string.
            let index = unsafe { libc::if_nametoindex(c"eth0".as_ptr()) };
            // SAFETY: all-zero bytes are a valid address.
            let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_protocol = protocol as u16;
            address.sll_ifindex = index as i32;
            // SAFETY: pointer and length describe `address`.
            let bound = unsafe {
                libc::bind(
                    raw.fd.as_raw_fd(),
                    (&raw const address).cast(),
                    size_of::<libc::sockaddr_ll>() as u32,
                )
            };
            assert_eq!(bound, 0, "{}", io::Error::last_os_error());
            raw
        })
    }

    pub fn option(&self, level: i32, name: i32, value: i32) {
        // SAFETY: pointer and length describe `value`.
        let result = unsafe {
            libc::setsockopt(
                self.fd.as_raw_fd(),
                level,
                name,
                (&raw const value).cast(),
                size_of::<i32>() as u32,
            )
        };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
    }

    pub fn send(&self, frame: &[u8]) {
        loop {
            // SAFETY: pointer and length describe `frame`.
            let sent =
                unsafe { libc::send(self.fd.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
            if sent == frame.len() as isize {
                return;
            }
            let error = io::Error::last_os_error();
            assert_eq!(error.raw_os_error(), Some(libc::ENOBUFS), "{error}");
            thread::yield_now();
        }
    }

    pub fn raw_fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// The next frame, in one call that sleeps until it is there.
    pub fn receive_blocking(&self, buffer: &mut [u8]) -> Option<usize> {
        // SAFETY: pointer and length describe `buffer`.
        let got =
            unsafe { libc::recv(self.fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        usize::try_from(got).ok()
    }

    /// The next frame, whichever it is.
    pub fn receive(&self, buffer: &mut [u8], until: Instant) -> Option<usize> {
        loop {
            // SAFETY: pointer and length describe `buffer`.
            let got = unsafe {
                libc::recv(
                    self.fd.as_raw_fd(),
                    buffer.as_mut_ptr().cast(),
                    buffer.len(),
                    libc::MSG_DONTWAIT,
                )
            };
            if got >= 0 {
                return Some(got as usize);
            }
            let left = until.checked_duration_since(Instant::now())?;
            let mut fd = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one pollfd.
            unsafe { libc::poll(&raw mut fd, 1, left.as_millis() as i32 + 1) };
        }
    }

    /// The next TCP frame.
    pub fn receive_tcp(&self, buffer: &mut [u8], until: Instant) -> Option<usize> {
        loop {
            let len = self.receive(buffer, until)?;
            let v4 = buffer[12..14] == [8, 0] && buffer[23] == 6;
            let v6 = buffer[12..14] == [0x86, 0xdd] && buffer[20] == 6;
            if v4 || v6 {
                return Some(len);
            }
        }
    }
}

/// A thread that works a port until it is stopped.
pub struct Worker<T> {
    stop: Arc<AtomicBool>,
    wake: OwnedFd,
    thread: Option<thread::JoinHandle<(Port, T)>>,
}

impl<T: Send + 'static> Worker<T> {
    pub fn start<F>(mut port: Port, mut state: T, mut f: F) -> Self
    where
        F: FnMut(&mut T, &mut [u8], usize, &mut baton_xsk::Tx<'_>) -> Disposition + Send + 'static,
    {
        let stop = Arc::new(AtomicBool::new(false));
        let wake = eventfd();
        let (stopping, waking) = (Arc::clone(&stop), wake.try_clone().expect("dup"));
        let thread = thread::spawn(move || {
            while !stopping.load(Ordering::Relaxed) {
                port.wait(None, waking.as_fd()).expect("the interface stays");
                while port.process(&mut |b: &mut [u8], n: usize, tx: &mut baton_xsk::Tx<'_>| {
                    f(&mut state, b, n, tx)
                }) > 0
                {}
            }
            port.flush();
            (port, state)
        });
        Self { stop, wake, thread: Some(thread) }
    }

    pub fn stop(mut self) -> (Port, T) {
        self.signal();
        let thread = self.thread.take().expect("stopped once");
        thread.join().expect("the worker does not panic")
    }
}

impl<T> Worker<T> {
    fn signal(&self) {
        self.stop.store(true, Ordering::Relaxed);
        rustix::io::write(&self.wake, &1_u64.to_ne_bytes()).expect("an eventfd takes 1");
    }
}

impl<T> Drop for Worker<T> {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.signal();
        }
    }
}

pub fn echo(port: Port) -> Worker<()> {
    Worker::start(port, (), |(), buffer, len, _| {
        swap(&mut buffer[..len]);
        Disposition::Transmit(len)
    })
}

/// Sockets of the port's own host that send packets as they are.
pub struct RawIp {
    v4: OwnedFd,
    v6: OwnedFd,
}

impl RawIp {
    pub fn open(lab: &Lab) -> Self {
        use rustix::net::{AddressFamily, SocketType, ipproto, socket};
        lab.in_port(|| {
            let raw = |family| socket(family, SocketType::RAW, Some(ipproto::RAW));
            Self {
                v4: raw(AddressFamily::INET).expect("root may"),
                v6: raw(AddressFamily::INET6).expect("root may"),
            }
        })
    }

    /// Sends the packet in a frame.
    pub fn send(&self, frame: &[u8]) {
        use rustix::net::{SendFlags, sendto};
        let packet = &frame[14..];
        let sent = if packet[0] >> 4 == 4 {
            let to: [u8; 4] = packet[16..20].try_into().expect("four bytes");
            let to = std::net::SocketAddr::from((to, 0));
            sendto(&self.v4, packet, SendFlags::empty(), &to)
        } else {
            let to: [u8; 16] = packet[24..40].try_into().expect("sixteen bytes");
            let to = std::net::SocketAddr::from((to, 0));
            sendto(&self.v6, packet, SendFlags::empty(), &to)
        };
        assert_eq!(sent.expect("the host delivers to itself"), packet.len());
    }
}
