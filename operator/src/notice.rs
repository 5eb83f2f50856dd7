//! What people are told beside statuses: Events of policies, and of the Secrets that the operator
//! keeps.
//!
//! Owns what a notice is about. Never holds a content of a Secret.

use baton_index::{Event, Key};

/// Something that people want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The object that it is about.
    pub about: About,
    /// Whether somebody has to act.
    pub warning: bool,
    /// One word, CamelCase.
    pub reason: &'static str,
    /// What a person should know or change.
    pub message: String,
}

/// An object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum About {
    /// A policy.
    Policy {
        /// Which.
        key: Key,
        /// Its `metadata.uid`.
        uid: String,
    },
    /// A Secret of the operator's namespace.
    Secret {
        /// Which; without a namespace where there is no API server.
        key: Key,
        /// Its `metadata.uid`, if it is known.
        uid: Option<String>,
    },
}

impl From<Event> for Notice {
    fn from(event: Event) -> Self {
        Self {
            about: About::Policy { key: event.policy, uid: event.uid.to_string() },
            warning: event.warning,
            reason: event.reason.as_str(),
            message: event.message,
        }
    }
}

impl About {
    /// Its namespace and name.
    pub fn key(&self) -> &Key {
        match self {
            Self::Policy { key, .. } | Self::Secret { key, .. } => key,
        }
    }
}
