//! Conditions of a status, as all Kubernetes objects have them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// Conditions of one object. More than there are types, so that another controller's find room.
pub const CONDITIONS_MAX: u32 = 16;

/// What a condition of ours is about. Kept as text in [`Condition`], so that an unknown one can be
/// read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ConditionType {
    /// The object makes sense: what it names is there and conflicts with nothing older.
    Accepted,
    /// Every dataplane that it concerns serves its present generation.
    Programmed,
    /// Flows can move to all backends, by adoption or by translation.
    Adoptable,
    /// It works, but less well than it could: the message says what to do.
    Degraded,
    /// All that clients need is there: `Accepted` and `Programmed`, a ready pod, and the frontend
    /// leads through dataplanes.
    Ready,
}

impl ConditionType {
    /// As it is written in `type`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Accepted => "Accepted",
            Self::Programmed => "Programmed",
            Self::Adoptable => "Adoptable",
            Self::Degraded => "Degraded",
            Self::Ready => "Ready",
        }
    }
}

/// Whether a condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ConditionStatus {
    /// It holds.
    True,
    /// It does not.
    False,
    /// It cannot be told.
    Unknown,
}

/// One aspect of the object's state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// What it is about: `Ready`, `Accepted`, `Programmed`, `Adoptable` or
    /// `Degraded`.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = 316))]
    pub type_: String,
    /// Whether it holds.
    pub status: ConditionStatus,
    /// The `metadata.generation` that it was judged by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64", range(min = 0))]
    pub observed_generation: Option<i64>,
    /// Why, in one word for programs.
    #[schemars(
        length(min = 1, max = 1024),
        regex(pattern = "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")
    )]
    pub reason: String,
    /// Why, and what to do about it, for people.
    #[schemars(length(max = 32768))]
    pub message: String,
    /// When `status` last changed.
    #[schemars(schema_with = "date_time")]
    pub last_transition_time: Time,
}

/// A moment.
pub(crate) fn date_time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "format": "date-time", "maxLength": 64})
}
