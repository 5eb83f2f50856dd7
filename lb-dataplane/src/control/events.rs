//! `GET /v1/events`: what happened to flows, from the engine's ring, once or as soon as there is
//! something.
//!
//! Owns the question's form, filters and limits. The ring is the engine's; what is overwritten
//! before it is read is said, not hidden.

use super::{
    Control,
    asked::percent_decoded,
    reply::{Reply, json, unavailable},
};
use crate::commands::WorkerError;
use baton_api::{Clients, ClientsError, ErrorReply, EventCursor, FlowEvent, FlowEvents};
use hyper::StatusCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::{Instant, sleep};

/// Events that one look into the ring returns, so that no answer holds up frames for long.
const CHUNK: usize = 256;
/// Events in one answer at most; about 1 MB of JSON.
const EVENTS_MAX: usize = 4_096;
/// Events that one answer looks at: a filter must not have the whole ring read in one request.
const LOOKED_AT_MAX: usize = 16_384;
/// The longest wait for something to happen, below what any request may take.
const WAIT_MAX_SECONDS: u64 = 8;
/// Between two looks of one that waits.
const LOOK: Duration = Duration::from_millis(50);

/// What was asked.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct EventsQuery {
    since: Option<EventCursor>,
    wait: Duration,
    policy: Option<String>,
    client: Option<Clients>,
}

impl EventsQuery {
    pub(super) fn parse(query: &str) -> Result<Self, ErrorReply> {
        let mut this = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = percent_decoded(value);
            let bad = |expected: &str| {
                let problem = format!("`{value}` is not possible: expected {expected}");
                ErrorReply::field(name, &problem)
            };
            match name {
                "since" => {
                    let number = value.parse();
                    this.since = Some(number.map_err(|_| bad("`next` of an answer"))?);
                }
                "wait" => {
                    let seconds = value.parse().ok().filter(|s| *s <= WAIT_MAX_SECONDS);
                    let expected = format!("seconds from 0 to {WAIT_MAX_SECONDS}");
                    this.wait = Duration::from_secs(seconds.ok_or_else(|| bad(&expected))?);
                }
                "policy" => this.policy = Some(value),
                "client" => {
                    let problem = |error: ClientsError| ErrorReply::field(name, &error.to_string());
                    this.client = Some(value.parse().map_err(problem)?);
                }
                _ => {
                    return Err(ErrorReply::field(
                        name,
                        "is not known: expected since, wait, policy or client",
                    ));
                }
            }
        }
        Ok(this)
    }

    fn wants(&self, event: &FlowEvent) -> bool {
        self.policy.as_ref().is_none_or(|p| *p == event.policy)
            && self.client.is_none_or(|clients| clients.has(event.client))
    }
}

/// Answers one request.
pub async fn get(control: &Control, query: &str) -> Reply {
    let query = match EventsQuery::parse(query) {
        Ok(query) => query,
        Err(error) => return json(StatusCode::BAD_REQUEST, &error),
    };
    let until = Instant::now() + query.wait;
    let (mut since, mut missed) = (query.since.clone(), 0);
    loop {
        let mut told = match look(control, &query, since.as_ref()).await {
            Ok(told) => told,
            Err(error) => return unavailable(error),
        };
        missed += told.missed;
        if !told.events.is_empty() || missed > 0 || told.more || Instant::now() >= until {
            told.missed = missed;
            told.unix_micros = unix_micros();
            return json(StatusCode::OK, &told);
        }
        since = Some(told.next);
        sleep(LOOK).await;
    }
}

/// What there is now.
async fn look(
    control: &Control,
    query: &EventsQuery,
    since: Option<&EventCursor>,
) -> Result<FlowEvents, WorkerError> {
    // Of all workers together no more than one look returns.
    let chunk = (CHUNK / control.workers.count()).max(1);
    let mut told = control.workers.events(since, chunk).await?;
    let mut looked_at = told.events.len();
    told.events.retain(|event| query.wants(event));
    while told.more && told.events.len() + CHUNK <= EVENTS_MAX && looked_at < LOOKED_AT_MAX {
        let next = control.workers.events(Some(&told.next), chunk).await?;
        looked_at += next.events.len();
        let wanted = next.events.into_iter().filter(|event| query.wants(event));
        told.events.extend(wanted);
        told.missed += next.missed;
        (told.next, told.more, told.now_micros) = (next.next, next.more, next.now_micros);
    }
    // Each worker's are in order.
    told.events.sort_by_key(|event| event.at_micros);
    Ok(told)
}

fn unix_micros() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or_default())
}
