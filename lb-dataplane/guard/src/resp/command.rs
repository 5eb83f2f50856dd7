//! Commands: arrays of bulk strings, and inline commands (redis: processMultibulkBuffer,
//! processInlineBuffer).
//!
//! Owns where a command and its arguments begin and end. Never judges them.

use super::table::NAME_BYTES_MAX;
use crate::{
    ToCome,
    line::{Cut, End, Number, Word, cut},
    pin::Pin,
};

/// Redis closes the connection at 64 KiB (PROTO_INLINE_MAX_SIZE).
const INLINE_BYTES_MAX: u16 = u16::MAX;
/// Redis: 1024 * 1024 before authentication matters, far more than anybody sends.
const ARGUMENTS_MAX: i32 = 1 << 20;

/// `$0`, CR LF, and the CR LF behind no data: the shortest argument.
const ARGUMENT_BYTES_MIN: u64 = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Start,
    Count,
    Dollar,
    Length,
    /// Of so many bytes as `number` says.
    Data,
    /// CR LF behind the data.
    DataEnd,
    Inline,
}

/// What is done with a command's parts as they end.
pub(super) trait Commands {
    /// The name is complete. Returns whether its arguments are asked for.
    fn named(&mut self, name: &[u8]) -> Result<bool, Pin>;
    /// Bytes of an argument that is asked for.
    fn bytes(&mut self, bytes: &[u8]) -> Result<(), Pin>;
    /// An argument that is asked for ended.
    fn argument_ended(&mut self) -> Result<(), Pin>;
    fn command_ended(&mut self, captured: bool) -> Result<(), Pin>;
}

#[derive(Clone)]
pub(super) struct Parser {
    at: At,
    number: Number,
    /// Arguments to come, the one in progress included.
    left: u32,
    budget: u16,
    cr: bool,
    named: bool,
    /// Arguments of this command are asked for.
    captured: bool,
    /// Inside a word of an inline command.
    in_word: bool,
    word: Word<NAME_BYTES_MAX>,
}

impl Parser {
    pub(super) const fn new() -> Self {
        Self {
            at: At::Start,
            number: Number::new(),
            left: 0,
            budget: INLINE_BYTES_MAX,
            cr: false,
            named: false,
            captured: false,
            in_word: false,
            word: Word::new(),
        }
    }

    pub(super) fn idle(&self) -> bool {
        self.at == At::Start
    }

    /// A command began, and its name is not complete.
    pub(super) fn in_name(&self) -> bool {
        !self.idle() && !self.named
    }

    /// What is missing of the command: known where its last argument has begun.
    pub(super) fn to_come(&self) -> ToCome {
        let of_this = match self.at {
            At::Start => return ToCome::Exactly(0),
            At::Data => u64::from(self.number.left()) + 2,
            At::DataEnd => 2 - u64::from(self.cr),
            At::Count | At::Dollar | At::Length | At::Inline => return ToCome::AtLeast(0),
        };
        match u64::from(self.left) {
            1 => ToCome::Exactly(of_this),
            left => ToCome::AtLeast(of_this + left.saturating_sub(1) * ARGUMENT_BYTES_MIN),
        }
    }

    pub(super) fn in_arguments(&self) -> bool {
        self.named
    }

    /// How many bytes from here on need not be seen.
    pub(super) fn skips(&self) -> u32 {
        match self.at {
            At::Data if self.named && !self.captured => self.number.left(),
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

    pub(super) fn take(&mut self, mut data: &[u8], to: &mut impl Commands) -> Result<(), Pin> {
        while let Some(first) = data.first() {
            match self.at {
                At::Start if *first == b'*' => {
                    self.at = At::Count;
                    data = &data[1..];
                }
                At::Start => self.at = At::Inline,
                At::Count => {
                    let (rest, count) = self.number.take(data)?;
                    data = rest;
                    match count {
                        None => {}
                        // Redis ignores an empty command.
                        Some(..=0) => *self = Self::new(),
                        Some(count) if count <= ARGUMENTS_MAX => {
                            self.left = count as u32;
                            self.at = At::Dollar;
                        }
                        Some(_) => return Err(Pin::Unparsable),
                    }
                }
                At::Dollar => {
                    if *first != b'$' {
                        return Err(Pin::Unparsable);
                    }
                    self.at = At::Length;
                    data = &data[1..];
                }
                At::Length => {
                    let (rest, length) = self.number.take(data)?;
                    data = rest;
                    match length {
                        None => {}
                        Some(0) => self.at = At::DataEnd,
                        Some(length) if length > 0 => {
                            self.number.announce(length as u32);
                            self.at = At::Data;
                        }
                        Some(_) => return Err(Pin::Unparsable),
                    }
                }
                At::Data => {
                    let left = self.number.left() as usize;
                    let (bytes, rest) = data.split_at(data.len().min(left));
                    if self.number.pass(bytes.len() as u32) {
                        self.at = At::DataEnd;
                    }
                    data = rest;
                    self.argument(bytes, to)?;
                }
                At::DataEnd => {
                    match (self.cr, first) {
                        (false, b'\r') => self.cr = true,
                        (true, b'\n') => {
                            self.cr = false;
                            self.at = At::Dollar;
                            self.argument_ended(to)?;
                            self.left -= 1;
                            if self.left == 0 {
                                self.command_ended(to)?;
                            }
                        }
                        _ => return Err(Pin::Unparsable),
                    }
                    data = &data[1..];
                }
                At::Inline => data = self.inline(data, to)?,
            }
        }
        Ok(())
    }

    fn argument(&mut self, bytes: &[u8], to: &mut impl Commands) -> Result<(), Pin> {
        if !self.named {
            self.word.push(bytes);
            Ok(())
        } else if self.captured {
            to.bytes(bytes)
        } else {
            Ok(())
        }
    }

    fn argument_ended(&mut self, to: &mut impl Commands) -> Result<(), Pin> {
        if !self.named {
            self.named = true;
            // A name that is too long is none of interest.
            self.captured = to.named(self.word.get().unwrap_or_default())?;
            Ok(())
        } else if self.captured {
            to.argument_ended()
        } else {
            Ok(())
        }
    }

    fn command_ended(&mut self, to: &mut impl Commands) -> Result<(), Pin> {
        let captured = self.captured;
        *self = Self::new();
        to.command_ended(captured)
    }

    /// A piece of an inline command. Redis splits at blanks and knows quotes, which nobody needs: a
    /// name is never quoted here, nor is an argument that is asked for.
    fn inline<'a>(&mut self, data: &'a [u8], to: &mut impl Commands) -> Result<&'a [u8], Pin> {
        if self.budget == 0 {
            return Err(Pin::HeadTooLong);
        }
        let Cut { part, end, used } =
            cut(&mut self.cr, &data[..data.len().min(usize::from(self.budget))]);
        self.budget -= used as u16;
        let mut rest = part;
        while (!self.named || self.captured) && !rest.is_empty() {
            let blank = |b: &u8| matches!(b, b' ' | b'\t' | 0x0b | 0x0c);
            let length = rest.iter().position(blank).unwrap_or(rest.len());
            let (word, behind) = rest.split_at(length);
            let plain = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
            if !self.named && !word.iter().all(plain) {
                return Err(Pin::Unparsable);
            }
            if word.iter().any(|b| matches!(b, b'"' | b'\'' | 0)) {
                return Err(Pin::Session);
            }
            if !word.is_empty() {
                self.in_word = true;
                self.argument(word, to)?;
            }
            if !behind.is_empty() {
                self.inline_word_ended(to)?;
            }
            rest = behind.get(1..).unwrap_or_default();
        }
        match end {
            End::Open => {}
            End::BareCr => return Err(Pin::Unparsable),
            End::Line | End::BareLf => {
                self.inline_word_ended(to)?;
                match self.named {
                    true => self.command_ended(to)?,
                    false => *self = Self::new(),
                }
            }
        }
        Ok(&data[used..])
    }

    fn inline_word_ended(&mut self, to: &mut impl Commands) -> Result<(), Pin> {
        match core::mem::take(&mut self.in_word) {
            true => self.argument_ended(to),
            false => Ok(()),
        }
    }
}
