//! A server in a pod: its process, where it listens, and starting it again.
//!
//! Owns what is the same for all kinds of servers. What a kind serves, and what can be asked of it
//! beside that, is in the file of its name.

use crate::node::{
    lab::{Lab, Pod},
    netns::Namespace,
    process::{Process, Spec},
};
use anyhow::Result;
use std::net::SocketAddr;

/// A running server of the lab.
#[derive(Debug)]
pub struct Server {
    /// The server, its leader if there are several processes.
    pub process: Process,
    spec: Spec,
    pod: Pod,
    port: u16,
}

impl Pod {
    /// Starts a server and waits until it listens on `port` of the pod's address.
    ///
    /// # Errors
    /// If it is not installed, or ends or stays silent, with what it said.
    pub(crate) fn serve(&self, spec: Spec, port: u16) -> Result<Server> {
        self.serve_for(self.namespace(), spec, port)
    }

    /// The same, where a namespace sees it listen.
    pub(crate) fn serve_for(&self, from: &Namespace, spec: Spec, port: u16) -> Result<Server> {
        let spec = Spec { name: format!("{}-{}", spec.name, self.name()), ..spec };
        let mut server = Server { process: self.spawn(&spec)?, spec, pod: self.clone(), port };
        server.process.wait_listening_for(from, server.address())?;
        Ok(server)
    }
}

impl Server {
    /// Starts it again at the same address, after its end, and waits until it listens. What it kept
    /// on disk is there. Nothing of the predecessor may be left, as after [`Process::crash`]: nginx
    /// waits half a second for an address that is in use.
    ///
    /// # Errors
    /// If it ends or stays silent, with what it said.
    pub fn restart(&mut self) -> Result<()> {
        self.process = self.pod.spawn(&self.spec)?;
        self.process.wait_listening(self.address())
    }

    /// The pod that it runs in.
    #[must_use]
    pub fn pod(&self) -> &Pod {
        &self.pod
    }

    /// Where it listens, IPv4.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.pod.ipv4(), self.port)
    }

    /// Where it listens, IPv6, if it does.
    #[must_use]
    pub fn address_v6(&self) -> SocketAddr {
        SocketAddr::new(self.pod.ipv6(), self.port)
    }

    /// Its pod's name and its address, as a policy's backend.
    #[must_use]
    pub fn named(&self) -> (String, SocketAddr) {
        (self.pod.name().to_owned(), self.address())
    }
}

impl Lab {
    /// Starts a server in every pod.
    pub fn in_each_pod<T>(&self, start: impl Fn(&Pod) -> Result<T>) -> Result<Vec<T>> {
        self.pods().iter().map(start).collect()
    }
}
