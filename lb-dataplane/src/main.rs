//! The userspace packet path of Baton: `run` serves traffic, the other commands check and ask.

mod args;
mod capture;
#[cfg(test)]
#[path = "../tls/tests/support/mod.rs"]
mod certificates;
mod clock;
mod commands;
mod config;
mod control;
mod cpu_quota;
mod diagnosis;
mod ending;
mod health;
mod logging;
mod neighbour;
mod preflight;
mod run;
mod status;
mod steering;
mod worker;

use args::Command;
use std::process::ExitCode;

/// The question could not even be asked: wrong usage (as clap has it), no such file, nobody answers.
const NOT_ASKED: u8 = 2;

fn main() -> ExitCode {
    let complain = |error: &anyhow::Error, code: u8| {
        eprintln!("lb-dataplane: {error:#}");
        ExitCode::from(code)
    };
    match args::parse() {
        Command::Run { config, grace } => match run::run(&config, grace) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => complain(&error, 1),
        },
        Command::Check(file) => match config::Loaded::read(&file) {
            Ok(_) => {
                println!("{}: good", file.display());
                ExitCode::SUCCESS
            }
            Err(error) => {
                let code = if error.unreadable { NOT_ASKED } else { 1 };
                complain(&error.into(), code)
            }
        },
        Command::Ask(question) => {
            status::ask(&question).unwrap_or_else(|error| complain(&error, NOT_ASKED))
        }
        Command::Drain(question) => {
            status::drain(&question).unwrap_or_else(|error| complain(&error, NOT_ASKED))
        }
        Command::Capture(question) => {
            status::capture(&question).unwrap_or_else(|error| complain(&error, NOT_ASKED))
        }
        Command::Migrate(question) => {
            status::migrate(&question).unwrap_or_else(|error| complain(&error, NOT_ASKED))
        }
        Command::Trace(question) => {
            status::trace(&question).unwrap_or_else(|error| complain(&error, NOT_ASKED))
        }
        Command::Version => {
            println!("lb-dataplane {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
    }
}
