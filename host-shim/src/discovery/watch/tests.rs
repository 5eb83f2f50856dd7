//! What an API server's answers say of the DaemonSet that this process is of.

use super::{Clients, is_removed};
use hyper::{Request, Response};
use kube::{Client, client::Body};
use serde_json::json;
use std::{
    collections::VecDeque,
    convert::Infallible,
    sync::{Arc, Mutex},
};

const SET: &str = "/apis/apps/v1/namespaces/baton-system/daemonsets/baton-host-shim";
const READY: &str = "/readyz";
/// Of nobody that the API server knows.
const READY_NOBODY: &str = "nobody: /readyz";

type Answer = (&'static str, u16, String);

/// Answers these, in this order.
fn client(who: &'static str, answers: &Arc<Mutex<VecDeque<Answer>>>) -> Client {
    let answers = Arc::clone(answers);
    let service = tower::service_fn(move |request: Request<Body>| {
        let answer = answers.lock().expect("nobody panics with it").pop_front();
        let asked = format!("{who}{}", request.uri().path());
        async move {
            let (path, code, body) = answer.unwrap_or_else(|| panic!("{asked} is one too many"));
            assert_eq!(asked, path);
            let answer = Response::builder().status(code).body(Body::from(body.into_bytes()));
            Ok::<_, Infallible>(answer.expect("it is one"))
        }
    });
    Client::new(service, "default")
}

async fn asked(answers: impl IntoIterator<Item = Answer>) -> bool {
    let answers = Arc::new(Mutex::new(answers.into_iter().collect::<VecDeque<_>>()));
    let clients = Clients { own: client("", &answers), nobody: client("nobody: ", &answers) };
    let removed = is_removed(&clients, "baton-system", "baton-host-shim").await;
    let left = answers.lock().expect("nobody panics with it").len();
    assert_eq!(left, 0, "all was asked");
    removed
}

fn set(more: &str) -> Answer {
    (SET, 200, format!(r#"{{"metadata": {{"name": "baton-host-shim"{more}}}}}"#))
}

fn refused(path: &'static str, code: u16) -> Answer {
    let reason = match code {
        401 => "Unauthorized",
        403 => "Forbidden",
        _ => "NotFound",
    };
    let status = json!({"kind": "Status", "status": "Failure", "reason": reason, "code": code});
    (path, code, status.to_string())
}

fn said(path: &'static str, code: u16) -> Answer {
    (path, code, "in plain words".into())
}

#[tokio::test]
async fn a_daemon_set_that_is_gone_or_going_is_removed() {
    assert!(!asked([set("")]).await);
    assert!(asked([set(r#", "deletionTimestamp": "2026-01-01T00:00:00Z""#)]).await);
    assert!(asked([refused(SET, 404)]).await);
    assert!(!asked([said(SET, 404)]).await, "not the API server's words");
    assert!(!asked([said(SET, 503)]).await);
}

/// It refuses everybody until it has read all roles, also a process that is only replaced.
#[tokio::test]
async fn an_api_server_that_starts_says_nothing_by_refusing() {
    for not_ready in [said(READY, 500), refused(READY, 403)] {
        assert!(!asked([refused(SET, 403), not_ready]).await);
    }
    assert!(!asked([refused(SET, 403), said(READY, 200), set("")]).await);
    for not_ready in [said(READY_NOBODY, 500), refused(READY_NOBODY, 403)] {
        assert!(!asked([refused(SET, 401), refused(READY, 401), not_ready]).await);
    }
}

#[tokio::test]
async fn one_that_is_ready_says_by_refusing_that_the_rights_are_gone() {
    let refuses = |code| [refused(SET, code), said(READY, 200), refused(SET, code)];
    assert!(asked(refuses(403)).await);
    assert!(asked(refuses(401)).await);
    // Without an account, and where nobody may ask who has none.
    for last in [said(READY_NOBODY, 200), refused(READY_NOBODY, 401)] {
        let answers = [refused(SET, 401), refused(READY, 401), last, refused(SET, 401)];
        assert!(asked(answers).await);
    }
    let went = [refused(SET, 403), said(READY, 200), refused(SET, 404)];
    assert!(asked(went).await, "meanwhile");
}
