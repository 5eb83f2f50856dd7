//! A server with set service times in a pod: one worker with a queue, which waits instead of
//! working.
//!
//! The server itself is the program `baton-service`; how its worker takes its time,
//! [`crate::ServiceQueue`] says.

use crate::{
    balancers::baton::program,
    clients::http::HttpClient,
    node::{lab::Pod, process::Spec},
    servers::{server::Server, service_queue::Distribution},
};
use anyhow::{Result, ensure};
use std::{net::SocketAddr, time::Duration};

impl Pod {
    /// Starts it. `GET /` takes the worker; the body is `ok`.
    ///
    /// # Errors
    /// If it was not built, or ends or stays silent, with what it said.
    pub fn service(&self, port: u16, distribution: Distribution, mean: Duration) -> Result<Server> {
        let arguments = [
            SocketAddr::new(self.ipv4(), port).to_string(),
            distribution.name().to_owned(),
            mean.as_micros().to_string(),
        ];
        let spec = Spec::new(program("baton-service")?, arguments).named("service");
        self.serve(spec, port)
    }
}

/// Of a server with set service times.
impl Server {
    /// Makes all service times so many times as long, from the next request on; 1 is as started.
    pub fn set_factor(&self, factor: f64) -> Result<()> {
        self.set(&format!("/factor/{factor}"))
    }

    /// Gives the worker a share of each 100 ms, from its start, as a CPU limit would; 1 is all of
    /// it.
    pub fn set_quota(&self, share: f64) -> Result<()> {
        self.set(&format!("/quota/{share}"))
    }

    fn set(&self, target: &str) -> Result<()> {
        let response =
            HttpClient::connect(self.process.namespace(), self.address())?.get(target)?;
        ensure!(response.status == 200, "{target}: status {}", response.status);
        Ok(())
    }
}
