//! `check`: whether Baton can be installed in a cluster, and what will move there, before it is.
//!
//! Owns what is read from the cluster for that. What network it has is `network`'s, what moves at
//! a Service is `services`', what it means for an installation is `judge`'s, how it looks is
//! `render`'s. Runs nothing and changes nothing in the cluster.

mod judge;
mod network;
mod nodes;
mod render;
mod report;
mod services;
#[cfg(test)]
mod tests;

pub use judge::judge;
pub use render::render;

use crate::{
    ask::permitted,
    cluster::{Cluster, Kind},
    facts::typed,
    failure::Failure,
};
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{ConfigMap, Namespace, Node, Pod, Service},
};

/// Where Kubernetes' own parts are.
const SYSTEM: &str = "kube-system";
/// ConfigMaps there that say how nodes lead connections to Services.
const CONFIG_MAPS: [&str; 3] = [CILIUM, "kube-proxy", "kube-proxy-config"];
/// That of Cilium.
const CILIUM: &str = "cilium-config";
/// Label of kube-proxy's Pods that no DaemonSet makes.
const STATIC_PROXY: &str = "component=kube-proxy";

/// All that `check` looks at. What is absent may not be listed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scene {
    /// Services are looked at in this namespace; in all if none.
    pub namespace: Option<String>,
    /// Kubernetes' version, as `v1.36.0`.
    pub version: Option<String>,
    pub nodes: Option<Vec<Node>>,
    pub namespaces: Option<Vec<Namespace>>,
    /// Of all namespaces.
    pub daemon_sets: Option<Vec<DaemonSet>>,
    /// Those of [`CONFIG_MAPS`] that are there.
    pub config_maps: Option<Vec<ConfigMap>>,
    /// Pods of kube-proxy that no DaemonSet makes, where no ConfigMap is its.
    pub proxies: Option<Vec<Pod>>,
    pub services: Option<Vec<Service>>,
    pub pods: Option<Vec<Pod>>,
    /// What may not be seen, or cannot be read.
    pub unseen: Vec<String>,
}

/// Reads what `check` needs.
///
/// # Errors
/// The cluster cannot be asked.
pub async fn look(cluster: &impl Cluster, namespace: Option<&str>) -> Result<Scene, Failure> {
    let mut unseen = Vec::new();
    let version = match cluster.version().await {
        Ok(version) => Some(version),
        Err(failure) if failure.is_for_all() => return Err(failure),
        Err(failure) => {
            unseen.push(failure.to_string());
            None
        }
    };
    let config_maps = config_maps(cluster, &mut unseen).await?;
    let says_nothing = |maps: &Vec<ConfigMap>| maps.iter().all(is_cilium);
    let proxies = match config_maps.as_ref().is_none_or(says_nothing) {
        true => {
            let (system, proxy) = (Some(SYSTEM), Some(STATIC_PROXY));
            permitted(cluster, Kind::Pods, system, proxy, &mut unseen).await?
        }
        false => None,
    };
    Ok(Scene {
        namespace: namespace.map(str::to_owned),
        version,
        nodes: permitted(cluster, Kind::Nodes, None, None, &mut unseen).await?,
        namespaces: permitted(cluster, Kind::Namespaces, None, None, &mut unseen).await?,
        daemon_sets: permitted(cluster, Kind::DaemonSets, None, None, &mut unseen).await?,
        config_maps,
        proxies,
        services: permitted(cluster, Kind::Services, namespace, None, &mut unseen).await?,
        pods: permitted(cluster, Kind::Pods, namespace, None, &mut unseen).await?,
        unseen,
    })
}

/// Those that are there; none if none of them may be read. A right may be for some names only.
async fn config_maps(
    cluster: &impl Cluster,
    unseen: &mut Vec<String>,
) -> Result<Option<Vec<ConfigMap>>, Failure> {
    let mut found = Vec::new();
    let mut refused = Vec::new();
    for name in CONFIG_MAPS {
        match cluster.get(Kind::ConfigMaps, SYSTEM, name).await {
            Ok(object) => found.extend(object),
            Err(failure) if failure.is_for_all() => return Err(failure),
            Err(failure) => refused.push(failure.to_string()),
        }
    }
    let all_refused = refused.len() == CONFIG_MAPS.len();
    // They differ by the name only, which no right needs.
    unseen.extend(refused.into_iter().next());
    if all_refused {
        return Ok(None);
    }
    Ok(Some(typed(&found, unseen)))
}

fn is_cilium(map: &ConfigMap) -> bool {
    map.metadata.name.as_deref() == Some(CILIUM)
}
