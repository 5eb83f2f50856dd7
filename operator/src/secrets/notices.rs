//! Notices of keys and certificates for people, each given once. Pure; sees no content.

use baton_push::{
    certificates::{Action as Renewal, Role},
    keys::{KeySet, Warning, table::Action as Rotation},
};
use std::collections::BTreeMap;

/// What was noticed last.
#[derive(Debug, Default)]
pub struct Notices {
    warnings: Vec<Warning>,
    /// By what is kept: one each, so it does not grow.
    failures: BTreeMap<&'static str, String>,
}

impl Notices {
    /// Takes the warnings there are now; gives those that were not there before.
    pub fn news(&mut self, warnings: Vec<Warning>) -> Vec<Warning> {
        let before = std::mem::replace(&mut self.warnings, warnings);
        let now = self.warnings.iter();
        now.filter(|w| !before.contains(w)).cloned().collect()
    }

    /// Something cannot be kept. Whether that is news.
    pub fn fails(&mut self, what: &'static str, words: &str) -> bool {
        let before = self.failures.insert(what, words.to_owned());
        before.as_deref() != Some(words)
    }

    /// It can.
    pub fn works(&mut self, what: &'static str) {
        self.failures.remove(what);
    }
}

/// The reason of a warning; its message is how it is shown.
pub fn warning(warning: &Warning) -> &'static str {
    match warning {
        Warning::Excluded { .. } => "NodesExcluded",
        Warning::PassedOver { .. } | Warning::Stuck { .. } => "RotationWaits",
    }
}

/// A step of the rotation as reason and message. `keys` is what is stored after it.
pub fn rotation(action: Rotation, keys: &KeySet) -> (&'static str, String) {
    let current = keys.current();
    match action {
        Rotation::MakeFirst => {
            ("KeyMade", format!("the first adoption key is made, of epoch {current}, and signs"))
        }
        Rotation::AddNext => (
            "KeyAdded",
            format!(
                "the key of epoch {} is added; that of epoch {current} signs until every dataplane and host-shim has the new \
                 one",
                keys.successor()
            ),
        ),
        Rotation::SignWithNext => (
            "KeySwitched",
            format!(
                "the key of epoch {current} signs from now on; those before it are valid until nobody signs with them"
            ),
        ),
        Rotation::RemoveOld => (
            "KeyRemoved",
            format!("nobody signs with keys before epoch {current} any more: they are removed"),
        ),
    }
}

/// Whose Secret a step of the certificates changes; none stands for the authority's.
pub fn secret(action: &Renewal) -> Option<Role> {
    match action {
        Renewal::Issue(role, _) | Renewal::Trust(role) => Some(*role),
        Renewal::CreateAuthority | Renewal::AddNext | Renewal::Promote | Renewal::DropOld => None,
    }
}

/// The reason of a step of the certificates; its message is how it is shown.
pub fn renewal(action: &Renewal) -> &'static str {
    match action {
        Renewal::CreateAuthority => "AuthorityMade",
        Renewal::AddNext => "AuthorityAdded",
        Renewal::Promote => "AuthoritySwitched",
        Renewal::DropOld => "AuthorityRemoved",
        Renewal::Issue(..) => "CertificateIssued",
        Renewal::Trust(_) => "TrustChanged",
    }
}
