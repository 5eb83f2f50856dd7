//! The cluster itself: its nodes become Ready, Pods answer each other, and nothing stays on the
//! machine, neither when it is ended in order nor when its owner is killed. `make e2e-cluster` runs
//! it; it needs root and minutes.

use baton_cluster::{
    CLIENT_IMAGE, Cluster, Options, ProxyMode, SERVER_IMAGE, clean, client_image, server_image,
};
use std::{
    env, fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// The kernel ends a node's processes within a second.
const END_DEADLINE: Duration = Duration::from_secs(30);

/// What a cluster could leave behind or change.
#[derive(Debug, PartialEq, Eq)]
struct Traces {
    interfaces: Vec<String>,
    namespaces: Vec<String>,
    cgroups: Vec<String>,
    folders: Vec<String>,
    mounts: Vec<String>,
    processes: Vec<String>,
    sysctls: Vec<String>,
}

impl Traces {
    fn now() -> Self {
        let named = |folder: &str, mark: &str| {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            let mut names: Vec<String> = entries
                .map(|e| e.file_name().to_string_lossy().into_owned())
                // Locks stay: removing one that somebody waits for would let two own it.
                .filter(|name| name.starts_with(mark) && !name.ends_with(".lock"))
                .collect();
            names.sort();
            names
        };
        let cgroups = fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten();
        let cgroups = cgroups.flat_map(|h| named(&h.path().display().to_string(), "bt"));
        let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
        let sysctls = [
            "vm/overcommit_memory",
            "vm/panic_on_oom",
            "kernel/panic",
            "kernel/panic_on_oops",
            "kernel/keys/root_maxkeys",
            "kernel/keys/root_maxbytes",
            "kernel/hostname",
            "net/netfilter/nf_conntrack_max",
            "net/ipv4/ip_forward",
        ];
        let sysctl = |name: &&str| {
            let value = fs::read_to_string(Path::new("/proc/sys").join(name)).unwrap_or_default();
            format!("{name}={}", value.trim())
        };
        let temporary = env::temp_dir().display().to_string();
        Self {
            interfaces: named("/sys/class/net", "bt-cluster"),
            namespaces: named("/run/netns", "bt-cluster"),
            cgroups: cgroups.filter(|name| name.contains("-node")).collect(),
            folders: named(&temporary, "baton-cluster-"),
            mounts: mounts
                .lines()
                .filter(|l| l.contains("baton-cluster"))
                .map(str::to_owned)
                .collect(),
            processes: processes(),
            sysctls: sysctls.iter().map(sysctl).collect(),
        }
    }
}

/// Command lines of processes that belong to a cluster: their files are in its folder.
fn processes() -> Vec<String> {
    let mark = env::temp_dir().join("baton-cluster-").display().to_string();
    let entries = fs::read_dir("/proc").expect("processes").flatten();
    let mut lines: Vec<String> = entries
        .filter_map(|e| fs::read(e.path().join("cmdline")).ok())
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.contains(&mark))
        .collect();
    lines.sort();
    lines
}

fn images(folder: &Path) -> Vec<PathBuf> {
    fs::create_dir_all(folder).expect("a folder");
    vec![
        server_image(folder).expect("the server image"),
        client_image(folder, &[]).expect("the client image"),
    ]
}

/// Applies a manifest that is written as one JSON document.
fn apply(cluster: &Cluster, manifest: &str) {
    let path = cluster.folder().join("manifest.json");
    fs::write(&path, manifest).expect("the manifest");
    cluster.kubectl(&["apply", "-f", &path.display().to_string()]).expect("kubectl");
}

/// A Pod that passes the strictest Pod Security profile.
fn pod(name: &str, image: &str, node: &str) -> String {
    format!(
        r#"{{
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {{ "name": "{name}", "labels": {{ "app": "{name}" }} }},
        "spec": {{
            "nodeName": "{node}",
            "terminationGracePeriodSeconds": 1,
            "containers": [{{
                "name": "main", "image": "{image}",
                "securityContext": {{
                    "runAsNonRoot": true, "readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false,
                    "capabilities": {{ "drop": ["ALL"] }}, "seccompProfile": {{ "type": "RuntimeDefault" }}
                }},
                "volumeMounts": [{{ "name": "tmp", "mountPath": "/tmp" }}]
            }}],
            "volumes": [{{ "name": "tmp", "emptyDir": {{}} }}]
        }} }}"#
    )
}

fn service(name: &str) -> String {
    format!(
        r#"{{ "apiVersion": "v1", "kind": "Service", "metadata": {{ "name": "{name}" }},
        "spec": {{ "selector": {{ "app": "{name}" }}, "ports": [{{ "port": 80, "targetPort": 8080 }}] }} }}"#
    )
}

/// What the client Pod gets from `address`. kube-proxy may still be on its way to a new Service's
/// rules: curl tries again while it is refused.
fn get(cluster: &Cluster, address: &str) -> String {
    let url = format!("http://{address}/");
    let curl = [
        "exec",
        "client",
        "--",
        "curl",
        "-sS",
        "--retry",
        "30",
        "--retry-delay",
        "1",
        "--retry-all-errors",
        "-m",
        "2",
        &url,
    ];
    cluster.kubectl(&curl).expect("kubectl").trim().to_owned()
}

fn field(cluster: &Cluster, object: &str, path: &str) -> String {
    let output = format!("jsonpath={{{path}}}");
    cluster.kubectl(&["get", object, "-o", &output]).expect("kubectl")
}

#[test]
fn pods_answer_each_other_on_one_node_and_on_two_and_nothing_is_left() {
    clean().unwrap();
    let before = Traces::now();
    let folder = env::temp_dir().join(format!("baton-test-images-{}", std::process::id()));
    let mut cluster =
        Cluster::up(&Options { nodes: 1, images: images(&folder), proxy: ProxyMode::default() })
            .unwrap();
    fs::remove_dir_all(&folder).unwrap();
    let first = cluster.nodes()[0].name().to_owned();
    apply(&cluster, &pod("server", SERVER_IMAGE, &first));
    apply(&cluster, &pod("client", CLIENT_IMAGE, &first));
    apply(&cluster, &service("server"));
    cluster
        .kubectl(&["wait", "--for=condition=Ready", "pod/server", "pod/client", "--timeout=60s"])
        .unwrap();
    let address = field(&cluster, "pod/server", ".status.podIP");
    assert_eq!(get(&cluster, &format!("{address}:8080")), "server");
    assert_eq!(get(&cluster, &field(&cluster, "service/server", ".spec.clusterIP")), "server");
    let id = cluster.kubectl(&["exec", "server", "--", "/bin/cat", "/proc/1/cgroup"]).unwrap();
    let uid = field(&cluster, "pod/server", ".metadata.uid");
    assert!(id.contains(&format!("/{first}/kubepods/besteffort/pod{uid}/")), "{id}");

    let second = cluster.add_node().unwrap().name().to_owned();
    apply(&cluster, &pod("remote", SERVER_IMAGE, &second));
    apply(&cluster, &service("remote"));
    cluster.kubectl(&["wait", "--for=condition=Ready", "pod/remote", "--timeout=60s"]).unwrap();
    let address = field(&cluster, "pod/remote", ".status.podIP");
    assert_eq!(get(&cluster, &format!("{address}:8080")), "remote");
    assert_eq!(get(&cluster, &field(&cluster, "service/remote", ".spec.clusterIP")), "remote");

    cluster.node_mut(&second).unwrap().crash().unwrap();
    let node = format!("node/{second}");
    cluster.kubectl(&["wait", "--for=condition=Ready=Unknown", &node, "--timeout=120s"]).unwrap();
    assert_eq!(get(&cluster, &field(&cluster, "service/server", ".spec.clusterIP")), "server");

    let during = Traces::now();
    assert!(
        !during.processes.is_empty() && !during.cgroups.is_empty() && !during.interfaces.is_empty()
    );
    assert_eq!(during.sysctls, before.sysctls);
    drop(cluster);
    assert_eq!(Traces::now(), before);
}

#[test]
fn what_a_killed_owner_leaves_is_removed_at_the_next_start() {
    clean().unwrap();
    let before = Traces::now();
    let mut owner = Command::new(env!("CARGO_BIN_EXE_baton-cluster"))
        .args(["hold", "--nodes=1"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(owner.stdout.take().unwrap()).read_line(&mut said).unwrap();
    let kubeconfig = said.trim().strip_prefix("ready ").map(Path::new);
    assert!(kubeconfig.is_some_and(Path::is_file), "{said:?}");
    assert!(!processes().is_empty());
    owner.kill().unwrap();
    owner.wait().unwrap();
    // Nobody ends them but the kernel.
    let end = Instant::now() + END_DEADLINE;
    while processes() != before.processes {
        assert!(Instant::now() < end, "still run: {:#?}", processes());
        thread::sleep(Duration::from_millis(20));
    }
    clean().unwrap();
    assert_eq!(Traces::now(), before);
}

#[test]
fn one_started_by_hand_is_seen_into_and_ended() {
    clean().unwrap();
    let before = Traces::now();
    let program = env!("CARGO_BIN_EXE_baton-cluster");
    let say = |arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {error}");
        String::from_utf8(output.stdout).unwrap()
    };
    let said = say(&["up"]);
    assert!(said.contains("export KUBECONFIG="), "{said}");
    let nodes = say(&["shell", "--", "kubectl", "get", "nodes", "--no-headers"]);
    assert!(nodes.contains(" Ready "), "{nodes}");
    say(&["down"]);
    assert_eq!(Traces::now(), before);
}
