//! Unmodified redis in a pod: open to the lab, saving nothing by itself.

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
    spec: Spec,
    place: Pod,
    address: SocketAddr,
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
            spec,
            place: self.clone(),
            address,
        })
    }
}

impl Redis {
    /// Starts it again at the same address, after its end, and waits until it listens. It has the data that `SAVE`
    /// last wrote, if any.
    ///
    /// # Errors
    /// As [`Pod::redis`].
    pub fn restart(&mut self) -> Result<()> {
        self.process = self.place.spawn(&self.spec)?;
        self.process.wait_listening(self.address)
    }

    /// Where it listens, IPv4.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The pod's name.
    #[must_use]
    pub fn pod(&self) -> &str {
        self.place.name()
    }
}
