//! Whose the Secrets and the Lease are that the operator makes: its own ServiceAccount's, where it
//! was told so. With the account, as `helm uninstall` removes it, Kubernetes' garbage collector
//! then removes them.
//!
//! Owns who that is and how references to it read. Reads and writes no other object; only what the
//! operator made itself is ever given an owner, which is for `secrets` and `leader` to keep.
//!
//! The account is asked of the API server by a SelfSubjectReview, which everybody may make of
//! himself (ClusterRole `system:basic-user`; Kubernetes 1.28): no right to read accounts is needed.
//!
//! # Decisions
//!
//! - **What the operator makes goes with its ServiceAccount**: Secrets and the Lease name it as
//!   their owner, so that the garbage collector takes them along with `helm uninstall`. A hook
//!   would need the right to delete Secrets, and Secrets in the chart would hold keys in Helm's
//!   own. Only the chart says that the account is Baton's (`--owned-by-account`); an admin's Secret
//!   has no owner of ours.

use k8s_openapi::{
    api::authentication::v1::{SelfSubjectReview, UserInfo},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{Api, Client, api::PostParams};
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

/// One request to the API server.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);
/// After a failure.
const RETRY: Duration = Duration::from_secs(5);
/// What the name of a ServiceAccount begins with, before its namespace, a colon and its name.
const ACCOUNT: &str = "system:serviceaccount:";
const KIND: &str = "ServiceAccount";

/// A ServiceAccount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    name: String,
    uid: String,
}

/// Asks whose account this process has, until the API server answers. None if it has none of this
/// namespace, or the server does not tell: references reach no other namespace.
pub async fn find(client: &Client, namespace: &str) -> Option<Owner> {
    loop {
        let api = Api::<SelfSubjectReview>::all(client.clone());
        let (params, review) = (PostParams::default(), SelfSubjectReview::default());
        let failure = match timeout(REQUEST_LIMIT, api.create(&params, &review)).await {
            Ok(Ok(review)) => {
                let user = review.status.and_then(|status| status.user_info);
                let owner = user.and_then(|user| owner(&user, namespace));
                match &owner {
                    Some(owner) => {
                        info!(account = owner.name, "Secrets and the Lease go with it");
                    }
                    None => warn!(
                        namespace,
                        "this process has no ServiceAccount of the namespace: Secrets and the Lease stay when Baton is \
                         removed"
                    ),
                }
                return owner;
            }
            // One that cannot answer now, or not yet: the token is new, there is too much to do.
            Ok(Err(kube::Error::Api(status)))
                if status.code < 500 && !matches!(status.code, 401 | 429) =>
            {
                warn!(
                    error = status.message,
                    "the API server does not tell whose account this is: Secrets and the Lease stay when Baton is removed"
                );
                return None;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer".to_owned(),
        };
        warn!(
            error = failure,
            "the API server cannot be asked whose account this is; it is tried again"
        );
        sleep(RETRY).await;
    }
}

fn owner(user: &UserInfo, namespace: &str) -> Option<Owner> {
    let account = user.username.as_deref()?.strip_prefix(ACCOUNT)?;
    let (of, name) = account.split_once(':')?;
    let uid = user.uid.clone().filter(|uid| !uid.is_empty())?;
    (of == namespace).then(|| Owner { name: name.to_owned(), uid })
}

impl Owner {
    /// An account of this name.
    #[cfg(test)]
    pub fn new(name: &str, uid: &str) -> Self {
        Self { name: name.to_owned(), uid: uid.to_owned() }
    }

    /// The reference to it. It holds nothing back: the account may go at once.
    pub fn reference(&self) -> OwnerReference {
        OwnerReference {
            api_version: "v1".to_owned(),
            kind: KIND.to_owned(),
            name: self.name.clone(),
            uid: self.uid.clone(),
            ..OwnerReference::default()
        }
    }

    /// The references of an object with this one among them; none if it is there already. One to an
    /// earlier account of the same name leads nowhere and goes.
    pub fn added(&self, references: &[OwnerReference]) -> Option<Vec<OwnerReference>> {
        if references.iter().any(|r| r.uid == self.uid) {
            return None;
        }
        let mut all = self.others(references);
        all.push(self.reference());
        Some(all)
    }

    /// The references of an object without this one; none if it is not there.
    pub fn removed(&self, references: &[OwnerReference]) -> Option<Vec<OwnerReference>> {
        let others = self.others(references);
        (others.len() < references.len()).then_some(others)
    }

    fn others(&self, references: &[OwnerReference]) -> Vec<OwnerReference> {
        let mine = |r: &OwnerReference| r.kind == KIND && r.name == self.name;
        references.iter().filter(|r| !mine(r)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_api::FakeApi;
    use serde_json::json;
    use tokio::time::Instant;

    fn user(name: &str, uid: &str) -> UserInfo {
        UserInfo {
            username: Some(name.to_owned()),
            uid: Some(uid.to_owned()),
            ..UserInfo::default()
        }
    }

    #[test]
    fn only_an_account_of_the_same_namespace_owns() {
        let of = |name, uid| owner(&user(name, uid), "baton");
        let good = of("system:serviceaccount:baton:baton-operator", "u");
        assert_eq!(good, Some(Owner::new("baton-operator", "u")));
        for (name, uid) in [
            ("system:serviceaccount:other:baton-operator", "u"),
            ("system:serviceaccount:baton:baton-operator", ""),
            ("system:node:worker-7", "u"),
            ("admin", "u"),
        ] {
            assert_eq!(of(name, uid), None, "{name} {uid}");
        }
    }

    #[test]
    fn others_references_stay_and_an_earlier_accounts_goes() {
        let owner = Owner::new("baton-operator", "new");
        let theirs = OwnerReference {
            kind: "ConfigMap".to_owned(),
            name: "baton-operator".to_owned(),
            uid: "theirs".to_owned(),
            ..OwnerReference::default()
        };
        let before = [theirs.clone(), Owner::new("baton-operator", "old").reference()];
        let after = owner.added(&before).expect("a change");
        assert_eq!(after, [theirs.clone(), owner.reference()]);
        assert_eq!(owner.added(&after), None);
        assert_eq!(owner.removed(&after), Some(vec![theirs.clone()]));
        assert_eq!(owner.removed(&[theirs]), None);
    }

    #[tokio::test(start_paused = true)]
    async fn who_cannot_be_asked_is_asked_again_and_who_will_not_tell_is_not() {
        let api = FakeApi::default();
        api.put_user(json!({"username": "system:serviceaccount:baton:baton-operator", "uid": "u"}));
        api.fail(Some(500));
        let client = api.client();
        let asking = tokio::spawn(async move { find(&client, "baton").await });
        sleep(RETRY * 3).await;
        assert!(!asking.is_finished());
        api.fail(None);
        let found = asking.await.expect("no panic");
        assert_eq!(found, Some(Owner::new("baton-operator", "u")));
        api.fail(Some(403));
        let begun = Instant::now();
        assert_eq!(find(&api.client(), "baton").await, None);
        assert!(begun.elapsed() < RETRY);
    }
}
