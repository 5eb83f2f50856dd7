//! Events for people: what became of a policy, beside the policy; what was done to a Secret, beside
//! the Secret.
//!
//! Owns their form, and those that have to be tried again. Others decide what is worth one.
//!
//! The recorder of `kube` sends each once: an API server that is restarted would cost all Events of
//! these seconds, and a condition says only what is so at last. One whose answer was lost may be
//! there twice then.
//!
//! The recorder takes Events with one action and reason for repeats whatever their notes say, and
//! shows the first note only. So the action names the message.

use crate::{
    digest::digest,
    kind::Kind,
    leader::Leadership,
    metrics::Metrics,
    notice::{About, Notice},
};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{Event as Published, EventType, Recorder, Reporter},
};
use std::{collections::VecDeque, time::Duration};
use tokio::{
    sync::{mpsc::Receiver, watch},
    time::{Instant, MissedTickBehavior, interval, sleep_until, timeout},
};
use tracing::{debug, warn};

/// Between two Events: the API server takes some dozens a second from one client without slowing
/// others.
const PACE: Duration = Duration::from_millis(25);
/// One request.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);
/// One that could not be written is tried again after this long,
const RETRY: Duration = Duration::from_secs(5);
/// and so often in all: for half a minute, which is longer than an API server takes to come back.
const TRIES_MAX: u8 = 6;
/// So many wait for another try.
const LIMIT_WAITING: usize = 100;
/// Bytes of a note that the API takes.
const LIMIT_NOTE_BYTES: usize = 1_024;
/// Who reports.
const CONTROLLER: &str = "baton.dev/operator";
/// What was done when it happened; a digest of the message follows.
const ACTION: &str = "Reconcile";

/// One that could not be written.
struct Waiting {
    due: Instant,
    tries: u8,
    event: Notice,
}

/// What became of a try.
enum Tried {
    Written,
    /// There is no such Event, or no such namespace.
    Gone,
    /// It never will be.
    Refused,
    Failed,
}

/// Publishes Events until dropped.
pub async fn run(
    client: Client,
    identity: String,
    mut events: Receiver<Notice>,
    leadership: watch::Receiver<Leadership>,
    metrics: Metrics,
) {
    let reporter = Reporter { controller: CONTROLLER.to_owned(), instance: Some(identity) };
    let mut recorder = Recorder::new(client.clone(), reporter.clone());
    let mut pace = interval(PACE);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // All wait equally long, so the first is due first.
    let mut waiting: VecDeque<Waiting> = VecDeque::new();
    loop {
        let (event, tries) = tokio::select! {
            biased;
            Some(next) = first_due(&mut waiting) => (next.event, next.tries),
            event = events.recv() => match event {
                Some(event) => (event, 0),
                // Nobody says anything any more.
                None => return,
            },
        };
        pace.tick().await;
        if leadership.borrow().epoch().is_none() {
            // The next leader says what is so then.
            waiting.clear();
            continue;
        }
        let mut tried = publish(&recorder, &event).await;
        if matches!(tried, Tried::Gone) {
            // The first of its series was deleted: a recorder that knows of none makes it anew.
            recorder = Recorder::new(client.clone(), reporter.clone());
            tried = publish(&recorder, &event).await;
        }
        let result = match tried {
            Tried::Written => "written",
            Tried::Refused | Tried::Gone => "failed",
            Tried::Failed if tries + 1 < TRIES_MAX && waiting.len() < LIMIT_WAITING => {
                let (due, tries) = (Instant::now() + RETRY, tries + 1);
                waiting.push_back(Waiting { due, tries, event });
                "failed"
            }
            Tried::Failed => {
                warn!(object = %event.about.key(), reason = event.reason, "an Event is given up");
                "dropped"
            }
        };
        metrics.writes.with_label_values(&["event", result]).inc();
    }
}

/// The first that waits, when it is due; nothing where none waits.
async fn first_due(waiting: &mut VecDeque<Waiting>) -> Option<Waiting> {
    let due = waiting.front()?.due;
    sleep_until(due).await;
    waiting.pop_front()
}

async fn publish(recorder: &Recorder, event: &Notice) -> Tried {
    let (published, about) = published(event);
    let object = event.about.key();
    match timeout(REQUEST_LIMIT, recorder.publish(&published, &about)).await {
        Ok(Ok(())) => Tried::Written,
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => Tried::Gone,
        Ok(Err(error)) => {
            warn!(%object, %error, "an Event cannot be written");
            match error {
                // A rule is against it.
                kube::Error::Api(status)
                    if (400..500).contains(&status.code) && status.code != 429 =>
                {
                    Tried::Refused
                }
                _ => Tried::Failed,
            }
        }
        Err(_) => {
            debug!(%object, "no answer to an Event in time");
            Tried::Failed
        }
    }
}

fn published(event: &Notice) -> (Published, ObjectReference) {
    let published = Published {
        type_: if event.warning { EventType::Warning } else { EventType::Normal },
        reason: event.reason.to_owned(),
        note: Some(cut(&event.message).to_owned()),
        action: format!("{ACTION}-{:016x}", digest(&event.message)),
        secondary: None,
    };
    let key = event.about.key();
    let (api_version, kind, uid) = match &event.about {
        About::Policy { uid, .. } => {
            (Kind::Policy.api_version(), Kind::Policy.as_str(), Some(uid.clone()))
        }
        About::Secret { uid, .. } => ("v1", "Secret", uid.clone()),
    };
    let about = ObjectReference {
        api_version: Some(api_version.to_owned()),
        kind: Some(kind.to_owned()),
        namespace: Some(key.namespace.to_string()),
        name: Some(key.name.to_string()),
        uid,
        ..ObjectReference::default()
    };
    (published, about)
}

fn cut(text: &str) -> &str {
    let mut end = text.len().min(LIMIT_NOTE_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_api::FakeApi;
    use baton_index::Key;
    use tokio::{sync::mpsc, time::sleep};

    /// An API server, where notices go in, and what became of them.
    fn scene() -> (FakeApi, mpsc::Sender<Notice>, Metrics) {
        let api = FakeApi::default();
        let (notices, events) = mpsc::channel(1_000);
        let metrics = Metrics::new().expect("figures");
        let (_, leads) = watch::channel(Leadership::Leading { epoch: 1 });
        tokio::spawn(run(api.client(), "one".into(), events, leads, metrics.clone()));
        (api, notices, metrics)
    }

    fn notice(number: usize) -> Notice {
        Notice {
            about: About::Policy {
                key: Key::new("shop", format!("web-{number}")),
                uid: "u-1".into(),
            },
            warning: true,
            reason: "Conflicted",
            message: "two".into(),
        }
    }

    fn count(metrics: &Metrics, result: &str) -> u64 {
        metrics.writes.with_label_values(&["event", result]).get()
    }

    const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/shop/events/";

    #[tokio::test(start_paused = true)]
    async fn one_without_an_answer_is_tried_again_and_the_others_do_not_wait_for_it() {
        let (api, notices, metrics) = scene();
        api.silent(true);
        notices.send(notice(0)).await.expect("it runs");
        sleep(REQUEST_LIMIT + Duration::from_secs(1)).await;
        assert_eq!(count(&metrics, "failed"), 1);
        api.silent(false);
        notices.send(notice(1)).await.expect("it runs");
        sleep(Duration::from_secs(1)).await;
        assert_eq!(api.all(EVENTS).len(), 1);
        sleep(RETRY).await;
        assert_eq!(api.all(EVENTS).len(), 2);
        assert_eq!((count(&metrics, "written"), count(&metrics, "dropped")), (2, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_given_up_after_some_tries_and_counted() {
        let (api, notices, metrics) = scene();
        api.fail(Some(500));
        for number in 0..LIMIT_WAITING + 3 {
            notices.send(notice(number)).await.expect("it runs");
        }
        sleep(Duration::from_secs(4)).await;
        assert_eq!(count(&metrics, "dropped"), 3, "no room");
        sleep(RETRY * u32::from(TRIES_MAX) + Duration::from_secs(60)).await;
        let all = u64::try_from(LIMIT_WAITING).expect("few") + 3;
        assert_eq!(count(&metrics, "dropped"), all);
        let tries = u64::from(TRIES_MAX - 1) * (all - 3);
        assert_eq!(count(&metrics, "failed"), tries);
        // What a rule is against is not tried again.
        api.fail(Some(403));
        notices.send(notice(0)).await.expect("it runs");
        sleep(Duration::from_secs(60)).await;
        assert_eq!(count(&metrics, "failed"), tries + 1);
        assert!(api.all(EVENTS).is_empty());
    }

    /// So the results of several drains are all told, though they are one reason of one policy.
    #[tokio::test(start_paused = true)]
    async fn each_message_is_an_event_and_a_repeat_is_none_unless_it_was_deleted() {
        let (api, notices, _) = scene();
        let told = async |message: &str| {
            let message = message.to_owned();
            let notice = Notice { message, ..notice(0) };
            notices.send(notice).await.expect("it runs");
            sleep(Duration::from_secs(1)).await;
            let notes = api.all(EVENTS).into_iter();
            let mut notes: Vec<_> = notes.map(|event| event["note"].clone()).collect();
            notes.sort_by_key(ToString::to_string);
            notes
        };
        assert_eq!(told("pod b").await, ["pod b"]);
        assert_eq!(told("pod c").await, ["pod b", "pod c"]);
        assert_eq!(told("pod b").await, ["pod b", "pod c"]);
        for event in api.all(EVENTS) {
            let name = event["metadata"]["name"].as_str().expect("a name");
            api.delete(&format!("{EVENTS}{name}"));
        }
        assert_eq!(told("pod b").await, ["pod b"]);
    }

    #[test]
    fn an_event_is_about_its_policy_and_short_enough() {
        let event = Notice {
            about: About::Policy { key: Key::new("shop", "web"), uid: "u-1".into() },
            warning: true,
            reason: "Conflicted",
            message: "ü".repeat(1_000),
        };
        let (published, about) = published(&event);
        assert!(matches!(published.type_, EventType::Warning));
        assert_eq!(published.reason, "Conflicted");
        assert_eq!(published.note.expect("a note").len(), 1_024);
        assert_eq!(about.uid.as_deref(), Some("u-1"));
        assert_eq!(about.kind.as_deref(), Some("LoadBalancerPolicy"));
        let about = About::Secret { key: Key::new("baton", "baton-ca"), uid: None };
        let (_, about) = super::published(&Notice { about, ..event });
        let said = (about.api_version.as_deref(), about.kind.as_deref());
        assert_eq!(said, (Some("v1"), Some("Secret")));
        assert_eq!(about.namespace.as_deref(), Some("baton"));
    }
}
