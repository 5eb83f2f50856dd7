//! `migrate`: has one flow moved, and says what was taken or what is in the way.

use super::{client, drain::complain, parse, print};
use crate::args::{MigrateOrder, Output, Question};
use baton_api::{MigrateReply, MigrateRequest};
use std::process::ExitCode;

/// Orders the move; the exit code says whether it was taken.
///
/// # Errors
/// The dataplane could not be asked.
pub async fn migrate(question: &Question<MigrateOrder>) -> anyhow::Result<ExitCode> {
    let order = &question.topic;
    let request = MigrateRequest {
        client: order.client,
        frontend: order.frontend,
        to: order.to.clone(),
    };
    let body = serde_json::to_vec(&request)?;
    let answer = match client::post(question.control, "/v1/migrate", body).await {
        Ok(answer) => answer,
        Err(error) => {
            return match error.downcast_ref::<client::Refusal>() {
                Some(refusal) if refusal.is_final() => Ok(complain(refusal.words())),
                _ => Err(error),
            };
        }
    };
    let reply: MigrateReply = parse(&answer.body)?;
    let text = match question.output {
        Output::Json => serde_json::to_string_pretty(&reply)?,
        Output::Table => words(order, &reply),
    };
    print(&text).map(|()| ExitCode::SUCCESS)
}

fn words(order: &MigrateOrder, reply: &MigrateReply) -> String {
    let MigrateReply {
        policy, from, to, ..
    } = reply;
    let to = to.as_deref().unwrap_or("the best other backend");
    let how = if reply.begun {
        format!("is being moved from {from} to {to}")
    } else {
        format!("goes from {from} to {to} with its next request")
    };
    format!(
        "{} ({policy}) {how}.\nWhat becomes of it:    lb-dataplane trace --past --client {}",
        order.client, order.client
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_is_said() {
        let order = MigrateOrder {
            client: "10.0.0.7:4711".parse().expect("an address"),
            frontend: None,
            to: None,
        };
        let mut reply = MigrateReply {
            policy: "web".into(),
            from: "a".into(),
            to: Some("b".into()),
            begun: true,
        };
        let text = words(&order, &reply);
        assert!(
            text.starts_with("10.0.0.7:4711 (web) is being moved from a to b.\n"),
            "{text}"
        );
        (reply.to, reply.begun) = (None, false);
        let text = words(&order, &reply);
        assert!(
            text.contains("from a to the best other backend with its next request"),
            "{text}"
        );
    }
}
