//! The rights of operator and host-shim, as `operator/rbac` and `host-shim/rbac` ship them: what
//! they need is granted, and nothing else is.

use anyhow::{Context, Result};
use baton_apiserver::ApiServer;
use baton_operator_tests::{
    OPERATOR, OPERATOR_NAMESPACE,
    apply::{apply, apply_as, send},
    cluster::{Cluster, cluster, pod, wait_for},
    manifests, or_skip,
};
use hyper::Method;
use kube::Client;
use serde_json::{Value, json};
use std::{collections::BTreeSet, fs};

/// All verbs that RBAC knows for resources.
const VERBS: &[&str] = &[
    "get",
    "list",
    "watch",
    "create",
    "update",
    "patch",
    "delete",
    "deletecollection",
    "escalate",
    "bind",
    "impersonate",
    "approve",
    "sign",
];

/// Whose the DaemonSet of shims is, by account and name.
const SHIM: &str = "baton-host-shim";

/// A right without a name: group, resource, verb, and whether it holds in the operator's namespace
/// only.
type Right = (&'static str, &'static str, &'static str, bool);

/// Everything that the operator may do to objects of any name. What is not here must be refused.
const RIGHTS: &[Right] = &[
    ("baton.dev", "loadbalancerpolicies", "list", false),
    ("baton.dev", "loadbalancerpolicies", "watch", false),
    ("baton.dev", "loadbalancerpolicies/status", "patch", false),
    ("baton.dev", "batondataplanes", "list", false),
    ("baton.dev", "batondataplanes", "watch", false),
    ("baton.dev", "batondataplanes/status", "patch", false),
    ("", "services", "list", false),
    ("", "services", "watch", false),
    ("", "services", "create", false),
    ("", "services", "patch", false),
    ("", "services", "delete", false),
    ("discovery.k8s.io", "endpointslices", "list", false),
    ("discovery.k8s.io", "endpointslices", "watch", false),
    ("discovery.k8s.io", "endpointslices", "create", false),
    ("discovery.k8s.io", "endpointslices", "patch", false),
    ("discovery.k8s.io", "endpointslices", "delete", false),
    ("", "endpoints", "delete", false),
    ("", "pods", "list", false),
    ("", "pods", "watch", false),
    ("", "pods", "patch", false),
    ("", "nodes", "list", false),
    ("", "nodes", "watch", false),
    ("", "namespaces", "list", false),
    ("", "namespaces", "watch", false),
    ("events.k8s.io", "events", "create", false),
    ("events.k8s.io", "events", "patch", false),
    ("coordination.k8s.io", "leases", "create", true),
];

/// The same of host-shim.
const SHIM_RIGHTS: &[Right] = &[
    ("baton.dev", "loadbalancerpolicies", "list", false),
    ("baton.dev", "loadbalancerpolicies", "watch", false),
    ("", "services", "list", false),
    ("", "services", "watch", false),
    ("", "pods", "list", false),
    ("", "pods", "watch", false),
    ("discovery.k8s.io", "endpointslices", "list", false),
    ("discovery.k8s.io", "endpointslices", "watch", false),
];

/// What it may do to objects of certain names in its own namespace.
const NAMED: &[(&str, &str, &[&str], &[&str])] = &[
    ("coordination.k8s.io", "leases", &["baton-operator"], &["get", "update"]),
    (
        "",
        "secrets",
        &[
            "baton-ca",
            "baton-adoption-keys",
            "baton-dataplane-tls",
            "baton-shim-tls",
            "baton-operator-tls",
        ],
        &["get", "create", "patch"],
    ),
];

/// Whether the client's identity may do this.
async fn may(
    client: &Client,
    namespace: &str,
    group: &str,
    resource: &str,
    verb: &str,
    name: &str,
) -> Result<bool> {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let attributes = json!({
        "namespace": namespace, "group": group, "resource": resource, "subresource": subresource,
        "verb": verb, "name": name,
    });
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": { "resourceAttributes": attributes },
    });
    let uri = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let answer = send(client, Method::POST, uri, "application/json", &review).await?.object()?;
    answer["status"]["allowed"].as_bool().context("a review is answered")
}

/// Every resource and subresource that the server knows, as (group, resource).
async fn resources(client: &Client) -> Result<BTreeSet<(String, String)>> {
    let mut all = BTreeSet::new();
    let core = client.list_core_api_resources("v1").await?;
    all.extend(core.resources.into_iter().map(|r| (String::new(), r.name)));
    for group in client.list_api_groups().await?.groups {
        for version in group.versions {
            let list = client.list_api_group_resources(&version.group_version).await?;
            all.extend(list.resources.into_iter().map(|r| (group.name.clone(), r.name)));
        }
    }
    Ok(all)
}

#[tokio::test]
async fn the_operator_may_do_what_it_needs_and_nothing_else() -> Result<()> {
    let Cluster { server, admin, operator } = or_skip!(cluster().await?);
    let known = resources(&admin).await?;
    let asked = rights_are(server, &operator, RIGHTS, &known).await?;
    println!("{asked} questions about {} resources", known.len());
    Ok(())
}

#[tokio::test]
async fn host_shim_may_read_what_it_needs_and_nothing_else() -> Result<()> {
    let Cluster { server, admin, .. } = or_skip!(cluster().await?);
    for manifest in manifests::folder("host-shim/rbac")? {
        apply(&admin, &manifest).await?.object()?;
    }
    let shim = server.client_as(OPERATOR_NAMESPACE, SHIM).await?;
    let known = resources(&admin).await?;
    rights_are(server, &shim, SHIM_RIGHTS, &known).await?;
    for (name, expected) in [(SHIM, true), ("somebody-elses", false)] {
        let allowed = may(&shim, OPERATOR_NAMESPACE, "apps", "daemonsets", "get", name).await?;
        assert_eq!(allowed, expected, "get daemonsets {name}");
    }
    Ok(())
}

/// Asks for every verb of every resource whether it is granted just where `rights` say so. Gives
/// how many questions that were.
async fn rights_are(
    server: &ApiServer,
    client: &Client,
    rights: &[Right],
    known: &BTreeSet<(String, String)>,
) -> Result<usize> {
    let other = server.namespace("rights").await?.name;
    // What every ServiceAccount may do, such as asking for its own rights.
    let anybody = server.client_as(&other, "default").await?;
    for (group, resource, ..) in rights {
        let row = ((*group).to_owned(), (*resource).to_owned());
        assert!(known.contains(&row), "the server knows no {resource} in group {group:?}");
    }
    let mut asked = 0;
    for (group, resource) in known {
        for verb in VERBS {
            for namespace in [OPERATOR_NAMESPACE, other.as_str()] {
                let row = rights
                    .iter()
                    .find(|(g, r, v, _)| (g, r, v) == (&group.as_str(), &resource.as_str(), verb));
                let expected = row.is_some_and(|(.., own)| !own || namespace == OPERATOR_NAMESPACE);
                let allowed = may(client, namespace, group, resource, verb, "").await?;
                asked += 1;
                if allowed != expected {
                    let everybody = may(&anybody, namespace, group, resource, verb, "").await?;
                    assert!(
                        allowed && everybody,
                        "{verb} {resource} of group {group:?} in {namespace}: allowed is {allowed}, expected {expected}"
                    );
                }
            }
        }
    }
    Ok(asked)
}

#[tokio::test]
async fn rights_by_name_hold_for_that_name_only() -> Result<()> {
    let Cluster { server, operator, .. } = or_skip!(cluster().await?);
    let other = server.namespace("named").await?.name;
    for (group, resource, names, verbs) in NAMED {
        for verb in VERBS {
            // `create` of a Lease is granted for any name.
            let any_name = RIGHTS.iter().any(|(g, r, v, _)| (g, r, v) == (group, resource, verb));
            for name in names.iter().chain([&"somebody-elses"]) {
                let expected = any_name || (names.contains(name) && verbs.contains(verb));
                let allowed =
                    may(&operator, OPERATOR_NAMESPACE, group, resource, verb, name).await?;
                assert_eq!(allowed, expected, "{verb} {resource} {name}");
                let elsewhere = may(&operator, &other, group, resource, verb, name).await?;
                assert!(!elsewhere, "{verb} {resource} {name} in another namespace");
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn secrets_are_created_by_name_only() -> Result<()> {
    let Cluster { operator, .. } = or_skip!(cluster().await?);
    let secret = |name: &str| {
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": { "name": name, "namespace": OPERATOR_NAMESPACE },
            "data": { "a": "YQ==" },
        })
    };
    // The first creates it, the second changes nothing.
    for _ in 0..2 {
        apply_as(&operator, &secret("baton-shim-tls"), OPERATOR, "").await?.object()?;
    }
    let refused = apply_as(&operator, &secret("another"), OPERATOR, "").await?;
    assert_eq!(refused.outcome.expect_err("refused").code, 403);
    // A POST holds no name that RBAC could see, so it is refused even for a good one.
    let uri = format!("/api/v1/namespaces/{OPERATOR_NAMESPACE}/secrets");
    let refused =
        send(&operator, Method::POST, &uri, "application/json", &secret("baton-ca")).await?;
    assert_eq!(refused.outcome.expect_err("refused").code, 403);
    let own = format!("{uri}/baton-shim-tls");
    send(&operator, Method::GET, &own, "application/json", &Value::Null).await?.object()?;
    let all = send(&operator, Method::GET, &uri, "application/json", &Value::Null).await?;
    assert_eq!(all.outcome.expect_err("refused").code, 403);
    Ok(())
}

#[tokio::test]
async fn of_a_pod_only_the_deletion_cost_can_be_changed() -> Result<()> {
    let Cluster { server, admin, operator } = or_skip!(cluster().await?);
    let namespace = server.namespace("cost").await?.name;
    apply(&admin, &pod(&namespace, "backend")).await?.object()?;
    let cost = "controller.kubernetes.io/pod-deletion-cost";
    let uri = format!("/api/v1/namespaces/{namespace}/pods/backend");
    let metadata = json!({
        "name": "backend", "namespace": namespace, "annotations": { cost: "17" },
    });
    let manifest = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata });
    let stored = apply_as(&operator, &manifest, "baton-operator-cost", "").await?.object()?;
    assert_eq!(stored["metadata"]["annotations"][cost], "17");
    assert_eq!(stored["metadata"]["annotations"]["kept"], "as it is");
    let removed = json!({ "metadata": { "annotations": { cost: null } } });
    send(&operator, Method::PATCH, &uri, "application/merge-patch+json", &removed)
        .await?
        .object()?;

    let label = json!({ "metadata": { "labels": { "app": "other" } } });
    let annotation = json!({ "metadata": { "annotations": { "kept": "changed" } } });
    let added = json!({ "metadata": { "annotations": { "new": "one" } } });
    let taken = json!({ "metadata": { "annotations": { "kept": null } } });
    let finalizer = json!({ "metadata": { "finalizers": ["baton.dev/hold"] } });
    let owner = json!({ "apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "y" });
    let owner = json!({ "metadata": { "ownerReferences": [owner] } });
    let image =
        json!({ "spec": { "containers": [{ "name": "main", "image": "localhost/other:1" }] } });
    for (patch, said) in [
        (&label, "labels"),
        (&annotation, "only controller.kubernetes.io/pod-deletion-cost"),
        (&added, "only controller.kubernetes.io/pod-deletion-cost"),
        (&taken, "only controller.kubernetes.io/pod-deletion-cost"),
        (&finalizer, "finalizers"),
        (&owner, "owners"),
        (&image, "spec"),
    ] {
        let kind = "application/strategic-merge-patch+json";
        let answer = send(&operator, Method::PATCH, &uri, kind, patch).await?;
        let status = answer.outcome.expect_err("the operator is refused");
        assert!(status.message.contains(said), "{patch}: {}", status.message);
        // Nobody else is concerned.
        let dry = format!("{uri}?dryRun=All");
        send(&admin, Method::PATCH, &dry, kind, patch).await?.object()?;
    }
    Ok(())
}

/// The same in another namespace, and of a slice for another Service.
fn elsewhere(manifest: &Value, namespace: &str, service: &str) -> Value {
    let mut manifest = manifest.clone();
    manifest["metadata"]["namespace"] = json!(namespace);
    if manifest["kind"] == "EndpointSlice" {
        manifest["metadata"]["labels"]["kubernetes.io/service-name"] = json!(service);
    }
    manifest
}

#[tokio::test]
async fn of_services_and_slices_only_those_of_frontends_can_be_written() -> Result<()> {
    let Cluster { server, admin, operator } = or_skip!(cluster().await?);
    let namespace = server.namespace("fronts").await?.name;
    let made =
        json!({ "baton.dev/policy": "web", "app.kubernetes.io/managed-by": "baton-operator" });
    let service = |name: &str, labels: &Value| {
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": { "name": name, "namespace": namespace, "labels": labels },
            "spec": { "ports": [{ "port": 80 }] },
        })
    };
    let slice = |name: &str, by: &str| {
        let labels = json!({
            "kubernetes.io/service-name": "web", "endpointslice.kubernetes.io/managed-by": by,
        });
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": { "name": name, "namespace": namespace, "labels": labels },
            "endpoints": [], "ports": [{ "name": "http", "port": 80 }],
        })
    };
    let cluster = "endpointslice-controller.k8s.io";
    let plain = service("plain", &json!({}));
    let attached = service("attached", &json!({ "baton.dev/policy": "web" }));
    let others = slice("others", "somebody");
    let clusters = slice("clusters", cluster);
    for manifest in [&plain, &attached, &others, &clusters] {
        apply(&admin, manifest).await?.object()?;
    }
    let write = async |manifest: &Value| {
        let answer = apply_as(&operator, manifest, "baton-operator-frontend", "").await?;
        anyhow::Ok(answer.outcome.err().map(|status| status.message))
    };
    // Over what others own, without asking.
    let change = async |manifest: &Value| {
        let path = baton_operator_tests::apply::path(manifest).context("a path")?;
        let kind = "application/merge-patch+json";
        let answer = send(&operator, Method::PATCH, &path, kind, manifest).await?;
        anyhow::Ok(answer.outcome.err().map(|status| status.message))
    };
    let delete = async |manifest: &Value| {
        let path = baton_operator_tests::apply::path(manifest).context("a path")?;
        let kind = "application/json";
        let answer = send(&operator, Method::DELETE, &path, kind, &json!({})).await?;
        anyhow::Ok(answer.outcome.err().map(|status| status.message))
    };
    // The server reads admission policies anew every now and then.
    let unmarked = service("unmarked", &json!({}));
    wait_for("frontends are guarded", async || {
        let said = write(&unmarked).await?.unwrap_or_default();
        anyhow::ensure!(said.contains("only Services with the label baton.dev/policy"), "{said}");
        Ok(())
    })
    .await?;
    let own = slice("own", "baton-operator");
    for (manifest, refused) in [
        (&service("made", &made), None),
        (&service("half", &json!({ "baton.dev/policy": "web" })), Some("make only Services")),
        (&own, None),
        (&slice("more", cluster), Some("only EndpointSlices of its own")),
        // Where these lead, the whole cluster goes.
        (&elsewhere(&own, "kube-system", "kube-dns"), Some("in namespaces of Kubernetes itself")),
        (
            &elsewhere(&service("made", &made), "kube-system", "web"),
            Some("in namespaces of Kubernetes itself"),
        ),
        (&elsewhere(&own, "default", "kubernetes"), Some("may not say where the API server is")),
        (&elsewhere(&own, "default", "web"), None),
    ] {
        let said = write(manifest).await?;
        let good = said.is_some() == refused.is_some()
            && said.as_deref().unwrap_or_default().contains(refused.unwrap_or_default());
        assert!(good, "{manifest}: {said:?}, expected {refused:?}");
    }
    for (manifest, refused) in [
        (service("plain", &made), "change only Services"),
        (slice("others", "baton-operator"), "only EndpointSlices of its own"),
    ] {
        let said = change(&manifest).await?.unwrap_or_default();
        assert!(said.contains(refused), "{manifest}: {said}");
    }
    let selector = json!({ "spec": { "selector": { "app": "web" } } });
    let uri = format!("/api/v1/namespaces/{namespace}/services/attached");
    let kind = "application/merge-patch+json";
    send(&operator, Method::PATCH, &uri, kind, &selector).await?.object()?;
    for (manifest, refused) in [
        (&plain, Some("delete only Services that it made")),
        (&attached, Some("delete only Services that it made")),
        (&service("made", &made), None),
        (&others, Some("may delete only those that the cluster makes")),
        (&clusters, None),
        (&own, None),
    ] {
        let said = delete(manifest).await?;
        let good = said.is_some() == refused.is_some()
            && said.as_deref().unwrap_or_default().contains(refused.unwrap_or_default());
        assert!(good, "{manifest}: {said:?}, expected {refused:?}");
    }
    Ok(())
}

#[test]
fn no_wildcards_and_a_reason_for_each_rule() -> Result<()> {
    let mut rules = 0;
    for file in manifests::files("operator/rbac")? {
        for manifest in manifests::read(&file)? {
            for rule in manifest["rules"].as_array().into_iter().flatten() {
                rules += 1;
                for key in ["apiGroups", "resources", "verbs", "resourceNames", "nonResourceURLs"] {
                    let values = rule[key].as_array().cloned().unwrap_or_default();
                    let wild = values.iter().filter_map(Value::as_str).find(|v| v.contains('*'));
                    assert_eq!(wild, None, "{} has a wildcard in {key}: {rule}", file.display());
                }
            }
        }
        let text = fs::read_to_string(&file)?;
        let lines: Vec<_> = text.lines().collect();
        for pair in lines.windows(2).filter(|pair| pair[1].starts_with("  - apiGroups:")) {
            assert!(
                pair[0].trim_start().starts_with('#'),
                "{}: no reason is given above `{}`",
                file.display(),
                pair[1].trim()
            );
        }
    }
    assert!(rules > 5, "the rules were not found");
    Ok(())
}
