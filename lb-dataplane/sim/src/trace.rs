//! A readable sequence diagram of a run, recorded only when asked for.
//!
//! Owns the text. It never looks at anything but what it is given.

use crate::{
    clock::Time,
    link::Fate,
    tcp::wire::{Seg, receive},
};
use baton_packet::{Flags, SeqNumber};
use std::fmt::Write;

/// Lines of one trace; a run that needs more has its end cut off, with a line that says so.
const LINES_MAX: usize = 200_000;
/// Columns of the three parties.
const WIDTH: usize = 44;

/// Who sends or receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Party {
    /// A client.
    Client(usize),
    /// The dataplane.
    Baton,
    /// A pod.
    Pod(usize),
}

impl std::fmt::Display for Party {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Party::Client(n) => write!(f, "client {n}"),
            Party::Baton => write!(f, "baton"),
            Party::Pod(n) => write!(f, "pod {n}"),
        }
    }
}

/// The numbers that a connection's sequence numbers are shown relative to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Base {
    /// The connection.
    pub conn: Option<u32>,
    /// The client's initial sequence number.
    pub client: SeqNumber,
    /// The server's.
    pub server: SeqNumber,
}

/// The text of a run.
pub struct Trace {
    text: String,
    lines: usize,
    start: Time,
}

impl Trace {
    /// Begins a trace at `start`.
    #[must_use]
    pub fn new(start: Time) -> Self {
        let mut trace = Self { text: String::new(), lines: 0, start };
        let _ = writeln!(
            trace.text,
            "{:>12}  {:<WIDTH$}| {:<WIDTH$}| events",
            "ms", "client  <->  baton", "baton  <->  pods"
        );
        trace
    }

    fn line(&mut self, now: Time, left: &str, right: &str, rest: &str) {
        self.lines += 1;
        if self.lines > LINES_MAX {
            return;
        }
        let us = now.saturating_sub(self.start);
        let at = format!("{}.{:03}", us / 1_000, us % 1_000);
        let _ = writeln!(self.text, "{at:>12}  {left:<WIDTH$}| {right:<WIDTH$}| {rest}");
    }

    /// Something that is no frame.
    pub fn note(&mut self, now: Time, what: &str) {
        self.line(now, "", "", what);
    }

    /// A frame that is sent.
    pub fn sent(
        &mut self,
        now: Time,
        (from, to): (Party, Party),
        base: Base,
        frame: &[u8],
        fate: Fate,
    ) {
        let arrow = match fate {
            Fate::Lost | Fate::Partitioned => "--x",
            Fate::Corrupt => "~~>",
            Fate::Late => "..>",
            Fate::Twice => "=>>",
            Fate::Arrives => "-->",
        };
        let what = describe(frame, base);
        let conn = base.conn.map_or(String::new(), |c| format!(" #{c}"));
        let text = match (from, to) {
            (Party::Client(n), _) => format!("c{n} {arrow}{conn} {what}"),
            (_, Party::Client(n)) => format!("c{n} <{arrow}{conn} {what}"),
            (_, Party::Pod(n)) => format!("{arrow} p{n}{conn} {what}"),
            (Party::Pod(n), _) => format!("<{arrow} p{n}{conn} {what}"),
            _ => what,
        };
        let fate = if fate == Fate::Arrives { "" } else { fate.name() };
        if matches!((from, to), (Party::Client(_), _) | (_, Party::Client(_))) {
            self.line(now, &text, "", fate);
        } else {
            self.line(now, "", &text, fate);
        }
    }

    /// The whole text.
    #[must_use]
    pub fn finish(mut self) -> String {
        if self.lines > LINES_MAX {
            let _ = writeln!(self.text, "... {} more lines", self.lines - LINES_MAX);
        }
        self.text
    }
}

/// Flags, numbers relative to the connection's, length, and the tag of an adoption message.
fn describe(frame: &[u8], base: Base) -> String {
    let Some((_, seg)) = receive(frame) else {
        return "(corrupt)".into();
    };
    let mut flags = String::new();
    for (flag, name) in [
        (Flags::SYN, 'S'),
        (Flags::FIN, 'F'),
        (Flags::RST, 'R'),
        (Flags::PSH, 'P'),
        (Flags::ACK, '.'),
    ] {
        if seg.flags.has(flag) {
            flags.push(name);
        }
    }
    let (own, other) = match base.conn {
        None => (SeqNumber(0), SeqNumber(0)),
        Some(_) if towards_server(&seg, base) => (base.client, base.server),
        Some(_) => (base.server, base.client),
    };
    let (seq, ack) = (seg.seq.since(own), seg.ack.since(other));
    let message = match seg.options.first_chunk::<4>() {
        Some([253, 28, 0xba, 0x70]) => " ADOPT",
        Some([253, 28, 0xba, 0x71]) => " PROBE",
        Some([253, 28, 0xba, 0x72]) => " ANSWER",
        _ => "",
    };
    let port = if seg.src.port() > seg.dst.port() { seg.src.port() } else { seg.dst.port() };
    format!("[{flags}] {seq}+{} ack {ack} :{port}{message}", seg.data.len())
}

/// Which of the two directions a segment is of: servers have the low ports.
fn towards_server(seg: &Seg<'_>, _: Base) -> bool {
    seg.src.port() > seg.dst.port()
}
