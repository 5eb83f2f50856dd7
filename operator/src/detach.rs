//! `detach`: Services that clients had before lead to their pods again, before Baton is removed:
//! without an operator nobody says where they lead.
//!
//! Owns the command, which the chart's hook runs once. Services that the operator made for policies
//! stay as they are, and so do those that have nothing of Baton's but the label. It needs no
//! operator that runs.

use crate::{
    args::Apply,
    install::{block_on, limited, until},
    run::client,
    translate::cluster::{MANAGED_BY, SERVICE_LABEL, SLICE_MANAGED_BY},
    writer::fronts::{restored, unmarked},
};
use anyhow::bail;
use baton_api::{MANAGER, POLICY_LABEL, SELECTOR_ANNOTATION};
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use std::time::Duration;

/// For the cluster to make slices of a Service that has its selector again; usually some
/// milliseconds.
const LED_WITHIN: Duration = Duration::from_secs(10);

/// Gives each its selector back, and then takes away what led it to dataplanes.
///
/// # Errors
/// The API server refuses, or does not answer. The others are detached all the same.
pub fn detach(settings: &Apply) -> anyhow::Result<()> {
    block_on(async {
        let client = client(settings.kubeconfig.as_deref()).await?;
        let attached = format!("{POLICY_LABEL},{MANAGED_BY}!={MANAGER}");
        let all: Api<Service> = Api::all(client.clone());
        let found = limited(all.list(&ListParams::default().labels(&attached))).await?;
        let mut failed = Ok(());
        for service in found {
            let name =
                format!("{}/{}", service.namespace().unwrap_or_default(), service.name_any());
            match one(&client, &service).await {
                Ok(true) => println!("Service {name}: leads to its pods"),
                Ok(false) => println!(
                    "Service {name}: has the label {POLICY_LABEL}, but Baton does not lead it"
                ),
                Err(error) => failed = failed.and(Err(error.context(format!("Service {name}")))),
            }
        }
        failed
    })
}

/// Whether a Service was led through Baton; then it leads to its pods.
async fn one(client: &Client, service: &Service) -> anyhow::Result<bool> {
    let namespace = service.namespace().unwrap_or_default();
    let name = service.name_any();
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), &namespace);
    let of = ListParams::default().labels(&format!("{SERVICE_LABEL}={name}"));
    let ours = |slice: &EndpointSlice| {
        let labels = slice.labels();
        labels.get(SLICE_MANAGED_BY).is_some_and(|by| by == MANAGER)
    };
    let is_led = limited(slices.list(&of)).await?.iter().any(ours);
    let Some(patch) = patch(service, is_led)? else {
        return Ok(false);
    };
    let services: Api<Service> = Api::namespaced(client.clone(), &namespace);
    limited(services.patch(&name, &PatchParams::default(), &Patch::Merge(patch))).await?;
    if !is_led {
        return Ok(true);
    }
    until(LED_WITHIN, || async {
        let all = limited(slices.list(&of)).await?;
        let led = all.iter().any(|slice| !ours(slice));
        Ok((!led).then(|| "the cluster makes no EndpointSlices of it".to_owned()))
    })
    .await?;
    for slice in limited(slices.list(&of)).await?.iter().filter(|slice| ours(slice)) {
        let gone = limited(slices.delete(&slice.name_any(), &DeleteParams::default())).await;
        // The operator, if it runs, does it, too.
        if let Err(error) = gone
            && !matches!(error.downcast_ref(), Some(kube::Error::Api(said)) if said.code == 404)
        {
            return Err(error);
        }
    }
    Ok(true)
}

/// What makes it no policy's any more. `is_led`: slices of ours say where it leads. Without them,
/// and without a word of a selector that it had, nothing about it is Baton's but a label, which
/// anybody may have set.
fn patch(service: &Service, is_led: bool) -> anyhow::Result<Option<Value>> {
    let selector = service.spec.as_ref().and_then(|s| s.selector.as_ref());
    // Somebody gave it one since.
    if selector.is_some_and(|selector| !selector.is_empty()) {
        return Ok(Some(json!({"metadata": unmarked()})));
    }
    let had = service.annotations().get(SELECTOR_ANNOTATION);
    let restored = had.and_then(|selector| restored(selector, service.uid().as_deref()));
    if restored.is_none() && is_led {
        bail!(
            "it does not say which selector it had (annotation {SELECTOR_ANNOTATION}): give it one, or let it lead nowhere \
             (helm uninstall --no-hooks)"
        );
    }
    Ok(restored)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(selector: &Value, had: Option<&str>) -> Service {
        let mut annotations = json!({});
        if let Some(had) = had {
            annotations[SELECTOR_ANNOTATION] = json!(had);
        }
        serde_json::from_value(json!({
            "metadata": {"name": "web", "labels": {POLICY_LABEL: "p"}, "annotations": annotations},
            "spec": {"selector": selector},
        }))
        .expect("a Service")
    }

    #[test]
    fn a_label_alone_keeps_nobody_from_removing_baton() {
        let none = service(&Value::Null, None);
        assert_eq!(patch(&none, false).expect("not Baton's"), None);
        let said = patch(&none, true).expect_err("its clients would reach nobody");
        assert!(said.to_string().contains("which selector it had"), "{said}");
        let useless = service(&Value::Null, Some("app"));
        assert_eq!(patch(&useless, false).expect("not Baton's"), None);
        assert!(patch(&useless, true).is_err());
    }

    #[test]
    fn it_gets_the_selector_that_it_had_and_keeps_a_newer_one() {
        let had = Some(r#"{"app":"web"}"#);
        for is_led in [true, false] {
            let patch = |service| patch(&service, is_led).expect("a patch");
            let restored = patch(service(&Value::Null, had)).expect("a patch");
            assert_eq!(restored["spec"]["selector"], json!({"app": "web"}));
            let kept = patch(service(&json!({"app": "newer"}), had)).expect("a patch");
            assert_eq!(kept, json!({"metadata": unmarked()}));
        }
    }
}
