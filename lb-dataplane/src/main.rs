//! The userspace packet path of Baton: `run` serves traffic, the other commands check and ask.

mod args;
mod capture;
#[cfg(test)]
#[path = "../../common/tls/tests/it/support/mod.rs"]
mod certificates;
mod clock;
mod commands;
mod config;
mod control;
mod cpu_quota;
mod diagnosis;
mod ending;
mod engines;

mod health;
mod logging;
mod merge;

mod neighbour;
mod preflight;
mod run;
mod status;
mod steering;
mod worker;
mod workers;
#[cfg(test)]
mod workers_tests;

use args::Command;
use std::{process::ExitCode, time::Duration};

/// The question could not even be asked: wrong usage (as clap has it), no such file, nobody
/// answers.
const NOT_ASKED: u8 = 2;

fn main() -> ExitCode {
    let complain = |error: &anyhow::Error, code: u8| {
        eprintln!("lb-dataplane: {error:#}");
        ExitCode::from(code)
    };
    let asked =
        |done: anyhow::Result<ExitCode>| done.unwrap_or_else(|error| complain(&error, NOT_ASKED));
    match args::parse() {
        Command::Run { file, grace_seconds } => {
            match run::run(&file.config, Duration::from_secs(grace_seconds.into())) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => complain(&error, 1),
            }
        }
        Command::Check(file) => match config::Loaded::read(&file.config) {
            Ok(_) => {
                println!("{}: good", file.config.display());
                ExitCode::SUCCESS
            }
            Err(error) => {
                let code = if error.unreadable { NOT_ASKED } else { 1 };
                complain(&error.into(), code)
            }
        },
        Command::Status(ask) => asked(status::status(&ask)),
        Command::Ask(question) => asked(status::ask(&question)),
        Command::Api(api) => asked(status::api(&api)),
        Command::Version => {
            println!("lb-dataplane {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
    }
}
