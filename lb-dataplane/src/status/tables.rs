//! Policies, backends and flows as tables, and below each the sentences that no column has room for.

use baton_api::{BackendState, FlowView, PolicyState, State};
use baton_text::{DrainProgress, Shown, Style, Table, line, micros, reasons, wrapped};

/// All policies with what became of their flows.
pub fn policies(state: &State) -> String {
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
            let counts = reasons([counts]);
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

fn frontends(policy: &PolicyState) -> String {
    match policy.frontends.as_slice() {
        [] => "-".to_owned(),
        [one] => one.to_string(),
        [first, more @ ..] => format!("{first} +{}", more.len()),
    }
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
    let several = state.policies.len() > 1;
    let rows = state.policies.iter().flat_map(|policy| {
        let name = move |backend: &BackendState| match several {
            true => format!("{}:{}", policy.name, backend.name),
            false => backend.name.clone(),
        };
        policy.backends.iter().map(move |b| (name(b), b))
    });
    let table = Table::of(
        rows,
        &[
            ("BACKEND", |(name, _)| name.as_str().into()),
            ("ENDPOINT", |(_, b)| b.endpoint.to_string().into()),
            ("STATE", |(_, b)| b.word().into()),
            ("#FLOWS", |(_, b)| b.flows.into()),
            ("#OUTST.", |(_, b)| b.outstanding.into()),
            ("#1ST BYTE", |(_, b)| micros(b.first_byte.0).into()),
            ("#IN", |(_, b)| b.migrations_in_total.into()),
            ("#OUT", |(_, b)| b.migrations_out_total.into()),
        ],
    );
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
    let mut columns: Vec<Shown<&FlowView>> = vec![
        ("CLIENT", |f| f.client.to_string().into()),
        ("FRONTEND", |f| f.frontend.to_string().into()),
        ("BACKEND", |f| f.backend.as_str().into()),
        ("#PORT", |f| u64::from(f.port).into()),
        ("STATE", |f| f.state.as_str().into()),
        ("#MOVES", |f| u64::from(f.migrations).into()),
        ("#QUIET", |f| micros(f.quiet.0).into()),
    ];
    if flows.iter().any(|flow| flow.pinned.is_some()) {
        columns.push(("PINNED", |f| f.pinned.as_deref().unwrap_or_default().into()));
    }
    let mut text = Table::of(flows, &columns).render(Style::default());
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
