//! What the commands need of a cluster, and nothing more: the one seam between judging and I/O.
//!
//! Owns the kinds that may be read. Secrets are not among them, so no command can show one.

use crate::failure::Failure;
use baton_api::ControlAddress;
use baton_cli::Stop;
use serde_json::Value;
use std::{io::Write, time::Duration};

/// The kinds that this program reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// `LoadBalancerPolicy`.
    Policies,
    /// `BatonDataplane`.
    Classes,
    /// `Service`.
    Services,
    /// `EndpointSlice`.
    EndpointSlices,
    /// `Pod`.
    Pods,
    /// `Node`.
    Nodes,
    /// `Deployment`, of Baton.
    Deployments,
    /// `DaemonSet`, of Baton and of the network.
    DaemonSets,
    /// `Event`, about what is Baton's.
    Events,
    /// `Namespace`.
    Namespaces,
    /// `ConfigMap`, of the network's parts; read by name only.
    ConfigMaps,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Policies,
        Self::Classes,
        Self::Services,
        Self::EndpointSlices,
        Self::Pods,
        Self::Nodes,
        Self::Deployments,
        Self::DaemonSets,
        Self::Events,
        Self::Namespaces,
        Self::ConfigMaps,
    ];

    /// Group, version, kind and plural.
    pub const fn names(self) -> (&'static str, &'static str, &'static str, &'static str) {
        match self {
            Self::Policies => (
                baton_crds::GROUP,
                baton_crds::VERSION,
                "LoadBalancerPolicy",
                "loadbalancerpolicies",
            ),
            Self::Classes => {
                (baton_crds::GROUP, baton_crds::VERSION, "BatonDataplane", "batondataplanes")
            }
            Self::Services => ("", "v1", "Service", "services"),
            Self::EndpointSlices => ("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices"),
            Self::Pods => ("", "v1", "Pod", "pods"),
            Self::Nodes => ("", "v1", "Node", "nodes"),
            Self::Deployments => ("apps", "v1", "Deployment", "deployments"),
            Self::DaemonSets => ("apps", "v1", "DaemonSet", "daemonsets"),
            Self::Events => ("events.k8s.io", "v1", "Event", "events"),
            Self::Namespaces => ("", "v1", "Namespace", "namespaces"),
            Self::ConfigMaps => ("", "v1", "ConfigMap", "configmaps"),
        }
    }

    /// As RBAC rules and `kubectl get` name it.
    pub fn resource(self) -> String {
        let (group, _, _, plural) = self.names();
        if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") }
    }
}

/// A Pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl std::fmt::Display for PodName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Objects of one kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Listed {
    /// As the API server gave them, with `apiVersion` and `kind`.
    pub items: Vec<Value>,
    /// There are more than this program reads.
    pub truncated: bool,
}

/// What a command in a Pod came to, next to its standard output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecOutput {
    /// Its standard error.
    pub stderr: String,
    /// Its exit code.
    pub code: i32,
}

/// A change of an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Edit {
    /// It is made.
    Create(Value),
    /// A merge patch of it (RFC 7396).
    Merge(Value),
    /// It goes; one that is not there is no failure.
    Delete,
}

/// A cluster.
pub trait Cluster {
    /// The namespace of the kubeconfig's context.
    fn namespace(&self) -> &str;

    /// The namespace of Baton's own Pods, if the user names it.
    fn home(&self) -> Option<&str>;

    /// Where dataplanes take commands within their Pods.
    fn control(&self) -> ControlAddress;

    /// The options by which the user chose this cluster, as he would type them again, each with a
    /// blank in front: a command that he is told to run next is for the same one.
    fn options(&self) -> &str;

    /// The objects of a kind in a namespace, or in all, with these labels if any are given
    /// (`a=b,c=d`).
    async fn list(
        &self,
        kind: Kind,
        namespace: Option<&str>,
        labels: Option<&str>,
    ) -> Result<Listed, Failure>;

    /// The object of this name; none if it is not there.
    async fn get(&self, kind: Kind, namespace: &str, name: &str) -> Result<Option<Value>, Failure>;

    /// Changes an object.
    async fn write(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        edit: Edit,
    ) -> Result<(), Failure>;

    /// Runs a command in a container, and writes its standard output to `out` as it comes. It takes
    /// `limit` by itself at most; once `stop` says so it is told on its standard input to end in
    /// order, and with twice it is left.
    async fn exec_into(
        &self,
        pod: &PodName,
        container: &str,
        command: &[String],
        limit: Duration,
        stop: Option<Stop>,
        out: &mut dyn Write,
    ) -> Result<ExecOutput, Failure>;

    /// The end of a container's log, or of the log of the one before it.
    async fn log(&self, pod: &PodName, container: &str, previous: bool) -> Result<String, Failure>;

    /// The API server's version.
    async fn version(&self) -> Result<String, Failure>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_secret_can_be_asked_for() {
        for kind in Kind::ALL {
            let (group, _, kind_name, plural) = kind.names();
            assert!(
                !kind_name.contains("Secret") && !plural.contains("secret"),
                "{group}/{kind_name}"
            );
        }
        assert_eq!(Kind::Policies.resource(), "loadbalancerpolicies.baton.dev");
        assert_eq!(Kind::Pods.resource(), "pods");
    }
}
