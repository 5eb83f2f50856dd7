//! The states of adoption key rotation and what leads from one to the next.
//!
//! Owns every change of the stored keys: what is no row changes nothing. Knows no key, clock or
//! peer.

use super::KeySet;
use std::fmt;

/// What is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Nothing.
    NoKey,
    /// The current key only.
    Settled,
    /// The current key and its successor, with which nobody shall sign yet.
    Added,
    /// The current key and older ones, with which somebody may still sign.
    Switched,
    /// All three kinds: only if somebody changed what is stored.
    Crowded,
}

/// What is the case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Event {
    /// There is no key.
    Missing,
    /// The period is over, a rotation was asked for, or a node was excluded that has had a key.
    Due,
    /// Everybody has the successor, and who starts now gets it.
    AllHaveNext,
    /// Everybody signs with the current key, and a grace has passed.
    AllSign,
}

/// What is done to the stored keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// Makes a key and signs with it.
    MakeFirst,
    /// Makes the successor's key.
    AddNext,
    /// Makes the successor the current one.
    SignWithNext,
    /// Removes what is neither the current key nor its successor.
    RemoveOld,
}

/// One transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Where.
    pub state: State,
    /// What is the case.
    pub event: Event,
    /// What is done.
    pub action: Action,
    /// Where that leads to.
    pub next: State,
}

impl State {
    /// Each.
    pub const ALL: [Self; 5] =
        [Self::NoKey, Self::Settled, Self::Added, Self::Switched, Self::Crowded];

    /// Of what is stored.
    #[must_use]
    pub fn of(stored: Option<&KeySet>) -> Self {
        let Some(keys) = stored else {
            return Self::NoKey;
        };
        match (keys.has(keys.successor()), !keys.old().is_empty()) {
            (false, false) => Self::Settled,
            (true, false) => Self::Added,
            (false, true) => Self::Switched,
            (true, true) => Self::Crowded,
        }
    }
}

impl Event {
    /// Each, in the order in which they are looked at.
    pub const ALL: [Self; 4] = [Self::Missing, Self::Due, Self::AllHaveNext, Self::AllSign];
}

const fn row(state: State, event: Event, action: Action, next: State) -> Row {
    Row { state, event, action, next }
}

/// Every transition. Any other pair of state and event changes nothing: a rotation that is under
/// way ends before the next begins, and old keys go before another becomes current.
pub const TABLE: [Row; 5] = [
    row(State::NoKey, Event::Missing, Action::MakeFirst, State::Settled),
    row(State::Settled, Event::Due, Action::AddNext, State::Added),
    row(State::Added, Event::AllHaveNext, Action::SignWithNext, State::Switched),
    row(State::Switched, Event::AllSign, Action::RemoveOld, State::Settled),
    row(State::Crowded, Event::AllSign, Action::RemoveOld, State::Added),
];

/// The row of a pair, if it changes anything.
#[must_use]
pub fn transition(state: State, event: Event) -> Option<Row> {
    TABLE.into_iter().find(|row| row.state == state && row.event == event)
}

macro_rules! shown_by_name {
    ($($type:ty),*) => {$(
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&format!("{self:?}"))
            }
        }
    )*};
}

shown_by_name!(State, Event, Action);

#[cfg(test)]
mod tests {
    use super::*;

    /// The table as people read it.
    fn printed() -> String {
        let mut text = format!("{:<10}{:<13}{:<14}next\n", "state", "event", "action");
        for state in State::ALL {
            for event in Event::ALL {
                let line = match transition(state, event) {
                    Some(row) => format!("{state:<10}{event:<13}{:<14}{}", row.action, row.next),
                    None => format!("{state:<10}{event:<13}{:<14}{state}", "-"),
                };
                text.push_str(&line);
                text.push('\n');
            }
        }
        text
    }

    #[test]
    fn the_table_is_as_it_is_written_down() {
        let written = include_str!("table.txt");
        let printed = printed();
        assert_eq!(printed, written, "keys/table.txt is stale; the table is now:\n{printed}");
    }

    #[test]
    fn every_row_is_found_and_none_is_hidden_by_another() {
        for row in TABLE {
            assert_eq!(transition(row.state, row.event), Some(row));
        }
    }
}
