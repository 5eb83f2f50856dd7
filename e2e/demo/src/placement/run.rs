//! One run: a dataplane of its own with one rule, a load, what happens meanwhile, and what came of
//! it.
//!
//! Owns the order of these steps and the figures. The dataplane is started anew each time, so that
//! no rule profits from what another one learned; the servers stay.

use super::{
    Variant,
    cluster::{Clusters, exchange, target},
    matrix::{Cell, Pattern, SCALE, Scenario},
    running::{Bench, Counted, Running, Seen},
    timeline,
};
use crate::{bench::duration, scene};
use anyhow::{Result, ensure};
use baton_api::{Micros, Policy};
use baton_lab::{
    Arrivals, Dataplane, DataplaneConfig, Latency, Load, LoadOptions, SpreadOptions, WrkOptions,
    policy, spread,
};
use serde::Serialize;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// What a run takes beside its length: start and end of the dataplane, the load's beginning.
pub const AROUND: Duration = Duration::from_millis(1_200);
/// A machine that does nothing else is below this: its own daemons take a hundredth at most.
const DISTURBED_SHARE: f64 = 0.03;
const PORT: u16 = 80;
/// With a frozen pod, what `make bench-rescue` has too.
const RESPONSE_TIMEOUT: Micros = Micros::from_millis(50);
/// The demo's requests.
const DEMO_TARGET: &str = "/page";

/// The figures of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// Cell.
    #[serde(flatten)]
    pub cell: Cell,
    /// Rule.
    pub rule: String,
    /// Round, from 1.
    pub round: u32,
    /// Place in the order of all runs, from 1.
    pub number: usize,
    /// Right responses per second.
    pub per_second: f64,
    /// Latencies.
    pub latency: Latency,
    /// Moves per request.
    pub moved_share: f64,
    /// Moves.
    pub moves: u64,
    /// Moves that were taken back.
    pub rollbacks: u64,
    /// Moves by cause.
    pub moves_by_cause: BTreeMap<String, u64>,
    /// CPU time of the dataplane per request.
    pub dataplane_cpu_us: f64,
    /// CPU time of all servers per request, kernel work on their behalf included.
    pub servers_cpu_us: f64,
    /// Share of this machine's CPUs that processes beside the bench used meanwhile: above some
    /// hundredths the run is disturbed.
    pub others_cpu_share: f64,
    /// Errors that clients saw.
    pub errors: u64,
    /// The same by kind.
    pub errors_by_kind: BTreeMap<String, u64>,
    /// Requests that were due and not sent before the end (open loop).
    pub unsent: u64,
    /// What only this condition has.
    pub extra: BTreeMap<&'static str, f64>,
}

impl Bench<'_> {
    /// Runs one rule in one cell.
    pub fn run(&mut self, cell: &Cell, variant: &Variant, seed: u64) -> Result<Run> {
        if let Some(fewest) = variant.direct {
            return self.direct(cell, variant, fewest);
        }
        let servers = self.clusters.servers(cell.server);
        let pods = match cell.scenario {
            Scenario::ScaleOut => 0..SCALE.0,
            scenario => usize::from(variant.without_first)..scenario.pods(),
        };
        let policy_for = |servers: &[_]| Policy {
            protocol: cell.server.protocol(),
            migration: variant.migration,
            response_timeout: (cell.scenario == Scenario::Frozen).then_some(RESPONSE_TIMEOUT),
            ..policy("bench", PORT, servers)
        };
        let config = self.lab.dataplane_config(vec![policy_for(&servers[pods])])?;
        let mut dataplane = scene::dataplane(self.lab, &config)?;
        self.clusters.prepare(cell)?;
        let cpu = |clusters: &Clusters, dataplane: &Dataplane| {
            (dataplane.process.cpu_time(), clusters.cpu_time(cell))
        };
        let before = cpu(self.clusters, &dataplane);
        let (others, start) = (self.lab.others_cpu_time(), Instant::now());
        let all = policy_for(&servers[..cell.scenario.pods()]);
        let seen = match cell.pattern {
            Pattern::Wrk { think_ms } => self.wrk(cell, &dataplane, think_ms),
            _ => self.own(cell, &mut dataplane, config, all, seed),
        };
        let others = self.lab.others_cpu_time().saturating_sub(others);
        let others_cpu_share = cpu_share(others, start);
        let after = cpu(self.clusters, &dataplane);
        let total = Counted::of(&dataplane)?;
        self.clusters.recover(cell)?;
        dataplane.stop()?;
        let seen = seen?;
        ensure!(total.requests > 0 && seen.report.requests > 0, "no response");
        let costs = Costs {
            dataplane: after.0.saturating_sub(before.0),
            servers: after.1.saturating_sub(before.1),
            others_cpu_share,
        };
        Ok(Run::new(cell, variant, seen, total, &costs))
    }

    /// No dataplane is between.
    fn direct(&self, cell: &Cell, variant: &Variant, fewest: bool) -> Result<Run> {
        let servers = self.clusters.servers(cell.server);
        let servers: Vec<_> = servers.into_iter().map(|(_, address)| address).collect();
        let exchange = exchange(cell.server, servers[0]);
        let options = SpreadOptions {
            servers,
            at_once: cell.connections as usize,
            duration: cell.length(self.length),
            fewest,
        };
        let before = self.clusters.cpu_time(cell);
        let (others, start) = (self.lab.others_cpu_time(), Instant::now());
        let (report, moves) = spread(self.lab.client().namespace(), options, exchange)?;
        let others = self.lab.others_cpu_time().saturating_sub(others);
        let costs = Costs {
            dataplane: Duration::ZERO,
            servers: self.clusters.cpu_time(cell).saturating_sub(before),
            others_cpu_share: cpu_share(others, start),
        };
        let total = Counted { requests: report.requests, moves, ..Counted::default() };
        let seen = Seen {
            report,
            moved_share: total.share_since(&Counted::default()),
            extra: BTreeMap::new(),
        };
        Ok(Run::new(cell, variant, seen, total, &costs))
    }

    fn wrk(&self, cell: &Cell, dataplane: &Dataplane, think_ms: u64) -> Result<Seen> {
        let demo = cell.scenario == Scenario::Demo;
        let wrk = self.lab.client().wrk(&WrkOptions {
            connections: cell.connections,
            target: if demo { DEMO_TARGET } else { target(cell.server) }.to_owned(),
            think: Duration::from_millis(think_ms),
            headers: if demo {
                vec![("Accept-Encoding".to_owned(), "gzip".to_owned())]
            } else {
                Vec::new()
            },
            ..WrkOptions::new(dataplane.address(PORT), cell.length(self.length))
        })?;
        let report = wrk.join()?;
        let counted = Counted::of(dataplane)?;
        Ok(Seen {
            report,
            moved_share: counted.share_since(&Counted::default()),
            extra: BTreeMap::new(),
        })
    }

    fn own(
        &mut self,
        cell: &Cell,
        dataplane: &mut Dataplane,
        config: DataplaneConfig,
        policy_of_all: Policy,
        seed: u64,
    ) -> Result<Seen> {
        let address = dataplane.address(PORT);
        let options = LoadOptions {
            connections: cell.connections as usize,
            arrivals: match cell.pattern {
                Pattern::Open { per_second, zipf } => Some(Arrivals { per_second, zipf, seed }),
                _ => None,
            },
            ..LoadOptions::new(address)
        };
        let load =
            Load::start(self.lab.client().namespace(), options, exchange(cell.server, address))?;
        let mut running = Running { load: &load, dataplane, config, policy_of_all };
        let marks = timeline::follow(self, cell, &mut running);
        load.progress().enough();
        let (report, _) = load.join()?;
        marks?.seen(report)
    }
}

/// The share of all CPUs since `start` that a time is.
fn cpu_share(time: Duration, start: Instant) -> f64 {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    time.as_secs_f64() / start.elapsed().as_secs_f64() / cpus
}

/// CPU time that a run took.
struct Costs {
    dataplane: Duration,
    servers: Duration,
    others_cpu_share: f64,
}

impl Run {
    fn new(cell: &Cell, variant: &Variant, seen: Seen, total: Counted, costs: &Costs) -> Self {
        let each = |d: Duration| d.as_secs_f64() * 1e6 / total.requests as f64;
        Self {
            cell: *cell,
            rule: variant.name.clone(),
            round: 0,
            number: 0,
            per_second: seen.report.per_second(),
            latency: seen.report.latency,
            moved_share: seen.moved_share,
            moves: total.moves,
            rollbacks: total.rollbacks,
            moves_by_cause: total.by_cause,
            dataplane_cpu_us: each(costs.dataplane),
            servers_cpu_us: each(costs.servers),
            others_cpu_share: costs.others_cpu_share,
            errors: seen.report.error_count(),
            errors_by_kind: seen.report.errors,
            unsent: seen.report.unsent,
            extra: seen.extra,
        }
    }

    /// Whether others had so much of the CPUs that the figures say little.
    pub fn is_disturbed(&self) -> bool {
        self.others_cpu_share > DISTURBED_SHARE
    }

    /// In short, for who waits.
    pub fn line(&self) -> String {
        let mut text = format!(
            "{:<13} {:>7.0}/s  p99 {:>8}  moved {:>6.2} %",
            self.rule,
            self.per_second,
            duration(self.latency.p99_us),
            self.moved_share * 100.0,
        );
        if self.is_disturbed() {
            text += &format!("  disturbed ({:.0} %)", self.others_cpu_share * 100.0);
        }
        if self.errors > 0 {
            text += &format!("  {} ERRORS", self.errors);
        }
        text
    }
}
