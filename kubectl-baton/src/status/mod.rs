//! `status`: is Baton working, and if not why; per policy, dataplane and node.
//!
//! Owns what is read from the cluster for that. What it means is `judge`'s, how it looks is
//! `render`'s.

mod judge;
mod nodes;
mod render;
mod report;
#[cfg(test)]
mod tests;

pub use judge::judge;
pub use render::render;

use crate::{
    ask::{Dataplanes, Fleet, Response, fleet, optional, part, pods},
    cluster::{Cluster, Kind},
    facts::{Node, Places, Pod, places, typed},
    failure::Failure,
};
use baton_api::StateReply;
use baton_cli::states;
use baton_crds::LoadBalancerPolicy;
use k8s_openapi::api::{core::v1::Node as CoreNode, discovery::v1::EndpointSlice};
use std::collections::BTreeSet;

/// All that `status` looks at.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scene {
    /// Policies are looked at in this namespace; in all if none.
    pub namespace: Option<String>,
    /// Classes and dataplanes.
    pub fleet: Fleet,
    /// What the dataplanes say.
    pub answers: Vec<Response<StateReply>>,
    /// The policies.
    pub policies: Vec<LoadBalancerPolicy>,
    /// The operator's Pods.
    pub operators: Vec<Pod>,
    /// The shims' Pods.
    pub shims: Vec<Pod>,
    /// The nodes, if they may be seen.
    pub nodes: Vec<Node>,
    /// Where the Services' Pods are, if that may be seen.
    pub places: Places,
    /// What may not be seen, or cannot be read.
    pub unseen: Vec<String>,
}

/// Reads what `status` needs.
///
/// # Errors
/// The cluster cannot be asked, or what is needed most may not be seen.
pub async fn look(cluster: &impl Cluster, namespace: Option<&str>) -> Result<Scene, Failure> {
    let mut scene = Scene {
        namespace: namespace.map(str::to_owned),
        fleet: fleet(cluster).await?,
        ..Scene::default()
    };
    if !scene.fleet.installed {
        return Ok(scene);
    }
    scene.unseen.append(&mut scene.fleet.unread);
    match cluster.list(Kind::Policies, namespace, None).await {
        Ok(listed) => scene.policies = typed(&listed.items, &mut scene.unseen),
        Err(Failure::Missing(_)) => {
            scene.fleet.installed = false;
            return Ok(scene);
        }
        Err(failure) => return Err(failure),
    }
    scene.answers = states(&Dataplanes(cluster), &scene.fleet.dataplanes).await;
    workloads(cluster, &mut scene).await?;
    let nodes: Vec<CoreNode> = optional(cluster, Kind::Nodes, None, &mut scene.unseen).await?;
    scene.nodes = nodes.into_iter().map(Node::from).collect();
    let slices: Vec<EndpointSlice> =
        optional(cluster, Kind::EndpointSlices, namespace, &mut scene.unseen).await?;
    scene.places = places(&slices);
    Ok(scene)
}

/// Reads the Pods of the operator and of the shims.
///
/// # Errors
/// They may not be seen.
pub async fn workloads(cluster: &impl Cluster, scene: &mut Scene) -> Result<(), Failure> {
    for home in homes(&scene.fleet) {
        let home = home.as_deref();
        scene.operators.extend(pods(cluster, home, &part("operator"), &mut scene.unseen).await?);
        scene.shims.extend(pods(cluster, home, &part("host-shim"), &mut scene.unseen).await?);
    }
    Ok(())
}

/// The namespaces where Baton's own Pods may be: those of the classes, the one that the user names,
/// or all.
pub fn homes(fleet: &Fleet) -> BTreeSet<Option<String>> {
    let homes: BTreeSet<_> =
        fleet.classes.iter().map(|class| Some(class.spec.namespace.clone())).collect();
    if homes.is_empty() { [fleet.home.clone()].into() } else { homes }
}
