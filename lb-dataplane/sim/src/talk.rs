//! What clients and servers say to each other: requests, responses, and the check of every byte of both.
//!
//! Owns two protocols (HTTP/1.1 and RESP) with the same content: each request has a tag of its own, and each response
//! is a function of its request and of the execution that made it. It never decides who says what when.

use baton_api::Protocol;

/// Bytes in front of a response's filling: which execution of which request it is.
const IDENTITY_BYTES: usize = 20;
/// Longest head that a parser takes.
const HEAD_MAX: usize = 400;

/// One request among all of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag {
    /// The connection.
    pub conn: u32,
    /// Its number on the connection.
    pub number: u16,
}

impl std::fmt::Display for Tag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.conn, self.number)
    }
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// `GET`, in both protocols.
    Get,
    /// HTTP `PUT`: idempotent, with a body.
    Put,
    /// HTTP `POST`, RESP `SET`: not idempotent to the guards, with a body.
    Post,
    /// RESP `SELECT`: another database for the connection.
    Select,
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its name.
    pub tag: Tag,
    /// What it does.
    pub method: Method,
    /// Bytes of its body.
    pub body: u32,
    /// Bytes of filling in its response.
    pub answer: u32,
    /// The database that it is for; with [`Method::Select`] the one it selects.
    pub db: u8,
}

/// Which of the two protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// HTTP/1.1.
    Http,
    /// RESP2.
    Resp,
}

impl Language {
    /// What is spoken under a policy's guard.
    #[must_use]
    pub fn of(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Resp => Language::Resp,
            _ => Language::Http,
        }
    }
}

fn mixed(seed: u64) -> u64 {
    let z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn filling(seed: u64, at: usize) -> u8 {
    // No line ends and no other bytes that a protocol knows.
    b'a' + (mixed(seed ^ (at as u64 / 8)).to_le_bytes()[at % 8] & 15)
}

fn fill(to: &mut Vec<u8>, seed: u64, len: u32) {
    to.reserve(len as usize);
    for block in 0..len.div_ceil(8) {
        let bytes = mixed(seed ^ u64::from(block)).to_le_bytes();
        let n = (len - block * 8).min(8) as usize;
        to.extend(bytes[..n].iter().map(|b| b'a' + (b & 15)));
    }
}

fn body_seed(tag: Tag) -> u64 {
    mixed(u64::from(tag.conn) << 16 | u64::from(tag.number))
}

fn answer_seed(execution: u32) -> u64 {
    mixed(u64::from(execution) << 33 | 1)
}

impl Request {
    fn key(&self) -> String {
        let Tag { conn, number } = self.tag;
        format!("{conn}/{number}/{}/{}", self.answer, self.db)
    }

    /// The request as bytes.
    #[must_use]
    pub fn bytes(&self, language: Language) -> Vec<u8> {
        let key = self.key();
        let mut bytes = match (language, self.method) {
            (Language::Http, method) => {
                let name = match method {
                    Method::Get | Method::Select => "GET",
                    Method::Put => "PUT",
                    Method::Post => "POST",
                };
                let length = match self.body {
                    0 => String::new(),
                    n => format!("Content-Length: {n}\r\n"),
                };
                format!("{name} /{key} HTTP/1.1\r\nHost: sim\r\n{length}\r\n")
            }
            (Language::Resp, Method::Get) => {
                format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len())
            }
            (Language::Resp, Method::Select) => {
                format!("*2\r\n$6\r\nSELECT\r\n$1\r\n{}\r\n", self.db)
            }
            (Language::Resp, _) => {
                let (key_len, body) = (key.len(), self.body);
                format!("*3\r\n$3\r\nSET\r\n${key_len}\r\n{key}\r\n${body}\r\n")
            }
        }
        .into_bytes();
        fill(&mut bytes, body_seed(self.tag), self.body);
        if language == Language::Resp && !matches!(self.method, Method::Get | Method::Select) {
            bytes.extend_from_slice(b"\r\n");
        }
        bytes
    }

    /// Whether executing it twice does what executing it once does, as the guards see it.
    #[must_use]
    pub fn is_idempotent(&self) -> bool {
        self.method != Method::Post
    }

    /// The response that an execution gives, as bytes.
    #[must_use]
    pub fn response(&self, language: Language, execution: u32, closes: bool) -> Vec<u8> {
        if language == Language::Resp && self.method == Method::Select {
            return b"+OK\r\n".to_vec();
        }
        let payload = IDENTITY_BYTES as u32 + self.answer;
        let mut bytes = match language {
            Language::Http => {
                let close = if closes { "Connection: close\r\n" } else { "" };
                format!("HTTP/1.1 200 OK\r\nContent-Length: {payload}\r\n{close}\r\n")
            }
            Language::Resp => format!("${payload}\r\n"),
        }
        .into_bytes();
        let Tag { conn, number } = self.tag;
        bytes.extend_from_slice(format!("{execution:08x}{conn:08x}{number:04x}").as_bytes());
        fill(&mut bytes, answer_seed(execution), self.answer);
        if language == Language::Resp {
            bytes.extend_from_slice(b"\r\n");
        }
        bytes
    }
}

/// Reads requests, as a server does.
pub struct RequestReader {
    language: Language,
    bytes: Vec<u8>,
}

impl RequestReader {
    /// One connection's.
    #[must_use]
    pub fn new(language: Language) -> Self {
        Self {
            language,
            bytes: Vec::new(),
        }
    }

    /// Where to put bytes that were read.
    pub fn room(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Whether part of a request is there.
    #[must_use]
    pub fn is_within(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// The next whole request, if it is there.
    ///
    /// # Errors
    /// Bytes that no client ever sent in this order.
    pub fn take(&mut self) -> Result<Option<Request>, String> {
        let Some((request, len)) = self.head()? else {
            return Ok(None);
        };
        if self.bytes.len() < len {
            return Ok(None);
        }
        let expected = request.bytes(self.language);
        if self.bytes[..len] != expected {
            let at = self.bytes.iter().zip(&expected).position(|(a, b)| a != b);
            return Err(format!("request {}: wrong byte at {at:?}", request.tag));
        }
        self.bytes.drain(..len);
        Ok(Some(request))
    }

    /// The request that begins, and its length in bytes.
    fn head(&self) -> Result<Option<(Request, usize)>, String> {
        let strange = || {
            let shown = &self.bytes[..self.bytes.len().min(60)];
            Err(format!("no request: {:?}", String::from_utf8_lossy(shown)))
        };
        let shown = &self.bytes[..self.bytes.len().min(HEAD_MAX)];
        let Ok(text) = std::str::from_utf8(shown) else {
            return strange();
        };
        let parsed = match self.language {
            Language::Http => {
                let Some((head, _)) = text.split_once("\r\n\r\n") else {
                    return if shown.len() < HEAD_MAX {
                        Ok(None)
                    } else {
                        strange()
                    };
                };
                http_head(head)
            }
            Language::Resp => {
                // The head ends in front of a body: at most seven lines, and `SELECT` has five.
                let lines: Vec<&str> = text.split("\r\n").collect();
                let needed = if lines[0] == "*3" { 6 } else { 5 };
                if lines.len() <= needed {
                    return if shown.len() < HEAD_MAX {
                        Ok(None)
                    } else {
                        strange()
                    };
                }
                resp_head(&lines)
            }
        };
        let Some(request) = parsed else {
            return strange();
        };
        let len = request.bytes(self.language).len();
        Ok(Some((request, len)))
    }
}

fn http_head(head: &str) -> Option<Request> {
    let mut lines = head.split("\r\n");
    let mut words = lines.next()?.split(' ');
    let method = match words.next()? {
        "GET" => Method::Get,
        "PUT" => Method::Put,
        "POST" => Method::Post,
        _ => return None,
    };
    let (tag, answer, db) = read_key(words.next()?.strip_prefix('/')?)?;
    let length = lines.find_map(|l| l.strip_prefix("Content-Length: "));
    Some(Request {
        tag,
        method,
        body: length.map_or(Some(0), |n| n.parse().ok())?,
        answer,
        db,
    })
}

fn resp_head(lines: &[&str]) -> Option<Request> {
    if lines[2] == "SELECT" {
        return Some(Request {
            tag: Tag { conn: 0, number: 0 },
            method: Method::Select,
            body: 0,
            answer: 0,
            db: lines[4].parse().ok()?,
        });
    }
    let (tag, answer, db) = read_key(lines[4])?;
    let (method, body) = match lines[2] {
        "GET" => (Method::Get, 0),
        "SET" => (Method::Post, lines[5].strip_prefix('$')?.parse().ok()?),
        _ => return None,
    };
    Some(Request {
        tag,
        method,
        body,
        answer,
        db,
    })
}

fn read_key(key: &str) -> Option<(Tag, u32, u8)> {
    let mut parts = key.split('/');
    let conn = parts.next()?.parse().ok()?;
    let number = parts.next()?.parse().ok()?;
    let answer = parts.next()?.parse().ok()?;
    let db = parts.next()?.parse().ok()?;
    parts
        .next()
        .is_none()
        .then_some((Tag { conn, number }, answer, db))
}

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
        Self {
            language,
            head: Vec::new(),
            payload: None,
            identity: Vec::new(),
            closes: false,
        }
    }

    /// Whether bytes of a response that is not complete were read.
    #[must_use]
    pub fn is_within(&self) -> bool {
        !self.head.is_empty()
    }

    /// Reads from the front of `bytes` what belongs to the response to `request`; how many bytes that were.
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
                    let whole = Progress::Whole {
                        execution: None,
                        closes: false,
                    };
                    return Ok((used, whole));
                }
                self.closes = head.contains("Connection: close\r\n");
                let expected = IDENTITY_BYTES as u32 + request.answer;
                let close = if self.closes {
                    "Connection: close\r\n"
                } else {
                    ""
                };
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
        let trailer = if self.language == Language::Resp {
            2
        } else {
            0
        };
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
                return wrong(format!(
                    "execution {execution}, byte {at} of {len} is wrong"
                ));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(language: Language) -> Vec<Request> {
        let methods: &[Method] = match language {
            Language::Http => &[Method::Get, Method::Put, Method::Post],
            Language::Resp => &[Method::Get, Method::Post],
        };
        let mut all = Vec::new();
        for (n, (body, answer)) in [(1, 0), (9, 1), (3_000, 30_000)].into_iter().enumerate() {
            for method in methods {
                let tag = Tag {
                    conn: 12,
                    number: n as u16,
                };
                let body = if *method == Method::Get { 0 } else { body };
                all.push(Request {
                    tag,
                    method: *method,
                    body,
                    answer,
                    db: 2,
                });
            }
        }
        all
    }

    #[test]
    fn what_is_written_is_read_in_any_pieces() {
        for language in [Language::Http, Language::Resp] {
            for request in requests(language) {
                for piece in [1, 7, 1_000, 100_000] {
                    let mut reader = RequestReader::new(language);
                    let bytes = request.bytes(language);
                    let mut read = None;
                    for chunk in bytes.chunks(piece) {
                        assert_eq!(read, None);
                        reader.room().extend_from_slice(chunk);
                        read = reader.take().expect("its own bytes");
                    }
                    assert_eq!(read, Some(request));
                    assert!(!reader.is_within());

                    let mut reader = ResponseReader::new(language);
                    let bytes = request.response(language, 77, false);
                    let mut progress = Progress::Partly;
                    for chunk in bytes.chunks(piece) {
                        assert_eq!(progress, Progress::Partly);
                        let (used, now) = reader.read(&request, chunk).expect("its own bytes");
                        assert_eq!(used, chunk.len());
                        progress = now;
                    }
                    let execution = Some(77);
                    assert_eq!(
                        progress,
                        Progress::Whole {
                            execution,
                            closes: false
                        }
                    );
                }
            }
        }
    }

    #[test]
    fn every_wrong_byte_is_found() {
        let request = requests(Language::Http)[5];
        for language in [Language::Http, Language::Resp] {
            let mut right = request.response(language, 5, false);
            right.truncate(500);
            // The identity's first eight bytes name the execution, which only the world can judge.
            let head = right.iter().rposition(|b| *b == b'\n').expect("a head") + 1;
            for at in (0..head).chain(head + 8..right.len()) {
                let mut wrong = right.clone();
                wrong[at] ^= 1;
                let mut reader = ResponseReader::new(language);
                let read = reader.read(&request, &wrong);
                let open = read.as_ref().is_ok_and(|(_, p)| *p == Progress::Partly) && at < head;
                assert!(read.is_err() || open, "byte {at} of {language:?}: {read:?}");
            }
        }
    }
}
