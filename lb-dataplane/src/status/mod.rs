//! `status`, `backends`, `flows`, `drain`, `migrate` and `trace`: asks a running dataplane and shows the answer to people or programs.

mod capture;
pub mod client;
mod drain;
mod orders;
mod progress;
#[cfg(test)]
pub mod samples;
mod tables;
#[cfg(test)]
mod tests;
mod trace;
mod views;

use crate::args::{CaptureOrder, DrainOrder, MigrateOrder, Output, Question, Topic, TraceOrder};
use anyhow::Context as _;
use baton_api::{FlowView, StateReply};
use serde_json::json;
use std::{io::Write as _, process::ExitCode};
use tokio::runtime::Runtime;

/// Asks and prints. The exit code says whether it works (`status`) or that there was an answer (the others).
///
/// # Errors
/// The dataplane could not be asked.
pub fn ask(question: &Question) -> anyhow::Result<ExitCode> {
    let path = path(&question.topic);
    let answer =
        runtime(question.netns.as_deref())?.block_on(client::get(question.control, &path))?;
    let body = answer.body;
    let (text, code) = match &question.topic {
        Topic::Status => {
            let state: StateReply = parse(&body)?;
            let works = state.problems.is_empty();
            let code = if works {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            };
            (views::status(&state), code)
        }
        Topic::Backends { policy } => {
            let mut state: StateReply = parse(&body)?;
            if let Some(wanted) = policy {
                state.state.policies.retain(|p| p.name == *wanted);
            }
            if question.output == Output::Json {
                let text = serde_json::to_string_pretty(&state.state.policies)?;
                return print(&text).map(|()| ExitCode::SUCCESS);
            }
            (tables::backends(&state.state), ExitCode::SUCCESS)
        }
        Topic::Flows { .. } => {
            let flows: Vec<FlowView> = parse(&body)?;
            (tables::flows(&flows, answer.truncated), ExitCode::SUCCESS)
        }
    };
    if question.output == Output::Json {
        let mut value: serde_json::Value = parse(&body)?;
        if let Topic::Flows { .. } = &question.topic {
            value = json!({"flows": value, "truncated": answer.truncated});
        }
        print(&serde_json::to_string_pretty(&value)?)?;
    } else {
        print(&text)?;
    }
    Ok(code)
}

/// Has a backend drained. The exit code says whether that was taken and, where it waits, whether the backend is empty.
///
/// # Errors
/// The dataplane could not be asked.
pub fn drain(question: &Question<DrainOrder>) -> anyhow::Result<ExitCode> {
    runtime(question.netns.as_deref())?.block_on(drain::run(question))
}

/// Has frames copied into a file. The exit code says whether that was taken.
///
/// # Errors
/// The dataplane could not be asked, or the file not be written.
pub fn capture(question: &Question<CaptureOrder>) -> anyhow::Result<ExitCode> {
    runtime(question.netns.as_deref())?.block_on(capture::run(question))
}

/// Has one flow move. The exit code says whether that was taken.
///
/// # Errors
/// The dataplane could not be asked.
pub fn migrate(question: &Question<MigrateOrder>) -> anyhow::Result<ExitCode> {
    runtime(question.netns.as_deref())?.block_on(orders::migrate(question))
}

/// Shows what happens to flows.
///
/// # Errors
/// The dataplane could not be asked.
pub fn trace(question: &Question<TraceOrder>) -> anyhow::Result<ExitCode> {
    runtime(question.netns.as_deref())?.block_on(trace::run(question))
}

/// Where questions are asked from.
fn runtime(netns: Option<&str>) -> anyhow::Result<Runtime> {
    if let Some(name) = netns {
        client::enter_netns(name)?;
    }
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the asynchronous runtime")
}

fn path(topic: &Topic) -> String {
    match topic {
        Topic::Status | Topic::Backends { .. } => "/v1/state".to_owned(),
        Topic::Flows {
            policy,
            backend,
            limit,
        } => {
            let mut path = format!("/v1/flows?limit={limit}");
            for (name, value) in [("policy", policy), ("backend", backend)] {
                if let Some(value) = value {
                    path.push_str(&format!("&{name}={}", escaped(value)));
                }
            }
            path
        }
    }
}

/// A query value: everything that is not in a name is escaped.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._/".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

fn parse<T: serde::de::DeserializeOwned>(body: &[u8]) -> anyhow::Result<T> {
    serde_json::from_slice(body).context("the answer is none of this version's")
}

fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{}", text.trim_end()) {
        // `| head` closes the pipe: it has seen what it wanted.
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}
