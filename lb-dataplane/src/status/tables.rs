//! Policies, backends and flows as tables, and below each the sentences that no column has room for.

use crate::diagnosis::reasons;
use baton_api::{BackendState, FlowView, State};
use baton_text::{DrainProgress, Style, Table, line, micros, wrapped};

/// All policies with what became of their flows.
pub fn policies(state: &State) -> String {
    let mut table = Table::new(&[
        "POLICY",
        "FRONTEND",
        "#FLOWS",
        "#SINCE START",
        "#MOVES",
        "#ROLLBACKS",
        "#RESCUES",
        "#LOST",
    ]);
    for policy in &state.policies {
        let frontend = match policy.frontends.as_slice() {
            [] => "-".to_owned(),
            [one] => one.to_string(),
            [first, more @ ..] => format!("{first} +{}", more.len()),
        };
        table.texts([
            policy.name.clone(),
            frontend,
            policy.flows.to_string(),
            policy.flows_total.to_string(),
            policy.migrations_total.to_string(),
            policy.rollbacks_total.to_string(),
            policy.rescues_total.to_string(),
            policy.lost_total.values().sum::<u64>().to_string(),
        ]);
    }
    let mut text = table.render(Style::default());
    for policy in &state.policies {
        let mut said = Vec::new();
        if policy.panic {
            said.push("panic mode, all backends are used".to_owned());
        }
        if policy.replays_total > 0 {
            said.push(format!("{} requests sent again", policy.replays_total));
        }
        for (what, counts) in [("lost", &policy.lost_total), ("pinned", &policy.pins_total)] {
            let counts = reasons(counts);
            if !counts.is_empty() {
                said.push(format!("{what} {counts}"));
            }
        }
        if !said.is_empty() {
            wrapped(
                &mut text,
                "  ",
                &format!("{}: {}", policy.name, said.join("; ")),
            );
        }
    }
    text
}

/// All backends with their load, and a sentence for each that is not simply up.
pub fn backends(state: &State) -> String {
    let mut text = backends_table(state);
    for policy in &state.policies {
        for backend in policy.backends.iter().filter(|b| !b.is_up()) {
            let health = format!("{} is {}", backend.name, backend.health);
            wrapped(&mut text, "  ", &health);
        }
    }
    text + &below(state)
}

/// The same without what `diagnosis` says.
pub fn backends_in_status(state: &State) -> String {
    backends_table(state) + &below(state)
}

fn backends_table(state: &State) -> String {
    let mut table = Table::new(&[
        "BACKEND",
        "ENDPOINT",
        "STATE",
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
            table.texts([
                name,
                backend.endpoint.to_string(),
                backend.word().to_owned(),
                backend.flows.to_string(),
                backend.outstanding.to_string(),
                micros(backend.first_byte.0),
                backend.migrations_in_total.to_string(),
                backend.migrations_out_total.to_string(),
            ]);
        }
    }
    table.render(Style::default())
}

/// The table has no room for reasons; each is said once, below.
fn below(state: &State) -> String {
    let mut text = String::new();
    for backend in state.policies.iter().flat_map(|policy| &policy.backends) {
        if !backend.adoptable {
            let why = format!(
                "{} cannot adopt: {}",
                backend.name, backend.adoptable_reason
            );
            wrapped(&mut text, "  ", &why);
        }
        if let Some(progress) = DrainProgress::of(backend) {
            let by = match &backend.drain {
                Some(drain) if drain.by_command => "by command",
                _ => "by configuration",
            };
            let drains = format!("{} drains {by}: {}", backend.name, progress.line());
            wrapped(&mut text, "  ", &drains);
        }
        if let Some(rescues) = rescues(backend) {
            wrapped(&mut text, "  ", &rescues);
        }
    }
    text
}

fn rescues(backend: &BackendState) -> Option<String> {
    let mut said = Vec::new();
    if backend.rescued_total > 0 {
        said.push(format!(
            "{} flows died here and went on elsewhere",
            backend.rescued_total
        ));
    }
    if backend.stranded > 0 {
        said.push(format!("{} wait for another owner", backend.stranded));
    }
    (!said.is_empty()).then(|| format!("{}: {}", backend.name, said.join(", ")))
}

/// Client connections.
pub fn flows(flows: &[FlowView], truncated: bool) -> String {
    let pinned = flows.iter().any(|flow| flow.pinned.is_some());
    let mut headings = vec![
        "CLIENT", "FRONTEND", "BACKEND", "#PORT", "STATE", "#MOVES", "#QUIET",
    ];
    if pinned {
        headings.push("PINNED");
    }
    let mut table = Table::new(&headings);
    for flow in flows {
        let mut row = vec![
            flow.client.to_string(),
            flow.frontend.to_string(),
            flow.backend.clone(),
            flow.port.to_string(),
            flow.state.clone(),
            flow.migrations.to_string(),
            micros(flow.quiet.0),
        ];
        if pinned {
            row.push(flow.pinned.clone().unwrap_or_default());
        }
        table.texts(row);
    }
    let mut text = table.render(Style::default());
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
