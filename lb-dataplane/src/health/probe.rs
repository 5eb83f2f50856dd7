//! One check of one backend over an ordinary socket of the kernel: can a connection be opened, does
//! a path answer.
//!
//! Owns the words for what failed. Never decides what a result means for the backend (that is
//! `judge`).

use super::source::Source;
use baton_api::ActiveCheck;
use baton_packet::PROXY_LOCAL;
use http_body_util::{BodyExt, Empty};
use hyper::{
    Request,
    body::Bytes,
    client::conn::http1,
    header::{CONNECTION, HOST, USER_AGENT},
};
use hyper_util::rt::TokioIo;
use std::{fmt, net::SocketAddr, time::Duration};
use tokio::{io::AsyncWriteExt, net::TcpStream, task::JoinSet, time};

/// Bytes of an answer's body that are read: what a health page says is for people, its status is
/// the answer.
const BODY_MAX: usize = 4 << 10;
/// Bytes of an answer's head, as most servers limit a request's.
const HEAD_MAX: usize = 16 << 10;

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It answered as expected.
    Good,
    /// It did not, in words.
    Bad(String),
    /// This machine could not ask, in words. Says nothing about the backend.
    NotAsked(String),
}

/// What is asked, of whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Backend's address and the port to ask.
    pub target: SocketAddr,
    /// How.
    pub check: ActiveCheck,
    /// Whether the server there expects a header of the PROXY protocol: a check's says that the
    /// dataplane speaks for itself.
    pub header: bool,
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.check.path {
            Some(path) => write!(f, "GET {path}"),
            None => f.write_str("TCP connect"),
        }
    }
}

impl Probe {
    /// Asks once. Takes no longer than the check's timeout; or twice as long where a server that is
    /// sent a header may not expect it, which is found out by asking without.
    pub async fn ask(&self, source: &Source) -> Outcome {
        let outcome = self.ask_as(source, self.header).await;
        match outcome {
            Outcome::Bad(why) if self.header && self.check.path.is_some() => {
                match self.ask_as(source, false).await {
                    Outcome::Good => Outcome::Bad(format!(
                        "{why}; without the PROXY header it answers as expected: have the server \
                         expect the header (nginx: listen ... proxy_protocol), or set \
                         clientAddress: Hidden"
                    )),
                    _ => Outcome::Bad(why),
                }
            }
            outcome => outcome,
        }
    }

    async fn ask_as(&self, source: &Source, header: bool) -> Outcome {
        let socket = match source.socket(self.target.is_ipv6()) {
            Ok(socket) => socket,
            Err(error) => return Outcome::NotAsked(error.to_string()),
        };
        let answer = async {
            let broke = |error| format!("{}: {error}", self.target);
            let mut stream = socket.connect(self.target).await.map_err(broke)?;
            if header {
                stream.write_all(&PROXY_LOCAL).await.map_err(broke)?;
            }
            match &self.check.path {
                Some(path) => self.get(stream, path).await,
                None => Ok(()),
            }
        };
        let limit = Duration::from_micros(self.check.timeout.0);
        match time::timeout(limit, answer).await {
            Ok(Ok(())) => Outcome::Good,
            Ok(Err(why)) => Outcome::Bad(format!("{self}: {why}")),
            Err(_) => Outcome::Bad(format!(
                "{self}: no answer from {} within {}",
                self.target, self.check.timeout
            )),
        }
    }

    async fn get(&self, stream: TcpStream, path: &str) -> Result<(), String> {
        let broke = |error: hyper::Error| format!("{}: {error}", self.target);
        let (mut sender, connection) = http1::Builder::new()
            .max_buf_size(HEAD_MAX)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(broke)?;
        // Ends with this check, whether that is awaited to its end or dropped by its timeout.
        let mut task = JoinSet::new();
        task.spawn(connection);
        let host = self.check.host.clone();
        let request = Request::get(path)
            .header(HOST, host.unwrap_or_else(|| self.target.to_string()))
            .header(USER_AGENT, concat!("baton-health/", env!("CARGO_PKG_VERSION")))
            .header(CONNECTION, "close")
            .body(Empty::<Bytes>::new())
            .map_err(|error| error.to_string())?;
        let answer = sender.send_request(request).await.map_err(broke)?;
        let status = answer.status().as_u16();
        if !self.check.expects(status) {
            let expected: Vec<String> = self.check.expect.iter().map(ToString::to_string).collect();
            return Err(format!("{status}, expected {}", expected.join(" or ")));
        }
        // A server that breaks off in the middle of its answer does not work.
        let mut body = answer.into_body();
        let mut read = 0;
        while read < BODY_MAX
            && let Some(frame) = body.frame().await
        {
            let frame =
                frame.map_err(|error| format!("{status}, but its body broke off: {error}"))?;
            read += frame.data_ref().map_or(0, Bytes::len);
        }
        Ok(())
    }
}
