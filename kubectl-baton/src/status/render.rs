//! What `status` looks like: a pure function from the report to text.

use super::report::{Dataplane, OneNode, Policy, Report};
use baton_text::{Cell, Style, Table, Tone, line, span, wrapped};

/// Is it working, and if not, why; then the tables.
pub fn render(report: &Report, style: Style) -> String {
    let mut text = String::new();
    if report.works {
        line(&mut text, &style.paint(Tone::Good, "Baton works."));
    } else {
        line(
            &mut text,
            &style.paint(Tone::Bad, "Baton does NOT work as it should:"),
        );
        for problem in &report.problems {
            wrapped(&mut text, "  - ", problem);
        }
    }
    for (heading, sentences) in [
        ("Worth a look:", &report.notes),
        ("Not looked at:", &report.unseen),
    ] {
        if !sentences.is_empty() {
            line(&mut text, &style.paint(Tone::Warn, heading));
            for sentence in sentences {
                wrapped(&mut text, "  - ", sentence);
            }
        }
    }
    if !report.parts.is_empty() {
        line(&mut text, "");
        let parts: Vec<String> = report
            .parts
            .iter()
            .map(|(part, (ready, total))| format!("{part} {ready}/{total}"))
            .collect();
        line(&mut text, &format!("Ready: {}", parts.join(", ")));
    }
    for table in [
        policies(&report.policies, style),
        dataplanes(&report.dataplanes, style),
        nodes(&report.nodes, style),
    ] {
        if !table.is_empty() {
            line(&mut text, "");
            text.push_str(&table.render(style));
        }
    }
    text
}

fn tone(word: &str) -> Tone {
    match word {
        "ok" | "ready" => Tone::Good,
        "degraded" | "no moves" | "ends" => Tone::Warn,
        _ => Tone::Bad,
    }
}

fn state(word: &str) -> Cell {
    Cell::toned(word, tone(word))
}

fn policies(policies: &[Policy], style: Style) -> Table {
    let mut headings = vec![
        "POLICY",
        "SERVICE",
        "STATE",
        "#BACKENDS",
        "#FLOWS",
        "#MOVES",
        "#LOST",
    ];
    if style.wide {
        headings.extend(["#RESCUED", "#DATAPLANES", "ALGORITHM", "PROTOCOL"]);
    }
    let mut table = Table::new(&headings);
    for policy in policies {
        let mut row: Vec<Cell> = vec![
            format!("{}/{}", policy.namespace, policy.name).into(),
            policy.service.as_str().into(),
            state(policy.state),
            policy.backends.as_str().into(),
            policy.flows.into(),
            policy.moves.into(),
            policy.lost.into(),
        ];
        if style.wide {
            row.extend([
                policy.rescued.into(),
                policy.dataplanes.as_str().into(),
                policy.algorithm.as_str().into(),
                policy.protocol.as_str().into(),
            ]);
        }
        table.row(row);
    }
    table
}

fn dataplanes(dataplanes: &[Dataplane], style: Style) -> Table {
    let mut headings = vec!["DATAPLANE", "NODE", "STATE", "UP", "MODE", "#FLOWS"];
    if style.wide {
        headings.extend(["CLASS", "VERSION", "#POLICIES", "#GENERATION", "#RESTARTS"]);
    }
    let mut table = Table::new(&headings);
    for dataplane in dataplanes {
        let said = dataplane.said.as_ref();
        let of = |text: Option<String>| Cell::from(text.unwrap_or_else(|| "-".to_owned()));
        let mut row = vec![
            dataplane.name.as_str().into(),
            of(dataplane.node.clone()),
            state(dataplane.state),
            of(said.map(|said| span(said.uptime_seconds))),
            of(said.map(|said| said.mode.clone())),
            of(said.map(|said| said.flows.to_string())),
        ];
        if style.wide {
            row.extend([
                of(dataplane.class.clone()),
                of(said.map(|said| said.version.clone())),
                of(said.map(|said| said.policies.to_string())),
                of(said.map(|said| said.generation.to_string())),
                dataplane.restarts.to_string().into(),
            ]);
        }
        table.row(row);
    }
    table
}

fn nodes(nodes: &[OneNode], _: Style) -> Table {
    let mut table = Table::new(&[
        "NODE",
        "STATE",
        "KERNEL",
        "SHIM",
        "#BACKENDS",
        "#DATAPLANES",
    ]);
    for one in nodes {
        let shim = if one.shim == "none" && one.backends == 0 {
            Tone::Plain
        } else {
            tone(one.shim)
        };
        let kernel = if one.node.is_too_old() {
            Tone::Warn
        } else {
            Tone::Plain
        };
        table.row(vec![
            one.node.name.as_str().into(),
            state(if one.node.ready { "ready" } else { "not ready" }),
            Cell::toned(one.node.kernel.as_str(), kernel),
            Cell::toned(one.shim, shim),
            one.backends.to_string().into(),
            one.dataplanes.to_string().into(),
        ]);
    }
    table
}
