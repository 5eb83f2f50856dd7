//! Follows policies, Services, EndpointSlices and the Pods of this node, and tells which Pods shall
//! have the adopter.
//!
//! Owns the watches and nothing else; what goes wrong with them costs nothing that is attached.
//! Reads four kinds and writes none.

use super::{
    objects::{self, DaemonSet, EndpointSlice, Policy, Service},
    wanted::{Change, Key, ListenerReport, World},
};
use anyhow::Context;
use futures_util::StreamExt;
use hyper::Request;
use kube::{
    Api, Client, Resource,
    config::{AuthInfo, Config, KubeConfigOptions, Kubeconfig},
    core::response::reason,
    runtime::{
        WatchStreamExt,
        watcher::{self, Event, watcher},
    },
};
use serde::de::DeserializeOwned;
use std::{collections::HashSet, fmt::Debug, path::Path, pin::pin, time::Duration};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::timeout,
};
use tracing::{debug, info, warn};

/// Objects in one page of a list.
const PAGE: u32 = 500;
/// Changes that may wait for the fold, which takes microseconds for each; more make the watches
/// wait.
const WAITING_MAX: usize = 1024;
/// An API server that does not answer is asked again, not waited for.
const CONNECT: Duration = Duration::from_secs(5);

/// The answer on which an end waits; a kubelet waits some seconds.
const ASK: Duration = Duration::from_secs(3);

/// What the watches are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Policies,
    Services,
    Slices,
    Pods,
}

/// So many kinds are listed before anything is told.
const KINDS: usize = 4;

/// What the watches tell the fold.
enum News {
    Change(Change),
    /// All objects of that kind are known.
    Listed(Kind),
}

/// Which Pods shall have the adopter; `None` before all kinds were listed once.
pub type Wanted = watch::Receiver<Option<ListenerReport>>;

/// Clients of one API server.
pub struct Clients {
    /// With this process's rights.
    pub own: Client,
    /// Of nobody that it knows.
    nobody: Client,
}

/// Clients of the API server: that of the Pod's ServiceAccount, or of a file.
///
/// # Errors
/// The file, or the ServiceAccount's, cannot be used.
pub async fn clients(kubeconfig: Option<&Path>) -> anyhow::Result<Clients> {
    let mut config = match kubeconfig {
        Some(file) => {
            let read = Kubeconfig::read_from(file);
            let read = read.with_context(|| format!("discovery.kubeconfig {}", file.display()))?;
            Config::from_custom_kubeconfig(read, &KubeConfigOptions::default())
                .await
                .with_context(|| format!("discovery.kubeconfig {}", file.display()))?
        }
        None => Config::infer().await.context(
            "discovery: no API server is known: run in a Pod with a ServiceAccount, or give discovery.kubeconfig",
        )?,
    };
    config.connect_timeout = Some(CONNECT);
    let mut nobody = config.clone();
    nobody.auth_info = AuthInfo::default();
    let client = |config| {
        Client::try_from(config).context("discovery: no client of the API server can be made")
    };
    Ok(Clients { own: client(config)?, nobody: client(nobody)? })
}

/// Whether the DaemonSet that this process is of is gone, or going: then what was attached is
/// nobody's any more. An API server that cannot be asked says nothing; one that does not know this
/// process any more says that its rights went with the rest, once it is ready: before it has read
/// all roles and accounts, it refuses everybody.
pub async fn is_removed(clients: &Clients, namespace: &str, name: &str) -> bool {
    let asked = ask_of_removal(clients, namespace, name);
    timeout(ASK, asked).await.unwrap_or(false)
}

async fn ask_of_removal(clients: &Clients, namespace: &str, name: &str) -> bool {
    let sets = Api::<DaemonSet>::namespaced(clients.own.clone(), namespace);
    let mut was_ready = false;
    loop {
        match sets.get(name).await {
            Ok(set) => return set.metadata.deletion_timestamp.is_some(),
            // In the API server's own words: what is in between may know no such page.
            Err(kube::Error::Api(status)) if status.code == 404 => {
                return status.reason == reason::NOT_FOUND;
            }
            Err(kube::Error::Api(status)) if is_refusal(status.code) => {
                if was_ready {
                    return true;
                }
                was_ready = is_ready(clients).await;
                if !was_ready {
                    return false;
                }
            }
            Err(_) => return false,
        }
    }
}

fn is_refusal(code: u16) -> bool {
    matches!(code, 401 | 403)
}

/// Whether the API server knows all that it decides by. It says so to everybody, once it does; but
/// where nobody may ask who has no account there (`--anonymous-auth=false`), what it says to this
/// process is all that there is to go by.
async fn is_ready(clients: &Clients) -> bool {
    match ready(&clients.own).await {
        Err(kube::Error::Api(status)) if status.code == 401 => match ready(&clients.nobody).await {
            Err(kube::Error::Api(status)) => status.code == 401,
            other => other.is_ok(),
        },
        other => other.is_ok(),
    }
}

async fn ready(client: &Client) -> kube::Result<String> {
    let request = Request::get("/readyz").body(Vec::new());
    let request = request.map_err(kube::Error::HttpError)?;
    client.request_text(request).await
}

/// Starts following; all ends when the set is dropped.
pub fn follow(client: &Client, node: &str, tasks: &mut JoinSet<()>) -> Wanted {
    let (tell, told) = mpsc::channel(WAITING_MAX);
    let all = watcher::Config::default().page_size(PAGE);
    let here = all.clone().fields(&format!("spec.nodeName={node}"));
    let (api, t) = (Api::<Policy>::all(client.clone()), tell.clone());
    let policy = |key, o: Option<&Policy>| Change::Policy(key, o.map(Policy::fold));
    tasks.spawn(watch(api, all.clone(), Kind::Policies, t, policy));
    let (api, t) = (Api::<Service>::all(client.clone()), tell.clone());
    let service = |key, o: Option<&Service>| Change::Service(key, o.map(Service::selector));
    tasks.spawn(watch(api, all.clone(), Kind::Services, t, service));
    let (api, t) = (Api::<EndpointSlice>::all(client.clone()), tell.clone());
    let node = node.to_owned();
    let slice = move |key, o: Option<&EndpointSlice>| {
        Change::Slice(key, o.and_then(|slice| slice.fold(&node)))
    };
    let by_others = all.labels(objects::BY_OTHERS);
    tasks.spawn(watch(api, by_others, Kind::Slices, t, slice));
    let api = Api::<objects::Pod>::all(client.clone());
    let pod = |key, o: Option<&objects::Pod>| Change::Pod(key, o.map(objects::Pod::fold));
    tasks.spawn(watch(api, here, Kind::Pods, tell, pod));
    let (publish, wanted) = watch::channel(None);
    tasks.spawn(fold(told, publish));
    wanted
}

/// Folds what is told, and publishes the outcome whenever nothing more waits.
async fn fold(mut told: mpsc::Receiver<News>, publish: watch::Sender<Option<ListenerReport>>) {
    let mut world = World::default();
    let mut listed = HashSet::new();
    while let Some(first) = told.recv().await {
        let mut news = false;
        let mut next = Some(first);
        while let Some(told_now) = next {
            news |= match told_now {
                News::Change(change) => world.apply(change),
                News::Listed(kind) => listed.insert(kind),
            };
            next = told.try_recv().ok();
        }
        if news && listed.len() == KINDS {
            publish.send_if_modified(|current| {
                let now = Some(world.told());
                let changed = *current != now;
                *current = now;
                changed
            });
        }
    }
}

/// Follows one kind for ever. Objects that went while the watch was down are told when a new list
/// is complete.
async fn watch<K>(
    api: Api<K>,
    config: watcher::Config,
    kind: Kind,
    tell: mpsc::Sender<News>,
    change: impl Fn(Key, Option<&K>) -> Change,
) where
    K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let mut known: HashSet<Key> = HashSet::new();
    let mut listing: Option<HashSet<Key>> = None;
    loop {
        let mut events = pin!(watcher(api.clone(), config.clone()).default_backoff());
        while let Some(event) = events.next().await {
            let mut changes = Vec::new();
            let mut complete = false;
            match event {
                Ok(Event::Init) => listing = Some(HashSet::new()),
                Ok(Event::InitApply(object)) | Ok(Event::Apply(object)) => {
                    let key = objects::key(object.meta());
                    known.insert(key.clone());
                    if let Some(listing) = &mut listing {
                        listing.insert(key.clone());
                    }
                    changes.push(change(key, Some(&object)));
                }
                Ok(Event::InitDone) => {
                    if let Some(listing) = listing.take() {
                        let gone = known.extract_if(|key| !listing.contains(key));
                        changes.extend(gone.map(|key| change(key, None)));
                    }
                    complete = true;
                }
                Ok(Event::Delete(object)) => {
                    let key = objects::key(object.meta());
                    known.remove(&key);
                    changes.push(change(key, None));
                }
                Err(error) => {
                    warn!(?kind, %error, "discovery: watching failed; what is attached stays, and it is tried again");
                    if is_expired(&error) {
                        debug!(?kind, "discovery: the watch begins anew");
                        break;
                    }
                }
            }
            for change in changes {
                if tell.send(News::Change(change)).await.is_err() {
                    return;
                }
            }
            if complete {
                info!(?kind, objects = known.len(), "discovery: all are known");
                if tell.send(News::Listed(kind)).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// The watcher would ask again and again for a version that the API server does not have any more.
fn is_expired(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::WatchStartFailed(kube::Error::Api(status)) if status.code == 410)
}

#[cfg(test)]
mod tests;
