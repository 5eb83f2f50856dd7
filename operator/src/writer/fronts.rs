//! Services in front of dataplanes and their EndpointSlices in the API server.
//!
//! Owns their form. What is to be written is the index's to say, from what is there: nothing here
//! is compared. Each step is by itself; one that failed is tried again with all of them.
//!
//! # Whose a Service and a slice is
//!
//! A Service of somebody else never changes here, also without the admission policy of
//! `operator/rbac/frontends.yaml`. One that is not known to be there is created, which the API
//! server refuses where there is one; it is tried again until the watch has brought that one and
//! the index says whose it is. One that is known is applied with its uid, so one that was made in
//! its place since stays as it is. So it is with slices.

use super::{
    handover::to_apply,
    kubernetes::{Writer, Written},
};
use crate::{
    notice::{About, Notice},
    objects::FRONT_MANAGER,
    translate::cluster::{MANAGED_BY, SERVICE_LABEL, SLICE_MANAGED_BY},
};
use baton_api::{MANAGER, POLICY_LABEL, SELECTOR_ANNOTATION};
use baton_index::{Family, FrontEndpoint, FrontService, FrontSlice, FrontWrites, Key, Text};
use k8s_openapi::api::{
    core::v1::{Endpoints, Service},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use std::{fmt::Debug, sync::PoisonError};
use tracing::warn;

/// In metrics.
const WHAT: &str = "frontend";
/// Others write to a new Service too, as the controllers of load balancers do.
const LIMIT_HANDOVERS: usize = 4;

impl Writer {
    /// Writes what is to be written of one Service.
    pub(super) async fn front(&self, key: &Key, writes: &FrontWrites) -> Written {
        let services: Api<Service> = Api::namespaced(self.client.clone(), &key.namespace);
        let slices: Api<EndpointSlice> = Api::namespaced(self.client.clone(), &key.namespace);
        let mut failed = false;
        let mut note = |written: Written| failed |= written.is_for_later();
        if let (Some(wanted), Some((policy, uid))) = (&writes.make, &writes.owner) {
            let object = service(key, wanted, policy, uid);
            let written = match &writes.uid {
                None => self.make(&services, key, object).await,
                Some(known) => self.mend(&services, key, object, known).await,
            };
            let message = match &written {
                Written::Refused(words) => Some(format!("{words}: correct spec.frontend.service")),
                Written::Forbidden(words) => Some(format!("{words}: it is tried again")),
                _ => None,
            };
            // What is tried again would be told every time.
            let is_news = {
                let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
                told.is_news(key, uid, message.as_deref())
            };
            if let Some(words) = message.filter(|_| is_news) {
                self.outbox.notice(refused(key, policy, uid, &words));
            }
            note(written);
        }
        if let Some(selector) = &writes.restore {
            match restored(selector, writes.uid.as_deref()) {
                Some(patch) => {
                    let patch = Patch::Merge(patch);
                    let params = PatchParams::default();
                    let request = services.patch(&key.name, &params, &patch);
                    note(self.outcome(WHAT, key, request).await);
                }
                None => {
                    warn!(service = %key, annotation = SELECTOR_ANNOTATION, "is no selector; the Service stays without one");
                }
            }
        }
        if let Some(uid) = &writes.uid {
            for wanted in &writes.slices {
                let object = slice(key, wanted, uid);
                note(match &wanted.uid {
                    None => self.create(&slices, key, object).await.1,
                    Some(known) => self.rewrite(&slices, key, wanted, object, known).await,
                });
            }
        }
        for (name, uid) in &writes.remove {
            let only = only(uid.as_ref());
            let request = slices.delete(name, &only);
            note(self.outcome(WHAT, key, request).await);
        }
        if writes.remove_endpoints {
            let endpoints: Api<Endpoints> = Api::namespaced(self.client.clone(), &key.namespace);
            let any = DeleteParams::default();
            let request = endpoints.delete(&key.name, &any);
            note(self.outcome(WHAT, key, request).await);
        }
        if writes.unmake {
            let only = only(writes.uid.as_ref());
            let request = services.delete(&key.name, &only);
            note(self.outcome(WHAT, key, request).await);
        }
        if failed { Written::Failed } else { Written::Done }
    }

    /// Makes a Service that is not known to be there.
    async fn make(&self, services: &Api<Service>, key: &Key, object: Value) -> Written {
        match self.create(services, key, object).await {
            (Some(made), _) => self.hand_over(services, key, made).await,
            (None, written) => written,
        }
    }

    /// Makes what is not known to be there, and never changes what is.
    async fn create<K>(&self, api: &Api<K>, key: &Key, object: Value) -> (Option<K>, Written)
    where
        K: Serialize + DeserializeOwned + Clone + Debug,
    {
        let object: K = match serde_json::from_value(object) {
            Ok(object) => object,
            Err(error) => return (None, Written::Refused(error.to_string())),
        };
        let params =
            PostParams { field_manager: Some(FRONT_MANAGER.to_owned()), ..PostParams::default() };
        let (mut made, mut conflicts) = (None, false);
        let request = async {
            let answer = api.create(&params, &object).await;
            conflicts = matches!(&answer, Err(kube::Error::Api(status)) if status.code == 409);
            made = answer.as_ref().ok().cloned();
            answer
        };
        let written = self.outcome(WHAT, key, request).await;
        // One is there, which the watch is about to bring, and the index will say what is to be
        // done then; or another write took from the same ResourceQuota meanwhile.
        let written = if conflicts { Written::Failed } else { written };
        (made, written)
    }

    /// Has a slice that is known as it should be. Its lists are replaced as wholes.
    async fn rewrite(
        &self,
        slices: &Api<EndpointSlice>,
        key: &Key,
        wanted: &FrontSlice,
        mut object: Value,
        uid: &str,
    ) -> Written {
        object["metadata"]["uid"] = json!(uid);
        let params =
            PatchParams { field_manager: Some(FRONT_MANAGER.to_owned()), ..PatchParams::default() };
        let patch = Patch::Merge(object);
        let request = slices.patch(&wanted.name, &params, &patch);
        self.outcome(WHAT, key, request).await
    }

    /// Has a Service that is known as it should be.
    async fn mend(
        &self,
        services: &Api<Service>,
        key: &Key,
        mut object: Value,
        uid: &str,
    ) -> Written {
        object["metadata"]["uid"] = json!(uid);
        let apply = PatchParams::apply(FRONT_MANAGER).force();
        let patch = Patch::Apply(object);
        let mut mended = None;
        let request = async {
            let answer = services.patch(&key.name, &apply, &patch).await;
            mended = answer.as_ref().ok().cloned();
            answer
        };
        let written = self.outcome(WHAT, key, request).await;
        match mended {
            Some(mended) if to_apply(&mended, FRONT_MANAGER).is_some() => {
                // Its creator ended too early. Only the next apply takes away what is left over.
                self.hand_over(services, key, mended).await;
                Written::Failed
            }
            _ => written,
        }
    }

    /// Has later applies take away what a create has set. Where that fails, they find out.
    async fn hand_over(&self, services: &Api<Service>, key: &Key, made: Service) -> Written {
        let params = PatchParams::default();
        let mut object = made;
        for _ in 0..LIMIT_HANDOVERS {
            let Some(patch) = to_apply(&object, FRONT_MANAGER) else {
                break;
            };
            let mut newer = None;
            let request = async {
                let answer = services.patch(&key.name, &params, &Patch::Merge(patch)).await;
                if matches!(&answer, Err(kube::Error::Api(status)) if status.code == 409) {
                    // Nothing changes by this one, which gives the Service as it is now.
                    let same = json!({"metadata": {"uid": object.metadata.uid}});
                    let same = Patch::Merge(same);
                    newer = Some(services.patch(&key.name, &params, &same).await?);
                }
                answer
            };
            let written = self.outcome(WHAT, key, request).await;
            match newer {
                Some(newer) => object = newer,
                None => return written,
            }
        }
        Written::Done
    }
}

/// Deletes what has this uid, if it is known, and nothing that has its name since.
fn only(uid: Option<&Text>) -> DeleteParams {
    let uid = uid.map(ToString::to_string);
    DeleteParams::default().preconditions(Preconditions { uid, resource_version: None })
}

fn refused(key: &Key, policy: &Text, uid: &Text, words: &str) -> Notice {
    Notice {
        about: About::Policy {
            key: Key::new(key.namespace.clone(), policy.clone()),
            uid: uid.to_string(),
        },
        warning: true,
        reason: "FrontendRefused",
        message: format!("the API server refuses Service {}: {words}", key.name),
    }
}

fn service(key: &Key, wanted: &FrontService, policy: &Text, uid: &Text) -> Value {
    let frontend = &wanted.frontend;
    let ports = wanted.ports.iter();
    let ports: Vec<Value> = ports
        .map(|(name, port, target)| {
            json!({"name": &**name, "port": port, "targetPort": target, "protocol": "TCP"})
        })
        .collect();
    let families: Vec<&str> = wanted.families.iter().map(|f| family(*f)).collect();
    let policy_of_families = if families.len() > 1 { "PreferDualStack" } else { "SingleStack" };
    let mut spec = json!({
        "type": &*frontend.kind, "ports": ports,
        "ipFamilies": families, "ipFamilyPolicy": policy_of_families,
    });
    if &*frontend.kind != "ClusterIP" {
        spec["externalTrafficPolicy"] = json!(if frontend.local { "Local" } else { "Cluster" });
    }
    if let Some(class) = &frontend.load_balancer_class {
        spec["loadBalancerClass"] = json!(&**class);
    }
    if !frontend.source_ranges.is_empty() {
        let ranges: Vec<&str> = frontend.source_ranges.iter().map(|r| &**r).collect();
        spec["loadBalancerSourceRanges"] = json!(ranges);
    }
    let annotations = frontend.annotations.iter();
    let annotations: serde_json::Map<String, Value> =
        annotations.map(|(key, value)| (key.to_string(), json!(&**value))).collect();
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": &*key.name, "namespace": &*key.namespace,
            "labels": {POLICY_LABEL: &**policy, MANAGED_BY: MANAGER},
            "annotations": annotations,
            "ownerReferences": [{
                "apiVersion": "baton.dev/v1alpha1", "kind": "LoadBalancerPolicy", "name": &**policy,
                "uid": &**uid, "controller": true, "blockOwnerDeletion": false,
            }],
        },
        "spec": spec,
    })
}

/// The selector that it had, and no mark of a policy. The uid makes sure that another Service that
/// has the name by now stays as it is.
pub(crate) fn restored(selector: &str, uid: Option<&str>) -> Option<Value> {
    let selector: Value = serde_json::from_str(selector).ok()?;
    let texts = |all: &serde_json::Map<String, Value>| {
        !all.is_empty() && all.values().all(Value::is_string)
    };
    let mut metadata = unmarked();
    if let Some(uid) = uid {
        metadata["uid"] = json!(uid);
    }
    let usable = selector.as_object().is_some_and(texts);
    usable.then(|| json!({"metadata": metadata, "spec": {"selector": selector}}))
}

/// A patch of its metadata, after which it is no policy's.
pub(crate) fn unmarked() -> Value {
    json!({"labels": {POLICY_LABEL: null}, "annotations": {SELECTOR_ANNOTATION: null}})
}

fn family(family: Family) -> &'static str {
    match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    }
}

fn slice(key: &Key, wanted: &FrontSlice, uid: &Text) -> Value {
    let ports = wanted.ports.iter();
    let ports: Vec<Value> = ports
        .map(|port| json!({"name": &*port.name, "port": port.port, "protocol": "TCP"}))
        .collect();
    let endpoints: Vec<Value> = wanted.endpoints.iter().map(endpoint).collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": &*wanted.name, "namespace": &*key.namespace,
            "labels": {SERVICE_LABEL: &*key.name, SLICE_MANAGED_BY: MANAGER},
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Service", "name": &*key.name, "uid": &**uid,
                "controller": true, "blockOwnerDeletion": false,
            }],
        },
        "addressType": family(wanted.family), "ports": ports, "endpoints": endpoints,
    })
}

fn endpoint(endpoint: &FrontEndpoint) -> Value {
    let is = endpoint.conditions;
    let mut out = json!({
        "addresses": [endpoint.address.to_string()],
        "conditions": {"ready": is.ready, "serving": is.serving, "terminating": is.terminating},
    });
    if let Some(pod) = &endpoint.pod {
        out["targetRef"] = json!({"kind": "Pod", "namespace": &*pod.namespace, "name": &*pod.name});
    }
    if let Some(node) = &endpoint.node {
        out["nodeName"] = json!(&**node);
    }
    if let Some(zone) = &endpoint.zone {
        out["zone"] = json!(&**zone);
        out["hints"] = json!({"forZones": [{"name": &**zone}]});
    }
    out
}
