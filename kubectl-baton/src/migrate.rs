//! `migrate`: has the dataplane that owns a flow move it. Which flow is meant is looked up first; what is in the way is the
//! dataplane's to say.

use crate::{
    ask::{self, Dataplane, Refused},
    cluster::Cluster,
    flows::Flow,
};
use baton_api::{ControlAddress, MigrateReply};
use baton_text::{line, wrapped};
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

/// Gives the order.
///
/// # Errors
/// The dataplane refuses, or could not be asked.
pub async fn run(
    cluster: &impl Cluster,
    dataplane: &Dataplane,
    control: ControlAddress,
    flow: &Flow,
    to: Option<&str>,
) -> Result<Outcome, Refused> {
    let reply = ask::migrate(cluster, dataplane, control, &flow.flow, to).await?;
    Ok(Outcome {
        id: flow.id.clone(),
        client: flow.flow.client,
        reply,
    })
}

/// The outcome for people, and how to see what becomes of it.
pub fn render(outcome: &Outcome) -> String {
    let MigrateReply {
        from, to, begun, ..
    } = &outcome.reply;
    let to = to.as_deref().unwrap_or("the best other Pod");
    let mut text = String::new();
    let what = if *begun {
        format!("{} is being moved from {from} to {to}.", outcome.id)
    } else {
        format!(
            "{} goes from {from} to {to} with its next request.",
            outcome.id
        )
    };
    wrapped(&mut text, "", &what);
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
