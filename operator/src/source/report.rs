//! Objects on their way to the core: what cannot be used is told, and what was said about policies
//! and classes is noted.
//!
//! Owns what becomes of objects that cannot be translated. Used by both sources.

use super::{Sink, Translation};
use crate::{
    kind::Kind,
    objects::{Namespace, Node, Pod, RawClass, RawPolicy},
};
use baton_index::{Change, Key, Refusal};
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use serde_json::Value;
use std::sync::Arc;
use tracing::warn;

/// The translation of an object.
pub type Translate<K> = fn(&Sink, &Key, &K) -> Translation;

/// A Service.
pub fn service(sink: &Sink, key: &Key, object: &Service) -> Translation {
    sink.caught(Kind::Service, key, |t| t.service(object)).into()
}

/// An EndpointSlice.
pub fn slice(sink: &Sink, key: &Key, object: &EndpointSlice) -> Translation {
    sink.caught(Kind::Slice, key, |t| t.slice(object)).into()
}

/// A Pod.
pub fn pod(sink: &Sink, key: &Key, object: &Pod) -> Translation {
    sink.caught(Kind::Pod, key, |t| t.pod(object)).into()
}

/// A Node.
pub fn node(sink: &Sink, key: &Key, object: &Node) -> Translation {
    sink.caught(Kind::Node, key, |t| t.node(object)).into()
}

/// A Namespace.
pub fn namespace(sink: &Sink, key: &Key, object: &Namespace) -> Translation {
    sink.caught(Kind::Namespace, key, |t| t.namespace(object)).into()
}

/// A policy. One that cannot be used is told as such, so that its status says why.
pub fn policy(sink: &Sink, key: &Key, object: &RawPolicy) -> Translation {
    sink.ledger.note(Kind::Policy, key, &object.metadata, &object.status);
    let change = sink
        .caught(Kind::Policy, key, |t| t.policy(&object.metadata, &object.spec, &object.status))
        .unwrap_or_else(|panicked| {
            // No field is wrong: the empty one stands for the operator itself.
            let refusal = Refusal {
                field: "".into(),
                problem: format!(
                    "the operator failed at this policy, which is a bug of it ({}): please report it with the policy; \
                     a change of the policy may get around it",
                    panicked.0
                )
                .into(),
            };
            let refused = sink.translator.refused(&object.metadata, key, refusal);
            Change::Policy(key.clone(), Some(Arc::new(refused)))
        });
    Translation::Change(change)
}

/// The same of a manifest: where there is no API server there are no Services to be written.
pub fn policy_of_manifest(sink: &Sink, key: &Key, object: &RawPolicy) -> Translation {
    if object.spec.get("frontend").is_none_or(Value::is_null) {
        return policy(sink, key, object);
    }
    sink.ledger.note(Kind::Policy, key, &object.metadata, &object.status);
    let refusal = Refusal {
        field: "spec.frontend".into(),
        problem: "is a Service that the operator writes into an API server: leave it out, and lead clients to the \
                  listeners' ports of the dataplanes"
            .into(),
    };
    let refused = sink.translator.refused(&object.metadata, key, refusal);
    Translation::Change(Change::Policy(key.clone(), Some(Arc::new(refused))))
}

/// A class. One that cannot be used stays what it was: its dataplanes have live connections.
pub fn class(sink: &Sink, key: &Key, object: &RawClass) -> Translation {
    sink.ledger.note(Kind::Class, key, &object.metadata, &object.status);
    let translated = sink.caught(Kind::Class, key, |t| t.class(&object.metadata, &object.spec));
    let refusal = match translated {
        Ok(Ok(change)) => {
            sink.ledger.accept(Kind::Class, key);
            return Translation::Change(change);
        }
        Ok(Err(refusal)) => refusal,
        Err(panicked) => Refusal {
            field: "".into(),
            problem: format!("the operator failed at it, which is a bug: {}", panicked.0).into(),
        },
    };
    warn!(
        class = %key.name,
        field = %refusal.field,
        problem = %refusal.problem,
        "this BatonDataplane cannot be used; what it was before stays in force"
    );
    sink.ledger.refuse(Kind::Class, key, refusal);
    let refused = i64::try_from(sink.ledger.refused(Kind::Class)).unwrap_or(i64::MAX);
    sink.metrics.refused.with_label_values(&[Kind::Class.as_str()]).set(refused);
    Translation::Refused
}

/// An object is no more.
pub fn gone(sink: &Sink, kind: Kind, key: &Key) {
    if matches!(kind, Kind::Policy | Kind::Class) {
        sink.ledger.forget(kind, key);
    }
}
