//! `trace`: events of flows as they happen, a line each; or one answer for programs that ask again themselves.

use super::{
    client::{self, parse, path},
    print,
};
use crate::args::{Output, TraceOrder};
use baton_api::{EventCursor, FlowEvent, FlowEvents};
use serde::Serialize;
use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

/// How long the dataplane may wait for something to happen before it answers; the control API allows 8 s.
const WAIT: Duration = Duration::from_secs(5);

/// Between two questions, so that a busy dataplane is not asked for each of its events.
const PAUSE: Duration = Duration::from_millis(100);

/// One event as a line of JSON.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Line<'a> {
    unix_micros: u64,
    #[serde(flatten)]
    event: &'a FlowEvent,
}

/// Shows events until it is stopped, its time is over, or, with `--once`, after one answer.
///
/// # Errors
/// The dataplane could not be asked, or does not answer any more.
pub async fn run(order: &TraceOrder) -> anyhow::Result<ExitCode> {
    let end = order.time.map(|time| Instant::now() + time);
    let past = || order.past.then(EventCursor::default);
    let mut since = order.since.clone().or_else(past);
    loop {
        let left = end.map_or(WAIT, |end| end.saturating_duration_since(Instant::now()));
        let wait = wait_seconds(order, left);
        let answer =
            client::get(order.ask.at.control, &events(order, since.as_ref(), wait)).await?;
        let told: FlowEvents = parse(&answer.body)?;
        if order.once {
            print(&serde_json::to_string(&told)?)?;
            return Ok(ExitCode::SUCCESS);
        }
        if told.missed > 0 && since.is_some_and(|since| since != EventCursor::default()) {
            eprintln!(
                "lb-dataplane: {} events were overwritten before they could be read",
                told.missed
            );
        }
        for event in &told.events {
            let at = told.unix_micros_of(event);
            let line = match order.ask.output {
                Output::Json => serde_json::to_string(&Line {
                    unix_micros: at,
                    event,
                })?,
                Output::Table => baton_text::event(at, event),
            };
            print(&line)?;
        }
        since = Some(told.next);
        if !told.more {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            tokio::time::sleep(PAUSE.min(left.unwrap_or(PAUSE))).await;
            if left.is_some_and(|left| left <= PAUSE) {
                return Ok(ExitCode::SUCCESS);
            }
        }
    }
}

/// How long the dataplane may wait for an event, when there is so much time left.
fn wait_seconds(order: &TraceOrder, left: Duration) -> u64 {
    match order.once {
        true => order.wait.unwrap_or(0).into(),
        false => left.min(WAIT).as_secs(),
    }
}

fn events(order: &TraceOrder, since: Option<&EventCursor>, wait_seconds: u64) -> String {
    let query = [
        ("wait", Some(wait_seconds.to_string())),
        ("since", since.map(ToString::to_string)),
        ("policy", order.policy.clone()),
        ("client", order.client.clone()),
    ];
    path("/v1/events", query)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Question, tests::asked};

    #[test]
    fn filters_go_to_the_dataplane() {
        let order = |line: &str| match asked(&format!("trace {line}")) {
            Question::Trace(order) => order,
            other => panic!("{other:?}"),
        };
        let path = |line: &str, since: Option<EventCursor>, wait| {
            events(&order(line), since.as_ref(), wait)
        };
        assert_eq!(path("", None, 5), "/v1/events?wait=5");
        assert_eq!(
            path(
                "--policy ns/web/http --client [fd00::7]:4711",
                Some(EventCursor(vec![7])),
                0
            ),
            "/v1/events?wait=0&since=7&policy=ns/web/http&client=%5Bfd00%3A%3A7%5D%3A4711"
        );
        for (line, seconds) in [
            ("", 5),
            ("--for 2s", 5),
            ("--once", 0),
            ("--once --wait 4", 4),
        ] {
            let left = Duration::from_secs(9);
            assert_eq!(wait_seconds(&order(line), left), seconds, "{line}");
        }
        assert_eq!(wait_seconds(&order(""), Duration::from_millis(1_500)), 1);
    }

    #[test]
    fn an_event_in_json_has_its_time() {
        let event =
            r#"{"seq":9,"atMicros":0,"event":"moved","client":"10.0.0.7:4711","policy":"web"}"#;
        let event: FlowEvent = parse(event.as_bytes()).expect("an event");
        let json = serde_json::to_value(Line {
            unix_micros: 5,
            event: &event,
        })
        .expect("JSON");
        assert_eq!((&json["unixMicros"], &json["seq"]), (&5.into(), &9.into()));
    }
}
