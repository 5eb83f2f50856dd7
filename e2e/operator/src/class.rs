//! A class of dataplanes on addresses of loopback: its object, its pods and who listens there.

use crate::{
    OPERATOR, OPERATOR_NAMESPACE,
    admin::Admin,
    cluster::{DEADLINE, pod},
    dataplane::{Arrival, Dataplane},
};
use anyhow::{Context, Result};
use baton_api::Snapshot;
use serde_json::{Value, json};
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::atomic::{AtomicU16, Ordering},
};

/// The node of all dataplanes.
pub const NODE: &str = "node-a";
/// Ports that are tried until one is free at the addresses of all dataplanes of a class.
const PORTS_TRIED: usize = 16;

/// A class. Dropping it closes its dataplanes' ports; its objects stay.
#[derive(Debug)]
pub struct Class {
    name: String,
    /// In order of the names of their pods.
    pub dataplanes: Vec<Dataplane>,
}

impl Class {
    /// Starts so many dataplanes and makes their objects.
    pub async fn start(admin: &Admin, name: &str, count: usize) -> Result<Self> {
        Self::start_as(admin, name, count, &json!({})).await
    }

    /// The same with more fields of the class's spec.
    pub async fn start_as(admin: &Admin, name: &str, count: usize, spec: &Value) -> Result<Self> {
        let dataplanes = listen(count).await?;
        Self::of(admin, name, dataplanes, spec).await
    }

    /// The same of dataplanes that listen already, all at one port.
    pub async fn of(
        admin: &Admin,
        name: &str,
        dataplanes: Vec<Dataplane>,
        spec: &Value,
    ) -> Result<Self> {
        let class = Self { name: name.to_owned(), dataplanes };
        admin.node(NODE).await?;
        for (number, dataplane) in class.dataplanes.iter().enumerate() {
            let mut pod = pod(OPERATOR_NAMESPACE, &class.pod_name(number));
            pod["metadata"]["labels"] = class.pod_labels();
            // Nobody makes this namespace's default ServiceAccount; the operator's does.
            pod["spec"]["serviceAccountName"] = OPERATOR.into();
            let ip = dataplane.address().ip().to_string();
            admin.pod(&pod, NODE, &ip).await?;
        }
        admin.apply(&class.manifest(spec)).await?;
        Ok(class)
    }

    /// The name of a dataplane's pod.
    #[must_use]
    pub fn pod_name(&self, number: usize) -> String {
        format!("{}-{number}", self.name)
    }

    fn pod_labels(&self) -> Value {
        json!({ "dataplanes-of": self.name })
    }

    /// What a policy's `dataplaneSelector` says to have this class.
    #[must_use]
    pub fn selector(&self) -> Value {
        json!({ "matchLabels": { "class": self.name } })
    }

    /// Its object, with more fields of the spec.
    #[must_use]
    pub fn manifest(&self, spec: &Value) -> Value {
        let mut manifest = json!({
            "apiVersion": "baton.dev/v1alpha1",
            "kind": "BatonDataplane",
            "metadata": { "name": self.name, "labels": { "class": self.name } },
            "spec": {
                "namespace": OPERATOR_NAMESPACE,
                "selector": { "matchLabels": self.pod_labels() },
                "controlPort": self.dataplanes[0].address().port(),
                // The control port must not be one of them: it is chosen by the kernel.
                "ports": { "first": 1024, "last": 1151 },
                // Tests write EndpointSlices by hand, mostly of no Pods.
                "allowed": [{ "namespaces": {}, "endpoints": ["10.0.0.0/8"] }],
            },
        });
        for (field, value) in spec.as_object().into_iter().flatten() {
            manifest["spec"][field] = value.clone();
        }
        manifest
    }

    /// A policy of one listener `main` for this class.
    #[must_use]
    pub fn policy(&self, namespace: &str, name: &str, service: &str, port: u16) -> Value {
        let mut policy = crate::objects::policy(namespace, name, service, port);
        policy["spec"]["dataplaneSelector"] = self.selector();
        policy
    }

    /// Waits until each dataplane has a snapshot of which `wanted` holds; gives them in order.
    ///
    /// # Errors
    /// At the deadline, with the operator's log.
    pub async fn served(
        &self,
        admin: &Admin,
        mut wanted: impl FnMut(&Snapshot) -> bool,
    ) -> Result<Vec<Arrival>> {
        let mut arrivals = Vec::new();
        for dataplane in &self.dataplanes {
            let arrival = dataplane.wait(DEADLINE, &mut wanted).await;
            arrivals.push(arrival.with_context(|| admin.log())?);
        }
        Ok(arrivals)
    }
}

/// So many dataplanes at addresses of their own and one port, since a class has one.
async fn listen(count: usize) -> Result<Vec<Dataplane>> {
    static ADDRESSES: AtomicU16 = AtomicU16::new(0);
    let addresses: Vec<IpAddr> = (0..count)
        .map(|_| {
            // 127.1.0.1 and up; never an address's last byte 0 or 255.
            let number = ADDRESSES.fetch_add(1, Ordering::Relaxed);
            let [high, low] = [number / 250, number % 250 + 1].map(|n| n.to_le_bytes()[0]);
            Ipv4Addr::new(127, 1, high, low).into()
        })
        .collect();
    let mut failure = anyhow::anyhow!("a class of no dataplanes");
    for _ in 0..PORTS_TRIED {
        let first = Dataplane::start_plain(SocketAddr::new(addresses[0], 0)).await?;
        let port = first.address().port();
        let mut dataplanes = vec![first];
        for address in &addresses[1..] {
            match Dataplane::start_plain(SocketAddr::new(*address, port)).await {
                Ok(dataplane) => dataplanes.push(dataplane),
                Err(e) => failure = e,
            }
        }
        if dataplanes.len() == count {
            return Ok(dataplanes);
        }
    }
    Err(failure.context("no port is free at all addresses of a class"))
}
