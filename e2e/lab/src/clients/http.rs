//! A small blocking HTTP/1.1 client: one connection, one request at a time, everything checked by
//! the caller.
//!
//! Understands status line, headers and `Content-Length`; refuses what it does not understand
//! (chunked bodies).

use crate::{node::netns::Namespace, work::exchange::Verdict};
use anyhow::{Context, Result, bail, ensure};
use std::{
    io::{self, ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

/// Longer than any stall that the kernel's TCP recovers from by itself in this lab.
const IO_TIMEOUT: Duration = Duration::from_secs(30);
/// Headers beyond this are not from a server of this lab.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// A response.
#[derive(Clone, Debug)]
pub struct Response {
    /// Status code.
    pub status: u16,
    /// Header names (lower case) and values.
    pub headers: Vec<(String, String)>,
    /// The whole body.
    pub body: Vec<u8>,
}

impl Response {
    /// A header's value.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(n, _)| n.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    /// The pod that answered.
    #[must_use]
    pub fn pod(&self) -> Option<&str> {
        self.header("x-pod")
    }
}

/// The head of a response and the length of what belongs to it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Head<'a> {
    pub(crate) status: u16,
    pub(crate) pod: Option<&'a str>,
    /// Bytes up to the body.
    pub(crate) head_bytes: usize,
    pub(crate) body_bytes: usize,
    text: &'a str,
}

impl<'a> Head<'a> {
    /// Reads it off the start of `bytes`; `None` while it is not complete.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Option<Self>> {
        let Some(end) = bytes.windows(4).position(|w| w == b"\r\n\r\n") else {
            ensure!(bytes.len() <= HEAD_BYTES_MAX, "response head without end");
            return Ok(None);
        };
        let text = std::str::from_utf8(&bytes[..end]).context("response head is not text")?;
        let mut lines = text.split("\r\n");
        let status = lines
            .next()
            .and_then(|l| l.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok())
            .with_context(|| format!("not a status line: {:?}", text.lines().next()))?;
        let (mut pod, mut body_bytes) = (None, None);
        for (name, value) in headers(text) {
            if name.eq_ignore_ascii_case("content-length") {
                body_bytes = Some(value.parse().context("Content-Length")?);
            } else if name.eq_ignore_ascii_case("x-pod") {
                pod = Some(value);
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                bail!("unexpected Transfer-Encoding: {value}");
            }
        }
        // 204 and 304 have no body and no length.
        let body_bytes = match body_bytes {
            Some(n) => n,
            None if matches!(status, 204 | 304) => 0,
            None => bail!("response without Content-Length"),
        };
        Ok(Some(Self { status, pod, head_bytes: end + 4, body_bytes, text }))
    }
}

impl<'a> Head<'a> {
    /// Of a response that is whole, with this status and this body; anything else is what an
    /// exchange says of it.
    pub(crate) fn checked(bytes: &'a [u8], status: u16, body: &[u8]) -> Result<Self, Verdict> {
        let head = match Self::parse(bytes) {
            Ok(Some(head)) => head,
            Ok(None) => return Err(Verdict::More),
            Err(_) => return Err(Verdict::Wrong("malformed")),
        };
        if head.status != status {
            return Err(Verdict::Wrong("status"));
        }
        if head.body_bytes != body.len() {
            return Err(Verdict::Wrong("body"));
        }
        match bytes.get(head.head_bytes..head.bytes()) {
            None => Err(Verdict::More),
            Some(found) if found != body => Err(Verdict::Wrong("body")),
            Some(_) => Ok(head),
        }
    }

    /// Bytes of the whole response.
    pub(crate) fn bytes(&self) -> usize {
        self.head_bytes + self.body_bytes
    }

    /// That its response is right, and whether it is the connection's last.
    pub(crate) fn verdict(&self) -> Verdict {
        if self.closes() { Verdict::Last(self.bytes()) } else { Verdict::Right(self.bytes()) }
    }

    /// Whether the server closes the connection behind this response.
    fn closes(&self) -> bool {
        headers(self.text)
            .any(|(n, v)| n.eq_ignore_ascii_case("connection") && v.eq_ignore_ascii_case("close"))
    }
}

/// A request, as the lab's own servers take them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// Its method.
    pub method: &'a str,
    /// Its target, which begins with `/`.
    pub target: &'a str,
    /// Its body; empty without a `Content-Length`.
    pub body: &'a [u8],
    /// Bytes of all of it.
    pub bytes: usize,
    head: &'a str,
}

impl<'a> Request<'a> {
    /// Longer ones are refused.
    pub const BYTES_MAX: usize = 8 * 1024;

    /// Reads it off the start of `bytes`; `None` while it is not complete.
    ///
    /// # Errors
    /// It is none, or too long.
    pub fn parse(bytes: &'a [u8]) -> Result<Option<Self>> {
        let Some(end) = bytes.windows(4).position(|w| w == b"\r\n\r\n") else {
            ensure!(bytes.len() < Self::BYTES_MAX, "too long");
            return Ok(None);
        };
        let head = std::str::from_utf8(&bytes[..end])?;
        let line = head.split("\r\n").next().unwrap_or_default();
        let (method, target) = line
            .strip_suffix(" HTTP/1.1")
            .and_then(|line| line.split_once(' '))
            .filter(|(_, target)| target.starts_with('/') && !target.contains(' '))
            .context("not a request line")?;
        let length = headers(head).find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
        let length: usize = length.map_or(Ok(0), |(_, length)| length.parse())?;
        ensure!(length < Self::BYTES_MAX, "too long");
        let total = end + 4 + length;
        Ok(bytes.get(end + 4..total).map(|body| Self { method, target, body, bytes: total, head }))
    }

    /// The first value of a header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&'a str> {
        let mut all = headers(self.head);
        all.find_map(|(n, value)| n.eq_ignore_ascii_case(name).then_some(value))
    }
}

fn headers(head: &str) -> impl Iterator<Item = (&str, &str)> {
    head.split("\r\n")
        .skip(1)
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name, value.trim()))
}

/// One persistent connection.
#[derive(Debug)]
pub struct HttpClient {
    stream: TcpStream,
    host: String,
    left: Vec<u8>,
}

impl HttpClient {
    /// Connects from inside `namespace`. The client may then be used on any thread.
    pub fn connect(namespace: &Namespace, address: SocketAddr) -> Result<Self> {
        let stream = namespace.connect(address, IO_TIMEOUT)?;
        Self::over(stream)
    }

    /// Speaks over a connection that the caller made (with socket options of its own).
    pub fn over(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(IO_TIMEOUT))?;
        stream.set_write_timeout(Some(IO_TIMEOUT))?;
        let host = stream.peer_addr()?.to_string();
        Ok(Self { stream, host, left: Vec::new() })
    }

    /// The connection.
    #[must_use]
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Whether bytes came behind the last response.
    pub(crate) fn has_more(&self) -> bool {
        !self.left.is_empty()
    }

    /// GET without further headers.
    pub fn get(&mut self, target: &str) -> Result<Response> {
        self.request("GET", target, &[], &[])
    }

    /// One request and its whole response.
    pub fn request(
        &mut self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Response> {
        self.send(method, target, headers, body)?;
        self.response()
    }

    pub(crate) fn send(
        &mut self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<()> {
        let mut head = format!("{method} {target} HTTP/1.1\r\nHost: {}\r\n", self.host);
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        if !body.is_empty() || method == "PUT" || method == "POST" {
            head += &format!("Content-Length: {}\r\n", body.len());
        }
        head += "\r\n";
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(body);
        self.stream.write_all(&bytes).context("sending a request")
    }

    pub(crate) fn response(&mut self) -> Result<Response> {
        let mut chunk = vec![0; 64 * 1024];
        loop {
            if let Some(head) = Head::parse(&self.left)? {
                let total = head.bytes();
                if self.left.len() >= total {
                    let response = Response {
                        status: head.status,
                        headers: self::headers(head.text)
                            .map(|(n, v)| (n.to_ascii_lowercase(), v.to_owned()))
                            .collect(),
                        body: self.left[head.head_bytes..total].to_vec(),
                    };
                    self.left.drain(..total);
                    return Ok(response);
                }
            }
            let n = self.stream.read(&mut chunk).context("reading a response")?;
            if n == 0 {
                let came = self.left.len();
                return Err(io::Error::from(ErrorKind::UnexpectedEof)).with_context(|| {
                    format!("the connection was closed after {came} bytes of a response")
                });
            }
            self.left.extend_from_slice(&chunk[..n]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_and_what_is_not_understood_is_refused() {
        let text = b"HTTP/1.1 200 OK\r\nX-Pod: pod-b\r\nContent-Length: 5\r\n\r\nhello";
        let head = Head::parse(text).unwrap().unwrap();
        assert_eq!(
            (head.status, head.pod, head.head_bytes, head.body_bytes),
            (200, Some("pod-b"), text.len() - 5, 5)
        );
        for cut in 0..text.len() - 5 {
            assert_eq!(Head::parse(&text[..cut]).unwrap(), None);
        }
        for bad in [
            &b"SSH-2.0\r\n\r\n"[..],
            b"HTTP/1.1 2x0 OK\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        ] {
            assert!(Head::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_whole_request_is_read_a_part_waits_and_all_else_is_refused() {
        let text = b"POST /count HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc";
        let request = Request {
            method: "POST",
            target: "/count",
            body: b"abc",
            bytes: text.len(),
            head: "POST /count HTTP/1.1\r\nHost: x\r\nContent-Length: 3",
        };
        assert_eq!(request.header("host"), Some("x"));
        assert_eq!(request.header("post /count http/1.1"), None);
        assert_eq!(Request::parse(text).unwrap(), Some(request));
        for cut in 0..text.len() {
            assert_eq!(Request::parse(&text[..cut]).unwrap(), None, "{cut}");
        }
        let two = b"GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n";
        assert_eq!(Request::parse(two).unwrap().unwrap().bytes, two.len() / 2);
        let mut long = b"GET /".to_vec();
        long.resize(Request::BYTES_MAX, b'x');
        for bad in [
            &b"GET / HTTP/1.0\r\n\r\n"[..],
            b"GET x HTTP/1.1\r\n\r\n",
            b"GET /a b HTTP/1.1\r\n\r\n",
            b"GET /\xff HTTP/1.1\r\n\r\n",
            b"POST /count HTTP/1.1\r\nContent-Length: x\r\n\r\n",
            b"POST /count HTTP/1.1\r\nContent-Length: 8192\r\n\r\n",
            &long,
        ] {
            assert!(Request::parse(bad).is_err(), "{bad:?}");
        }
    }
}
