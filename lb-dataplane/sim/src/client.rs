//! Clients: what applications do with their connections, over whichever TCP stack they have.
//!
//! Owns the requests of one client, when they are written and how responses are read and checked.
//! It never knows what is between it and its server, and judges no close or reset: it tells the
//! world what it saw.

use crate::{
    clock::{MS, SECOND, Time},
    stack::{Stack, Status},
    talk::{Language, Method, Progress, Request, ResponseReader, Tag},
};

/// A client that has everything and closed its side waits this long for the server to close its
/// own.
const LINGER: Time = SECOND;
/// Bytes that a reader in a hurry takes at once.
const READ_MAX: usize = 1 << 20;
/// Connections of one client have numbers of their own.
pub const CONNS_PER_CLIENT: u32 = 1_000;

/// How one client behaves. Shares are of 100.
#[derive(Clone, Debug)]
pub struct ClientSpec {
    /// When it begins.
    pub start: Time,
    /// Connections, one after another.
    pub conns: u32,
    /// Requests on each, at least and at most.
    pub requests: (u16, u16),
    /// Requests that may be outstanding together.
    pub depth: usize,
    /// Longest pause in front of a request.
    pub think: Time,
    /// Requests written in pieces of at most this; 0 for whole ones.
    pub piece: usize,
    /// Pause between two pieces.
    pub piece_pause: Time,
    /// Bytes read at once, and the pause after them.
    pub slow_read: Option<(usize, Time)>,
    /// Connections on which the last request is followed by a FIN at once.
    pub half_close: u32,
    /// Connections that the client resets, some time after they opened.
    pub abort: u32,
    /// Latest time for that.
    pub abort_within: Time,
    /// Requests that are not idempotent.
    pub posts: u32,
    /// Requests with `SELECT` in front (RESP).
    pub selects: u32,
    /// Largest body of a request.
    pub body: u32,
    /// Largest filling of a response.
    pub answer: u32,
    /// A new connection may have the port of a former one that was reset.
    pub reuse_port: bool,
}

/// How a connection ended for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It closed it itself and both sides finished, or it gave up waiting for the other.
    Done,
    /// The server closed it.
    ServerClosed,
    /// It was reset, by whomever.
    Reset,
    /// Its SYN was refused.
    Refused,
    /// Nobody answered.
    TimedOut,
    /// The client reset it.
    Aborted,
}

/// What a client tells the world.
#[derive(Clone, Debug)]
pub enum Note {
    /// A connection was begun from this port.
    Connects {
        /// Its number.
        conn: u32,
        /// Its port.
        port: u16,
        /// The initial sequence number.
        isn: u32,
    },
    /// It is open.
    Open(u32),
    /// The first byte of a request was handed to the stack.
    Begins(Request),
    /// Bytes handed to the stack.
    Wrote(u32, Vec<u8>),
    /// The client closed its sending side.
    Closes(u32),
    /// A response came completely.
    Answered(Request, Option<u32>),
    /// A connection is over; these requests were not answered.
    Ended(u32, End, Vec<Request>),
    /// A byte that cannot be.
    Wrong(String),
}

struct Conn {
    id: u32,
    requests: Vec<Request>,
    begun: usize,
    begun_at: Time,
    answered: usize,
    queue: Vec<u8>,
    write_at: Time,
    read_at: Time,
    reader: ResponseReader,
    unread: Vec<u8>,
    open: bool,
    closing: bool,
    half_close: bool,
    abort_at: Option<Time>,
    linger_until: Option<Time>,
    told: bool,
}

/// One client.
pub struct Client {
    /// Its stack.
    pub stack: Box<dyn Stack>,
    spec: ClientSpec,
    language: Language,
    index: u32,
    rng: fastrand::Rng,
    conn: Option<Conn>,
    opened: u32,
    next_at: Time,
    port: u16,
    isn: u32,
    reset: bool,
    calm: bool,
    wake: Option<Time>,
    /// What happened since the world looked.
    pub notes: Vec<Note>,
}

impl Client {
    /// A client with its stack.
    #[must_use]
    pub fn new(
        index: u32,
        spec: ClientSpec,
        language: Language,
        stack: Box<dyn Stack>,
        seed: u64,
    ) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        Self {
            stack,
            next_at: spec.start,
            wake: Some(spec.start),
            spec,
            language,
            index,
            conn: None,
            opened: 0,
            port: rng.u16(33_000..60_000),
            rng,
            isn: 0,
            reset: false,
            calm: false,
            notes: Vec::new(),
        }
    }

    /// No new requests from here on; what was begun is finished without delay.
    pub fn calm(&mut self) {
        self.calm = true;
        self.spec.slow_read = None;
        self.spec.piece_pause = 0;
        if let Some(conn) = &mut self.conn {
            conn.requests.truncate(conn.begun);
            conn.abort_at = None;
            conn.read_at = 0;
            conn.write_at = 0;
        }
        self.wake = Some(0);
    }

    /// Whether it has nothing left to do.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.conn.is_none() && (self.calm || self.opened >= self.spec.conns)
    }

    /// Since when the oldest unanswered request of its connection waits.
    #[must_use]
    pub fn waits_since(&self) -> Option<Time> {
        let conn = self.conn.as_ref()?;
        (conn.begun > conn.answered).then_some(conn.begun_at)
    }

    /// Its connection, with at least one request that waits for an answer.
    #[must_use]
    pub fn waiting_conn(&self) -> Option<u32> {
        let conn = self.conn.as_ref()?;
        (conn.begun > conn.answered).then_some(conn.id)
    }

    /// The application's own time-out: it resets the connection that it waits on.
    pub fn give_up(&mut self, now: Time) {
        if let Some(conn) = &mut self.conn {
            conn.abort_at = Some(now);
            self.wake = Some(now);
        }
    }

    /// What it does at present, for a report of a violation.
    #[must_use]
    pub fn describe(&self) -> String {
        match &self.conn {
            None => format!("client {}: no connection", self.index),
            Some(c) => format!(
                "client {}: connection {}, {} of {} begun requests answered, {} bytes to write, {} unacknowledged, {:?}",
                self.index,
                c.id,
                c.answered,
                c.begun,
                c.queue.len(),
                self.stack.unsent(),
                self.stack.status()
            ),
        }
    }

    /// When [`Client::step`] has to be called at the latest.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.wake.into_iter().chain(self.stack.deadline()).min()
    }

    /// Lets application and stack do what is due.
    pub fn step(&mut self, now: Time, out: &mut Vec<Vec<u8>>) {
        self.stack.poll(now, out);
        self.wake = None;
        match self.conn.take() {
            None => self.between(now),
            Some(conn) => self.within(now, conn),
        }
        self.stack.poll(now, out);
    }

    fn between(&mut self, now: Time) {
        if self.is_done() {
            return;
        }
        if now < self.next_at {
            self.wake = Some(self.next_at);
            return;
        }
        let id = self.index * CONNS_PER_CLIENT + self.opened;
        self.opened += 1;
        let mut isn = self.rng.u32(..);
        if self.reset && self.spec.reuse_port && self.rng.bool() {
            // Far from the former connection's: nobody could tell the two apart otherwise.
            isn = self.isn.wrapping_add(1 << 30 | isn >> 2);
        } else {
            self.port += self.rng.u16(1..=3);
        }
        self.isn = self.stack.connect(now, self.port, isn);
        self.notes.push(Note::Connects { conn: id, port: self.port, isn: self.isn });
        let requests = self.draw_requests(id);
        let chance = |rng: &mut fastrand::Rng, share| rng.u32(..100) < share;
        let half_close = chance(&mut self.rng, self.spec.half_close);
        let aborts = chance(&mut self.rng, self.spec.abort);
        self.conn = Some(Conn {
            id,
            requests,
            begun: 0,
            begun_at: now,
            answered: 0,
            queue: Vec::new(),
            write_at: now,
            read_at: now,
            reader: ResponseReader::new(self.language),
            unread: Vec::new(),
            open: false,
            closing: false,
            half_close,
            abort_at: aborts.then(|| now + self.rng.u64(..=self.spec.abort_within)),
            linger_until: None,
            told: false,
        });
    }

    fn draw_requests(&mut self, id: u32) -> Vec<Request> {
        let (mut all, mut db) = (Vec::new(), 0);
        for number in 0..self.rng.u16(self.spec.requests.0..=self.spec.requests.1) {
            let rng = &mut self.rng;
            let resp = self.language == Language::Resp;
            let mut method = match rng.u32(..100) {
                n if n < self.spec.posts => Method::Post,
                n if n < self.spec.posts + 10 && !resp => Method::Put,
                _ => Method::Get,
            };
            if resp && rng.u32(..100) < self.spec.selects {
                method = Method::Select;
                db = rng.u8(..10);
            }
            // Small ones are the rule, as everywhere.
            let size = |rng: &mut fastrand::Rng, max: u32| match rng.u32(..4) {
                0 => rng.u32(..=max),
                _ => rng.u32(..=max.min(300)),
            };
            let has_body = matches!(method, Method::Post | Method::Put);
            all.push(Request {
                tag: Tag { conn: id, number },
                method,
                body: if has_body { size(rng, self.spec.body).max(1) } else { 0 },
                answer: size(rng, self.spec.answer),
                db,
            });
        }
        all
    }

    fn within(&mut self, now: Time, mut conn: Conn) {
        if conn.abort_at.is_some_and(|at| now >= at) {
            self.stack.abort(now);
            return self.ends(now, &mut conn, End::Aborted);
        }
        let mut status = self.stack.status();
        if !conn.open && matches!(status, Status::Open | Status::PeerClosed) {
            conn.open = true;
            self.notes.push(Note::Open(conn.id));
        }
        if conn.open && now >= conn.read_at {
            self.read(now, &mut conn);
            status = self.stack.status();
        }
        match status {
            Status::Reset => return self.ends(now, &mut conn, End::Reset),
            Status::Refused => return self.ends(now, &mut conn, End::Refused),
            Status::TimedOut => return self.ends(now, &mut conn, End::TimedOut),
            Status::Closed => {
                let end = if conn.closing && conn.answered == conn.begun {
                    End::Done
                } else {
                    End::ServerClosed
                };
                return self.ends(now, &mut conn, end);
            }
            Status::PeerClosed if !conn.told => self.server_closed(now, &mut conn),
            Status::Open => self.write(now, &mut conn),
            _ => {}
        }
        if conn.linger_until.is_some_and(|until| now >= until) {
            let end = if conn.told { End::ServerClosed } else { End::Done };
            return self.ends(now, &mut conn, end);
        }
        self.sleep(now, &conn);
        self.conn = Some(conn);
    }

    /// The server's FIN, behind everything that it sent.
    fn server_closed(&mut self, now: Time, conn: &mut Conn) {
        conn.told = true;
        if !conn.closing {
            conn.closing = true;
            self.stack.close();
            self.notes.push(Note::Closes(conn.id));
        }
        conn.linger_until = Some(now + LINGER);
    }

    fn read(&mut self, now: Time, conn: &mut Conn) {
        let (most, pause) = self.spec.slow_read.unwrap_or((READ_MAX, 0));
        if self.stack.recv(&mut conn.unread, most) == 0 {
            return;
        }
        conn.read_at = now + pause;
        let bytes = std::mem::take(&mut conn.unread);
        let mut at = 0;
        while at < bytes.len() {
            let Some(request) =
                conn.requests.get(conn.answered).filter(|_| conn.answered < conn.begun)
            else {
                let what = format!("connection {}: bytes that nobody asked for", conn.id);
                return self.notes.push(Note::Wrong(what));
            };
            match conn.reader.read(request, &bytes[at..]) {
                Err(what) => return self.notes.push(Note::Wrong(what)),
                Ok((used, progress)) => {
                    at += used;
                    if let Progress::Whole { execution, closes } = progress {
                        self.notes.push(Note::Answered(*request, execution));
                        conn.answered += 1;
                        conn.begun_at = now;
                        if closes {
                            // The server will close: nothing more can be asked here.
                            conn.requests.truncate(conn.begun);
                        }
                        let think = self.rng.u64(..=self.spec.think);
                        conn.write_at = conn.write_at.max(now + if self.calm { 0 } else { think });
                    }
                }
            }
        }
    }

    fn write(&mut self, now: Time, conn: &mut Conn) {
        while !conn.closing && now >= conn.write_at {
            if conn.queue.is_empty() {
                let next = conn.begun;
                if next < conn.requests.len() && next - conn.answered < self.spec.depth {
                    let request = conn.requests[next];
                    conn.queue = request.bytes(self.language);
                    conn.begun += 1;
                    if conn.begun == conn.answered + 1 {
                        conn.begun_at = now;
                    }
                    self.notes.push(Note::Begins(request));
                } else {
                    break;
                }
            }
            let most = match self.spec.piece {
                0 => conn.queue.len(),
                most => self.rng.usize(1..=most).min(conn.queue.len()),
            };
            let taken = self.stack.send(&conn.queue[..most]);
            let written: Vec<u8> = conn.queue.drain(..taken).collect();
            self.notes.push(Note::Wrote(conn.id, written));
            if taken < most {
                break;
            }
            if !conn.queue.is_empty() && self.spec.piece_pause > 0 {
                conn.write_at = now + self.rng.u64(..=self.spec.piece_pause);
            }
        }
        let all_written = conn.begun == conn.requests.len() && conn.queue.is_empty();
        let finished = all_written && conn.answered == conn.begun;
        if !conn.closing && conn.open && all_written && (finished || conn.half_close) {
            conn.closing = true;
            self.stack.close();
            self.notes.push(Note::Closes(conn.id));
        }
        if finished && conn.linger_until.is_none() {
            conn.linger_until = Some(now + LINGER);
        }
    }

    fn sleep(&mut self, now: Time, conn: &Conn) {
        let waiting =
            conn.begun < conn.requests.len() && conn.begun - conn.answered < self.spec.depth;
        let writes = conn.open && !conn.closing && (waiting || !conn.queue.is_empty());
        // Nothing to read now is no reason to wake up: the stack says when bytes come.
        let reads = conn.open && now < conn.read_at;
        self.wake = [
            conn.abort_at,
            conn.linger_until,
            (writes && now < conn.write_at).then_some(conn.write_at),
            reads.then_some(conn.read_at),
        ]
        .into_iter()
        .flatten()
        .min();
    }

    fn ends(&mut self, now: Time, conn: &mut Conn, end: End) {
        let open = conn.requests[conn.answered..conn.begun].to_vec();
        self.reset = matches!(end, End::Reset | End::Aborted);
        self.notes.push(Note::Ended(conn.id, end, open));
        let pause = if self.calm { 0 } else { self.rng.u64(..=self.spec.think) };
        self.next_at = now + pause;
        self.wake = Some(self.next_at.max(now + MS));
    }
}
