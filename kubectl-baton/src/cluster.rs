//! What the commands need of a cluster, and nothing more: the one seam between judging and I/O.
//!
//! Owns the kinds that may be read. Secrets are not among them, so no command can show one.

use crate::failure::Failure;
use baton_api::ControlAddress;
use serde_json::Value;
use std::{
    io::{self, ErrorKind, Write},
    time::Duration,
};
use tokio::sync::watch;

/// 100,000 flows of about 300 bytes, the most that a dataplane tells.
const STDOUT_MAX_BYTES: usize = 64 << 20;

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
    /// `DaemonSet`, of Baton.
    DaemonSets,
    /// `Event`, about what is Baton's.
    Events,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Policies,
        Self::Classes,
        Self::Services,
        Self::EndpointSlices,
        Self::Pods,
        Self::Nodes,
        Self::Deployments,
        Self::DaemonSets,
        Self::Events,
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
            Self::Classes => (
                baton_crds::GROUP,
                baton_crds::VERSION,
                "BatonDataplane",
                "batondataplanes",
            ),
            Self::Services => ("", "v1", "Service", "services"),
            Self::EndpointSlices => ("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices"),
            Self::Pods => ("", "v1", "Pod", "pods"),
            Self::Nodes => ("", "v1", "Node", "nodes"),
            Self::Deployments => ("apps", "v1", "Deployment", "deployments"),
            Self::DaemonSets => ("apps", "v1", "DaemonSet", "daemonsets"),
            Self::Events => ("events.k8s.io", "v1", "Event", "events"),
        }
    }

    /// As RBAC rules and `kubectl get` name it.
    pub fn resource(self) -> String {
        let (group, _, _, plural) = self.names();
        if group.is_empty() {
            plural.to_owned()
        } else {
            format!("{plural}.{group}")
        }
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

/// What a command in a Pod came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecOutput {
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error.
    pub stderr: String,
    /// Its exit code.
    pub code: i32,
}

/// How a command goes on.
#[derive(Clone, Debug, Default)]
pub struct ExecOptions {
    /// How long it takes by itself at most.
    pub limit: Duration,
    /// How often the user has asked for its end, if it listens for that on its standard input: once has it end in order, twice
    /// at once.
    pub stop: Option<watch::Receiver<u32>>,
}

/// Output that waits, of a bounded size.
#[derive(Debug)]
pub struct Bounded {
    /// What came.
    pub bytes: Vec<u8>,
    most: usize,
    too_much: &'static str,
}

impl Bounded {
    /// For at most so many bytes; and what to say when there are more.
    pub fn new(most: usize, too_much: &'static str) -> Self {
        Self {
            bytes: Vec::new(),
            most,
            too_much,
        }
    }
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.most {
            return Err(io::Error::new(ErrorKind::FileTooLarge, self.too_much));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A cluster.
pub trait Cluster {
    /// The namespace of the kubeconfig's context.
    fn namespace(&self) -> &str;

    /// Where dataplanes take commands within their Pods.
    fn control(&self) -> ControlAddress;

    /// The objects of a kind in a namespace, or in all, with these labels if any are given (`a=b,c=d`).
    async fn list(
        &self,
        kind: Kind,
        namespace: Option<&str>,
        labels: Option<&str>,
    ) -> Result<Listed, Failure>;

    /// Runs a command in a container and waits for its end.
    async fn exec(
        &self,
        pod: &PodName,
        container: &str,
        command: &[String],
    ) -> Result<ExecOutput, Failure> {
        let mut out = Bounded::new(STDOUT_MAX_BYTES, "it is more than 64 MiB");
        let options = ExecOptions::default();
        let ran = self.exec_into(pod, container, command, options, &mut out);
        let ran = ran.await?;
        Ok(ExecOutput {
            stdout: out.bytes,
            ..ran
        })
    }

    /// Runs a command and writes its standard output to `out` as it comes; what is given back has none.
    async fn exec_into(
        &self,
        pod: &PodName,
        container: &str,
        command: &[String],
        options: ExecOptions,
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
    fn what_waits_is_bounded() {
        let mut waiting = Bounded::new(3, "too much");
        assert!(waiting.write_all(b"ab").is_ok());
        assert!(waiting.write_all(b"c").is_ok());
        let error = waiting.write_all(b"d").expect_err("full").to_string();
        assert_eq!((error.as_str(), &*waiting.bytes), ("too much", &b"abc"[..]));
    }

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
