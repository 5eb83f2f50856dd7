//! What a soak over a faulty path came to: as JSON for machines, as a few lines for people, and its
//! verdict.

use crate::bench::{counters, duration, grouped};
use baton_api::{MoveMethod, State};
use baton_lab::{Counts, FaultCounts, FaultRates, Latency, LoadReport};
use serde::Serialize;
use std::collections::BTreeMap;

/// Errors of the loads that a client sees as the end of its connection.
const ENDS: [&str; 4] = ["reset", "closed", "connect", "io"];

/// The counter of moves by translation.
const TRANSLATIONS: &str = "openings_total{result=\"opened\"}";

/// Everything that `report.json` holds.
#[derive(Debug, Serialize)]
pub struct SoakReport {
    /// What happened to which packet follows from it.
    pub seed: u64,
    /// Migrations that were asked for.
    pub wanted: u64,
    /// How connections moved.
    pub method: MoveMethod,
    /// Confirmed migrations since the faults began.
    pub migrations: u64,
    /// HTTP requests that were answered right since then.
    pub requests: u64,
    /// Those with responses of up to 1 MB among them.
    pub large_requests: u64,
    /// Pods that were drained for some seconds.
    pub drains: u64,
    /// Redis commands that were answered right since then.
    pub commands: u64,
    /// Answers with a wrong byte, and effects in the servers that are missing, wrong or there
    /// twice.
    pub wrong_bytes: u64,
    /// Connections that ended under a client.
    pub resets: u64,
    /// Requests that were not answered in time.
    pub timeouts: u64,
    /// Errors by kind.
    pub errors: Counts,
    /// Seconds from the first fault to the last answer.
    pub seconds: f64,
    /// Migrations per second.
    pub migrations_per_second: f64,
    /// Migrations by translation, since the dataplane's start.
    pub translations: u64,
    /// Adoption segments that had to be sent again.
    pub adoption_retries: u64,
    /// Adoptions taken back.
    pub rollbacks: u64,
    /// Persistent connections of both loads together.
    pub connections: u64,
    /// Of 1,000 packets, at each veth, in each direction.
    pub rates: FaultRates,
    /// What the fault program did, by side and direction.
    pub faults: BTreeMap<String, FaultCounts>,
    /// The same, all together.
    pub faults_total: FaultCounts,
    /// Frames that the fault program lost or hurried without being asked to.
    pub faults_unasked: u64,
    /// Frames that the dataplane's own interface dropped, because the machine gave it no CPU in
    /// time.
    pub interface_drops: u64,
    /// Latencies of HTTP requests.
    pub http_latency: Latency,
    /// Latencies of redis commands.
    pub redis_latency: Latency,
    /// Flows that ended because of Baton, by policy and reason.
    pub lost: BTreeMap<String, u64>,
    /// Flows that could not move any more, by policy and reason.
    pub pinned: BTreeMap<String, u64>,
    /// What the node's connection tracking says, where it tracks.
    pub tracked: Option<Tracked>,
    /// Every counter of the dataplane that is not 0, since its start.
    pub metrics: BTreeMap<String, u64>,
}

/// The node's table of connections.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Tracked {
    /// Entries that it may have: the dataplane's, and those of the loads.
    pub limit: u64,
    /// Most entries at one look.
    pub entries_max: u64,
    /// Packets that tracking called INVALID, which the node drops.
    pub invalid: u64,
}

/// What had been done when the faults began.
#[derive(Clone, Copy, Debug)]
pub struct Before {
    pub migrations: u64,
    pub requests: u64,
    pub commands: u64,
    pub files: u64,
}

/// What ran, and what the loads and the fault program say of it.
pub struct Outcome<'a> {
    pub seed: u64,
    pub wanted: u64,
    pub method: MoveMethod,
    pub before: Before,
    pub connections: u64,
    pub rates: FaultRates,
    pub seconds: f64,
    pub web: &'a LoadReport,
    pub redis: &'a LoadReport,
    pub files: &'a LoadReport,
    pub drains: u64,
    pub faults: BTreeMap<String, FaultCounts>,
    pub faults_unasked: u64,
    pub tracked: Option<Tracked>,
}

impl SoakReport {
    /// Puts it together with what the dataplane says.
    pub fn new(outcome: Outcome<'_>, state: &State) -> Self {
        let mut errors = outcome.web.errors.clone();
        for (kind, count) in outcome.redis.errors.iter().chain(&outcome.files.errors) {
            *errors.entry(kind.clone()).or_default() += count;
        }
        let of = |kinds: &[&str]| -> u64 {
            let found = errors.iter().filter(|(k, _)| kinds.contains(&k.as_str()));
            found.map(|(_, n)| n).sum()
        };
        let (resets, timeouts) = (of(&ENDS), of(&["timeout"]));
        let all: u64 = errors.values().sum();
        let mut faults_total = FaultCounts::default();
        outcome.faults.values().for_each(|c| faults_total += *c);
        let counter = |name: &str| state.counters.get(name).copied().unwrap_or(0);
        let before = outcome.before;
        let migrations = counter("migrations_total") - before.migrations;
        let large_requests = outcome.files.requests - before.files;
        let by_reason = |of: fn(&baton_api::PolicyState) -> &BTreeMap<String, u64>| {
            let policies = state.policies.iter();
            let named =
                policies.flat_map(|p| of(p).iter().map(|(r, n)| (format!("{}: {r}", p.name), *n)));
            named.filter(|(_, n)| *n > 0).collect()
        };
        Self {
            seed: outcome.seed,
            wanted: outcome.wanted,
            method: outcome.method,
            migrations,
            requests: outcome.web.requests - before.requests + large_requests,
            large_requests,
            drains: outcome.drains,
            commands: outcome.redis.requests - before.commands,
            wrong_bytes: all - resets - timeouts,
            resets,
            timeouts,
            seconds: outcome.seconds,
            migrations_per_second: migrations as f64 / outcome.seconds.max(1e-9),
            translations: counter(TRANSLATIONS),
            adoption_retries: counter("adoption_retries_total"),
            rollbacks: counter("rollbacks_total"),
            connections: outcome.connections,
            rates: outcome.rates,
            faults: outcome.faults,
            faults_total,
            faults_unasked: outcome.faults_unasked,
            interface_drops: state
                .counters
                .iter()
                .filter(|(name, _)| name.starts_with("io_drops_total"))
                .map(|(_, n)| n)
                .sum(),
            http_latency: outcome.web.latency,
            redis_latency: outcome.redis.latency,
            lost: by_reason(|p| &p.lost_total),
            pinned: by_reason(|p| &p.pins_total),
            tracked: outcome.tracked,
            metrics: counters(state),
            errors,
        }
    }

    /// Why it did not show what it is for; empty if it did.
    pub fn failures(&self) -> Vec<String> {
        let metric = |name: &str| self.metrics.get(name).copied().unwrap_or(0);
        let zeros = [
            ("answers with wrong bytes", self.wrong_bytes),
            ("connections ended under their clients", self.resets),
            ("requests without an answer in time", self.timeouts),
            ("flows lost", self.lost.values().sum()),
            ("flows pinned", self.pinned.values().sum()),
            // A late copy of a closed connection's segment draws one as from any kernel, and nobody
            // sees it.
            (
                "resets sent to clients of living flows",
                metric("resets_sent_total{to=\"client\"}")
                    .saturating_sub(metric("drops_total{reason=\"no_flow\"}")),
            ),
            ("events that no state foresees", metric("unexpected_events_total")),
            ("frames lost by the fault program's own limits", self.faults_unasked),
        ];
        let mut failures: Vec<String> = zeros
            .iter()
            .filter(|(_, n)| *n > 0)
            .map(|(what, n)| format!("{} {what}", grouped(*n)))
            .collect();
        if self.migrations < self.wanted {
            failures.push(format!("only {} migrations", grouped(self.migrations)));
        }
        if let Some(table) = self.tracked.filter(|t| t.entries_max > t.limit) {
            let [had, limit] = [table.entries_max, table.limit].map(grouped);
            failures.push(format!("the node's table had {had} entries, more than {limit}"));
        }
        match self.method {
            MoveMethod::Translation if self.translations < self.migrations => {
                failures.push(format!("only {} translations", grouped(self.translations)));
            }
            MoveMethod::Adoption if self.translations > 0 => {
                failures.push(format!("{} translations", grouped(self.translations)));
            }
            _ => {}
        }
        let done = self.faults_total;
        let asked = [
            ("lost", self.rates.lost, done.lost),
            ("reordered", self.rates.held, done.overtaken),
            ("doubled", self.rates.doubled, done.doubled),
            ("corrupted", self.rates.corrupted, done.corrupted),
        ];
        let missing = asked.iter().filter(|(_, rate, done)| *rate > 0 && *done == 0);
        failures.extend(missing.map(|(what, ..)| format!("no packet was {what}")));
        failures
    }

    /// For people.
    pub fn text(&self) -> String {
        let f = self.faults_total;
        let latency = |p: &Latency| {
            let [p50, p99, max] = [p.p50_us, p.p99_us, p.max_us].map(duration);
            format!("p50 {p50}, p99 {p99}, max {max}")
        };
        let mut text = format!(
            "{} migrations ({} by translation) in {:.0} s ({} a second), {} HTTP requests ({} with responses of up to 1 MB), {} redis \
             commands, {} drains\n\
             wrong bytes {}, client-visible resets {}, timeouts {}\n\
             packets: {} lost, {} held back ({} overtook them), {} doubled, {} corrupted, of {}; {} dropped by the \
             busy machine beside\n\
             adoptions sent again {}, taken back {}; flows pinned {:?}, lost {:?}\n\
             HTTP: {}; redis: {}",
            grouped(self.migrations),
            grouped(self.translations),
            self.seconds,
            grouped(self.migrations_per_second as u64),
            grouped(self.requests),
            grouped(self.large_requests),
            grouped(self.commands),
            self.drains,
            self.wrong_bytes,
            self.resets,
            self.timeouts,
            grouped(f.lost),
            grouped(f.held),
            grouped(f.overtaken),
            grouped(f.doubled),
            grouped(f.corrupted),
            grouped(f.seen),
            grouped(self.interface_drops),
            grouped(self.adoption_retries),
            grouped(self.rollbacks),
            self.pinned,
            self.lost,
            latency(&self.http_latency),
            latency(&self.redis_latency),
        );
        if let Some(table) = self.tracked {
            text += &format!(
                "\nthe node's table: {} entries at most of {}; {} packets INVALID",
                grouped(table.entries_max),
                grouped(table.limit),
                grouped(table.invalid)
            );
        }
        text
    }
}
