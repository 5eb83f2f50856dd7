//! What `status` says: a pure function from the answer to text of at most 80 columns, unless it may
//! be wide.

use crate::diagnosis;
use baton_api::{PolicyState, State, StateReply};
use baton_cli::{
    Nodes, Style, Table, backends, full_tables, line, reasons, render_backends, span, verdict,
    wrapped,
};

/// Frames larger than a buffer.
const OVERSIZE: &str = "io_drops_total{reason=\"rx_oversize\"}";

/// Is it working, and if not, why.
pub fn status(reply: &StateReply, style: Style) -> String {
    let state = &reply.state;
    let notes: &[(&str, &[String])] = &[("Worth a look:", &diagnosis::notes(state))];
    let mut text = verdict("It", &reply.problems, notes, style);
    let worker = &state.worker;
    line(&mut text, "");
    line(
        &mut text,
        &format!(
            "version {}, up {}, {} mode on {}{}, generation {}",
            state.version,
            span(state.uptime_seconds),
            worker.mode,
            worker.interface,
            match worker.workers {
                0 | 1 => String::new(),
                workers => format!(" with {workers} workers"),
            },
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
        text.push_str(&policies(state, style));
        line(&mut text, "");
        let mut backends = backends(&[("", reply)], &Nodes::new(), |_| true);
        for backend in &mut backends {
            // What the notes have said already.
            backend.reasons.retain(|reason| !reason.starts_with("is "));
        }
        text.push_str(&render_backends(&backends, style));
    }
    let full = full_tables(state);
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
        let table = Table::of(
            drops,
            &[
                ("DROPPED BECAUSE", |(reason, _)| reason.as_str().into()),
                ("#FRAMES", |(_, frames)| (*frames).into()),
            ],
        );
        text.push_str(&table.render(style));
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

/// All policies with what became of their flows.
fn policies(state: &State, style: Style) -> String {
    let table = Table::of(
        &state.policies,
        &[
            ("POLICY", |p| p.name.as_str().into()),
            ("FRONTEND", |p| frontends(p).into()),
            ("#FLOWS", |p| p.flows.into()),
            ("#SINCE START", |p| p.flows_total.into()),
            ("#MOVES", |p| p.migrations_total.into()),
            ("#ROLLBACKS", |p| p.rollbacks_total.into()),
            ("#RESCUES", |p| p.rescues_total.into()),
            ("#LOST", |p| p.lost_total.values().sum::<u64>().into()),
        ],
    );
    let mut text = table.render(style);
    for policy in &state.policies {
        let mut said = Vec::new();
        if policy.panic {
            said.push("panic mode, all backends are used".to_owned());
        }
        if policy.replays_total > 0 {
            said.push(format!("{} requests sent again", policy.replays_total));
        }
        for (what, counts) in [("lost", &policy.lost_total), ("pinned", &policy.pinned)] {
            let counts = reasons([counts]);
            if !counts.is_empty() {
                said.push(format!("{what} {counts}"));
            }
        }
        if !said.is_empty() {
            wrapped(&mut text, "  ", &format!("{}: {}", policy.name, said.join("; ")));
        }
    }
    text
}

fn frontends(policy: &PolicyState) -> String {
    match policy.frontends.as_slice() {
        [] => "-".to_owned(),
        [one] => one.to_string(),
        [first, more @ ..] => format!("{first} +{}", more.len()),
    }
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
