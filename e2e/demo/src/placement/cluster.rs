//! The servers of the bench: each that a cell needs, in each pod that a cell needs, for the whole bench.
//!
//! Owns starting them, what they are asked for, and how a pod is made slow and well again. An idle server costs nothing, so
//! all kinds stand side by side.

use super::matrix::{Cell, SERVICE_MEAN, Scenario, Server};
use anyhow::{Context, Result};
use baton_lab::{
    FixedLoad, Lab, Load, LoadOptions, Memcached, MemcachedClient, Nginx, NginxOptions, Node, Pod,
    Process, Redis, RedisClient, SMALL_BYTES, Service,
};
use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

const NODE_PORT: u16 = 8_080;
/// Ports of the servers with set service times, by their place in the enum.
const SERVICE_PORT: u16 = 9_000;
/// What redis and memcached hold.
const VALUE: &[u8] = &[b'v'; 64];
/// Each server alone, before all else: Node compiles what is hot.
const WARM_UP: Duration = Duration::from_millis(500);
/// How slow a noisy neighbour makes a pod: a limit for processes, a factor for set service times.
const NOISY_PERCENT: f64 = 5.0;
const NOISY_FACTOR: f64 = 8.0;
/// The same where all pods become slow.
const ALL_SLOW_PERCENT: f64 = 8.0;
const ALL_SLOW_FACTOR: f64 = 3.0;

/// One server in one pod.
enum One {
    Nginx(Nginx),
    Node(Node),
    Redis(Redis),
    Memcached(Memcached),
    Service(Service),
}

/// One kind of server in all pods that it is needed in.
struct Cluster {
    servers: Vec<(Pod, One)>,
}

/// All servers.
pub struct Clusters {
    by_server: BTreeMap<Server, Cluster>,
}

impl One {
    fn start(pod: &Pod, server: Server) -> Result<Self> {
        Ok(match server {
            Server::Nginx | Server::Nginx10k => Self::Nginx(pod.nginx(&NginxOptions {
                port: if server == Server::Nginx { 80 } else { 81 },
                ..NginxOptions::default()
            })?),
            Server::Node => Self::Node(pod.node(NODE_PORT)?),
            Server::Redis => {
                let redis = pod.redis()?;
                RedisClient::connect(pod.namespace(), redis.address())?
                    .call(&[b"SET", b"key", VALUE])?;
                Self::Redis(redis)
            }
            Server::Memcached => {
                let memcached = pod.memcached()?;
                MemcachedClient::connect(pod.namespace(), memcached.address())?
                    .set("key", VALUE)?;
                Self::Memcached(memcached)
            }
            Server::Constant | Server::Exponential | Server::Heavy => {
                let distribution = server.distribution().context("a distribution")?;
                let port = SERVICE_PORT + server as u16;
                Self::Service(pod.service(port, distribution, SERVICE_MEAN)?)
            }
        })
    }

    fn address(&self) -> SocketAddr {
        match self {
            Self::Nginx(s) => s.address(),
            Self::Node(s) => s.address(),
            Self::Redis(s) => s.address(),
            Self::Memcached(s) => s.address(),
            Self::Service(s) => s.address(),
        }
    }

    fn process_mut(&mut self) -> &mut Process {
        match self {
            Self::Nginx(s) => &mut s.process,
            Self::Node(s) => &mut s.process,
            Self::Redis(s) => &mut s.process,
            Self::Memcached(s) => &mut s.process,
            Self::Service(s) => &mut s.process,
        }
    }

    fn process(&self) -> &Process {
        match self {
            Self::Nginx(s) => &s.process,
            Self::Node(s) => &s.process,
            Self::Redis(s) => &s.process,
            Self::Memcached(s) => &s.process,
            Self::Service(s) => &s.process,
        }
    }

    /// Limits the pod, or its worker if that is what takes the time.
    fn limit(&self, pod: &Pod, percent: Option<f64>) -> Result<()> {
        match (self, percent) {
            (Self::Service(s), _) => s.set_quota(percent.unwrap_or(100.0) / 100.0),
            (_, Some(percent)) => pod.throttle(percent),
            (_, None) => pod.unthrottle(),
        }
    }

    /// Makes it slower by a factor, or the pod by a limit.
    fn slow(&self, pod: &Pod, slow: bool, factor: f64, percent: f64) -> Result<()> {
        match self {
            Self::Service(s) => s.set_factor(if slow { factor } else { 1.0 }),
            _ => self.limit(pod, slow.then_some(percent)),
        }
    }
}

impl Clusters {
    /// Starts what the cells need.
    pub fn start(lab: &Lab, cells: &[Cell]) -> Result<Self> {
        let mut pods: BTreeMap<Server, usize> = BTreeMap::new();
        for cell in cells {
            let most = pods.entry(cell.server).or_default();
            *most = cell.scenario.pods().max(*most);
        }
        let mut by_server = BTreeMap::new();
        for (server, count) in pods {
            let servers = lab.pods()[..count]
                .iter()
                .map(|pod| Ok((pod.clone(), One::start(pod, server)?)))
                .collect::<Result<Vec<_>>>()?;
            for (_, one) in &servers {
                let options = LoadOptions {
                    connections: 8,
                    duration: Some(WARM_UP),
                    ..LoadOptions::new(one.address())
                };
                let load = exchange(server, one.address());
                if server == Server::Node {
                    Load::start(lab.client().namespace(), options, load)?.join()?;
                }
            }
            by_server.insert(server, Cluster { servers });
        }
        Ok(Self { by_server })
    }

    /// Names and addresses of all servers of a kind.
    pub fn servers(&self, server: Server) -> Vec<(String, SocketAddr)> {
        self.by_server.get(&server).map_or_else(Vec::new, |c| {
            c.servers
                .iter()
                .map(|(pod, one)| (pod.name().to_owned(), one.address()))
                .collect()
        })
    }

    /// CPU time of all servers of a kind, kernel work on their behalf included.
    pub fn cpu_time(&self, cell: &Cell) -> Duration {
        self.each(cell)
            .map(|(_, one)| one.process().cpu_time())
            .sum()
    }

    /// What holds for the whole run of a cell.
    pub fn prepare(&self, cell: &Cell) -> Result<()> {
        if let (Some(percent), Some((pod, one))) = (cell.scenario.limit_percent(), self.first(cell))
        {
            one.limit(pod, Some(percent))?;
        }
        if let (Scenario::TwiceAsSlow, Some((pod, one))) = (cell.scenario, self.first(cell)) {
            one.slow(pod, true, 2.0, 50.0)?;
        }
        Ok(())
    }

    /// Ends everything that a run began.
    pub fn recover(&self, cell: &Cell) -> Result<()> {
        for (pod, one) in self.each(cell) {
            if let One::Service(service) = one {
                service.set_factor(1.0)?;
            }
            one.limit(pod, None)?;
        }
        Ok(())
    }

    /// A neighbour of the first pod begins or ends its work.
    pub fn noise(&self, cell: &Cell, on: bool) -> Result<()> {
        let (pod, one) = self.first(cell).context("a pod")?;
        one.slow(pod, on, NOISY_FACTOR, NOISY_PERCENT)
    }

    /// The first pod has this share of a CPU from now on.
    pub fn limit_first(&self, cell: &Cell, percent: f64) -> Result<()> {
        let (pod, one) = self.first(cell).context("a pod")?;
        one.limit(pod, Some(percent))
    }

    /// All pods become slow.
    pub fn slow_all(&self, cell: &Cell) -> Result<()> {
        for (pod, one) in self.each(cell) {
            one.slow(pod, true, ALL_SLOW_FACTOR, ALL_SLOW_PERCENT)?;
        }
        Ok(())
    }

    /// Stops the first pod's server where it is, or lets it go on.
    pub fn freeze(&mut self, cell: &Cell, frozen: bool) -> Result<()> {
        let servers = self.by_server.get_mut(&cell.server);
        let (_, one) = servers
            .and_then(|c| c.servers.first_mut())
            .context("a pod")?;
        let process = one.process_mut();
        if frozen {
            process.freeze()
        } else {
            process.thaw()
        }
    }

    fn each(&self, cell: &Cell) -> impl Iterator<Item = &(Pod, One)> {
        let servers = self.by_server.get(&cell.server).into_iter();
        servers.flat_map(|c| &c.servers).take(cell.scenario.pods())
    }

    fn first(&self, cell: &Cell) -> Option<&(Pod, One)> {
        self.each(cell).next()
    }
}

/// Requests to a kind of server through `address`.
pub fn exchange(server: Server, address: SocketAddr) -> FixedLoad {
    match server {
        Server::Redis => FixedLoad::bytes(
            b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n",
            &[b"$64\r\n", VALUE, b"\r\n"].concat(),
        ),
        Server::Memcached => FixedLoad::bytes(
            b"get key\r\n",
            &[b"VALUE key 0 64\r\n", VALUE, b"\r\nEND\r\n"].concat(),
        ),
        Server::Nginx10k => FixedLoad::http(&address.to_string(), target(server), SMALL_BYTES),
        _ => FixedLoad::http(&address.to_string(), target(server), 2),
    }
}

/// What is asked for, of an HTTP server.
pub fn target(server: Server) -> &'static str {
    match server {
        Server::Nginx10k => "/files/10k.bin",
        _ => "/",
    }
}
