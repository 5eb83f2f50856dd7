//! Replies of RESP2: where one ends, arrays inside arrays included, and the few that are told
//! apart.
//!
//! Owns the counting of values. Never keeps one. RESP3 types come only after `HELLO`, which pins.

use crate::{
    line::{Cut, End, Number, Word, cut},
    pin::Pin,
};

/// Bytes of a simple string or an error: redis caps none, and sends short ones.
const LINE_BYTES_MAX: u16 = u16::MAX;
/// `+QUEUED`, the longest that is told apart whole.
const LINE_START_BYTES: usize = 7;
/// What is kept of `-EXECABORT`, which no other error begins with.
const ABORTED: &[u8] = b"-EXECAB";

/// What a whole reply is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Ok,
    Queued,
    Reset,
    /// Any but `-EXECABORT`, which ends a transaction.
    Error,
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Before the type of a value.
    Type,
    Line,
    Length,
    Count,
    /// Of so many bytes as `number` says.
    Data,
    /// CR LF behind the data.
    DataEnd,
}

#[derive(Clone)]
pub(super) struct Replies {
    at: At,
    number: Number,
    /// Values of this reply that are not complete. An array adds its elements, so no stack is
    /// needed.
    left: u32,
    budget: u16,
    cr: bool,
    /// The reply is one line, and this is its start.
    line: Word<LINE_START_BYTES>,
}

impl Replies {
    pub(super) const fn new() -> Self {
        Self {
            at: At::Type,
            number: Number::new(),
            left: 0,
            budget: LINE_BYTES_MAX,
            cr: false,
            line: Word::new(),
        }
    }

    /// Between two replies.
    pub(super) fn idle(&self) -> bool {
        self.left == 0
    }

    /// How many bytes from here on need not be seen.
    pub(super) fn skips(&self) -> u32 {
        match self.at {
            At::Data => self.number.left(),
            _ => 0,
        }
    }

    /// Bytes that were not seen.
    pub(super) fn skip(&mut self, gap: u32) -> Result<(), Pin> {
        if gap > self.skips() {
            return Err(Pin::Gap);
        }
        if gap > 0 && self.number.pass(gap) {
            self.at = At::DataEnd;
        }
        Ok(())
    }

    /// Follows one reply as far as `data` goes: what is left of the data, and what the reply is if
    /// it ended.
    pub(super) fn take<'a>(
        &mut self,
        mut data: &'a [u8],
    ) -> Result<(&'a [u8], Option<Outcome>), Pin> {
        while let Some(first) = data.first() {
            match self.at {
                At::Type => {
                    let whole = self.left == 0;
                    self.left = self.left.max(1);
                    self.at = match first {
                        b'+' | b'-' | b':' => At::Line,
                        b'$' => At::Length,
                        b'*' => At::Count,
                        _ => return Err(Pin::Unparsable),
                    };
                    self.budget = LINE_BYTES_MAX;
                    if whole && matches!(first, b'+' | b'-') {
                        self.line.push(&data[..1]);
                    }
                    data = &data[1..];
                }
                At::Line => {
                    if self.budget == 0 {
                        return Err(Pin::HeadTooLong);
                    }
                    let within = data.len().min(usize::from(self.budget));
                    let Cut { part, end, used } = cut(&mut self.cr, &data[..within]);
                    self.budget -= used as u16;
                    if !self.line.is_empty() {
                        self.line.push(part);
                    }
                    data = &data[used..];
                    match end {
                        End::Open => {}
                        // Only CR LF ends a reply's line; clients differ about LF alone.
                        End::BareLf | End::BareCr => return Err(Pin::Unparsable),
                        End::Line => self.value_ended(),
                    }
                }
                At::Length => {
                    let (rest, length) = self.number.take(data)?;
                    data = rest;
                    match length {
                        None => {}
                        Some(-1) => self.value_ended(),
                        Some(0) => self.at = At::DataEnd,
                        Some(length) if length > 0 => {
                            self.number.announce(length as u32);
                            self.at = At::Data;
                        }
                        Some(_) => return Err(Pin::Unparsable),
                    }
                }
                At::Count => {
                    let (rest, count) = self.number.take(data)?;
                    data = rest;
                    match count {
                        None => {}
                        Some(-1 | 0) => self.value_ended(),
                        Some(count) if count > 0 => {
                            let left = self.left.checked_add(count as u32);
                            self.left = left.ok_or(Pin::Unparsable)?;
                            self.value_ended();
                        }
                        Some(_) => return Err(Pin::Unparsable),
                    }
                }
                At::Data => {
                    let taken = data.len().min(self.number.left() as usize);
                    if self.number.pass(taken as u32) {
                        self.at = At::DataEnd;
                    }
                    data = &data[taken..];
                }
                At::DataEnd => {
                    match (self.cr, first) {
                        (false, b'\r') => self.cr = true,
                        (true, b'\n') => {
                            self.cr = false;
                            self.value_ended();
                        }
                        _ => return Err(Pin::Unparsable),
                    }
                    data = &data[1..];
                }
            }
            if self.left == 0 {
                let outcome = match self.line.get() {
                    Some(b"+OK") => Outcome::Ok,
                    Some(b"+QUEUED") => Outcome::Queued,
                    Some(b"+RESET") => Outcome::Reset,
                    _ if self.line.start() == ABORTED => Outcome::Other,
                    _ if self.line.start().starts_with(b"-") => Outcome::Error,
                    _ => Outcome::Other,
                };
                *self = Self::new();
                return Ok((data, Some(outcome)));
            }
        }
        Ok((data, None))
    }

    fn value_ended(&mut self) {
        self.left -= 1;
        self.at = At::Type;
    }
}
