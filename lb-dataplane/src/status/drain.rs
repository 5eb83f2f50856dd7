//! `drain`: has a running dataplane drain a backend, and stays until it is empty if asked to.
//!
//! Only asks and shows: the drain is the dataplane's, and goes on when this ends.

use super::{client, complain, print, show};
use crate::args::{DrainOrder, Output};
use baton_api::{DrainReply, DrainRequest, State, StateReply};
use baton_text::{DrainProgress, ProgressLine};
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
pub async fn run(order: &DrainOrder) -> anyhow::Result<ExitCode> {
    let control = order.ask.at.control;
    let request = DrainRequest {
        backend: order.backend.clone(),
        policy: order.policy.clone(),
        undo: order.undo,
    };
    let reply: DrainReply = match client::order(control, "/v1/drain", &request).await? {
        Ok(reply) => reply,
        Err(refusal) => return Ok(complain(&refusal.to_string())),
    };
    if !order.wait {
        return show(order.ask.output, &reply, || taken(order, &reply)).map(|()| ExitCode::SUCCESS);
    }
    let started = Instant::now();
    let mut line = ProgressLine::new(stderr().is_terminal());
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let seen = loop {
        looks.tick().await;
        let answer = client::get(control, "/v1/state").await?;
        let state: StateReply = client::parse(&answer.body)?;
        match progress(&state.state, order) {
            Ok(progress) if progress.flows > 0 && started.elapsed() < order.timeout => {
                // A stream that takes nothing is no reason to give up.
                let said = line.say(&format!("{}: {}", order.backend, progress.line()));
                let _ = write!(stderr(), "{said}");
            }
            seen => break seen,
        }
    };
    let _ = write!(stderr(), "{}", line.end());
    let progress = match seen {
        Ok(progress) => progress,
        Err(why) => return Ok(complain(&why)),
    };
    let empty = progress.flows == 0;
    let seconds = started.elapsed().as_secs_f64();
    let name = &order.backend;
    if order.ask.output == Output::Json {
        let waited = Waited {
            backend: name,
            empty,
            seconds,
            progress: &progress,
        };
        print(&serde_json::to_string_pretty(&waited)?)?;
    } else if empty {
        let gone = progress.gone();
        print(&format!(
            "`{name}` is empty after {seconds:.1}s and can be stopped: {gone}."
        ))?;
    }
    if empty {
        return Ok(ExitCode::SUCCESS);
    }
    Ok(complain(&format!(
        "`{name}` is not empty after {seconds:.1}s: {}. The drain goes on; `lb-dataplane flows --backend {name}` shows them. \
         What is pinned stays until it ends, or until `drain.deadline` with `drain.onDeadline: Close`.",
        progress.line(),
    )))
}

/// How far the backends are that `order` means; the error says why they do not drain (any more).
fn progress(state: &State, order: &DrainOrder) -> Result<DrainProgress, String> {
    let policies = state.policies.iter();
    let policies = policies.filter(|p| order.policy.as_ref().is_none_or(|name| *name == p.name));
    let meant = policies.flat_map(|policy| {
        let mine = policy.backends.iter().filter(|b| b.name == order.backend);
        mine.map(move |backend| (policy, backend))
    });
    let name = &order.backend;
    match DrainProgress::of_all(meant) {
        Ok(Some(progress)) => Ok(progress),
        Ok(None) => Err(format!(
            "`{name}` has left the configuration; `lb-dataplane flows --backend {name}` shows what it still owns"
        )),
        Err(idle) => Err(format!(
            "`{name}` of policy `{}` does not drain any more: somebody took it back, or the dataplane was restarted",
            idle[0]
        )),
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        args::{Question, tests::asked},
        status::samples::reply,
    };
    use baton_api::{DrainState, Micros};

    /// Two policies with a backend `a` each.
    fn state(drain: &Option<DrainState>) -> State {
        let mut state = reply().state;
        let web = &mut state.policies[0];
        web.backends.truncate(1);
        web.backends[0].drain.clone_from(drain);
        let mut api = web.clone();
        api.name = "api".to_owned();
        api.backends[0].endpoint = "10.0.0.2:80".parse().expect("an endpoint");
        state.policies.push(api);
        state
    }

    fn order(line: &str) -> DrainOrder {
        match asked(&format!("drain {line}")) {
            Question::Drain(order) => order,
            other => panic!("{other:?}"),
        }
    }

    fn drain() -> DrainState {
        DrainState {
            moved: 5,
            ended: 1,
            left: Micros(17_000_001),
            waiting: [
                ("request in progress".into(), 6),
                ("pinned: upgrade".into(), 2),
                ("quiet time".into(), 0),
            ]
            .into(),
            ..DrainState::default()
        }
    }

    #[test]
    fn all_backends_of_a_name_count_unless_one_policy_is_meant() {
        let state = state(&Some(drain()));
        let one = progress(&state, &order("a --policy web")).expect("it drains");
        assert_eq!(
            one.line(),
            "8 flows left (2 pinned: upgrade, 6 request in progress); 5 moved, 1 ended, 0 closed; deadline in 18s"
        );
        assert_eq!(DrainProgress::of(&state.policies[0].backends[0]), Some(one));
        let both = progress(&state, &order("a")).expect("they drain");
        assert_eq!(
            (both.flows, both.moved, both.deadline_seconds),
            (16, 10, Some(18))
        );
        assert_eq!(both.waiting.get("pinned: upgrade"), Some(&4));
        // The same backend in both policies.
        let mut shared = state;
        shared.policies[1].backends[0].endpoint = shared.policies[0].backends[0].endpoint;
        let once = progress(&shared, &order("a")).expect("it drains");
        assert_eq!(once.flows, 8);
    }

    #[test]
    fn what_does_not_drain_is_told() {
        let error = progress(&state(&None), &order("a")).expect_err("no drain");
        assert!(
            error.contains("`a` of policy `web` does not drain any more"),
            "{error}"
        );
        let error = progress(&state(&Some(drain())), &order("b")).expect_err("none");
        assert!(error.contains("has left the configuration"), "{error}");
    }

    #[test]
    fn an_order_that_was_taken_says_what_to_do_next() {
        let mut order = order("pod-a");
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
