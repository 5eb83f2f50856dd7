//! Unmodified redis in a pod: no persistence, open to the lab.

use crate::{
    lab::Pod,
    process::{Process, Spec},
};
use anyhow::Result;
use std::net::SocketAddr;

/// Redis's own port.
pub const REDIS_PORT: u16 = 6379;

/// A running redis.
#[derive(Debug)]
pub struct Redis {
    /// The server.
    pub process: Process,
    address: SocketAddr,
    pod: String,
}

impl Pod {
    /// Starts redis on port 6379 and waits until it listens.
    ///
    /// # Errors
    /// If it is not installed, or ends or stays silent, with what it said.
    pub fn redis(&self) -> Result<Redis> {
        let directory = self.directory()?.join("redis");
        std::fs::create_dir_all(&directory)?;
        let directory = directory.display().to_string();
        let port = REDIS_PORT.to_string();
        let arguments = [
            "--port",
            &port,
            "--bind",
            "0.0.0.0",
            "::",
            "--save",
            "",
            "--appendonly",
            "no",
            "--protected-mode",
            "no",
            "--daemonize",
            "no",
            "--dir",
            &directory,
        ];
        let spec = Spec::new("redis-server", arguments).named(&format!("redis-{}", self.name()));
        let mut process = self.spawn(&spec)?;
        let address = SocketAddr::new(self.ipv4(), REDIS_PORT);
        process.wait_listening(address)?;
        Ok(Redis {
            process,
            address,
            pod: self.name().to_owned(),
        })
    }
}

impl Redis {
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
