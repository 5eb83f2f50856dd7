//! The per-node daemon of Baton: keeps the adopter on the interfaces of the configured and
//! discovered pods. Owns the command line only.

#[cfg(test)]
#[path = "../../common/tls/tests/it/support/mod.rs"]
mod certificates;
mod config;
mod control;
mod discovery;
mod logging;
mod metrics;
mod multipath;
mod pods;
mod preflight;
#[cfg(test)]
mod reference_tests;
mod releases;
mod restored;
mod run;
mod shim;
mod tracking;
mod transfers;
mod view;

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::{path::PathBuf, process::ExitCode};

/// Lets the pods of this node adopt live TCP connections.
#[derive(Parser)]
#[command(name = "host-shim", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Keep the adopter on the interfaces of the configured and discovered pods until told to stop.
    Run(RunArgs),
    /// Say what this kernel and these network namespaces can do, what is missing and what to
    /// change.
    Preflight(PreflightArgs),
}

#[derive(Args)]
struct RunArgs {
    /// The configuration (YAML); read again when it changes or on SIGHUP.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Leave the adopter in place on exit, for an upgrade: the next host-shim takes over without a
    /// gap.
    #[arg(long)]
    keep_on_exit: bool,
}

#[derive(Args)]
struct PreflightArgs {
    /// Check the pods, keys and pin directory of this configuration.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Check this network namespace (a name of /run/netns).
    #[arg(long, value_name = "NAME", requires = "interface")]
    netns: Option<String>,
    /// The interface in that namespace.
    #[arg(long, value_name = "IF", requires = "netns")]
    interface: Option<String>,
    /// A table for people or JSON for programs.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Text,
    Json,
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Run(args) => match run::run(&args.config, args.keep_on_exit) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("host-shim: {error:#}");
                ExitCode::FAILURE
            }
        },
        Command::Preflight(args) => {
            let extra = args.netns.zip(args.interface);
            let report = preflight::check(args.config.as_deref(), extra);
            match args.output {
                Output::Text => print!("{}", report.text()),
                Output::Json => println!("{}", report.json()),
            }
            if report.good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
    }
}
