//! `kubectl baton`: asks Baton in a cluster through the API server, with the rights of who runs it.
//!
//! Commands read through the trait `Cluster`, judge and render with pure functions; this program
//! changes nothing but by `attach` and `detach`, and by `drain` and `migrate`, which are the
//! dataplanes'.
#![forbid(unsafe_code)]

mod args;
mod ask;
mod attach;
mod check;
mod cluster;
mod commands;
mod complete;
mod explain;
mod facts;
mod failure;
#[cfg(test)]
mod fake;
mod live;
mod pins;
mod proxy;
#[cfg(test)]
mod samples;
mod status;
mod sysdump;
mod top;
mod waits;

use baton_api::printable;
use std::{path::Path, process::ExitCode};

/// Could not be asked.
const NOT_ASKED: u8 = 2;

fn main() -> ExitCode {
    let mut words = std::env::args_os();
    if words.next().is_some_and(|name| complete::is_asked(Path::new(&name))) {
        // No name of ours begins like a word that is no text.
        let words: Vec<String> = words.map(|w| w.to_string_lossy().into_owned()).collect();
        // Whoever asks reads all of it.
        print!("{}", complete::answer(args::command(), &words));
        return ExitCode::SUCCESS;
    }
    let line = args::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done = match runtime {
        Ok(runtime) => runtime.block_on(commands::run(&line.command, &line.options)),
        Err(error) => Err(anyhow::anyhow!("cannot start the asynchronous runtime: {error}")),
    };
    done.unwrap_or_else(|error| {
        // A kubeconfig that cannot be read is quoted in several lines.
        for line in format!("kubectl-baton: {error:#}").lines() {
            eprintln!("{}", printable(line));
        }
        ExitCode::from(NOT_ASKED)
    })
}
