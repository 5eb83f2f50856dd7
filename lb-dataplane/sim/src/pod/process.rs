//! The server process of a pod: it accepts, reads, executes and answers, sometimes late, and closes
//! for its own reasons.
//!
//! Owns what it has read of each connection and what it is going to answer. Sockets belong to the
//! kernel.

use super::{Cause, PodNote, kernel::Kernel};
use crate::{
    clock::Time,
    talk::{Language, Method, RequestReader},
};
use std::{
    collections::{BTreeMap, VecDeque},
    net::SocketAddr,
};

/// How a server behaves. Shares are of 100.
#[derive(Clone, Debug)]
pub struct ProcessSpec {
    /// `listen()`'s argument.
    pub backlog: usize,
    /// Bytes of receive buffers.
    pub buffer: u32,
    /// The kernel's delayed acknowledgements.
    pub delayed_ack: Time,
    /// It accepts this late.
    pub accept_delay: Time,
    /// It reads this late at most.
    pub read_delay: Time,
    /// It answers this late at most.
    pub think: Time,
    /// Share of answers that take up to so much longer.
    pub tail: Option<(u32, Time)>,
    /// Responses are written in pieces of this size; 0 for whole ones.
    pub piece: usize,
    /// Longest pause between two pieces.
    pub piece_pause: Time,
    /// Connections that are idle this long are closed.
    pub idle: Option<Time>,
    /// Responses that announce the end of their connection (HTTP).
    pub announced_closes: u32,
    /// Requests instead of whose response the application resets the connection.
    pub aborts: u32,
    /// Each connection begins with a header of the PROXY protocol, or is a mistake.
    pub expects_header: bool,
}

/// A response on its way out.
struct Reply {
    bytes: Vec<u8>,
    written: usize,
    due: Time,
    closes: bool,
    aborts: bool,
}

/// What it knows of one connection.
pub struct Conn {
    reader: RequestReader,
    /// Whom the header names.
    client: Option<SocketAddr>,
    replies: VecDeque<Reply>,
    read_at: Time,
    idle_since: Time,
    db: u8,
    /// It announced a close: nothing more is read.
    last: bool,
}

/// One process, and those that follow it in the same pod.
pub struct Process {
    index: u32,
    spec: ProcessSpec,
    language: Language,
    rng: fastrand::Rng,
    conns: BTreeMap<SocketAddr, Conn>,
    alive: bool,
    frozen: bool,
    /// All answers take so much longer.
    slower: Time,
    executions: u32,
    accept_at: Option<Time>,
    wake: Option<Time>,
}

impl Process {
    /// A process that runs.
    #[must_use]
    pub fn new(index: u32, spec: ProcessSpec, language: Language, seed: u64) -> Self {
        Self {
            index,
            spec,
            language,
            rng: fastrand::Rng::with_seed(seed),
            conns: BTreeMap::new(),
            alive: true,
            frozen: false,
            slower: 0,
            executions: 0,
            accept_at: None,
            wake: None,
        }
    }

    /// Whether it runs, frozen or not.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.alive
    }

    /// It dies. `false` if it was dead.
    pub fn die(&mut self) -> bool {
        self.conns.clear();
        (self.wake, self.accept_at) = (None, None);
        self.frozen = false;
        std::mem::replace(&mut self.alive, false)
    }

    /// It starts again.
    pub fn start(&mut self, now: Time) {
        self.alive = true;
        self.wake = Some(now);
    }

    /// `SIGSTOP` and `SIGCONT`.
    pub fn freeze(&mut self, on: bool) {
        self.frozen = on;
        self.wake = Some(0);
    }

    /// Each answer takes so much longer from now on.
    pub fn slow(&mut self, more: Time) {
        self.slower = more;
    }

    /// From here on it is quick, closes nothing on its own and resets nothing.
    pub fn calm(&mut self) {
        self.spec.accept_delay = 0;
        self.spec.read_delay = 0;
        self.spec.think = self.spec.think.min(1_000);
        self.spec.piece_pause = 0;
        (self.spec.tail, self.slower) = (None, 0);
        (self.spec.aborts, self.spec.announced_closes) = (0, 0);
        self.freeze(false);
    }

    /// It hands a connection to another process, if it runs and has it.
    pub fn hand_out(&mut self, peer: &SocketAddr) -> Option<Conn> {
        if self.frozen {
            return None;
        }
        self.conns.remove(peer)
    }

    /// Whether it would take one.
    #[must_use]
    pub fn takes(&self) -> bool {
        self.alive && !self.frozen
    }

    /// It takes one over.
    pub fn take_over(&mut self, now: Time, peer: SocketAddr, conn: Conn) {
        self.conns.insert(peer, conn);
        self.wake_at(now);
    }

    /// When [`Process::step`] has to be called at the latest.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.wake
    }

    /// Does what is due.
    pub fn step(&mut self, now: Time, kernel: &mut Kernel, out: &mut Vec<Vec<u8>>) {
        self.wake = None;
        if !self.alive || self.frozen {
            return;
        }
        self.accept(now, kernel);
        let peers: Vec<SocketAddr> = self.conns.keys().copied().collect();
        for peer in peers {
            if let Some(mut conn) = self.conns.remove(&peer)
                && self.serve(now, &peer, &mut conn, kernel, out)
            {
                self.conns.insert(peer, conn);
            }
        }
    }

    fn wake_at(&mut self, at: Time) {
        self.wake = Some(self.wake.map_or(at, |w| w.min(at)));
    }

    fn accept(&mut self, now: Time, kernel: &mut Kernel) {
        if !kernel.has_waiting() {
            return;
        }
        let due = *self.accept_at.get_or_insert(now + self.spec.accept_delay);
        if now < due {
            return self.wake_at(due);
        }
        self.accept_at = None;
        while let Some(peer) = kernel.accept() {
            let conn = Conn {
                reader: RequestReader::new(self.language),
                client: None,
                replies: VecDeque::new(),
                read_at: now + self.rng.u64(..=self.spec.read_delay),
                idle_since: now,
                db: 0,
                last: false,
            };
            self.conns.insert(peer, conn);
        }
    }

    /// One connection. `false` if the process has it no more.
    fn serve(
        &mut self,
        now: Time,
        peer: &SocketAddr,
        conn: &mut Conn,
        kernel: &mut Kernel,
        out: &mut Vec<Vec<u8>>,
    ) -> bool {
        let Some(socket) = kernel.socket(peer) else {
            return false;
        };
        if socket.state() == crate::tcp::State::Closed {
            kernel.forsake(now, peer, Cause::PeerClosed, out);
            return false;
        }
        if !conn.last && socket.unread() > 0 {
            if now < conn.read_at {
                self.wake_at(conn.read_at);
            } else {
                socket.recv(conn.reader.room(), usize::MAX);
                conn.read_at = now + self.rng.u64(..=self.spec.read_delay);
                conn.idle_since = now;
                self.execute(now, peer, conn, kernel);
            }
        }
        if !self.reply(now, peer, conn, kernel, out) {
            return false;
        }
        let Some(socket) = kernel.socket(peer) else {
            return false;
        };
        if !conn.replies.is_empty() {
            return true;
        }
        if socket.at_end() {
            kernel.forsake(now, peer, Cause::PeerClosed, out);
            return false;
        }
        if let Some(idle) = self.spec.idle
            && !conn.reader.is_within()
            && socket.unread() == 0
        {
            let due = conn.idle_since + idle;
            if now >= due {
                kernel.forsake(now, peer, Cause::Meant, out);
                return false;
            }
            self.wake_at(due);
        }
        true
    }

    /// Executes every whole request that was read.
    fn execute(&mut self, now: Time, peer: &SocketAddr, conn: &mut Conn, kernel: &mut Kernel) {
        while !conn.last {
            if self.spec.expects_header && conn.client.is_none() {
                match conn.reader.take_header() {
                    Ok(None) => return,
                    Ok(client) => conn.client = client,
                    Err(what) => return self.is_wrong(&what, conn, kernel),
                }
            }
            let request = match conn.reader.take() {
                Ok(Some(request)) => request,
                Ok(None) => return,
                Err(what) => return self.is_wrong(&what, conn, kernel),
            };
            if request.method == Method::Select {
                conn.db = request.db;
            } else if self.language == Language::Resp && request.db != conn.db {
                let what = format!(
                    "pod {}: request {} for database {} runs in database {}",
                    self.index, request.tag, request.db, conn.db
                );
                kernel.notes.push(PodNote::Wrong(what));
            }
            self.executions += 1;
            let execution = (self.index + 1) << 20 | self.executions;
            if request.method != Method::Select {
                kernel.notes.push(PodNote::Executed {
                    request,
                    execution,
                    peer: *peer,
                    sees: conn.client.or_else(|| kernel.restored.client_of(peer)),
                });
            }
            let chance = |rng: &mut fastrand::Rng, share| rng.u32(..100) < share;
            let http = self.language == Language::Http;
            let closes = http && chance(&mut self.rng, self.spec.announced_closes);
            let aborts = chance(&mut self.rng, self.spec.aborts);
            let mut think = self.rng.u64(..=self.spec.think) + self.slower;
            if let Some((share, most)) = self.spec.tail
                && chance(&mut self.rng, share)
            {
                think += self.rng.u64(..=most);
            }
            let before = conn.replies.back().map_or(now, |r| r.due);
            conn.replies.push_back(Reply {
                bytes: request.response(self.language, execution, closes),
                written: 0,
                due: before.max(now) + think,
                closes,
                aborts,
            });
            conn.last = closes;
        }
    }

    fn is_wrong(&self, what: &str, conn: &mut Conn, kernel: &mut Kernel) {
        let what = format!("pod {}: {what}", self.index);
        kernel.notes.push(PodNote::Wrong(what));
        conn.last = true;
    }

    /// Writes what is due. `false` if the process has the connection no more.
    fn reply(
        &mut self,
        now: Time,
        peer: &SocketAddr,
        conn: &mut Conn,
        kernel: &mut Kernel,
        out: &mut Vec<Vec<u8>>,
    ) -> bool {
        while let Some(reply) = conn.replies.front_mut() {
            if now < reply.due {
                let due = reply.due;
                self.wake_at(due);
                return true;
            }
            if reply.aborts {
                kernel.abort(now, peer, Cause::Meant, out);
                return false;
            }
            let Some(socket) = kernel.socket(peer) else {
                return false;
            };
            let left = reply.bytes.len() - reply.written;
            let n = match self.spec.piece {
                0 => left,
                most => self.rng.usize(1..=most).min(left),
            };
            socket.send(&reply.bytes[reply.written..reply.written + n]);
            reply.written += n;
            conn.idle_since = now;
            if n < left {
                reply.due = now + self.rng.u64(..=self.spec.piece_pause);
                continue;
            }
            let closes = reply.closes;
            conn.replies.pop_front();
            if closes {
                // What the client sent after it is of no interest, but unread bytes would make it a
                // reset.
                let mut rest = Vec::new();
                socket.recv(&mut rest, usize::MAX);
                kernel.forsake(now, peer, Cause::Meant, out);
                return false;
            }
        }
        true
    }
}
