//! One client connection as both ends see it, and the segments that they send.

use super::{Dest, End, OUR_MAC, ROUTER_MAC, Sent, World, frontend, pod, pod_mac, wire};
use baton_packet::{Adoption, Flags, MessageKind};
use std::net::SocketAddr;
use wire::Wire;

/// What client and server say in their SYNs.
#[derive(Clone, Debug)]
pub struct Options {
    pub mss: Option<u16>,
    pub client_wscale: Option<u8>,
    pub server_wscale: Option<u8>,
    pub sack: bool,
    pub timestamps: bool,
    pub ecn: bool,
    /// Further options of the client's SYN, as bytes.
    pub extra: Vec<u8>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            mss: Some(1_460),
            client_wscale: Some(7),
            server_wscale: Some(9),
            sack: true,
            timestamps: true,
            ecn: false,
            extra: Vec::new(),
        }
    }
}

impl Options {
    fn bytes(&self, wscale: Option<u8>, stamps: Option<(u32, u32)>) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Some(mss) = self.mss {
            bytes.extend([2, 4]);
            bytes.extend(mss.to_be_bytes());
        }
        if self.sack {
            bytes.extend([1, 1, 4, 2]);
        }
        if let Some((value, echo)) = stamps {
            bytes.extend(wire::stamps(value, echo));
        }
        if let Some(scale) = wscale {
            bytes.extend([1, 3, 3, scale]);
        }
        bytes
    }
}

/// A connection. `seq` and `server` are what the two ends send next.
#[derive(Clone, Debug)]
pub struct Conn {
    pub client: SocketAddr,
    pub frontend: SocketAddr,
    pub options: Options,
    pub seq: u32,
    pub server: u32,
    pub window: u16,
    /// The pod that serves it, and the dataplane's end of that leg.
    pub pod: usize,
    pub leg: SocketAddr,
    /// What the pod's timestamp clock is ahead of the world's.
    pub server_clock: u32,
    /// Last timestamp of the server that the client saw.
    pub seen_ts: u32,
}

pub const CLIENT_CLOCK: u32 = 900_000;
const ACK: Flags = Flags::ACK;
pub const PSH_ACK: Flags = Flags(Flags::PSH.0 | Flags::ACK.0);
pub const FIN_ACK: Flags = Flags(Flags::FIN.0 | Flags::ACK.0);
pub const RST_ACK: Flags = Flags(Flags::RST.0 | Flags::ACK.0);

impl Conn {
    /// Client number `n`; odd numbers above 1,000 use IPv6.
    pub fn new(n: u16) -> Self {
        Self::of(n, false)
    }

    pub fn of(n: u16, v6: bool) -> Self {
        let ip = if v6 { "2001:db8::5" } else { "192.0.2.5" };
        Self {
            client: SocketAddr::new(ip.parse().expect("an address"), 30_000 + n),
            frontend: frontend(v6),
            options: Options::default(),
            seq: 0xffff_fff0_u32.wrapping_add(u32::from(n)),
            server: 0x7fff_fff0 + u32::from(n) * 7,
            window: 501,
            pod: usize::MAX,
            leg: SocketAddr::new(ip.parse().expect("an address"), 1),
            server_clock: 5_000 + u32::from(n),
            seen_ts: 0,
        }
    }

    pub fn v6(&self) -> bool {
        self.client.is_ipv6()
    }

    /// The name of the pod that serves it.
    pub fn pod_name(&self) -> String {
        super::pod_name(self.leg.is_ipv6(), self.pod)
    }

    /// The client sent this.
    pub fn client_sent(&mut self, flags: Flags, data: &[u8]) {
        self.seq = self.seq.wrapping_add(length(flags, data));
    }

    /// The server sent this.
    pub fn server_sent(&mut self, flags: Flags, data: &[u8]) {
        self.server = self.server.wrapping_add(length(flags, data));
    }
}

/// What a segment takes of the sequence numbers.
fn length(flags: Flags, data: &[u8]) -> u32 {
    data.len() as u32 + u32::from(flags.has(Flags::SYN)) + u32::from(flags.has(Flags::FIN))
}

fn ms(w: &World) -> u32 {
    w.now.ms() as u32
}

impl World {
    /// A segment of the client's with the connection's present numbers; the connection is not
    /// changed.
    pub fn client_wire(&self, c: &Conn, flags: Flags, data: &[u8]) -> Wire {
        let (macs, ends) = ((ROUTER_MAC, OUR_MAC), (c.client, c.frontend));
        Wire {
            window: c.window,
            options: if c.options.timestamps {
                wire::stamps(CLIENT_CLOCK + ms(self), c.seen_ts)
            } else {
                Vec::new()
            },
            data: data.to_vec(),
            ..Wire::new(macs, ends, (c.seq, c.server), flags)
        }
    }

    /// A segment of the serving pod's with the connection's present numbers.
    pub fn pod_wire(&self, c: &Conn, flags: Flags, data: &[u8]) -> Wire {
        let (macs, ends) = ((pod_mac(c.pod), OUR_MAC), (pod(c.leg.is_ipv6(), c.pod), c.leg));
        Wire {
            window: 509,
            options: if c.options.timestamps {
                wire::stamps(c.server_clock + ms(self), CLIENT_CLOCK + ms(self))
            } else {
                Vec::new()
            },
            data: data.to_vec(),
            ..Wire::new(macs, ends, (c.server, c.seq), flags)
        }
    }

    /// The client's SYN, without sending it.
    pub fn syn_wire(&self, c: &Conn) -> Wire {
        let stamps = c.options.timestamps.then_some((CLIENT_CLOCK + ms(self), 0));
        let mut wire = self.client_wire(c, Flags::SYN, &[]);
        wire.ack = 0;
        wire.options = c.options.bytes(c.options.client_wscale, stamps);
        wire.options.extend(&c.options.extra);
        if c.options.ecn {
            wire.flags = Flags::SYN | Flags::ECE | Flags::CWR;
        }
        wire
    }

    /// The client connects; the SYN that reached a pod.
    pub fn syn(&mut self, c: &mut Conn) -> Sent {
        let sent = self.inject(&self.syn_wire(c).build());
        let sent = one(sent);
        take_leg(c, &sent);
        sent
    }

    /// The pod's SYN-ACK, without sending it. The connection's client byte is the SYN still.
    pub fn synack_wire(&self, c: &Conn) -> Wire {
        let stamps =
            c.options.timestamps.then_some((c.server_clock + ms(self), CLIENT_CLOCK + ms(self)));
        let mut wire = self.pod_wire(c, Flags::SYN | Flags::ACK, &[]);
        wire.ack = c.seq.wrapping_add(1);
        wire.options = c.options.bytes(c.options.server_wscale, stamps);
        if c.options.ecn {
            wire.flags = Flags::SYN | Flags::ACK | Flags::ECE;
        }
        wire
    }

    pub fn synack(&mut self, c: &mut Conn) -> Sent {
        let sent = one(self.inject(&self.synack_wire(c).build()));
        assert_eq!(sent.to, Dest::Client);
        c.seq = c.seq.wrapping_add(1);
        c.server = c.server.wrapping_add(1);
        c.seen_ts = sent.stamps().map_or(0, |s| s.0);
        sent
    }

    /// The client acknowledges everything.
    pub fn ack(&mut self, c: &mut Conn) -> Sent {
        let wire = self.client_wire(c, ACK, &[]);
        self.forwarded_to_pod(c, &wire)
    }

    /// The pod accepts: its SYN-ACK, and the client's acknowledgement.
    pub fn accepts(&mut self, c: &mut Conn) {
        self.synack(c);
        self.ack(c);
    }

    /// An established connection of client `n`.
    pub fn open(&mut self, n: u16) -> Conn {
        self.open_as(Conn::new(n))
    }

    pub fn open_as(&mut self, mut c: Conn) -> Conn {
        self.syn(&mut c);
        self.accepts(&mut c);
        c
    }

    /// Sends a segment of the client's that must go to the connection's pod, as it is.
    pub fn forwarded_to_pod(&mut self, c: &Conn, wire: &Wire) -> Sent {
        let sent = one(self.inject(&wire.build()));
        assert_eq!(sent.to, Dest::Pod(c.pod));
        assert_eq!(sent.segment.src_port, c.leg.port(), "on the owner leg");
        assert_same(&sent, wire);
        sent
    }

    /// Sends a segment of the pod's that must go to the client, as it is.
    pub fn forwarded_to_client(&mut self, c: &Conn, wire: &Wire) -> Sent {
        let sent = one(self.inject(&wire.build()));
        assert_eq!(sent.to, Dest::Client);
        assert_eq!((sent.segment.dst, sent.segment.dst_port), (c.client.ip(), c.client.port()));
        assert_eq!((sent.segment.src, sent.segment.src_port), (c.frontend.ip(), c.frontend.port()));
        assert_same(&sent, wire);
        sent
    }

    /// Client data that stays with the owner.
    pub fn stays(&mut self, c: &mut Conn, data: &[u8]) -> Sent {
        let wire = self.client_wire(c, PSH_ACK, data);
        let sent = self.forwarded_to_pod(c, &wire);
        c.seq = c.seq.wrapping_add(data.len() as u32);
        sent
    }

    /// Client data; whatever leaves.
    pub fn data(&mut self, c: &mut Conn, data: &[u8]) -> Vec<Sent> {
        self.client_sends(c, PSH_ACK, data)
    }

    /// A segment of the client's with the connection's present numbers; whatever leaves.
    pub fn client_sends(&mut self, c: &mut Conn, flags: Flags, data: &[u8]) -> Vec<Sent> {
        let wire =
            if flags == Flags::SYN { self.syn_wire(c) } else { self.client_wire(c, flags, data) };
        c.client_sent(flags, data);
        self.inject(&wire.build())
    }

    /// The same of the pod's.
    pub fn pod_sends(&mut self, c: &mut Conn, flags: Flags, data: &[u8]) -> Vec<Sent> {
        let wire = self.pod_wire(c, flags, data);
        c.server_sent(flags, data);
        self.inject(&wire.build())
    }

    /// The pod answers with data and acknowledges all.
    pub fn responds(&mut self, c: &mut Conn, data: &[u8]) -> Sent {
        let wire = self.pod_wire(c, PSH_ACK, data);
        let sent = self.forwarded_to_client(c, &wire);
        c.server = c.server.wrapping_add(data.len() as u32);
        c.seen_ts = sent.stamps().map_or(0, |s| s.0);
        sent
    }

    /// The pod answers with data, and the client acknowledges it.
    pub fn answers(&mut self, c: &mut Conn, data: &[u8]) {
        self.responds(c, data);
        self.ack(c);
    }

    /// The response to a request, and the client's acknowledgement: the flow is at rest.
    pub fn served(&mut self, c: &mut Conn) {
        self.answers(c, OK);
    }

    /// The pod acknowledges everything; the client hears of it.
    pub fn pod_ack(&mut self, c: &Conn) {
        let ack = self.pod_wire(c, ACK, &[]);
        self.forwarded_to_client(c, &ack);
    }

    /// A request that stays, and is served.
    pub fn exchange(&mut self, c: &mut Conn) {
        self.stays(c, GET);
        self.served(c);
    }

    /// A request with which the flow moves, and which is served.
    pub fn moved_exchange(&mut self, c: &mut Conn) {
        self.moves(c, GET);
        self.served(c);
    }

    /// A request that stays or moves, its response, and the client's acknowledgement.
    pub fn exchange_anywhere(&mut self, c: &mut Conn) {
        self.assert_serves(c);
        self.ack(c);
        self.assert_state(c, "Idle");
    }

    /// An established connection at rest: one exchange is over.
    pub fn idle(&mut self, n: u16) -> Conn {
        self.idle_as(Conn::new(n))
    }

    pub fn idle_as(&mut self, c: Conn) -> Conn {
        let mut c = self.open_as(c);
        self.exchange(&mut c);
        c
    }

    /// The world with a first client, whose SYN reached a pod.
    pub fn begun(mut self) -> (Self, Conn) {
        let mut c = Conn::new(1);
        self.syn(&mut c);
        (self, c)
    }

    /// The world with a first client, whose connection is established.
    pub fn opened(mut self) -> (Self, Conn) {
        let c = self.open(1);
        (self, c)
    }

    /// The world with a first client, whose connection is at rest.
    pub fn at_rest(mut self) -> (Self, Conn) {
        let c = self.idle(1);
        (self, c)
    }

    /// A request with which the flow moves: the adoption segment and then the request leave, both
    /// to the same pod, which is the connection's pod from here on. Returns the adoption.
    pub fn moves(&mut self, c: &mut Conn, request: &[u8]) -> Sent {
        let wire = self.client_wire(c, PSH_ACK, request);
        let sent = self.inject(&wire.build());
        assert_eq!(sent.len(), 2, "adoption and request: {sent:?}");
        let old = (c.pod, c.leg);
        self.expect_adoption(&sent[0], c);
        take_leg(c, &sent[0]);
        assert_ne!(old, (c.pod, c.leg));
        assert_eq!(sent[1].to, sent[0].to);
        assert_eq!(sent[1].segment.src_port, c.leg.port());
        assert_same(&sent[1], &wire);
        c.seq = c.seq.wrapping_add(request.len() as u32);
        sent[0].clone()
    }

    /// Asserts that a frame is an adoption segment with the connection's present numbers.
    pub fn expect_adoption(&self, sent: &Sent, c: &Conn) -> Adoption {
        let message = sent.message().expect("a message with the right tag");
        assert_eq!(message.kind, MessageKind::Adopt);
        assert_eq!(sent.segment.seq.0, c.seq, "next client byte");
        assert_eq!(sent.segment.ack.0, c.server, "next server byte");
        assert_eq!(sent.segment.flags, ACK);
        assert!(sent.data().is_empty());
        assert_eq!(message.epoch, super::EPOCH);
        message
    }

    /// A process of the pod that listens closes: its FIN is held until its kernel says that
    /// somebody listens, then the client gets one of Baton's making with the same number.
    pub fn pod_closes(&mut self, c: &mut Conn) -> Sent {
        assert!(self.ends_listening(c, End::Fin).is_empty(), "held");
        self.assert_state(c, "OwnerFinPending");
        let sent = one(self.run_ms(5));
        assert_eq!(sent.to, Dest::Client);
        assert!(sent.is(FIN_ACK));
        assert_eq!(sent.segment.seq.0, c.server);
        c.server = c.server.wrapping_add(1);
        self.assert_state(c, "ServerFin");
        sent
    }

    /// The pod's FIN, passed to the client at once.
    pub fn pod_fin(&mut self, c: &mut Conn) {
        let wire = self.pod_wire(c, FIN_ACK, &[]);
        self.forwarded_to_client(c, &wire);
        c.server = c.server.wrapping_add(1);
    }

    /// The client's FIN, passed to the pod.
    pub fn client_fin(&mut self, c: &mut Conn) {
        let wire = self.client_wire(c, FIN_ACK, &[]);
        self.forwarded_to_pod(c, &wire);
        c.seq = c.seq.wrapping_add(1);
    }

    /// State of the connection's flow; `None` if there is none.
    pub fn state(&self, c: &Conn) -> Option<String> {
        let frontend = super::endpoint(c.frontend);
        self.flow(c.client, |f| *f == frontend).map(|f| f.state)
    }

    pub fn assert_state(&self, c: &Conn, state: &str) {
        assert_eq!(self.state(c).as_deref(), Some(state));
    }

    /// Asserts that a request of the connection still goes through to a pod and back.
    pub fn assert_serves(&mut self, c: &mut Conn) {
        let before = c.seq;
        let sent = self.data(c, GET);
        let request = sent.last().expect("the request");
        assert_eq!((request.data(), request.segment.seq.0), (GET, before));
        take_leg(c, request);
        self.responds(c, OK);
    }
}

pub const GET: &[u8] = b"GET / HTTP/1.1\r\n\r\n";
pub const POST: &[u8] = b"POST / HTTP/1.1\r\ncontent-length: 1\r\n\r\nx";
/// The head of a POST whose body of `bytes` bytes follows.
pub fn post_head(bytes: usize) -> Vec<u8> {
    format!("POST / HTTP/1.1\r\ncontent-length: {bytes}\r\n\r\n").into_bytes()
}

/// The head of a request whose length is not announced.
pub const CHUNKED: &[u8] = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n";
/// Commands of RESP, of which the first ties a session to the connection, and a reply.
pub const SELECT: &[u8] = b"*2\r\n$6\r\nSELECT\r\n$1\r\n3\r\n";
pub const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";
pub const PLUS_OK: &[u8] = b"+OK\r\n";

pub const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

pub fn one(mut sent: Vec<Sent>) -> Sent {
    assert_eq!(sent.len(), 1, "one frame: {sent:?}");
    sent.remove(0)
}

/// The leg on which a segment reached a pod.
pub fn take_leg(c: &mut Conn, sent: &Sent) {
    let Dest::Pod(pod) = sent.to else { panic!("not to a pod: {sent:?}") };
    c.pod = pod;
    c.leg = SocketAddr::new(sent.segment.src, sent.segment.src_port);
}

/// Asserts that nothing but addresses, ports and hop limit differs.
pub fn assert_same(sent: &Sent, wire: &Wire) {
    let s = &sent.segment;
    assert_eq!((s.seq.0, s.ack.0), (wire.seq, wire.ack));
    assert_eq!((s.flags, s.window), (wire.flags, wire.window));
    assert_eq!(s.options(&sent.frame), &wire.options[..]);
    assert_eq!(sent.data(), &wire.data[..]);
    let hops = sent.frame[if s.is_v6() { 21 } else { 22 }];
    assert_eq!(hops, wire.ttl - 1, "hop limit");
}
