//! HTTP/1.0 and 1.1 (RFC 9112) over both directions: which requests are outstanding, and how far
//! their answers are.
//!
//! Owns request lines, status lines and the list of outstanding requests. Never looks into a body.
//!
//! # Decisions
//!
//! - **What servers read in different ways pins**, also where the RFC lets a recipient be lenient:
//!   lines that end at LF alone, methods in lower case (some servers raise them).
//! - **After an empty line the connection is held** until a request follows: some servers skip the
//!   line (RFC 9112 section 2.2), others keep it and refuse the next request.
//! - **Behind an upgrade that was refused, chunk extensions and trailer fields the connection
//!   carries nobody else's request** before one of the same client's was answered: where the answer
//!   came before the body was read, the server refuses what it does not like of these with the next
//!   request. Node.js (20.20) answers 400 to whatever comes behind `Connection: close` in a trailer
//!   section, and nothing at all behind a head with `Upgrade` and a chunk that it cannot read.

mod body;
mod side;

use crate::{
    ToCome,
    line::{Cut, End},
    pin::Pin,
};
use side::{At, Head, Side, Stage, WORD_BYTES_MAX, is_token};

/// Bits of the lists below. Browsers do not pipeline and proxies send a handful.
const PIPELINE_MAX: u8 = 32;
/// ` HTTP/1.1`, the end of a request line.
const VERSION_BYTES: usize = 9;
/// `HTTP/1.1 200 `, the start of a status line.
const STATUS_BYTES: usize = 13;

/// One bit for each outstanding request, the oldest in bit 0. Like all of `Side`, without
/// alignment.
#[derive(Clone, Copy, PartialEq, Eq)]
struct List([u8; 4]);

impl List {
    const EMPTY: Self = Self([0; 4]);

    fn bits(self) -> u32 {
        u32::from_ne_bytes(self.0)
    }

    fn first(self) -> bool {
        self.bits() & 1 != 0
    }

    /// Sets the bit of one request, if this is so.
    fn add(&mut self, so: bool, at: u8) {
        *self = Self((self.bits() | u32::from(so) << at).to_ne_bytes());
    }

    /// The oldest is answered.
    fn pop(&mut self) {
        *self = Self((self.bits() >> 1).to_ne_bytes());
    }
}

#[derive(Clone)]
pub(crate) struct Http1 {
    client: Side,
    server: Side,
    was_head: List,
    not_idempotent: List,
    wants_close: List,
    /// Outstanding requests whose method is known.
    count: u8,
    /// Of the response in progress, once its status line says it; else 0.
    status: u16,
    /// A final response began since the last rest.
    begun: bool,
    closing: bool,
    /// The newest request waits for 100 before its body, and neither came yet.
    awaiting: bool,
    /// What follows the newest request, and followed the last one at rest, servers may read in
    /// different ways.
    odd: bool,
    was_odd: bool,
}

impl Http1 {
    pub(crate) const fn new() -> Self {
        Self {
            client: Side::new(),
            server: Side::new(),
            was_head: List::EMPTY,
            not_idempotent: List::EMPTY,
            wants_close: List::EMPTY,
            count: 0,
            status: 0,
            begun: false,
            closing: false,
            awaiting: false,
            odd: false,
            was_odd: false,
        }
    }

    pub(crate) fn at_rest(&self) -> bool {
        self.count == 0 && self.client.idle() && self.server.idle()
    }

    pub(crate) fn response_begun(&self) -> bool {
        self.begun || !self.server.idle()
    }

    pub(crate) fn idempotent(&self) -> bool {
        self.count > 0 && self.not_idempotent == List::EMPTY && !self.in_method()
    }

    pub(crate) fn unanswered(&self) -> u32 {
        u32::from(self.count) + u32::from(self.in_method())
    }

    pub(crate) fn closing(&self) -> bool {
        self.closing || (self.status >= 200 && self.wants_close.first())
    }

    pub(crate) fn is_odd(&self) -> bool {
        self.was_odd
    }

    pub(crate) fn until_close(&self) -> bool {
        self.server.at == At::UntilClose || (self.closing && self.server.idle())
    }

    pub(crate) fn to_come(&self) -> ToCome {
        match self.client.at {
            At::Start if self.client.idle() => ToCome::Exactly(0),
            At::Body => ToCome::Exactly(self.client.left.get()),
            // Of a head the length that it has announced, if it has.
            At::ChunkData | At::Fields => ToCome::AtLeast(self.client.left.get()),
            _ => ToCome::AtLeast(0),
        }
    }

    pub(crate) fn client_skips(&self) -> u64 {
        self.client.skips()
    }

    pub(crate) fn server_skips(&self) -> u64 {
        self.server.skips()
    }

    fn in_method(&self) -> bool {
        self.client.at == At::Start
            && self.client.stage == Stage::First
            && !self.client.word.is_empty()
    }

    #[inline]
    pub(crate) fn client(&mut self, gap: u32, data: &[u8]) -> Result<(), Pin> {
        if gap == 0 && self.client.passes(data.len()) {
            self.awaiting &= data.is_empty();
            return Ok(());
        }
        self.client_further(gap, data)
    }

    /// Whatever is not all in the midst of a body.
    fn client_further(&mut self, gap: u32, mut data: &[u8]) -> Result<(), Pin> {
        if gap > 0 {
            if self.client.skip(gap)? {
                self.request_ended();
            }
            self.awaiting = false;
        }
        while !data.is_empty() {
            match self.client.at {
                At::Start => data = self.request_line(data)?,
                At::Fields => {
                    let (rest, ended) = self.client.fields(data)?;
                    data = rest;
                    if ended {
                        self.request_head();
                    }
                }
                _ => {
                    self.awaiting = false;
                    let (rest, ended) = self.client.body(data)?;
                    data = rest;
                    if ended {
                        self.request_ended();
                    }
                }
            }
        }
        Ok(())
    }

    fn request_line<'a>(&mut self, data: &'a [u8]) -> Result<&'a [u8], Pin> {
        let side = &mut self.client;
        let mut rest = data;
        if side.stage == Stage::First {
            let room = WORD_BYTES_MAX + 1 - side.word.len();
            let window = &data[..data.len().min(room)];
            // Empty lines before a request.
            if side.word.is_empty() && (matches!(window[0], b'\r' | b'\n') || side.cr) {
                let Cut { end, used, .. } = side.cut(data)?;
                match end {
                    End::BareLf | End::BareCr => return Err(Pin::Unparsable),
                    End::Line => {
                        *side = Side::new();
                        side.head.set(Head::EMPTY_LINE, true);
                    }
                    End::Open => {}
                }
                return Ok(&data[used..]);
            }
            match window.iter().position(|b| !is_token(*b)) {
                Some(at) if window[at] == b' ' && at + side.word.len() > 0 => {
                    let method = side.word.whole(&window[..at]).unwrap_or_default();
                    let (was_head, idempotent) = match method {
                        b"GET" | b"OPTIONS" | b"PUT" | b"DELETE" | b"TRACE" => (false, true),
                        b"HEAD" => (true, true),
                        b"CONNECT" => return Err(Pin::Connect),
                        b"PRI" => return Err(Pin::Http2),
                        _ if method.iter().any(u8::is_ascii_lowercase) => {
                            return Err(Pin::Unparsable);
                        }
                        _ => (false, false),
                    };
                    if self.count == PIPELINE_MAX {
                        return Err(Pin::PipelineTooDeep);
                    }
                    self.was_head.add(was_head, self.count);
                    self.not_idempotent.add(!idempotent, self.count);
                    self.count += 1;
                    side.word.clear();
                    side.stage = Stage::Rest;
                    rest = &data[at + 1..];
                }
                None if window.len() < room => {
                    side.word.push(window);
                    return Ok(&data[window.len()..]);
                }
                _ => return Err(Pin::Unparsable),
            }
            if rest.is_empty() {
                return Ok(rest);
            }
        }
        let Cut { part, end, used } = side.cut(rest)?;
        // The version is at the end of the line: the last bytes are kept where the line is in
        // pieces.
        let tail = match end {
            End::Line if part.len() >= VERSION_BYTES => part,
            End::BareLf | End::BareCr => return Err(Pin::Unparsable),
            _ => {
                side.word.slide(part);
                side.word.start()
            }
        };
        if end == End::Open {
            return Ok(&rest[used..]);
        }
        let Some([name @ .., minor @ b'0'..=b'9']) = tail.last_chunk::<VERSION_BYTES>() else {
            return Err(Pin::Unparsable);
        };
        if name != b" HTTP/1." {
            return Err(Pin::Unparsable);
        }
        side.head.set(Head::EMPTY_LINE, false);
        side.head.set(Head::VERSION_1_0, *minor == b'0');
        side.begin_fields();
        Ok(&rest[used..])
    }

    fn request_head(&mut self) {
        let head = self.client.head;
        if head.ends() {
            // With none outstanding, the answer ended before the request's head did.
            match self.count.checked_sub(1) {
                Some(newest) => self.wants_close.add(true, newest),
                None => self.closing = true,
            }
        }
        if self.client.begin_body() {
            self.request_ended();
        } else {
            self.awaiting = head.says(Head::EXPECT) && self.count > 0;
        }
    }

    fn request_ended(&mut self) {
        self.odd = self.client.head.says(Head::ODD);
        self.client = Side::new();
        self.awaiting = false;
        self.settle();
    }

    fn settle(&mut self) {
        if self.at_rest() {
            self.begun = false;
            self.was_odd = self.odd;
        }
    }

    #[inline]
    pub(crate) fn server(&mut self, gap: u32, data: &[u8]) -> Result<(), Pin> {
        if gap == 0 && self.server.passes(data.len()) {
            return Ok(());
        }
        self.server_further(gap, data)
    }

    /// Likewise.
    fn server_further(&mut self, gap: u32, mut data: &[u8]) -> Result<(), Pin> {
        if gap > 0 && self.server.skip(gap)? {
            self.response_ended();
        }
        while !data.is_empty() {
            match self.server.at {
                At::Start => data = self.status_line(data)?,
                At::Fields => {
                    let (rest, ended) = self.server.fields(data)?;
                    data = rest;
                    if ended {
                        self.response_head();
                    }
                }
                _ => {
                    let (rest, ended) = self.server.body(data)?;
                    data = rest;
                    if ended {
                        self.response_ended();
                    }
                }
            }
        }
        Ok(())
    }

    fn status_line<'a>(&mut self, data: &'a [u8]) -> Result<&'a [u8], Pin> {
        if self.count == 0 {
            return Err(Pin::ServerFirst);
        }
        let side = &mut self.server;
        let Cut { part, end, used } = side.cut(data)?;
        if side.stage == Stage::First {
            let room = STATUS_BYTES - side.word.len();
            let piece = &part[..part.len().min(room)];
            if piece.len() < room && end != End::Line {
                side.word.push(piece);
            } else {
                let word = side.word.whole(piece).unwrap_or_default();
                let Some((
                    b"HTTP/1.",
                    [minor @ b'0'..=b'9', b' ', a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9']
                    | [
                        minor @ b'0'..=b'9',
                        b' ',
                        a @ b'1'..=b'9',
                        b @ b'0'..=b'9',
                        c @ b'0'..=b'9',
                        b' ',
                    ],
                )) = word.split_first_chunk()
                else {
                    return Err(Pin::Unparsable);
                };
                let digit = |d: &u8| u16::from(d - b'0');
                self.status = digit(a) * 100 + digit(b) * 10 + digit(c);
                side.head.set(Head::VERSION_1_0, *minor == b'0');
                side.stage = Stage::Rest;
                if self.status == 101 {
                    return Err(Pin::Upgrade);
                }
                if self.status >= 200 {
                    self.begun = true;
                    if self.awaiting && self.count == 1 {
                        return Err(Pin::Expect);
                    }
                }
            }
        }
        match end {
            End::Line => self.server.begin_fields(),
            End::Open => {}
            End::BareLf | End::BareCr => return Err(Pin::Unparsable),
        }
        Ok(&data[used..])
    }

    /// The length of the body: RFC 9112 section 6.3.
    fn response_head(&mut self) {
        let head = self.server.head;
        if self.status < 200 {
            // 100 asks for the body of the oldest request, so of the newest only where that is the
            // same.
            self.awaiting &= self.status != 100 || self.count > 1;
            self.status = 0;
            self.server = Side::new();
            return;
        }
        self.closing |= head.ends();
        let bodiless = self.was_head.first() || matches!(self.status, 204 | 304);
        let framed = head.says(Head::CHUNKED) || head.says(Head::LENGTH);
        if !bodiless && !framed {
            self.server.at = At::UntilClose;
            self.closing = true;
        } else if bodiless || self.server.begin_body() {
            self.response_ended();
        }
    }

    fn response_ended(&mut self) {
        self.closing |= self.wants_close.first();
        self.count -= 1;
        self.was_head.pop();
        self.not_idempotent.pop();
        self.wants_close.pop();
        self.status = 0;
        self.server = Side::new();
        self.settle();
    }
}
