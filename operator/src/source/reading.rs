//! One file's text as the objects that it holds.
//!
//! Owns what is kept of an object between two looks at its file, and what is told of it. Reads no file, and remembers nothing.

use super::{Sink, Told, report};
use crate::{
    kind::Kind,
    manifest::{self, Manifest},
    objects::{Namespace, Node, Pod, RawClass, RawPolicy},
};
use baton_config::ConfigError;
use baton_crds::Checker;
use baton_index::{Change, Key};
use k8s_openapi::{
    api::{core::v1::Service, discovery::v1::EndpointSlice},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::{path::Path, sync::Arc};
use tracing::warn;

/// Which object.
pub(super) type Id = (Kind, Key);

/// What a file says of an object.
#[derive(Clone, Debug)]
pub(super) enum Content {
    /// As it stands there, as JSON: what is told of it depends on more than that. A tenth of what the parsed one takes.
    Text(Arc<str>),
    /// What is told of it, which the index keeps anyhow.
    Plain(Change),
}

impl PartialEq for Content {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Text(one), Self::Text(other)) => one == other,
            (Self::Plain(one), Self::Plain(other)) => match (one, other) {
                (Change::Service(_, one), Change::Service(_, other)) => one == other,
                (Change::Slice(_, one), Change::Slice(_, other)) => one == other,
                (Change::Pod(_, one), Change::Pod(_, other)) => one == other,
                (Change::Node(_, one), Change::Node(_, other)) => one == other,
                (Change::Namespace(_, one), Change::Namespace(_, other)) => one == other,
                // Nothing else is kept like this.
                _ => false,
            },
            _ => false,
        }
    }
}

impl Content {
    /// What is told of it.
    pub(super) fn told(&self, sink: &Sink, id: &Id) -> Told {
        match self {
            Self::Plain(change) => Told::Change(change.clone()),
            Self::Text(json) => {
                let (kind, key) = id;
                // It was readable before.
                let value = serde_json::from_str(json).unwrap_or(Value::Null);
                match read(*kind, &value) {
                    Ok(object) => object.told(sink, key),
                    Err(_) => Told::Nothing,
                }
            }
        }
    }
}

/// The objects of a file that matter here.
pub(super) fn objects(
    sink: &Sink,
    checker: &Checker,
    file: &Path,
    text: &str,
) -> Result<Vec<(Id, Content)>, Vec<ConfigError>> {
    let manifests = match manifest::read(file, text) {
        Ok(manifests) => manifests,
        Err(error) => {
            // The check has better words for what it refuses too.
            let problems = checker.check(text, file).problems;
            return Err(if problems.is_empty() {
                vec![error]
            } else {
                problems
            });
        }
    };
    check(checker, file, text, &manifests)?;
    let mut objects = Vec::with_capacity(manifests.len());
    let mut problems = Vec::new();
    for manifest in manifests {
        let Some(kind) = Kind::of(&manifest.api_version, &manifest.kind) else {
            warn!(
                file = %file.display(),
                kind = manifest.kind,
                api_version = manifest.api_version,
                "not read: this kind does not matter here"
            );
            continue;
        };
        match read(kind, &manifest.value) {
            Ok(object) => {
                let key = key(sink, kind, object.meta());
                let content = object.content(sink, &key, &manifest.value);
                objects.push(((kind, key), content));
            }
            Err((field, words)) => {
                problems.push(manifest::problem(
                    file,
                    text,
                    &manifest.place,
                    &field,
                    words,
                ));
            }
        }
    }
    objects.shrink_to_fit();
    if problems.is_empty() {
        Ok(objects)
    } else {
        Err(problems)
    }
}

/// Has the objects checked by the rules of their definitions.
fn check(
    checker: &Checker,
    file: &Path,
    text: &str,
    manifests: &[Manifest],
) -> Result<(), Vec<ConfigError>> {
    // The check has nothing to say of other kinds, which are most of the text.
    let is_other = |manifest: &Manifest| {
        let kind = Kind::of(&manifest.api_version, &manifest.kind);
        kind.is_some_and(|kind| !matches!(kind, Kind::Policy | Kind::Class))
    };
    let is_good = |manifest: &Manifest| {
        is_other(manifest) || manifest.is_document() && checker.is_good(&manifest.value)
    };
    if manifests.iter().all(is_good) {
        return Ok(());
    }
    // Once more with the text, for the lines; Lists are judged as they stand.
    let checked = manifest::without(text, manifests, is_other);
    let report = checker.check(&checked, file);
    if report.problems.is_empty() {
        Ok(())
    } else {
        Err(report.problems)
    }
}

/// A readable object.
#[expect(clippy::large_enum_variant, reason = "one at a time lives, on a stack")]
enum Object {
    Policy(RawPolicy),
    Class(RawClass),
    Service(Service),
    Slice(EndpointSlice),
    Pod(Pod),
    Node(Node),
    Namespace(Namespace),
}

/// Reads a value as what it says it is, or gives the field that is wrong.
fn read(kind: Kind, value: &Value) -> Result<Object, (String, String)> {
    Ok(match kind {
        Kind::Policy => Object::Policy(parse(value)?),
        Kind::Class => Object::Class(parse(value)?),
        Kind::Service => Object::Service(parse(value)?),
        Kind::Slice => Object::Slice(parse(value)?),
        Kind::Pod => Object::Pod(parse(value)?),
        Kind::Node => Object::Node(parse(value)?),
        Kind::Namespace => Object::Namespace(parse(value)?),
    })
}

fn parse<T: DeserializeOwned>(value: &Value) -> Result<T, (String, String)> {
    // Keeping track of the path takes longer than reading does.
    T::deserialize(value).or_else(|_| {
        serde_path_to_error::deserialize(value).map_err(|error| {
            let path = error.path().to_string();
            (path, error.inner().to_string())
        })
    })
}

impl Object {
    fn meta(&self) -> &ObjectMeta {
        match self {
            Self::Policy(object) => object.meta(),
            Self::Class(object) => object.meta(),
            Self::Service(object) => object.meta(),
            Self::Slice(object) => object.meta(),
            Self::Pod(object) => object.meta(),
            Self::Node(object) => object.meta(),
            Self::Namespace(object) => object.meta(),
        }
    }

    /// What is kept of it.
    fn content(self, sink: &Sink, key: &Key, value: &Value) -> Content {
        let plain = match self {
            Self::Policy(_) | Self::Class(_) => None,
            other => Some(other.told(sink, key)),
        };
        match plain {
            Some(Told::Change(change)) => Content::Plain(change),
            _ => Content::Text(value.to_string().into()),
        }
    }

    fn told(self, sink: &Sink, key: &Key) -> Told {
        /// An object of the key's namespace, which its manifest need not say.
        fn at<T: ResourceExt>(mut object: T, key: &Key) -> T {
            if !key.namespace.is_empty() {
                object.meta_mut().namespace = Some(key.namespace.to_string());
            }
            object
        }
        match self {
            Self::Policy(object) => report::policy(sink, key, &at(object, key)),
            Self::Class(object) => report::class(sink, key, &at(object, key)),
            Self::Service(object) => {
                let object = at(object, key);
                sink.caught(Kind::Service, key, |t| t.service(&object))
                    .into()
            }
            Self::Slice(object) => {
                let object = at(object, key);
                sink.caught(Kind::Slice, key, |t| t.slice(&object)).into()
            }
            Self::Pod(object) => {
                let object = at(object, key);
                sink.caught(Kind::Pod, key, |t| t.pod(&object)).into()
            }
            Self::Node(object) => {
                let object = at(object, key);
                sink.caught(Kind::Node, key, |t| t.node(&object)).into()
            }
            Self::Namespace(object) => {
                let object = at(object, key);
                sink.caught(Kind::Namespace, key, |t| t.namespace(&object))
                    .into()
            }
        }
    }
}

/// As `kubectl` does it: what is in no namespace is in `default`.
fn key(sink: &Sink, kind: Kind, meta: &ObjectMeta) -> Key {
    let namespace = match (kind.is_namespaced(), &meta.namespace) {
        (false, _) => "",
        (true, None) => "default",
        (true, Some(namespace)) => namespace,
    };
    let name = meta.name.as_deref().unwrap_or_default();
    sink.translator.named(namespace, name)
}
