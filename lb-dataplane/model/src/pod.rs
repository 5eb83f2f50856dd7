//! A pod: its adopter, its kernel's sockets and its application.
//!
//! Owns what `host-shim/adopter/src/bpf/adopter.bpf.c` and Linux do with a segment that arrives. It
//! knows nothing of flows.

use crate::{
    config::Safeguards,
    wire::{Refusal, Wire},
};

/// The number that a stale socket expects and sends; no flow of the model comes near it.
pub const STALE: u8 = 100;
/// What a refusal for a socket in the way says when that socket is gone: a number that nobody
/// expects.
const NOBODY: u8 = 98;
/// Handshakes that a pod answers on one leg, at most; a SYN that comes later is lost.
const HANDSHAKES_MAX: u8 = 2;

/// One connection in a pod's kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Socket {
    /// Our port.
    pub port: u8,
    /// Next unit expected.
    pub rcv: u8,
    /// Next unit to send.
    pub snd: u8,
    /// First unit not acknowledged.
    pub una: u8,
    /// Next unit that the application reads.
    pub read: u8,
    /// The client's FIN is among what was received.
    pub fin: bool,
    /// The application closed it; the kernel still has its FIN, at `snd`, to deliver.
    pub closed: bool,
    /// Whose numbers it has: the handshake of its leg that made it. 0: the client's.
    pub isn: u8,
    /// That handshake is not over: a request socket, of which no application knows.
    pub half: bool,
}

impl Socket {
    /// A connection at these numbers.
    #[must_use]
    pub const fn new(port: u8, rcv: u8, snd: u8) -> Self {
        Self { port, rcv, snd, una: snd, read: rcv, fin: false, closed: false, isn: 0, half: false }
    }

    /// Requests that the application has not read.
    #[must_use]
    pub const fn unread(&self) -> bool {
        self.read + (self.fin as u8) < self.rcv
    }

    const fn is_stale(&self) -> bool {
        self.rcv >= STALE
    }

    const fn ack(&self) -> Wire {
        Wire::Ack { seq: self.snd, ack: self.rcv }
    }

    /// What the application's close, or its death, sends (Linux `tcp_close`: unread data makes it a
    /// reset).
    const fn end(&self, hard: bool) -> Wire {
        if hard || self.unread() {
            Wire::RstAck { seq: self.snd, ack: self.rcv }
        } else {
            Wire::Fin { seq: self.snd, ack: self.rcv }
        }
    }
}

/// An adoption that was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Decided {
    /// Our port.
    pub port: u8,
    /// The adoption's numbers.
    pub seq: u8,
    /// The adoption's numbers.
    pub ack: u8,
    /// Why it was refused; `None` if it was taken.
    pub refused: Option<Refusal>,
}

/// A Release that was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Asked {
    /// Our port.
    pub port: u8,
    /// Its numbers.
    pub seq: u8,
    /// Its numbers.
    pub ack: u8,
    /// The connection was let go of.
    pub released: bool,
}

/// One pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Pod {
    /// A process listens.
    pub listens: bool,
    /// Its accept queue is full.
    pub full: bool,
    /// Its adopter does not know the epoch of the dataplane's key.
    pub keyless: bool,
    /// Nothing is heard of it any more.
    pub cut: bool,
    /// Its process was killed once.
    pub died: bool,
    /// Its application closed a connection for reasons of its own.
    pub closed_one: bool,
    /// Sockets, by port.
    pub sockets: Vec<Socket>,
    /// What the adopter remembers of adoptions: the first copy of each decided for all. And, for
    /// the properties, connections that handshakes made.
    pub recent: Vec<Decided>,
    /// How many handshakes it answered, by port.
    pub handshakes: Vec<(u8, u8)>,
    /// It agrees to less than other pods.
    pub unlike: bool,
    /// And of Releases, likewise.
    pub asked: Vec<Asked>,
}

impl Pod {
    /// The socket on a port.
    #[must_use]
    pub fn socket(&self, port: u8) -> Option<&Socket> {
        self.sockets.iter().find(|s| s.port == port)
    }

    /// The same, to change it.
    pub fn socket_mut(&mut self, port: u8) -> Option<&mut Socket> {
        self.sockets.iter_mut().find(|s| s.port == port)
    }

    /// Adds a socket.
    pub fn add(&mut self, socket: Socket) {
        let at = self.sockets.partition_point(|s| s.port < socket.port);
        self.sockets.insert(at, socket);
    }

    fn remove(&mut self, port: u8) {
        self.sockets.retain(|s| s.port != port);
    }

    /// What a probe would find.
    #[must_use]
    pub const fn adopts(&self) -> bool {
        self.listens && !self.full && !self.keyless
    }

    /// A segment arrives on `port`, with the numbers of handshake `isn`; what the pod answers, and
    /// in which numbers.
    pub fn receive(
        &mut self,
        port: u8,
        isn: u8,
        wire: Wire,
        safe: &Safeguards,
    ) -> Option<(u8, Wire)> {
        let plain = |answer: Option<Wire>| answer.map(|wire| (0, wire));
        if let Wire::Adopt { seq, ack } = wire {
            return plain(self.adopt(port, seq, ack, safe));
        }
        if let Wire::Release { seq, ack } = wire {
            return plain(self.release(port, seq, ack, safe));
        }
        if let Some(socket) = self.socket(port) {
            let own = socket.isn;
            let answer = if socket.half {
                self.half_receives(port, isn, wire)
            } else if socket.is_stale() || own == isn || Self::is_of_any(wire) {
                self.socket_receives(port, wire)
            } else {
                Some(socket.ack())
            };
            return answer.map(|wire| match wire {
                Wire::Rst { .. } => (isn, wire),
                _ => (own, wire),
            });
        }
        match wire {
            // A listener or nothing at all: the same to a segment of no connection.
            Wire::Data { ack, .. }
            | Wire::Keepalive { ack, .. }
            | Wire::Ack { ack, .. }
            | Wire::Opens { ack, .. }
            | Wire::Fin { ack, .. } => Some((isn, Wire::Rst { seq: ack })),
            Wire::Syn { seq, ack } => self.listener_receives(port, seq, ack),
            _ => None,
        }
    }

    /// It acknowledges nothing that would have to fit.
    const fn is_of_any(wire: Wire) -> bool {
        matches!(wire, Wire::Syn { .. } | Wire::Rst { .. } | Wire::RstAck { .. })
    }

    /// A SYN where there is no socket. With a full queue Linux drops it (`tcp_conn_request`).
    fn listener_receives(&mut self, port: u8, seq: u8, ack: u8) -> Option<(u8, Wire)> {
        if !self.listens {
            return Some((0, Wire::SynRefused { ack: seq }));
        }
        let known = self.handshakes.iter().position(|(p, _)| *p == port);
        let at = known.unwrap_or_else(|| {
            let at = self.handshakes.partition_point(|(p, _)| *p < port);
            self.handshakes.insert(at, (port, 0));
            at
        });
        let (_, count) = &mut self.handshakes[at];
        if self.full || *count == HANDSHAKES_MAX {
            return None;
        }
        *count += 1;
        let socket = Socket { isn: *count, half: true, ..Socket::new(port, seq, ack) };
        let isn = socket.isn;
        self.add(socket);
        let unlike = self.unlike;
        Some((isn, Wire::SynAck { ack: seq, unlike }))
    }

    /// A request socket (Linux `tcp_check_req`). What acknowledges another handshake's number meets
    /// the listener instead; what it has already is acknowledged; and where the queue of accepted
    /// connections is full, all else is dropped.
    fn half_receives(&mut self, port: u8, isn: u8, wire: Wire) -> Option<Wire> {
        let (full, unlike) = (self.full, self.unlike);
        let socket = self.socket_mut(port)?;
        let (rcv, snd) = (socket.rcv, socket.snd);
        match wire {
            Wire::Syn { .. } => Some(Wire::SynAck { ack: rcv, unlike }),
            Wire::Rst { seq } | Wire::RstAck { seq, .. } => {
                if seq >= rcv {
                    self.remove(port);
                }
                None
            }
            Wire::Data { ack, .. }
            | Wire::Keepalive { ack, .. }
            | Wire::Ack { ack, .. }
            | Wire::Opens { ack, .. }
            | Wire::Fin { ack, .. }
                if isn != socket.isn || ack != snd =>
            {
                Some(Wire::Rst { seq: ack })
            }
            Wire::Keepalive { .. } => Some(socket.ack()),
            Wire::Data { seq, .. }
            | Wire::Ack { seq, .. }
            | Wire::Opens { seq, .. }
            | Wire::Fin { seq, .. }
                if seq >= rcv && !full =>
            {
                socket.half = false;
                self.recent.push(Decided { port, seq: rcv, ack: snd, refused: None });
                self.recent.sort_unstable();
                self.recent.dedup();
                self.socket_receives(port, wire)
            }
            _ => None,
        }
    }

    /// The first copy of a Release decides for all. The reset of what is let go of is its answer.
    fn release(&mut self, port: u8, seq: u8, ack: u8, safe: &Safeguards) -> Option<Wire> {
        if self.keyless {
            return None;
        }
        let same = |a: &&Asked| (a.port, a.seq, a.ack) == (port, seq, ack);
        if let Some(asked) = self.asked.iter().find(same) {
            return Some(Wire::Told { released: asked.released, seq: ack, ack: seq });
        }
        let socket = self.socket(port).filter(|s| {
            let unread = (s.read, s.snd) == (seq, ack);
            (unread || !safe.releases_are_of_unread) && !s.fin && !s.closed
        });
        let reset = socket.map(|s| Wire::Released { seq: s.snd, ack: s.rcv });
        self.asked.push(Asked { port, seq, ack, released: reset.is_some() });
        self.asked.sort_unstable();
        if reset.is_some() {
            self.remove(port);
        }
        reset
    }

    fn adopt(&mut self, port: u8, seq: u8, ack: u8, safe: &Safeguards) -> Option<Wire> {
        if self.keyless {
            return None;
        }
        let answer = |why| Some(Wire::Answer { why, seq: ack, ack: seq });
        let found = |d: &&Decided| (d.port, d.seq, d.ack) == (port, seq, ack);
        if let Some(decided) = self.recent.iter().find(found).copied() {
            match (decided.refused, self.socket(port)) {
                (Some(Refusal::TupleInUse(_)), socket) => {
                    let expects = socket.map_or(NOBODY, |s| s.rcv);
                    return answer(Refusal::TupleInUse(expects));
                }
                (Some(why), _) => return answer(why),
                // Passed on: an acknowledgement of what the socket has draws one in return, nothing
                // else does.
                (None, Some(socket)) => return (seq < socket.rcv).then(|| socket.ack()),
                (None, None) if self.listens || safe.memory_outlives_listener => {
                    return answer(Refusal::AlreadyAdopted);
                }
                (None, None) => return answer(Refusal::NoListener),
            }
        }
        let refused = if let Some(socket) = self.socket(port) {
            Some(Refusal::TupleInUse(socket.rcv))
        } else if !self.listens {
            Some(Refusal::NoListener)
        } else if self.full {
            Some(Refusal::QueueFull)
        } else {
            None
        };
        let remembers = match refused {
            Some(_) => safe.refusals_are_final,
            None => safe.adoptions_are_remembered,
        };
        if remembers {
            self.recent.push(Decided { port, seq, ack, refused });
            self.recent.sort_unstable();
        }
        if refused.is_none() {
            self.add(Socket::new(port, seq, ack));
        }
        refused.and_then(answer)
    }

    fn socket_receives(&mut self, port: u8, wire: Wire) -> Option<Wire> {
        let socket = self.socket_mut(port)?;
        if socket.is_stale() {
            if wire == (Wire::Rst { seq: socket.rcv }) {
                self.remove(port);
                return None;
            }
            // A challenge ACK, with its own numbers.
            return (!matches!(wire, Wire::Rst { .. } | Wire::RstAck { .. }))
                .then_some(socket.ack());
        }
        match wire {
            Wire::Data { seq, ack } => {
                socket.una = socket.una.max(ack.min(socket.snd));
                if socket.closed && seq >= socket.rcv {
                    self.remove(port);
                    return Some(Wire::Rst { seq: ack });
                }
                if seq == socket.rcv {
                    socket.rcv += 1;
                }
                Some(socket.ack())
            }
            // To a SYN, a challenge ACK (RFC 5961).
            Wire::Keepalive { .. } | Wire::Syn { .. } => Some(socket.ack()),
            Wire::Ack { ack, .. } | Wire::Opens { ack, .. } => {
                socket.una = socket.una.max(ack.min(socket.snd));
                if socket.closed && ack == socket.snd + 1 {
                    self.remove(port);
                }
                None
            }
            Wire::Fin { seq, ack } => {
                socket.una = socket.una.max(ack.min(socket.snd));
                if seq != socket.rcv {
                    return Some(socket.ack());
                }
                socket.rcv += 1;
                socket.fin = true;
                if socket.closed {
                    let last = socket.ack();
                    self.remove(port);
                    return Some(last);
                }
                Some(socket.ack())
            }
            Wire::Rst { seq } | Wire::RstAck { seq, .. } => {
                if seq == socket.rcv {
                    self.remove(port);
                    return None;
                }
                // RFC 5961: in the window, but not exact.
                (seq > socket.rcv).then(|| socket.ack())
            }
            Wire::Adopt { .. }
            | Wire::Answer { .. }
            | Wire::Release { .. }
            | Wire::Released { .. }
            | Wire::SynAck { .. }
            | Wire::SynRefused { .. }
            | Wire::Told { .. } => None,
        }
    }

    /// A request socket is given up, or its listener is closed.
    pub fn gives_up(&mut self, port: u8) {
        self.sockets.retain(|s| s.port != port || !s.half);
    }

    /// The application closes a connection, or dies; what the client is sent. `hard`: a reset in
    /// any case.
    pub fn end(&mut self, port: u8, hard: bool) -> Option<Wire> {
        let socket = self.socket_mut(port)?;
        if socket.is_stale() || socket.half || socket.closed {
            return None;
        }
        let end = socket.end(hard);
        if matches!(end, Wire::RstAck { .. }) || socket.fin {
            self.remove(port);
        } else {
            socket.closed = true;
        }
        Some(end)
    }
}
