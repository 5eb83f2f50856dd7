//! Pod discovery of host-shim: a real API server with the rights of `host-shim/rbac`, a real
//! kernel, and a process that is in a network namespace and a control group as a kubelet's would
//! be. Needs root.

mod sandbox;
mod shim;

use anyhow::{Context, Result, ensure};
use baton_apiserver::ApiServer;
use baton_operator_tests::{
    admin::Admin,
    cluster::{cluster, wait_for},
    manifests,
    objects::policy,
};
use sandbox::{Sandbox, run};
use serde_json::{Value, json};
use shim::Shim;
use std::{
    fs,
    net::Ipv4Addr,
    os::unix::fs::MetadataExt,
    time::{Duration, Instant},
};

/// The node of each test, which is also the name of its shim's folder.
const DISCOVERY: &str = "discovery";
const SLICES: &str = "slices";
/// How often a pod is started for the printed figure.
const STARTS: usize = 20;

/// A server that knows host-shim's rights, and a Service in a namespace of its own there.
async fn with_service(
    namespace: &str,
    name: &str,
    spec: &Value,
) -> Result<Option<(&'static ApiServer, Admin, String)>> {
    let Some(cluster) = cluster().await? else {
        return Ok(None);
    };
    let admin = Admin::new(cluster.admin, None);
    for manifest in manifests::folder("host-shim/rbac")? {
        admin.apply(&manifest).await?;
    }
    let namespace = cluster.server.namespace(namespace).await?.name;
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": name, "namespace": namespace }, "spec": spec,
    });
    admin.apply(&service).await?;
    Ok(Some((cluster.server, admin, namespace)))
}

/// A Pod of a node, as the scheduler leaves it; its UID.
async fn scheduled(
    admin: &Admin,
    node: &str,
    namespace: &str,
    name: &str,
    change: &Value,
) -> Result<(Value, String)> {
    let mut pod = baton_operator_tests::cluster::pod(namespace, name);
    pod["spec"]["nodeName"] = node.into();
    if let Some(spec) = change.as_object() {
        for (field, value) in spec {
            pod["spec"][field] = value.clone();
        }
    }
    let stored = admin.apply(&pod).await?;
    let uid = stored["metadata"]["uid"].as_str().context("a UID")?.to_owned();
    Ok((pod, uid))
}

fn is_attached(pod: Option<Value>) -> bool {
    pod.is_some_and(|pod| pod["attached"] == true)
}

#[tokio::test]
async fn pods_of_policies_get_the_adopter_as_they_start_and_lose_it_as_they_go() -> Result<()> {
    let spec = json!({ "selector": { "app": "shop" }, "ports": [{ "port": 80 }] });
    let Some((server, admin, namespace)) = with_service("discovery", "web", &spec).await? else {
        return Ok(());
    };
    let identity = server.service_account("baton-system", "baton-host-shim").await?;
    let kubeconfig = server.kubeconfig_file(&identity)?;
    let folder = server.folder().join(DISCOVERY);
    let (shim, pins) = Shim::ready(&kubeconfig, &folder).await?;

    let nothing_attached = pins.files()?;
    // A Pod runs before any policy is about it: nobody touches it.
    let (first, uid) = scheduled(&admin, DISCOVERY, &namespace, "web-a", &Value::Null).await?;
    let first_name = format!("{namespace}/web-a");
    let _sandbox = Sandbox::start(&uid, 0, Ipv4Addr::new(10, 99, 0, 2))?;
    admin.pod_status(&namespace, "web-a", "10.99.0.2").await?;
    ensure!(shim.pod(&first_name)?.is_none());
    let web = policy(&namespace, "web", "web", 8_080);
    admin.apply(&web).await?;
    shim.until("the Pod of the new policy has the adopter", is_attached, &first_name).await?;

    // Pods that start: the adopter's attach latency after Pod Ready.
    let mut times = Vec::new();
    for number in 1..=STARTS {
        let (name, ip) = (format!("web-{number}"), Ipv4Addr::new(10, 99, 1, number as u8));
        let (pod, uid) = scheduled(&admin, DISCOVERY, &namespace, &name, &Value::Null).await?;
        let full = format!("{namespace}/{name}");
        shim.until(
            "the Pod is known, and has no process",
            |pod| pod.is_some_and(|p| p["attached"] == false),
            &full,
        )
        .await?;
        let before = Instant::now();
        let sandbox = Sandbox::start(&uid, number, ip)?;
        // The process is in its namespace before a kubelet says that the Pod runs.
        let inside = fs::metadata(format!("/run/netns/{}", sandbox.netns))?.ino();
        wait_for("the process is in its namespace", async || {
            let file = format!("/proc/{}/ns/net", sandbox.process.id());
            ensure!(fs::metadata(file)?.ino() == inside);
            Ok(())
        })
        .await?;
        let started = Instant::now();
        admin.pod_status(&namespace, &name, &ip.to_string()).await?;
        while !is_attached(shim.pod(&full)?) {
            ensure!(before.elapsed() < Duration::from_secs(20), "{}", shim.log());
        }
        times.push(started.elapsed());
        admin.delete_with(&pod, &json!({ "gracePeriodSeconds": 0 })).await?;
        // A forced deletion: the API server forgets it before its processes end, whose last
        // segments need the mark.
        let gone = |pod: Option<Value>| {
            pod.is_some_and(|pod| pod["gone"] == true && pod["attached"] == true)
        };
        shim.until("the Pod that went has it still", gone, &full).await?;
        drop(sandbox);
        shim.until("the Pod that ended is forgotten", |pod| pod.is_none(), &full).await?;
    }
    times.sort();
    println!(
        "adopter attach latency after Pod Ready: p50 {:.1} ms, worst {:.1} ms ({STARTS} Pods)",
        times[STARTS / 2].as_secs_f64() * 1e3,
        times[STARTS - 1].as_secs_f64() * 1e3,
    );

    // What cannot have it says why.
    let hosted = json!({ "hostNetwork": true });
    scheduled(&admin, DISCOVERY, &namespace, "hosted", &hosted).await?;
    scheduled(&admin, DISCOVERY, &namespace, "virtual", &Value::Null).await?;
    let (_, uid) = scheduled(&admin, DISCOVERY, &namespace, "uncookied", &Value::Null).await?;
    // As Kata Containers have it by default: the machine's process is in no Pod's control group.
    let machine = folder.join("qemu-system-x86_64");
    fs::copy("/bin/sleep", &machine)?;
    let machine = format!("{} 1000", machine.display());
    let (virtual_ip, uncookied_ip) = (Ipv4Addr::new(10, 99, 3, 1), Ipv4Addr::new(10, 99, 3, 2));
    let _machine = Sandbox::with("kata_overhead/ab12", &machine, 201, virtual_ip)?;
    let uncookied = Sandbox::start(&uid, 202, uncookied_ip)?;
    let off = "echo 0 > /proc/sys/net/ipv4/tcp_syncookies";
    run(&["ip", "netns", "exec", &uncookied.netns, "sh", "-c", off])?;
    for (name, ip) in [("virtual", virtual_ip), ("uncookied", uncookied_ip)] {
        admin.pod_status(&namespace, name, &ip.to_string()).await?;
    }
    for (name, said) in [
        ("hosted", "hostNetwork"),
        ("virtual", "it runs under Kata Containers (QEMU)"),
        ("uncookied", "net.ipv4.tcp_syncookies is 0"),
    ] {
        let why = |pod: Option<Value>| {
            pod.is_some_and(|p| p["reason"].as_str().is_some_and(|r| r.contains(said)))
        };
        shim.until(said, why, &format!("{namespace}/{name}")).await?;
    }

    // The next shim takes over what the last one left, without taking it off.
    shim.end()?;
    let shim = Shim::start(&kubeconfig, &folder)?;
    shim.until("the next shim has it", is_attached, &first_name).await?;
    ensure!(shim.log().contains("taken_over=true"), "{}", shim.log());

    // The policy goes: nothing is left on the Pod.
    admin.delete(&web).await?;
    shim.until("the Pod is let go", |pod| pod.is_none(), &first_name).await?;
    let left = pins.files()?;
    ensure!(left == nothing_attached, "{left:?} {nothing_attached:?}");
    ensure!(!shim.log().contains("not detached"), "{}", shim.log());
    admin.delete_with(&first, &json!({ "gracePeriodSeconds": 0 })).await?;
    shim.end()
}

#[tokio::test]
async fn pods_that_only_endpoint_slices_name_get_the_adopter_in_either_family() -> Result<()> {
    // Dual stack, without a selector: whoever made it says what its Pods are.
    let spec = json!({ "clusterIP": "None", "ports": [{ "name": "http", "port": 80 }] });
    let Some((server, admin, namespace)) = with_service("slices", "manual", &spec).await? else {
        return Ok(());
    };
    admin.apply(&policy(&namespace, "manual", "manual", 8_090)).await?;
    let mut sandboxes = Vec::new();
    for (at, name) in ["named", "four", "six", "nobodys"].into_iter().enumerate() {
        let (_, uid) = scheduled(&admin, SLICES, &namespace, name, &Value::Null).await?;
        let number = u8::try_from(at)? + 1;
        let four = Ipv4Addr::new(10, 99, 2, number);
        let sandbox = Sandbox::start(&uid, 100 + at, four)?;
        let six = format!("fd00:99::{number}");
        let address = format!("{six}/64");
        run(&["ip", "-n", &sandbox.netns, "addr", "add", &address, "dev", "eth0", "nodad"])?;
        sandboxes.push(sandbox);
        let pod = baton_operator_tests::cluster::pod(&namespace, name);
        let both = json!([{ "ip": four.to_string() }, { "ip": six }]);
        let status =
            json!({ "status": { "phase": "Running", "podIP": four.to_string(), "podIPs": both } });
        admin.merge(&pod, "/status", &status).await?;
    }
    let identity = server.service_account("baton-system", "baton-host-shim").await?;
    let kubeconfig = server.kubeconfig_file(&identity)?;
    let (shim, _pins) = Shim::ready(&kubeconfig, &server.folder().join(SLICES)).await?;
    let full = |name: &str| format!("{namespace}/{name}");
    ensure!(shim.pod(&full("named"))?.is_none(), "nothing names it yet");

    let slice = |name: &str, family: &str, by: &str, endpoints: Value| {
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": family,
            "metadata": {
                "name": name, "namespace": namespace,
                "labels": { "kubernetes.io/service-name": "manual", "endpointslice.kubernetes.io/managed-by": by },
            },
            "ports": [{ "name": "http", "port": 80 }],
            "endpoints": endpoints,
        })
    };
    let target = json!({ "kind": "Pod", "name": "named", "namespace": namespace });
    let by_name = json!({ "addresses": ["10.99.2.1"], "targetRef": target, "nodeName": SLICES });
    let by_address = json!({ "addresses": ["10.99.2.2"] });
    let four = slice("four", "IPv4", "a-person", json!([by_name, by_address]));
    let six = json!([{ "addresses": ["fd00:99::3"] }, { "addresses": ["fd00:99::4"], "nodeName": "another" }]);
    let six = slice("six", "IPv6", "another-controller.example", six);
    admin.apply(&four).await?;
    admin.apply(&six).await?;
    for name in ["named", "four", "six"] {
        shim.until("the Pod that a slice names has the adopter", is_attached, &full(name)).await?;
    }
    ensure!(shim.pod(&full("nobodys"))?.is_none(), "it is said to be on another node");

    admin.delete(&six).await?;
    shim.until("the Pod that no slice names is let go", |pod| pod.is_none(), &full("six")).await?;
    ensure!(is_attached(shim.pod(&full("four"))?), "{}", shim.log());
    admin.delete(&four).await?;
    for name in ["named", "four"] {
        shim.until("the Pod is let go", |pod| pod.is_none(), &full(name)).await?;
    }
    ensure!(!shim.log().contains("not detached"), "{}", shim.log());
    shim.end()
}
