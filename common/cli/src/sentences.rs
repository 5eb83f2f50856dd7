//! What happens to flows, in the words that all tools use. Pure.

use crate::text::{Style, Tone, toned, wrapped};
use baton_api::{FlowEvent, MigrateReply, State, time_of_day};
use std::{cmp::Reverse, collections::BTreeMap};

/// A table this full is worth a line.
const NEAR_LIMIT_PERCENT: u64 = 80;

/// `3 no backend, 2 fate unknown`: the sums of all these counts, most frequent first.
#[must_use]
pub fn reasons<'a>(counts: impl IntoIterator<Item = &'a BTreeMap<String, u64>>) -> String {
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for (reason, number) in counts.into_iter().flatten() {
        *sums.entry(reason).or_default() += number;
    }
    let mut sums: Vec<_> = sums.into_iter().filter(|(_, number)| *number > 0).collect();
    sums.sort_by_key(|(_, number)| Reverse(*number));
    let words = sums.iter().map(|(reason, n)| format!("{n} {}", reason.replace('_', " ")));
    words.collect::<Vec<_>>().join(", ")
}

/// `17:03:59.123  10.0.0.7:4711          moved a -> b (drain)  shop/web/http`.
#[must_use]
pub fn event(unix_micros: u64, event: &FlowEvent) -> String {
    let client = event.client.to_string();
    format!("{}  {client:<21}  {}  {}", time_of_day(unix_micros), event.words(), event.policy)
}

/// What became of the order to move `flow`; without a choice, it goes to the best other `noun`.
#[must_use]
pub fn moves(flow: &str, reply: &MigrateReply, noun: &str) -> String {
    let best = format!("the best other {noun}");
    let (from, to) = (&reply.from, reply.to.as_ref().unwrap_or(&best));
    if reply.begun {
        format!("{flow} is being moved from {from} to {to}.")
    } else {
        format!("{flow} goes from {from} to {to} with its next request.")
    }
}

/// Whether `what` works, and if not why; then what else is to be said, with headings.
#[must_use]
pub fn verdict(
    what: &str,
    problems: &[String],
    rest: &[(&str, &[String])],
    style: Style,
) -> String {
    let good = format!("{what} works.");
    let bad = format!("{what} does NOT work as it should:");
    judged(&good, &bad, problems, rest, style)
}

/// `good`, or `bad` with the problems; then what else is to be said, with headings.
#[must_use]
pub fn judged(
    good: &str,
    bad: &str,
    problems: &[String],
    rest: &[(&str, &[String])],
    style: Style,
) -> String {
    let mut text = String::new();
    let mut list = |tone, heading: &str, sentences: &[String]| {
        toned(&mut text, style, tone, heading);
        for sentence in sentences {
            wrapped(&mut text, "  - ", sentence);
        }
    };
    match problems.is_empty() {
        true => list(Tone::Good, good, problems),
        false => list(Tone::Bad, bad, problems),
    }
    for (heading, sentences) in rest.iter().filter(|(_, sentences)| !sentences.is_empty()) {
        list(Tone::Warn, heading, sentences);
    }
    text
}

/// Tables of a dataplane that are near their limits: `60000 of 65536 flows are in use (91 %)`.
#[must_use]
pub fn full_tables(state: &State) -> Vec<String> {
    let full = state.tables.iter().filter_map(|(name, (used, limit))| {
        let percent = used.saturating_mul(100).checked_div(*limit)?;
        (percent >= NEAR_LIMIT_PERCENT)
            .then(|| format!("{used} of {limit} {name} are in use ({percent} %)"))
    });
    full.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_a_line() {
        let moved = FlowEvent {
            seq: 9,
            worker: 0,
            at_micros: 0,
            event: "moved".into(),
            client: "10.0.0.7:4711".parse().expect("an address"),
            frontend: None,
            policy: "web".into(),
            cause: Some("drain".into()),
            reason: None,
            from: Some("a".into()),
            to: Some("b".into()),
        };
        assert_eq!(
            event(3_661_001_000, &moved),
            "01:01:01.001  10.0.0.7:4711          moved a -> b (drain)  web"
        );
    }

    #[test]
    fn what_was_taken_is_said() {
        let mut reply = MigrateReply {
            policy: "web".into(),
            from: "a".into(),
            to: Some("b".into()),
            begun: true,
        };
        let said = |reply: &MigrateReply| moves("10.0.0.7:4711", reply, "backend");
        assert_eq!(said(&reply), "10.0.0.7:4711 is being moved from a to b.");
        (reply.to, reply.begun) = (None, false);
        assert_eq!(
            said(&reply),
            "10.0.0.7:4711 goes from a to the best other backend with its next request."
        );
    }
}
