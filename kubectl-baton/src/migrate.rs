//! What `migrate` says. What is in the way of a move is the dataplane's to say. Pure.

use baton_api::MigrateReply;
use baton_text::{line, moves, wrapped};
use serde::Serialize;
use std::net::SocketAddr;

/// What was done.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// `DATAPLANE/CLIENT`.
    pub id: String,
    /// The client's end.
    pub client: SocketAddr,
    /// What the dataplane says.
    #[serde(flatten)]
    pub reply: MigrateReply,
}

/// The outcome for people, and how to see what becomes of it.
pub fn render(outcome: &Outcome) -> String {
    let mut text = String::new();
    wrapped(&mut text, "", &moves(&outcome.id, &outcome.reply, "Pod"));
    line(&mut text, "What became of it:");
    line(
        &mut text,
        &format!(
            "  kubectl baton trace -A --past --for 1s --flow {}",
            outcome.client
        ),
    );
    text
}
