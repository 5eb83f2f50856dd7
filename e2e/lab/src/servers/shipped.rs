//! Unmodified redis and memcached in a pod, open to the lab and saving nothing by themselves,
//! Node's own HTTP server, and one on io_uring.

use crate::{
    balancers::baton::program,
    node::{lab::Pod, process::Spec},
    servers::server::Server,
};
use anyhow::{Context, Result};
use std::{fs, net::SocketAddr};

/// Redis's own port.
pub const REDIS_PORT: u16 = 6379;
/// Memcached's own port.
pub const MEMCACHED_PORT: u16 = 11_211;
/// Node closes no connection by itself within a test.
const SCRIPT: &str = "// Written by baton-lab.
const server = require('node:http').createServer((request, response) => {
  const nonce = request.headers['x-nonce'] ?? '';
  const echo = `pod-independent body: ${request.url} ${nonce}\\n`;
  const body = request.url.startsWith('/echo/') ? echo : 'ok';
  response.setHeader('Content-Length', body.length);
  response.setHeader('X-Pod', process.argv[3]);
  response.end(body);
});
server.keepAliveTimeout = 3600000;
server.requestTimeout = 0;
server.headersTimeout = 0;
server.listen({ port: Number(process.argv[2]), host: '0.0.0.0', backlog: 4096 });
";

impl Pod {
    /// Starts redis on port 6379. Started again, it has the data that `SAVE` last wrote, if any.
    ///
    /// # Errors
    /// If it is not installed, or ends or stays silent, with what it said.
    pub fn redis(&self) -> Result<Server> {
        let directory = self.directory()?.join("redis");
        fs::create_dir_all(&directory)?;
        let arguments = format!(
            "--port {REDIS_PORT} --bind 0.0.0.0 :: --appendonly no --protected-mode no --daemonize no --dir"
        );
        let own = [directory.display().to_string()];
        let none = ["--save".to_owned(), String::new()];
        let words = arguments.split(' ').map(str::to_owned);
        let spec = Spec::new("redis-server", words.chain(own).chain(none)).named("redis");
        self.serve(spec, REDIS_PORT)
    }

    /// Starts memcached on port 11211: TCP only (UDP is off by default since 1.5.6), one thread.
    ///
    /// # Errors
    /// If it is not installed, or ends or stays silent, with what it said.
    pub fn memcached(&self) -> Result<Server> {
        // It refuses to run as root.
        let arguments = format!("-u nobody -l 0.0.0.0,:: -p {MEMCACHED_PORT} -m 64 -t 1 -c 4096");
        let spec = Spec::new("memcached", arguments.split(' '));
        self.serve(spec, MEMCACHED_PORT)
    }

    /// Starts a server that accepts, reads and writes through io_uring, and answers `/echo/…` as
    /// nginx does.
    ///
    /// # Errors
    /// If it was not built, or ends or stays silent, with what it said.
    pub fn uring(&self, port: u16) -> Result<Server> {
        let address = SocketAddr::new(self.ipv4(), port).to_string();
        let arguments = [address, self.name().to_owned()];
        let spec = Spec::new(program("baton-uring")?, arguments).named("uring");
        self.serve(spec, port)
    }

    /// Starts what `node:http` does by itself: two bytes as its page, and `/echo/…` as nginx has
    /// it.
    ///
    /// # Errors
    /// If it is not installed, or ends or stays silent, with what it said.
    pub fn node(&self, port: u16) -> Result<Server> {
        let script = self.directory()?.join("server.js");
        fs::write(&script, SCRIPT).with_context(|| script.display().to_string())?;
        let arguments = [script.display().to_string(), port.to_string(), self.name().to_owned()];
        self.serve(Spec::new("node", arguments), port)
    }
}
