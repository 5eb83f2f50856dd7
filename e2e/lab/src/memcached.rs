//! Unmodified memcached in a pod: TCP only, one thread, nothing but its own defaults else.

use crate::{
    lab::Pod,
    process::{Process, Spec},
};
use anyhow::Result;
use std::net::SocketAddr;

/// Memcached's own port.
pub const MEMCACHED_PORT: u16 = 11_211;

/// A running memcached.
#[derive(Debug)]
pub struct Memcached {
    /// The server.
    pub process: Process,
    pod: String,
    address: SocketAddr,
}

impl Pod {
    /// Starts memcached on port 11211 and waits until it listens.
    ///
    /// # Errors
    /// If it is not installed, or ends or stays silent, with what it said.
    pub fn memcached(&self) -> Result<Memcached> {
        let port = MEMCACHED_PORT.to_string();
        // It refuses to run as root; UDP is off by default since 1.5.6.
        let arguments = [
            "-u",
            "nobody",
            "-l",
            "0.0.0.0,::",
            "-p",
            &port,
            "-m",
            "64",
            "-t",
            "1",
            "-c",
            "4096",
        ];
        let spec = Spec::new("memcached", arguments).named(&format!("memcached-{}", self.name()));
        let mut process = self.spawn(&spec)?;
        let address = SocketAddr::new(self.ipv4(), MEMCACHED_PORT);
        process.wait_listening(address)?;
        Ok(Memcached {
            process,
            pod: self.name().to_owned(),
            address,
        })
    }
}

impl Memcached {
    /// Where it listens, IPv4.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The pod's name.
    #[must_use]
    pub fn pod(&self) -> &str {
        &self.pod
    }
}
