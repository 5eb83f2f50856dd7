//! HAProxy in tcp mode in the dataplane's place, for comparisons in the same layout.

use crate::node::{
    lab::Lab,
    process::{Process, Spec},
};
use anyhow::{Context, Result};
use std::{
    fmt::Write as _,
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

/// One `listen` of HAProxy: a port and what is behind it.
#[derive(Clone, Debug)]
pub struct Listen {
    /// Port on the dataplane's address.
    pub port: u16,
    /// Name and address of each server.
    pub servers: Vec<(String, SocketAddr)>,
    /// With what an admin sets up against failing servers: health checks, retries, another server
    /// for a connection that could not be opened, and the end of the connections of a server that
    /// is down.
    pub checked: bool,
}

/// A running HAProxy.
#[derive(Debug)]
pub struct Haproxy {
    /// The process.
    pub process: Process,
    address: IpAddr,
}

impl Lab {
    /// Starts HAProxy in the dataplane's pod: one thread, no logging, `leastconn`.
    ///
    /// # Errors
    /// If it is not installed, or ends or stays silent, with what it said.
    pub fn haproxy(&self, listens: &[Listen]) -> Result<Haproxy> {
        let place = self.dataplane_pod();
        let mut config = String::from(
            "# Written by baton-lab.\n\
             global\n  nbthread 1\n  maxconn 4000\n\
             defaults\n  mode tcp\n  balance leastconn\n  timeout connect 5s\n  \
             timeout client 1h\n  timeout server 1h\n",
        );
        for listen in listens {
            writeln!(config, "listen port-{0}\n  bind 0.0.0.0:{0}", listen.port)?;
            if listen.checked {
                config += "  option redispatch 1\n  retries 3\n  timeout connect 500ms\n  \
                           default-server check inter 100ms fall 2 rise 1 on-marked-down shutdown-sessions\n";
            }
            for (name, address) in &listen.servers {
                writeln!(config, "  server {name} {address}")?;
            }
        }
        let path = place.directory()?.join("haproxy.cfg");
        fs::write(&path, config)?;
        let mut process = place.spawn(&Spec::new(
            "haproxy",
            ["-f".to_owned(), path.display().to_string(), "-db".to_owned()],
        ))?;
        let first = listens.first().context("HAProxy needs a port")?.port;
        // A connection to the listener would go on to a server, but costs nothing there.
        process.wait_listening(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), first))?;
        Ok(Haproxy { process, address: place.ipv4() })
    }
}

impl Haproxy {
    /// Where clients connect for `port`.
    #[must_use]
    pub fn address(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.address, port)
    }
}
