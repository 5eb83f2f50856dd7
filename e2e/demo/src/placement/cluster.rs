//! The servers of the bench: each that a cell needs, in each pod that a cell needs, for the whole
//! bench.
//!
//! Owns starting them, what they are asked for, and how a pod is made slow and well again. An idle
//! server costs nothing, so all kinds stand side by side.

use super::matrix::{Cell, SERVICE_MEAN, Scenario, Server as Kind};
use anyhow::{Context, Result};
use baton_lab::{
    FixedLoad, Lab, Load, LoadOptions, MemcachedClient, NginxOptions, Pod, RedisClient,
    SMALL_BYTES, Server, content,
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

/// All servers: each kind in all pods that it is needed in.
pub struct Clusters(BTreeMap<Kind, Vec<Server>>);

fn start(pod: &Pod, kind: Kind) -> Result<Server> {
    let nginx = |port| NginxOptions { port, ..NginxOptions::default() };
    match kind {
        Kind::Nginx => pod.nginx(&nginx(80)),
        Kind::Nginx10k => pod.nginx(&nginx(81)),
        Kind::Node => pod.node(NODE_PORT),
        Kind::Redis => {
            let redis = pod.redis()?;
            RedisClient::connect(pod.namespace(), redis.address())?
                .call(&[b"SET", b"key", VALUE])?;
            Ok(redis)
        }
        Kind::Memcached => {
            let memcached = pod.memcached()?;
            MemcachedClient::connect(pod.namespace(), memcached.address())?.set("key", VALUE)?;
            Ok(memcached)
        }
        Kind::Constant | Kind::Exponential | Kind::Heavy => {
            let distribution = kind.distribution().context("a distribution")?;
            pod.service(SERVICE_PORT + kind as u16, distribution, SERVICE_MEAN)
        }
    }
}

/// Limits the pod, or its worker if that is what takes the time.
fn limit(kind: Kind, server: &Server, percent: Option<f64>) -> Result<()> {
    match (kind.distribution(), percent) {
        (Some(_), _) => server.set_quota(percent.unwrap_or(100.0) / 100.0),
        (None, Some(percent)) => server.pod().throttle(percent),
        (None, None) => server.pod().unthrottle(),
    }
}

/// Makes it slower by a factor, or the pod by a limit.
fn slow(kind: Kind, server: &Server, slow: bool, factor: f64, percent: f64) -> Result<()> {
    match kind.distribution() {
        Some(_) => server.set_factor(if slow { factor } else { 1.0 }),
        None => limit(kind, server, slow.then_some(percent)),
    }
}

impl Clusters {
    /// Starts what the cells need.
    pub fn start(lab: &Lab, cells: &[Cell]) -> Result<Self> {
        let mut pods: BTreeMap<Kind, usize> = BTreeMap::new();
        for cell in cells {
            let most = pods.entry(cell.server).or_default();
            *most = cell.scenario.pods().max(*most);
        }
        let mut all = BTreeMap::new();
        for (kind, count) in pods {
            let servers = lab.pods()[..count].iter().map(|pod| start(pod, kind));
            let servers = servers.collect::<Result<Vec<_>>>()?;
            for server in servers.iter().filter(|_| kind == Kind::Node) {
                let options = LoadOptions {
                    connections: 8,
                    duration: Some(WARM_UP),
                    ..LoadOptions::new(server.address())
                };
                let load = exchange(kind, server.address());
                Load::start(lab.client().namespace(), options, load)?.join()?;
            }
            all.insert(kind, servers);
        }
        Ok(Self(all))
    }

    /// Names and addresses of all servers of a kind.
    pub fn servers(&self, kind: Kind) -> Vec<(String, SocketAddr)> {
        let servers = self.0.get(&kind).into_iter().flatten();
        servers.map(Server::named).collect()
    }

    /// CPU time of all servers of a kind, kernel work on their behalf included.
    pub fn cpu_time(&self, cell: &Cell) -> Duration {
        self.each(cell).map(|s| s.process.cpu_time()).sum()
    }

    /// What holds for the whole run of a cell.
    pub fn prepare(&self, cell: &Cell) -> Result<()> {
        let (first, kind) = (self.first(cell)?, cell.server);
        if let Some(percent) = cell.scenario.limit_percent() {
            limit(kind, first, Some(percent))?;
        }
        if cell.scenario == Scenario::TwiceAsSlow {
            slow(kind, first, true, 2.0, 50.0)?;
        }
        Ok(())
    }

    /// Ends everything that a run began.
    pub fn recover(&self, cell: &Cell) -> Result<()> {
        self.each(cell).try_for_each(|server| {
            if cell.server.distribution().is_some() {
                server.set_factor(1.0)?;
            }
            limit(cell.server, server, None)
        })
    }

    /// A neighbour of the first pod begins or ends its work.
    pub fn noise(&self, cell: &Cell, on: bool) -> Result<()> {
        let first = self.first(cell)?;
        slow(cell.server, first, on, NOISY_FACTOR, NOISY_PERCENT)
    }

    /// The first pod has this share of a CPU from now on.
    pub fn limit_first(&self, cell: &Cell, percent: f64) -> Result<()> {
        limit(cell.server, self.first(cell)?, Some(percent))
    }

    /// All pods become slow.
    pub fn slow_all(&self, cell: &Cell) -> Result<()> {
        let all = |s| slow(cell.server, s, true, ALL_SLOW_FACTOR, ALL_SLOW_PERCENT);
        self.each(cell).try_for_each(all)
    }

    /// Stops the first pod's server where it is, or lets it go on.
    pub fn freeze(&mut self, cell: &Cell, frozen: bool) -> Result<()> {
        let servers = self.0.get_mut(&cell.server);
        let first = servers.and_then(|s| s.first_mut()).context("a pod")?;
        if frozen { first.process.freeze() } else { first.process.thaw() }
    }

    fn each(&self, cell: &Cell) -> impl Iterator<Item = &Server> {
        let servers = self.0.get(&cell.server).into_iter().flatten();
        servers.take(cell.scenario.pods())
    }

    fn first(&self, cell: &Cell) -> Result<&Server> {
        self.each(cell).next().context("a pod")
    }
}

/// Requests to a kind of server through `address`.
pub fn exchange(kind: Kind, address: SocketAddr) -> FixedLoad {
    let http = |body: &[u8]| FixedLoad::http(&address.to_string(), target(kind), body);
    match kind {
        Kind::Redis => FixedLoad::bytes(
            b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n",
            &[b"$64\r\n", VALUE, b"\r\n"].concat(),
        ),
        Kind::Memcached => FixedLoad::bytes(
            b"get key\r\n",
            &[b"VALUE key 0 64\r\n", VALUE, b"\r\nEND\r\n"].concat(),
        ),
        Kind::Nginx10k => http(&content(SMALL_BYTES, 1)),
        _ => http(b"ok"),
    }
}

/// What is asked for, of an HTTP server.
pub fn target(kind: Kind) -> &'static str {
    match kind {
        Kind::Nginx10k => "/files/10k.bin",
        _ => "/",
    }
}
