//! What tasks tell: about pushes, and what dataplanes and shims say of themselves.

use super::Version;
use baton_api::{RefusedPolicy, State};
use serde::Deserialize;
use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

/// News of one target.
#[derive(Clone, Debug)]
pub struct Report {
    /// Its name, as in [`super::Pusher::set_targets`].
    pub target: Arc<str>,
    /// When it happened.
    pub at: SystemTime,
    /// What.
    pub result: Outcome,
}

/// What happened. Of each kind only the newest waits to be read; none of them is lost for good,
/// later ones say the same or more.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The dataplane has the content of `version`: a policy that was last changed in it or before
    /// is programmed there.
    Acknowledged {
        /// Under which number.
        generation: u64,
        /// See [`super::Pusher::publish`].
        version: Version,
        /// False if the dataplane had it before.
        pushed: bool,
        /// From the publication, or from when this task learned of it, to the answer.
        took: Duration,
        /// Policies of it that the dataplane cannot take, as far as it has said. All others are in
        /// force.
        refused: Arc<[RefusedPolicy]>,
    },
    /// The dataplane refuses the content of `version`, whole. What it had stays in force.
    Refused {
        /// See [`super::Pusher::publish`].
        version: Version,
        /// What is wrong.
        refusal: Refusal,
    },
    /// Other content of a later epoch is in force there: see [`super::Settings::overtaken_wait`].
    Overtaken {
        /// Of that content.
        generation: u64,
    },
    /// No answer, or none that makes sense.
    Unreachable(Unreached),
    /// What a dataplane says of itself.
    State {
        /// Figures, without policies: those went to [`super::States`] before.
        state: Arc<State>,
        /// What is wrong there, in words.
        problems: Vec<String>,
        /// Whether it holds the newest content published so far.
        in_sync: bool,
    },
    /// What a shim says of itself.
    Shim(Arc<ShimState>),
}

/// How a target is not reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreached {
    /// What went wrong, for people.
    pub problem: String,
    /// Failures in a row.
    pub failures: u32,
    /// It was a push, or a push before it had no answer either: being readable is then no sign of
    /// health.
    pub pushing: bool,
    /// When it is tried again.
    pub next_try: Duration,
}

/// Why a dataplane refuses a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    /// Name of the policy that the field belongs to, if it belongs to one.
    pub policy: Option<String>,
    /// The field, as `policies[1].backends[0].name`.
    pub field: Option<String>,
    /// In words.
    pub problem: String,
    /// What would have been right.
    pub expected: Option<String>,
}

/// The part of a shim's `/v1/state` that the operator uses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ShimState {
    /// Version of the binary.
    pub version: String,
    /// Seconds since start.
    pub uptime_seconds: u64,
    /// Live key epochs, modulo 16.
    pub key_epochs: Vec<u8>,
    /// Whether it has its keys from the operator.
    pub takes_keys: bool,
    /// The node's pods.
    pub pods: Vec<ShimPod>,
}

/// One pod of a shim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ShimPod {
    /// Its name.
    pub name: String,
    /// Whether the adopter is there.
    pub attached: bool,
    /// Why not, or why it refuses adoptions there.
    pub reason: Option<String>,
}
