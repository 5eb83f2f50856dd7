//! A plain Node HTTP server in a pod: what `node:http` does by itself, with two bytes as its page.

use crate::{
    lab::Pod,
    process::{Process, Spec},
};
use anyhow::{Context, Result};
use std::{fs, net::SocketAddr};

/// Node closes no connection by itself within a test.
const SCRIPT: &str = "// Written by baton-lab.
const server = require('node:http').createServer((request, response) => {
  response.setHeader('Content-Length', 2);
  response.end('ok');
});
server.keepAliveTimeout = 3600000;
server.requestTimeout = 0;
server.headersTimeout = 0;
server.listen({ port: Number(process.argv[2]), host: '0.0.0.0', backlog: 4096 });
";

/// A running Node.
#[derive(Debug)]
pub struct Node {
    /// The server.
    pub process: Process,
    address: SocketAddr,
}

impl Pod {
    /// Starts Node and waits until it listens.
    ///
    /// # Errors
    /// If it is not installed, or ends or stays silent, with what it said.
    pub fn node(&self, port: u16) -> Result<Node> {
        let script = self.directory()?.join("server.js");
        fs::write(&script, SCRIPT).with_context(|| script.display().to_string())?;
        let arguments = [script.display().to_string(), port.to_string()];
        let spec = Spec::new("node", arguments).named(&format!("node-{}", self.name()));
        let address = SocketAddr::new(self.ipv4(), port);
        let mut process = self.spawn(&spec)?;
        process.wait_listening(address)?;
        Ok(Node { process, address })
    }
}

impl Node {
    /// Where it listens, IPv4.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}
