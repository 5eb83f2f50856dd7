//! Where keys and certificates are kept: Secrets of the operator's namespace, or the state
//! directory.
//!
//! Owns that nobody's writing is overwritten unseen: each write is on the condition that nobody
//! wrote since the reading. Never logs a content; errors name Secrets, files and fields only.

use crate::{owner::Owner, state_dir::StateDir};
use anyhow::Context as _;
use baton_push::{
    Files,
    keys::{CURRENT_FILE, Wishes},
};
use k8s_openapi::{
    ByteString,
    api::core::v1::Secret,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::{Map, Value, json};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::time::timeout;

/// One request to the API server.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);
/// Whose the Secrets are that the operator made. Those without it are an admin's and are used as
/// they are.
const OWNER: (&str, &str) = ("app.kubernetes.io/managed-by", "baton-operator");
/// Of an annotation: since when each adoption key is there.
const AGES_ANNOTATION: &str = "baton.dev/adoption-key-ages";
/// Of an annotation: any text, changed by an admin who wants new adoption keys now.
const REQUEST_ANNOTATION: &str = "baton.dev/rotate";
/// Of an annotation: names of nodes that an admin does not trust any more, separated by commas.
/// Not on the nodes: a kubelet may write its own.
const EXCLUDED_ANNOTATION: &str = "baton.dev/excluded-nodes";
/// The same as files beside the directories.
const AGES_FILE: &str = "adoption-key-ages.json";
const REQUEST_FILE: &str = "rotate";
const EXCLUDED_FILE: &str = "excluded-nodes";

/// The store.
pub enum Store {
    /// Secrets.
    Kubernetes {
        /// Of the operator's namespace.
        api: Box<Api<Secret>>,
        /// That namespace.
        namespace: String,
        /// The name of this process, which keeps two that create the same Secret apart.
        identity: String,
        /// With whom the Secrets go that the operator makes; they stay without it.
        owner: Option<Owner>,
    },
    /// A directory for each, in the state directory.
    Directory(Arc<StateDir>),
}

/// One Secret as it was read.
#[derive(Debug, Default)]
pub struct Kept {
    /// Its content; nothing if there is no such Secret.
    pub files: Option<Files>,
    /// An admin made it.
    pub supplied: bool,
    /// The text of the keys' ages.
    pub ages: Option<String>,
    /// What an admin asks for, of adoption keys.
    pub wishes: Wishes,
    /// Its `metadata.uid`.
    pub uid: Option<String>,
    version: Option<String>,
    owners: Vec<OwnerReference>,
}

/// Why something is not kept.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// Somebody else wrote since the reading: read again.
    #[error("somebody else changed it at the same time")]
    Conflict,
    /// Anything else.
    #[error(transparent)]
    Other(#[from] anyhow::Error),
}

/// What became of whose a Secret is.
#[derive(Debug)]
pub enum Owned {
    /// Nothing was to be done.
    AsItIs,
    /// Changed, by us or by somebody else: read it again.
    Changed,
    /// The API server does not allow it; what it said.
    Refused(String),
}

impl Store {
    /// Secrets of a namespace.
    pub fn kubernetes(
        client: Client,
        namespace: &str,
        identity: &str,
        owner: Option<Owner>,
    ) -> Self {
        Self::Kubernetes {
            api: Box::new(Api::namespaced(client, namespace)),
            namespace: namespace.to_owned(),
            identity: identity.to_owned(),
            owner,
        }
    }

    /// Where the Secrets are; empty where there is no API server.
    pub fn namespace(&self) -> &str {
        match self {
            Self::Kubernetes { namespace, .. } => namespace,
            Self::Directory(_) => "",
        }
    }

    /// Reads one.
    ///
    /// # Errors
    /// It cannot be read.
    pub async fn read(&self, name: &str) -> anyhow::Result<Kept> {
        match self {
            Self::Kubernetes { api, .. } => {
                let read = timeout(REQUEST_LIMIT, api.get_opt(name)).await;
                let secret = read
                    .context("no answer from the API server")
                    .and_then(|read| Ok(read?))
                    .with_context(|| format!("the Secret {name} cannot be read"))?;
                Ok(secret.map(kept).unwrap_or_default())
            }
            Self::Directory(state) => directory(state, name),
        }
    }

    /// Keeps new content in the place of what was read. Gives the Secret's uid.
    ///
    /// # Errors
    /// See [`KeepError`]; nothing has changed then, or a part of the files of a directory.
    pub async fn write(
        &self,
        name: &str,
        before: &Kept,
        files: &Files,
        ages: Option<&str>,
    ) -> Result<Option<String>, KeepError> {
        match self {
            Self::Kubernetes { api, identity, owner, .. } => {
                let owner = owner.as_ref();
                let write = write(api, identity, owner, name, before, files, ages);
                match timeout(REQUEST_LIMIT, write).await {
                    Ok(written) => written,
                    Err(_) => Err(anyhow::anyhow!("no answer from the API server").into()),
                }
            }
            Self::Directory(state) => {
                write_directory(state, name, before, files, ages)?;
                Ok(None)
            }
        }
    }

    /// Has a Secret of an earlier version, or of an earlier account, go with the owner as one that
    /// is made now does; and one that an admin took over stay.
    ///
    /// # Errors
    /// The API server does not answer, or has failed.
    pub async fn own(&self, name: &str, before: &Kept) -> anyhow::Result<Owned> {
        let Self::Kubernetes { api, owner: Some(owner), .. } = self else {
            return Ok(Owned::AsItIs);
        };
        let owners = if before.supplied {
            owner.removed(&before.owners)
        } else {
            owner.added(&before.owners)
        };
        let (Some(version), Some(owners)) = (&before.version, owners) else {
            return Ok(Owned::AsItIs);
        };
        // Not by server-side apply: it would create a Secret that is gone by now, and take no
        // reference away that another manager wrote.
        let patch = json!({"metadata": {"resourceVersion": version, "ownerReferences": owners}});
        let patch = Patch::Merge(patch);
        match timeout(REQUEST_LIMIT, api.patch(name, &merge(), &patch)).await {
            Ok(Ok(_)) => Ok(Owned::Changed),
            Ok(Err(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => {
                Ok(Owned::Changed)
            }
            Ok(Err(kube::Error::Api(status))) if status.code == 403 => {
                Ok(Owned::Refused(status.message.clone()))
            }
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(anyhow::anyhow!("no answer from the API server")),
        }
        .with_context(|| format!("the owner of the Secret {name} cannot be written"))
    }
}

fn merge() -> PatchParams {
    PatchParams {
        field_manager: Some("baton-operator-secrets".to_owned()),
        ..PatchParams::default()
    }
}

fn kept(secret: Secret) -> Kept {
    let meta = secret.metadata;
    let annotation = |name: &str| meta.annotations.as_ref().and_then(|all| all.get(name)).cloned();
    let labels = meta.labels.as_ref();
    let owner = labels.and_then(|all| all.get(OWNER.0));
    let data = secret.data.unwrap_or_default();
    Kept {
        files: Some(data.into_iter().map(|(name, bytes)| (name, bytes.0)).collect()),
        supplied: owner.map(String::as_str) != Some(OWNER.1),
        ages: annotation(AGES_ANNOTATION),
        wishes: wishes(annotation(REQUEST_ANNOTATION), annotation(EXCLUDED_ANNOTATION)),
        uid: meta.uid,
        version: meta.resource_version,
        owners: meta.owner_references.unwrap_or_default(),
    }
}

fn wishes(rotate: Option<String>, excluded: Option<String>) -> Wishes {
    let excluded = excluded.unwrap_or_default();
    let nodes = excluded.split([',', '\n']).map(str::trim);
    let nodes = nodes.filter(|name| !name.is_empty());
    Wishes {
        rotate: rotate.filter(|text| !text.is_empty()),
        excluded: nodes.map(str::to_owned).collect(),
    }
}

async fn write(
    api: &Api<Secret>,
    identity: &str,
    owner: Option<&Owner>,
    name: &str,
    before: &Kept,
    files: &Files,
    ages: Option<&str>,
) -> Result<Option<String>, KeepError> {
    let mut annotations = BTreeMap::new();
    if let Some(ages) = ages {
        annotations.insert(AGES_ANNOTATION.to_owned(), ages.to_owned());
    }
    let result = if let Some(version) = &before.version {
        let mut data = Map::new();
        let old = before.files.iter().flat_map(Files::iter);
        for (gone, _) in old.filter(|(name, _)| files.get(name).is_none()) {
            data.insert(gone.to_owned(), Value::Null);
        }
        for (name, bytes) in files.iter() {
            data.insert(name.to_owned(), json!(ByteString(bytes.to_vec())));
        }
        let patch = json!({
            "metadata": {"resourceVersion": version, "annotations": annotations},
            "data": data,
        });
        api.patch(name, &merge(), &Patch::Merge(patch)).await
    } else {
        // By server-side apply, because RBAC can grant that for one name only. A name of its own
        // for each process: of two that create the same Secret the second one meets the first one's
        // fields, which is a conflict.
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                labels: Some([(OWNER.0.to_owned(), OWNER.1.to_owned())].into()),
                annotations: Some(annotations),
                owner_references: owner.map(|owner| vec![owner.reference()]),
                ..ObjectMeta::default()
            },
            data: Some(
                files
                    .iter()
                    .map(|(name, bytes)| (name.to_owned(), ByteString(bytes.to_vec())))
                    .collect(),
            ),
            ..Secret::default()
        };
        let manager: String = format!("baton-operator-{identity}").chars().take(128).collect();
        let params = PatchParams::apply(&manager);
        api.patch(name, &params, &Patch::Apply(secret)).await
    };
    match result {
        Ok(written) => Ok(written.metadata.uid),
        Err(kube::Error::Api(status)) if status.code == 409 => Err(KeepError::Conflict),
        Err(error) => Err(anyhow::Error::from(error)
            .context(format!("the Secret {name} cannot be written"))
            .into()),
    }
}

fn directory(state: &StateDir, name: &str) -> anyhow::Result<Kept> {
    let mut files = Files::new();
    for file in state.names(name)? {
        if let Some(bytes) = state.read(format!("{name}/{file}"))? {
            files.insert(file, bytes);
        }
    }
    let text = |file: &str| -> anyhow::Result<Option<String>> {
        let bytes = state.read(file)?;
        Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned()))
    };
    Ok(Kept {
        files: (!files.is_empty()).then_some(files),
        supplied: false,
        ages: text(AGES_FILE)?,
        wishes: wishes(text(REQUEST_FILE)?, text(EXCLUDED_FILE)?),
        ..Kept::default()
    })
}

/// Whoever reads between two files sees a set that works: keys come before `current` names them,
/// and go after.
fn write_directory(
    state: &StateDir,
    name: &str,
    before: &Kept,
    files: &Files,
    ages: Option<&str>,
) -> anyhow::Result<()> {
    let old = |file: &str| before.files.as_ref().and_then(|files| files.get(file));
    let changed = |(file, bytes): &(&str, &[u8])| old(file) != Some(*bytes);
    let (current, others): (Vec<_>, Vec<_>) =
        files.iter().filter(changed).partition(|(file, _)| *file == CURRENT_FILE);
    for (file, bytes) in others.into_iter().chain(current) {
        state.write(format!("{name}/{file}"), bytes)?;
    }
    for (gone, _) in before.files.iter().flat_map(Files::iter) {
        if files.get(gone).is_none() {
            state.remove(format!("{name}/{gone}"))?;
        }
    }
    if let Some(ages) = ages {
        state.write(AGES_FILE, ages.as_bytes())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(pairs: &[(&str, &str)]) -> Files {
        pairs.iter().map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec())).collect()
    }

    #[tokio::test]
    async fn a_directory_keeps_what_is_written_and_forgets_what_is_not() {
        let path = std::env::temp_dir().join(format!("baton-store-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        let state = Arc::new(StateDir::open(&path).expect("a directory"));
        let store = Store::Directory(Arc::clone(&state));
        let empty = store.read("keys").await.expect("readable");
        assert!(empty.files.is_none() && empty.wishes == Wishes::default());
        let first = files(&[("epoch-1", "one"), ("current", "1")]);
        store.write("keys", &empty, &first, Some("{}")).await.expect("written");
        let read = store.read("keys").await.expect("readable");
        assert_eq!(read.files.as_ref(), Some(&first));
        assert_eq!(read.ages.as_deref(), Some("{}"));
        let second = files(&[("epoch-2", "two"), ("current", "2")]);
        store.write("keys", &read, &second, None).await.expect("written");
        state.write("rotate", b"today\n").expect("written");
        let excluded = b"node-a, node-b,\n";
        state.write("excluded-nodes", excluded).expect("written");
        let read = store.read("keys").await.expect("readable");
        assert_eq!(read.files, Some(second));
        assert_eq!(read.wishes.rotate.as_deref(), Some("today"));
        let excluded = ["node-a", "node-b"].map(str::to_owned);
        assert_eq!(read.wishes.excluded, excluded.into());
        std::fs::remove_dir_all(path).expect("removed");
    }

    #[test]
    fn a_secret_without_our_label_is_an_admins() {
        let secret = |labels: Value| -> Secret {
            serde_json::from_value(json!({
                "metadata": {"name": "x", "resourceVersion": "7", "labels": labels},
                "data": {"tls.crt": "YQ=="},
            }))
            .expect("a Secret")
        };
        let ours = kept(secret(json!({OWNER.0: OWNER.1})));
        assert!(!ours.supplied);
        assert_eq!(ours.files.expect("data").get("tls.crt"), Some(b"a".as_slice()));
        assert!(kept(secret(json!({}))).supplied);
    }
}
