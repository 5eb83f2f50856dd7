//! Objects become what the index is told.
//!
//! Owns what each field of an object means to the index. Reads no file and talks to nobody; both sources use it. A value
//! that cannot be used becomes a refusal with its field, never an error that stops the others.

mod class;
mod cluster;
mod policy;
#[cfg(test)]
mod policy_tests;

use crate::kind::Kind;
use baton_index::{Change, Interner, Key, Refusal, Text};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Translates, and keeps texts that repeat once.
#[derive(Debug, Default)]
pub struct Translator(Mutex<Interner>);

impl Translator {
    /// Keeps nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    fn interner(&self) -> MutexGuard<'_, Interner> {
        // Whoever panicked here left whole texts behind.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The key of an object; a cluster-scoped one has no namespace.
    pub fn key(&self, meta: &ObjectMeta) -> Key {
        let mut interner = self.interner();
        Key::new(
            interner.text(meta.namespace.as_deref().unwrap_or_default()),
            interner.text(meta.name.as_deref().unwrap_or_default()),
        )
    }

    fn text(&self, text: &str) -> Text {
        self.interner().text(text)
    }

    /// `metadata.uid`; a manifest has none, there the name stands for it.
    fn uid(&self, meta: &ObjectMeta, key: &Key) -> Text {
        match &meta.uid {
            // Unlike names, they do not repeat: nothing is gained by keeping them.
            Some(uid) => uid.as_str().into(),
            None => self.text(&key.to_string()),
        }
    }
}

/// `metadata.creationTimestamp` in seconds since 1970; 0 for a manifest, which has none.
fn created(meta: &ObjectMeta) -> i64 {
    let created = meta.creation_timestamp.as_ref();
    created.map_or(0, |time| time.0.as_second())
}

fn refuse(field: &str, problem: impl Into<Text>) -> Refusal {
    Refusal {
        field: field.into(),
        problem: problem.into(),
    }
}

/// A value of another type than the field has, or one that the field does not know.
fn unreadable(at: &str, error: &serde_path_to_error::Error<serde_json::Error>) -> Refusal {
    let path = error.path().to_string();
    let field = match path.as_str() {
        "." => at.to_owned(),
        path => format!("{at}.{path}"),
    };
    refuse(&field, error.inner().to_string())
}

/// The object of this kind and key is no more.
pub fn gone(kind: Kind, key: Key) -> Change {
    match kind {
        Kind::Policy => Change::Policy(key, None),
        Kind::Service => Change::Service(key, None),
        Kind::Slice => Change::Slice(key, None),
        Kind::Pod => Change::Pod(key, None),
        Kind::Node => Change::Node(key.name, None),
        Kind::Class => Change::Class(key.name, None),
    }
}
