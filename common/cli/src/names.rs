//! How policies and flows are named by dataplanes and by users. Pure.

use baton_api::{Clients, ClientsError, StateReply};
use serde::Serialize;
use std::collections::BTreeSet;

/// Names that an error tells.
const NAMES_MAX: usize = 12;

/// A policy's name on dataplanes: `NAMESPACE/POLICY/LISTENER`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyName {
    /// Empty if the dataplane has its policies from a file.
    pub namespace: String,
    /// The policy.
    pub policy: String,
    /// Empty as the namespace is.
    pub listener: String,
}

impl PolicyName {
    /// Reads the name that a dataplane tells.
    pub fn parse(name: &str) -> Self {
        let mut parts = name.splitn(3, '/').map(str::to_owned);
        match (parts.next(), parts.next(), parts.next()) {
            (Some(namespace), Some(policy), Some(listener)) => Self { namespace, policy, listener },
            _ => {
                Self { namespace: String::new(), policy: name.to_owned(), listener: String::new() }
            }
        }
    }

    /// Without the namespace.
    pub fn short(&self) -> String {
        if self.listener.is_empty() {
            self.policy.clone()
        } else {
            format!("{}/{}", self.policy, self.listener)
        }
    }

    /// Whether a user means it by `POLICY`, `POLICY/LISTENER` or `NAMESPACE/POLICY/LISTENER`,
    /// within a namespace if one is given.
    pub fn is(&self, wanted: Option<&str>, namespace: Option<&str>) -> bool {
        let Some(wanted) = wanted else {
            return self.is_in(namespace);
        };
        if wanted.matches('/').count() == 2 {
            return wanted == format!("{}/{}", self.namespace, self.short());
        }
        self.is_in(namespace) && (wanted == self.policy || wanted == self.short())
    }

    /// Whether it is in this namespace; everything is in none.
    pub fn is_in(&self, namespace: Option<&str>) -> bool {
        self.namespace.is_empty() || namespace.is_none_or(|namespace| namespace == self.namespace)
    }
}

impl std::fmt::Display for PolicyName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.short())
    }
}

/// How a user names a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowId {
    /// Only on this dataplane.
    pub dataplane: Option<String>,
    /// Whose.
    pub client: Clients,
}

impl std::fmt::Display for FlowId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(dataplane) = &self.dataplane {
            write!(f, "{dataplane}/")?;
        }
        self.client.fmt(f)
    }
}

/// `expected one of a, b, and 3 more`.
pub fn expected<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: BTreeSet<&str> = names.into_iter().collect();
    let some: Vec<&str> = names.iter().take(NAMES_MAX).copied().collect();
    let more = match names.len().saturating_sub(NAMES_MAX) {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    format!("expected one of {}{more}", some.join(", "))
}

/// No dataplane has the policy: names what there is instead.
pub fn unknown_policy(
    answers: &[(&str, &StateReply)],
    policy: &str,
    namespace: Option<&str>,
) -> String {
    let policies = answers.iter().flat_map(|(_, answer)| &answer.state.policies);
    let here = policies.filter(|state| PolicyName::parse(&state.name).is_in(namespace));
    let names: Vec<&str> = here.map(|state| state.name.as_str()).collect();
    let place = namespace.map_or_else(String::new, |name| format!(" in namespace {name}"));
    match (names.is_empty(), namespace) {
        (true, None) => "no dataplane serves a policy".to_owned(),
        (true, _) => format!("no dataplane serves a policy{place}: `-A` looks at all namespaces"),
        (false, _) => format!("no dataplane serves policy {policy}{place}: {}", expected(names)),
    }
}

/// An address without a port may stand in brackets too.
pub fn clients(text: &str) -> Result<Clients, ClientsError> {
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
    bare.unwrap_or(text).parse()
}

/// Reads what a user names a flow by.
pub fn flow(text: &str) -> Result<FlowId, String> {
    let (dataplane, rest) = match text.rsplit_once('/') {
        Some((dataplane, rest)) => (Some(dataplane.to_owned()), rest),
        None => (None, text),
    };
    if dataplane.as_deref() == Some("") {
        return Err("expected the name of a dataplane's Pod before `/`".to_owned());
    }
    let client = clients(rest).map_err(|_| {
        format!(
            "`{text}` names no connection: expected its client's address (10.0.0.7), address and port (10.0.0.7:4711, \
             [fd00::7]:4711), or either behind a dataplane's Pod and `/`"
        )
    })?;
    Ok(FlowId { dataplane, client })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_found_by_each_of_its_names() {
        let name = PolicyName::parse("shop/web/http");
        assert_eq!(
            (name.to_string().as_str(), name.short().as_str()),
            ("shop/web/http", "web/http")
        );
        for wanted in [None, Some("web"), Some("web/http")] {
            assert!(name.is(wanted, Some("shop")) && name.is(wanted, None), "{wanted:?}");
            assert!(!name.is(wanted, Some("other")), "{wanted:?}");
        }
        assert!(name.is(Some("shop/web/http"), Some("other")), "it says where");
        assert!(!name.is(Some("web/https"), None) && !name.is(Some("shop/web"), None));
        let file = PolicyName::parse("web");
        assert!(file.is(Some("web"), Some("shop")) && file.to_string() == "web");
    }

    #[test]
    fn a_flow_is_named_by_its_client_with_or_without_the_dataplane() {
        let id = |text: &str| {
            let flow = flow(text).expect(text);
            assert_eq!(flow.to_string(), text);
            flow
        };
        assert_eq!(id("10.0.0.7:4711").dataplane, None);
        assert!(id("10.0.0.7").client.has("10.0.0.7:1".parse().expect("address")));
        let named = id("baton-lb-dataplane-x/[fd00::7]:4711");
        assert_eq!(named.dataplane.as_deref(), Some("baton-lb-dataplane-x"));
        assert!(named.client.has("[fd00::7]:4711".parse().expect("address")));
        assert!(!named.client.has("[fd00::7]:4712".parse().expect("address")));
        let network = flow("10.0.0.0/24").expect_err("many");
        assert!(network.contains("`10.0.0.0/24` names no connection"), "{network}");
    }
}
