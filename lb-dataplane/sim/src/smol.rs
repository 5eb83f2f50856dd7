//! smoltcp behind a client: a TCP stack that nobody of this project wrote.
//!
//! Owns the translation between its interface, sockets and clock and [`Stack`]. It never helps it:
//! what smoltcp does otherwise than Linux is what this is for. It has no congestion control,
//! repeats at the earliest after a second, checks no timestamps, takes any reset within its window,
//! and its keepalives carry a byte of garbage.

use crate::{
    clock::Time,
    stack::{Stack, Status},
    tcp::{
        Config,
        wire::{receive, stamp_clock},
    },
};
use baton_packet::{Flags, Mac};
use smoltcp::{
    iface::{self, Interface, SocketHandle, SocketSet},
    phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken},
    socket::tcp::{Socket, SocketBuffer, State},
    time::{Duration, Instant},
    wire::{HardwareAddress, IpCidr},
};
use std::{
    cell::Cell,
    collections::VecDeque,
    net::{IpAddr, SocketAddr},
};

/// Bytes of an Ethernet header: smoltcp's side has none.
const ETHERNET_BYTES: usize = 14;
/// Former connections that a host remembers.
const FORMER_MAX: usize = 4;
/// Bytes that an application may have in a socket unsent or unacknowledged.
const SEND_BYTES: usize = 16_384;
/// Length of an IPv4 and of an IPv6 header, each with TCP's.
const HEADERS_BYTES: [usize; 2] = [40, 60];

thread_local! {
    /// smoltcp asks a function without arguments for timestamps; a world and its stacks are on one
    /// thread.
    static STAMP: Cell<u32> = const { Cell::new(0) };
}

/// What of a smoltcp host is drawn from the seed.
#[derive(Clone, Copy, Debug)]
pub struct SmolSpec {
    /// Seeds smoltcp's own random numbers, the initial sequence numbers among them.
    pub seed: u64,
    /// Pause between keepalives. None of its hosts is without: smoltcp 0.14 stops its
    /// retransmission timer when a window that closed in front of bytes in flight opens again, as a
    /// new owner's smaller one does, and only the duplicate acknowledgements that keepalives draw
    /// make it go on.
    pub keep_alive: Time,
    /// Whether small segments wait for acknowledgements (RFC 896).
    pub nagle: bool,
}

/// Packets on their way into and out of smoltcp.
struct Port {
    mtu: usize,
    rx: VecDeque<Vec<u8>>,
    tx: Vec<Vec<u8>>,
}

struct Rx(Vec<u8>);

struct Tx<'a>(&'a mut Vec<Vec<u8>>);

impl RxToken for Rx {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl TxToken for Tx<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut packet = vec![0; len];
        let result = f(&mut packet);
        self.0.push(packet);
        result
    }
}

impl Device for Port {
    type RxToken<'a> = Rx;
    type TxToken<'a> = Tx<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Rx, Tx<'_>)> {
        Some((Rx(self.rx.pop_front()?), Tx(&mut self.tx)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Tx<'_>> {
        Some(Tx(&mut self.tx))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut is = DeviceCapabilities::default();
        is.medium = Medium::Ip;
        is.max_transmission_unit = self.mtu;
        is
    }
}

/// A host with smoltcp.
pub struct SmolStack {
    config: Config,
    spec: SmolSpec,
    /// Link-layer header of every frame that it sends.
    header: [u8; ETHERNET_BYTES],
    address: IpAddr,
    server: SocketAddr,
    port: Port,
    interface: Interface,
    sockets: SocketSet<'static>,
    current: Option<(SocketHandle, u16)>,
    former: Vec<(SocketHandle, u16)>,
    /// How the current connection ended, if by a reset.
    failure: Option<Status>,
    pending: Vec<Vec<u8>>,
    due: Option<Time>,
}

fn at(now: Time) -> Instant {
    Instant::from_micros(now as i64)
}

impl SmolStack {
    /// A host at `address` behind `via`, whose connections all go to `server`. Of `config` it takes
    /// what smoltcp can be told: its window scale follows from its buffer, and it always offers
    /// selective acknowledgements.
    #[must_use]
    pub fn new(
        config: Config,
        spec: SmolSpec,
        mac: Mac,
        via: Mac,
        address: IpAddr,
        server: SocketAddr,
    ) -> Self {
        let mut header = [0; ETHERNET_BYTES];
        header[..6].copy_from_slice(&via.0);
        header[6..12].copy_from_slice(&mac.0);
        let (kind, prefix) = if address.is_ipv6() { (0x86dd_u16, 64) } else { (0x0800, 24) };
        header[12..].copy_from_slice(&kind.to_be_bytes());
        let headers = HEADERS_BYTES[usize::from(address.is_ipv6())];
        let mut port =
            Port { mtu: usize::from(config.mss) + headers, rx: VecDeque::new(), tx: Vec::new() };
        let mut how = iface::Config::new(HardwareAddress::Ip);
        how.random_seed = spec.seed;
        let mut interface = Interface::new(how, &mut port, at(0));
        let routes = interface.routes_mut();
        // Any gateway will do: this link has no addresses.
        let routed = match server.ip() {
            IpAddr::V4(gateway) => routes.add_default_ipv4_route(gateway).is_ok(),
            IpAddr::V6(gateway) => routes.add_default_ipv6_route(gateway).is_ok(),
        };
        let mut addressed = false;
        interface.update_ip_addrs(|all| {
            addressed = all.push(IpCidr::new(address.into(), prefix)).is_ok();
        });
        debug_assert!(routed && addressed, "smoltcp has room for one route and one address");
        Self {
            config,
            spec,
            header,
            address,
            server,
            port,
            interface,
            sockets: SocketSet::new(Vec::new()),
            current: None,
            former: Vec::new(),
            failure: None,
            pending: Vec::new(),
            due: None,
        }
    }

    /// Nobody asks whether the peer lives where both sides have closed: smoltcp has no timer for
    /// sockets without an application, and its keepalives would keep the connection for ever.
    fn leave_closed_ones(&mut self) {
        for (handle, _) in self.current.iter().chain(&self.former) {
            let socket = self.sockets.get_mut::<Socket<'_>>(*handle);
            if matches!(socket.state(), State::Closing | State::LastAck) {
                socket.set_keep_alive(None);
            }
        }
    }

    /// Lets smoltcp take what came and send what is due.
    fn run(&mut self, now: Time) {
        self.leave_closed_ones();
        STAMP.set(stamp_clock(now));
        let _ = self.interface.poll(at(now), &mut self.port, &mut self.sockets);
        for packet in self.port.tx.drain(..) {
            self.pending.push([&self.header[..], &packet].concat());
        }
        let due = self.interface.poll_at(at(now), &self.sockets);
        self.due = due.map(|due| due.total_micros().max(0) as Time);
    }

    fn socket(&mut self) -> Option<&mut Socket<'static>> {
        let (handle, _) = self.current?;
        Some(self.sockets.get_mut(handle))
    }

    fn state(&self) -> State {
        self.current
            .map_or(State::Closed, |(handle, _)| self.sockets.get::<Socket<'_>>(handle).state())
    }

    fn new_socket(&self) -> Socket<'static> {
        let room = |bytes: usize| SocketBuffer::new(vec![0; bytes]);
        let mut socket = Socket::new(room(self.config.buffer as usize), room(SEND_BYTES));
        let delay = self.config.delayed_ack_us;
        socket.set_ack_delay((delay > 0).then(|| Duration::from_micros(delay)));
        socket.set_keep_alive(Some(Duration::from_micros(self.spec.keep_alive)));
        socket.set_nagle_enabled(self.spec.nagle);
        socket.set_tsval_generator(self.config.stamps.then_some(|| STAMP.get()));
        socket
    }

    /// Forgets former connections that are over, are on `port`, or are too many.
    fn forget(&mut self, port: u16) {
        let sockets = &mut self.sockets;
        let mut excess = self.former.len().saturating_sub(FORMER_MAX);
        self.former.retain(|(handle, its_port)| {
            let closed = sockets.get::<Socket<'_>>(*handle).state() == State::Closed;
            let stays = !closed && *its_port != port && excess == 0;
            excess = excess.saturating_sub(1);
            if !stays {
                sockets.remove(*handle);
            }
            stays
        });
    }
}

impl Stack for SmolStack {
    fn connect(&mut self, now: Time, port: u16, _: u32) -> u32 {
        self.former.extend(self.current.take());
        self.forget(port);
        self.failure = None;
        let mut socket = self.new_socket();
        let local = SocketAddr::new(self.address, port);
        let opened = socket.connect(self.interface.context(), self.server, local);
        debug_assert!(opened.is_ok(), "{opened:?}");
        self.current = Some((self.sockets.add(socket), port));
        let before = self.pending.len();
        self.run(now);
        let mut syns = self.pending[before..].iter().filter_map(|frame| receive(frame));
        let syn = syns.find(|(_, seg)| seg.flags.has(Flags::SYN) && seg.src == local);
        syn.map_or(0, |(_, seg)| seg.seq.0)
    }

    fn frame(&mut self, now: Time, frame: &[u8]) {
        let Some((_, seg)) = receive(frame) else {
            return;
        };
        let mine = self.current.is_some_and(|(_, port)| port == seg.dst.port());
        let (reset, before) = (mine && seg.flags.has(Flags::RST), self.state());
        self.port.rx.push_back(frame[ETHERNET_BYTES..].to_vec());
        self.run(now);
        if reset && self.state() == State::Closed {
            self.failure = match before {
                State::Closed | State::TimeWait => self.failure,
                State::SynSent => Some(Status::Refused),
                _ => Some(Status::Reset),
            };
        }
    }

    fn poll(&mut self, now: Time, out: &mut Vec<Vec<u8>>) {
        self.run(now);
        out.append(&mut self.pending);
    }

    fn deadline(&self) -> Option<Time> {
        if self.pending.is_empty() { self.due } else { Some(0) }
    }

    fn send(&mut self, bytes: &[u8]) -> usize {
        self.socket().map_or(0, |s| s.send_slice(bytes).unwrap_or(0))
    }

    fn unsent(&self) -> usize {
        self.current.map_or(0, |(handle, _)| self.sockets.get::<Socket<'_>>(handle).send_queue())
    }

    fn recv(&mut self, to: &mut Vec<u8>, max: usize) -> usize {
        let Some(socket) = self.socket() else {
            return 0;
        };
        let before = to.len();
        // The buffer is a ring: its two parts come one after the other.
        while to.len() - before < max && socket.can_recv() {
            let most = max - (to.len() - before);
            let read = socket.recv(|bytes| {
                let n = bytes.len().min(most);
                to.extend_from_slice(&bytes[..n]);
                (n, n)
            });
            if read.is_err() {
                break;
            }
        }
        to.len() - before
    }

    fn close(&mut self) {
        if let Some(socket) = self.socket() {
            socket.close();
        }
    }

    fn abort(&mut self, _: Time) {
        if let Some(socket) = self.socket() {
            socket.abort();
        }
    }

    fn status(&self) -> Status {
        let Some((handle, _)) = self.current else {
            return Status::Unused;
        };
        let unread = self.sockets.get::<Socket<'_>>(handle).recv_queue() > 0;
        match (self.failure, self.state()) {
            (Some(failure), _) => failure,
            (None, State::SynSent | State::SynReceived) => Status::Connecting,
            (None, _) if unread => Status::Open,
            (None, State::Closed | State::TimeWait | State::Listen) => Status::Closed,
            (None, State::CloseWait | State::Closing | State::LastAck) => Status::PeerClosed,
            (None, State::Established | State::FinWait1 | State::FinWait2) => Status::Open,
        }
    }
}
