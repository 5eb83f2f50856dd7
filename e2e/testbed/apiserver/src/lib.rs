//! A real Kubernetes API server for tests: kube-apiserver and etcd, of the binary that
//! `e2e/testbed/kubernetes` builds once.
//!
//! Owns: the servers' processes, certificates and data, clients that speak as one ServiceAccount
//! each, and removing all of it. Never touches a cluster that it did not start, and knows nothing
//! of Baton's own resources.
//!
//! Unless they are started, there are no controllers: nobody makes EndpointSlices, default
//! ServiceAccounts or Pod status but the test, and a deleted namespace stays `Terminating`. Tests
//! therefore take a fresh namespace each.
//!
//! What holds: each server ends when the test process ends, in whatever way, since it reads the end
//! of its standard input; its folder goes with it, and one that was left behind goes at the next
//! start.
#![forbid(unsafe_code)]

mod access;
mod certificates;
mod folder;
mod identity;
mod process;
mod server;

pub use access::Namespace;
pub use baton_kubernetes::program;
pub use identity::Identity;
pub use process::memory_bytes;
pub use server::ApiServer;

use std::{
    io::{self, Write},
    sync::OnceLock,
};

/// Says something to who runs the tests, past the capture of the test harness.
pub(crate) fn say(what: &str) {
    // Nobody reads a closed standard error; that must not fail a test.
    let _ = writeln!(io::stderr(), "baton-apiserver: {what}");
}

/// The server that all tests of this process share, started at the first call.
///
/// `None` on a machine without Go, which is said on standard error; the test then has nothing to
/// run against.
///
/// # Panics
/// If the server does not start, and under `CI=true` also if there is no Go: a run that proves
/// nothing must not pass.
pub fn shared() -> Option<&'static ApiServer> {
    static SHARED: OnceLock<Option<ApiServer>> = OnceLock::new();
    SHARED.get_or_init(start_or_say).as_ref()
}

/// A server of the caller's own, for tests that stop it or make it forget; as [`shared`] otherwise.
///
/// # Panics
/// As [`shared`].
#[must_use]
pub fn own() -> Option<ApiServer> {
    start_or_say()
}

fn start_or_say() -> Option<ApiServer> {
    if !baton_kubernetes::can_be_had() {
        let what = "NOT TESTED against a real API server: this machine has no Go 1.26 or newer (`make setup` installs it)";
        assert!(
            !std::env::var("CI").is_ok_and(|ci| ci == "true"),
            "{what}; under CI=true that is a failure"
        );
        say(what);
        return None;
    }
    let server = ApiServer::start();
    Some(server.unwrap_or_else(|e| panic!("the API server does not start: {e:#}")))
}
