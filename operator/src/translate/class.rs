//! `BatonDataplane`: a class of dataplanes.

use super::{Translator, cluster::pairs, policy::port, refuse, unreadable};
use baton_crds as crd;
use baton_index::{Allowance, Change, Class, NamespaceSelector, NoRange, Refusal};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;
use std::{str::FromStr, sync::Arc};

impl Translator {
    /// A class; `spec` is what the object has there, whatever that is.
    ///
    /// # Errors
    /// It cannot be used. What the class was before should stay: its dataplanes serve live
    /// connections.
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
        let given_first = port("spec.frontendPorts.first", spec.frontend_ports.first)?;
        let given_last = port("spec.frontendPorts.last", spec.frontend_ports.last)?;
        if given_first > given_last {
            let problem = format!("{given_last} is below spec.frontendPorts.first, {given_first}");
            return Err(refuse("spec.frontendPorts.last", problem));
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
        let reserved_ports = ranges("spec.reservedPorts", PORTS, &spec.reserved_ports)?;
        let allowed = spec.allowed.iter().enumerate();
        let allowed = allowed
            .map(|(i, one)| self.allowance(&format!("spec.allowed[{i}]"), one))
            .collect::<Result<_, _>>()?;
        let mut interner = self.interner();
        let labels = interner.labels(pairs(meta.labels.as_ref()));
        let selector = interner.labels(pairs(Some(&spec.selector.match_labels)));
        drop(interner);
        let class = Class {
            created: super::created(meta),
            generation: meta.generation.unwrap_or_default(),
            labels,
            default: spec.default,
            namespace: self.text(&spec.namespace),
            selector,
            control_port: port("spec.controlPort", spec.control_port)?,
            leg_ports: Some((first, last)),
            frontend_ports: Some((given_first, given_last)),
            reserved_ports,
            allowed,
            limit_policies: policies,
            limit_backends: Some(backends),
        };
        Ok(Change::Class(key.name, Some(Arc::new(class))))
    }

    fn allowance(&self, at: &str, one: &crd::Allowance) -> Result<Allowance, Refusal> {
        let mut interner = self.interner();
        let names = one.namespaces.names.iter();
        let namespaces = NamespaceSelector {
            names: names.map(|name| interner.text(name)).collect(),
            labels: interner.labels(pairs(Some(&one.namespaces.match_labels))),
        };
        Ok(Allowance {
            namespaces,
            ports: ranges(&format!("{at}.ports"), PORTS, &one.ports)?,
            addresses: ranges(&format!("{at}.addresses"), NETWORKS, &one.addresses)?,
            endpoints: ranges(&format!("{at}.endpoints"), NETWORKS, &one.endpoints)?,
        })
    }
}

const PORTS: &str = "a port or a range of them, as 8080 or 8000-8999";
const NETWORKS: &str = "an address or a network, as 192.0.2.1 or 192.0.2.0/24";

fn ranges<T: FromStr<Err = NoRange>>(
    field: &str,
    expected: &str,
    texts: &[String],
) -> Result<Vec<T>, Refusal> {
    let read = |(i, text): (usize, &String)| {
        let problem = || format!("`{text}` is none: expected {expected}");
        text.parse().map_err(|NoRange| refuse(&format!("{field}[{i}]"), problem()))
    };
    texts.iter().enumerate().map(read).collect()
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
            "reservedPorts": ["22", "10248-10259"],
            "allowed": [{
                "namespaces": {"names": ["edge"], "matchLabels": {"tier": "front"}}, "ports": ["80", "443"],
                "addresses": ["192.0.2.0/24"], "endpoints": ["10.1.2.3"],
            }],
        }))
        .expect("good");
        assert_eq!((class.created, class.generation), (60, 3));
        assert_eq!(class.labels.to_string(), "tier=edge");
        assert_eq!((&*class.namespace, class.selector.to_string()), ("baton", "app=lb".to_owned()));
        assert_eq!((class.control_port, class.leg_ports), (9_901, Some((30_000, 31_000))));
        assert_eq!((class.limit_policies, class.default), (7, true));
        assert_eq!(class.limit_backends, Some(70));
        assert_eq!(texts(&class.reserved_ports), ["22", "10248-10259"]);
        let [allowed] = class.allowed.as_slice() else {
            panic!("{class:?}");
        };
        let namespaces = &allowed.namespaces;
        assert_eq!(texts(&namespaces.names), ["edge"]);
        assert_eq!(namespaces.labels.to_string(), "tier=front");
        assert_eq!(texts(&allowed.ports), ["80", "443"]);
        assert_eq!(texts(&allowed.addresses), ["192.0.2.0/24"]);
        assert_eq!(texts(&allowed.endpoints), ["10.1.2.3"]);
    }

    fn texts<T: ToString>(all: impl IntoIterator<Item = T>) -> Vec<String> {
        all.into_iter().map(|one| one.to_string()).collect()
    }

    #[test]
    fn what_is_left_out_has_the_defaults_of_the_crd() {
        let class =
            translate(&json!({"namespace": "baton", "selector": {"matchLabels": {"app": "lb"}}}))
                .expect("good");
        assert_eq!((class.control_port, class.leg_ports), (9_900, Some((20_000, 32_767))));
        assert_eq!((class.limit_policies, class.default), (1_024, false));
        assert_eq!(texts(&class.reserved_ports), ["9910"]);
        let [allowed] = class.allowed.as_slice() else {
            panic!("{class:?}");
        };
        assert_eq!(allowed.namespaces, NamespaceSelector::default());
        assert_eq!(texts(&allowed.ports), ["1024-65535"]);
        assert!(allowed.addresses.is_empty() && allowed.endpoints.is_empty());
    }

    #[test]
    fn what_cannot_be_used_is_refused_with_its_field() {
        let good = json!({"namespace": "baton", "selector": {"matchLabels": {"app": "lb"}}});
        for (field, value, problem) in [
            ("controlPort", json!(0), "expected 1 to 65535"),
            ("controlPort", json!("many"), "invalid type"),
            ("selector", json!({"matchLabels": {}}), "expected at least one label"),
            ("ports", json!({"first": 70_000}), "expected 1 to 65535"),
            ("ports", json!({"first": 30_000, "last": 20_000}), "is below"),
            ("limits", json!({"policies": -1}), "out of range"),
            ("limits", json!({"backends": -1}), "out of range"),
            ("reservedPorts", json!(["2-1"]), "`2-1` is none"),
            ("allowed", json!([{"ports": ["80"]}]), "missing field `namespaces`"),
            (
                "allowed",
                json!([{"namespaces": {}, "endpoints": ["x"]}]),
                "expected an address or a network",
            ),
        ] {
            let mut spec = good.clone();
            spec[field] = value;
            let refusal = translate(&spec).expect_err(field);
            assert!(refusal.field.starts_with(&format!("spec.{field}")), "{refusal:?}");
            assert!(refusal.problem.contains(problem), "{refusal:?}");
        }
    }
}
