//! The memcached text protocol with meta commands (memcached's doc/protocol.txt): which commands
//! are outstanding.
//!
//! Owns what commands and replies mean. Never keeps a key or a value. A command that is not listed
//! here pins, because some are answered with streams. A server that wants authentication in the
//! text protocol (memcached -Y) takes it as a `set`, which cannot be told from any other: such a
//! connection must not be given this guard.

mod side;

use crate::{ToCome, line::decimal, pin::Pin};
use side::{At, Side, WordEnd};

/// The first byte of a request in the binary protocol.
const BINARY: u8 = 0x80;

/// A line of `set` with a key of 250 bytes up to the space behind that: memcached refuses longer
/// keys. Of a longer verb, the key has a few bytes less.
const QUIET_KEY_END_MAX: u32 = 255;
/// Half of what memcached stores unless told otherwise (`-I 1m`). Before 1.6 it says nothing about
/// a longer one either.
const QUIET_BYTES_MAX: u64 = 512 << 10;

/// What a command's line is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    /// Only reads, and nothing in its line is of interest.
    Reads,
    /// `mg`: reads unless a flag says otherwise.
    MetaGet,
    Meta,
    /// `ms`: the length is the third word.
    MetaSet,
    /// The length is the fifth word. May end with `noreply` behind exactly this many words.
    Store(u8),
    /// The same with words for which a server may refuse it.
    Refusable,
    /// Changes something, may end with `noreply` behind this many words.
    Changes(u8),
    Quit,
}

fn verb(word: &[u8]) -> Option<Verb> {
    Some(match word {
        b"get" | b"gets" | b"version" | b"mn" | b"me" => Verb::Reads,
        b"mg" => Verb::MetaGet,
        b"md" | b"ma" => Verb::Meta,
        b"ms" => Verb::MetaSet,
        b"set" | b"add" | b"replace" | b"append" | b"prepend" => Verb::Store(5),
        b"cas" => Verb::Store(6),
        b"flush_all" | b"verbosity" => Verb::Changes(1),
        b"delete" | b"incr" | b"decr" | b"touch" => Verb::Changes(2),
        // Words of these are keys, and `stats reset` is none of them to repeat.
        b"gat" | b"gats" | b"stats" => Verb::Changes(u8::MAX),
        b"quit" => Verb::Quit,
        _ => return None,
    })
}

/// The kinds of lines of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// `VALUE`: a data block and more lines follow. The length is the fourth word.
    Value,
    /// `VA`: a data block follows and ends the reply. The length is the second word.
    MetaValue,
    /// More lines follow.
    More,
    Last,
    /// The command was not understood, or not all of it.
    Refused,
    Failed,
}

fn answer(word: &[u8]) -> Option<Answer> {
    Some(match word {
        b"VALUE" => Answer::Value,
        b"VA" => Answer::MetaValue,
        b"STAT" | b"ITEM" | b"PREFIX" => Answer::More,
        b"END" | b"STORED" | b"NOT_STORED" | b"EXISTS" | b"NOT_FOUND" | b"DELETED" | b"TOUCHED"
        | b"OK" | b"RESET" | b"VERSION" | b"HD" | b"EN" | b"NF" | b"NS" | b"EX" | b"MN" | b"ME" => {
            Answer::Last
        }
        b"ERROR" | b"CLIENT_ERROR" => Answer::Refused,
        b"SERVER_ERROR" => Answer::Failed,
        // What incr and decr answer has up to 20 digits: longer than a word of interest.
        [b'0'..=b'9', ..] => Answer::Last,
        _ => return None,
    })
}

#[derive(Clone)]
pub(crate) struct Memcached {
    client: Side,
    server: Side,
    verb: Verb,
    answer: Answer,
    /// The last word was `noreply`.
    no_reply: bool,
    /// A flag makes `mg` more than a read.
    changes: bool,
    /// Commands that will be answered whose line is complete, and whole replies, since the last
    /// rest.
    sent: u32,
    answered: u32,
    /// `sent` behind the newest command that is not idempotent, and the newest with a data block.
    tainted: u32,
    stored: u32,
    /// Commands without a reply were sent, the newest of them behind `sent` = this. Done when a
    /// later one is answered.
    quiet: Option<u32>,
    in_reply: bool,
    begun: bool,
    closing: bool,
}

/// Whether a server may refuse a store that has so many words for the word that just ended.
fn refusable(side: &Side, words: u8) -> bool {
    let word = side.word.get().unwrap_or_default();
    let above = |max: u64, word| decimal(word).is_none_or(|n| n > max);
    match side.words {
        1 => side.line_bytes() > QUIET_KEY_END_MAX,
        // Flags, the time, which may be negative, the length, and the number of cas.
        2 => above(u32::MAX.into(), word),
        3 => above(i32::MAX as u64, word.strip_prefix(b"-").unwrap_or(word)),
        4 => above(QUIET_BYTES_MAX, word),
        at => at < words && above(u64::MAX, word),
    }
}

/// `a` is behind `b`; both count on for ever.
fn behind(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) as i32 > 0
}

impl Memcached {
    pub(crate) const fn new() -> Self {
        Self {
            client: Side::new(),
            server: Side::new(),
            verb: Verb::Reads,
            answer: Answer::Last,
            no_reply: false,
            changes: false,
            sent: 0,
            answered: 0,
            tainted: 0,
            stored: 0,
            quiet: None,
            in_reply: false,
            begun: false,
            closing: false,
        }
    }

    pub(crate) fn at_rest(&self) -> bool {
        self.outstanding() == 0
            && self.quiet.is_none()
            && self.client.at_line_start()
            && self.server.at_line_start()
            && !self.in_reply
    }

    pub(crate) fn response_begun(&self) -> bool {
        self.begun
    }

    pub(crate) fn idempotent(&self) -> bool {
        self.outstanding() > 0
            && !behind(self.tainted, self.answered)
            && self.quiet.is_none()
            && !self.in_line()
    }

    /// Commands that are never answered count as one until a later command's answer shows that they
    /// are done.
    pub(crate) fn unanswered(&self) -> u32 {
        self.outstanding() + u32::from(self.quiet.is_some()) + u32::from(self.in_line())
    }

    pub(crate) fn to_come(&self) -> ToCome {
        let side = &self.client;
        match side.at {
            At::Line if side.at_line_start() => ToCome::Exactly(0),
            // The length may be known before its line ends.
            At::Line if side.announced => ToCome::AtLeast(u64::from(side.length) + 2),
            At::Line => ToCome::AtLeast(0),
            At::Data => ToCome::Exactly(u64::from(side.length) + 2),
            At::DataEnd => ToCome::Exactly(2 - u64::from(side.cr)),
        }
    }

    pub(crate) fn client_skips(&self) -> u64 {
        u64::from(self.client.skips())
    }

    pub(crate) fn server_skips(&self) -> u64 {
        u64::from(self.server.skips())
    }

    pub(crate) fn closing(&self) -> bool {
        self.closing
    }

    fn outstanding(&self) -> u32 {
        self.sent.wrapping_sub(self.answered)
    }

    fn in_line(&self) -> bool {
        self.client.at == At::Line && !self.client.at_line_start()
    }

    pub(crate) fn client(&mut self, gap: u32, mut data: &[u8]) -> Result<(), Pin> {
        self.client.skip(gap)?;
        while let Some(first) = data.first() {
            if self.client.at != At::Line {
                let (rest, ended) = self.client.data(data)?;
                data = rest;
                if ended {
                    // It may have been answered before; then what follows begins at rest.
                    self.settle();
                }
                continue;
            }
            if *first == BINARY && self.client.at_line_start() {
                return Err(Pin::Binary);
            }
            let (rest, end) = match self.verb {
                Verb::Reads | Verb::Quit if self.client.words > 0 => {
                    self.client.rest_of_line(data)?
                }
                _ => self.client.next(data)?,
            };
            data = rest;
            if end == WordEnd::Open {
                continue;
            }
            self.command_word()?;
            if end == WordEnd::Line {
                self.command_line_ended()?;
            }
        }
        self.settle();
        Ok(())
    }

    fn command_word(&mut self) -> Result<(), Pin> {
        let side = &mut self.client;
        if side.word.is_empty() {
            return Ok(());
        }
        let word = side.word.start();
        if side.words == 0 {
            if word == b"watch" {
                return Err(Pin::Monitor);
            }
            self.verb = verb(word).ok_or(Pin::Unparsable)?;
            side.next_word();
            return Ok(());
        }
        self.no_reply = match self.verb {
            Verb::Store(_) | Verb::Refusable => word == b"noreply",
            Verb::Changes(least) => side.words >= least && word == b"noreply",
            _ => false,
        };
        if let Verb::Store(words) = self.verb
            && refusable(side, words)
        {
            self.verb = Verb::Refusable;
        }
        match (self.verb, side.words) {
            (Verb::Store(_) | Verb::Refusable, 4) | (Verb::MetaSet, 2) => side.set_length()?,
            // Quiet mode: some outcomes are not answered.
            (Verb::Meta | Verb::MetaGet | Verb::MetaSet, 2..) if word.starts_with(b"q") => {
                return Err(Pin::Unparsable);
            }
            (Verb::MetaGet, 2..) => self.changes |= matches!(word, [b'N' | b'R' | b'T' | b'E', ..]),
            _ => {}
        }
        side.next_word();
        Ok(())
    }

    fn command_line_ended(&mut self) -> Result<(), Pin> {
        let side = &self.client;
        let (stores, sure) = match self.verb {
            Verb::Store(words) => (true, side.words == words + 1),
            Verb::Refusable | Verb::MetaSet => (true, false),
            _ => (false, true),
        };
        // Memcached does not say that it refuses a store with `noreply`, and reads the data block
        // as commands.
        if side.words == 0 || stores != side.announced || (self.no_reply && !sure) {
            return Err(Pin::Unparsable);
        }
        if stores {
            self.client.begin_data(self.client.length);
        } else {
            self.client = Side::new();
        }
        let reads = self.verb == Verb::Reads || (self.verb == Verb::MetaGet && !self.changes);
        if self.verb == Verb::Quit {
            self.closing = true;
        } else if self.no_reply {
            self.quiet = Some(self.sent);
        } else {
            self.sent = self.sent.wrapping_add(1);
            if !reads {
                self.tainted = self.sent;
            }
            if stores {
                self.stored = self.sent;
            }
        }
        self.no_reply = false;
        self.changes = false;
        self.verb = Verb::Reads;
        Ok(())
    }

    pub(crate) fn server(&mut self, gap: u32, mut data: &[u8]) -> Result<(), Pin> {
        self.server.skip(gap)?;
        while !data.is_empty() {
            if self.outstanding() == 0 {
                return Err(Pin::ServerFirst);
            }
            self.begun = true;
            if self.server.at != At::Line {
                let (rest, ended) = self.server.data(data)?;
                data = rest;
                if ended && self.answer == Answer::MetaValue {
                    self.replied();
                }
                continue;
            }
            self.in_reply = true;
            let (rest, end) = match self.answer {
                Answer::Value | Answer::MetaValue => self.server.next(data)?,
                _ if self.server.words == 0 => self.server.next(data)?,
                _ => self.server.rest_of_line(data)?,
            };
            data = rest;
            if end == WordEnd::Open {
                continue;
            }
            self.reply_word()?;
            if end == WordEnd::Line {
                self.reply_line_ended()?;
            }
        }
        self.settle();
        Ok(())
    }

    fn reply_word(&mut self) -> Result<(), Pin> {
        let side = &mut self.server;
        if side.word.is_empty() {
            return Ok(());
        }
        if side.words == 0 {
            self.answer = match side.word.get() {
                Some(word) => answer(word).ok_or(Pin::Unparsable)?,
                // Longer than any word: a number.
                None => Answer::Last,
            };
        }
        if matches!((self.answer, side.words), (Answer::Value, 3) | (Answer::MetaValue, 1)) {
            side.set_length()?;
        }
        side.next_word();
        Ok(())
    }

    fn reply_line_ended(&mut self) -> Result<(), Pin> {
        let (length, words) = (self.server.length, self.server.words);
        let announced = self.server.announced;
        self.server = Side::new();
        match self.answer {
            _ if words == 0 => Err(Pin::Unparsable),
            Answer::Value | Answer::MetaValue => {
                if !announced {
                    return Err(Pin::Unparsable);
                }
                self.server.begin_data(length);
                Ok(())
            }
            Answer::More => Ok(()),
            // It may answer a command whose noreply was not understood, or leave a data block to be
            // read as commands.
            Answer::Refused | Answer::Failed if self.quiet.is_some() => Err(Pin::Unparsable),
            Answer::Refused if behind(self.stored, self.answered) => Err(Pin::Unparsable),
            _ => {
                self.replied();
                Ok(())
            }
        }
    }

    fn replied(&mut self) {
        self.answered = self.answered.wrapping_add(1);
        self.in_reply = false;
        self.answer = Answer::Last;
        if self.quiet.is_some_and(|at| behind(self.answered, at)) {
            self.quiet = None;
        }
    }

    fn settle(&mut self) {
        if self.at_rest() {
            self.begun = false;
            self.sent = 0;
            self.answered = 0;
            self.tainted = 0;
            self.stored = 0;
        }
    }
}
