//! `detach`: Services that clients had before lead to their pods again, before Baton is removed:
//! without an operator nobody says where they lead.
//!
//! Owns the command, which the chart's hook runs once. Services that the operator made for policies
//! stay as they are. It needs no operator that runs.

use crate::{
    args::Apply,
    install::{block_on, limited, until},
    run::client,
    translate::cluster::{MANAGED_BY, SERVICE_LABEL, SLICE_MANAGED_BY},
    writer::fronts::{restored, unmarked},
};
use anyhow::Context as _;
use baton_api::{MANAGER, POLICY_LABEL, SELECTOR_ANNOTATION};
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::json;
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
            let name = format!(
                "{}/{}",
                service.namespace().unwrap_or_default(),
                service.name_any()
            );
            match one(&client, &service).await {
                Ok(()) => println!("Service {name}: leads to its pods"),
                Err(error) => failed = failed.and(Err(error.context(format!("Service {name}")))),
            }
        }
        failed
    })
}

async fn one(client: &Client, service: &Service) -> anyhow::Result<()> {
    let namespace = service.namespace().unwrap_or_default();
    let name = service.name_any();
    let spec = service.spec.as_ref();
    let patch = match spec.and_then(|spec| spec.selector.as_ref()) {
        // Somebody gave it one since.
        Some(selector) if !selector.is_empty() => Some(json!({"metadata": unmarked()})),
        _ => {
            let had = service.annotations().get(SELECTOR_ANNOTATION);
            had.and_then(|selector| restored(selector, service.uid().as_deref()))
        }
    };
    let patch = patch.with_context(|| {
        format!(
            "it does not say which selector it had (annotation {SELECTOR_ANNOTATION}): give it one, or let it lead nowhere \
             (helm uninstall --no-hooks)"
        )
    })?;
    let services: Api<Service> = Api::namespaced(client.clone(), &namespace);
    limited(services.patch(&name, &PatchParams::default(), &Patch::Merge(patch))).await?;
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), &namespace);
    let of = ListParams::default().labels(&format!("{SERVICE_LABEL}={name}"));
    let ours = |slice: &EndpointSlice| {
        slice
            .labels()
            .get(SLICE_MANAGED_BY)
            .is_some_and(|by| by == MANAGER)
    };
    until(LED_WITHIN, || async {
        let all = limited(slices.list(&of)).await?;
        let led = all.iter().any(|slice| !ours(slice));
        Ok((!led).then(|| "the cluster makes no EndpointSlices of it".to_owned()))
    })
    .await?;
    for slice in limited(slices.list(&of))
        .await?
        .iter()
        .filter(|slice| ours(slice))
    {
        let gone = limited(slices.delete(&slice.name_any(), &DeleteParams::default())).await;
        // The operator, if it runs, does it, too.
        if let Err(error) = gone
            && !matches!(error.downcast_ref(), Some(kube::Error::Api(said)) if said.code == 404)
        {
            return Err(error);
        }
    }
    Ok(())
}
