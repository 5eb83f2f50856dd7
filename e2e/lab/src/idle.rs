//! Many connections that do nothing, each of which has made a request and shall be able to make another one later.
//!
//! Blocking and in rounds: all connections of a batch send, then all receive. Every answer is checked byte by byte.

use crate::{http::Head, netns::Namespace, nginx::echo_body, stats::Counts};
use anyhow::{Context, Result};
use rustix::{
    io::Errno,
    net::{RecvFlags, recv},
    process::{Resource, Rlimit, getrlimit, setrlimit},
};
use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

/// Requests on the way at one time: what one nginx answers in some milliseconds.
const BATCH: usize = 256;
const IO_TIMEOUT: Duration = Duration::from_secs(10);
/// A response of `/echo/…` is some 250 bytes.
const RESPONSE_BYTES_MAX: usize = 4_096;

/// Lets this process, and what it starts from now on, hold so many files and sockets open.
///
/// # Errors
/// If that is beyond the process's hard limit, and raising it, which needs CAP_SYS_RESOURCE, is refused.
pub fn allow_files(count: u64) -> Result<()> {
    let now = getrlimit(Resource::Nofile);
    // `None` is no limit.
    let raised = |old: Option<u64>| old.map(|o| o.max(count));
    let limit = Rlimit {
        current: raised(now.current),
        maximum: raised(now.maximum),
    };
    setrlimit(Resource::Nofile, limit).with_context(|| {
        format!(
            "{count} open files are needed, {:?} are allowed: raise the hard limit (`ulimit -Hn`)",
            now.maximum
        )
    })
}

/// The connections.
#[derive(Debug)]
pub struct IdleConnections {
    streams: Vec<TcpStream>,
    host: String,
    run: u64,
    round: u64,
}

/// What one round of requests came to.
#[derive(Clone, Debug, Default)]
pub struct IdleRound {
    /// Right answers.
    pub right: u64,
    /// Errors by kind: `reset`, `closed`, `timeout`, `io`, `status`, `body`, `malformed`.
    pub errors: Counts,
    /// Right answers by pod.
    pub per_pod: Counts,
}

impl IdleConnections {
    /// Opens them; none has made a request yet.
    ///
    /// # Errors
    /// If one cannot be opened.
    pub fn open(namespace: &Namespace, address: SocketAddr, count: usize) -> Result<Self> {
        // One file each, and room for all else that this process holds.
        allow_files(count as u64 + 2_048)?;
        let streams = namespace.run(|| {
            (0..count)
                .map(|i| {
                    let stream = TcpStream::connect_timeout(&address, IO_TIMEOUT)
                        .with_context(|| format!("connection {i} of {count} to {address}"))?;
                    stream.set_nodelay(true)?;
                    stream.set_read_timeout(Some(IO_TIMEOUT))?;
                    Ok(stream)
                })
                .collect::<Result<Vec<_>>>()
        })??;
        Ok(Self {
            streams,
            host: address.to_string(),
            run: fastrand::u64(..),
            round: 0,
        })
    }

    /// Their number.
    #[must_use]
    pub fn count(&self) -> usize {
        self.streams.len()
    }

    /// One request on each, checked.
    pub fn round(&mut self) -> IdleRound {
        self.round += 1;
        let mut round = IdleRound::default();
        for (batch, streams) in self.streams.chunks(BATCH).enumerate() {
            let targets: Vec<_> = (0..streams.len())
                .map(|i| {
                    let number = batch * BATCH + i;
                    format!("/echo/{:x}/{}/{number}", self.run, self.round)
                })
                .collect();
            let sent: Vec<_> = streams
                .iter()
                .zip(&targets)
                .map(|(mut stream, target)| {
                    let request = format!("GET {target} HTTP/1.1\r\nHost: {}\r\n\r\n", self.host);
                    stream
                        .write_all(request.as_bytes())
                        .map_err(|e| kind_of(&e))
                })
                .collect();
            for ((stream, target), sent) in streams.iter().zip(&targets).zip(sent) {
                match sent.and_then(|()| answer(stream, target)) {
                    Ok(pod) => {
                        round.right += 1;
                        *round.per_pod.entry(pod).or_default() += 1;
                    }
                    Err(kind) => *round.errors.entry(kind.to_owned()).or_default() += 1,
                }
            }
        }
        round
    }

    /// How many the other side has ended, by kind: `closed`, `reset`, `io`, or `unasked` where bytes came.
    #[must_use]
    pub fn ended(&self) -> Counts {
        let mut ended = Counts::new();
        for stream in &self.streams {
            let mut byte = [0u8];
            let kind = match recv(stream, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
                Err(Errno::AGAIN) => continue,
                Err(Errno::CONNRESET) => "reset",
                Err(_) => "io",
                Ok((_, 0)) => "closed",
                Ok(_) => "unasked",
            };
            *ended.entry(kind.to_owned()).or_default() += 1;
        }
        ended
    }
}

/// Reads one response and checks it; gives the pod that it came from.
fn answer(mut stream: &TcpStream, target: &str) -> Result<String, &'static str> {
    let mut bytes = [0; RESPONSE_BYTES_MAX];
    let mut length = 0;
    loop {
        let n = stream.read(&mut bytes[length..]).map_err(|e| kind_of(&e))?;
        if n == 0 {
            return Err("closed");
        }
        length += n;
        let Some(head) = Head::parse(&bytes[..length]).map_err(|_| "malformed")? else {
            continue;
        };
        let total = head.head_bytes + head.body_bytes;
        if total > RESPONSE_BYTES_MAX {
            return Err("body");
        }
        if length < total {
            continue;
        }
        if head.status != 200 {
            return Err("status");
        }
        if bytes[head.head_bytes..length] != *echo_body(target, "").as_bytes() {
            return Err("body");
        }
        return Ok(head.pod.unwrap_or_default().to_owned());
    }
}

fn kind_of(error: &std::io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::ConnectionReset => "reset",
        ErrorKind::BrokenPipe => "closed",
        ErrorKind::WouldBlock | ErrorKind::TimedOut => "timeout",
        _ => "io",
    }
}
