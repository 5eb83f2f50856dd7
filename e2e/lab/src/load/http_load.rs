//! HTTP load whose every response is checked: status, length, and a body that only this request can
//! have.

use crate::{
    clients::http::Head,
    load::load_client::Load,
    node::netns::Namespace,
    servers::nginx::echo_body,
    work::{
        exchange::{Exchange, LoadOptions, Verdict},
        stats::Counts,
    },
};
use anyhow::Result;
use std::{io::Write, net::SocketAddr};

/// GET `/echo/…` with a fresh target and nonce per request.
#[derive(Debug)]
pub struct HttpEcho {
    host: String,
    run: u64,
    /// Right responses by the pod that gave them (`X-Pod`).
    pub per_pod: Counts,
    /// Times that a connection's response came from another pod than its last.
    pub pod_changes: u64,
    last: Vec<Option<String>>,
    /// Header lines of every request beside those that it needs.
    more: &'static str,
}

impl HttpEcho {
    /// Starts the load.
    pub fn start(namespace: &Namespace, options: LoadOptions) -> Result<Load<Self>> {
        Self::start_with(namespace, options, "")
    }

    /// Starts a load in which every request has a connection of its own, which the server closes,
    /// and closes first.
    pub fn start_short(namespace: &Namespace, mut options: LoadOptions) -> Result<Load<Self>> {
        options.await_close = true;
        Self::start_with(namespace, options, "Connection: close\r\n")
    }

    fn start_with(
        namespace: &Namespace,
        options: LoadOptions,
        more: &'static str,
    ) -> Result<Load<Self>> {
        let mut exchange = Self::to(options.address, options.connections);
        exchange.more = more;
        Load::start(namespace, options, exchange)
    }

    /// Requests of a run of their own, on so many connections.
    #[must_use]
    pub fn to(address: SocketAddr, connections: usize) -> Self {
        Self {
            host: address.to_string(),
            // Tells the targets of one run from those of another, should a response come late.
            run: fastrand::u64(..),
            per_pod: Counts::new(),
            pod_changes: 0,
            last: vec![None; connections],
            more: "",
        }
    }

    fn target(&self, number: u64) -> String {
        format!("/echo/{:x}/{number}", self.run)
    }

    fn nonce(&self, connection: usize, number: u64) -> String {
        let mixed = (number ^ self.run).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        format!("{connection}-{mixed:016x}")
    }
}

impl Exchange for HttpEcho {
    fn request(&mut self, connection: usize, number: u64, out: &mut Vec<u8>) {
        let (target, nonce) = (self.target(number), self.nonce(connection, number));
        write!(
            out,
            "GET {target} HTTP/1.1\r\nHost: {}\r\nX-Nonce: {nonce}\r\n{}\r\n",
            self.host, self.more
        )
        .expect("writing to memory does not fail");
    }

    fn response(&mut self, connection: usize, number: u64, bytes: &[u8]) -> Verdict {
        let expected = echo_body(&self.target(number), &self.nonce(connection, number));
        let head = match Head::checked(bytes, 200, expected.as_bytes()) {
            Ok(head) => head,
            Err(verdict) => return verdict,
        };
        if let Some(pod) = head.pod {
            match self.per_pod.get_mut(pod) {
                Some(count) => *count += 1,
                None => _ = self.per_pod.insert(pod.to_owned(), 1),
            }
            let last = &mut self.last[connection];
            if last.as_deref() != Some(pod) {
                self.pod_changes += u64::from(last.is_some());
                *last = Some(pod.to_owned());
            }
        }
        head.verdict()
    }
}
