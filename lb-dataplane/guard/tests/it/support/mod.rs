//! Conversations as text, and the driver that tells them to a tracker in pieces of any size.
//!
//! A conversation has one thing on each line: `guard NAME`, `> bytes` of the client, `< bytes` of
//! the server, `>N bytes` and `<N bytes` behind a gap of N bytes, `= what must be true now`, `# a
//! comment`. Bytes are escaped: `\r \n \\ \xNN`.
#![allow(dead_code, clippy::unwrap_used, reason = "shared by several tests, which shall panic")]

use baton_guard::{
    Guard, PRELUDE_MAX, Pin, Prelude, Session, Sessions, Tracker, prelude_reply_matches,
};
use std::{fmt, ops::Deref};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    pub client: bool,
    pub gap: u32,
    pub data: Vec<u8>,
}

pub fn said(client: bool, data: &[u8]) -> Turn {
    Turn { client, gap: 0, data: data.to_vec() }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub at_rest: bool,
    pub pinned: Option<Pin>,
    pub begun: bool,
    pub idempotent: bool,
    pub unanswered: u32,
    pub closing: bool,
    pub until_close: bool,
    pub odd: bool,
    pub default: bool,
    pub prelude: Option<(Vec<u8>, u16)>,
}

impl Seen {
    /// Without what a pinned tracker no longer promises.
    pub fn settled(self) -> Self {
        match self.pinned {
            Some(_) => {
                Self { begun: false, unanswered: 0, closing: false, until_close: false, ..self }
            }
            None => self,
        }
    }
}

/// A tracker, and room for its session alone.
#[derive(Clone)]
pub struct Followed {
    tracker: Tracker,
    pub sessions: Sessions<[Session; 1]>,
}

impl Followed {
    pub fn new(guard: Guard) -> Self {
        Self { tracker: Tracker::new(guard), sessions: Sessions::new([Session::new()]) }
    }

    pub fn client(&mut self, gap: u32, data: &[u8]) {
        self.tracker.client(gap, data, &mut self.sessions);
    }

    pub fn server(&mut self, gap: u32, data: &[u8]) {
        self.tracker.server(gap, data, &mut self.sessions);
    }

    pub fn prelude(&self, out: &mut [u8; PRELUDE_MAX]) -> Option<Prelude> {
        self.tracker.prelude(&self.sessions, out)
    }
}

impl fmt::Debug for Followed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tracker.fmt(f)
    }
}

impl Deref for Followed {
    type Target = Tracker;

    fn deref(&self) -> &Tracker {
        &self.tracker
    }
}

pub fn seen(tracker: &Followed) -> Seen {
    let mut out = [0xa5; PRELUDE_MAX];
    let prelude = tracker.prelude(&mut out);
    Seen {
        at_rest: tracker.at_rest(),
        pinned: tracker.pinned(),
        begun: tracker.response_begun(),
        idempotent: tracker.idempotent(),
        unanswered: tracker.unanswered(),
        closing: tracker.closing(),
        until_close: tracker.until_close(),
        odd: tracker.is_odd(),
        default: tracker.is_default(),
        prelude: prelude.map(|p| (out[..usize::from(p.len)].to_vec(), p.reply)),
    }
}

/// A tracker whose promises are checked after each piece.
pub struct Checked {
    pub tracker: Followed,
}

impl Checked {
    pub fn new(guard: Guard) -> Self {
        let tracker = Followed::new(guard);
        assert!(tracker.at_rest() && tracker.is_default());
        Self { tracker }
    }

    pub fn tell(&mut self, client: bool, gap: u32, data: &[u8]) {
        let was = seen(&self.tracker);
        let before = was.pinned;
        if client {
            self.tracker.client(gap, data);
        } else {
            self.tracker.server(gap, data);
        }
        let now = seen(&self.tracker);
        if before.is_some() {
            assert_eq!(now.pinned, before, "pinned for ever");
        }
        if now.pinned.is_some() {
            assert!(!now.at_rest && !now.idempotent && !now.default, "{now:?}");
            // A hand-over that has begun with a session goes on with it, whatever the client says
            // meanwhile.
            if client || before.is_some() {
                assert_eq!(now.prelude, was.prelude);
            }
        }
        if now.at_rest {
            assert!(now.unanswered == 0 && !now.begun && !now.idempotent, "{now:?}");
        }
        if now.idempotent {
            assert!(now.unanswered > 0, "{now:?}");
        }
        if now.default {
            assert!(now.at_rest && !now.closing && !now.odd && now.prelude.is_none());
            assert_eq!(self.tracker.sessions.used(), 0);
        }
    }

    /// Tells a turn in pieces of these sizes, over and over.
    pub fn tell_in(&mut self, turn: &Turn, sizes: &[usize]) {
        let (mut gap, mut rest, mut sizes) = (turn.gap, &turn.data[..], sizes.iter().cycle());
        if rest.is_empty() {
            self.tell(turn.client, gap, rest);
        }
        while !rest.is_empty() {
            let size = (*sizes.next().unwrap()).clamp(1, rest.len());
            self.tell(turn.client, std::mem::take(&mut gap), &rest[..size]);
            rest = &rest[size..];
        }
    }
}

fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'\\' => match rest.next().unwrap() {
                b'r' => b'\r',
                b'n' => b'\n',
                b'\\' => b'\\',
                b'x' => {
                    let digits = [rest.next().unwrap(), rest.next().unwrap()];
                    u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
                }
                other => panic!("escape {other}"),
            },
            other => other,
        });
    }
    bytes
}

enum Line {
    Said(Turn),
    Must(String),
}

fn parse(text: &str) -> (Guard, Vec<Line>) {
    let mut guard = None;
    let mut lines = Vec::new();
    for line in text.lines().map(str::trim_start) {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        match verb.get(..1) {
            None | Some("#") => {}
            Some("g") => {
                guard = Some(match rest {
                    "http1" => Guard::Http1,
                    "resp" => Guard::Resp,
                    "memcached" => Guard::Memcached,
                    _ => panic!("{line}"),
                });
            }
            Some(side @ (">" | "<")) => lines.push(Line::Said(Turn {
                client: side == ">",
                gap: if verb.len() > 1 { verb[1..].parse().unwrap() } else { 0 },
                data: unescape(rest),
            })),
            Some("=") => lines.push(Line::Must(rest.to_owned())),
            _ => panic!("{line}"),
        }
    }
    (guard.expect("a line `guard NAME`"), lines)
}

/// What is said in a conversation, without what must be true.
pub fn turns(text: &str) -> (Guard, Vec<Turn>) {
    let (guard, lines) = parse(text);
    let turns = lines.into_iter().filter_map(|l| match l {
        Line::Said(turn) => Some(turn),
        Line::Must(_) => None,
    });
    (guard, turns.collect())
}

fn must(now: &Seen, what: &str) {
    for word in what.split_whitespace() {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        let prelude = now.prelude.as_ref();
        let holds = match name {
            "at_rest" => now.at_rest,
            "held" => !now.at_rest && now.pinned.is_none(),
            "pin" => now.pinned.map(Pin::label) == Some(value),
            "unanswered" => now.unanswered == value.parse().unwrap(),
            "begun" => now.begun,
            "not_begun" => !now.begun,
            "idempotent" => now.idempotent,
            "not_idempotent" => !now.idempotent,
            "closing" => now.closing,
            "not_closing" => !now.closing,
            "until_close" => now.until_close,
            "not_until_close" => !now.until_close,
            "odd" => now.odd,
            "not_odd" => !now.odd,
            "default" => now.default,
            "not_default" => !now.default,
            "no_prelude" => prelude.is_none(),
            "prelude" => prelude.map(|p| &p.0) == Some(&unescape(value)),
            "reply" => prelude.map(|p| p.1) == Some(value.parse().unwrap()),
            _ => panic!("{word}"),
        };
        assert!(holds, "{word} must hold, but is: {now:?}");
    }
}

/// Replays a conversation whole, byte by byte and in between; what must be true is so each time,
/// and all that is seen is the same.
pub fn check(text: &str) {
    let (guard, lines) = parse(text);
    let mut whole: Vec<Seen> = Vec::new();
    for sizes in [&[usize::MAX][..], &[1], &[2], &[3], &[7, 1], &[5, 64], &[13], &[50]] {
        let mut checked = Checked::new(guard);
        let mut all = Vec::new();
        for line in &lines {
            match line {
                Line::Said(turn) => {
                    checked.tell_in(turn, sizes);
                    all.push(seen(&checked.tracker).settled());
                }
                Line::Must(what) => {
                    let context =
                        format!("{text}\nin pieces of {sizes:?}, after {} turns", all.len());
                    let now = seen(&checked.tracker);
                    if std::panic::catch_unwind(|| must(&now, what)).is_err() {
                        panic!("{context}");
                    }
                }
            }
        }
        if whole.is_empty() {
            whole = all;
        } else {
            assert_eq!(whole, all, "{text}\nin pieces of {sizes:?}");
        }
    }
}

/// The replies that a prelude waits for are matched in any pieces.
pub fn prelude_replies_match(replies: &[u8]) {
    for from in 0..replies.len() {
        for to in from..=replies.len() {
            assert!(prelude_reply_matches(from as u16, &replies[from..to]));
        }
    }
}
