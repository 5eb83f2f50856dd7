//! Events for people: what became of a policy, beside the policy; what was done to a Secret, beside
//! the Secret.
//!
//! Owns their form. Others decide what is worth one.

use crate::{
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
use std::time::Duration;
use tokio::{
    sync::{mpsc::Receiver, watch},
    time::{MissedTickBehavior, interval, timeout},
};
use tracing::{debug, warn};

/// Between two Events: the API server takes some dozens a second from one client without slowing
/// others.
const PACE: Duration = Duration::from_millis(25);
/// One request.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);
/// Bytes of a note that the API takes.
const LIMIT_NOTE_BYTES: usize = 1_024;
/// Who reports.
const CONTROLLER: &str = "baton.dev/operator";
/// What was done when it happened.
const ACTION: &str = "Reconcile";

/// Publishes Events until dropped.
pub async fn run(
    client: Client,
    identity: String,
    mut events: Receiver<Notice>,
    leadership: watch::Receiver<Leadership>,
    metrics: Metrics,
) {
    let reporter = Reporter {
        controller: CONTROLLER.to_owned(),
        instance: Some(identity),
    };
    let recorder = Recorder::new(client, reporter);
    let mut pace = interval(PACE);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while let Some(event) = events.recv().await {
        pace.tick().await;
        if leadership.borrow().epoch().is_none() {
            // The next leader says what is so then.
            continue;
        }
        let (published, about) = published(&event);
        let result = match timeout(REQUEST_LIMIT, recorder.publish(&published, &about)).await {
            Ok(Ok(())) => "written",
            Ok(Err(error)) => {
                warn!(object = %event.about.key(), %error, "an Event cannot be written");
                "failed"
            }
            Err(_) => {
                debug!(object = %event.about.key(), "no answer to an Event in time");
                "failed"
            }
        };
        metrics.writes.with_label_values(&["event", result]).inc();
    }
}

fn published(event: &Notice) -> (Published, ObjectReference) {
    let published = Published {
        type_: if event.warning {
            EventType::Warning
        } else {
            EventType::Normal
        },
        reason: event.reason.to_owned(),
        note: Some(cut(&event.message).to_owned()),
        action: ACTION.to_owned(),
        secondary: None,
    };
    let key = event.about.key();
    let (api_version, kind, uid) = match &event.about {
        About::Policy { uid, .. } => (
            Kind::Policy.api_version(),
            Kind::Policy.as_str(),
            Some(uid.clone()),
        ),
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
    use baton_index::Key;

    #[test]
    fn an_event_is_about_its_policy_and_short_enough() {
        let event = Notice {
            about: About::Policy {
                key: Key::new("shop", "web"),
                uid: "u-1".into(),
            },
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
        let about = About::Secret {
            key: Key::new("baton", "baton-ca"),
            uid: None,
        };
        let (_, about) = super::published(&Notice { about, ..event });
        let said = (about.api_version.as_deref(), about.kind.as_deref());
        assert_eq!(said, (Some("v1"), Some("Secret")));
        assert_eq!(about.namespace.as_deref(), Some("baton"));
    }
}
