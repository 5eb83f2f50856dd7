//! What `check` looks like: a pure function from the report to text.

use super::{
    judge::remarks,
    network::NOT_KNOWN,
    report::{Finding, Group, OnePort, OneService, Pods, Report},
};
use baton_cli::{Cell, Shown, Style, Table, Tone, judged, line, wrapped};

/// Rows of one table, where it is not to be wide: more are not read, and JSON has all.
const ROWS_MAX: usize = 100;
/// What nobody sees from outside of a node.
const LATER: &str = "Not to be seen from outside: BTF of the nodes, packet rules in Pods, listeners \
    with MPTCP (Go 1.24 or newer). Once Baton is installed, `host-shim preflight` and the policies' \
    status say what these lack.";

/// Can it be installed, and if not, why; then the tables and what to do next.
pub fn render(report: &Report, style: Style) -> String {
    let rest: &[(&str, &[String])] =
        &[("Worth knowing:", &report.notes), ("Not looked at:", &report.unseen)];
    let good = match report.nodes.is_empty() || report.cluster.kubernetes.found == NOT_KNOWN {
        true => "Nothing that could be looked at forbids Baton.",
        false => "Baton can be installed.",
    };
    let bad = "Baton can NOT be installed:";
    let mut text = judged(good, bad, &report.problems, rest, style);
    let most = if style.wide { usize::MAX } else { ROWS_MAX };
    let rows: Vec<Row<'_>> = report.services.iter().flat_map(rows).collect();
    let shown = &rows[..rows.len().min(most)];
    let groups = &report.nodes[..report.nodes.len().min(most)];
    for (table, left) in [
        (cluster(report), 0),
        (nodes(groups, style), report.nodes.len() - groups.len()),
        (services(shown, style), rows.len() - shown.len()),
    ] {
        if !table.is_empty() {
            line(&mut text, "");
            text.push_str(&table.render(style));
        }
        if left > 0 {
            line(&mut text, &format!("{left} more: -o wide shows all"));
        }
    }
    // Once for each Service.
    let firsts = shown.iter().filter(|row| row.is_first);
    for remark in firsts.flat_map(|row| remarks(row.of)) {
        wrapped(&mut text, "  ", &remark);
    }
    line(&mut text, "");
    wrapped(&mut text, "", LATER);
    if let Some(next) = &report.next {
        line(&mut text, "");
        wrapped(&mut text, "Next: ", next);
    }
    text
}

fn cluster(report: &Report) -> Table {
    let overview = &report.cluster;
    let rows: [(&str, &Finding); 4] = [
        ("kubernetes", &overview.kubernetes),
        ("network", &overview.network),
        ("kube-proxy", &overview.kube_proxy),
        ("mesh", &overview.mesh),
    ];
    Table::of(
        rows,
        &[
            ("CLUSTER", |(what, _)| (*what).into()),
            ("!FOUND", |(_, finding)| finding.found.as_str().into()),
            ("HOW", |(_, finding)| finding.how.as_str().into()),
        ],
    )
}

fn method(group: &Group) -> Cell {
    let tone = match group.reason {
        None => Tone::Good,
        Some(_) => Tone::Warn,
    };
    Cell::toned(group.method, tone)
}

/// `node-1 (+2)`: the first of them, and how many others.
fn first(group: &Group) -> String {
    let first = group.nodes.first().map_or("", String::as_str);
    match group.nodes.len() {
        0 | 1 => first.to_owned(),
        all => format!("{first} (+{})", all - 1),
    }
}

fn nodes(groups: &[Group], style: Style) -> Table {
    let mut columns: Vec<Shown<&Group>> = vec![("NODES", |group| first(group).into())];
    if style.wide {
        columns.extend::<[Shown<&Group>; 2]>([
            ("OS", |group| group.os.as_str().into()),
            ("KERNEL", |group| group.kernel.as_str().into()),
        ]);
    } else {
        columns.extend::<[Shown<&Group>; 2]>([
            // Without the code name, and without what the distribution counts.
            ("OS", |group| begin(&group.os, " (").into()),
            ("!KERNEL", |group| begin(&group.kernel, "-").into()),
        ]);
    }
    columns.extend::<[Shown<&Group>; 3]>([
        ("ARCH", |group| group.architecture.as_str().into()),
        ("RUNTIME", |group| group.runtime.replace("://", " ").into()),
        ("!MOVES BY", |group| method(group)),
    ]);
    if style.wide {
        columns.extend::<[Shown<&Group>; 2]>([
            ("WHY", |group| group.reason.as_deref().unwrap_or_default().into()),
            ("ALL NODES", |group| group.nodes.join(",").into()),
        ]);
    }
    Table::of(groups, &columns)
}

/// A text up to this part of it.
fn begin<'a>(text: &'a str, end: &str) -> &'a str {
    text.split(end).next().unwrap_or(text)
}

/// One port of a Service, or all of them where `attach` refuses.
struct Row<'a> {
    of: &'a OneService,
    ports: &'a [OnePort],
    is_first: bool,
}

fn rows(one: &OneService) -> Vec<Row<'_>> {
    let row = |(at, ports)| Row { of: one, ports, is_first: at == 0 };
    match one.refused {
        Some(_) => vec![row((0, &*one.ports))],
        None => one.ports.chunks(1).enumerate().map(row).collect(),
    }
}

impl Row<'_> {
    fn numbers(&self) -> String {
        let ports: Vec<String> = self.ports.iter().map(|p| p.port.to_string()).collect();
        ports.join(",")
    }

    fn protocol(&self) -> &'static str {
        let mut protocols = self.ports.iter().filter_map(|port| port.protocol);
        protocols.next().unwrap_or("-")
    }

    fn connections(&self) -> Cell {
        let stays = self.ports.iter().find_map(|port| port.stays);
        match (&self.of.refused, stays) {
            (Some(why), _) => format!("refused: {why}").into(),
            (None, Some(why)) => Cell::toned(format!("stay: {why}"), Tone::Warn),
            (None, None) => Cell::toned("move", Tone::Good),
        }
    }

    /// A figure of its Pods, if they are known.
    fn figure(&self, of: fn(&Pods) -> u64) -> Cell {
        let pods = self.of.pods.as_ref();
        pods.map_or_else(|| "-".into(), |pods| of(pods).into())
    }
}

fn services(rows: &[Row<'_>], style: Style) -> Table {
    let mut columns: Vec<Shown<&Row<'_>>> = vec![
        ("SERVICE", |row| format!("{}/{}", row.of.namespace, row.of.name).into()),
        ("PORT", |row| row.numbers().into()),
        ("PROTOCOL", |row| row.protocol().into()),
        ("#PODS", |row| row.figure(Pods::total)),
        ("#ADOPT", |row| row.figure(|pods| pods.adoption)),
        ("#TRANSL.", |row| row.figure(|pods| pods.translation)),
        ("!CONNECTIONS", |row| row.connections()),
    ];
    if style.wide {
        columns.push(("#NOT KNOWN", |row| row.figure(|pods| pods.unknown)));
        columns.push(("KEPT BY", |row| row.of.kept_by.unwrap_or("-").into()));
    }
    Table::of(rows, &columns)
}
