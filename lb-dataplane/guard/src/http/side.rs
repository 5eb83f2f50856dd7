//! One direction of an HTTP/1 connection: its state, and the field lines of a head (RFC 9112
//! section 5).
//!
//! Owns what both directions have in common. Never knows methods, status codes or the other
//! direction; bodies are in `body`.

use crate::{
    line::{Cut, DIGITS_MAX, End, Loose, Word, cut},
    pin::Pin,
};
use memchr::memchr2;

/// Bytes of a head or of a trailer section. Servers take 8 to 64 KiB; whoever sends more is
/// answered with an error or is no HTTP.
pub(super) const HEAD_BYTES_MAX: u16 = u16::MAX;
/// The longest field name of interest, `proxy-authorization`.
const NAME_BYTES_MAX: usize = 19;
/// Methods have at most 17 bytes in IANA's registry, words of interest in field values at most 12.
pub(crate) const WORD_BYTES_MAX: usize = NAME_BYTES_MAX;

/// Where in a message the direction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    Start,
    Fields,
    /// Of so many bytes as `left` says.
    Body,
    ChunkSize,
    /// Likewise.
    ChunkData,
    ChunkEnd,
    Trailers,
    UntilClose,
}

/// Where in a line the direction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Before its first byte, or in the first word of a start line.
    First,
    Name,
    Value,
    /// What follows is of no interest, or is the target of a request.
    Rest,
}

/// Fields of interest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    /// No field line yet.
    Nothing,
    Other,
    ContentLength,
    TransferEncoding,
    Connection,
    Expect,
    /// A list of challenges.
    Challenge,
    /// Credentials before their scheme, which is the first word.
    Credentials,
}

/// What a head says, one bit each, and one of its number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Head(u8);

impl Head {
    /// It has a length: see `left`.
    pub(crate) const LENGTH: Self = Self(1);
    pub(crate) const CHUNKED: Self = Self(2);
    pub(crate) const CLOSE: Self = Self(4);
    pub(crate) const KEEP_ALIVE: Self = Self(8);
    pub(crate) const EXPECT: Self = Self(16);
    pub(crate) const VERSION_1_0: Self = Self(32);
    /// Blanks came behind the digits of the number in progress.
    pub(super) const CLOSED: Self = Self(64);
    /// An empty line came before it, whose start line has not ended.
    pub(super) const EMPTY_LINE: Self = Self(128);
    /// It wants another protocol; or its chunks are not plain, or it has trailer fields.
    pub(super) const ODD: Self = Self(128);

    /// Whether it says any of these.
    #[inline]
    pub(crate) const fn says(self, any: Self) -> bool {
        self.0 & any.0 != 0
    }

    #[inline]
    pub(crate) fn set(&mut self, what: Self, so: bool) {
        self.0 = self.0 & !what.0 | if so { what.0 } else { 0 };
    }

    /// The sender ends the connection after this message, or wants it ended (RFC 9112 section 9.3).
    pub(crate) fn ends(self) -> bool {
        self.says(Self::CLOSE) || (self.says(Self::VERSION_1_0) && !self.says(Self::KEEP_ALIVE))
    }
}

/// 36 bytes, and nothing in it needs more than two's alignment: there are two in each tracker.
#[derive(Clone)]
pub(crate) struct Side {
    /// What is still to come of a body or a chunk; before, the length that the head announced.
    pub(crate) left: Loose,
    /// Bytes that the head may still have.
    pub(super) budget: u16,
    pub(crate) at: At,
    pub(crate) stage: Stage,
    field: Field,
    pub(super) cr: bool,
    /// Of the number in progress. The number itself lies in the word's room: there is never both.
    pub(super) digits: u8,
    pub(crate) head: Head,
    pub(crate) word: Word<WORD_BYTES_MAX>,
}

const _: () = assert!(size_of::<Side>() == 36);

/// RFC 9110 section 5.6.2.
pub(crate) const fn is_token(byte: u8) -> bool {
    TOKEN[byte as usize]
}

const TOKEN: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 128 {
        let c = byte as u8;
        table[byte] = c.is_ascii_alphanumeric()
            || matches!(
                c,
                b'!' | b'#'
                    | b'$'
                    | b'%'
                    | b'&'
                    | b'\''
                    | b'*'
                    | b'+'
                    | b'-'
                    | b'.'
                    | b'^'
                    | b'_'
                    | b'`'
                    | b'|'
                    | b'~'
            );
        byte += 1;
    }
    table
};

/// The first two letters of the names below, to pass over nearly all others.
fn first_of_interest(byte: u8) -> bool {
    matches!(byte | 0x20, b'a' | b'c' | b'e' | b'p' | b't' | b'w')
}

fn second_of_interest(first: u8, second: u8) -> bool {
    matches!(
        (first | 0x20, second | 0x20),
        (b'a', b'u') | (b'c', b'o') | (b'e', b'x') | (b'p' | b't', b'r') | (b'w', b'w')
    )
}

/// What a name of token characters is.
fn field_of(name: &[u8]) -> Field {
    match name.len() {
        6 if is(name, b"expect") => Field::Expect,
        10 if is(name, b"connection") => Field::Connection,
        13 if is(name, b"authorization") => Field::Credentials,
        14 if is(name, b"content-length") => Field::ContentLength,
        16 if is(name, b"www-authenticate") => Field::Challenge,
        17 if is(name, b"transfer-encoding") => Field::TransferEncoding,
        18 if is(name, b"proxy-authenticate") => Field::Challenge,
        19 if is(name, b"proxy-authorization") => Field::Credentials,
        _ => Field::Other,
    }
}

/// Whether token characters are these lower-case letters and hyphens, or the letters' capitals: all
/// have the bit that makes the difference.
#[inline]
fn is<const N: usize>(name: &[u8], other: &[u8; N]) -> bool {
    let differ = |name: &[u8; N]| name.iter().zip(other).fold(0, |d, (a, b)| d | (a | 0x20) ^ b);
    name.as_array().is_some_and(|name| differ(name) == 0)
}

impl Side {
    pub(crate) const fn new() -> Self {
        Self {
            left: Loose::new(0),
            budget: HEAD_BYTES_MAX,
            at: At::Start,
            stage: Stage::First,
            field: Field::Nothing,
            cr: false,
            digits: 0,
            head: Head(0),
            word: Word::new(),
        }
    }

    /// Between two messages.
    pub(crate) fn idle(&self) -> bool {
        self.at == At::Start
            && self.stage == Stage::First
            && self.word.is_empty()
            && !self.cr
            && !self.head.says(Head::EMPTY_LINE)
    }

    /// The next piece of a line, within the head's limit.
    #[inline]
    pub(crate) fn cut<'a>(&mut self, data: &'a [u8]) -> Result<Cut<'a>, Pin> {
        let within = data.len().min(usize::from(self.budget));
        if within == 0 && !data.is_empty() {
            return Err(Pin::HeadTooLong);
        }
        let piece = cut(&mut self.cr, &data[..within]);
        self.budget -= piece.used as u16;
        Ok(piece)
    }

    /// The start line ended.
    pub(crate) fn begin_fields(&mut self) {
        self.at = At::Fields;
        self.stage = Stage::First;
        self.word.clear();
    }

    /// Field lines: what is left of the data, and whether the head ended.
    #[inline]
    pub(crate) fn fields<'a>(&mut self, mut data: &'a [u8]) -> Result<(&'a [u8], bool), Pin> {
        while !data.is_empty() {
            data = self.lines_of_no_interest(data);
            if data.is_empty() {
                break;
            }
            let Cut { part, end, used } = self.cut(data)?;
            data = &data[used..];
            let ended = end == End::Line;
            if ended && part.is_empty() && self.stage == Stage::First {
                let otherwise = self.head.says(Head::LENGTH) || self.head.says(Head::VERSION_1_0);
                if self.head.says(Head::CHUNKED) && otherwise {
                    // Which of the two counts is where request smuggling begins (RFC 9112 section
                    // 6.1).
                    return Err(Pin::Unparsable);
                }
                return Ok((data, true));
            }
            self.field(part, ended)?;
            if matches!(end, End::BareLf | End::BareCr) {
                return Err(Pin::Unparsable);
            }
        }
        Ok((data, false))
    }

    /// Skips whole lines of no interest, exactly as [`Self::field`] does: most of a head is that.
    #[inline]
    fn lines_of_no_interest<'a>(&mut self, mut data: &'a [u8]) -> &'a [u8] {
        if self.stage != Stage::First || self.cr || data.len() > usize::from(self.budget) {
            return data;
        }
        let before = data.len();
        while let [first, second, ..] = data {
            let known = |b: &u8| is_token(*b);
            if !known(first)
                || (first_of_interest(*first)
                    && (!known(second) || second_of_interest(*first, *second)))
            {
                break;
            }
            let end = memchr2(b'\r', b'\n', data).map(|at| match &data[at..] {
                [b'\r', b'\n', ..] => at + 2,
                _ => 0,
            });
            match end {
                None | Some(0) => break,
                Some(used) => data = &data[used..],
            }
        }
        if data.len() < before {
            self.field = Field::Other;
            self.budget -= (before - data.len()) as u16;
        }
        data
    }

    #[inline]
    fn field(&mut self, mut part: &[u8], ended: bool) -> Result<(), Pin> {
        if self.stage == Stage::First {
            let Some(first) = part.first() else {
                return Ok(());
            };
            self.stage = match first {
                _ if first_of_interest(*first) => Stage::Name,
                _ if is_token(*first) => {
                    self.field = Field::Other;
                    Stage::Rest
                }
                _ => self.folded(*first)?,
            };
        }
        if self.stage == Stage::Name {
            let room = NAME_BYTES_MAX + 1 - self.word.len();
            let window = &part[..part.len().min(room)];
            let start = match self.word.start() {
                [] => window.first().zip(window.get(1)),
                [first] => Some(first).zip(window.first()),
                _ => None,
            };
            if start.is_some_and(|(a, b)| is_token(*b) && !second_of_interest(*a, *b)) {
                self.field = Field::Other;
                self.word.clear();
                self.stage = if ended { Stage::First } else { Stage::Rest };
                return Ok(());
            }
            match window.iter().position(|b| !is_token(*b)) {
                Some(at) if window[at] == b':' => {
                    let name = self.word.whole(&window[..at]);
                    self.field = name.map_or(Field::Other, field_of);
                    self.word.clear();
                    part = &part[at + 1..];
                    self.stage = match self.field {
                        Field::Other => Stage::Rest,
                        // Some servers take the last one, some all of them.
                        Field::TransferEncoding if self.head.says(Head::CHUNKED) => {
                            return Err(Pin::Unparsable);
                        }
                        _ => Stage::Value,
                    };
                }
                // Blanks before the colon, or no name at all: servers differ.
                Some(_) => return Err(Pin::Unparsable),
                None if window.len() == room => {
                    self.field = Field::Other;
                    self.word.clear();
                    self.stage = Stage::Rest;
                }
                None if ended => return Err(Pin::Unparsable),
                None => {
                    self.word.push(window);
                    return Ok(());
                }
            }
        }
        if self.stage == Stage::Value {
            match self.field {
                Field::ContentLength => self.content_length(part, ended)?,
                _ => self.words(part, ended)?,
            }
        }
        if ended {
            self.stage = Stage::First;
        }
        Ok(())
    }

    /// A line that begins with a blank goes on with the field before it (RFC 9112 section 5.2), or
    /// is no field at all.
    fn folded(&mut self, first: u8) -> Result<Stage, Pin> {
        match self.field {
            _ if !matches!(first, b' ' | b'\t') => Err(Pin::Unparsable),
            Field::Other => Ok(Stage::Rest),
            Field::Challenge | Field::Credentials => Ok(Stage::Value),
            _ => Err(Pin::Unparsable),
        }
    }

    fn content_length(&mut self, part: &[u8], ended: bool) -> Result<(), Pin> {
        let (mut length, mut digits) = (self.number(), self.digits);
        let mut closed = self.head.says(Head::CLOSED);
        for byte in part {
            match byte {
                b'0'..=b'9' if !closed && digits < DIGITS_MAX => {
                    length = length * 10 + u64::from(byte - b'0');
                    digits += 1;
                }
                b' ' | b'\t' => closed = digits > 0,
                _ => return Err(Pin::Unparsable),
            }
        }
        self.digits = digits;
        if ended {
            let other = self.head.says(Head::LENGTH) && self.left.get() != length;
            if self.digits == 0 || other {
                return Err(Pin::Unparsable);
            }
            self.left = Loose::new(length);
            self.head.set(Head::LENGTH, true);
            self.clear_number();
        } else {
            self.word.set_number(length);
            self.head.set(Head::CLOSED, closed);
        }
        Ok(())
    }

    /// The number in progress.
    pub(super) fn number(&self) -> u64 {
        match self.digits {
            0 => 0,
            _ => self.word.number(),
        }
    }

    pub(super) fn add_digit(&mut self, base: u64, digit: u8) {
        let number = self.number() * base + u64::from(digit);
        self.word.set_number(number);
        self.digits += 1;
    }

    pub(super) fn clear_number(&mut self) {
        self.digits = 0;
        self.head.set(Head::CLOSED, false);
    }

    fn words(&mut self, part: &[u8], ended: bool) -> Result<(), Pin> {
        let mut rest = part;
        let challenge = self.field == Field::Challenge;
        while self.stage == Stage::Value {
            let separates = |b: &u8| match challenge {
                true => !is_token(*b),
                false => matches!(b, b',' | b' ' | b'\t'),
            };
            let Some(at) = rest.iter().position(separates) else {
                self.word.push(rest);
                break;
            };
            self.word.push(&rest[..at]);
            self.word_ended()?;
            if self.field == Field::TransferEncoding && rest[at] == b',' {
                return Err(Pin::Unparsable);
            }
            rest = &rest[at + 1..];
        }
        if ended {
            self.word_ended()?;
            if self.field == Field::TransferEncoding && !self.head.says(Head::CHUNKED) {
                return Err(Pin::Unparsable);
            }
        }
        Ok(())
    }

    fn word_ended(&mut self) -> Result<(), Pin> {
        if self.word.is_empty() {
            return Ok(());
        }
        let word = self.word.get().unwrap_or_default();
        let is = |other: &[u8]| word.eq_ignore_ascii_case(other);
        match self.field {
            // Other codings, and chunked twice, are read in different ways.
            Field::TransferEncoding if self.head.says(Head::CHUNKED) || !is(b"chunked") => {
                return Err(Pin::Unparsable);
            }
            Field::TransferEncoding => self.head.set(Head::CHUNKED, true),
            Field::Connection if is(b"close") => self.head.set(Head::CLOSE, true),
            Field::Connection if is(b"upgrade") => self.head.set(Head::ODD, true),
            Field::Connection if is(b"keep-alive") => self.head.set(Head::KEEP_ALIVE, true),
            Field::Expect if is(b"100-continue") => self.head.set(Head::EXPECT, true),
            Field::Challenge | Field::Credentials if is(b"ntlm") || is(b"negotiate") => {
                return Err(Pin::BoundAuth);
            }
            // What follows the scheme is of no interest, in lines folded behind it either.
            Field::Credentials => (self.field, self.stage) = (Field::Other, Stage::Rest),
            _ => {}
        }
        self.word.clear();
        Ok(())
    }
}
