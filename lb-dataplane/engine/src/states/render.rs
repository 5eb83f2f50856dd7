//! The declared table as Markdown: a picture, the rows, and the whole square of states and events.

use super::{Event, State, TABLE, Transition, meaning};
use std::fmt::Write as _;

/// The table and its picture.
#[must_use]
pub fn render() -> String {
    let mut text = String::from(
        "# States of a flow\n\nGenerated from `lb-dataplane/engine/src/states/table.rs`; `make generate` writes it, a test compares it.\n\n```mermaid\nstateDiagram-v2\n    [*] --> SynSent: client SYN\n",
    );
    for row in TABLE.iter().filter(|r| r.from != r.to) {
        let to = match row.to {
            State::Gone => "[*]",
            to => to.name(),
        };
        let (from, event) = (row.from.name(), row.event.name());
        let _ = writeln!(text, "    {from} --> {to}: {event}");
    }
    text.push_str("```\n\n| state | event | next state | actions, in order | frame |\n|---|---|---|---|---|\n");
    for row in TABLE {
        let actions: Vec<_> = row.actions.iter().map(|a| a.name()).collect();
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} |",
            row.from.name(),
            row.event.name(),
            row.to.name(),
            actions.join(", "),
            row.frame.name()
        );
    }
    axes(&mut text);
    square(&mut text);
    text
}

/// What each state says on each axis.
fn axes(text: &mut String) {
    text.push_str(
        "\n## What each state says\n\n| state | connection | turn | owner |\n|---|---|---|---|\n",
    );
    for state in State::ALL.iter().filter(|s| **s != State::Gone) {
        let (name, conn, owner) = (state.name(), state.conn().name(), state.owner().name());
        let turn = state.turn().map_or("", |turn| turn.name());
        let _ = writeln!(text, "| {name} | {conn} | {turn} | {owner} |");
    }
}

/// Every pair of state and event.
fn square(text: &mut String) {
    text.push_str("\n## Every pair\n\nThe next state where a row is declared; `=`: the event changes nothing and its frame is forwarded; blank: no classifier raises it there (counted as `unexpected_events_total` if it happens all the same).\n\n| event |");
    let states = || State::ALL.iter().filter(|s| **s != State::Gone);
    for state in states() {
        let _ = write!(text, " {} |", state.name());
    }
    text.push_str("\n|---|");
    text.push_str(&"---|".repeat(states().count()));
    for event in Event::ALL {
        let _ = write!(text, "\n| {} |", event.name());
        for state in states() {
            let cell = match meaning(*state, *event) {
                Transition::Row(_, row) => row.to.name(),
                Transition::Ignore => "=",
                Transition::Invalid => "",
            };
            let _ = write!(text, " {cell} |");
        }
    }
    text.push('\n');
}
