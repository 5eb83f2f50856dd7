//! `status`, `api`, and what `kubectl baton` asks too (`baton-cli`), of the dataplane that listens
//! at a control address.
//!
//! Owns the way there, and what `status` says.

pub mod client;
#[cfg(test)]
pub mod samples;
#[cfg(test)]
mod tests;
mod views;

use crate::{
    args::{Api, Ask, At},
    capture::TIME_MAX,
};
use anyhow::{Context as _, bail};
use baton_cli::{
    Asking, Fleet as _, Out, Refused, Request, Show, args::Command, code, heard, interruptions,
    states,
};
use client::Here;
use std::{
    io::{Read as _, stdin},
    process::ExitCode,
    thread,
};

const PROGRAM: &str = "lb-dataplane";

/// Asks the dataplane that is meant.
fn at(
    at: &At,
    asking: impl AsyncFnOnce(Here) -> anyhow::Result<ExitCode>,
) -> anyhow::Result<ExitCode> {
    if let Some(name) = &at.netns {
        client::enter_netns(name)?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the asynchronous runtime")?;
    runtime.block_on(asking(Here(at.control)))
}

/// Says whether it works, and if not, why; so does the exit code.
///
/// # Errors
/// The dataplane could not be asked.
pub fn status(ask: &Ask) -> anyhow::Result<ExitCode> {
    at(&ask.at, async |here| {
        let reply = heard(states(&here, &[here]).await)?.remove(0).result;
        let reply = reply.map_err(anyhow::Error::msg)?;
        Show::new(PROGRAM, ask.output).print(&reply, views::status)?;
        Ok(code(reply.problems.is_empty()))
    })
}

/// Asks and prints. The exit code says whether an order was taken and carried out, or that there
/// was an answer.
///
/// # Errors
/// The dataplane could not be asked.
pub fn ask(command: &Command<Ask>) -> anyhow::Result<ExitCode> {
    let Ask { at: place, output } = command.options();
    at(place, async |here| {
        let asking = Asking { fleet: here, show: &Show::new(PROGRAM, *output), namespace: None };
        asking.run(command).await
    })
}

/// Sends one request as it is. The exit code says whether it was refused.
///
/// # Errors
/// The dataplane could not be asked.
pub fn api(api: &Api) -> anyhow::Result<ExitCode> {
    at(&api.at, async |here| {
        let stop = interruptions()?;
        let request = Request {
            body: api.post.clone(),
            lasts: TIME_MAX,
            stop: Some(stop.subscribe()),
            ..Request::get(&api.path, [])
        };
        if api.end_on_input {
            // A thread of its own, which nothing waits for: reading cannot be called off.
            thread::spawn(move || {
                let _ = stdin().read(&mut [0]);
                stop.send_modify(|wishes| *wishes += 1);
            });
        }
        match here.send(&here, &request, &mut Out).await {
            Ok(()) => Ok(ExitCode::SUCCESS),
            Err(Refused::Finally(why)) => {
                eprintln!("{PROGRAM}: {why}");
                Ok(ExitCode::FAILURE)
            }
            Err(Refused::Unanswered(why)) => bail!("{why}"),
        }
    })
}
