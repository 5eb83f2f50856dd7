//! `spec.allowFrom`: who may open connections, as the index is told it.
//!
//! Owns the conversion and its refusals, which are those of the definition too: an object that an
//! older definition let in must not let in more clients than it names.

use super::{Translator, refuse};
use baton_crds as crd;
use baton_index::{Expression, Peer, Refusal, Selector};
use std::sync::Arc;

/// Items of one list.
const ITEMS_MAX: usize = 64;

impl Translator {
    /// The clients of a policy; nothing where it takes everybody's connections.
    pub(super) fn allow_from(
        &self,
        clients: Option<&[crd::AllowedClients]>,
    ) -> Result<Option<Arc<[Peer]>>, Refusal> {
        const AT: &str = "spec.allowFrom";
        let Some(clients) = clients else {
            return Ok(None);
        };
        if clients.is_empty() || clients.len() > ITEMS_MAX {
            let problem = format!(
                "has {} items: expected 1 to {ITEMS_MAX}, or no `allowFrom` for everybody",
                clients.len()
            );
            return Err(refuse(AT, problem));
        }
        let items = clients.iter().enumerate();
        let items = items.map(|(i, one)| self.peer(&format!("{AT}[{i}]"), one));
        items.collect::<Result<_, _>>().map(Some)
    }

    fn peer(&self, at: &str, one: &crd::AllowedClients) -> Result<Peer, Refusal> {
        let selector = |field: &str, selector: Option<&crd::LabelSelector>| {
            let selector = selector.map(|s| self.selector(&format!("{at}.{field}"), s));
            selector.transpose()
        };
        let namespaces = selector("namespaceSelector", one.namespace_selector.as_ref())?;
        let pods = selector("podSelector", one.pod_selector.as_ref())?;
        match (&one.cidr, namespaces, pods) {
            (Some(cidr), None, None) => {
                let network = cidr.parse().ok().filter(|_| cidr.contains('/'));
                let network = network.ok_or_else(|| {
                    let problem = format!(
                        "`{cidr}` is no network: expected as 192.0.2.0/24 or 2001:db8::/32"
                    );
                    refuse(&format!("{at}.cidr"), problem)
                });
                network.map(Peer::Network)
            }
            (None, namespaces, pods) if namespaces.is_some() || pods.is_some() => {
                Ok(Peer::Pods { namespaces, pods: pods.unwrap_or_default() })
            }
            _ => Err(refuse(
                at,
                "names no clients, or in two ways: expected either `cidr`, or `podSelector`, `namespaceSelector` or both of \
                 these",
            )),
        }
    }

    fn selector(&self, at: &str, selector: &crd::LabelSelector) -> Result<Selector, Refusal> {
        let expressions = selector.match_expressions.iter().enumerate();
        let expressions = expressions.map(|(i, one)| {
            let (key, values) = (self.text(&one.key), &one.values);
            let some = || values.iter().map(|value| self.text(value)).collect();
            match (one.operator, values.is_empty()) {
                (crd::LabelOperator::In, false) => Ok(Expression::In(key, some())),
                (crd::LabelOperator::NotIn, false) => Ok(Expression::NotIn(key, some())),
                (crd::LabelOperator::Exists, true) => Ok(Expression::Exists(key)),
                (crd::LabelOperator::DoesNotExist, true) => Ok(Expression::DoesNotExist(key)),
                _ => Err(refuse(
                    &format!("{at}.matchExpressions[{i}]"),
                    "has no values to compare with, or needs none: expected `values` with operator In and NotIn, and with no \
                     other",
                )),
            }
        });
        // Its lock is let go of before the expressions take it.
        let labels = {
            let pairs = super::cluster::pairs(Some(&selector.match_labels));
            self.interner().labels(pairs)
        };
        Ok(Selector { labels, expressions: expressions.collect::<Result<_, _>>()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_index::Labels;
    use serde_json::{Value, json};

    fn peers(allow_from: Value) -> Result<Vec<Peer>, Refusal> {
        let clients: Vec<crd::AllowedClients> =
            serde_json::from_value(allow_from).expect("clients");
        let made = Translator::new().allow_from(Some(&clients))?;
        Ok(made.expect("a list").to_vec())
    }

    #[test]
    fn clients_are_converted() {
        let label = |key: &str, value: &str| Selector {
            labels: Labels::from_iter([(key, value)]),
            expressions: Vec::new(),
        };
        let pods = |namespaces, pods| Peer::Pods { namespaces, pods };
        let expressions = json!([
            {"key": "a", "operator": "In", "values": ["1", "2"]},
            {"key": "b", "operator": "NotIn", "values": ["1"]},
            {"key": "c", "operator": "Exists"},
            {"key": "d", "operator": "DoesNotExist", "values": []},
        ]);
        let some = |all: &[&str]| all.iter().map(|v| (*v).into()).collect();
        let asked = Selector {
            labels: Labels::default(),
            expressions: vec![
                Expression::In("a".into(), some(&["1", "2"])),
                Expression::NotIn("b".into(), some(&["1"])),
                Expression::Exists("c".into()),
                Expression::DoesNotExist("d".into()),
            ],
        };
        for (item, expected) in [
            (
                json!({"cidr": "10.1.2.3/8"}),
                Peer::Network("10.0.0.0/8".parse().expect("a network")),
            ),
            (
                json!({"podSelector": {"matchLabels": {"app": "web"}}}),
                pods(None, label("app", "web")),
            ),
            (
                json!({"namespaceSelector": {"matchLabels": {"team": "shop"}}}),
                pods(Some(label("team", "shop")), Selector::default()),
            ),
            (
                json!({"namespaceSelector": {}, "podSelector": {"matchExpressions": expressions}}),
                pods(Some(Selector::default()), asked),
            ),
            (json!({"podSelector": {}}), pods(None, Selector::default())),
        ] {
            assert_eq!(peers(json!([item])).expect("good"), [expected], "{item}");
        }
        assert_eq!(Translator::new().allow_from(None), Ok(None));
    }

    #[test]
    fn what_an_older_definition_let_in_is_refused_with_its_field() {
        let many = vec![json!({"podSelector": {}}); ITEMS_MAX + 1];
        let good = json!({"cidr": "::/0"});
        for (list, field, part) in [
            (json!([]), "spec.allowFrom", "has 0 items: expected 1 to 64"),
            (json!(many), "spec.allowFrom", "has 65 items"),
            (json!([good, {}]), "spec.allowFrom[1]", "names no clients"),
            (json!([{"cidr": "::/0", "podSelector": {}}]), "spec.allowFrom[0]", "in two ways"),
            (
                json!([good, {"cidr": "10.0.0.1"}]),
                "spec.allowFrom[1].cidr",
                "`10.0.0.1` is no network",
            ),
            (
                json!([{"cidr": "10.0.0.0/33"}]),
                "spec.allowFrom[0].cidr",
                "expected as 192.0.2.0/24",
            ),
            (
                json!([{"podSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}]),
                "spec.allowFrom[0].podSelector.matchExpressions[0]",
                "has no values",
            ),
            (
                json!([{"namespaceSelector": {"matchExpressions": [
                    {"key": "a", "operator": "Exists", "values": ["b"]},
                ]}}]),
                "spec.allowFrom[0].namespaceSelector.matchExpressions[0]",
                "needs none",
            ),
        ] {
            let refusal = peers(list.clone()).expect_err(field);
            assert_eq!(&*refusal.field, field, "{list}");
            assert!(refusal.problem.contains(part), "{refusal:?}");
        }
    }
}
