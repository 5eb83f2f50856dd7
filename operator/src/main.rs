//! The controller of Baton: `run` programs dataplanes from objects of Kubernetes, the other
//! commands check and print.
#![forbid(unsafe_code)]

mod args;
mod check;
mod coalescing;
mod connect;
mod core;
mod detach;
mod digest;
#[cfg(test)]
mod fake_api;
mod figures;
mod fleet;
mod health;
mod http;
mod install;
mod kind;
mod leader;
mod lease;
mod ledger;
mod messages;
mod metrics;
mod notice;
mod objects;
mod outbox;
mod owner;
mod peers;
mod push_metrics;
#[cfg(all(test, feature = "otel"))]
mod reference_tests;
mod run;
mod secrets;
mod shutdown;
mod snapshot_recovery;
mod source;
mod state_dir;
mod status;
mod telemetry;
mod translate;
mod writer;

use args::Command;
use std::process::ExitCode;

/// Wrong usage, as clap has it.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let complain = |error: &anyhow::Error, code: u8| {
        eprintln!("baton-operator: {error:#}");
        ExitCode::from(code)
    };
    let done = match args::parse() {
        Err(error) => return complain(&error, USAGE),
        Ok(Command::Run(run)) => run::run(*run).map(|()| ExitCode::SUCCESS),
        Ok(Command::Check(files)) => check::run(&files),
        Ok(Command::Crds) => print_crds().map(|()| ExitCode::SUCCESS),
        Ok(Command::Apply(settings)) => install::apply(&settings).map(|()| ExitCode::SUCCESS),
        Ok(Command::Detach(settings)) => detach::detach(&settings).map(|()| ExitCode::SUCCESS),
        Ok(Command::Verify(settings)) => install::verify(&settings).map(|()| ExitCode::SUCCESS),
    };
    done.unwrap_or_else(|error| complain(&error, 1))
}

fn print_crds() -> anyhow::Result<()> {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    for file in baton_crds::files()? {
        out.write_all(file.yaml.as_bytes())?;
    }
    Ok(())
}
