//! Answers of the control API as HTTP. What is in them is `baton-api`'s.

use crate::commands::WorkerError;
use baton_api::ErrorReply;
use http_body_util::Full;
use hyper::{
    Response, StatusCode,
    body::Bytes,
    header::{CONTENT_TYPE, HeaderValue},
};
use serde::Serialize;

/// An answer with its whole body.
pub type Reply = Response<Full<Bytes>>;

/// Plain text.
pub fn text(status: StatusCode, body: impl Into<String>) -> Reply {
    with_type(status, "text/plain; charset=utf-8", body.into().into())
}

/// JSON; an error of the serializer becomes a 500, as maps with odd keys would be.
pub fn json(status: StatusCode, body: &impl Serialize) -> Reply {
    match serde_json::to_vec(body) {
        Ok(bytes) => with_type(status, "application/json", bytes.into()),
        Err(error) => {
            text(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot write the answer: {error}\n"))
        }
    }
}

/// A body with its type.
pub fn with_type(status: StatusCode, kind: &'static str, body: Bytes) -> Reply {
    let mut reply = Response::new(Full::new(body));
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    reply
}

/// The answer where the worker gave none.
pub fn unavailable(error: WorkerError) -> Reply {
    json(StatusCode::SERVICE_UNAVAILABLE, &ErrorReply::new(error.to_string()))
}
