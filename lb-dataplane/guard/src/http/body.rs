//! The framing of HTTP/1 bodies: by length, by chunks, by the end of the connection (RFC 9112
//! sections 6 and 7).
//!
//! Owns where a body ends once its head is known. Never looks at what is in one.

use super::side::{At, HEAD_BYTES_MAX, Head, Side, Stage};
use crate::{
    line::{Cut, End, Loose},
    pin::Pin,
};

/// Bytes of a chunk's size with its extensions.
const CHUNK_LINE_BYTES_MAX: u16 = 4 << 10;
/// 15 hexadecimal digits: below 2^60.
const CHUNK_DIGITS_MAX: u8 = 15;

impl Side {
    /// Goes to the body that the head declares; true if there is none.
    pub(crate) fn begin_body(&mut self) -> bool {
        self.at = if self.head.says(Head::CHUNKED) {
            At::ChunkSize
        } else if self.left.get() > 0 {
            At::Body
        } else {
            return true;
        };
        self.stage = Stage::First;
        self.budget = CHUNK_LINE_BYTES_MAX;
        false
    }

    /// Takes up to `bytes` of a body of known length in one step: how many, and whether the message
    /// ended with them.
    #[inline]
    fn advance(&mut self, bytes: u64) -> (u64, bool) {
        if self.at == At::UntilClose {
            return (bytes, false);
        }
        if !matches!(self.at, At::Body | At::ChunkData) {
            return (0, false);
        }
        let taken = bytes.min(self.left.get());
        let left = self.left.get() - taken;
        self.left = Loose::new(left);
        if left == 0 && self.at == At::ChunkData {
            self.at = At::ChunkEnd;
            return (taken, false);
        }
        (taken, left == 0)
    }

    /// How many bytes from here on need not be seen.
    #[inline]
    pub(crate) fn skips(&self) -> u64 {
        match self.at {
            At::UntilClose => u64::MAX,
            At::Body | At::ChunkData => self.left.get(),
            _ => 0,
        }
    }

    /// Takes so many bytes that lie in the midst of a body. False, and nothing changes, if some of
    /// them do not.
    #[inline]
    pub(crate) fn passes(&mut self, bytes: usize) -> bool {
        let midst = self.skips() > bytes as u64;
        if midst {
            let _ = self.advance(bytes as u64);
        }
        midst
    }

    /// Bytes that were not seen. True if the message ended with them.
    pub(crate) fn skip(&mut self, gap: u32) -> Result<bool, Pin> {
        let (taken, ended) = self.advance(u64::from(gap));
        match taken == u64::from(gap) {
            true => Ok(ended),
            false => Err(Pin::Gap),
        }
    }

    /// Bytes of a body: what is left of the data, and whether the message ended.
    pub(crate) fn body<'a>(&mut self, data: &'a [u8]) -> Result<(&'a [u8], bool), Pin> {
        if matches!(self.at, At::Body | At::ChunkData | At::UntilClose) {
            let (taken, ended) = self.advance(data.len() as u64);
            return Ok((&data[taken as usize..], ended));
        }
        let Cut { part, end, used } = self.cut(data)?;
        let rest = &data[used..];
        let ended = end == End::Line;
        let mut message_ended = false;
        match self.at {
            At::ChunkSize => {
                self.chunk_size(part)?;
                if ended && self.digits == 0 {
                    return Err(Pin::Unparsable);
                }
                if ended {
                    let size = self.number();
                    self.left = Loose::new(size);
                    (self.at, self.budget) = match size {
                        0 => (At::Trailers, HEAD_BYTES_MAX),
                        _ => (At::ChunkData, CHUNK_LINE_BYTES_MAX),
                    };
                    self.clear_number();
                    self.stage = Stage::First;
                }
            }
            At::ChunkEnd if !part.is_empty() => return Err(Pin::Unparsable),
            At::ChunkEnd if ended => {
                self.at = At::ChunkSize;
                self.budget = CHUNK_LINE_BYTES_MAX;
            }
            At::Trailers => {
                message_ended = ended && part.is_empty() && self.stage == Stage::First;
                let begun = !ended && (!part.is_empty() || self.stage == Stage::Rest);
                self.head.set(Head::ODD, self.head.says(Head::ODD) || !part.is_empty());
                self.stage = if begun { Stage::Rest } else { Stage::First };
            }
            _ => {}
        }
        match end {
            End::BareLf | End::BareCr => Err(Pin::Unparsable),
            End::Open | End::Line => Ok((rest, message_ended)),
        }
    }

    /// Digits, then blanks, then extensions behind a semicolon, which nobody uses.
    fn chunk_size(&mut self, part: &[u8]) -> Result<(), Pin> {
        for byte in part {
            if self.stage == Stage::Rest {
                break;
            }
            let digit = match byte {
                b'0'..=b'9' => byte - b'0',
                b'a'..=b'f' => byte - b'a' + 10,
                b'A'..=b'F' => byte - b'A' + 10,
                b' ' | b'\t' if self.digits > 0 => {
                    self.head.set(Head::CLOSED, true);
                    self.head.set(Head::ODD, true);
                    continue;
                }
                b';' if self.digits > 0 => {
                    self.stage = Stage::Rest;
                    self.head.set(Head::ODD, true);
                    continue;
                }
                _ => return Err(Pin::Unparsable),
            };
            if self.head.says(Head::CLOSED) || self.digits == CHUNK_DIGITS_MAX {
                return Err(Pin::Unparsable);
            }
            self.add_digit(16, digit);
        }
        Ok(())
    }
}
