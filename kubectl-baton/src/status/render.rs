//! What `status` looks like: a pure function from the report to text.

use super::report::{Dataplane, OneNode, Policy, Report};
use baton_cli::{Cell, Shown, Style, Table, Tone, line, span, verdict};

/// Is it working, and if not, why; then the tables.
pub fn render(report: &Report, style: Style) -> String {
    let rest: &[(&str, &[String])] =
        &[("Worth a look:", &report.notes), ("Not looked at:", &report.unseen)];
    let mut text = verdict("Baton", &report.problems, rest, style);
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
        clients(&report.policies, style),
        dataplanes(&report.dataplanes, style),
        nodes(&report.nodes),
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
    let mut columns: Vec<Shown<&Policy>> = vec![
        ("POLICY", |p| format!("{}/{}", p.namespace, p.name).into()),
        ("SERVICE", |p| p.service.as_str().into()),
        ("STATE", |p| state(p.state)),
        ("#BACKENDS", |p| p.backends.as_str().into()),
        ("#FLOWS", |p| p.flows.into()),
        ("#MOVABLE", |p| p.movable.as_str().into()),
        ("#MOVES", |p| p.moves.into()),
        ("#LOST", |p| p.lost.into()),
    ];
    if style.wide {
        columns.extend::<[Shown<&Policy>; 4]>([
            ("#RESCUED", |p| p.rescued.into()),
            ("#DATAPLANES", |p| p.dataplanes.as_str().into()),
            ("ALGORITHM", |p| p.algorithm.as_str().into()),
            ("PROTOCOL", |p| p.protocol.as_str().into()),
        ]);
    }
    Table::of(policies, &columns)
}

/// Where clients connect, and where that leads.
fn clients(policies: &[Policy], style: Style) -> Table {
    let connect: fn(&&Policy) -> Cell = match style.wide {
        true => |p| connect(p, usize::MAX).into(),
        false => |p| connect(p, 1).into(),
    };
    Table::of(
        policies,
        &[
            ("POLICY", |p| format!("{}/{}", p.namespace, p.name).into()),
            ("CLIENTS CONNECT TO", connect),
            ("THROUGH SERVICE", |p| of(p.frontend.as_ref().map(|front| &front.service))),
            ("LEADS TO", |p| {
                let to = p.frontend.as_ref().map(|front| front.leads_to);
                to.map_or_else(|| "-".into(), |to| Cell::toned(to, leading(to)))
            }),
        ],
    )
}

fn leading(to: &str) -> Tone {
    match to {
        "dataplanes" => Tone::Good,
        "pods" => Tone::Warn,
        _ => Tone::Bad,
    }
}

/// So many of the addresses, and the ports that the dataplanes have themselves.
fn connect(policy: &Policy, shown: usize) -> String {
    let all = policy.addresses.iter().cloned();
    let mut parts: Vec<String> = all.take(shown).collect();
    let rest = policy.addresses.len() - parts.len();
    if let Some(last) = parts.last_mut().filter(|_| rest > 0) {
        last.push_str(&format!(" +{rest}"));
    }
    let ports: Vec<String> = policy.own_ports.iter().map(ToString::to_string).collect();
    if !ports.is_empty() {
        parts.push(format!("dataplanes:{}", ports.join(",")));
    }
    match parts.is_empty() {
        true => "-".to_owned(),
        false => parts.join(", "),
    }
}

/// What a dataplane says, if it does.
fn of<T: ToString>(told: Option<T>) -> Cell {
    told.map_or_else(|| "-".into(), |told| told.to_string().into())
}

fn dataplanes(dataplanes: &[Dataplane], style: Style) -> Table {
    let mut columns: Vec<Shown<&Dataplane>> = vec![
        ("DATAPLANE", |d| d.name.as_str().into()),
        ("NODE", |d| of(d.node.as_ref())),
        ("STATE", |d| state(d.state)),
        ("UP", |d| of(d.report.as_ref().map(|s| span(s.uptime_seconds)))),
        ("MODE", |d| of(d.report.as_ref().map(|s| &s.mode))),
        ("#FLOWS", |d| of(d.report.as_ref().map(|s| s.flows))),
    ];
    if style.wide {
        columns.extend::<[Shown<&Dataplane>; 5]>([
            ("CLASS", |d| of(d.class.as_ref())),
            ("VERSION", |d| of(d.report.as_ref().map(|s| &s.version))),
            ("#POLICIES", |d| of(d.report.as_ref().map(|s| s.policies))),
            ("#GENERATION", |d| of(d.report.as_ref().map(|s| s.generation))),
            ("#RESTARTS", |d| d.restarts.to_string().into()),
        ]);
    }
    Table::of(dataplanes, &columns)
}

/// Whether its kernel is known to be too old.
fn kernel(one: &OneNode) -> Tone {
    match one.node.is_too_old() {
        true => Tone::Warn,
        false => Tone::Plain,
    }
}

fn shim(one: &OneNode) -> Tone {
    match (one.shim, one.backends) {
        ("none", 0) => Tone::Plain,
        _ => tone(one.shim),
    }
}

fn nodes(nodes: &[OneNode]) -> Table {
    Table::of(
        nodes,
        &[
            ("NODE", |one| one.node.name.as_str().into()),
            ("STATE", |one| state(if one.node.ready { "ready" } else { "not ready" })),
            ("KERNEL", |one| Cell::toned(one.node.kernel.as_str(), kernel(one))),
            ("SHIM", |one| Cell::toned(one.shim, shim(one))),
            ("#BACKENDS", |one| (one.backends as u64).into()),
            ("#DATAPLANES", |one| (one.dataplanes as u64).into()),
        ],
    )
}
