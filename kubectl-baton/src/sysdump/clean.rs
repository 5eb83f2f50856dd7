//! What of an object goes into a dump: by lists of what is kept, so that what nobody thought of is
//! left out. Pure.
//!
//! Annotations hold whole manifests (`last-applied-configuration`), the environment and the
//! arguments of containers hold passwords, and so may what they said last: none of them is kept,
//! but for Baton's own containers' arguments and last words.

use crate::cluster::Kind;
use baton_api::printable;
use serde_json::{Map, Value, json};

/// Annotations that Baton reads or writes.
const ANNOTATIONS: [&str; 2] = ["baton.dev/", "controller.kubernetes.io/"];
/// What is kept of `metadata`.
const METADATA: [&str; 10] = [
    "name",
    "namespace",
    "uid",
    "generation",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "labels",
    "ownerReferences",
    "finalizers",
];
/// What is kept of a Pod's `spec`.
const POD_SPEC: [&str; 9] = [
    "nodeName",
    "hostNetwork",
    "hostPID",
    "runtimeClassName",
    "terminationGracePeriodSeconds",
    "serviceAccountName",
    "priorityClassName",
    "nodeSelector",
    "readinessGates",
];
/// What is kept of a container.
const CONTAINER: [&str; 9] = [
    "name",
    "image",
    "ports",
    "resources",
    "readinessProbe",
    "livenessProbe",
    "startupProbe",
    "securityContext",
    "imagePullPolicy",
];

fn kept(value: &Value, keys: &[&str]) -> Map<String, Value> {
    let there = keys.iter().filter_map(|key| Some(((*key).to_owned(), value.get(key)?.clone())));
    there.collect()
}

fn metadata(value: &Value) -> Value {
    let mut metadata = kept(value, &METADATA);
    if let Some(annotations) = value.get("annotations").and_then(Value::as_object) {
        metadata.insert("annotations".to_owned(), of_baton(annotations).into());
    }
    metadata.into()
}

fn of_baton(annotations: &Map<String, Value>) -> Map<String, Value> {
    let is = |name: &String| ANNOTATIONS.iter().any(|prefix| name.starts_with(prefix));
    let all = annotations.iter();
    all.filter(|(name, _)| is(name)).map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// A policy's `spec` without what it writes into the annotations of its Service.
fn policy_spec(spec: &Value) -> Value {
    let mut spec = spec.clone();
    if let Some(annotations) =
        spec.pointer_mut("/frontend/service/annotations").and_then(Value::as_object_mut)
    {
        *annotations = of_baton(annotations);
    }
    spec
}

/// A Pod's `status` without what its containers wrote as they ended.
fn pod_status(status: &Value, ours: bool) -> Value {
    let mut status = status.clone();
    if ours {
        return status;
    }
    for list in ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"] {
        let containers = status.get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            for state in ["/state/terminated", "/lastState/terminated"] {
                let ended = container.pointer_mut(state).and_then(Value::as_object_mut);
                ended.and_then(|ended| ended.remove("message"));
            }
        }
    }
    status
}

/// Probes may carry headers, commands and queries with passwords in them.
fn probe(probe: &Value) -> Value {
    let mut probe = probe.clone();
    if let Some(fields) = probe.as_object_mut() {
        fields.remove("exec");
        if let Some(get) = fields.get_mut("httpGet").and_then(Value::as_object_mut) {
            get.remove("httpHeaders");
            if let Some(Value::String(path)) = get.get_mut("path") {
                let end = path.find('?').unwrap_or(path.len());
                path.truncate(end);
            }
        }
    }
    probe
}

fn pod_spec(spec: &Value, ours: bool) -> Value {
    let mut clean = kept(spec, &POD_SPEC);
    for list in ["initContainers", "containers"] {
        let Some(containers) = spec.get(list).and_then(Value::as_array) else {
            continue;
        };
        let containers: Vec<Value> = containers
            .iter()
            .map(|container| {
                let mut clean = kept(container, &CONTAINER);
                if ours {
                    clean.extend(kept(container, &["args", "command"]));
                }
                for name in ["readinessProbe", "livenessProbe", "startupProbe"] {
                    if let Some(found) = clean.get_mut(name) {
                        *found = probe(found);
                    }
                }
                clean.into()
            })
            .collect();
        clean.insert(list.to_owned(), containers.into());
    }
    clean.into()
}

/// What is kept of an object.
pub fn object(kind: Kind, item: &Value, ours: bool) -> Value {
    let mut clean = kept(item, &["apiVersion", "kind"]);
    clean.insert("metadata".to_owned(), metadata(&item["metadata"]));
    match kind {
        Kind::Pods => {
            clean.insert("spec".to_owned(), pod_spec(&item["spec"], ours));
            clean.insert("status".to_owned(), pod_status(&item["status"], ours));
        }
        Kind::Deployments | Kind::DaemonSets => {
            let spec = &item["spec"];
            let mut kept = kept(
                spec,
                &[
                    "replicas",
                    "selector",
                    "strategy",
                    "updateStrategy",
                    "minReadySeconds",
                    "paused",
                ],
            );
            kept.insert(
                "template".to_owned(),
                json!({"spec": pod_spec(&spec["template"]["spec"], ours)}),
            );
            clean.insert("spec".to_owned(), kept.into());
            clean.insert("status".to_owned(), item["status"].clone());
        }
        Kind::Events => {
            clean.extend(kept(
                item,
                &[
                    "eventTime",
                    "series",
                    "reason",
                    "action",
                    "note",
                    "type",
                    "regarding",
                    "related",
                    "reportingController",
                    "deprecatedCount",
                    "deprecatedFirstTimestamp",
                    "deprecatedLastTimestamp",
                ],
            ));
        }
        Kind::EndpointSlices => clean.extend(kept(item, &["addressType", "endpoints", "ports"])),
        Kind::Nodes => {
            clean.insert(
                "spec".to_owned(),
                kept(&item["spec"], &["unschedulable", "taints", "podCIDRs"]).into(),
            );
            let status = kept(
                &item["status"],
                &["conditions", "nodeInfo", "capacity", "allocatable", "addresses"],
            );
            clean.insert("status".to_owned(), status.into());
        }
        // Of these nothing is dumped.
        Kind::Namespaces | Kind::ConfigMaps => {}
        Kind::Policies => {
            clean.insert("spec".to_owned(), policy_spec(&item["spec"]));
            clean.extend(kept(item, &["status"]));
        }
        Kind::Classes | Kind::Services => clean.extend(kept(item, &["spec", "status"])),
    }
    clean.into()
}

/// A log without anything that looks like a private key, or that a terminal obeys. Baton logs none;
/// this is the second lock.
pub fn log(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut inside = false;
    for line in text.lines() {
        if line.contains("-----BEGIN") && line.contains("PRIVATE KEY") {
            inside = true;
            clean.push_str("(a private key was left out)\n");
        }
        if !inside {
            clean.push_str(&printable(line));
            clean.push('\n');
        }
        if line.contains("-----END") {
            inside = false;
        }
    }
    clean
}
