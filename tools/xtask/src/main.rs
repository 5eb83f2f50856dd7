//! `cargo xtask`: the commands of this repository that are too long for make.
//!
//! Owns the command line. What a command does is in its module.

#[cfg(feature = "mutants")]
mod mutants;
mod sim;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Commands of this repository; `cargo xtask COMMAND --help` says more.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the deterministic simulation of the dataplane.
    Sim(sim::SimArgs),
}

fn main() -> ExitCode {
    match Args::parse().command {
        Command::Sim(args) => sim::run(&args),
    }
}
