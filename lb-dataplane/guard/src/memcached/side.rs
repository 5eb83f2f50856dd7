//! One direction of the memcached text protocol: words of lines, and data blocks.
//!
//! Owns where they begin and end. Never knows what a word means.

use crate::{
    line::{Cut, End, Word, cut, decimal},
    pin::Pin,
};
use memchr::memchr;

/// A `get` may have many keys of up to 250 bytes. Memcached itself takes long lines of `get` only.
const LINE_BYTES_MAX: u32 = 64 << 10;
/// The longest word of interest is `SERVER_ERROR`; lengths have at most 9 digits.
const WORD_BYTES_MAX: usize = 12;
/// Words are counted up to this. No word of interest is that far back.
const WORDS_MAX: u8 = 254;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    Line,
    /// Of so many bytes as `length` says.
    Data,
    /// CR LF behind the data.
    DataEnd,
}

/// One direction: words of lines, and data blocks.
#[derive(Clone)]
pub(super) struct Side {
    pub(super) at: At,
    pub(super) cr: bool,
    /// Words of this line that are complete.
    pub(super) words: u8,
    pub(super) word: Word<WORD_BYTES_MAX>,
    budget: u32,
    /// Of the data block that this line announces, if it is `announced`; then what is still to come
    /// of it.
    pub(super) length: u32,
    pub(super) announced: bool,
}

impl Side {
    pub(super) const fn new() -> Self {
        Self {
            at: At::Line,
            cr: false,
            words: 0,
            word: Word::new(),
            budget: LINE_BYTES_MAX,
            length: 0,
            announced: false,
        }
    }

    pub(super) fn at_line_start(&self) -> bool {
        self.at == At::Line && self.words == 0 && self.word.is_empty() && !self.cr
    }

    /// How many bytes from here on need not be seen.
    pub(super) fn skips(&self) -> u32 {
        match self.at {
            At::Data => self.length,
            _ => 0,
        }
    }

    /// Some of the data block came.
    fn pass(&mut self, bytes: u32) {
        self.length -= bytes;
        if self.length == 0 {
            self.at = At::DataEnd;
        }
    }

    pub(super) fn skip(&mut self, gap: u32) -> Result<(), Pin> {
        if gap > self.skips() {
            return Err(Pin::Gap);
        }
        if gap > 0 {
            self.pass(gap);
        }
        Ok(())
    }

    /// Takes a piece of a data block: what is left, and whether the block ended.
    pub(super) fn data<'a>(&mut self, data: &'a [u8]) -> Result<(&'a [u8], bool), Pin> {
        if self.at == At::Data {
            let taken = data.len().min(self.length as usize);
            self.pass(taken as u32);
            return Ok((&data[taken..], false));
        }
        match (self.cr, data.first()) {
            (false, Some(b'\r')) => self.cr = true,
            (true, Some(b'\n')) => {
                *self = Self::new();
                return Ok((&data[1..], true));
            }
            _ => return Err(Pin::Unparsable),
        }
        Ok((&data[1..], false))
    }

    /// The next word of the line, as far as it goes: what is left, and how it ended. Words are
    /// separated by spaces. A NUL is the line's end for memcached, and no word has one.
    #[inline]
    pub(super) fn next<'a>(&mut self, data: &'a [u8]) -> Result<(&'a [u8], WordEnd), Pin> {
        if self.budget == 0 {
            return Err(Pin::HeadTooLong);
        }
        let within = &data[..data.len().min(self.budget as usize)];
        let space = |b: &u8| matches!(b, b' ' | b'\r' | b'\n' | 0);
        if !self.cr {
            let length = within.iter().position(space).unwrap_or(within.len());
            if length > 0 || within[0] == b' ' {
                self.word.push(&within[..length]);
                let ended = within.get(length) == Some(&b' ');
                let used = length + usize::from(ended);
                self.budget -= used as u32;
                let end = if ended { WordEnd::Word } else { WordEnd::Open };
                return Ok((&data[used..], end));
            }
        }
        self.rest_of_line(data)
    }

    /// Goes to the line's end without looking at its words.
    pub(super) fn rest_of_line<'a>(&mut self, data: &'a [u8]) -> Result<(&'a [u8], WordEnd), Pin> {
        if self.budget == 0 {
            return Err(Pin::HeadTooLong);
        }
        let within = &data[..data.len().min(self.budget as usize)];
        let Cut { part, end, used } = cut(&mut self.cr, within);
        self.budget -= used as u32;
        if memchr(0, part).is_some() {
            return Err(Pin::Unparsable);
        }
        match end {
            End::Line | End::BareLf => Ok((&data[used..], WordEnd::Line)),
            End::Open => Ok((&data[used..], WordEnd::Open)),
            End::BareCr => Err(Pin::Unparsable),
        }
    }

    /// Bytes of the line so far.
    pub(super) fn line_bytes(&self) -> u32 {
        LINE_BYTES_MAX - self.budget
    }

    /// The word that just ended is the length of a data block.
    pub(super) fn set_length(&mut self) -> Result<(), Pin> {
        let number = self.word.get().and_then(decimal);
        let number = number.and_then(|n| u32::try_from(n).ok());
        self.length = number.ok_or(Pin::Unparsable)?;
        self.announced = true;
        Ok(())
    }

    pub(super) fn next_word(&mut self) {
        if !self.word.is_empty() {
            self.words = (self.words + 1).min(WORDS_MAX);
            self.word.clear();
        }
    }

    /// The line ended and announced a data block of this length.
    pub(super) fn begin_data(&mut self, length: u32) {
        *self = Self::new();
        self.at = At::Data;
        self.length = length;
        self.pass(0);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WordEnd {
    Open,
    Word,
    Line,
}
