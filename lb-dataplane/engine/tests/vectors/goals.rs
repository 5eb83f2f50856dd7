//! What the cases have to cover, and which case is the canonical one of each.
//!
//! Owns the goals: every drop reason, every reason why a frame is malformed, every row of the
//! declared table, and every pair that changes nothing. A case that names a goal must reach it in
//! one of its own steps.

use super::{cases::Case, scene::Seen};
use baton_engine::{
    DropReason,
    states::{STAYS, TABLE},
};
use baton_packet::Malformed;
use std::{collections::BTreeMap, fmt::Write as _};

/// Every goal, by kind, in the order of the source.
pub fn all() -> Vec<(&'static str, Vec<String>)> {
    let row = |s: &str, e: &str| format!("{s} + {e}");
    let rows = TABLE.iter().map(|r| row(r.from.name(), r.event.name()));
    let stays = STAYS.iter().flat_map(|(s, events)| events.iter().map(|e| row(s.name(), e.name())));
    let drops = DropReason::ALL.iter().map(|r| r.label().to_owned());
    let malformed = Malformed::ALL.iter().map(|r| r.label().to_owned());
    vec![
        ("drop", drops.collect()),
        ("malformed", malformed.collect()),
        ("row", rows.collect()),
        ("stays", stays.collect()),
    ]
}

/// The case of each goal, or what is wrong.
pub fn canonical(cases: &[Case]) -> (BTreeMap<String, &Case>, Vec<String>) {
    let mut of = BTreeMap::new();
    let mut wrong = Vec::new();
    let known: Vec<String> = all()
        .into_iter()
        .flat_map(|(kind, goals)| goals.into_iter().map(move |g| format!("{kind} {g}")))
        .collect();
    for case in cases {
        for goal in &case.covers {
            if !known.contains(goal) {
                wrong.push(format!("{}: there is no goal `{goal}`", case.name));
            }
            if let Some(other) = of.insert(goal.clone(), case) {
                let other: &Case = other;
                wrong.push(format!("`{goal}` has two cases: {}, {}", other.name, case.name));
            }
        }
    }
    let bare = known.iter().filter(|goal| !of.contains_key(*goal));
    wrong.extend(bare.map(|goal| format!("`{goal}` has no case")));
    (of, wrong)
}

/// Whether a step reached a goal.
pub fn reached(goal: &str, act: &str, seen: &Seen) -> bool {
    let counted = |key: String| seen.counters.iter().any(|c| c.starts_with(&key));
    match goal.split_once(' ') {
        Some(("drop", reason)) => counted(format!("drops_total{{reason={reason}}}")),
        Some(("malformed", reason)) => counted(format!("malformed_total{{reason={reason}}}")),
        Some(("row", row)) => seen.rows.iter().any(|r| r == row),
        Some(("stays", pair)) => stayed(pair, act, seen),
        _ => false,
    }
}

/// A frame that is the event, in that state, which changed nothing and was forwarded.
fn stayed(pair: &str, act: &str, seen: &Seen) -> bool {
    let Some((state, event)) = pair.split_once(" + ") else {
        return false;
    };
    let from_client = act.starts_with("> client");
    let fin = act.contains(": F");
    let is_event = match event {
        "ServerData" => !from_client && act.contains('"'),
        "ServerFin" => !from_client && fin,
        "ClientFin" => from_client && fin,
        _ => false,
    };
    let there = |s: &Option<String>| s.as_deref() == Some(state);
    is_event
        && there(&seen.before)
        && there(&seen.after)
        && seen.rows.is_empty()
        && seen.transmitted
}

/// The table of goals and their cases.
pub fn table(cases: &[Case]) -> String {
    let (of, _) = canonical(cases);
    let mut text = String::from(
        "# Packet cases\n\nGenerated from `lb-dataplane/engine/tests/vectors/*.cases`; `BATON_GENERATE=1 cargo test -p baton-engine \
         --test vectors` writes it, a test compares it.\n\n",
    );
    let _ = writeln!(text, "{} cases. What each goal's canonical case is:", cases.len());
    let titles = [
        ("drop", "Reasons for drops", "reason"),
        ("malformed", "Reasons why a frame is malformed", "reason"),
        ("row", "Rows of the flow's table", "state and event"),
        ("stays", "Pairs that change nothing", "state and event"),
    ];
    for ((kind, goals), (_, title, column)) in all().into_iter().zip(titles) {
        let _ = writeln!(text, "\n## {title}\n\n| {column} | case | file |\n|---|---|---|");
        for goal in goals {
            if let Some(case) = of.get(&format!("{kind} {goal}")) {
                let _ = writeln!(text, "| {goal} | {} | {}.cases |", case.name, case.theme);
            }
        }
    }
    let mut themes: BTreeMap<&str, usize> = BTreeMap::new();
    for case in cases {
        *themes.entry(&case.theme).or_default() += 1;
    }
    let _ = writeln!(text, "\n## Files\n\n| file | cases |\n|---|---|");
    for (theme, count) in themes {
        let _ = writeln!(text, "| {theme}.cases | {count} |");
    }
    text
}
