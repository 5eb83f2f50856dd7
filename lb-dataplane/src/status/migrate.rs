//! `migrate`: has one flow moved, and says what was taken or what is in the way.

use super::{client, complain, show};
use crate::args::MigrateOrder;
use baton_api::{MigrateReply, MigrateRequest};
use baton_text::moves;
use std::process::ExitCode;

/// Orders the move; the exit code says whether it was taken.
///
/// # Errors
/// The dataplane could not be asked.
pub async fn run(order: &MigrateOrder) -> anyhow::Result<ExitCode> {
    let request = MigrateRequest {
        client: order.client,
        frontend: order.frontend,
        to: order.to.clone(),
    };
    match client::order(order.ask.at.control, "/v1/migrate", &request).await? {
        Ok(reply) => {
            show(order.ask.output, &reply, || words(order, &reply)).map(|()| ExitCode::SUCCESS)
        }
        Err(refusal) => Ok(complain(refusal.words())),
    }
}

fn words(order: &MigrateOrder, reply: &MigrateReply) -> String {
    let client = order.client;
    let moves = moves(&format!("{client} ({})", reply.policy), reply, "backend");
    format!("{moves}\nWhat becomes of it:    lb-dataplane trace --past --client {client}")
}
