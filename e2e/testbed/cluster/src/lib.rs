//! A real Kubernetes cluster on one machine, for tests: etcd, the control plane, and nodes with
//! kubelet, containerd, runc, kube-proxy and a bridge CNI that run real Pods. No Docker, no
//! registry.
//!
//! Owns: getting the parts (Kubernetes built once from `e2e/testbed/kubernetes`, containerd and
//! others from Debian packages that are unpacked but never installed, Helm), the nodes' namespaces,
//! their network, their cgroups, and removing all of it on drop and, after a crash, at the next
//! start. Knows nothing of Baton: suites take a kubeconfig and run against any cluster.
//!
//! What holds: nothing of the machine is changed for good. A node lives in network, mount, PID, UTS
//! and IPC namespaces of its own, whose first process ends when the owner's pipe closes, so a
//! SIGKILL of the owner ends the nodes too. The sysctls that a kubelet wants to set for the whole
//! machine are files of the node's.
//!
//! Needs root. Tried with cgroup version 1 and Debian 12.
#![forbid(unsafe_code)]

mod binaries;
mod certificates;
mod cgroup;
mod cluster;
mod command;
mod config;
mod debian;
mod images;
mod node;
mod process;
mod slot;

pub use binaries::{Binaries, helm};
pub use cluster::{Cluster, Options};
pub use config::ProxyMode;
pub use images::{CLIENT_IMAGE, SERVER_IMAGE, client_image, server_image};
pub use node::Node;
pub use slot::{SLOTS, clean, folders};

use std::{
    io::{self, Write},
    time::Instant,
};

/// Says something to who runs the tests, past the capture of the test harness.
pub(crate) fn say(what: &str) {
    // Nobody reads a closed standard error; that must not fail a test.
    let _ = writeln!(io::stderr(), "baton-cluster: {what}");
}

/// Says that something is done, and how long it took.
pub(crate) fn say_since(start: Instant, what: &str) {
    say(&format!("{what} ({:.1} s)", start.elapsed().as_secs_f64()));
}
