//! `flows`: client connections of all dataplanes, filtered and sorted. Pure.

use crate::{
    args::{Flows as Wanted, Sort},
    ask::{PolicyName, Response, Views},
};
use baton_api::FlowView;
use baton_text::{Cell, Shown, Style, Table, Tone, line, micros};
use serde::Serialize;

/// Flows that a dataplane is asked for at least: filters and orders are this program's, so more than is shown has to be
/// read. About 6 MB of JSON.
const ASKED_MIN: u32 = 20_000;

/// One flow.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Flow {
    /// `DATAPLANE/CLIENT`, as `explain` takes it.
    pub id: String,
    /// The dataplane's Pod.
    pub dataplane: String,
    /// What it says.
    #[serde(flatten)]
    pub flow: FlowView,
}

/// The flows that are meant.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Flows {
    /// In order.
    pub flows: Vec<Flow>,
    /// There are more.
    pub truncated: bool,
    /// Dataplanes that did not answer.
    pub silent: Vec<String>,
}

/// How many flows to ask each dataplane for.
pub fn asked(wanted: &Wanted) -> u32 {
    // One more than is shown, to know whether there are more.
    (wanted.limit + 1).max(ASKED_MIN)
}

/// What dataplanes said, as one list.
pub fn all(answers: &[Response<Views>]) -> Vec<Flow> {
    let mut flows = Vec::new();
    for asked in answers {
        for flow in asked.result.iter().flat_map(|views| &views.flows) {
            flows.push(Flow {
                id: format!("{}/{}", asked.name(), flow.client),
                dataplane: asked.name().to_owned(),
                flow: flow.clone(),
            });
        }
    }
    flows
}

/// Filters and sorts.
pub fn flows(answers: &[Response<Views>], wanted: &Wanted, namespace: Option<&str>) -> Flows {
    let cut = |asked: &Response<Views>| asked.result.as_ref().is_ok_and(|views| views.truncated);
    let mut flows = all(answers);
    flows.retain(|flow| {
        let flow = &flow.flow;
        PolicyName::parse(&flow.policy).is(wanted.policy.as_deref(), namespace)
            && wanted
                .backend
                .as_ref()
                .is_none_or(|backend| *backend == flow.backend)
            && wanted.client.is_none_or(|client| client.has(flow.client))
            && wanted
                .state
                .as_ref()
                .is_none_or(|state| state.eq_ignore_ascii_case(&flow.state))
            && (!wanted.pinned || flow.pinned.is_some())
    });
    flows.sort_by(|a, b| {
        let (f, g) = (&a.flow, &b.flow);
        let by = match wanted.sort {
            Sort::Client => std::cmp::Ordering::Equal,
            Sort::Backend => f.backend.cmp(&g.backend),
            Sort::Moves => g.migrations.cmp(&f.migrations),
            Sort::Quiet => g.quiet.cmp(&f.quiet),
            Sort::State => f.state.cmp(&g.state),
        };
        by.then_with(|| {
            (f.client, f.frontend, &a.dataplane).cmp(&(g.client, g.frontend, &b.dataplane))
        })
    });
    let limit = wanted.limit as usize;
    let truncated = flows.len() > limit || answers.iter().any(cut);
    flows.truncate(limit);
    Flows {
        flows,
        truncated,
        silent: crate::ask::silent(answers),
    }
}

/// The table.
pub fn render(flows: &Flows, style: Style) -> String {
    if flows.flows.is_empty() && !flows.truncated {
        return "No flows.\n".to_owned();
    }
    let mut columns: Vec<Shown<&Flow>> = vec![
        ("!CLIENT", |f| f.flow.client.to_string().into()),
        ("POLICY", |f| f.flow.policy.as_str().into()),
        ("BACKEND", |f| f.flow.backend.as_str().into()),
        ("STATE", |f| f.flow.state.as_str().into()),
        ("#MOVES", |f| u64::from(f.flow.migrations).into()),
        ("#QUIET", |f| micros(f.flow.quiet.0).into()),
    ];
    if flows.flows.iter().any(|flow| flow.flow.pinned.is_some()) {
        columns.push(("PINNED", |f| {
            Cell::toned(f.flow.pinned.as_deref().unwrap_or_default(), Tone::Warn)
        }));
    }
    if style.wide {
        columns.extend::<[Shown<&Flow>; 3]>([
            ("FRONTEND", |f| f.flow.frontend.to_string().into()),
            ("#PORT", |f| u64::from(f.flow.port).into()),
            ("ID", |f| f.id.as_str().into()),
        ]);
    }
    let mut text = Table::of(&flows.flows, &columns).render(style);
    if flows.truncated {
        let shown = flows.flows.len();
        line(
            &mut text,
            &format!("{shown} shown, there are more: see --limit, --policy, --backend, --client"),
        );
    }
    text
}
