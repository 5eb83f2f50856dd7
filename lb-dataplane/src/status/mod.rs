//! `status`, `backends`, `flows`, `drain`, `migrate` and `trace`: asks a running dataplane and shows the answer to people or programs.

mod capture;
pub mod client;
mod drain;
mod migrate;
#[cfg(test)]
pub mod samples;
mod tables;
#[cfg(test)]
mod tests;
mod trace;
mod views;

use crate::args::{FlowsOrder, Output, Question};
use anyhow::Context as _;
use baton_api::{FlowView, StateReply};
use client::{parse, path};
use serde::Serialize;
use serde_json::{Value, json};
use std::{io::Write as _, process::ExitCode};

/// Asks and prints. The exit code says whether it works (`status`), whether an order was taken and
/// carried out, or that there was an answer.
///
/// # Errors
/// The dataplane could not be asked.
pub fn ask(question: &Question) -> anyhow::Result<ExitCode> {
    if let Some(name) = &question.at().netns {
        client::enter_netns(name)?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the asynchronous runtime")?;
    runtime.block_on(answer(question))
}

async fn answer(question: &Question) -> anyhow::Result<ExitCode> {
    let control = question.at().control;
    match question {
        Question::Status(ask) => {
            let body = client::get(control, "/v1/state").await?.body;
            let reply: StateReply = parse(&body)?;
            let told: Value = parse(&body)?;
            show(ask.output, &told, || views::status(&reply))?;
            if !reply.problems.is_empty() {
                return Ok(ExitCode::FAILURE);
            }
        }
        Question::Backends { ask, policy } => {
            let body = client::get(control, "/v1/state").await?.body;
            let mut state = parse::<StateReply>(&body)?.state;
            if let Some(wanted) = policy {
                state.policies.retain(|p| p.name == *wanted);
            }
            show(ask.output, &state.policies, || tables::backends(&state))?;
        }
        Question::Flows(order) => {
            let answer = client::get(control, &flows_path(order)).await?;
            let flows: Vec<FlowView> = parse(&answer.body)?;
            let told =
                json!({"flows": parse::<Value>(&answer.body)?, "truncated": answer.truncated});
            show(order.ask.output, &told, || {
                tables::flows(&flows, answer.truncated)
            })?;
        }
        Question::Drain(order) => return drain::run(order).await,
        Question::Capture(order) => return capture::run(order).await,
        Question::Migrate(order) => return migrate::run(order).await,
        Question::Trace(order) => return trace::run(order).await,
    }
    Ok(ExitCode::SUCCESS)
}

fn flows_path(order: &FlowsOrder) -> String {
    let limit = Some(order.limit.to_string());
    let query = [
        ("limit", limit),
        ("policy", order.policy.clone()),
        ("backend", order.backend.clone()),
    ];
    path("/v1/flows", query)
}

/// A reason why something was not done, on the standard error stream.
fn complain(problem: &str) -> ExitCode {
    eprintln!("lb-dataplane: {problem}");
    ExitCode::FAILURE
}

/// Prints `value` for programs, or `text` for people.
fn show(
    output: Output,
    value: &impl Serialize,
    text: impl FnOnce() -> String,
) -> anyhow::Result<()> {
    print(&match output {
        Output::Json => serde_json::to_string_pretty(value)?,
        Output::Table => text(),
    })
}

fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{}", text.trim_end()) {
        // `| head` closes the pipe: it has seen what it wanted.
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}
