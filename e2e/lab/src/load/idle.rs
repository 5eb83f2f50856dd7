//! Many connections that do nothing, each of which has made a request and shall be able to make
//! another one later.
//!
//! Blocking and in rounds: all connections of a batch send, then all receive. Every answer is
//! checked byte by byte.

use crate::{
    clients::http::HttpClient, load::load_driver::kind_of, node::netns::Namespace,
    servers::nginx::echo_body, work::stats::Counts,
};
use anyhow::{Context, Result};
use rustix::{
    io::Errno,
    net::{RecvFlags, recv},
    process::{Resource, Rlimit, getrlimit, setrlimit},
};
use std::{
    net::{SocketAddr, TcpStream},
    time::Duration,
};

/// Requests on the way at one time: what one nginx answers in some milliseconds.
const BATCH: usize = 256;
const IO_TIMEOUT: Duration = Duration::from_secs(10);

/// Lets this process, and what it starts from now on, hold so many files and sockets open.
///
/// # Errors
/// If that is beyond the process's hard limit, and raising it, which needs CAP_SYS_RESOURCE, is
/// refused.
pub fn allow_files(count: u64) -> Result<()> {
    let now = getrlimit(Resource::Nofile);
    // `None` is no limit.
    let raised = |old: Option<u64>| old.map(|o| o.max(count));
    let limit = Rlimit { current: raised(now.current), maximum: raised(now.maximum) };
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
    clients: Vec<HttpClient>,
    run: u64,
    round: u64,
}

/// What one round of requests came to.
#[derive(Clone, Debug, Default)]
pub struct IdleRound {
    /// Right answers.
    pub right: u64,
    /// Errors by kind: `reset`, `closed`, `timeout`, `io`, `status`, `body`, `malformed`,
    /// `unasked`.
    pub errors: Counts,
    /// Right answers by pod.
    pub per_pod: Counts,
}

impl IdleConnections {
    /// Opens them; none has made a request yet.
    pub fn open(namespace: &Namespace, address: SocketAddr, count: usize) -> Result<Self> {
        // One file each, and room for all else that this process holds.
        allow_files(count as u64 + 2_048)?;
        let clients = namespace.run(|| {
            let open = |i| {
                let stream = TcpStream::connect_timeout(&address, IO_TIMEOUT)
                    .with_context(|| format!("connection {i} of {count} to {address}"))?;
                let client = HttpClient::over(stream)?;
                client.stream().set_read_timeout(Some(IO_TIMEOUT))?;
                Ok(client)
            };
            (0..count).map(open).collect::<Result<_>>()
        })??;
        Ok(Self { clients, run: fastrand::u64(..), round: 0 })
    }

    /// Their number.
    #[must_use]
    pub fn count(&self) -> usize {
        self.clients.len()
    }

    /// One request on each, checked.
    pub fn round(&mut self) -> IdleRound {
        self.round += 1;
        let mut round = IdleRound::default();
        for (batch, clients) in self.clients.chunks_mut(BATCH).enumerate() {
            let targets: Vec<_> = (0..clients.len())
                .map(|i| format!("/echo/{:x}/{}/{}", self.run, self.round, batch * BATCH + i))
                .collect();
            let sent: Vec<_> = clients
                .iter_mut()
                .zip(&targets)
                .map(|(client, target)| client.send("GET", target, &[], &[]))
                .collect();
            for ((client, target), sent) in clients.iter_mut().zip(&targets).zip(sent) {
                match sent.and_then(|()| client.response()) {
                    Ok(answer) if answer.status != 200 => round.error("status"),
                    Ok(answer) if answer.body != echo_body(target, "").as_bytes() => {
                        round.error("body");
                    }
                    // Nobody asked for more.
                    Ok(_) if client.has_more() => round.error("unasked"),
                    Ok(answer) => {
                        round.right += 1;
                        let pod = answer.pod().unwrap_or_default().to_owned();
                        *round.per_pod.entry(pod).or_default() += 1;
                    }
                    Err(e) => {
                        round
                            .error(e.downcast_ref::<std::io::Error>().map_or("malformed", kind_of));
                    }
                }
            }
        }
        round
    }

    /// How many the other side has ended, by kind: `closed`, `reset`, `io`, or `unasked` where
    /// bytes came.
    #[must_use]
    pub fn ended(&self) -> Counts {
        let mut ended = Counts::new();
        for client in &self.clients {
            let mut byte = [0u8];
            let kind = match recv(client.stream(), &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT)
            {
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

impl IdleRound {
    fn error(&mut self, kind: &str) {
        *self.errors.entry(kind.to_owned()).or_default() += 1;
    }
}
