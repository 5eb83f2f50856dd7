//! `drain`: has a running dataplane drain a backend, and stays until it is empty if asked to.
//!
//! Only asks and shows: the drain is the dataplane's, and goes on when this ends.

use super::{client, parse, print, progress};
use crate::args::{DrainOrder, Output, Question};
use baton_api::{DrainReply, DrainRequest, StateReply};
use baton_text::{DrainProgress, WIDTH_MAX};
use serde::Serialize;
use std::{
    io::{IsTerminal as _, Write as _, stderr},
    process::ExitCode,
    time::Duration,
};
use tokio::time::{Instant, MissedTickBehavior, interval};

/// Between two looks.
const LOOK: Duration = Duration::from_millis(200);

/// What `-o json` says at the end of a wait.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Waited<'a> {
    backend: &'a str,
    empty: bool,
    seconds: f64,
    #[serde(flatten)]
    progress: &'a DrainProgress,
}

/// Orders the drain; the exit code says whether it was taken and, with a wait, whether the backend is empty.
///
/// # Errors
/// The dataplane could not be asked.
pub async fn run(question: &Question<DrainOrder>) -> anyhow::Result<ExitCode> {
    let order = &question.topic;
    let request = DrainRequest {
        backend: order.backend.clone(),
        policy: order.policy.clone(),
        undo: order.undo,
    };
    let body = serde_json::to_vec(&request)?;
    let answer = match client::post(question.control, "/v1/drain", body).await {
        Ok(answer) => answer,
        Err(error) => {
            if error.downcast_ref().is_some_and(client::Refusal::is_final) {
                return Ok(complain(&format!("{error:#}")));
            }
            return Err(error);
        }
    };
    let reply: DrainReply = parse(&answer.body)?;
    let json = question.output == Output::Json;
    let Some(patience) = order.wait else {
        let text = if json {
            serde_json::to_string_pretty(&reply)?
        } else {
            taken(order, &reply)
        };
        return print(&text).map(|()| ExitCode::SUCCESS);
    };
    let started = Instant::now();
    let mut shown = Shown::default();
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let progress = loop {
        looks.tick().await;
        let answer = client::get(question.control, "/v1/state").await?;
        let state: StateReply = parse(&answer.body)?;
        let progress = match progress::of(&state.state, order) {
            Ok(progress) => progress,
            Err(why) => {
                shown.clear();
                return Ok(complain(&why));
            }
        };
        if progress.flows == 0 || started.elapsed() >= patience {
            break progress;
        }
        shown.show(&order.backend, &progress);
    };
    shown.clear();
    let empty = progress.flows == 0;
    let seconds = started.elapsed().as_secs_f64();
    if json {
        let waited = Waited {
            backend: &order.backend,
            empty,
            seconds,
            progress: &progress,
        };
        print(&serde_json::to_string_pretty(&waited)?)?;
    }
    if empty {
        if !json {
            print(&format!(
                "`{}` is empty after {seconds:.1}s and can be stopped: {}.",
                order.backend,
                progress.gone()
            ))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    Ok(complain(&format!(
        "`{}` is not empty after {seconds:.1}s: {}. The drain goes on; `lb-dataplane flows --backend {}` shows them. What \
         is pinned stays until it ends, or until `drain.deadline` with `drain.onDeadline: Close`.",
        order.backend,
        progress.line(),
        order.backend
    )))
}

/// A reason why something was not done, on the standard error stream.
pub fn complain(problem: &str) -> ExitCode {
    eprintln!("lb-dataplane: {problem}");
    ExitCode::FAILURE
}

/// What the order did, and what to do next.
fn taken(order: &DrainOrder, reply: &DrainReply) -> String {
    let name = &order.backend;
    let backends = match reply.backends {
        1 => String::new(),
        several => format!(" ({several} backends of this name)"),
    };
    match (order.undo, reply.by_snapshot) {
        (false, _) => format!(
            "`{name}` drains{backends}: no new connections, and those it has leave when they can.\n\
             How far it is:        lb-dataplane drain {name} --wait\n\
             Back into service:    lb-dataplane drain {name} --undo\n\
             A restart of the dataplane ends the drain; `draining: true` in the configuration lasts."
        ),
        (true, 0) => format!("`{name}` is back in service{backends}."),
        (true, still) => format!(
            "No command drains `{name}` any more, but it goes on draining: the configuration says `draining: true` \
             ({still} {}).",
            if still == 1 { "time" } else { "times" }
        ),
    }
}

/// Progress on the standard error stream: one line that changes on a terminal, a line per change elsewhere.
#[derive(Default)]
struct Shown {
    last: Option<DrainProgress>,
}

impl Shown {
    fn show(&mut self, backend: &str, progress: &DrainProgress) {
        let line = format!("{backend}: {}", progress.line());
        // A stream that takes nothing is no reason to give up.
        if stderr().is_terminal() {
            let fits: String = line.chars().take(WIDTH_MAX - 1).collect();
            let _ = write!(stderr(), "\r\x1b[K{fits}");
        } else if !self
            .last
            .as_ref()
            .is_some_and(|last| last.is_like(progress))
        {
            let _ = writeln!(stderr(), "{line}");
        }
        self.last = Some(progress.clone());
    }

    fn clear(&self) {
        if self.last.is_some() && stderr().is_terminal() {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_that_was_taken_says_what_to_do_next() {
        let mut order = DrainOrder {
            backend: "pod-a".into(),
            policy: None,
            undo: false,
            wait: None,
        };
        let reply = |backends, by_snapshot| DrainReply {
            backends,
            by_snapshot,
        };
        let text = taken(&order, &reply(2, 0));
        assert!(
            text.starts_with("`pod-a` drains (2 backends of this name): no new"),
            "{text}"
        );
        assert!(text.contains("lb-dataplane drain pod-a --undo\n"), "{text}");
        order.undo = true;
        assert_eq!(taken(&order, &reply(1, 0)), "`pod-a` is back in service.");
        let text = taken(&order, &reply(3, 2));
        assert!(text.contains("says `draining: true` (2 times)"), "{text}");
    }
}
