//! Lines, words and numbers that arrive in pieces.
//!
//! Owns the cutting of a stream at line ends and the few bytes that are kept of a word until it
//! ends. Never keeps a line.

use crate::pin::Pin;
use memchr::memchr2;

/// How a piece of a line ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The data ends; the line does not.
    Open,
    /// At CR LF.
    Line,
    /// At an LF that no CR precedes. Some servers end a line there, some do not.
    BareLf,
    /// At a CR that no LF follows. Likewise.
    BareCr,
}

/// The first piece of some data: what it holds of a line, and how many bytes that took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut<'a> {
    pub(crate) part: &'a [u8],
    pub(crate) end: End,
    pub(crate) used: usize,
}

/// Cuts `data` (not empty) at the first line end. `cr` remembers a CR that was the last byte of the
/// data before.
#[inline]
pub(crate) fn cut<'a>(cr: &mut bool, data: &'a [u8]) -> Cut<'a> {
    let piece = |at: usize, end, used| Cut { part: &data[..at], end, used };
    if *cr {
        *cr = false;
        return match data.first() {
            Some(b'\n') => piece(0, End::Line, 1),
            _ => piece(0, End::BareCr, 0),
        };
    }
    match memchr2(b'\r', b'\n', data) {
        None => piece(data.len(), End::Open, data.len()),
        Some(at) if data[at] == b'\n' => piece(at, End::BareLf, at + 1),
        Some(at) => match data.get(at + 1) {
            Some(b'\n') => piece(at, End::Line, at + 2),
            Some(_) => piece(at, End::BareCr, at + 1),
            None => {
                *cr = true;
                piece(at, End::Open, at + 1)
            }
        },
    }
}

/// The first bytes of a word, at most `N`.
#[derive(Clone)]
pub(crate) struct Word<const N: usize> {
    bytes: [u8; N],
    /// `N + 1`: longer than `N`.
    len: u8,
}

impl<const N: usize> Word<N> {
    pub(crate) const fn new() -> Self {
        assert!(N < 255);
        Self { bytes: [0; N], len: 0 }
    }

    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes so far; `N + 1` for any number above `N`.
    pub(crate) fn len(&self) -> usize {
        usize::from(self.len)
    }

    pub(crate) fn push(&mut self, more: &[u8]) {
        let len = self.len();
        match self.bytes.get_mut(len..len + more.len()) {
            Some(room) => {
                room.copy_from_slice(more);
                self.len += more.len() as u8;
            }
            None => {
                // What fits is kept, so that a first part can be looked at whatever the pieces
                // were.
                let room = N.saturating_sub(len);
                if let Some(to) = self.bytes.get_mut(len..) {
                    to.copy_from_slice(&more[..room]);
                }
                self.len = N as u8 + 1;
            }
        }
    }

    /// The word, whose last piece this is, unless it is longer than `N`. A word in one piece is not
    /// copied.
    #[inline]
    pub(crate) fn whole<'a>(&'a mut self, last: &'a [u8]) -> Option<&'a [u8]> {
        if self.is_empty() {
            return (last.len() <= N).then_some(last);
        }
        self.push(last);
        self.get()
    }

    /// The word, unless it is longer than `N`.
    pub(crate) fn get(&self) -> Option<&[u8]> {
        self.bytes.get(..self.len())
    }

    /// The room as a number, whoever has no word at present.
    pub(crate) fn number(&self) -> u64 {
        self.bytes.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes))
    }

    pub(crate) fn set_number(&mut self, number: u64) {
        if let Some(room) = self.bytes.first_chunk_mut() {
            *room = number.to_ne_bytes();
        }
    }

    /// What is kept, of a longer word its first bytes.
    pub(crate) fn start(&self) -> &[u8] {
        self.bytes.get(..self.len()).unwrap_or(&self.bytes)
    }

    /// Appends, and forgets the oldest bytes beyond `N`.
    pub(crate) fn slide(&mut self, more: &[u8]) {
        let more = &more[more.len().saturating_sub(N)..];
        let keep = self.len().min(N - more.len());
        let from = self.len().min(N) - keep;
        self.bytes.copy_within(from..from + keep, 0);
        self.bytes[keep..keep + more.len()].copy_from_slice(more);
        self.len = (keep + more.len()) as u8;
    }
}

/// 64 bits that need no alignment: with it a direction of HTTP/1 would have 40 bytes for its 36.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loose([u8; 8]);

impl Loose {
    pub(crate) const fn new(number: u64) -> Self {
        Self(number.to_ne_bytes())
    }

    #[inline]
    pub(crate) const fn get(self) -> u64 {
        u64::from_ne_bytes(self.0)
    }
}

/// A decimal number that ends with CR LF, as RESP has them, and behind it the bytes that it
/// announced and that are still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Number {
    value: u32,
    digits: u8,
    minus: bool,
    cr: bool,
}

/// Up to 999,999,999: redis takes strings of 512 MiB.
const NUMBER_DIGITS_MAX: u8 = 9;

impl Number {
    pub(crate) const fn new() -> Self {
        Self { value: 0, digits: 0, minus: false, cr: false }
    }

    /// So many bytes are to come.
    pub(crate) fn announce(&mut self, bytes: u32) {
        self.value = bytes;
    }

    /// How many are still to come.
    pub(crate) fn left(&self) -> u32 {
        self.value
    }

    /// Some of them came. Whether all have.
    #[inline]
    pub(crate) fn pass(&mut self, bytes: u32) -> bool {
        self.value -= bytes;
        self.value == 0
    }

    /// Takes digits up to and with the line end: what is left of the data, and the number if it
    /// ended.
    #[inline]
    pub(crate) fn take<'a>(&mut self, data: &'a [u8]) -> Result<(&'a [u8], Option<i32>), Pin> {
        for (at, byte) in data.iter().enumerate() {
            match byte {
                b'\n' if self.cr => {
                    let value = self.value as i32;
                    let value = if self.minus { -value } else { value };
                    *self = Self::new();
                    return Ok((&data[at + 1..], Some(value)));
                }
                _ if self.cr => return Err(Pin::Unparsable),
                // Redis ends the connection at a number that begins with 0 and goes on, and at -0
                // (`string2ll`), with an answer to nothing that was asked.
                b'0'..=b'9' if self.digits > 0 && self.value == 0 => return Err(Pin::Unparsable),
                b'0' if self.minus && self.digits == 0 => return Err(Pin::Unparsable),
                b'0'..=b'9' if self.digits < NUMBER_DIGITS_MAX => {
                    self.value = self.value * 10 + u32::from(byte - b'0');
                    self.digits += 1;
                }
                b'-' if self.digits == 0 && !self.minus => self.minus = true,
                b'\r' if self.digits > 0 => self.cr = true,
                _ => return Err(Pin::Unparsable),
            }
        }
        Ok((&[], None))
    }
}

/// 18 digits always fit 63 bits; nobody sends bodies that long.
pub(crate) const DIGITS_MAX: u8 = 18;

/// A whole word that is a number.
pub(crate) fn decimal(word: &[u8]) -> Option<u64> {
    let fits = !word.is_empty() && word.len() <= usize::from(DIGITS_MAX);
    word.iter()
        .try_fold(0, |value: u64, byte| match byte {
            b'0'..=b'9' => Some(value.wrapping_mul(10).wrapping_add(u64::from(byte - b'0'))),
            _ => None,
        })
        .filter(|_| fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_at_lf_and_cr() {
        let mut cr = false;
        let mut one = |data: &'static [u8]| {
            let cut = cut(&mut cr, data);
            (cut.part, cut.end, cut.used)
        };
        assert_eq!(one(b"ab\r\ncd"), (&b"ab"[..], End::Line, 4));
        assert_eq!(one(b"ab\ncd"), (&b"ab"[..], End::BareLf, 3));
        assert_eq!(one(b"ab"), (&b"ab"[..], End::Open, 2));
        assert_eq!(one(b"ab\rcd"), (&b"ab"[..], End::BareCr, 3));
        assert_eq!(one(b"ab\r"), (&b"ab"[..], End::Open, 3));
        assert_eq!(one(b"\ncd"), (&b""[..], End::Line, 1));
        assert_eq!(one(b"\r"), (&b""[..], End::Open, 1));
        assert_eq!(one(b"\r\n"), (&b""[..], End::BareCr, 0));
    }

    #[test]
    fn words_keep_what_fits() {
        let mut word = Word::<4>::new();
        word.push(b"ab");
        word.push(b"cd");
        assert_eq!(word.get(), Some(&b"abcd"[..]));
        word.push(b"");
        assert_eq!(word.len(), 4);
        word.push(b"e");
        word.push(b"f");
        assert_eq!((word.get(), word.len()), (None, 5));
        word.clear();
        word.push(b"abcdefg");
        assert_eq!(word.get(), None);
        word.clear();
        for part in [&b"a"[..], b"bc", b"", b"defg", b"h", b"1234567"] {
            word.slide(part);
        }
        assert_eq!(word.get(), Some(&b"4567"[..]));
        word.slide(b"89");
        assert_eq!(word.get(), Some(&b"6789"[..]));
    }

    #[test]
    fn numbers_end_with_a_line() {
        let mut number = Number::new();
        assert_eq!(number.take(b"-1\r\nx"), Ok((&b"x"[..], Some(-1))));
        assert_eq!(number.take(b"12"), Ok((&b""[..], None)));
        assert_eq!(number.take(b"3\r"), Ok((&b""[..], None)));
        assert_eq!(number.take(b"\n"), Ok((&b""[..], Some(123))));
        assert_eq!(number.take(b"0\r\n"), Ok((&b""[..], Some(0))));
        for wrong in [
            &b"\r\n"[..],
            b"-\r\n",
            b"1\n",
            b"1\rx",
            b"--1",
            b"1-",
            b"+1",
            b"1234567890",
            b"00",
            b"01",
            b"-0",
            b"-01",
        ] {
            assert_eq!(Number::new().take(wrong), Err(Pin::Unparsable), "{wrong:?}");
        }
        assert_eq!(decimal(b"007"), Some(7));
        for wrong in [&b""[..], b"-1", b"1234567890123456789", b"1a"] {
            assert_eq!(decimal(wrong), None, "{wrong:?}");
        }
    }
}
