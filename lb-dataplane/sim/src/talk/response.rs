//! Reads responses, as a client does, and checks every byte.
//!
//! Owns what has come of a response so far. Never asks for anything.

use super::{HEAD_MAX, IDENTITY_BYTES, Language, Method, Request, Tag, answer_seed, filling};

/// What a client has of the response to its oldest request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Not all of it yet.
    Partly,
    /// All of it.
    Whole {
        /// Which execution made it; `None` where the protocol has no room to say so.
        execution: Option<u32>,
        /// It says that the connection ends with it.
        closes: bool,
    },
}

/// Reads responses, as a client does, and checks every byte.
pub struct ResponseReader {
    language: Language,
    head: Vec<u8>,
    /// Execution, bytes of payload, and how many of them were read.
    payload: Option<(u32, usize, usize)>,
    identity: Vec<u8>,
    closes: bool,
}

impl ResponseReader {
    /// One connection's.
    #[must_use]
    pub fn new(language: Language) -> Self {
        Self { language, head: Vec::new(), payload: None, identity: Vec::new(), closes: false }
    }

    /// Whether bytes of a response that is not complete were read.
    #[must_use]
    pub fn is_within(&self) -> bool {
        !self.head.is_empty()
    }

    /// Bytes behind the payload.
    fn trailer(&self) -> usize {
        match self.language {
            Language::Http => 0,
            Language::Resp => 2,
        }
    }

    /// How many bytes are still to come of a response whose head was read.
    #[must_use]
    pub fn left(&self) -> Option<usize> {
        let (_, len, at) = self.payload?;
        Some(len + self.trailer() - at)
    }

    /// Reads from the front of `bytes` what belongs to the response to `request`; how many bytes
    /// that were.
    ///
    /// # Errors
    /// A byte that the response to this request cannot have.
    pub fn read(&mut self, request: &Request, bytes: &[u8]) -> Result<(usize, Progress), String> {
        let mut used = 0;
        let wrong = |what: String| Err(format!("response to {}: {what}", request.tag));
        while self.payload.is_none() {
            let Some(byte) = bytes.get(used) else {
                return Ok((used, Progress::Partly));
            };
            self.head.push(*byte);
            used += 1;
            let end: &[u8] = match self.language {
                Language::Http => b"\r\n\r\n",
                Language::Resp => b"\r\n",
            };
            if self.head.ends_with(end) {
                let head = String::from_utf8_lossy(&self.head).into_owned();
                if self.language == Language::Resp && request.method == Method::Select {
                    if head != "+OK\r\n" {
                        return wrong(format!("{head:?}"));
                    }
                    self.head.clear();
                    let whole = Progress::Whole { execution: None, closes: false };
                    return Ok((used, whole));
                }
                self.closes = head.contains("Connection: close\r\n");
                let expected = IDENTITY_BYTES as u32 + request.answer;
                let close = if self.closes { "Connection: close\r\n" } else { "" };
                let right = match self.language {
                    Language::Http => {
                        format!("HTTP/1.1 200 OK\r\nContent-Length: {expected}\r\n{close}\r\n")
                    }
                    Language::Resp => format!("${expected}\r\n"),
                };
                if head != right {
                    return wrong(format!("head {head:?}"));
                }
                self.payload = Some((0, expected as usize, 0));
            } else if self.head.len() > HEAD_MAX {
                return wrong("no end of its head".into());
            }
        }
        let trailer = self.trailer();
        while let Some((execution, len, at)) = &mut self.payload {
            let Some(byte) = bytes.get(used) else {
                return Ok((used, Progress::Partly));
            };
            used += 1;
            let right = if *at < IDENTITY_BYTES {
                self.identity.push(*byte);
                if self.identity.len() == IDENTITY_BYTES {
                    let text = String::from_utf8_lossy(&self.identity).into_owned();
                    let Tag { conn, number } = request.tag;
                    let number = u32::from_str_radix(&text[..8], 16)
                        .ok()
                        .filter(|_| text[8..] == format!("{conn:08x}{number:04x}"));
                    let Some(number) = number else {
                        return wrong(format!("identity {text:?}"));
                    };
                    *execution = number;
                }
                *byte
            } else if *at < *len {
                filling(answer_seed(*execution), *at - IDENTITY_BYTES)
            } else {
                b"\r\n"[*at - *len]
            };
            if *byte != right {
                let (execution, at) = (*execution, *at);
                return wrong(format!("execution {execution}, byte {at} of {len} is wrong"));
            }
            *at += 1;
            if *at == *len + trailer {
                let execution = Some(*execution);
                let closes = self.closes;
                *self = Self::new(self.language);
                return Ok((used, Progress::Whole { execution, closes }));
            }
        }
        Ok((used, Progress::Partly))
    }
}
