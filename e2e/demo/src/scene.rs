//! A lab with servers in each pod, and Baton in front of them.
//!
//! Owns the order of start and of end, and when Baton is ready to move connections.

use anyhow::{Result, ensure};
use baton_api::{Migration, MigrationMode, Policy, State};
use baton_lab::{
    Dataplane, DataplaneConfig, Lab, LoadOptions, NginxOptions, Options, Server, Shim,
};
use std::{
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

/// The dataplane probes its backends as soon as it starts; this is hundreds of round trips.
const ADOPTABLE_DEADLINE: Duration = Duration::from_secs(10);

/// A lab with so many pods.
pub fn lab(name: &str, pods: usize) -> Result<Lab> {
    Lab::new(name, &Options::with_pods(pods))
}

/// nginx in each pod.
pub fn nginx(lab: &Lab) -> Result<Vec<Server>> {
    lab.in_each_pod(|pod| pod.nginx(&NginxOptions::default()))
}

/// Names and addresses of servers, as a policy's backends.
pub fn named(servers: &[Server]) -> Vec<(String, SocketAddr)> {
    servers.iter().map(Server::named).collect()
}

/// When connections move, by this mode. One for every request knows no rest after a move.
pub fn migration(mode: MigrationMode) -> Migration {
    let defaults = Migration { mode, ..Migration::default() };
    match mode {
        MigrationMode::Never | MigrationMode::WhenBetter => defaults,
        _ => Migration { cooldown: Default::default(), ..defaults },
    }
}

/// A policy with this mode.
pub fn moving(mode: MigrationMode, policy: Policy) -> Policy {
    Policy { migration: migration(mode), ..policy }
}

/// Shim and dataplane. Fields end in this order.
pub struct Baton {
    pub dataplane: Dataplane,
    pub shim: Shim,
}

impl Baton {
    /// Starts both and waits until each backend can adopt.
    pub fn start(lab: &Lab, config: &DataplaneConfig) -> Result<Self> {
        let shim = lab.shim(&lab.shim_config()?)?;
        let dataplane = dataplane(lab, config)?;
        Ok(Self { dataplane, shim })
    }

    pub fn stop(self) -> Result<()> {
        self.dataplane.stop()?;
        self.shim.stop()
    }

    /// A load's options: `connections` to a port of the dataplane.
    pub fn load(&self, port: u16, connections: usize) -> LoadOptions {
        LoadOptions::of(self.dataplane.address(port), connections, None)
    }
}

/// Starts the dataplane and waits until each backend's adopter has answered.
pub fn dataplane(lab: &Lab, config: &DataplaneConfig) -> Result<Dataplane> {
    lab.reserve_ports(config)?;
    let dataplane = lab.dataplane(config)?;
    let end = Instant::now() + ADOPTABLE_DEADLINE;
    loop {
        let state = dataplane.state()?;
        let missing: Vec<_> = state
            .policies
            .iter()
            .flat_map(|p| &p.backends)
            .filter(|b| !b.adoptability.is_ready())
            .map(|b| format!("{} ({}): {}", b.name, b.endpoint, b.adoptability))
            .collect();
        if missing.is_empty() {
            return Ok(dataplane);
        }
        ensure!(
            Instant::now() < end,
            "no connection can move to {}: see `host-shim preflight`",
            missing.join(", ")
        );
        thread::sleep(Duration::from_millis(10));
    }
}

/// Moves and rollbacks of a policy so far.
pub fn moves(state: &State, name: &str) -> (u64, u64) {
    let mut policies = state.policies.iter().filter(|p| p.name == name);
    let policy = policies.next();
    policy.map_or((0, 0), |p| (p.migrations_total, p.rollbacks_total))
}
