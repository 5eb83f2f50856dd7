//! `kubectl baton`: asks Baton in a cluster through the API server, with the rights of who runs it.
//!
//! Commands read through the trait `Cluster`, judge and render with pure functions; this program changes nothing but by
//! `drain` and `migrate`, which are the dataplanes'.
#![forbid(unsafe_code)]

mod args;
mod ask;
mod backends;
mod capture;
mod cluster;
mod commands;
mod drain;
mod explain;
mod facts;
mod failure;
#[cfg(test)]
mod fake;
mod flows;
mod live;
mod migrate;
#[cfg(test)]
mod samples;
mod show;
mod status;
mod sysdump;
mod top;
mod trace;
mod waits;

use std::process::ExitCode;

/// Could not be asked.
const NOT_ASKED: u8 = 2;

fn main() -> ExitCode {
    let (command, options) = args::parse();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let done = match runtime {
        Ok(runtime) => runtime.block_on(commands::run(&command, &options)),
        Err(error) => Err(anyhow::anyhow!(
            "cannot start the asynchronous runtime: {error}"
        )),
    };
    done.unwrap_or_else(|error| {
        eprintln!("kubectl-baton: {error:#}");
        ExitCode::from(NOT_ASKED)
    })
}
