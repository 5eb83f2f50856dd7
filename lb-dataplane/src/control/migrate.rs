//! `POST /v1/migrate`: has one flow move to a named backend, or to the best other one.
//!
//! Owns who may ask and the form of question and answer. What is in the way is the engine's to say.

use super::{
    Control,
    asked::order,
    reply::{Reply, json, unavailable},
};
use baton_api::{ErrorReply, MigrateRequest};
use baton_engine::{Migrate, MigrateError};
use hyper::{Request, StatusCode, body::Body};
use std::net::SocketAddr;

/// What the body should be.
const EXPECTED: &str =
    r#"{"client": "ADDRESS:PORT", "frontend": "ADDRESS:PORT" or none, "to": BACKEND or none}"#;

/// Answers one request.
pub async fn post<B>(control: &Control, request: Request<B>) -> Reply
where
    B: Body,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let asked: MigrateRequest = match order(request, EXPECTED).await {
        Ok(asked) => asked,
        Err(refusal) => return refusal,
    };
    let wanted = Migrate {
        client: asked.client,
        frontend: asked.frontend.map(|f| SocketAddr::new(f.address(), f.port())),
        to: asked.to,
    };
    match control.workers.migrate(wanted).await {
        Ok(Ok(reply)) => json(StatusCode::OK, &reply),
        Ok(Err(error)) => refusal(&error),
        Err(error) => unavailable(error),
    }
}

/// Not found where a name is wrong, otherwise a conflict with what is so at present.
fn refusal(error: &MigrateError) -> Reply {
    let (status, field) = match error {
        MigrateError::NoFlow(_) => (StatusCode::NOT_FOUND, "client"),
        MigrateError::SeveralFlows { .. } => (StatusCode::CONFLICT, "frontend"),
        MigrateError::UnknownBackend { .. } => (StatusCode::NOT_FOUND, "to"),
        MigrateError::There(_) | MigrateError::NotReady { .. } => (StatusCode::CONFLICT, "to"),
        other => return json(StatusCode::CONFLICT, &ErrorReply::new(other.to_string())),
    };
    json(status, &ErrorReply::field(field, &error.to_string()))
}
