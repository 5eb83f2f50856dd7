//! Short connections through address translation of the kernel, HAProxy and Baton in the same
//! place, in turns: each request has a connection of its own, and the server closes it, and closes
//! it first.
//!
//! Every turn has a lab of its own, so that no closed connection of another turn is remembered
//! anywhere. What is timed is from the client's SYN to the last byte of the right answer; the next
//! connection begins when the server's FIN is there. The client that closes second keeps no
//! TIME_WAIT, so its own ports are no limit: those of what is measured are.

use crate::{
    ShortArguments,
    bench::{Columns, counters, duration, grouped, keep, line, succeeded, table},
    progress::Progress,
    scene::{self, Baton},
};
use anyhow::Result;
use baton_api::State;
use baton_lab::{
    Counts, Haproxy, HttpEcho, Lab, Latency, Listen, LoadOptions, LoadReport, Slow, Tracker,
    Translator, policy,
};
use clap::ValueEnum;
use serde::Serialize;
use std::{
    net::SocketAddr,
    sync::atomic::Ordering,
    thread,
    time::{Duration, Instant},
};

const PORT: u16 = 80;
const PODS: usize = 4;
const COLUMNS: &Columns = &[
    ("side", -9),
    ("tracking", -10),
    ("conn.", 9),
    ("conn./s", 9),
    ("worst s", 9),
    ("p50", 10),
    ("p99", 10),
    ("max", 10),
    (">500 ms", 9),
    ("no port", 9),
    ("entries", 9),
    ("errors", 9),
];
/// Between two looks at a running turn.
const LOOK: Duration = Duration::from_millis(250);
/// Windows of the rate over time.
const WINDOW: Duration = Duration::from_secs(1);

/// Who balances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// Address translation by nftables in the dataplane's place
    Nft,
    /// HAProxy in tcp mode
    Haproxy,
    /// Baton with its defaults
    Baton,
}

/// Whether the node tracks connections, and drops what tracking calls INVALID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Tracking {
    /// It does not
    Off,
    /// It does
    On,
}

/// What `short.json` holds.
#[derive(Debug, Serialize)]
struct Bench {
    seconds: u64,
    connections: usize,
    leg_ports: String,
    turns: Vec<Turn>,
}

/// One turn.
#[derive(Debug, Serialize)]
struct Turn {
    side: Side,
    tracking: Tracking,
    /// Connections that got a right answer and were closed by the server.
    connections: u64,
    per_second: f64,
    /// Connections by the second in which they got their answer.
    each_second: Vec<u64>,
    latency: Latency,
    slow: Slow,
    errors: Counts,
    /// SYNs that Baton dropped for want of a leg port.
    no_port: u64,
    /// Most entries that the node's table had at one look.
    entries_max: u64,
    /// Packets dropped as INVALID.
    invalid: u64,
    /// Counters of the dataplane that are not 0.
    counters: Counts,
}

/// What stands between the client and the pods. Ends when dropped.
enum Between {
    Nft(Translator),
    Haproxy(Haproxy),
    Baton(Box<Baton>),
}

impl Between {
    fn start(lab: &Lab, side: Side, servers: &[(String, SocketAddr)], ports: &str) -> Result<Self> {
        Ok(match side {
            Side::Nft => {
                let addresses: Vec<_> = servers.iter().map(|(_, a)| *a).collect();
                Self::Nft(lab.translator(PORT, &addresses)?)
            }
            Side::Haproxy => Self::Haproxy(lab.haproxy(&[Listen {
                port: PORT,
                servers: servers.to_vec(),
                checked: false,
            }])?),
            Side::Baton => {
                let mut config = lab.dataplane_config(vec![policy("web", PORT, servers)])?;
                config.ports = ports.into();
                Self::Baton(Box::new(Baton::start(lab, &config)?))
            }
        })
    }

    fn address(&self) -> SocketAddr {
        match self {
            Self::Nft(translator) => translator.address(),
            Self::Haproxy(haproxy) => haproxy.address(PORT),
            Self::Baton(baton) => baton.dataplane.address(PORT),
        }
    }

    fn state(&self) -> Result<Option<State>> {
        match self {
            Self::Baton(baton) => baton.dataplane.state().map(Some),
            Self::Nft(_) | Self::Haproxy(_) => Ok(None),
        }
    }
}

/// Runs all turns. `true` if Baton let no connection wait, had a port for each, and kept up with
/// HAProxy.
pub fn short(arguments: &ShortArguments) -> Result<bool> {
    let mut bench = Bench {
        seconds: arguments.seconds,
        connections: usize::from(arguments.connections),
        leg_ports: arguments.ports.clone(),
        turns: Vec::new(),
    };
    for tracking in &arguments.tracking {
        for side in &arguments.sides {
            bench.turns.push(turn(arguments, *side, *tracking)?);
        }
    }
    let path = keep(&arguments.out, "short.json", &bench)?;
    println!("{}\nWritten to {}", bench.table(), path.display());
    Ok(succeeded(&bench.failures()))
}

fn turn(arguments: &ShortArguments, side: Side, tracking: Tracking) -> Result<Turn> {
    let lab = scene::lab("short", PODS)?;
    let nginx = scene::nginx(&lab)?;
    let servers = scene::named(&nginx);
    let tracker = match tracking {
        Tracking::On => Some(lab.track()?),
        Tracking::Off => None,
    };
    let between = Between::start(&lab, side, &servers, &arguments.ports)?;
    let length = Duration::from_secs(arguments.seconds);
    let load = HttpEcho::start_short(
        lab.client().namespace(),
        LoadOptions {
            connections: usize::from(arguments.connections),
            duration: Some(length),
            window: WINDOW,
            ..LoadOptions::new(between.address())
        },
    )?;
    let mut progress = Progress::start(&format!("{side:?}, tracking {tracking:?}"), Some(length));
    let mut entries_max = 0;
    while load.progress().requests.load(Ordering::Relaxed) == 0 && !load.is_finished() {
        thread::sleep(LOOK);
    }
    // A connection that hangs shall not make the turn longer than it is: the load counts it as slow
    // when it is stopped.
    let end = Instant::now() + length;
    while !load.is_finished() && Instant::now() < end {
        if let Some(tracker) = &tracker {
            entries_max = entries_max.max(tracker.entries()?);
        }
        let live = load.progress();
        progress.tick(&format!(
            "{} connections, {} errors, {} entries",
            grouped(live.requests.load(Ordering::Relaxed)),
            grouped(live.errors.load(Ordering::Relaxed)),
            grouped(entries_max),
        ));
        thread::sleep(LOOK);
    }
    progress.finish();
    let (report, _) = load.stop()?;
    let state = between.state()?;
    let invalid = tracker.as_ref().map_or(Ok(0), Tracker::invalid)?;
    let done = Turn::new(side, tracking, &report, entries_max, invalid, state.as_ref());
    eprintln!("{}", line(COLUMNS, &done.cells()));
    drop(between);
    lab.remove()?;
    Ok(done)
}

impl Turn {
    fn new(
        side: Side,
        tracking: Tracking,
        report: &LoadReport,
        entries_max: u64,
        invalid: u64,
        state: Option<&State>,
    ) -> Self {
        // Windows without an answer are not in the report.
        let seconds = report.elapsed.as_secs();
        let mut each_second = vec![0; usize::try_from(seconds).unwrap_or_default()];
        for window in &report.windows {
            let at = usize::try_from(window.start_ms / 1_000).unwrap_or(usize::MAX);
            if let Some(second) = each_second.get_mut(at) {
                *second = window.latency.count;
            }
        }
        let counters = state.map_or_else(Counts::new, counters);
        let no_port = counters.get("drops_total{reason=\"no_port\"}").copied();
        Self {
            side,
            tracking,
            connections: report.requests,
            per_second: report.per_second(),
            each_second,
            latency: report.latency,
            slow: report.slow,
            errors: report.errors.clone(),
            no_port: no_port.unwrap_or(0),
            entries_max,
            invalid,
            counters,
        }
    }

    fn slowest_second(&self) -> u64 {
        self.each_second.iter().copied().min().unwrap_or(0)
    }

    fn cells(&self) -> Vec<String> {
        vec![
            format!("{:?}", self.side),
            format!("{:?}", self.tracking),
            grouped(self.connections),
            grouped(self.per_second as u64),
            grouped(self.slowest_second()),
            duration(self.latency.p50_us),
            duration(self.latency.p99_us),
            duration(self.latency.max_us),
            grouped(self.slow.requests),
            grouped(self.no_port),
            grouped(self.entries_max),
            grouped(self.errors.values().sum()),
        ]
    }
}

impl Bench {
    fn table(&self) -> String {
        format!(
            "\n{}{} connections at a time for {} s each; `worst s` is the second with the fewest, `entries` the most that the \
             node's\ntable had. Ratios within one run say more than the figures.",
            table(COLUMNS, self.turns.iter().map(Turn::cells)),
            self.connections,
            self.seconds
        )
    }

    /// Why it did not show what it is for; empty if it did.
    fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        let ours = self.turns.iter().filter(|t| t.side == Side::Baton);
        for turn in ours {
            let at = format!("Baton, tracking {:?}", turn.tracking);
            if turn.slow.requests > 0 {
                failures.push(format!("{at}: {} over 500 ms", turn.slow.requests));
            }
            if turn.no_port > 0 {
                failures.push(format!("{at}: {} SYNs had no port", turn.no_port));
            }
            if !turn.errors.is_empty() {
                failures.push(format!("{at}: {:?}", turn.errors));
            }
            let theirs =
                self.turns.iter().find(|t| t.side == Side::Haproxy && t.tracking == turn.tracking);
            if let Some(theirs) = theirs.filter(|t| t.per_second > turn.per_second) {
                failures.push(format!(
                    "{at}: {:.2} of HAProxy's rate",
                    turn.per_second / theirs.per_second
                ));
            }
        }
        failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(side: Side, per_second: f64) -> Turn {
        Turn {
            side,
            tracking: Tracking::On,
            connections: 1,
            per_second,
            each_second: vec![3, 0, 2],
            latency: Latency::default(),
            slow: Slow::default(),
            errors: Counts::new(),
            no_port: 0,
            entries_max: 0,
            invalid: 0,
            counters: Counts::new(),
        }
    }

    #[test]
    fn what_stands_still_or_falls_behind_is_a_failure() {
        let mut bench = Bench {
            seconds: 3,
            connections: 1,
            leg_ports: String::new(),
            turns: vec![turn(Side::Haproxy, 10.0), turn(Side::Baton, 10.0)],
        };
        assert!(bench.failures().is_empty(), "{:?}", bench.failures());
        assert_eq!(bench.turns[1].slowest_second(), 0);
        bench.turns[1].per_second = 9.0;
        bench.turns[1].no_port = 1;
        bench.turns[1].slow.requests = 1;
        bench.turns[1].errors.insert("timeout".into(), 1);
        assert_eq!(bench.failures().len(), 4);
        // Only ours is judged.
        bench.turns.pop();
        assert!(bench.failures().is_empty());
    }
}
