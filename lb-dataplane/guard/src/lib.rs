//! Where requests and responses begin and end: exact guards for HTTP/1, RESP (redis) and the
//! memcached text protocol.
//!
//! Owns: one connection's conversation as far as it decides whether the connection may go to
//! another server, from the bytes of both directions in any segmentation. It never allocates,
//! blocks, reads a clock, keeps a message or changes a byte; what it cannot follow pins the
//! connection ([`Pin`]).
//!
//! # Decisions
//!
//! - **Guards follow both directions exactly**: pipelined requests no longer pin, the flow moves
//!   when all are answered. What they cannot follow pins. A tracker takes 96 bytes, and only while
//!   something is outstanding or remembered. What only RESP sessions need lies in [`Sessions`],
//!   another table of whoever follows, 160 bytes each.
#![no_std]
#![forbid(unsafe_code)]

mod http;
mod line;
mod memcached;
mod pin;
mod resp;

pub use pin::{Pin, detect};
pub use resp::{PRELUDE_MAX, Prelude, Session, Sessions, Store, prelude_reply_matches};

use core::fmt;

/// Protocols that have an exact guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// HTTP/1.0 and HTTP/1.1 (RFC 9112).
    Http1,
    /// RESP2, as redis and its relatives speak it.
    Resp,
    /// The memcached text protocol, meta commands included.
    Memcached,
}

/// How many bytes of the client's are still missing until the request that it has begun is
/// complete, as far as what came tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToCome {
    /// So many; 0 between two requests.
    Exactly(u64),
    /// The end is not announced yet, or not announced at all (chunks): not fewer than so many.
    AtLeast(u64),
}

/// What is known of one connection's conversation. A copy of one with a session is only of use
/// together with a copy of the [`Sessions`].
#[derive(Clone)]
pub struct Tracker {
    pin: Option<Pin>,
    talk: Talk,
}

#[derive(Clone)]
enum Talk {
    Http1(http::Http1),
    Resp(resp::Resp),
    Memcached(memcached::Memcached),
}

// One per flow with something outstanding or a session; the engine's table of them is sized with
// this.
const _: () = assert!(size_of::<Tracker>() <= 96);
// The same of sessions.
const _: () = assert!(size_of::<Session>() <= 160);

/// Runs the same call on whichever conversation this is.
macro_rules! each {
    ($talk:expr, $name:ident => $call:expr) => {
        match $talk {
            Talk::Http1($name) => $call,
            Talk::Resp($name) => $call,
            Talk::Memcached($name) => $call,
        }
    };
}

impl Tracker {
    /// A connection on which nothing was said yet.
    pub fn new(guard: Guard) -> Self {
        let talk = match guard {
            Guard::Http1 => Talk::Http1(http::Http1::new()),
            Guard::Resp => Talk::Resp(resp::Resp::new()),
            Guard::Memcached => Talk::Memcached(memcached::Memcached::new()),
        };
        Self { pin: None, talk }
    }

    /// What it follows.
    #[inline]
    pub fn guard(&self) -> Guard {
        match self.talk {
            Talk::Http1(_) => Guard::Http1,
            Talk::Resp(_) => Guard::Resp,
            Talk::Memcached(_) => Guard::Memcached,
        }
    }

    /// New bytes of the client, in order. `gap` bytes directly before `data` will never be shown:
    /// see [`Tracker::client_may_skip`]. Where they may not be skipped, they pin ([`Pin::Gap`]).
    /// `sessions` is where this tracker's session lies: the same at each call.
    #[inline]
    pub fn client<S: Store>(&mut self, gap: u32, data: &[u8], sessions: &mut Sessions<S>) {
        if self.pin.is_none() {
            let followed = match &mut self.talk {
                Talk::Http1(t) => t.client(gap, data),
                Talk::Resp(t) => t.client(gap, data, sessions),
                Talk::Memcached(t) => t.client(gap, data),
            };
            self.settle(followed);
        }
    }

    /// The same for the server's bytes.
    #[inline]
    pub fn server<S: Store>(&mut self, gap: u32, data: &[u8], sessions: &mut Sessions<S>) {
        if self.pin.is_none() {
            let followed = match &mut self.talk {
                Talk::Http1(t) => t.server(gap, data),
                Talk::Resp(t) => t.server(gap, data, sessions),
                Talk::Memcached(t) => t.server(gap, data),
            };
            self.settle(followed);
        }
    }

    /// Forgets the conversation: as new, and the room of its session is given back. What was
    /// remembered may be a secret, and is overwritten.
    pub fn forget<S: Store>(&mut self, sessions: &mut Sessions<S>) {
        if let Talk::Resp(resp) = &mut self.talk {
            resp.forget(sessions);
        }
        *self = Self::new(Guard::Http1);
    }

    /// Whether the client's next `gap` bytes need not be shown: they lie wholly inside a body of
    /// known length.
    pub fn client_may_skip(&self, gap: u32) -> bool {
        self.pin.is_none() && each!(&self.talk, t => t.client_skips()) >= u64::from(gap)
    }

    /// The same of the server's bytes.
    pub fn server_may_skip(&self, gap: u32) -> bool {
        self.pin.is_none() && each!(&self.talk, t => t.server_skips()) >= u64::from(gap)
    }

    fn settle(&mut self, followed: Result<(), Pin>) {
        if let Err(pin) = followed {
            // The session stays: a hand-over may be restoring it. Who follows a pinned connection
            // no longer drops all of this.
            self.pin = Some(pin);
        }
    }

    /// Every request is complete and completely answered, no partial message in either direction,
    /// and no state is held that ties the connection to this server for now (`MULTI` to `EXEC`,
    /// `WATCH`). A new request may go to another server.
    pub fn at_rest(&self) -> bool {
        self.pin.is_none() && each!(&self.talk, t => t.at_rest())
    }

    /// Why the connection can never move again.
    pub fn pinned(&self) -> Option<Pin> {
        self.pin
    }

    /// Whether response bytes came since the last rest that are not whole interim responses (1xx
    /// but 101): an interim response that has begun and not ended counts while it lasts, because
    /// nothing may be spliced behind its half.
    pub fn response_begun(&self) -> bool {
        each!(&self.talk, t => t.response_begun())
    }

    /// Whether executing all unanswered requests once more does what executing them once does;
    /// false with none known, and while state is held on this server.
    pub fn idempotent(&self) -> bool {
        self.pin.is_none() && each!(&self.talk, t => t.idempotent())
    }

    /// Requests (commands) begun and not completely answered; once pinned, what was known last.
    pub fn unanswered(&self) -> u32 {
        each!(&self.talk, t => t.unanswered())
    }

    /// What is still to come of the newest request. Once pinned, nothing is known.
    #[inline]
    pub fn to_come(&self) -> ToCome {
        match self.pin {
            Some(_) => ToCome::AtLeast(0),
            None => each!(&self.talk, t => t.to_come()),
        }
    }

    /// It was said, or the protocol version says, that the connection ends after the response in
    /// progress or just finished. What a request says counts from the moment its final response
    /// begins: before, a FIN is no answer.
    pub fn closing(&self) -> bool {
        each!(&self.talk, t => t.closing())
    }

    /// Whether a server may read what comes behind the last rest in another way than this does: the
    /// next request on this connection must be the same client's.
    pub fn is_odd(&self) -> bool {
        matches!(&self.talk, Talk::Http1(http) if http.is_odd())
    }

    /// Whether the end of the connection cuts nothing off: the response in progress has no other
    /// end, or the one that ended last announced it, so that what was asked behind it has no answer
    /// (RFC 9112 section 9.6).
    pub fn until_close(&self) -> bool {
        matches!(&self.talk, Talk::Http1(http) if http.until_close())
    }

    /// Nothing to remember: the same as [`Tracker::new`].
    pub fn is_default(&self) -> bool {
        self.at_rest() && !self.closing() && !self.is_odd() && !self.has_session()
    }

    fn has_session(&self) -> bool {
        matches!(&self.talk, Talk::Resp(resp) if resp.has_session())
    }

    /// RESP: the bytes that restore the session (`AUTH`, `SELECT`) on another server, written into
    /// `out`; `None` if the session is the default one. The session is the one in which the oldest
    /// unanswered command was sent.
    pub fn prelude<S: Store>(
        &self,
        sessions: &Sessions<S>,
        out: &mut [u8; PRELUDE_MAX],
    ) -> Option<Prelude> {
        match &self.talk {
            // Also if what came since pins: a hand-over that began with a session goes on with it.
            Talk::Resp(resp) => resp.prelude(sessions, out),
            _ => None,
        }
    }
}

/// Never shows bytes of the conversation: they may be secrets.
impl fmt::Debug for Tracker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracker")
            .field("guard", &self.guard())
            .field("pin", &self.pin)
            .field("at_rest", &self.at_rest())
            .field("unanswered", &self.unanswered())
            .field("response_begun", &self.response_begun())
            .field("idempotent", &self.idempotent())
            .field("closing", &self.closing())
            .field("session", &self.has_session())
            .finish()
    }
}
