//! A client and two pods that have the same address; the client's route says which of them it
//! reaches. The namespaces have no names and go with their last descriptor.
#![expect(
    unsafe_code,
    reason = "unshare(2) of a thread, SIOCOUTQ, SO_SNDBUFFORCE, TCP_INFO and TCP_REPAIR_WINDOW have no safe binding"
)]

use baton_tcp_repair::Connection;
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    fs::{self, File},
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    process::Command,
    thread,
    time::{Duration, Instant},
};

/// Longer than anything here takes; a test that fails ends.
const LONG: Duration = Duration::from_secs(30);

/// Waits for a condition.
pub fn until(what: &str, condition: impl Fn() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < LONG, "{what}");
        thread::yield_now();
    }
}

/// Waits until so many bytes have arrived and are unread.
pub fn arrived(socket: &TcpStream, bytes: usize) {
    until("the bytes arrive", || {
        bytes == 0 || socket.peek(&mut vec![0; bytes]).expect("open") >= bytes
    });
}

/// Whose reads end.
pub fn patient(socket: TcpStream) -> TcpStream {
    socket.set_read_timeout(Some(LONG)).expect("an option");
    socket
}

pub struct Space(File);

impl Space {
    fn new() -> Self {
        let made = thread::spawn(|| {
            // SAFETY: nothing but this thread's network namespace changes, and the thread ends.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.expect("root makes namespaces");
            let space = Self(File::open("/proc/thread-self/ns/net").expect("its file"));
            ip("link set lo up");
            space
        });
        made.join().expect("a namespace")
    }

    /// Runs `work` in the namespace.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|threads| {
            let there = threads.spawn(|| {
                move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))
                    .expect("root enters namespaces");
                work()
            });
            there.join().expect("its own assertions hold")
        })
    }

    /// Whether a socket here, of whatever state, has a peer at this port.
    pub fn has_peer(&self, port: u16) -> bool {
        let peer = format!(":{port:04X}");
        let tables = self.run(|| ["tcp", "tcp6"].map(of_thread));
        tables.iter().flat_map(|table| table.lines()).any(|line| {
            let remote = line.split_whitespace().nth(2);
            remote.is_some_and(|remote| remote.ends_with(&peer))
        })
    }

    /// A counter of TCP, as `nstat` names it without its group.
    pub fn count(&self, name: &str) -> u64 {
        let (file, group) = match name {
            "TCPLossProbes" | "TCPTimeouts" => ("netstat", "TcpExt:"),
            _ => ("snmp", "Tcp:"),
        };
        self.run(|| {
            let text = of_thread(file);
            let mut lines = text.lines().filter(|line| line.starts_with(group));
            let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
            let mut both = names.split(' ').zip(values.split(' '));
            let (_, value) = both.find(|(n, _)| *n == name).expect("a counter");
            value.parse().expect("a number")
        })
    }
}

/// Bytes that the peer has not acknowledged.
pub fn unacknowledged(socket: &TcpStream) -> i32 {
    let mut bytes = 0;
    // SAFETY: the request writes one int.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    assert_eq!(done, 0);
    bytes
}

/// Most bytes of a segment that it sends: `tcpi_snd_mss` of `struct tcp_info`.
pub fn segment_bytes(socket: &impl AsRawFd) -> u32 {
    info(socket)[4]
}

/// How long it waits for an acknowledgement before it sends again, and the smoothed round trip, 0
/// until one was measured: `tcpi_rto` and `tcpi_rtt`.
pub fn patience(socket: &impl AsRawFd) -> (Duration, Duration) {
    let info = info(socket);
    let of = |at: usize| Duration::from_micros(info[at].into());
    (of(2), of(17))
}

/// The begin of `struct tcp_info`.
fn info(socket: &impl AsRawFd) -> [u32; 18] {
    let mut info = [0_u32; 18];
    let mut len = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the pointer and the length are those of `info`.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    assert_eq!((done, len), (0, 72));
    info
}

/// Opens the peer's window of a frozen socket, as a segment of the peer's does.
pub fn open_window(socket: &TcpStream) {
    const TCP_REPAIR_WINDOW: i32 = 29;
    let mut window = [0_u32; 5];
    let mut len = size_of_val(&window) as libc::socklen_t;
    let (fd, tcp) = (socket.as_raw_fd(), libc::IPPROTO_TCP);
    let at = window.as_mut_ptr().cast();
    // SAFETY: the pointer and the length are those of `window`.
    let got = unsafe { libc::getsockopt(fd, tcp, TCP_REPAIR_WINDOW, at, &raw mut len) };
    window[1] = 1_000;
    // SAFETY: likewise.
    let set = unsafe { libc::setsockopt(fd, tcp, TCP_REPAIR_WINDOW, window.as_ptr().cast(), len) };
    assert_eq!((got, set), (0, 0));
}

/// So many bytes in a second are sent, by a timer.
pub fn set_pacing(socket: &TcpStream, bytes: i32) {
    set(socket, libc::SO_MAX_PACING_RATE, bytes);
}

/// However large.
pub fn set_send_buffer(socket: &TcpStream, bytes: i32) {
    set(socket, libc::SO_SNDBUFFORCE, bytes);
}

fn set(socket: &TcpStream, option: i32, value: i32) {
    // SAFETY: the pointer and the length are those of `value`.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw const value).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    assert_eq!(done, 0);
}

fn of_thread(file: &str) -> String {
    fs::read_to_string(format!("/proc/thread-self/net/{file}")).expect("it is there")
}

fn ip(arguments: &str) {
    let done = Command::new("ip").args(arguments.split(' ')).output();
    let done = done.expect("iproute2 is there");
    assert!(done.status.success(), "ip {arguments}: {done:?}");
}

pub struct Scene {
    pub client: Space,
    pub pods: [Space; 2],
}

impl Scene {
    /// The client reaches the first pod.
    pub fn new() -> Self {
        let (client, pods) = (Space::new(), [Space::new(), Space::new()]);
        for (n, pod) in pods.iter().enumerate() {
            let there = format!("/proc/{}/fd/{}", std::process::id(), pod.0.as_raw_fd());
            client.run(|| {
                ip(&format!("link add pod{n} type veth peer name eth0"));
                ip(&format!("link set eth0 netns {there}"));
                let keep = format!("/proc/sys/net/ipv6/conf/pod{n}/keep_addr_on_down");
                fs::write(keep, "1").expect("root sets it");
                ip(&format!("link set pod{n} up"));
                // Linux answers for IPv6 addresses of the interface itself only.
                ip(&format!("addr add fd00::1/128 dev pod{n} nodad"));
            });
            pod.run(|| {
                ip("link set eth0 up");
                ip("addr add 10.9.0.2/32 dev eth0");
                ip("addr add fd00::2/128 dev eth0 nodad");
                ip("route add 10.9.0.1 dev eth0");
                ip("route add fd00::1 dev eth0");
            });
        }
        client.run(|| ip("addr add 10.9.0.1/32 dev lo"));
        let scene = Self { client, pods };
        scene.route_to(0);
        scene
    }

    pub fn route_to(&self, pod: usize) {
        self.client.run(|| {
            ip(&format!("route replace 10.9.0.2 dev pod{pod} src 10.9.0.1"));
            ip(&format!("route replace fd00::2 dev pod{pod} src fd00::1"));
        });
    }

    /// Nothing of the client reaches a pod, or from it, as when a dataplane holds it back.
    pub fn hold(&self, held: bool) {
        self.client.run(|| {
            for pod in 0..2 {
                ip(&format!("link set pod{pod} {}", if held { "down" } else { "up" }));
            }
        });
    }

    /// What the second pod sends is lost on the way.
    pub fn lose(&self, lost: bool) {
        self.pods[1].run(|| {
            ip(match lost {
                true => "neigh replace 10.9.0.1 dev eth0 lladdr 02:00:00:00:00:01 nud permanent",
                false => "neigh del 10.9.0.1 dev eth0",
            });
        });
    }

    /// A listener of the first pod, a client's connection, and its accepted end.
    pub fn connect(&self, v6: bool) -> (TcpListener, TcpStream, TcpStream) {
        self.connect_with_mss(v6, None)
    }

    /// Of a client that takes segments of at most that size.
    pub fn connect_with_mss(
        &self,
        v6: bool,
        mss: Option<u32>,
    ) -> (TcpListener, TcpStream, TcpStream) {
        let at = if v6 { "[fd00::2]:80" } else { "10.9.0.2:80" };
        let at: SocketAddr = at.parse().expect("an address");
        let listener = self.pods[0].run(|| TcpListener::bind(at).expect("a port"));
        let client = self.client.run(|| {
            let client = Socket::new(Domain::for_address(at), Type::STREAM, None);
            let client = client.expect("a socket");
            if let Some(mss) = mss {
                client.set_tcp_mss(mss).expect("before it connects");
            }
            client.connect(&at.into()).expect("it listens");
            TcpStream::from(client)
        });
        let (server, _) = listener.accept().expect("a connection");
        (listener, patient(client), patient(server))
    }
}

/// A new socket that a connection can come into, of the calling thread's namespace.
pub fn socket_for(connection: &Connection) -> OwnedFd {
    let domain = Domain::for_address(connection.local);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP));
    socket.expect("a socket").into()
}
