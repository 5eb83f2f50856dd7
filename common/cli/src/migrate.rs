//! What `migrate` says. What is in the way of a move is the dataplane's to say. Pure.

use crate::{
    sentences::moves,
    text::{line, wrapped},
};
use baton_api::MigrateReply;
use serde::Serialize;
use std::net::SocketAddr;

/// What was done.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// `DATAPLANE/CLIENT`, or the client alone where there is one dataplane.
    pub id: String,
    /// The client's end.
    pub client: SocketAddr,
    /// What the dataplane says.
    #[serde(flatten)]
    pub reply: MigrateReply,
}

/// The outcome for people, and the command that shows what becomes of it. Backends are `noun`s.
pub fn render(outcome: &Outcome, noun: &str, trace: &str) -> String {
    let mut text = String::new();
    wrapped(&mut text, "", &moves(&outcome.id, &outcome.reply, noun));
    line(&mut text, "What became of it:");
    line(&mut text, &format!("  {trace}"));
    text
}
