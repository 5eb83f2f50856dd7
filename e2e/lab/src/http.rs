//! A small blocking HTTP/1.1 client: one connection, one request at a time, everything checked by the caller.
//!
//! Understands status line, headers and `Content-Length`; refuses what it does not understand (chunked bodies).

use crate::netns::Namespace;
use anyhow::{Context, Result, bail, ensure};
use std::{
    io::{Read, Write},
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
        Ok(Some(Self {
            status,
            pod,
            head_bytes: end + 4,
            body_bytes,
            text,
        }))
    }
}

impl Head<'_> {
    /// Whether the server closes the connection behind this response.
    pub(crate) fn closes(&self) -> bool {
        headers(self.text)
            .any(|(n, v)| n.eq_ignore_ascii_case("connection") && v.eq_ignore_ascii_case("close"))
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
    ///
    /// # Errors
    /// If nothing accepts there.
    pub fn connect(namespace: &Namespace, address: SocketAddr) -> Result<Self> {
        let stream = namespace
            .run(|| TcpStream::connect_timeout(&address, IO_TIMEOUT))?
            .with_context(|| format!("connecting to {address}"))?;
        Self::over(stream)
    }

    /// Speaks over a connection that the caller made (with socket options of its own).
    ///
    /// # Errors
    /// If the socket is not connected.
    pub fn over(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(IO_TIMEOUT))?;
        stream.set_write_timeout(Some(IO_TIMEOUT))?;
        let host = stream.peer_addr()?.to_string();
        Ok(Self {
            stream,
            host,
            left: Vec::new(),
        })
    }

    /// The connection.
    #[must_use]
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// GET without further headers.
    ///
    /// # Errors
    /// As [`HttpClient::request`].
    pub fn get(&mut self, target: &str) -> Result<Response> {
        self.request("GET", target, &[], &[])
    }

    /// One request and its whole response.
    ///
    /// # Errors
    /// If the connection breaks or what comes is not an HTTP response.
    pub fn request(
        &mut self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Response> {
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
        self.stream.write_all(&bytes).context("sending a request")?;
        self.response()
    }

    fn response(&mut self) -> Result<Response> {
        let mut chunk = vec![0; 64 * 1024];
        loop {
            if let Some(head) = Head::parse(&self.left)? {
                let total = head.head_bytes + head.body_bytes;
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
            ensure!(
                n > 0,
                "the connection was closed after {} bytes of a response",
                self.left.len()
            );
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
}
