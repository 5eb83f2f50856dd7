//! What clients and servers say to each other: requests, responses, and the check of every byte of
//! both.
//!
//! Owns two protocols (HTTP/1.1 and RESP) with the same content: each request has a tag of its own,
//! and each response is a function of its request and of the execution that made it. It never
//! decides who says what when.

mod request;
mod response;

pub use request::RequestReader;
pub use response::{Progress, ResponseReader};

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

#[cfg(test)]
mod tests;
