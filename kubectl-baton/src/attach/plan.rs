//! What `attach` and `detach` change, from what is there. Pure.
//!
//! Owns the objects, and the refusals that need more than the Service. The order is: what clients
//! do not see first (the Service of the pods, the policy), then, once dataplanes serve it, the one
//! change of the clients' Service.

use super::service::{self, PODS_OF_LABEL, Refusal, kept_by, label};
use crate::args::Attach;
use baton_api::{POLICY_LABEL, SELECTOR_ANNOTATION};
use baton_crds::{LeadsTo, LoadBalancerPolicy};
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Of a Service's name, as Kubernetes has it (RFC 1035).
const NAME_CHARS_MAX: usize = 63;
const PODS_SUFFIX: &str = "-pods";
/// Of a listener's name, as the policy's definition has it. A Service's port may have one of 63.
const LISTENER_CHARS_MAX: usize = 15;

/// What is there.
#[derive(Debug, Default)]
pub struct Scene {
    pub namespace: String,
    pub services: Vec<Service>,
    pub policies: Vec<LoadBalancerPolicy>,
}

/// What `attach` does.
#[derive(Clone, Debug, PartialEq)]
pub struct Attachment {
    /// The Service that clients have.
    pub service: String,
    /// The one for its pods, and whether it is there already.
    pub pods: (Value, bool),
    /// The policy, and whether it is there already.
    pub policy: (Value, bool),
    /// The merge patch of the clients' Service; null where it was made already.
    pub patch: Value,
    /// That Service as a manifest.
    pub manifest: Value,
    /// What a person should know.
    pub notes: Vec<String>,
}

/// What `detach` does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detachment {
    pub service: String,
    pub patch: Value,
    /// To be deleted when the cluster has its own slices.
    pub policy: Option<String>,
    pub pods: Option<String>,
}

impl Scene {
    fn service(&self, name: &str) -> Option<&Service> {
        let mut services = self.services.iter();
        services.find(|service| service.metadata.name.as_deref() == Some(name))
    }

    fn policy(&self, name: &str) -> Option<&LoadBalancerPolicy> {
        let mut policies = self.policies.iter();
        policies.find(|policy| policy.metadata.name.as_deref() == Some(name))
    }
}

fn annotation<'a>(service: &'a Service, name: &str) -> Option<&'a str> {
    let annotations = service.metadata.annotations.as_ref()?;
    annotations.get(name).map(String::as_str)
}

/// The name of a Service as people write it: `web`, `svc/web`, `service/web`.
pub fn named(text: &str) -> &str {
    let kinds = ["svc/", "service/", "services/"];
    let short = kinds.iter().find_map(|kind| text.strip_prefix(kind));
    short.unwrap_or(text)
}

/// Plans.
///
/// # Errors
/// It is not done, and why.
pub fn attach(scene: &Scene, wanted: &Attach) -> Result<Attachment, String> {
    let name = named(&wanted.service);
    let Some(service) = scene.service(name) else {
        return Err(format!(
            "there is no Service {name} in namespace {}: see `kubectl get svc -n {}`",
            scene.namespace, scene.namespace
        ));
    };
    let refusal = service::refusal(service);
    if let Some(Refusal::Attached(policy)) = &refusal
        && let Some(plan) = begun(scene, service, policy, wanted)
    {
        return plan;
    }
    if let Some(refusal) = refusal {
        return Err(refusal.sentence(name));
    }
    let spec = service.spec.clone().unwrap_or_default();
    let selector = spec.selector.clone().unwrap_or_default();
    let ports = service::ports(service);
    let listeners = listeners(ports);
    let mut notes = Vec::new();
    is_nobodys(scene, service, wanted)?;
    if label(service, "app.kubernetes.io/managed-by") == Some("Helm") {
        notes.push(format!(
            "Service {name} was made by Helm: the next `helm upgrade` of its release gives it its selector back, and clients \
             are led past Baton; put the change into the chart"
        ));
    }
    if spec.external_traffic_policy.as_deref() == Some("Local") {
        notes.push(format!(
            "Service {name} has externalTrafficPolicy: Local: from outside it is reached at nodes with a dataplane only, no more at \
             those with its pods"
        ));
    }
    let protocols = protocols(wanted, ports, &mut notes);
    let policy = wanted.policy.clone().unwrap_or_else(|| name.to_owned());
    let pods = pods_name(name);
    let there = pods_there(scene, name, &pods, &selector)?;
    let mut spec_of_policy = json!({
        "targetRefs": [{"name": pods}], "frontend": {"service": {"name": name}},
        "listeners": listeners,
    });
    match protocols.iter().all(|one| *one == protocols[0]) {
        true => spec_of_policy["protocol"] = json!(protocols[0]),
        false => {
            for (at, protocol) in protocols.iter().enumerate() {
                spec_of_policy["listeners"][at]["protocol"] = json!(protocol);
            }
        }
    }
    if spec.session_affinity.as_deref() == Some("ClientIP") {
        let config = spec.session_affinity_config.as_ref();
        let seconds = config.and_then(|c| c.client_ip.as_ref()?.timeout_seconds);
        let seconds = seconds.unwrap_or(10_800).clamp(1, 86_400);
        spec_of_policy["affinity"] = json!({"clientIP": {"timeout": format!("{seconds}s")}});
    }
    let policy_there = policy_there(scene, &policy, name, &pods)?;
    Ok(Attachment {
        service: name.to_owned(),
        pods: (pods_service(scene, name, &pods, &spec), there),
        policy: (
            json!({
                "apiVersion": format!("{}/{}", baton_crds::GROUP, baton_crds::VERSION),
                "kind": "LoadBalancerPolicy",
                "metadata": {"name": policy, "namespace": scene.namespace},
                "spec": spec_of_policy,
            }),
            policy_there,
        ),
        patch: without_selector(service, &policy, &selector),
        manifest: manifest(service, &policy),
        notes,
    })
}

/// Nobody would give it its selector back at once.
fn is_nobodys(scene: &Scene, service: &Service, wanted: &Attach) -> Result<(), String> {
    let name = named(&wanted.service);
    match kept_by(service) {
        Some(who) if !wanted.dry_run => Err(format!(
            "Service {name} is kept by {who}, which would give it its selector back: commit what `kubectl baton attach \
             svc/{name} -n {} --dry-run -o yaml` prints instead",
            scene.namespace
        )),
        _ => Ok(()),
    }
}

fn without_selector(service: &Service, policy: &str, selector: &BTreeMap<String, String>) -> Value {
    json!({
        "metadata": {
            // Whoever changes it meanwhile is not overruled.
            "resourceVersion": service.metadata.resource_version,
            "labels": {POLICY_LABEL: policy},
            "annotations": {SELECTOR_ANNOTATION: json!(selector).to_string()},
        },
        "spec": {"selector": null},
    })
}

/// What it selects by, if anything.
fn selector_of(service: &Service) -> Option<&BTreeMap<String, String>> {
    let selector = service.spec.as_ref()?.selector.as_ref();
    selector.filter(|selector| !selector.is_empty())
}

/// The name of the Service that has the pods: no longer than that of a Service may be.
fn pods_name(name: &str) -> String {
    let end = name.len().min(NAME_CHARS_MAX - PODS_SUFFIX.len());
    let begin = name.get(..end).unwrap_or(name).trim_end_matches('-');
    format!("{begin}{PODS_SUFFIX}")
}

fn pods_of<'a>(scene: &'a Scene, name: &str) -> Option<&'a Service> {
    let pods = scene.service(&pods_name(name));
    pods.filter(|service| label(service, PODS_OF_LABEL) == Some(name))
}

/// An attach that was stopped after its last change, before the Service led to dataplanes: there
/// is nothing to do but wait. Or somebody gave the Service its selector back since (`kubectl apply`
/// of a manifest from before): that is taken away again.
fn begun(
    scene: &Scene,
    service: &Service,
    policy: &str,
    wanted: &Attach,
) -> Option<Result<Attachment, String>> {
    let name = service.metadata.name.as_deref()?;
    let (pods, policy) = (pods_of(scene, name)?, scene.policy(policy)?);
    let (pods_name, policy_name) =
        (pods.metadata.name.as_deref()?, policy.metadata.name.as_deref()?);
    let status = policy.status.as_ref();
    let leads_to = status.and_then(|status| Some(status.frontend.as_ref()?.leads_to));
    if policy.spec.service() != Some(pods_name) || !fronts(policy, name) {
        return None;
    }
    let patch = match selector_of(service) {
        Some(selector) => {
            let spec = service.spec.clone().unwrap_or_default();
            let now = &pods_service(scene, name, pods_name, &spec)["spec"];
            let then = json!(pods.spec);
            if let Some(other) =
                ["selector", "ports"].into_iter().find(|what| now[what] != then[what])
            {
                return Some(Err(format!(
                    "Service {name} has another spec.{other} than when it was attached: `kubectl baton detach svc/{name}`, which \
                     keeps that, and attach it again"
                )));
            }
            if let Err(why) = is_nobodys(scene, service, wanted) {
                return Some(Err(why));
            }
            without_selector(service, policy_name, selector)
        }
        None if leads_to == Some(LeadsTo::Dataplanes) => return None,
        None => Value::Null,
    };
    Some(Ok(Attachment {
        service: name.to_owned(),
        pods: (json!(pods), true),
        policy: (json!(policy), true),
        patch,
        manifest: manifest(service, policy_name),
        notes: Vec::new(),
    }))
}

/// Whether clients come to a policy by this Service.
fn fronts(policy: &LoadBalancerPolicy, service: &str) -> bool {
    let front = policy.spec.frontend.as_ref();
    front.is_some_and(|front| front.service.name == service)
}

/// The listeners for these ports. A policy has each name once, and a Service may have one port
/// named as the listener of another one would be.
fn listeners(ports: &[ServicePort]) -> Vec<Value> {
    let short = |name: &&str| (1..=LISTENER_CHARS_MAX).contains(&name.len());
    let own = |port: &'_ ServicePort| port.name.as_deref().filter(short).map(str::to_owned);
    let mut taken: BTreeSet<String> = ports.iter().filter_map(own).collect();
    let mut listener = |port: &ServicePort| {
        let number = port.port;
        let others = (2..).map(|n| format!("port-{number}-{n}"));
        let mut made = std::iter::once(format!("port-{number}")).chain(others);
        let name = own(port).or_else(|| made.find(|name| taken.insert(name.clone())));
        json!({"name": name, "port": number, "servicePort": number})
    };
    ports.iter().map(&mut listener).collect()
}

/// The protocol of each port: what was said, or what the port says.
fn protocols(wanted: &Attach, ports: &[ServicePort], notes: &mut Vec<String>) -> Vec<&'static str> {
    if let Some(protocol) = wanted.protocol {
        return vec![protocol.word(); ports.len()];
    }
    let guesses = ports.iter().map(|port| {
        let number = port.port;
        match service::protocol(port) {
            Some(one) => {
                notes.push(format!(
                    "protocol {one} at port {number}, as the Service's port says; `--protocol` says another one"
                ));
                one
            }
            None => {
                notes.push(format!(
                    "port {number} of the Service does not say which protocol it speaks, so connections stay where they begin; \
                     `--protocol` lets them move"
                ));
                "None"
            }
        }
    });
    guesses.collect()
}

/// Whether the Service for the pods is there, by an attach that was not ended.
fn pods_there(
    scene: &Scene,
    name: &str,
    pods: &str,
    selector: &BTreeMap<String, String>,
) -> Result<bool, String> {
    let Some(service) = scene.service(pods) else {
        return Ok(false);
    };
    let has = service.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    if label(service, PODS_OF_LABEL) == Some(name) && has == Some(selector) {
        return Ok(true);
    }
    Err(format!(
        "there is a Service {pods} already, which is the name for the one with the pods of {name}: rename or delete it"
    ))
}

fn policy_there(scene: &Scene, policy: &str, name: &str, pods: &str) -> Result<bool, String> {
    let taken = scene.policies.iter().find(|other| {
        other.spec.service() == Some(name)
            || (other.spec.service() == Some(pods)
                && other.metadata.name.as_deref() != Some(policy))
    });
    if let Some(other) = taken {
        let other = other.metadata.name.as_deref().unwrap_or_default();
        return Err(format!(
            "policy {other} is for the pods of Service {name} already: delete it first, or give it a frontend \
             (spec.frontend) with a name of its own"
        ));
    }
    let Some(found) = scene.policy(policy) else {
        return Ok(false);
    };
    if found.spec.service() == Some(pods) && fronts(found, name) {
        return Ok(true);
    }
    Err(format!(
        "there is a policy {policy} already, for Service {}: give this one another name with `--policy`",
        found.spec.service().unwrap_or_default()
    ))
}

/// The Service that has the pods. Headless: nobody connects to it.
fn pods_service(scene: &Scene, name: &str, pods: &str, spec: &ServiceSpec) -> Value {
    let ports = spec.ports.iter().flatten().map(|port| {
        let mut out = json!({"port": port.port, "protocol": "TCP"});
        if let Some(name) = &port.name {
            out["name"] = json!(name);
        }
        if let Some(target) = &port.target_port {
            out["targetPort"] = json!(target);
        }
        out
    });
    let mut out = json!({
        "clusterIP": "None", "selector": spec.selector, "ports": ports.collect::<Vec<_>>(),
    });
    if let Some(families) = &spec.ip_families {
        out["ipFamilies"] = json!(families);
    }
    if let Some(policy) = &spec.ip_family_policy {
        out["ipFamilyPolicy"] = json!(policy);
    }
    if spec.publish_not_ready_addresses == Some(true) {
        out["publishNotReadyAddresses"] = json!(true);
    }
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": pods, "namespace": scene.namespace, "labels": {PODS_OF_LABEL: name},
        },
        "spec": out,
    })
}

/// The clients' Service as somebody would write it, without a selector.
fn manifest(service: &Service, policy: &str) -> Value {
    let metadata = &service.metadata;
    let mut labels = metadata.labels.clone().unwrap_or_default();
    labels.insert(POLICY_LABEL.to_owned(), policy.to_owned());
    let mut annotations = metadata.annotations.clone().unwrap_or_default();
    annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    let mut spec = json!(service.spec);
    if let Some(spec) = spec.as_object_mut() {
        // What the API server fills in.
        for given in ["selector", "clusterIP", "clusterIPs", "healthCheckNodePort"] {
            spec.remove(given);
        }
    }
    let mut meta = Map::new();
    meta.insert("name".into(), json!(metadata.name));
    meta.insert("namespace".into(), json!(metadata.namespace));
    meta.insert("labels".into(), json!(labels));
    if !annotations.is_empty() {
        meta.insert("annotations".into(), json!(annotations));
    }
    json!({"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec})
}

/// The policy that goes with an attachment: the one that the Service's label names, or the only one
/// that `attach` can have made before it set that.
fn policy_of(scene: &Scene, service: &Service, name: &str) -> Result<Option<String>, String> {
    let of = |policy: &LoadBalancerPolicy| policy.metadata.name.clone();
    if let Some(named) = label(service, POLICY_LABEL) {
        let named = scene.policy(named).filter(|policy| fronts(policy, name));
        return Ok(named.and_then(of));
    }
    let pods = pods_name(name);
    let is_its = |policy: &&LoadBalancerPolicy| {
        fronts(policy, name) && policy.spec.service() == Some(&*pods)
    };
    let found: Vec<String> = scene.policies.iter().filter(is_its).filter_map(of).collect();
    match &found[..] {
        [] => Ok(None),
        [one] => Ok(Some(one.clone())),
        several => Err(format!(
            "policies {} are all for the pods of Service {name}, and its label {POLICY_LABEL} names none of them: delete those \
             that are not used, then detach again",
            several.join(", ")
        )),
    }
}

/// Plans the way back.
///
/// # Errors
/// It is not done, and why.
pub fn detach(scene: &Scene, service: &str) -> Result<Detachment, String> {
    let name = named(service);
    let Some(service) = scene.service(name) else {
        return Err(format!("there is no Service {name} in namespace {}", scene.namespace));
    };
    let pods = pods_of(scene, name);
    let has_selector = service.spec.as_ref().and_then(|s| s.selector.as_ref());
    let policy = policy_of(scene, service, name)?;
    let detachment = |patch| Detachment {
        service: name.to_owned(),
        patch,
        policy: policy.clone(),
        pods: pods.and_then(|pods| pods.metadata.name.clone()),
    };
    if label(service, POLICY_LABEL).is_none() {
        // What was begun and not ended is cleared away.
        if has_selector.is_some() && (policy.is_some() || pods.is_some()) {
            return Ok(detachment(Value::Null));
        }
        return Err(format!("Service {name} is not attached: it leads to no policy"));
    }
    if label(service, "app.kubernetes.io/managed-by") == Some(baton_api::MANAGER) {
        return Err(format!(
            "Service {name} was made for policy {}, it has never had pods of its own: it goes with the policy",
            policy.as_deref().unwrap_or_default()
        ));
    }
    let Some(selector) = annotation(service, SELECTOR_ANNOTATION) else {
        return Err(format!(
            "Service {name} does not say which selector it had (annotation {SELECTOR_ANNOTATION}): give it its selector where \
             its manifests are kept, and remove the label {POLICY_LABEL}"
        ));
    };
    let selector: BTreeMap<String, String> = serde_json::from_str(selector).map_err(|error| {
        format!("the annotation {SELECTOR_ANNOTATION} of Service {name} is no selector: {error}")
    })?;
    let mut patch = json!({
        "metadata": {
            "resourceVersion": service.metadata.resource_version,
            "labels": {POLICY_LABEL: null},
            "annotations": {SELECTOR_ANNOTATION: null},
        },
    });
    // What somebody gave it since is newer.
    if selector_of(service).is_none() {
        patch["spec"] = json!({"selector": selector});
    }
    Ok(detachment(patch))
}
