//! What `check` says in clusters of many kinds: a mixed one, one that will not do, and each way by
//! which a network is recognised.

use super::{
    network::{NOT_KNOWN, NOT_RECOGNISED},
    report::Report,
    *,
};
use crate::{
    fake::{Fake, golden},
    samples::written,
};
use baton_cli::{Style, WIDTH_MAX};
use serde_json::{Value, json};

/// What the API server would give for it.
fn add<T: serde::de::DeserializeOwned + serde::Serialize>(
    fake: &mut Fake,
    kind: Kind,
    object: &Value,
) {
    let object = written::<T>("an object of a test", &object.to_string());
    let objects = fake.objects.get_mut();
    objects.entry(kind).or_default().push(object);
}

fn daemon_set(fake: &mut Fake, namespace: &str, name: &str, spec: &Value) {
    let set = json!({
        "metadata": {"namespace": namespace, "name": name, "labels": {"k8s-app": name}},
        "spec": {
            "selector": {},
            "template": {"spec": {"hostNetwork": true, "containers": [spec]}},
        },
    });
    add::<DaemonSet>(fake, Kind::DaemonSets, &set);
}

fn service(fake: &mut Fake, name: &str, spec: &Value) {
    let service = json!({"metadata": {"namespace": "shop", "name": name}, "spec": spec});
    add::<Service>(fake, Kind::Services, &service);
}

fn pod(fake: &mut Fake, name: &str, change: impl FnOnce(&mut Value)) {
    let mut pod = json!({
        "metadata": {"namespace": "shop", "name": name, "labels": {"app": "mixed"}},
        "spec": {"nodeName": "node-1", "containers": [{"name": "server"}]},
        "status": {"phase": "Running"},
    });
    change(&mut pod);
    add::<Pod>(fake, Kind::Pods, &pod);
}

fn config_map(fake: &mut Fake, name: &str, key: &str, text: &str) {
    let map = json!({"metadata": {"namespace": "kube-system", "name": name}, "data": {key: text}});
    add::<ConfigMap>(fake, Kind::ConfigMaps, &map);
}

fn nodes(fake: &mut Fake) -> &mut Vec<Value> {
    let objects = fake.objects.get_mut();
    objects.get_mut(&Kind::Nodes).expect("nodes")
}

/// The samples' cluster without Baton, with a bit of all that makes a difference.
fn mixed() -> Fake {
    let mut fake = Fake::new();
    let objects = fake.objects.get_mut();
    objects.remove(&Kind::Policies);
    objects.remove(&Kind::Classes);
    let pods = objects.get_mut(&Kind::Pods).expect("Pods");
    pods.retain(|pod| pod["metadata"]["namespace"] != "baton-system");
    for node in nodes(&mut fake) {
        let info = &mut node["status"]["nodeInfo"];
        info["osImage"] = "Debian GNU/Linux 13 (trixie)".into();
        info["containerRuntimeVersion"] = "containerd://2.0.2".into();
    }
    let mut old = nodes(&mut fake)[0].clone();
    old["metadata"]["name"] = "node-old".into();
    old["status"]["nodeInfo"]["osImage"] = "Ubuntu 22.04.5 LTS".into();
    old["status"]["nodeInfo"]["kernelVersion"] = "5.15.0-130-generic".into();
    nodes(&mut fake).push(old);
    let flannel = json!({"name": "a", "image": "ghcr.io/flannel-io/flannel:v0.27"});
    daemon_set(&mut fake, "kube-flannel", "kube-flannel-ds", &flannel);
    let config =
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: \"\"\n";
    config_map(&mut fake, "kube-proxy", "config.conf", config);
    let istio = json!({"metadata": {"name": "bank", "labels": {"istio-injection": "enabled"}}});
    add::<Namespace>(&mut fake, Kind::Namespaces, &istio);

    let selector = json!({"app": "mixed"});
    let ports = json!([{"name": "http", "port": 8000}]);
    let spec = json!({"selector": selector, "ports": ports});
    service(&mut fake, "mixed", &spec);
    pod(&mut fake, "mixed-1", |_| ());
    pod(&mut fake, "mixed-2", |p| {
        p["spec"]["hostNetwork"] = true.into();
    });
    pod(&mut fake, "mixed-3", |p| {
        p["spec"]["runtimeClassName"] = "gvisor".into();
    });
    pod(&mut fake, "mixed-4", |p| {
        p["spec"]["nodeName"] = "node-old".into();
    });
    pod(&mut fake, "mixed-5", |p| {
        p["spec"]["initContainers"] = json!([{"name": "linkerd-proxy", "restartPolicy": "Always"}]);
    });
    pod(&mut fake, "mixed-6", |p| {
        p["spec"]["nodeName"] = Value::Null;
    });
    pod(&mut fake, "mixed-ended", |p| {
        p["status"]["phase"] = "Succeeded".into();
    });
    let on = |port: Value| json!({"selector": {"app": "web"}, "ports": [port]});
    service(&mut fake, "secure", &on(json!({"name": "https", "port": 443})));
    service(&mut fake, "strange", &on(json!({"port": 9000})));
    let ports = json!([{"name": "http", "port": 80}, {"name": "grpc", "port": 9090}]);
    let selector = json!({"app": "web"});
    service(&mut fake, "two", &json!({"selector": selector, "ports": ports}));
    service(&mut fake, "dns", &on(json!({"port": 53, "protocol": "UDP"})));
    service(&mut fake, "elsewhere", &json!({"type": "ExternalName"}));
    service(&mut fake, "by-hand", &json!({"ports": [{"port": 80}]}));
    let flux = json!({
        "metadata": {
            "namespace": "shop", "name": "kept",
            "labels": {"kustomize.toolkit.fluxcd.io/name": "shop"},
        },
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]},
    });
    add::<Service>(&mut fake, Kind::Services, &flux);
    fake
}

async fn seen(fake: &Fake, namespace: Option<&str>) -> Report {
    let report = judge(&look(fake, namespace).await.expect("it answers"));
    assert_eq!(report.installable, report.problems.is_empty());
    assert!(fake.written.borrow().is_empty() && fake.ran.borrow().is_empty());
    report
}

fn narrow(text: &str) {
    let fits = |line: &str| line.chars().count() <= WIDTH_MAX;
    assert!(text.lines().all(fits), "{text}");
}

#[tokio::test]
async fn a_mixed_cluster_without_baton() {
    let report = seen(&mixed(), None).await;
    assert!(report.installable, "{report:?}");
    assert_eq!(report.unseen, Vec::<String>::new());
    let text = render(&report, Style::default());
    narrow(&text);
    golden("check.txt", &text);
    let wide = Style { wide: true, colour: false };
    golden("check-wide.txt", &render(&report, wide));
    // One namespace's Services only.
    let report = seen(&mixed(), Some("data")).await;
    let names: Vec<&str> = report.services.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(names, ["redis"]);
    let none = seen(&mixed(), Some("empty")).await;
    let note = "there is no Service in namespace empty: `-A`";
    assert!(none.notes.iter().any(|n| n.starts_with(note)), "{none:?}");
}

#[tokio::test]
async fn a_cluster_that_will_not_do() {
    let mut fake = mixed();
    fake.version = "v1.29.4+k3s1".to_owned();
    for node in nodes(&mut fake) {
        node["status"]["nodeInfo"]["operatingSystem"] = "windows".into();
    }
    fake.forbidden = vec![Kind::DaemonSets, Kind::Pods];
    let report = seen(&fake, Some("shop")).await;
    assert_eq!(report.problems.len(), 2, "{report:?}");
    assert_eq!(report.next, None);
    let text = render(&report, Style::default());
    narrow(&text);
    golden("check-bad.txt", &text);
}

#[tokio::test]
async fn the_kubernetes_that_the_chart_takes_is_new_enough() {
    let (major, minor) = judge::KUBERNETES_MIN;
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/../charts/baton/Chart.yaml");
    let chart = std::fs::read_to_string(chart).expect("the chart");
    let needs = format!("kubeVersion: \">={major}.{minor}.0-0\"");
    assert!(chart.contains(&needs), "{chart}");
    for (version, installable, unseen) in [
        ("v1.30.14", false, 0),
        ("v1.31.0", true, 0),
        ("v1.32.1-eks-2d5f", true, 0),
        ("v2.0.0", true, 0),
        ("main", true, 1),
    ] {
        let mut fake = mixed();
        fake.version = version.to_owned();
        let report = seen(&fake, None).await;
        let is = (report.installable, report.unseen.len());
        assert_eq!(is, (installable, unseen), "{version}");
    }
}

#[tokio::test]
async fn what_may_not_be_listed_is_said_and_the_rest_is_looked_at() {
    let mut fake = mixed();
    fake.forbidden = vec![Kind::Nodes, Kind::DaemonSets, Kind::ConfigMaps, Kind::Namespaces];
    let report = seen(&fake, Some("shop")).await;
    assert!(report.installable && report.nodes.is_empty());
    assert_eq!(report.unseen.len(), 4, "{report:?}");
    let cluster = &report.cluster;
    assert_eq!(cluster.network.found, NOT_KNOWN);
    assert_eq!(cluster.network.how, "may not list daemonsets");
    assert_eq!(cluster.kube_proxy.found, NOT_KNOWN);
    assert!(cluster.mesh.how.starts_with("may not list namespaces; "));
    let mixed = report.services.iter().find(|s| s.name == "mixed");
    let pods = mixed.and_then(|s| s.pods.clone()).expect("Pods");
    // Those whose node does not matter are known all the same.
    assert_eq!((pods.adoption, pods.translation, pods.unknown), (0, 3, 3));
    let text = render(&report, Style::default());
    assert!(text.starts_with("Nothing that could be looked at forbids"), "{text}");
    // With no right at all there is still an answer, and nothing is made up.
    fake.forbidden = Kind::ALL.to_vec();
    let report = seen(&fake, None).await;
    assert_eq!((report.services.len(), &*report.cluster.mesh.found), (0, NOT_KNOWN));
    assert!(!report.notes.iter().any(|n| n.contains("no Service")));
}

#[tokio::test]
async fn a_network_is_recognised_by_its_daemon_set() {
    let nothing = json!({"name": "a", "image": "registry.example/agent:1"});
    for (name, image, expected) in [
        ("kindnet", None, "kindnet"),
        ("calico-node", None, "Calico"),
        ("cilium", None, "Cilium"),
        ("cilium-envoy", None, NOT_RECOGNISED),
        ("rke2-canal", Some("calico/node"), "Canal"),
        ("aws-node", None, "Amazon VPC CNI"),
        ("own-name", Some("registry.example:5000/amazon-k8s-cni:v1@sha256:ab"), "Amazon VPC CNI"),
        ("antrea-agent", None, "Antrea"),
        ("node-exporter", None, NOT_RECOGNISED),
    ] {
        let mut fake = Fake::empty();
        let mut container = nothing.clone();
        if let Some(image) = image {
            container["image"] = image.into();
        }
        daemon_set(&mut fake, "kube-system", name, &container);
        let report = seen(&fake, None).await;
        assert_eq!(report.cluster.network.found, expected, "{name}");
        let untried = report.notes.iter().any(|n| n.contains("was not tried with"));
        let known = expected != NOT_RECOGNISED && expected != "kindnet";
        // A cluster without nodes has no note of its own.
        assert_eq!(untried, known, "{name}: {report:?}");
    }
    // One that anybody may have made is not the cluster's.
    for (namespace, host_network, class, found) in [
        ("calico-system", true, None, "Calico"),
        ("calico-system", false, None, NOT_RECOGNISED),
        ("kube-system", false, None, "Calico"),
        ("networking", true, Some("system-node-critical"), "Calico"),
        ("shop", true, None, NOT_RECOGNISED),
        ("shop", false, Some("system-node-critical"), NOT_RECOGNISED),
    ] {
        let mut fake = Fake::empty();
        daemon_set(&mut fake, namespace, "calico-node", &nothing);
        let sets = fake.objects.get_mut().get_mut(&Kind::DaemonSets);
        let spec = &mut sets.expect("DaemonSets")[0]["spec"]["template"]["spec"];
        spec["hostNetwork"] = host_network.into();
        spec["priorityClassName"] = class.into();
        let network = seen(&fake, None).await.cluster.network;
        assert_eq!(network.found, found, "{namespace} {host_network} {class:?}");
    }
    // Where k3s runs flannel itself.
    let mut fake = Fake::new();
    nodes(&mut fake)[1]["metadata"]["annotations"] =
        json!({"flannel.alpha.coreos.com/backend-type": "vxlan"});
    let network = seen(&fake, None).await.cluster.network;
    assert_eq!(network.found, "flannel");
    assert!(network.how.contains("backend vxlan"), "{network:?}");
}

#[tokio::test]
async fn the_mode_of_kube_proxy_is_found_where_it_is_said() {
    async fn found(fake: &Fake) -> (String, String) {
        let found = seen(fake, None).await.cluster.kube_proxy;
        (found.found, found.how)
    }
    let config = |mode: &str| format!("kind: KubeProxyConfiguration\nmode: {mode}\n");
    for (mode, expected) in [("ipvs", "ipvs"), ("\"nftables\"", "nftables"), ("\"\"", "iptables")] {
        let mut fake = Fake::new();
        config_map(&mut fake, "kube-proxy", "config.conf", &config(mode));
        assert_eq!(found(&fake).await.0, expected, "{mode}");
    }
    let mut cilium = Fake::new();
    config_map(&mut cilium, "kube-proxy", "config.conf", &config("ipvs"));
    let replaces = "kube-proxy-replacement";
    config_map(&mut cilium, "cilium-config", replaces, "true");
    assert_eq!(found(&cilium).await.0, "none, Cilium replaces it");
    let notes = seen(&cilium, None).await.notes.join("\n");
    assert!(notes.contains("was not tried without it"), "{notes}");
    let mut beside = Fake::new();
    config_map(&mut beside, "cilium-config", replaces, "false");
    config_map(&mut beside, "kube-proxy-config", "config", &config("ipvs"));
    assert_eq!(found(&beside).await.0, "ipvs", "Cilium leaves it alone");

    let argument =
        json!({"name": "a", "command": ["kube-proxy", "--v=2"], "args": ["--proxy-mode", "ipvs"]});
    let mut by_argument = Fake::new();
    daemon_set(&mut by_argument, "kube-system", "kube-proxy", &argument);
    let ipvs = ("ipvs".to_owned(), "kube-proxy's arguments".to_owned());
    assert_eq!(found(&by_argument).await, ipvs);
    let mut tenants = Fake::new();
    daemon_set(&mut tenants, "shop", "kube-proxy", &argument);
    assert_eq!(found(&tenants).await.0, NOT_KNOWN, "a tenant's");
    let mut in_a_shell = Fake::new();
    pod(&mut in_a_shell, "kube-proxy-node-1", |p| {
        p["metadata"] =
            json!({"namespace": "kube-system", "name": "p", "labels": {"component": "kube-proxy"}});
        p["spec"]["containers"][0]["command"] =
            json!(["/bin/sh", "-c", "exec kube-proxy --proxy-mode=ipvs 1>>log"]);
    });
    assert_eq!(found(&in_a_shell).await, ipvs);
    let notes = seen(&in_a_shell, None).await.notes.join("\n");
    assert!(notes.contains("kube-proxy in mode ipvs"), "{notes}");

    for (arguments, expected) in [
        (r#"["server","--kube-proxy-arg","proxy-mode=ipvs"]"#, "ipvs"),
        (r#"["server"]"#, NOT_KNOWN),
        ("strange", NOT_KNOWN),
    ] {
        let mut k3s = Fake::new();
        nodes(&mut k3s)[0]["metadata"]["annotations"] = json!({"k3s.io/node-args": arguments});
        let (mode, how) = found(&k3s).await;
        assert_eq!(mode, expected, "{arguments}");
        assert!(how.contains("k3s"), "{how}");
    }
    assert_eq!(found(&Fake::new()).await.0, NOT_KNOWN);
}

#[tokio::test]
async fn nodes_differ_by_kernel_system_and_runtime() {
    for (key, value, reason) in [
        ("kernelVersion", "6.8.0-45-generic", "Linux before 6.9"),
        ("kernelVersion", "", "its node says nothing of itself"),
        ("operatingSystem", "windows", "not on Linux (windows)"),
        ("containerRuntimeVersion", "docker://27.1", "container runtime docker"),
    ] {
        let mut fake = Fake::new();
        nodes(&mut fake)[0]["status"]["nodeInfo"][key] = value.into();
        let report = seen(&fake, None).await;
        assert_eq!(report.nodes.len(), 2, "equal ones together");
        assert_eq!((report.nodes[0].nodes.len(), &report.nodes[0].reason), (2, &None));
        assert_eq!(report.nodes[1].reason.as_deref(), Some(reason));
        assert!(report.installable && report.notes[0].contains(" on node-1: "));
    }
    let mut fake = Fake::new();
    for node in nodes(&mut fake) {
        let info = &mut node["status"]["nodeInfo"];
        info["containerRuntimeVersion"] = "cri-o://1.36.0".into();
    }
    let report = seen(&fake, None).await;
    assert_eq!(report.nodes[0].method, "adoption");
}

#[tokio::test]
async fn a_long_table_is_cut_and_a_wide_one_is_not() {
    let mut fake = Fake::new();
    for i in 0..150 {
        let spec = json!({"selector": {"app": "web"}, "ports": [{"port": 80}]});
        service(&mut fake, &format!("web-{i:03}"), &spec);
    }
    let report = seen(&fake, Some("shop")).await;
    let text = render(&report, Style::default());
    assert!(text.contains("51 more: -o wide shows all"), "{text}");
    assert!(text.contains("web-098") && !text.contains("web-100"));
    let wide = Style { wide: true, colour: false };
    assert!(render(&report, wide).contains("web-149"));
}
