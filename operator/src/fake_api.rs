//! A small API server in memory, for tests: objects by path, with versions, and failures on demand.
//!
//! Owns no rule of Kubernetes but these: a write with an old resourceVersion or another uid is a
//! conflict, a missing object is not found, but server-side apply makes it; a merge patch is one of
//! data, status and owners only. What needs more is tested against a real server.

use http_body_util::BodyExt;
use hyper::{
    Method, Request, Response, StatusCode,
    header::{CONTENT_TYPE, HeaderValue},
};
use kube::{Client, client::Body};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, Mutex},
};

/// The server.
#[derive(Clone, Default)]
pub struct FakeApi(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Value>,
    version: u64,
    /// Every request is answered by this status.
    failing: Option<u16>,
    /// No request is answered.
    silent: bool,
    /// Who asks.
    user: Value,
    /// Nobody may change an object's owners.
    refuses_owners: bool,
}

impl FakeApi {
    /// A client of it.
    pub fn client(&self) -> Client {
        let this = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let this = this.clone();
            async move { Ok::<_, Infallible>(this.answer(request).await) }
        });
        Client::new(service, "default")
    }

    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self.0.lock().expect("nobody panics with it"))
    }

    /// An object, if there is one at this path.
    pub fn get(&self, path: &str) -> Option<Value> {
        self.with(|state| state.objects.get(path).cloned())
    }

    /// Puts an object there, as another client would.
    pub fn put(&self, path: &str, object: Value) {
        self.with(|state| {
            state.store(path, object);
        });
    }

    /// All objects whose paths begin so.
    pub fn all(&self, prefix: &str) -> Vec<Value> {
        self.with(|state| {
            let objects = state.objects.iter();
            let found = objects.filter(|(path, _)| path.starts_with(prefix));
            found.map(|(_, object)| object.clone()).collect()
        })
    }

    /// Says who asks, as `SelfSubjectReview` tells it.
    pub fn put_user(&self, user: Value) {
        self.with(|state| state.user = user);
    }

    /// Has changes of owners refused, as an admission plugin does to who may not delete the object.
    pub fn refuse_owners(&self, refuses: bool) {
        self.with(|state| state.refuses_owners = refuses);
    }

    /// Takes it away.
    pub fn delete(&self, path: &str) {
        self.with(|state| state.objects.remove(path));
    }

    /// Has all requests fail with a status, or succeed again.
    pub fn fail(&self, status: Option<u16>) {
        self.with(|state| state.failing = status);
    }

    /// Has no request answered, or all again.
    pub fn silent(&self, silent: bool) {
        self.with(|state| state.silent = silent);
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.expect("in memory").to_bytes();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        if self.with(|state| state.silent) {
            std::future::pending::<()>().await;
        }
        let kind = head.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
        let applies = kind == Some(b"application/apply-patch+yaml");
        let path = head.uri.path();
        let (status, answer) = self.with(|state| state.answer(&head.method, path, applies, body));
        let body = Body::from(serde_json::to_vec(&answer).expect("JSON"));
        let mut response = Response::new(body);
        *response.status_mut() = StatusCode::from_u16(status).expect("a status");
        response
    }
}

impl State {
    fn store(&mut self, path: &str, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.objects.insert(path.to_owned(), object.clone());
        object
    }

    fn answer(&mut self, method: &Method, path: &str, applies: bool, body: Value) -> (u16, Value) {
        if let Some(status) = self.failing {
            return failure(status, "on demand");
        }
        let makes = applies && !path.ends_with("/status");
        // A subresource is a part of its object.
        let path = path.strip_suffix("/status").unwrap_or(path);
        let old = self.objects.get(path).cloned();
        match *method {
            Method::GET => old.map_or_else(|| failure(404, "not found"), |object| (200, object)),
            Method::POST if path.ends_with("/selfsubjectreviews") => {
                let review = json!({"metadata": {}, "status": {"userInfo": self.user}});
                (201, review)
            }
            Method::POST => {
                let name = body["metadata"]["name"].as_str().expect("a name");
                let path = format!("{path}/{name}");
                if self.objects.contains_key(&path) {
                    return failure(409, "exists already");
                }
                (201, self.store(&path, body))
            }
            Method::PUT | Method::PATCH => {
                let Some(old) = old else {
                    if !makes {
                        return failure(404, "not found");
                    }
                    let mut object = body;
                    object["metadata"]["uid"] = json!(format!("uid-{}", self.version));
                    return (201, self.store(path, object));
                };
                for field in ["resourceVersion", "uid"] {
                    let wanted = &body["metadata"][field];
                    if !wanted.is_null() && *wanted != old["metadata"][field] {
                        return failure(409, field);
                    }
                }
                let owners = &body["metadata"]["ownerReferences"];
                if self.refuses_owners && !owners.is_null() {
                    return failure(403, "ownerReferences");
                }
                let mut object = body;
                if *method == Method::PATCH {
                    let mut merged = old;
                    for part in ["status", "data"] {
                        if !object[part].is_null() {
                            merged[part] = object[part].take();
                        }
                    }
                    // A list is replaced as a whole.
                    if let Some(owners) = object["metadata"].get("ownerReferences") {
                        merged["metadata"]["ownerReferences"] = owners.clone();
                    }
                    object = merged;
                }
                (200, self.store(path, object))
            }
            _ => failure(405, "not here"),
        }
    }
}

fn failure(code: u16, message: &str) -> (u16, Value) {
    let reason = match code {
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        _ => "InternalError",
    };
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message,
    });
    (code, status)
}
