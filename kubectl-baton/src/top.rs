//! `top`: what backends do between two looks. Pure.

use baton_api::StateReply;
use baton_cli::{Backend, Nodes, PolicyName, Shown, Style, Table, backends, line, micros};
use serde::Serialize;
use std::{collections::BTreeMap, time::Duration};

/// One look.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Look {
    /// The backends.
    pub backends: Vec<Backend>,
    /// Since this program's start.
    pub at: Duration,
}

/// A backend with its rates.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// The figures.
    #[serde(flatten)]
    pub backend: Backend,
    /// None at the first look.
    pub requests_per_second: Option<f64>,
    /// Flows that came, per second.
    pub moves_in_per_second: Option<f64>,
    /// Flows that left, per second.
    pub moves_out_per_second: Option<f64>,
}

/// What is shown at one time.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Frame {
    /// Connections.
    pub flows: u64,
    /// Of all backends.
    pub requests_per_second: Option<f64>,
    /// Moves, each counted once.
    pub moves_per_second: Option<f64>,
    /// Backends, the busiest first.
    pub rows: Vec<Row>,
    /// Backends that are not shown.
    pub hidden: usize,
    /// Dataplanes that did not answer.
    pub silent: Vec<String>,
}

/// What the dataplanes said, as one look.
pub fn look(
    answers: &[(&str, &StateReply)],
    wanted: impl Fn(&PolicyName) -> bool,
    at: Duration,
) -> Look {
    Look { backends: backends(answers, &Nodes::new(), wanted), at }
}

/// The difference between two looks. A backend or dataplane that is new, or that started anew, has
/// no rate.
pub fn frame(before: Option<&Look>, now: &Look, rows: usize, silent: Vec<String>) -> Frame {
    type Key<'a> = (&'a PolicyName, &'a str, &'a str);
    fn key(backend: &Backend) -> Key<'_> {
        (&backend.policy, &backend.backend, &backend.endpoint)
    }
    let seconds = before.map_or(0.0, |before| now.at.saturating_sub(before.at).as_secs_f64());
    let old: BTreeMap<Key<'_>, &Backend> = before
        .iter()
        .flat_map(|look| &look.backends)
        .map(|backend| (key(backend), backend))
        .collect();
    let mut all: Vec<Row> = now
        .backends
        .iter()
        .map(|backend| {
            let same = |old: &&&Backend| old.dataplanes == backend.dataplanes;
            let old = old.get(&key(backend)).filter(same).filter(|_| seconds > 0.0);
            let rate = |of: fn(&Backend) -> u64| {
                let grown = of(backend).checked_sub(of(old?))?;
                Some(grown as f64 / seconds)
            };
            Row {
                backend: backend.clone(),
                requests_per_second: rate(|b| b.requests),
                moves_in_per_second: rate(|b| b.moves_in),
                moves_out_per_second: rate(|b| b.moves_out),
            }
        })
        .collect();
    let sum = |of: fn(&Row) -> Option<f64>| {
        let known: Vec<f64> = all.iter().filter_map(of).collect();
        (!known.is_empty()).then(|| known.iter().sum::<f64>())
    };
    let (requests_per_second, moves_per_second) =
        (sum(|r| r.requests_per_second), sum(|r| r.moves_in_per_second));
    let flows = all.iter().map(|row| row.backend.flows).sum();
    let busy = |row: &Row| row.requests_per_second.unwrap_or_default();
    all.sort_by(|a, b| {
        busy(b).total_cmp(&busy(a)).then_with(|| b.backend.flows.cmp(&a.backend.flows))
    });
    let hidden = all.len().saturating_sub(rows);
    all.truncate(rows);
    Frame { flows, requests_per_second, moves_per_second, rows: all, hidden, silent }
}

fn rate(rate: Option<f64>) -> String {
    match rate {
        None => "-".to_owned(),
        Some(rate) if rate > 0.0 && rate < 10.0 => format!("{rate:.1}"),
        Some(rate) => format!("{rate:.0}"),
    }
}

/// One frame as text.
pub fn render(frame: &Frame, style: Style) -> String {
    let mut text = String::new();
    line(
        &mut text,
        &format!(
            "{} flows, {} requests/s, {} moves/s",
            frame.flows,
            rate(frame.requests_per_second),
            rate(frame.moves_per_second)
        ),
    );
    let mut columns: Vec<Shown<&Row>> = vec![
        ("POLICY", |r| r.backend.policy.to_string().into()),
        ("BACKEND", |r| r.backend.backend.as_str().into()),
        ("STATE", |r| r.backend.state()),
        ("#FLOWS", |r| r.backend.flows.into()),
        ("#OUTST.", |r| r.backend.outstanding.into()),
        ("#1ST BYTE", |r| micros(r.backend.first_byte_micros).into()),
        ("#REQ/S", |r| rate(r.requests_per_second).into()),
        ("#IN/S", |r| rate(r.moves_in_per_second).into()),
        ("#OUT/S", |r| rate(r.moves_out_per_second).into()),
    ];
    if style.wide {
        columns.extend::<[Shown<&Row>; 3]>([
            ("ENDPOINT", |r| r.backend.endpoint.as_str().into()),
            ("#PINNED", |r| r.backend.pinned.into()),
            ("#REQUESTS", |r| r.backend.requests.into()),
        ]);
    }
    let table = Table::of(&frame.rows, &columns);
    text.push_str(&table.render(style));
    if frame.hidden > 0 {
        line(&mut text, &format!("{} more: see --rows", frame.hidden));
    }
    text
}
