//! A scene: a lab with nginx (and redis) in every pod, the shim on the node and the dataplane in
//! front.
//!
//! Owns the order of start and the order of ending (programs first, the lab last).

use crate::until;
use anyhow::{Context, Result, ensure};
use baton_api::{Endpoint, Micros, Migration, MigrationMode, Protocol, State};
use baton_lab::{
    Dataplane, DataplaneConfig, HttpEcho, Lab, Load, LoadOptions, NginxOptions, Options, Pod,
    Server, Shim, ShimConfig, policy,
};
use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

/// Port of the HTTP policy, on the dataplane and in the pods.
pub const HTTP_PORT: u16 = 80;
/// Port of the redis policy.
pub const REDIS_PORT: u16 = baton_lab::REDIS_PORT;
/// Index of the redis policy; 0 is the HTTP one.
pub const REDIS_POLICY: usize = 1;

/// Moves at every boundary.
#[must_use]
pub fn always() -> Migration {
    Migration { mode: MigrationMode::Always, cooldown: Micros(0), ..Migration::default() }
}

/// Moves never.
#[must_use]
pub fn never() -> Migration {
    Migration { mode: MigrationMode::Never, ..Migration::default() }
}

/// Everything that runs. Fields end in the order in which they are declared: the lab last.
#[derive(Debug)]
pub struct Scene {
    /// The running dataplane, once started.
    pub dataplane: Option<Dataplane>,
    /// The running shim, once started.
    pub shim: Option<Shim>,
    /// One nginx per pod.
    pub nginx: Vec<Server>,
    /// One redis per pod, if asked for.
    pub redis: Vec<Server>,
    /// Configuration that the dataplane starts with; tests change it before or after.
    pub config: DataplaneConfig,
    /// The shim's.
    pub shim_config: ShimConfig,
    /// The namespaces.
    pub lab: Lab,
}

impl Scene {
    /// A lab with nginx in every pod and an HTTP policy that moves at every boundary. Nothing of
    /// Baton runs yet.
    pub fn new(name: &str, options: &Options) -> Result<Self> {
        Self::with_nginx(name, options, &NginxOptions::default())
    }

    /// As [`Scene::new`] with nginx set up in another way.
    pub fn with_nginx(name: &str, options: &Options, web: &NginxOptions) -> Result<Self> {
        let lab = Lab::new(name, options)?;
        let nginx = lab.in_each_pod(|pod| pod.nginx(web))?;
        let backends: Vec<_> = nginx.iter().map(Server::named).collect();
        let mut http = policy("http", HTTP_PORT, &backends);
        http.frontends = vec![own_v4(HTTP_PORT)?];
        http.migration = always();
        let config = lab.dataplane_config(vec![http])?;
        // The kernel's own connections in the dataplane's pod shall not take ports of the legs.
        let pod = lab.dataplane_pod().namespace();
        pod.set_sysctl("net/ipv4/ip_local_reserved_ports", &config.ports)?;
        let shim_config = lab.shim_config()?;
        Ok(Self { dataplane: None, shim: None, nginx, redis: Vec::new(), config, shim_config, lab })
    }

    /// As [`Scene::new`] with a number of pods, everything else as usual.
    pub fn with_pods(name: &str, pods: usize) -> Result<Self> {
        Self::new(name, &Options::with_pods(pods))
    }

    /// Adds redis in every pod, and its policy.
    pub fn add_redis(&mut self) -> Result<()> {
        self.redis = self.lab.in_each_pod(Pod::redis)?;
        let backends: Vec<_> = self.redis.iter().map(Server::named).collect();
        let mut redis = policy("redis", REDIS_PORT, &backends);
        redis.frontends = vec![own_v4(REDIS_PORT)?];
        redis.protocol = Protocol::RequestResponse;
        redis.migration = always();
        self.config.policies.push(redis);
        Ok(())
    }

    /// Adds a counting server in every pod, which takes `phase` before and after it counts, and
    /// their policy, the last one.
    pub fn add_counters(&mut self, port: u16, phase: Duration) -> Result<Vec<Server>> {
        let start = |pod: &Pod| pod.counter(port, phase, phase);
        let counters = self.lab.in_each_pod(start)?;
        let backends: Vec<_> = counters.iter().map(Server::named).collect();
        let mut counting = policy("counting", port, &backends);
        counting.protocol = Protocol::Http1;
        self.config.policies.push(counting);
        Ok(counters)
    }

    /// Turns every policy to IPv6: frontends and pods.
    ///
    /// # Errors
    /// Never with the ports of a scene.
    pub fn use_ipv6(&mut self) -> Result<()> {
        self.use_ipv6_of_clients()?;
        self.use_ipv6_of_pods()
    }

    /// Turns every policy's frontends to IPv6.
    pub fn use_ipv6_of_clients(&mut self) -> Result<()> {
        let policies = self.config.policies.iter_mut();
        for frontend in policies.flat_map(|policy| &mut policy.frontends) {
            *frontend =
                Endpoint::new(Ipv6Addr::UNSPECIFIED.into(), frontend.port()).context("port")?;
        }
        Ok(())
    }

    /// Turns every policy's pods to IPv6.
    pub fn use_ipv6_of_pods(&mut self) -> Result<()> {
        for policy in &mut self.config.policies {
            for (backend, pod) in policy.backends.iter_mut().zip(self.lab.pods()) {
                backend.endpoint =
                    Endpoint::new(pod.ipv6(), backend.endpoint.port()).context("port")?;
            }
        }
        Ok(())
    }

    /// Has the dataplane run on the node's own network, with the link to the first client as the
    /// one that it serves. Pods, and the second client, are behind other interfaces of the node.
    pub fn use_node(&mut self) -> Result<()> {
        self.config.interface = "client".into();
        self.config.host_network = true;
        let node = self.lab.router().namespace();
        node.set_sysctl("net/ipv4/ip_local_reserved_ports", &self.config.ports)
    }

    /// Starts the shim and the dataplane and waits until every backend can adopt.
    ///
    /// # Errors
    /// If they do not start, or with the reason why a backend cannot adopt.
    pub fn start(&mut self) -> Result<()> {
        self.start_shim()?;
        self.start_dataplane()?;
        self.wait_adoptable()
    }

    /// Starts the shim alone.
    pub fn start_shim(&mut self) -> Result<()> {
        // The predecessor's handle first: two shims cannot share the pins.
        self.shim = None;
        self.shim = Some(self.lab.shim(&self.shim_config)?);
        Ok(())
    }

    /// Starts the dataplane alone, without waiting for adoptable backends.
    pub fn start_dataplane(&mut self) -> Result<()> {
        self.dataplane = None;
        self.dataplane = Some(self.lab.dataplane(&self.config)?);
        Ok(())
    }

    /// Waits until every backend of every policy can adopt.
    pub fn wait_adoptable(&self) -> Result<()> {
        until("adoptable", || {
            let state = self.state()?;
            for backend in state.policies.iter().flat_map(|p| &p.backends) {
                ensure!(
                    backend.adoptability.is_ready(),
                    "{}: {}",
                    backend.name,
                    backend.adoptability
                );
            }
            Ok(())
        })
    }

    /// Waits until the state gives this reason for a backend of the HTTP policy.
    ///
    /// # Errors
    /// With the last reason that was given instead.
    pub fn wait_reason(&self, backend: &str, reason: &str) -> Result<()> {
        until(&format!("{backend}: {reason}"), || {
            let found = self.reason(backend)?;
            ensure!(found == reason, "`{found}`");
            Ok(())
        })
    }

    /// What the state says about a backend's adopter.
    pub fn reason(&self, backend: &str) -> Result<String> {
        let state = self.state()?;
        let found = state.policies[0].backends.iter().find(|b| b.name == backend);
        Ok(found.with_context(|| format!("no backend {backend}"))?.adoptability.to_string())
    }

    /// The running dataplane.
    ///
    /// # Errors
    /// Before its start.
    pub fn dataplane(&self) -> Result<&Dataplane> {
        self.dataplane.as_ref().context("the dataplane was not started")
    }

    /// The dataplane, to change its configuration or to kill it.
    ///
    /// # Errors
    /// Before its start.
    pub fn dataplane_mut(&mut self) -> Result<&mut Dataplane> {
        self.dataplane.as_mut().context("the dataplane was not started")
    }

    /// Puts the changed [`Scene::config`] in force.
    pub fn reconfigure(&mut self) -> Result<()> {
        let config = self.config.clone();
        self.dataplane_mut()?.reconfigure(&config)
    }

    /// Its state.
    pub fn state(&self) -> Result<State> {
        self.dataplane()?.state()
    }

    /// One counter, as `migrations_total` or `legs_closed_total{how="reset"}`.
    ///
    /// # Errors
    /// If there is none of that name, so that a misspelt one cannot pass as 0.
    pub fn counter(&self, name: &str) -> Result<u64> {
        let state = self.state()?;
        let value = state.counters.get(name).copied();
        value.with_context(|| format!("no counter {name}: there are {:?}", state.counters.keys()))
    }

    /// One counter of the shim: the sum of all samples whose name and labels contain every one of
    /// `parts`.
    pub fn shim_counter(&self, parts: &[&str]) -> Result<u64> {
        let text =
            self.shim.as_ref().context("the shim was not started")?.control_text("/metrics")?;
        let values: Vec<u64> = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.rsplit_once(' '))
            .filter(|(name, _)| parts.iter().all(|p| name.contains(p)))
            .filter_map(|(_, value)| value.parse::<f64>().ok())
            .map(|value| value as u64)
            .collect();
        ensure!(!values.is_empty(), "no metric with {parts:?} in\n{text}");
        Ok(values.iter().sum())
    }

    /// Waits until every former leg has been closed to its end.
    pub fn wait_legs_closed(&self) -> Result<()> {
        until("all legs closed", || {
            let (used, _) =
                self.state()?.tables.get("closing_legs").copied().context("closing_legs")?;
            ensure!(used == 0, "{used} legs are still closing");
            Ok(())
        })
    }

    /// Where clients connect for a port of the dataplane: IPv6 where its policy says so.
    ///
    /// # Errors
    /// Before its start.
    pub fn address(&self, port: u16) -> Result<SocketAddr> {
        let dataplane = self.dataplane()?;
        let mut frontends = self.config.policies.iter().flat_map(|p| &p.frontends);
        let v6 = frontends.any(|f| f.port() == port && f.address().is_ipv6());
        Ok(if v6 { dataplane.address_v6(port) } else { dataplane.address(port) })
    }

    /// Options of a load against the HTTP policy.
    ///
    /// # Errors
    /// Before the dataplane's start.
    pub fn http_load(&self, connections: usize, requests: Option<u64>) -> Result<LoadOptions> {
        Ok(LoadOptions::of(self.address(HTTP_PORT)?, connections, requests))
    }

    /// Starts such a load, every answer of which is checked, from the first client.
    ///
    /// # Errors
    /// Before the dataplane's start, and as [`HttpEcho::start`].
    pub fn echo(&self, connections: usize, requests: Option<u64>) -> Result<Load<HttpEcho>> {
        let options = self.http_load(connections, requests)?;
        HttpEcho::start(self.lab.client().namespace(), options)
    }
}

/// All of the dataplane's own IPv4 addresses, at a port.
pub fn own_v4(port: u16) -> Result<Endpoint> {
    Endpoint::new(Ipv4Addr::UNSPECIFIED.into(), port).context("port 0")
}
