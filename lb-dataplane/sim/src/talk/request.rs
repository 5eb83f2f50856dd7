//! Reads requests, as a server does, and what goes in front of them.
//!
//! Owns what has come of a request so far. Checks every byte of it; never answers.

use super::{HEAD_MAX, Language, Method, Request, Tag};
use std::net::{IpAddr, SocketAddr};

/// What a header of the PROXY protocol begins with, version 2, command PROXY.
const PROXY: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21";
/// Up to its length.
const PROXY_FIXED: usize = 16;

/// Reads requests, as a server does.
pub struct RequestReader {
    language: Language,
    bytes: Vec<u8>,
}

impl RequestReader {
    /// One connection's.
    #[must_use]
    pub fn new(language: Language) -> Self {
        Self { language, bytes: Vec::new() }
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

    /// The client that the header of the PROXY protocol names, once it is there.
    ///
    /// # Errors
    /// There is none.
    pub fn take_header(&mut self) -> Result<Option<SocketAddr>, String> {
        let bytes = &self.bytes;
        let there = bytes.len().min(PROXY.len());
        if bytes[..there] != PROXY[..there] {
            return Err("no header in front of the first request".to_owned());
        }
        let Some(&[a, b]) = bytes.get(PROXY_FIXED - 2..PROXY_FIXED) else {
            return Ok(None);
        };
        let end = PROXY_FIXED + usize::from(u16::from_be_bytes([a, b]));
        let Some(behind) = bytes.get(PROXY_FIXED..end) else {
            return Ok(None);
        };
        let (address, port_at) = match bytes[PROXY_FIXED - 3] {
            0x11 => (behind.first_chunk().copied().map(<[u8; 4]>::into), 8),
            _ => (behind.first_chunk().copied().map(<[u8; 16]>::into), 32),
        };
        let port = behind.get(port_at..port_at + 2);
        let client = address.zip(port).map(|(ip, port): (IpAddr, _)| {
            SocketAddr::new(ip, u16::from_be_bytes([port[0], port[1]]))
        });
        let client = client.ok_or("a header without addresses")?;
        self.bytes.drain(..end);
        Ok(Some(client))
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
                    return if shown.len() < HEAD_MAX { Ok(None) } else { strange() };
                };
                http_head(head)
            }
            Language::Resp => {
                // The head ends in front of a body: at most seven lines, and `SELECT` has five.
                let lines: Vec<&str> = text.split("\r\n").collect();
                let needed = if lines[0] == "*3" { 6 } else { 5 };
                if lines.len() <= needed {
                    return if shown.len() < HEAD_MAX { Ok(None) } else { strange() };
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
    Some(Request { tag, method, body: length.map_or(Some(0), |n| n.parse().ok())?, answer, db })
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
    Some(Request { tag, method, body, answer, db })
}

fn read_key(key: &str) -> Option<(Tag, u32, u8)> {
    let mut parts = key.split('/');
    let conn = parts.next()?.parse().ok()?;
    let number = parts.next()?.parse().ok()?;
    let answer = parts.next()?.parse().ok()?;
    let db = parts.next()?.parse().ok()?;
    parts.next().is_none().then_some((Tag { conn, number }, answer, db))
}
