//! `trace`: events of flows as they happen, a line each; or one answer for programs that ask again themselves.

use super::{client, escaped, parse, print};
use crate::args::{Output, Question, TraceOrder};
use baton_api::{FlowEvent, FlowEvents, time_of_day};
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
pub async fn run(question: &Question<TraceOrder>) -> anyhow::Result<ExitCode> {
    let order = &question.topic;
    let end = order.time.map(|time| Instant::now() + time);
    let mut since = order.since.or(order.past.then_some(0));
    loop {
        let left = end.map_or(WAIT, |end| end.saturating_duration_since(Instant::now()));
        let wait = order.wait.unwrap_or_else(|| left.min(WAIT));
        let answer = client::get(question.control, &path(order, since, wait)).await?;
        let told: FlowEvents = parse(&answer.body)?;
        if order.once {
            print(&serde_json::to_string(&told)?)?;
            return Ok(ExitCode::SUCCESS);
        }
        if told.missed > 0 && since != Some(0) {
            eprintln!(
                "lb-dataplane: {} events were overwritten before they could be read",
                told.missed
            );
        }
        for event in &told.events {
            let at = told.unix_micros_of(event);
            let line = match question.output {
                Output::Json => serde_json::to_string(&Line {
                    unix_micros: at,
                    event,
                })?,
                Output::Table => line(at, event),
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

fn path(order: &TraceOrder, since: Option<u64>, wait: Duration) -> String {
    let mut path = format!("/v1/events?wait={}", wait.as_secs());
    if let Some(since) = since {
        path.push_str(&format!("&since={since}"));
    }
    for (name, value) in [("policy", &order.policy), ("client", &order.client)] {
        if let Some(value) = value {
            path.push_str(&format!("&{name}={}", escaped(value)));
        }
    }
    path
}

/// `17:03:59.123  10.0.0.7:4711  moved a -> b (drain)  web`.
fn line(at: u64, event: &FlowEvent) -> String {
    let client = event.client.to_string();
    format!(
        "{}  {client:<21}  {}  {}",
        time_of_day(at),
        event.words(),
        event.policy
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_go_to_the_dataplane() {
        let mut order = TraceOrder::default();
        let wait = Duration::from_secs(5);
        assert_eq!(path(&order, None, wait), "/v1/events?wait=5");
        order.policy = Some("ns/web/http".into());
        order.client = Some("[fd00::7]:4711".into());
        assert_eq!(
            path(&order, Some(7), Duration::ZERO),
            "/v1/events?wait=0&since=7&policy=ns/web/http&client=%5Bfd00%3A%3A7%5D%3A4711"
        );
    }

    #[test]
    fn an_event_is_a_line() {
        let event = FlowEvent {
            seq: 9,
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
            line(3_661_001_000, &event),
            "01:01:01.001  10.0.0.7:4711          moved a -> b (drain)  web"
        );
        let json = serde_json::to_value(Line {
            unix_micros: 5,
            event: &event,
        })
        .expect("JSON");
        assert_eq!((&json["unixMicros"], &json["seq"]), (&5.into(), &9.into()));
    }
}
