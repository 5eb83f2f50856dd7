//! Where the time of a request goes: what is noted on its way, and the client that notes its part.
//!
//! All times are nanoseconds of CLOCK_REALTIME. Client, node and server run on one machine and that
//! clock is not per namespace, so times from anywhere on the way may be subtracted. A request has a
//! number, which its target ([`target`]) and the answer's body carry: by it the notes of client,
//! server and [tap](crate::Tap) are matched.

use crate::{
    clients::http::Head, node::netns::Namespace, servers::nginx::echo_body,
    timing::timestamps::now_ns, work::exchange::Verdict,
};
use anyhow::{Context, Result, bail, ensure};
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    ops::Range,
    time::Duration,
};

/// What the target of a numbered request begins with.
pub(crate) const PREFIX: &str = "/phase/";
/// Longer than any stall that the kernel's TCP recovers from by itself in this lab.
const IO_TIMEOUT: Duration = Duration::from_secs(30);
/// An answer has about 150 bytes.
const ANSWER_BYTES_MAX: usize = 4096;

/// The client's part of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientStamps {
    /// The request's number.
    pub request: u64,
    /// Just before the request is sent.
    pub sent_ns: i64,
    /// The whole answer was read.
    pub received_ns: i64,
}

/// What a server did before a connection's first request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// `epoll_wait` returned for the listener.
    pub woken_ns: i64,
    /// `accept4` returned.
    pub accepted_ns: i64,
    /// `epoll_ctl` returned for the new connection.
    pub registered_ns: i64,
}

/// The server's part of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerStamps {
    /// The request's number.
    pub request: u64,
    /// The request's bytes reached the pod's interface. Absent if the kernel gave no time.
    pub arrived_ns: Option<i64>,
    /// For the first request of a connection: how the connection came.
    pub accepted: Option<Accepted>,
    /// `epoll_wait` returned for the connection.
    pub readable_ns: i64,
    /// The request was read.
    pub read_ns: i64,
    /// Sending the answer returned.
    pub sent_ns: i64,
}

/// Target of a numbered request.
#[must_use]
pub fn target(request: u64) -> String {
    format!("{PREFIX}{request}")
}

/// The number in the first numbered target in `bytes`.
pub(crate) fn number(bytes: &[u8]) -> Option<u64> {
    let prefix = PREFIX.as_bytes();
    let start = bytes.windows(prefix.len()).position(|w| w == prefix)? + prefix.len();
    let digits = bytes[start..].iter().take_while(|b| b.is_ascii_digit()).count();
    let digits = &bytes[start..start + digits];
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// One keep-alive connection that sends one numbered request at a time and checks each answer.
#[derive(Debug)]
pub struct PhaseClient {
    stream: TcpStream,
    address: SocketAddr,
}

impl PhaseClient {
    /// Connects from inside `namespace`.
    pub fn connect(namespace: &Namespace, address: SocketAddr) -> Result<Self> {
        let stream = namespace.connect(address, IO_TIMEOUT)?;
        Ok(Self { stream, address })
    }

    /// Sends the requests with these numbers, each once the answer to the one before is there.
    pub fn run(&mut self, requests: Range<u64>) -> Result<Vec<ClientStamps>> {
        let mut stamps = Vec::with_capacity(usize::try_from(requests.end - requests.start)?);
        for request in requests {
            stamps.push(
                self.one(request)
                    .with_context(|| format!("request {request} to {}", self.address))?,
            );
        }
        Ok(stamps)
    }

    fn one(&mut self, request: u64) -> Result<ClientStamps> {
        let target = target(request);
        let head = format!("GET {target} HTTP/1.1\r\nHost: {}\r\n\r\n", self.address);
        let mut answer = [0; ANSWER_BYTES_MAX];
        let mut length = 0;
        let sent_ns = now_ns();
        self.stream.write_all(head.as_bytes())?;
        loop {
            let n = self.stream.read(&mut answer[length..])?;
            let received_ns = now_ns();
            ensure!(n > 0, "the connection was closed after {length} bytes");
            length += n;
            match Head::checked(&answer[..length], 200, echo_body(&target, "").as_bytes()) {
                Ok(head) if head.bytes() == length => {}
                Err(Verdict::More) => continue,
                _ => bail!("{:?}", String::from_utf8_lossy(&answer[..length])),
            }
            return Ok(ClientStamps { request, sent_ns, received_ns });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_read_back_from_a_frame_and_from_nothing_else() {
        let frame =
            [&[0u8; 66][..], format!("GET {} HTTP/1.1\r\n", target(1234)).as_bytes()].concat();
        assert_eq!(number(&frame), Some(1234));
        let text = echo_body(&target(u64::MAX), "");
        assert_eq!(number(text.as_bytes()), Some(u64::MAX));
        for none in ["", "GET /", "/phase", "/phase/", "/phase/x1", "/phase/99999999999999999999"] {
            assert_eq!(number(none.as_bytes()), None, "{none}");
        }
    }
}
