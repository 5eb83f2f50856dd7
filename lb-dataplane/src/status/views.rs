//! What people see: pure functions from answers to text of at most 80 columns.

use super::table::{Table, WIDTH_MAX, micros, span};
use crate::control::reply::StateReply;
use baton_api::{BackendState, FlowView, State};
use std::fmt::Write as _;

/// A table this full is worth a line.
const NEAR_LIMIT_PERCENT: u64 = 80;

/// Frames larger than a buffer.
const OVERSIZE: &str = "io_drops_total{reason=\"rx_oversize\"}";

/// Is it working, and if not, why.
pub fn status(reply: &StateReply) -> String {
    let state = &reply.state;
    let mut text = String::new();
    if reply.problems.is_empty() {
        line(&mut text, "It works.");
    } else {
        line(&mut text, "It does NOT work as it should:");
        for problem in &reply.problems {
            wrapped(&mut text, "  - ", problem);
        }
    }
    let worker = &state.worker;
    line(&mut text, "");
    line(
        &mut text,
        &format!(
            "version {}, up {}, {} mode on {}, generation {}",
            state.version,
            span(state.uptime_seconds),
            worker.mode,
            worker.interface,
            state.generation
        ),
    );
    let addresses: Vec<String> = worker.addresses.iter().map(ToString::to_string).collect();
    let epochs: Vec<String> = worker.key_epochs.iter().map(ToString::to_string).collect();
    wrapped(
        &mut text,
        "",
        &format!(
            "address {}, leg ports {}-{}, key epochs {}",
            addresses.join(" "),
            worker.ports.0,
            worker.ports.1,
            epochs.join(" ")
        ),
    );
    if !state.policies.is_empty() {
        line(&mut text, "");
        text.push_str(&policies(state));
        line(&mut text, "");
        text.push_str(&backends(state));
    }
    let full = near_limits(state);
    if !full.is_empty() {
        line(&mut text, "");
        line(&mut text, "Limits near exhaustion:");
        for entry in full {
            wrapped(&mut text, "  ", &entry);
        }
    }
    let drops = drops(state);
    if !drops.is_empty() {
        line(&mut text, "");
        let mut table = Table::new(&["DROPPED BECAUSE", "#FRAMES"]);
        for (reason, frames) in drops {
            table.row([reason, frames.to_string()]);
        }
        text.push_str(&table.render());
        if state.counters.get(OVERSIZE).is_some_and(|n| *n > 0) {
            wrapped(
                &mut text,
                "  ",
                "rx oversize: senders on this machine hand over segments larger than the MTU. Use mode native or \
                 packet, or turn their offload off (`ethtool -K INTERFACE tso off gso off` at the other end).",
            );
        }
    }
    text
}

fn policies(state: &State) -> String {
    let mut table = Table::new(&[
        "POLICY",
        "FRONTEND",
        "#FLOWS",
        "#SINCE START",
        "#MIGRATIONS",
        "#ROLLBACKS",
    ]);
    for policy in &state.policies {
        let frontend = match policy.frontends.as_slice() {
            [] => "-".to_owned(),
            [one] => one.to_string(),
            [first, more @ ..] => format!("{first} +{}", more.len()),
        };
        table.row([
            policy.name.clone(),
            frontend,
            policy.flows.to_string(),
            policy.flows_total.to_string(),
            policy.migrations_total.to_string(),
            policy.rollbacks_total.to_string(),
        ]);
    }
    table.render()
}

/// All backends with their load.
pub fn backends(state: &State) -> String {
    let mut table = Table::new(&[
        "BACKEND",
        "ENDPOINT",
        "ADOPTS",
        "#FLOWS",
        "#OUTST.",
        "#1ST BYTE",
        "#IN",
        "#OUT",
    ]);
    let several = state.policies.len() > 1;
    for policy in &state.policies {
        for backend in &policy.backends {
            let name = if several {
                format!("{}:{}", policy.name, backend.name)
            } else {
                backend.name.clone()
            };
            table.row([
                name,
                backend.endpoint.to_string(),
                adopts(backend),
                backend.flows.to_string(),
                backend.outstanding.to_string(),
                micros(backend.first_byte.0),
                backend.migrations_in_total.to_string(),
                backend.migrations_out_total.to_string(),
            ]);
        }
    }
    let mut text = table.render();
    // The table has no room for a reason; each is said once, below.
    for policy in &state.policies {
        for backend in policy.backends.iter().filter(|b| !b.adoptable) {
            let why = format!(
                "{} cannot adopt: {}",
                backend.name, backend.adoptable_reason
            );
            wrapped(&mut text, "  ", &why);
        }
    }
    text
}

fn adopts(backend: &BackendState) -> String {
    let word = if backend.adoptable { "yes" } else { "no" };
    if backend.draining {
        format!("{word}, drains")
    } else {
        word.to_owned()
    }
}

/// Client connections.
pub fn flows(flows: &[FlowView], truncated: bool) -> String {
    let mut table = Table::new(&[
        "CLIENT", "FRONTEND", "BACKEND", "#PORT", "STATE", "#MOVES", "#QUIET",
    ]);
    for flow in flows {
        table.row([
            flow.client.to_string(),
            flow.frontend.to_string(),
            flow.backend.clone(),
            flow.port.to_string(),
            flow.state.clone(),
            flow.migrations.to_string(),
            micros(flow.quiet.0),
        ]);
    }
    let mut text = table.render();
    if truncated {
        line(
            &mut text,
            &format!(
                "{} shown, there are more: see --limit, --policy, --backend",
                flows.len()
            ),
        );
    }
    text
}

fn near_limits(state: &State) -> Vec<String> {
    state
        .tables
        .iter()
        .filter(|(_, (used, limit))| *limit > 0 && used * 100 >= limit * NEAR_LIMIT_PERCENT)
        .map(|(name, (used, limit))| {
            format!("{name}: {used} of {limit} ({} %)", used * 100 / limit)
        })
        .collect()
}

/// Reasons for which frames were dropped, most frequent first.
fn drops(state: &State) -> Vec<(String, u64)> {
    let mut drops: Vec<(String, u64)> = state
        .counters
        .iter()
        .filter(|(_, frames)| **frames > 0)
        .filter_map(|(name, frames)| {
            let reason = name
                .strip_prefix("drops_total{reason=\"")
                .or_else(|| name.strip_prefix("io_drops_total{reason=\""))?;
            Some((reason.trim_end_matches("\"}").replace('_', " "), *frames))
        })
        .collect();
    drops.sort_by_key(|(_, frames)| std::cmp::Reverse(*frames));
    drops
}

fn line(text: &mut String, content: &str) {
    // Writing into a string cannot fail.
    let _ = writeln!(text, "{content}");
}

/// One paragraph of at most 80 columns, its further lines under its first word.
fn wrapped(text: &mut String, lead: &str, content: &str) {
    let mut current = lead.to_owned();
    let indent = " ".repeat(lead.chars().count());
    let mut empty = true;
    for word in content.split_whitespace() {
        let width = current.chars().count() + usize::from(!empty) + word.chars().count();
        if !empty && width > WIDTH_MAX {
            line(text, &current);
            current.clone_from(&indent);
            empty = true;
        }
        if !empty {
            current.push(' ');
        }
        current.push_str(word);
        empty = false;
    }
    line(text, &current);
}
