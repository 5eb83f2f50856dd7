//! The soak on a node that tracks connections and drops what tracking calls INVALID, as
//! kube-proxy's rule in iptables mode does: 64 busy connections, moves at full rate, pods throttled
//! and killed, and no request may wait.
//!
//! Owns the order of things and the verdict. Two acts with a lab of their own, so that each begins
//! with an empty table: `WhenBetter` with a pod throttled on and off, then `Always`; pods are
//! killed and started again in both.

use crate::{
    TrackedArguments,
    bench::{Columns, counters, duration, grouped, keep, line, succeeded, table},
    progress::Progress,
    scene::{self, Baton, moves},
};
use anyhow::{Result, ensure};
use baton_api::{Limits, Migration, MigrationMode, Policy, State};
use baton_lab::{
    Counts, HttpEcho, Lab, Latency, Load, LoadReport, Server, Slow, Tracked, Tracker, policy,
};
use serde::Serialize;
use std::{
    fmt::Write as _,
    sync::atomic::Ordering,
    thread,
    time::{Duration, Instant},
};

const PORT: u16 = 80;
const PODS: usize = 4;
const POLICY: &str = "web";
/// Of one CPU, in percent: the pod's own answers take 90 ms at worst, far below what counts as
/// slow.
const THROTTLE: f64 = 10.0;
/// So long a pod is throttled, and so long none is.
const THROTTLED: Duration = Duration::from_secs(2);
/// From one kill to the next.
const KILL_EVERY: Duration = Duration::from_secs(5);
const COLUMNS: &Columns = &[
    ("mode", -12),
    ("requests", 12),
    ("a second", 9),
    ("errors", 8),
    (">500 ms", 9),
    ("conn.", 7),
    ("p99", 10),
    ("max", 10),
    ("moves", 12),
    ("entries", 10),
    ("INVALID", 10),
    ("kills", 7),
];
const LOOK: Duration = Duration::from_millis(100);

/// What `tracked.json` holds.
#[derive(Debug, Serialize)]
struct TrackedReport {
    minutes: u64,
    connections: usize,
    leg_ports: String,
    /// What is INVALID was only counted.
    forward_invalid: bool,
    /// Entries that the table may have.
    entries_limit: u64,
    /// `nf_conntrack_max` of this machine.
    entries_max_of_machine: u64,
    acts: Vec<Act>,
}

/// One act.
#[derive(Debug, Serialize)]
struct Act {
    mode: MigrationMode,
    seconds: f64,
    requests: u64,
    errors: Counts,
    slow: Slow,
    latency: Latency,
    moves: u64,
    rescues: u64,
    /// Why requests stayed where a move was wanted, by reason.
    stayed: Counts,
    kills: u64,
    throttles: u64,
    /// Most entries of the table at one look.
    entries_max: u64,
    /// The table's TCP entries at the end, by state.
    entries_at_end: Counts,
    /// Packets that tracking called INVALID, which the node drops.
    invalid: u64,
    /// Counters of the dataplane that are not 0.
    counters: Counts,
}

/// Everything that runs. Fields end in the order in which they are declared.
struct Scene<'a> {
    load: Load<HttpEcho>,
    baton: Baton,
    nginx: Vec<Server>,
    tracker: Tracker,
    lab: &'a Lab,
}

/// What was done to the pods, and how full the table was.
#[derive(Default)]
struct Done {
    kills: u64,
    throttles: u64,
    entries_max: u64,
}

/// Runs both acts. `true` if no client noticed and the table stayed below its limit.
pub fn soak(arguments: &TrackedArguments) -> Result<bool> {
    let length = Duration::from_secs(60 * arguments.minutes) / 2;
    let mut report = TrackedReport {
        minutes: arguments.minutes,
        connections: usize::from(arguments.connections),
        leg_ports: arguments.ports.clone(),
        forward_invalid: arguments.forward_invalid,
        entries_limit: u64::from(arguments.entries),
        entries_max_of_machine: 0,
        acts: Vec::new(),
    };
    for mode in [MigrationMode::WhenBetter, MigrationMode::Always] {
        let lab = scene::lab("tracked", PODS)?;
        let (done, limit) = act(&lab, mode, arguments, length)?;
        lab.remove()?;
        eprintln!("{}", line(COLUMNS, &done.cells()));
        report.entries_max_of_machine = limit;
        report.acts.push(done);
    }
    let path = keep(&arguments.out, "tracked.json", &report)?;
    println!("{}\nReport: {}", report.table(), path.display());
    Ok(succeeded(&report.failures()))
}

fn act(
    lab: &Lab,
    mode: MigrationMode,
    arguments: &TrackedArguments,
    length: Duration,
) -> Result<(Act, u64)> {
    let nginx = scene::nginx(lab)?;
    let servers = scene::named(&nginx);
    let tracker = if arguments.forward_invalid { lab.track_only()? } else { lab.track()? };
    let mut config = lab.dataplane_config(vec![Policy {
        migration: Migration { mode, ..Migration::default() },
        ..policy(POLICY, PORT, &servers)
    }])?;
    config.ports = arguments.ports.clone();
    config.limits = Some(Limits { tracked_pairs: arguments.entries, ..Limits::default() });
    let baton = Baton::start(lab, &config)?;
    let options = baton.load(PORT, usize::from(arguments.connections));
    let mut scene = Scene {
        load: HttpEcho::start(lab.client().namespace(), options)?,
        baton,
        nginx,
        tracker,
        lab,
    };
    let done = scene.play(mode, length)?;
    // Before the load ends, so that what is left of its own connections is not taken for the legs'.
    let tracked = scene.tracker.by_state()?;
    let state = scene.baton.dataplane.state()?;
    let (report, _) = scene.load.stop()?;
    let invalid = scene.tracker.invalid()?;
    let limit = scene.tracker.entries_max()?;
    scene.baton.stop()?;
    Ok((Act::new(mode, &report, &done, tracked, invalid, &state), limit))
}

impl Scene<'_> {
    /// Throttles and kills until the time is over.
    fn play(&mut self, mode: MigrationMode, length: Duration) -> Result<Done> {
        let mut done = Done::default();
        let mut progress = Progress::start(&format!("tracked, {mode:?}"), Some(length));
        let (start, mut killed, mut changed) = (Instant::now(), Instant::now(), Instant::now());
        let slow = &self.lab.pods()[0];
        let mut throttled = false;
        while start.elapsed() < length {
            ensure!(!self.load.is_finished(), "the load has ended by itself");
            if mode == MigrationMode::WhenBetter && changed.elapsed() >= THROTTLED {
                throttled = !throttled;
                changed = Instant::now();
                if throttled {
                    slow.throttle(THROTTLE)?;
                    done.throttles += 1;
                } else {
                    slow.unthrottle()?;
                }
            }
            if killed.elapsed() >= KILL_EVERY {
                // Never the one that may be throttled, which would start slowly.
                let at = 1 + usize::try_from(done.kills)? % (PODS - 1);
                self.nginx[at].process.crash()?;
                self.nginx[at].restart()?;
                killed = Instant::now();
                done.kills += 1;
            }
            done.entries_max = done.entries_max.max(self.tracker.entries()?);
            let live = self.load.progress();
            progress.tick(&format!(
                "{} requests, {} errors, {} moved, {} entries, {} INVALID, {} kills",
                grouped(live.requests.load(Ordering::Relaxed)),
                grouped(live.errors.load(Ordering::Relaxed)),
                grouped(moves(&self.baton.dataplane.state()?, POLICY).0),
                grouped(done.entries_max),
                grouped(self.tracker.invalid()?),
                done.kills,
            ));
            thread::sleep(LOOK);
        }
        progress.finish();
        slow.unthrottle()?;
        Ok(done)
    }
}

impl Act {
    fn new(
        mode: MigrationMode,
        report: &LoadReport,
        done: &Done,
        tracked: Tracked,
        invalid: u64,
        state: &State,
    ) -> Self {
        let counters = counters(state);
        let stayed = counters.iter().filter_map(|(name, count)| {
            let reason = name.strip_prefix("stays_total{reason=\"")?.strip_suffix("\"}")?;
            Some((reason.to_owned(), *count))
        });
        Self {
            mode,
            seconds: report.elapsed.as_secs_f64(),
            requests: report.requests,
            errors: report.errors.clone(),
            slow: report.slow,
            latency: report.latency,
            moves: moves(state, POLICY).0,
            rescues: state.policies.iter().map(|p| p.rescues_total).sum(),
            stayed: stayed.collect(),
            kills: done.kills,
            throttles: done.throttles,
            entries_max: done.entries_max,
            entries_at_end: tracked.tcp,
            invalid,
            counters,
        }
    }

    fn cells(&self) -> Vec<String> {
        let per_second = self.requests as f64 / self.seconds.max(1e-9);
        vec![
            format!("{:?}", self.mode),
            grouped(self.requests),
            grouped(per_second as u64),
            grouped(self.errors.values().sum()),
            grouped(self.slow.requests),
            grouped(self.slow.connections),
            duration(self.latency.p99_us),
            duration(self.latency.max_us),
            grouped(self.moves),
            grouped(self.entries_max),
            grouped(self.invalid),
            self.kills.to_string(),
        ]
    }
}

impl TrackedReport {
    fn table(&self) -> String {
        let mut text = "\n".to_owned() + &table(COLUMNS, self.acts.iter().map(Act::cells));
        for act in &self.acts {
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "{:?}: stayed {:?}; entries at the end {:?}; errors {:?}",
                act.mode, act.stayed, act.entries_at_end, act.errors
            );
        }
        let _ = write!(
            text,
            "{} connections; `conn.` is how many of them had such a request; `entries` the most that the node's table had, \
             of {} that it may have.",
            self.connections,
            grouped(self.entries_limit)
        );
        text
    }

    /// Why it did not show what it is for; empty if it did.
    fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        for act in &self.acts {
            let mut fail = |what: String| failures.push(format!("{:?}: {what}", act.mode));
            if !act.errors.is_empty() {
                fail(format!("clients saw errors: {:?}", act.errors));
            }
            if act.slow.requests > 0 {
                fail(format!(
                    "{} requests on {} connections took more than 500 ms",
                    act.slow.requests, act.slow.connections
                ));
            }
            if act.entries_max > self.entries_limit {
                fail(format!(
                    "the table had {} entries, more than {}",
                    act.entries_max, self.entries_limit
                ));
            }
            if act.moves == 0 || act.kills == 0 {
                fail("nothing moved, or no pod was killed: this shows nothing".into());
            }
        }
        failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_to_fail_is_found() {
        let good = || Act {
            mode: MigrationMode::Always,
            seconds: 1.0,
            requests: 1,
            errors: Counts::new(),
            slow: Slow::default(),
            latency: Latency::default(),
            moves: 1,
            rescues: 0,
            stayed: Counts::new(),
            kills: 1,
            throttles: 0,
            entries_max: 10,
            entries_at_end: Counts::new(),
            invalid: 0,
            counters: Counts::new(),
        };
        let failures = |act: Act| {
            let report = TrackedReport {
                minutes: 1,
                connections: 1,
                leg_ports: String::new(),
                forward_invalid: false,
                entries_limit: 10,
                entries_max_of_machine: 10,
                acts: vec![act],
            };
            report.failures().len()
        };
        assert_eq!(failures(good()), 0);
        let slow = Slow { requests: 1, connections: 1 };
        assert_eq!(failures(Act { slow, ..good() }), 1);
        assert_eq!(failures(Act { entries_max: 11, ..good() }), 1);
        assert_eq!(failures(Act { moves: 0, ..good() }), 1);
        assert_eq!(failures(Act { kills: 0, ..good() }), 1);
        let errors = Counts::from([("reset".to_owned(), 1)]);
        assert_eq!(failures(Act { errors, ..good() }), 1);
    }
}
