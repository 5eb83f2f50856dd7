//! Requests and the heads of answers, as much of HTTP/1.1 as a file server needs. Owns no I/O.

use std::path::{Component, Path};

/// A request's head.
pub const HEAD_BYTES_MAX: usize = 16 << 10;

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub method: Method,
    /// Below the directory.
    pub file: String,
    pub length: Option<u64>,
    pub keep_alive: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Get,
    Put,
    Other,
}

/// What the first bytes of a request are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Head {
    /// There is more to come.
    Short,
    /// The head takes so many bytes.
    Whole(Request, usize),
    /// No request that this server knows: why.
    Bad(&'static str),
}

pub fn parse(bytes: &[u8]) -> Head {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        return match bytes.len() {
            ..HEAD_BYTES_MAX => Head::Short,
            _ => Head::Bad("the head is too long"),
        };
    };
    let Ok(head) = std::str::from_utf8(&bytes[..end]) else {
        return Head::Bad("the head is no text");
    };
    let mut lines = head.split("\r\n");
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (Some(method), Some(target), Some("HTTP/1.1"), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Head::Bad("the first line is none of HTTP/1.1");
    };
    let Some(file) = target.strip_prefix('/').filter(|file| is_below(file)) else {
        return Head::Bad("the path leads out of the directory");
    };
    let mut request = Request {
        method: match method {
            "GET" => Method::Get,
            "PUT" => Method::Put,
            _ => Method::Other,
        },
        file: file.to_owned(),
        length: None,
        keep_alive: true,
    };
    for line in lines {
        let Some((name, value)) = line.split_once(':') else {
            return Head::Bad("a line of the head has no colon");
        };
        let value = value.trim();
        if name.eq_ignore_ascii_case("content-length") {
            match value.parse() {
                Ok(length) => request.length = Some(length),
                Err(_) => return Head::Bad("Content-Length is no number"),
            }
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            return Head::Bad("Transfer-Encoding is not known here");
        } else if name.eq_ignore_ascii_case("connection") {
            request.keep_alive = !value.eq_ignore_ascii_case("close");
        }
    }
    Head::Whole(request, end + 4)
}

/// Whether a path stays below where it begins.
pub fn is_below(file: &str) -> bool {
    let mut parts = Path::new(file).components();
    !file.is_empty() && parts.all(|part| matches!(part, Component::Normal(_)))
}

/// The head of an answer.
pub fn head(status: &str, length: u64, keep_alive: bool) -> Vec<u8> {
    let connection = if keep_alive { "keep-alive" } else { "close" };
    format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: {connection}\r\n\r\n")
        .into_bytes()
}

/// An answer with a line of text.
pub fn answer(status: &str, text: &str, keep_alive: bool) -> Vec<u8> {
    let mut out = head(status, text.len() as u64 + 1, keep_alive);
    out.extend(text.bytes());
    out.push(b'\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read() {
        let text =
            b"PUT /a/b HTTP/1.1\r\nHost: x\r\ncontent-length: 7\r\nConnection: close\r\n\r\nrest";
        let request =
            Request { method: Method::Put, file: "a/b".into(), length: Some(7), keep_alive: false };
        assert_eq!(parse(text), Head::Whole(request, text.len() - 4));
        for end in 0..text.len() - 4 {
            assert_eq!(parse(&text[..end]), Head::Short);
        }
    }

    #[test]
    fn what_is_none_is_refused() {
        for text in [
            "GET /../x HTTP/1.1\r\n\r\n",
            "GET //x HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\n\r\n",
            "GET /x HTTP/1.0\r\n\r\n",
            "GET /x\r\n\r\n",
            "PUT /x HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
            "PUT /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
            "PUT /x HTTP/1.1\r\nword\r\n\r\n",
        ] {
            assert!(matches!(parse(text.as_bytes()), Head::Bad(_)), "{text}");
        }
        let long = vec![b'x'; HEAD_BYTES_MAX];
        assert!(matches!(parse(&long), Head::Bad(_)));
    }
}
