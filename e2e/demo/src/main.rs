//! `make demo` and the comparisons: real servers, real clients, live connections that move between
//! pods.
//!
//! Owns the command line and the order of things; layout, servers and clients are `baton-lab`'s.

mod bench;
mod compare;
mod cost;
mod kills;
mod phase_steps;
mod phases;
mod placement;
mod plot;
mod pps;
mod preflight;
mod progress;
mod report;
mod run;
mod scene;
mod short;
mod soak;
mod soak_path;
mod soak_report;
mod soak_tracked;
mod uploads;

use anyhow::Result;
use baton_api::MoveMethod;
use clap::{Args, Parser, Subcommand};
use std::{path::PathBuf, process::ExitCode};

/// As the kinds' default is, and below the kernel's own ports.
const LEG_PORTS: &str = "20000-32767";

/// Live connections moving between real servers, with a report. Needs root.
#[derive(Debug, Parser)]
#[command(name = "baton-demo", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// wrk with one slow pod, migration off and on; redis with a migration per command; pods killed
    /// under load
    Demo(DemoArguments),
    /// Pods are killed, frozen, drained and reconfigured at random under load, or packets lost and
    /// reordered on the way, and every answer is checked
    Soak(SoakArguments),
    /// HAProxy and Baton in the same layout, in turns: latency at 1 connection, requests/s at 32
    Compare(RoundArguments),
    /// What one migration per request costs: p50 at 1 connection, staying and moving, in turns
    MigrationCost(RoundArguments),
    /// What each rule of placing requests does to throughput, latency and moves
    Placement(placement::PlacementArguments),
    /// What moves cost uploads of 50 KB to 1 MB: staying, moving by choice, and off a draining pod,
    /// in turns
    Uploads(RoundArguments),
    /// Packets per second by workers and frame size, and the CPU time of engine and kernel for each
    Pps(PpsArguments),
    /// Short connections that the server closes, through address translation, HAProxy and Baton in
    /// turns, without and with connection tracking on the node
    Short(ShortArguments),
    /// Moves at full rate on a node that tracks connections and drops what is INVALID; pods
    /// throttled and killed
    SoakTracked(TrackedArguments),
}

/// Arguments of the demo.
#[derive(Clone, Debug, Args)]
struct DemoArguments {
    /// Length of each of the two runs
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// What is served: a directory of manifests, from which the operator programs the dataplane
    #[arg(long, default_value = "e2e/demo/manifests")]
    manifests: PathBuf,
    /// CPU limit of the first pod, in percent of one CPU
    #[arg(long, default_value_t = 5.0)]
    throttle: f64,
    /// Mean pause of a connection between two requests, in milliseconds; 0 saturates the machine
    #[arg(long, default_value_t = 40)]
    think_ms: u64,
    /// Redis commands, each on a connection that moves for it
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1_000..=100_000_000))]
    redis_commands: u64,
    /// Length of the kills behind each load balancer
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    kill_seconds: u64,
    /// Leave the lab up at the end, until Ctrl-C
    #[arg(long)]
    keep: bool,
    /// Where report.json and report.svg go
    #[arg(long, default_value = "target/demo")]
    out: PathBuf,
}

/// Arguments of the soak.
#[derive(Clone, Debug, Args)]
struct SoakArguments {
    /// How long
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    minutes: u64,
    /// Instead: so many migrations of healthy pods' connections over a path that loses and reorders
    /// packets
    #[arg(long, conflicts_with = "minutes", value_parser = clap::value_parser!(u64).range(1_000..=1_000_000_000))]
    migrations: Option<u64>,
    /// Of 1,000 packets so many are lost, on each veth of a pod or client, in each direction
    #[arg(long, requires = "migrations", default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=250))]
    loss: u32,
    /// Of 1,000 packets so many are held back for up to 3 ms, while later ones pass
    #[arg(long, requires = "migrations", default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=250))]
    reorder: u32,
    /// Of 1,000 packets so many come twice
    #[arg(long, requires = "migrations", default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=250))]
    duplicate: u32,
    /// Of 1,000 packets so many have one bit flipped
    #[arg(long, requires = "migrations", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=250))]
    corrupt: u32,
    /// Persistent connections to nginx, and as many to redis: enough that those which wait for a
    /// lost packet's repetition (200 ms to some seconds) leave no gap, and not so many that all
    /// queue for the CPU
    #[arg(long, requires = "migrations", default_value_t = 192, value_parser = clap::value_parser!(u16).range(1..=4096))]
    connections: u16,
    /// How connections move: Auto, Adoption or Translation
    #[arg(long, requires = "migrations", default_value = "Auto", value_parser = move_method)]
    method: MoveMethod,
    /// The node tracks connections and drops what is INVALID, and so many entries of its table are
    /// the dataplane's (`limits.trackedPairs`)
    #[arg(long, requires = "migrations", value_name = "ENTRIES")]
    tracked: Option<u32>,
    /// What happens when follows from this number; a random one if not given
    #[arg(long)]
    seed: Option<u64>,
    /// Where report.json goes
    #[arg(long, requires = "migrations", default_value = "target/soak")]
    out: PathBuf,
}

/// Arguments of the comparisons.
#[derive(Clone, Debug, Args)]
struct RoundArguments {
    /// How often each side has its turn
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: u64,
    /// Length of each measurement
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Where the JSON goes
    #[arg(long, default_value = "target/bench")]
    out: PathBuf,
}

/// Arguments of the packets per second.
#[derive(Clone, Debug, Args)]
struct PpsArguments {
    /// Numbers of workers
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4])]
    workers: Vec<u32>,
    /// Length of each run
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Where pps.json goes
    #[arg(long, default_value = "target/bench")]
    out: PathBuf,
}

/// Arguments of the comparison with short connections.
#[derive(Clone, Debug, Args)]
struct ShortArguments {
    /// Connections at a time
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1024))]
    connections: u16,
    /// Length of each turn
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(2..=36_000))]
    seconds: u64,
    /// Who has a turn
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["nft", "haproxy", "baton"])]
    sides: Vec<short::Side>,
    /// Without connection tracking on the node, with it, or both
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["off", "on"])]
    tracking: Vec<short::Tracking>,
    /// Baton's own ports towards the pods
    #[arg(long, default_value = LEG_PORTS)]
    ports: String,
    /// Where short.json goes
    #[arg(long, default_value = "target/bench")]
    out: PathBuf,
}

/// Arguments of the soak on a node that tracks connections.
#[derive(Clone, Debug, Args)]
struct TrackedArguments {
    /// How long, both acts together
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    minutes: u64,
    /// Persistent connections
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    connections: u16,
    /// The dataplane's share of the node's table (`limits.trackedPairs`): three quarters of 65,536
    #[arg(long, default_value_t = 49_152)]
    entries: u32,
    /// Forward what is INVALID, and only count it: tells waits that tracking causes from others
    #[arg(long)]
    forward_invalid: bool,
    /// Baton's own ports towards the pods
    #[arg(long, default_value = LEG_PORTS)]
    ports: String,
    /// Where tracked.json goes
    #[arg(long, default_value = "target/soak")]
    out: PathBuf,
}

/// As policies name it.
fn move_method(name: &str) -> Result<MoveMethod, serde_json::Error> {
    serde_json::from_value(name.into())
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match dispatch(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        // The signal handler removes what is left and ends the process.
        Err(_) if baton_lab::interrupted() => loop {
            std::thread::park();
        },
        Err(e) => {
            eprintln!("baton-demo: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(arguments: &Arguments) -> Result<bool> {
    match &arguments.command {
        Command::Demo(demo) => {
            preflight::check(&["redis-server", "redis-benchmark", "haproxy"])?;
            run::demo(demo)
        }
        Command::Soak(soak) => {
            preflight::check(&["redis-server"])?;
            if soak.tracked.is_some() {
                preflight::programs(&["nft"])?;
            }
            match soak.migrations {
                Some(migrations) => soak_path::soak(soak, migrations),
                None => soak::soak(soak),
            }
        }
        Command::Compare(rounds) => {
            // Nothing moves.
            preflight::programs(&["haproxy"])?;
            compare::compare(rounds)
        }
        Command::MigrationCost(rounds) => {
            preflight::check(&[])?;
            cost::migration_cost(rounds)
        }
        Command::Placement(arguments) => placement::placement(arguments),
        Command::Uploads(rounds) => {
            preflight::check(&[])?;
            uploads::uploads(rounds)
        }
        Command::Pps(arguments) => {
            preflight::check(&[])?;
            pps::pps(arguments)
        }
        Command::Short(turns) => {
            preflight::check(&["haproxy", "nft"])?;
            short::short(turns)
        }
        Command::SoakTracked(soak) => {
            preflight::check(&["nft"])?;
            soak_tracked::soak(soak)
        }
    }
}
