//! The same with a real API server: objects are made there, the operator watches them with exactly
//! its rights.

use crate::{
    DEADLINE, Scene, dataplanes,
    process::Operator,
    report::print,
    size, title,
    world::{self, ENDPOINTS_EACH, World},
};
use anyhow::{Context, Result};
use baton_apiserver::{ApiServer, own};
use baton_operator_tests::{
    OPERATOR, OPERATOR_NAMESPACE,
    apply::{apply, path, send},
    cluster::{get, install, wait_for},
    dataplane::own_address,
    manifests, or_skip,
};
use baton_tls::Material;
use hyper::Method;
use k8s_openapi::ByteString;
use kube::Client;
use serde_json::{Value, json};
use std::{collections::BTreeMap, ffi::OsString, net::IpAddr, sync::Arc, time::Instant};
use tokio::task::JoinSet;

/// Requests of the admin under way at one time.
const CONCURRENT: usize = 48;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_api_server() -> Result<()> {
    let size = size()?;
    let server = or_skip!(own());
    install(&server).await?;
    let admin = server.admin().await?;
    let identity = server.service_account(OPERATOR_NAMESPACE, OPERATOR).await?;
    let kubeconfig = server.kubeconfig_file(&identity)?;
    let arguments: Vec<OsString> = vec![
        "--identity".into(),
        "scale".into(),
        "--namespace".into(),
        OPERATOR_NAMESPACE.into(),
        "--kubeconfig".into(),
        kubeconfig.into(),
    ];
    let log = server.folder().join("scale.log");
    let material = material(&admin, &arguments, &server).await?;
    let first = own_address()?;
    let first_of = (first, Some(material));
    let second = IpAddr::from([127, 0, 0, 1]);
    let (dataplanes, control_ports) =
        dataplanes(world::classes(size.policies), &first_of, second).await?;
    let world = Arc::new(World {
        policies: size.policies,
        control_ports,
        addresses: [first.to_string(), "127.0.0.1".into()],
    });
    let began = Instant::now();
    populate(&admin, &world).await?;
    println!("the API server has all objects after {:.0} s", began.elapsed().as_secs_f64());
    let mut scene = Scene {
        size,
        world: &world,
        dataplanes: &dataplanes,
        arguments,
        log,
        changed: BTreeMap::new(),
    };
    let change = async |at: usize, round: usize| {
        for slice in manifests::parse(&world.slice(at, round))? {
            let path = path(&slice).context("a slice has a name")?;
            let kind = "application/merge-patch+json";
            send(&admin, Method::PATCH, &path, kind, &slice).await?.object()?;
        }
        Ok(())
    };
    let lives = [
        scene.life("first start", size.policies, change).await?,
        scene.life("restart", 0, change).await?,
    ];
    print(&title("a kube-apiserver", &world), &lives);
    // Whether the last change was told before the end is luck; that each was accepted was told long
    // before.
    let policies = get(&admin, "/apis/baton.dev/v1alpha1/loadbalancerpolicies").await?;
    let policies = policies["items"].as_array().context("a list")?;
    assert_eq!(policies.len(), size.policies);
    for policy in policies {
        let conditions = policy["status"]["conditions"].as_array().context("a status")?;
        let accepted = conditions.iter().find(|c| c["type"] == "Accepted");
        assert_eq!(accepted.context("Accepted")?["status"], "True", "{policy}");
    }
    Ok(())
}

/// The certificate that an operator makes for dataplanes before there are any.
async fn material(admin: &Client, arguments: &[OsString], server: &ApiServer) -> Result<Material> {
    let operator = Operator::start(arguments, &server.folder().join("certificates.log")).await?;
    let secret = format!("/api/v1/namespaces/{OPERATOR_NAMESPACE}/secrets/baton-dataplane-tls");
    let found = wait_for("the dataplanes' certificate", async || {
        let secret = get(admin, &secret).await?;
        let field = |name: &str| -> Result<Vec<u8>> {
            let bytes: ByteString = serde_json::from_value(secret["data"][name].clone())?;
            Ok(bytes.0)
        };
        Ok(Material::from_pem(&field("tls.crt")?, &field("tls.key")?, &field("ca.crt")?)?)
    });
    let found = found.await.with_context(|| operator.log())?;
    operator.terminate()?;
    Ok(found)
}

async fn populate(admin: &Client, world: &Arc<World>) -> Result<()> {
    for namespace in world.namespaces() {
        let object =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        apply(admin, &object).await?.object()?;
        let metadata = json!({"name": "default", "namespace": namespace});
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata});
        apply(admin, &account).await?.object()?;
    }
    for mut object in manifests::parse(&world.system())? {
        let status = object.as_object_mut().and_then(|fields| fields.remove("status"));
        apply(admin, &object).await?.object()?;
        if let Some(status) = status {
            let path = format!("{}/status", path(&object).context("a pod has a name")?);
            let status = json!({ "status": status });
            send(admin, Method::PATCH, &path, "application/merge-patch+json", &status)
                .await?
                .object()?;
        }
    }
    let mut makers = JoinSet::new();
    for maker in 0..CONCURRENT {
        let (admin, world) = (admin.clone(), Arc::clone(world));
        makers.spawn(async move {
            for at in (maker..world.policies).step_by(CONCURRENT) {
                for object in manifests::parse(&(world.policy(at) + &world.slice(at, 0)))? {
                    create(&admin, &object).await?;
                }
                for endpoint in 0..ENDPOINTS_EACH {
                    create(&admin, &world.pod(at, endpoint)).await?;
                }
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = makers.join_next().await {
        ended??;
    }
    Ok(())
}

async fn create(admin: &Client, object: &Value) -> Result<()> {
    let path = path(object).context("an object has a name")?;
    let (collection, _) = path.rsplit_once('/').context("a path")?;
    let uri = format!("{collection}?fieldManager=kube-controller-manager");
    let created =
        tokio::time::timeout(DEADLINE, send(admin, Method::POST, &uri, "application/json", object))
            .await;
    created.context("no answer")??.object()?;
    Ok(())
}
