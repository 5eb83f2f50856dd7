//! `BatonDataplane`: a class of dataplanes.

use super::{Translator, cluster::pairs, policy::port, refuse, unreadable};
use baton_crds as crd;
use baton_index::{Change, Class, Refusal};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;
use std::sync::Arc;

impl Translator {
    /// A class; `spec` is what the object has there, whatever that is.
    ///
    /// # Errors
    /// It cannot be used. What the class was before should stay: its dataplanes serve live connections.
    pub fn class(&self, meta: &ObjectMeta, spec: &Value) -> Result<Change, Refusal> {
        let key = self.key(meta);
        let spec: crd::BatonDataplaneSpec =
            serde_path_to_error::deserialize(spec).map_err(|error| unreadable("spec", &error))?;
        let first = port("spec.ports.first", spec.ports.first)?;
        let last = port("spec.ports.last", spec.ports.last)?;
        if first > last {
            let problem = format!("{last} is below spec.ports.first, {first}");
            return Err(refuse("spec.ports.last", problem));
        }
        if spec.selector.match_labels.is_empty() {
            let problem = "selects nothing: expected at least one label";
            return Err(refuse("spec.selector.matchLabels", problem));
        }
        let limit = |field: &str, value: i32| {
            let out = |_| refuse(field, format!("{value} is out of range"));
            usize::try_from(value).map_err(out)
        };
        let policies = limit("spec.limits.policies", spec.limits.policies)?;
        let backends = limit("spec.limits.backends", spec.limits.backends)?;
        let mut interner = self.interner();
        let labels = interner.labels(pairs(meta.labels.as_ref()));
        let selector = interner.labels(pairs(Some(&spec.selector.match_labels)));
        drop(interner);
        let class = Class {
            uid: self.uid(meta, &key),
            created: super::created(meta),
            generation: meta.generation.unwrap_or_default(),
            labels,
            default: spec.default,
            namespace: self.text(&spec.namespace),
            selector,
            control_port: port("spec.controlPort", spec.control_port)?,
            leg_ports: Some((first, last)),
            limit_policies: policies,
            limit_backends: Some(backends),
        };
        Ok(Change::Class(key.name, Some(Arc::new(class))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn translate(spec: &Value) -> Result<Class, Refusal> {
        let meta: ObjectMeta = serde_json::from_value(json!({
            "name": "edge", "uid": "u-1", "generation": 3, "creationTimestamp": "1970-01-01T00:01:00Z",
            "labels": {"tier": "edge"},
        }))
        .expect("metadata");
        match Translator::new().class(&meta, spec)? {
            Change::Class(name, Some(class)) => {
                assert_eq!(&*name, "edge");
                Ok((*class).clone())
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_field_is_converted() {
        let class = translate(&json!({
            "namespace": "baton", "selector": {"matchLabels": {"app": "lb"}}, "controlPort": 9_901,
            "ports": {"first": 30_000, "last": 31_000}, "limits": {"policies": 7, "backends": 70}, "default": true,
        }))
        .expect("good");
        assert_eq!(
            (&*class.uid, class.created, class.generation),
            ("u-1", 60, 3)
        );
        assert_eq!(class.labels.to_string(), "tier=edge");
        assert_eq!(
            (&*class.namespace, class.selector.to_string()),
            ("baton", "app=lb".to_owned())
        );
        assert_eq!(
            (class.control_port, class.leg_ports),
            (9_901, Some((30_000, 31_000)))
        );
        assert_eq!((class.limit_policies, class.default), (7, true));
        assert_eq!(class.limit_backends, Some(70));
    }

    #[test]
    fn what_is_left_out_has_the_defaults_of_the_crd() {
        let class =
            translate(&json!({"namespace": "baton", "selector": {"matchLabels": {"app": "lb"}}}))
                .expect("good");
        assert_eq!(
            (class.control_port, class.leg_ports),
            (9_900, Some((20_000, 32_767)))
        );
        assert_eq!((class.limit_policies, class.default), (1_024, false));
    }

    #[test]
    fn what_cannot_be_used_is_refused_with_its_field() {
        let good = json!({"namespace": "baton", "selector": {"matchLabels": {"app": "lb"}}});
        for (field, value, problem) in [
            ("controlPort", json!(0), "expected 1 to 65535"),
            ("controlPort", json!("many"), "invalid type"),
            (
                "selector",
                json!({"matchLabels": {}}),
                "expected at least one label",
            ),
            ("ports", json!({"first": 70_000}), "expected 1 to 65535"),
            (
                "ports",
                json!({"first": 30_000, "last": 20_000}),
                "is below",
            ),
            ("limits", json!({"policies": -1}), "out of range"),
            ("limits", json!({"backends": -1}), "out of range"),
        ] {
            let mut spec = good.clone();
            spec[field] = value;
            let refusal = translate(&spec).expect_err(field);
            assert!(
                refusal.field.starts_with(&format!("spec.{field}")),
                "{refusal:?}"
            );
            assert!(refusal.problem.contains(problem), "{refusal:?}");
        }
    }
}
