//! `trace`: what happens to flows on all dataplanes, as lines in the order of time. Pure but for
//! the numbers it remembers.

use crate::{
    args::Trace,
    fleet::{Dataplane, Response},
    names::PolicyName,
    sentences, text,
};
use baton_api::{EventCursor, FlowEvent, FlowEvents};
use serde::Serialize;
use std::collections::BTreeMap;

/// One event of one dataplane.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Line {
    /// RFC 3339, UTC, by the dataplane's clock.
    pub time: String,
    /// The dataplane, if it has a name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub dataplane: String,
    /// What happened.
    #[serde(flatten)]
    pub event: FlowEvent,
    #[serde(skip)]
    unix_micros: u64,
}

/// How far each dataplane was read.
#[derive(Clone, Debug, Default)]
pub struct Cursors {
    /// By Pod, by its UID: one that takes the name of another begins anew.
    next: BTreeMap<String, EventCursor>,
    /// The first look is over: who comes now is read from its begin.
    looked: bool,
}

impl Cursors {
    /// From where on a dataplane is asked; none is from now on.
    pub fn since(&self, uid: &str, past: bool) -> Option<EventCursor> {
        let known = self.next.get(uid).cloned();
        known.or_else(|| (past || self.looked).then(EventCursor::default))
    }

    /// Takes one look's answers: the lines that are wanted, and what has to be noted.
    pub fn take<D: Dataplane>(
        &mut self,
        answers: &[Response<D, FlowEvents>],
        wanted: &Trace,
        namespace: Option<&str>,
    ) -> (Vec<Line>, Vec<String>) {
        let (mut lines, mut notes) = (Vec::new(), Vec::new());
        for asked in answers {
            let words = asked.dataplane.words();
            let told = match &asked.result {
                Ok(told) => told,
                Err(why) => {
                    notes.push(format!("{words} is left out: {why}"));
                    continue;
                }
            };
            let uid = asked.dataplane.uid().to_owned();
            let known = self.next.insert(uid, told.next.clone()).is_some();
            if known && told.missed > 0 {
                notes.push(format!(
                    "{words}: {} events were overwritten before they could be read: name a --flow",
                    told.missed
                ));
            }
            lines.extend(told.events.iter().filter_map(|event| {
                let policy = PolicyName::parse(&event.policy);
                let meant = policy.is(wanted.policy.as_deref(), namespace)
                    && wanted.flow.as_ref().is_none_or(|flow| flow.client.has(event.client));
                meant.then(|| line(told, event, asked.name()))
            }));
        }
        self.looked = true;
        lines.sort_by_key(|line| line.unix_micros);
        (lines, notes)
    }
}

fn line(told: &FlowEvents, event: &FlowEvent, dataplane: &str) -> Line {
    let unix_micros = told.unix_micros_of(event);
    let time =
        i64::try_from(unix_micros).ok().and_then(|us| jiff::Timestamp::from_microsecond(us).ok());
    Line {
        time: time.map(|time| time.to_string()).unwrap_or_default(),
        dataplane: dataplane.to_owned(),
        event: event.clone(),
        unix_micros,
    }
}

/// `17:03:59.123 192.0.2.7:40112 moved a -> b (drain) shop/web/http`; wide ones name the dataplane
/// too.
pub fn render(line: &Line, wide: bool) -> String {
    let mut words = sentences::event(line.unix_micros, &line.event);
    if wide && !line.dataplane.is_empty() {
        words.push_str(&format!("  {}", line.dataplane));
    }
    let mut text = String::new();
    text::line(&mut text, &words);
    text
}
