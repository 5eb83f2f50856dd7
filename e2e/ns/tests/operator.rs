//! The whole chain without a cluster: manifests, operator, mutual TLS, dataplane and shim, live
//! connections.
//!
//! What an admin or a controller does is an edit of a manifest; what must not happen is an error at
//! any client.

use crate::{more, no_error};
use anyhow::{Context, Result, ensure};
use baton_api::{BackendState, PolicyState, State};
use baton_lab::{
    Dataplane, HttpEcho, Lab, Load, LoadOptions, NginxOptions, Operator, Options, Server, Shim,
};
use baton_ns::until;
use serde_json::Value;
use std::{fs, path::Path, sync::atomic::Ordering};

/// The demo's manifests: four pods with nginx and redis, a policy for each.
const MANIFESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../demo/manifests");
const WEB: &str = "shop/web/http";
const CONNECTIONS: usize = 32;

/// Fields end in the order in which they are declared: the lab last.
pub(crate) struct Chain {
    pub(crate) dataplane: Dataplane,
    _shim: Shim,
    pub(crate) operator: Operator,
    nginx: Vec<Server>,
    pub(crate) lab: Lab,
}

impl Chain {
    pub(crate) fn start(name: &str) -> Result<Self> {
        let lab = Lab::new(name, &Options::default())?;
        let web = NginxOptions::default();
        let nginx = lab.in_each_pod(|pod| pod.nginx(&web))?;
        let operator = lab.operator(Path::new(MANIFESTS))?;
        // The pods of these tests have no redis.
        operator.edit("redis.yaml", "    mode: Always\n", "    mode: DrainOnly\n")?;
        operator.edit("web.yaml", "    mode: Never\n", "    mode: WhenBetter\n")?;
        let shim = lab.shim(&lab.operated_shim(&operator)?)?;
        let config = lab.operated_dataplane(&operator)?;
        lab.reserve_ports(&config)?;
        let dataplane = lab.dataplane(&config)?;
        let chain = Self { dataplane, _shim: shim, operator, nginx, lab };
        until("adoptable", || {
            let web = chain.web()?;
            let waiting = web.backends.iter().find(|b| !b.adoptability.is_ready());
            ensure!(waiting.is_none(), "{waiting:?}");
            Ok(())
        })?;
        Ok(chain)
    }

    pub(crate) fn load(&self) -> Result<Load<HttpEcho>> {
        let options = LoadOptions::of(self.dataplane.address(80), CONNECTIONS, None);
        let load = HttpEcho::start(self.lab.client().namespace(), options)?;
        more(&load, 1_000)?;
        Ok(load)
    }

    fn web(&self) -> Result<PolicyState> {
        let state: State = self.dataplane.state()?;
        let web = state.policies.into_iter().find(|p| p.name == WEB);
        web.context("the policy is not served")
    }

    pub(crate) fn backend(&self, name: &str) -> Result<Option<BackendState>> {
        Ok(self.web()?.backends.into_iter().find(|b| b.name == name))
    }

    pub(crate) fn snapshot(&self) -> Result<Value> {
        self.dataplane.control_get("/v1/snapshot")
    }

    /// Changes what the EndpointSlice says of a pod.
    pub(crate) fn endpoint(&self, pod: usize, from: &str, to: &str) -> Result<()> {
        let letter = char::from(b'a' + pod as u8);
        let place = |words: &str| {
            format!(
                "targetRef: {{kind: Pod, name: pod-{letter}, namespace: shop}}\n    conditions: {{{words}}}"
            )
        };
        self.operator.edit("web.yaml", &place(from), &place(to))
    }

    /// Nobody's connection ended and no answer was wrong.
    pub(crate) fn unharmed(&self, load: Load<HttpEcho>) -> Result<()> {
        more(&load, 1_000)?;
        let (report, _) = load.stop()?;
        no_error(&report, None)?;
        let web = self.web()?;
        ensure!(web.lost_total.is_empty(), "{:?}", web.lost_total);
        Ok(())
    }
}

pub(crate) const READY: &str = "ready: true, serving: true, terminating: false";

#[test]
fn pods_terminate_flap_and_go_without_an_error() -> Result<()> {
    let mut chain = Chain::start("chain")?;
    let load = chain.load()?;

    // A pod that terminates drains at once.
    let leaving = "ready: false, serving: true, terminating: true";
    chain.endpoint(0, READY, leaving)?;
    until("pod-a drained", || {
        let pod = chain.backend("pod-a")?.context("pod-a")?;
        ensure!(pod.draining && pod.flows == 0, "{pod:?}");
        Ok(())
    })?;
    more(&load, 500)?;

    // A readiness flap takes new flows away, not those that are there: they have no reason to go.
    let unready = "ready: false, serving: false, terminating: false";
    let before = chain.backend("pod-b")?.context("pod-b")?;
    chain.endpoint(1, READY, unready)?;
    until("pod-b not ready", || {
        let pod = chain.backend("pod-b")?.context("a flap removes no pod")?;
        ensure!(pod.weight == 0 && !pod.draining, "{pod:?}");
        Ok(())
    })?;
    more(&load, 500)?;
    chain.endpoint(1, unready, READY)?;
    until("pod-b ready again", || {
        let pod = chain.backend("pod-b")?.context("pod-b")?;
        ensure!(pod.weight == before.weight, "{pod:?}");
        Ok(())
    })?;

    // Deleted with grace 0: the process is gone before anybody says so, and then the endpoint is.
    chain.nginx[2].process.crash()?;
    more(&load, 500)?;
    let web = fs::read_to_string(chain.operator.manifests().join("web.yaml"))?;
    let start = web.find("  - addresses: [10.77.3.2]").context("pod-c")?;
    let end = web.find("  - addresses: [10.77.4.2]").context("pod-d")?;
    let without = format!("{}{}", &web[..start], &web[end..]);
    chain.operator.write("web.yaml", &without)?;
    until("pod-c gone", || {
        ensure!(chain.backend("pod-c")?.is_none());
        Ok(())
    })?;
    ensure!(chain.web()?.rescues_total > 0, "nobody was rescued");
    let status = chain.operator.state().join("status");
    let files: Vec<_> = fs::read_dir(&status)?.flatten().collect();
    ensure!(!files.is_empty(), "no statuses in {}", status.display());
    chain.unharmed(load)
}

#[test]
fn bad_manifests_and_a_killed_operator_change_nothing() -> Result<()> {
    let mut chain = Chain::start("chain2")?;
    let load = chain.load()?;

    // What is wrong is said with file, line and field; what was good stays.
    let before = chain.snapshot()?;
    let good = fs::read_to_string(chain.operator.manifests().join("web.yaml"))?;
    chain.operator.edit("web.yaml", "      port: 80\n", "      port: 99999\n")?;
    until("refused", || {
        let words = chain.operator.process.stderr();
        for part in ["web.yaml:", "spec.listeners[0].port", "99999"] {
            ensure!(words.contains(part), "`{part}` is not in {words}");
        }
        Ok(())
    })?;
    more(&load, 500)?;
    ensure!(chain.snapshot()? == before, "a bad manifest changed the snapshot");
    chain.operator.write("web.yaml", &good)?;

    // Killed and started again: nothing but the process is new.
    chain.operator.process.kill()?;
    more(&load, 500)?;
    ensure!(chain.snapshot()? == before, "the snapshot went with the operator");
    let manifests = chain.operator.manifests().to_owned();
    chain.operator = chain.lab.operator_again(&manifests)?;
    until("reported again", || {
        let words = chain.operator.control_text("/metrics")?;
        let synced = words.lines().any(|l| l.contains("dataplanes_in_sync") && l.ends_with(" 1"));
        ensure!(synced, "{words}");
        Ok(())
    })?;
    ensure!(chain.snapshot()? == before, "a restart changed the snapshot");

    // And what changes after that arrives.
    chain.endpoint(3, READY, "ready: false, serving: true, terminating: true")?;
    until("pod-d drained", || {
        let pod = chain.backend("pod-d")?.context("pod-d")?;
        ensure!(pod.draining && pod.flows == 0, "{pod:?}");
        Ok(())
    })?;
    chain.unharmed(load)
}

#[test]
fn keys_are_rotated_under_load() -> Result<()> {
    let chain = Chain::start("chain3")?;
    chain.operator.edit(
        "web.yaml",
        "    mode: WhenBetter\n",
        "    mode: Always\n    cooldown: 0s\n",
    )?;
    let load = chain.load()?;
    let signing = || -> Result<u64> {
        let state = chain.dataplane.control_get("/v1/state")?;
        state["signingEpoch"].as_u64().context("signingEpoch")
    };
    let first = signing()?;
    fs::write(chain.operator.state().join("rotate"), "once more\n")?;
    until("signed with another key", || {
        let now = signing()?;
        ensure!(now != first, "still {first}");
        Ok(())
    })?;
    // Connections move with the new key.
    let moved = chain.web()?.migrations_total;
    more(&load, 1_000)?;
    let now = chain.web()?;
    ensure!(now.migrations_total >= moved + 500, "{} moves", now.migrations_total - moved);
    ensure!(load.progress().errors.load(Ordering::Relaxed) == 0);
    chain.unharmed(load)
}
