//! Objects become what the index is told.
//!
//! Owns what each field of an object means to the index. Reads no file and talks to nobody; both
//! sources use it. A value that cannot be used becomes a refusal with its field, never an error
//! that stops the others.

mod class;
mod clients;
pub mod cluster;
mod policy;
#[cfg(test)]
mod policy_tests;

use crate::kind::Kind;
use baton_index::{Change, Interner, Key, Refusal, Text};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Translates, and keeps once what repeats: texts, and what policies say besides names and
/// backends.
#[derive(Debug, Default)]
pub struct Translator {
    texts: SharedInterner,
    templates: Mutex<VecDeque<Arc<baton_api::Policy>>>,
}

/// Texts of objects and of dataplanes' states are the same.
pub type SharedInterner = Arc<Mutex<Interner>>;

/// Templates that are remembered: in one cluster most policies say the same, or one of a few
/// things.
const LIMIT_TEMPLATES: usize = 16;

/// Takes the lock of what holds only whole values, whoever panicked with it.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Translator {
    /// Keeps nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    fn interner(&self) -> MutexGuard<'_, Interner> {
        lock(&self.texts)
    }

    /// Where its texts are kept.
    pub fn texts(&self) -> SharedInterner {
        Arc::clone(&self.texts)
    }

    /// The kept copy of a template.
    fn template(&self, template: baton_api::Policy) -> Arc<baton_api::Policy> {
        let mut kept = lock(&self.templates);
        if let Some(same) = kept.iter().find(|kept| ***kept == template) {
            return Arc::clone(same);
        }
        let template = Arc::new(template);
        kept.truncate(LIMIT_TEMPLATES - 1);
        kept.push_front(Arc::clone(&template));
        template
    }

    /// The key of an object; a cluster-scoped one has no namespace.
    pub fn key(&self, meta: &ObjectMeta) -> Key {
        self.named(
            meta.namespace.as_deref().unwrap_or_default(),
            meta.name.as_deref().unwrap_or_default(),
        )
    }

    /// The key of this name in this namespace.
    pub fn named(&self, namespace: &str, name: &str) -> Key {
        let mut interner = self.interner();
        Key::new(interner.text(namespace), interner.text(name))
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
    Refusal { field: field.into(), problem: problem.into() }
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
        Kind::Namespace => Change::Namespace(key.name, None),
        Kind::Class => Change::Class(key.name, None),
    }
}
