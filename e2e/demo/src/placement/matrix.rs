//! The matrix: servers, connections and conditions, which of them make sense together, and which
//! are run by default.
//!
//! Owns names and numbers; starts nothing.

use super::PlacementArguments;
use baton_api::Protocol;
use baton_lab::{Distribution, zipf_shares};
use clap::ValueEnum;
use serde::Serialize;
use std::time::Duration;

/// Mean service time of the servers that have a set one.
pub const SERVICE_MEAN: Duration = Duration::from_millis(1);
/// Connections of a cell, where nothing else is said.
const CONNECTIONS: u32 = 32;
/// Those of connections with unequal rates.
const ZIPF_CONNECTIONS: u32 = 720;
/// All numbers of connections.
const CONNECTIONS_ALL: [u32; 5] = [1, 8, 32, 128, 512];
/// Share of the healthy pods' capacity that an open loop asks for: one pod at half its rate is not
/// overloaded by its share.
const UTILIZATION: f64 = 0.45;
/// The same where one pod has half a CPU: its share does not fit in.
const UTILIZATION_HALF: f64 = 0.55;
/// The same where pods are idle.
const UTILIZATION_IDLE: f64 = 0.2;
/// Share of one pod's time that the busiest of unequal connections needs. It sends one request at a
/// time, each of which waits for those of others: with more it falls behind whatever the rule.
const BUSIEST: f64 = 0.5;
/// The frozen pod: before, during and after.
pub const FREEZE: [Duration; 3] =
    [Duration::from_millis(1_500), Duration::from_secs(2), Duration::from_secs(1)];
/// One pod becomes slow: before and after.
pub const ONSET: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(1)];
/// Its limit.
pub const ONSET_PERCENT: f64 = 5.0;
/// Time between start and scaling out.
pub const SCALE_AT: Duration = Duration::from_secs(1);
/// New pods have their share within 5 s, and this is looked at for a little longer.
pub const SCALE_WATCH: Duration = Duration::from_secs(7);
/// Pods before and after scaling out.
pub const SCALE: (usize, usize) = (2, 6);

/// What is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Server {
    /// nginx, 2 bytes.
    Nginx,
    /// nginx, 10 KB.
    #[value(name = "nginx-10k")]
    #[serde(rename = "nginx-10k")]
    Nginx10k,
    /// Node's own HTTP server, 2 bytes.
    Node,
    /// redis, `GET` of 64 bytes.
    Redis,
    /// memcached, `get` of 64 bytes.
    Memcached,
    /// One worker, every request takes 1 ms.
    Constant,
    /// One worker, exponential service times with a mean of 1 ms.
    Exponential,
    /// One worker, heavy-tailed service times with a mean of 1 ms.
    Heavy,
}

impl Server {
    /// Its name on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |v| v.get_name().to_owned())
    }

    /// Programs that must be installed.
    pub fn programs(self) -> &'static [&'static str] {
        match self {
            Self::Node => &["node"],
            Self::Redis => &["redis-server"],
            Self::Memcached => &["memcached"],
            _ => &[],
        }
    }

    /// The policy's guard.
    pub fn protocol(self) -> Protocol {
        match self {
            Self::Redis => Protocol::Resp,
            Self::Memcached => Protocol::Memcached,
            _ => Protocol::Http1,
        }
    }

    /// How service times are spread, if they are set.
    pub fn distribution(self) -> Option<Distribution> {
        match self {
            Self::Constant => Some(Distribution::Constant),
            Self::Exponential => Some(Distribution::Exponential),
            Self::Heavy => Some(Distribution::Heavy),
            _ => None,
        }
    }

    /// Whether wrk can measure it.
    fn is_http(self) -> bool {
        matches!(self, Self::Nginx | Self::Nginx10k | Self::Node)
    }

    /// Requests per second that leave this machine idle.
    fn idle_rate(self) -> f64 {
        match self {
            Self::Node => 4_000.0,
            _ => 6_000.0,
        }
    }
}

/// The condition that pods and connections are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scenario {
    /// 4 equal pods, the next request as soon as the last is answered
    Identical,
    /// 4 equal pods, an open loop far below what they can do
    Idle,
    /// As in `make demo`: compressed pages, connections that think, one of 4 pods at 5 % of a CPU
    Demo,
    /// One of 4 pods at 5 % of a CPU
    #[value(name = "one-at-5")]
    #[serde(rename = "one-at-5")]
    OneAt5,
    /// One of 4 pods at 25 %
    #[value(name = "one-at-25")]
    #[serde(rename = "one-at-25")]
    OneAt25,
    /// One of 4 pods at 50 %
    #[value(name = "one-at-50")]
    #[serde(rename = "one-at-50")]
    OneAt50,
    /// One of 4 pods needs twice the time for each request
    TwiceAsSlow,
    /// One of 4 pods is slow for 200 ms, then well for 200 ms
    Noisy,
    /// One of 4 pods falls to 5 % of a CPU at a known moment
    Onset,
    /// One of 4 pods is frozen for 2 s
    Frozen,
    /// 12 pods, connections of unequal rates, Zipf 0.9
    #[value(name = "zipf-0.9")]
    #[serde(rename = "zipf-0.9")]
    Zipf09,
    /// Zipf 1.0
    #[value(name = "zipf-1.0")]
    #[serde(rename = "zipf-1.0")]
    Zipf10,
    /// Zipf 1.2
    #[value(name = "zipf-1.2")]
    #[serde(rename = "zipf-1.2")]
    Zipf12,
    /// 2 pods become 6
    ScaleOut,
    /// All 4 pods become slow at once
    AllSlow,
}

impl Scenario {
    /// Its name on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |v| v.get_name().to_owned())
    }

    /// Pods that take part.
    pub fn pods(self) -> usize {
        match self {
            Self::Zipf09 | Self::Zipf10 | Self::Zipf12 => 12,
            Self::ScaleOut => SCALE.1,
            _ => 4,
        }
    }

    /// Exponent of Zipf's law for the connections' rates.
    fn zipf(self) -> Option<f64> {
        match self {
            Self::Zipf09 => Some(0.9),
            Self::Zipf10 => Some(1.0),
            Self::Zipf12 => Some(1.2),
            _ => None,
        }
    }

    /// Share of a CPU that the first pod has.
    pub fn limit_percent(self) -> Option<f64> {
        match self {
            Self::Demo | Self::OneAt5 => Some(5.0),
            Self::OneAt25 => Some(25.0),
            Self::OneAt50 => Some(50.0),
            _ => None,
        }
    }

    /// Whether its first pod is slow all the time.
    pub fn has_slow_pod(self) -> bool {
        self.limit_percent().is_some() || self == Self::TwiceAsSlow
    }

    /// Whether it makes sense with this server.
    fn fits(self, server: Server) -> bool {
        match self {
            Self::Demo => server == Server::Nginx,
            // A process cannot be made slower by a set factor, and a limit takes effect at no known
            // moment. Connections of unequal rates want servers that do not share CPUs.
            Self::TwiceAsSlow | Self::Onset | Self::Zipf09 | Self::Zipf10 | Self::Zipf12 => {
                server.distribution().is_some()
            }
            _ => true,
        }
    }

    /// Numbers of connections of the full matrix.
    fn connections_all(self) -> &'static [u32] {
        match self {
            Self::Identical | Self::Idle => &CONNECTIONS_ALL,
            Self::Demo => &[64],
            Self::Zipf09 | Self::Zipf10 | Self::Zipf12 => &[ZIPF_CONNECTIONS],
            Self::Onset => &[512],
            _ => &[8, 32, 128],
        }
    }

    /// The number of connections where none is asked for.
    fn connections(self) -> u32 {
        match self {
            Self::Demo => 64,
            Self::Zipf09 | Self::Zipf10 | Self::Zipf12 => ZIPF_CONNECTIONS,
            Self::ScaleOut => 128,
            // So many that those which wait for an answer of the slow pod are few of all.
            Self::Onset => 512,
            _ => CONNECTIONS,
        }
    }
}

/// How requests come.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Pattern {
    /// wrk: the next one as soon as the last is answered, or after a mean pause.
    Wrk {
        /// The pause.
        think_ms: u64,
    },
    /// The lab's client: the next one as soon as the last is answered.
    Closed,
    /// The lab's client: when they are due.
    Open {
        /// Over all connections.
        per_second: f64,
        /// Exponent of Zipf's law for connections.
        zipf: f64,
    },
}

/// One cell of the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// What is served.
    pub server: Server,
    /// In what condition.
    pub scenario: Scenario,
    /// Over how many connections.
    pub connections: u32,
    /// How requests come.
    pub pattern: Pattern,
    /// By default all rules have their turn, not only the judged one.
    #[serde(skip)]
    pub all_rules: bool,
}

impl Cell {
    fn new(server: Server, scenario: Scenario, connections: u32) -> Self {
        Self {
            server,
            scenario,
            connections,
            pattern: pattern(server, scenario, connections),
            all_rules: true,
        }
    }

    /// As in `node one-at-5 32`.
    pub fn name(&self) -> String {
        let (server, scenario) = (self.server.name(), self.scenario.name());
        format!("{server} {scenario} {}", self.connections)
    }

    /// Runs of each rule in one round: figures that vary much between runs want more of them.
    pub fn repeats(&self) -> u32 {
        if self.scenario == Scenario::Zipf10 { 2 } else { 1 }
    }

    /// How long one run takes, if a plain one takes `length`.
    pub fn length(&self, length: Duration) -> Duration {
        match self.scenario {
            Scenario::Frozen => FREEZE.iter().sum(),
            Scenario::Onset => ONSET.iter().sum(),
            Scenario::ScaleOut => SCALE_AT + SCALE_WATCH,
            Scenario::AllSlow | Scenario::Demo => length * 2,
            _ => length,
        }
    }
}

fn pattern(server: Server, scenario: Scenario, connections: u32) -> Pattern {
    let open = |per_second: f64, zipf: f64| Pattern::Open { per_second, zipf };
    let capacity = |pods: usize| pods as f64 / SERVICE_MEAN.as_secs_f64();
    let set = server.distribution().is_some();
    match scenario {
        Scenario::Demo => Pattern::Wrk { think_ms: 40 },
        _ if let Some(zipf) = scenario.zipf() => {
            let busiest = zipf_shares(connections as usize, zipf)[0];
            let most = BUSIEST / (busiest * SERVICE_MEAN.as_secs_f64());
            open(most.min(capacity(scenario.pods()) * UTILIZATION), zipf)
        }
        Scenario::Idle if set => open(capacity(4) * UTILIZATION_IDLE, 0.0),
        Scenario::OneAt50 if set => open(capacity(4) * UTILIZATION_HALF, 0.0),
        Scenario::Idle | Scenario::Frozen if !set => open(server.idle_rate(), 0.0),
        Scenario::Identical | Scenario::AllSlow if set => Pattern::Closed,
        Scenario::ScaleOut if set => open(capacity(SCALE.0) * UTILIZATION, 0.0),
        Scenario::ScaleOut => open(server.idle_rate(), 0.0),
        _ if set => open(capacity(4) * UTILIZATION, 0.0),
        Scenario::Noisy | Scenario::AllSlow => Pattern::Closed,
        _ if server.is_http() => Pattern::Wrk { think_ms: 0 },
        _ => Pattern::Closed,
    }
}

/// What can be combined, for who asked for what cannot.
pub fn applicable() -> String {
    let fits = |scenario: &Scenario| {
        let servers: Vec<_> = Server::value_variants()
            .iter()
            .filter(|s| scenario.fits(**s))
            .map(|s| s.name())
            .collect();
        format!("{} with {}", scenario.name(), servers.join(", "))
    };
    let all: Vec<_> = Scenario::value_variants().iter().map(fits).collect();
    all.join("; ")
}

/// The cells that are asked for.
pub fn cells(arguments: &PlacementArguments) -> Vec<Cell> {
    let filtered = !arguments.servers.is_empty()
        || !arguments.scenarios.is_empty()
        || !arguments.connections.is_empty();
    if !filtered && !arguments.full {
        return default_cells();
    }
    let or_all = |given: &[Server]| match given {
        [] => Server::value_variants().to_vec(),
        _ => given.to_vec(),
    };
    let mut cells = Vec::new();
    for scenario in Scenario::value_variants() {
        if !arguments.scenarios.is_empty() && !arguments.scenarios.contains(scenario) {
            continue;
        }
        for server in or_all(&arguments.servers) {
            if !scenario.fits(server) {
                continue;
            }
            let connections = match &arguments.connections[..] {
                [] if arguments.full => scenario.connections_all().to_vec(),
                [] => vec![scenario.connections()],
                given => given.to_vec(),
            };
            let cell = |c| Cell::new(server, *scenario, c);
            cells.extend(connections.into_iter().map(cell));
        }
    }
    cells
}

/// Each row of what the bench must show, in some 40 minutes.
pub fn default_cells() -> Vec<Cell> {
    use Scenario as S;
    use Server as V;
    let all = |server, scenario: Scenario| Cell::new(server, scenario, scenario.connections());
    let two = |server, scenario, connections| Cell {
        all_rules: false,
        ..Cell::new(server, scenario, connections)
    };
    vec![
        two(V::Nginx, S::Identical, 1),
        two(V::Nginx, S::Identical, 8),
        all(V::Nginx, S::Identical),
        two(V::Nginx, S::Identical, 128),
        two(V::Nginx, S::Identical, 512),
        two(V::Nginx10k, S::Identical, 32),
        all(V::Node, S::Identical),
        two(V::Node, S::Identical, 128),
        two(V::Redis, S::Identical, 32),
        two(V::Memcached, S::Identical, 32),
        two(V::Exponential, S::Identical, 32),
        two(V::Heavy, S::Identical, 32),
        two(V::Nginx, S::Idle, 32),
        two(V::Node, S::Idle, 32),
        two(V::Exponential, S::Idle, 32),
        two(V::Nginx, S::Demo, 64),
        all(V::Node, S::OneAt5),
        two(V::Node, S::OneAt25, 32),
        all(V::Exponential, S::OneAt50),
        all(V::Exponential, S::TwiceAsSlow),
        all(V::Exponential, S::Noisy),
        two(V::Node, S::Noisy, 32),
        two(V::Exponential, S::Onset, 512),
        two(V::Nginx, S::Frozen, 32),
        all(V::Exponential, S::Zipf10),
        two(V::Exponential, S::Zipf09, ZIPF_CONNECTIONS),
        two(V::Exponential, S::Zipf12, ZIPF_CONNECTIONS),
        two(V::Nginx, S::ScaleOut, 128),
        two(V::Node, S::AllSlow, 32),
        two(V::Exponential, S::AllSlow, 32),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_cell_makes_sense_and_none_is_there_twice() {
        let cells = default_cells();
        for (i, cell) in cells.iter().enumerate() {
            assert!(cell.scenario.fits(cell.server), "{}", cell.name());
            assert!(!cells[..i].iter().any(|c| c.name() == cell.name()));
        }
    }

    #[test]
    fn no_unequal_connection_asks_for_more_than_one_pod_can_do() {
        for scenario in [Scenario::Zipf09, Scenario::Zipf10, Scenario::Zipf12] {
            let cell = Cell::new(Server::Constant, scenario, ZIPF_CONNECTIONS);
            let Pattern::Open { per_second, zipf } = cell.pattern else {
                panic!("{:?}", cell.pattern);
            };
            let busiest = zipf_shares(ZIPF_CONNECTIONS as usize, zipf)[0] * per_second;
            assert!(busiest * SERVICE_MEAN.as_secs_f64() <= BUSIEST + 1e-9);
            let pool = per_second * SERVICE_MEAN.as_secs_f64() / 12.0;
            assert!((0.15..=UTILIZATION + 1e-9).contains(&pool), "{pool}");
        }
    }
}
