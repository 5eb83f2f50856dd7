//! Pod discovery of host-shim: a real API server with the rights of `host-shim/rbac`, a real kernel, and a process that is in
//! a network namespace and a control group as a kubelet's would be. Needs root.

use anyhow::{Context, Result, ensure};
use baton_operator_tests::{
    admin::Admin,
    cluster::{cluster, wait_for},
    manifests,
    objects::policy,
};
use serde_json::{Value, json};
use std::{
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{self, Child, Command, Stdio},
    time::{Duration, Instant},
};

const NODE: &str = "node-1";
/// How often a pod is started for the printed figure.
const STARTS: usize = 20;
const KEY: &str = "000102030405060708090a0b0c0d0e0f";

/// A command that must succeed.
fn run(words: &[&str]) -> Result<()> {
    let output = Command::new(words[0]).args(&words[1..]).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {said}", words.join(" "));
    Ok(())
}

/// Where control groups can be made: version 2, or any hierarchy of version 1.
fn cgroups() -> Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/mounts")?;
    let of_kind = |kind: &str| {
        let mut lines = mounts.lines().map(|l| l.split(' ').collect::<Vec<_>>());
        lines.find_map(|l| (l.get(2) == Some(&kind)).then(|| PathBuf::from(l[1])))
    };
    of_kind("cgroup2")
        .or_else(|| of_kind("cgroup"))
        .context("no control groups are mounted")
}

/// What a kubelet and a runtime make of a Pod: namespace, interface, control group, one process. Gone on drop.
struct Sandbox {
    netns: String,
    group: PathBuf,
    process: Child,
}

impl Sandbox {
    fn start(uid: &str, number: usize, ip: Ipv4Addr) -> Result<Self> {
        let netns = format!("bt-{}-d{number}", process::id());
        let _ = run(&["ip", "netns", "del", &netns]);
        run(&["ip", "netns", "add", &netns])?;
        let peer = format!("btd{}x{number}", process::id() % 10_000);
        run(&[
            "ip", "-n", &netns, "link", "add", "eth0", "type", "veth", "peer", "name", &peer,
        ])?;
        run(&[
            "ip",
            "-n",
            &netns,
            "addr",
            "add",
            &format!("{ip}/24"),
            "dev",
            "eth0",
        ])?;
        run(&["ip", "-n", &netns, "link", "set", "eth0", "up"])?;
        let group = cgroups()?.join(format!(
            "bt-{}/kubepods/burstable/pod{uid}/main",
            process::id()
        ));
        fs::create_dir_all(&group)?;
        // The shell moves itself, then becomes what stays, as a runtime's first process does.
        let script = format!(
            "echo $$ > {}/cgroup.procs && exec ip netns exec {netns} sleep 1000",
            group.display()
        );
        let process = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "sh", "-c", &script])
            .stdin(Stdio::null())
            .spawn()
            .context("starting a process through setpriv (util-linux)")?;
        Ok(Self {
            netns,
            group,
            process,
        })
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = run(&["ip", "netns", "del", &self.netns]);
        let mut group = self.group.as_path();
        // Up to the test's own group; those that another pod uses still stay.
        while group
            .file_name()
            .is_some_and(|name| !name.to_string_lossy().contains("cgroup"))
        {
            if fs::remove_dir(group).is_err() {
                break;
            }
            group = group.parent().unwrap_or(Path::new("/"));
        }
    }
}

/// A host-shim with its files.
struct Shim {
    child: Child,
    control: SocketAddr,
    folder: PathBuf,
    pins: PathBuf,
}

impl Shim {
    fn start(kubeconfig: &Path, folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder)?;
        let control = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let name = folder.file_name().context("a folder")?.display();
        let pins = PathBuf::from(format!("/sys/fs/bpf/bt-{}-{name}", process::id()));
        let key = folder.join("key");
        fs::write(&key, KEY)?;
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600))?;
        let config = json!({
            "keys": [{ "epoch": 1, "file": key }],
            "control": control.to_string(),
            "pin": pins,
            "discovery": { "node": NODE, "kubeconfig": kubeconfig },
        });
        fs::write(folder.join("shim.yaml"), config.to_string())?;
        let log = fs::File::options()
            .append(true)
            .create(true)
            .open(folder.join("log"))?;
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(baton_operator_tests::operator::binary("host-shim")?)
            .args(["run", "--keep-on-exit", "--config"])
            .arg(folder.join("shim.yaml"))
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        Ok(Self {
            child,
            control,
            folder: folder.to_owned(),
            pins,
        })
    }

    /// One that knows what the API server has, and its pins.
    async fn ready(kubeconfig: &Path, folder: &Path) -> Result<(Self, Pins)> {
        let shim = Self::start(kubeconfig, folder)?;
        let pins = Pins(shim.pins.clone());
        wait_for("host-shim is ready", async || {
            let (status, body) = shim.get("/readyz").with_context(|| shim.log())?;
            ensure!(status == 200, "{status} {body}\n{}", shim.log());
            Ok(())
        })
        .await?;
        Ok((shim, pins))
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    fn get(&self, path: &str) -> Result<(u16, String)> {
        let mut stream = TcpStream::connect_timeout(&self.control, Duration::from_secs(1))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        )?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let (head, body) = text.split_once("\r\n\r\n").context("an answer")?;
        let status = head.split(' ').nth(1).context("a status")?.parse()?;
        Ok((status, body.to_owned()))
    }

    /// What it says of a pod.
    fn pod(&self, name: &str) -> Result<Option<Value>> {
        let (_, body) = self.get("/v1/state")?;
        let state: Value = serde_json::from_str(&body)?;
        let pods = state["pods"].as_array().context("pods")?;
        Ok(pods.iter().find(|pod| pod["name"] == name).cloned())
    }

    async fn until(
        &self,
        what: &str,
        holds: impl Fn(Option<Value>) -> bool,
        name: &str,
    ) -> Result<()> {
        wait_for(what, async || {
            let pod = self.pod(name)?;
            ensure!(holds(pod.clone()), "{pod:?}\n{}", self.log());
            Ok(())
        })
        .await
    }

    /// Ends it as an upgrade does: what it attached stays.
    fn end(mut self) -> Result<()> {
        let id = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(id, rustix::process::Signal::TERM)?;
        let status = self.child.wait()?;
        ensure!(
            status.success(),
            "host-shim ended with {status}: {}",
            self.log()
        );
        Ok(())
    }
}

impl Drop for Shim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A Pod of the node, as the scheduler leaves it; its UID.
async fn scheduled(
    admin: &Admin,
    namespace: &str,
    name: &str,
    change: &Value,
) -> Result<(Value, String)> {
    let mut pod = baton_operator_tests::cluster::pod(namespace, name);
    pod["spec"]["nodeName"] = NODE.into();
    if let Some(spec) = change.as_object() {
        for (field, value) in spec {
            pod["spec"][field] = value.clone();
        }
    }
    let stored = admin.apply(&pod).await?;
    let uid = stored["metadata"]["uid"]
        .as_str()
        .context("a UID")?
        .to_owned();
    Ok((pod, uid))
}

fn is_attached(pod: Option<Value>) -> bool {
    pod.is_some_and(|pod| pod["attached"] == true)
}

#[tokio::test]
async fn pods_of_policies_get_the_adopter_as_they_start_and_lose_it_as_they_go() -> Result<()> {
    let Some(cluster) = cluster().await? else {
        return Ok(());
    };
    let admin = Admin::new(cluster.admin, None);
    let server = cluster.server;
    for manifest in manifests::folder("host-shim/rbac")? {
        admin.apply(&manifest).await?;
    }
    let namespace = server.namespace("discovery").await?.name;
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web", "namespace": namespace },
        "spec": { "selector": { "app": "shop" }, "ports": [{ "port": 80 }] },
    });
    admin.apply(&service).await?;
    let identity = server
        .service_account("baton-system", "baton-host-shim")
        .await?;
    let kubeconfig = server.kubeconfig_file(&identity)?;
    let folder = server.folder().join("discovery");
    let (shim, _pins) = Shim::ready(&kubeconfig, &folder).await?;

    let nothing_attached = files(&shim.pins)?;
    // A Pod runs before any policy is about it: nobody touches it.
    let (first, uid) = scheduled(&admin, &namespace, "web-a", &Value::Null).await?;
    let first_name = format!("{namespace}/web-a");
    let _sandbox = Sandbox::start(&uid, 0, Ipv4Addr::new(10, 99, 0, 2))?;
    admin.pod_status(&namespace, "web-a", "10.99.0.2").await?;
    ensure!(shim.pod(&first_name)?.is_none());
    let web = policy(&namespace, "web", "web", 8_080);
    admin.apply(&web).await?;
    shim.until(
        "the Pod of the new policy has the adopter",
        is_attached,
        &first_name,
    )
    .await?;

    // Pods that start: from the kubelet's word that they run.
    let mut times = Vec::new();
    for number in 1..=STARTS {
        let (name, ip) = (
            format!("web-{number}"),
            Ipv4Addr::new(10, 99, 1, number as u8),
        );
        let (pod, uid) = scheduled(&admin, &namespace, &name, &Value::Null).await?;
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
        admin
            .delete_with(&pod, &json!({ "gracePeriodSeconds": 0 }))
            .await?;
        // A forced deletion: the API server forgets it before its processes end, whose last segments need the mark.
        let gone = |pod: Option<Value>| {
            pod.is_some_and(|pod| pod["gone"] == true && pod["attached"] == true)
        };
        shim.until("the Pod that went has it still", gone, &full)
            .await?;
        drop(sandbox);
        shim.until(
            "the Pod that ended is forgotten",
            |pod| pod.is_none(),
            &full,
        )
        .await?;
    }
    times.sort();
    println!(
        "from a kubelet's word that a Pod runs until it has the adopter: p50 {:.1} ms, worst {:.1} ms ({STARTS} Pods)",
        times[STARTS / 2].as_secs_f64() * 1e3,
        times[STARTS - 1].as_secs_f64() * 1e3,
    );

    // What cannot have it says why.
    let (_, _) = scheduled(
        &admin,
        &namespace,
        "hosted",
        &json!({ "hostNetwork": true }),
    )
    .await?;
    let why = |pod: Option<Value>| {
        pod.is_some_and(|p| {
            p["reason"]
                .as_str()
                .is_some_and(|r| r.contains("hostNetwork"))
        })
    };
    shim.until("hostNetwork is named", why, &format!("{namespace}/hosted"))
        .await?;

    // The next shim takes over what the last one left, without taking it off.
    shim.end()?;
    let shim = Shim::start(&kubeconfig, &folder)?;
    shim.until("the next shim has it", is_attached, &first_name)
        .await?;
    ensure!(shim.log().contains("taken_over=true"), "{}", shim.log());

    // The policy goes: nothing is left on the Pod.
    admin.delete(&web).await?;
    shim.until("the Pod is let go", |pod| pod.is_none(), &first_name)
        .await?;
    let left = files(&shim.pins)?;
    ensure!(left == nothing_attached, "{left:?} {nothing_attached:?}");
    ensure!(!shim.log().contains("not detached"), "{}", shim.log());
    admin
        .delete_with(&first, &json!({ "gracePeriodSeconds": 0 }))
        .await?;
    shim.end()
}

#[tokio::test]
async fn pods_that_only_endpoint_slices_name_get_the_adopter_in_either_family() -> Result<()> {
    let Some(cluster) = cluster().await? else {
        return Ok(());
    };
    let admin = Admin::new(cluster.admin, None);
    let server = cluster.server;
    for manifest in manifests::folder("host-shim/rbac")? {
        admin.apply(&manifest).await?;
    }
    let namespace = server.namespace("slices").await?.name;
    // Dual stack, without a selector: whoever made it says what its Pods are.
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "manual", "namespace": namespace },
        "spec": { "clusterIP": "None", "ports": [{ "name": "http", "port": 80 }] },
    });
    admin.apply(&service).await?;
    admin
        .apply(&policy(&namespace, "manual", "manual", 8_090))
        .await?;
    let mut sandboxes = Vec::new();
    for (at, name) in ["named", "four", "six", "nobodys"].into_iter().enumerate() {
        let (_, uid) = scheduled(&admin, &namespace, name, &Value::Null).await?;
        let number = u8::try_from(at)? + 1;
        let four = Ipv4Addr::new(10, 99, 2, number);
        let sandbox = Sandbox::start(&uid, 100 + at, four)?;
        let six = format!("fd00:99::{number}");
        let address = format!("{six}/64");
        run(&[
            "ip",
            "-n",
            &sandbox.netns,
            "addr",
            "add",
            &address,
            "dev",
            "eth0",
            "nodad",
        ])?;
        sandboxes.push(sandbox);
        let pod = baton_operator_tests::cluster::pod(&namespace, name);
        let both = json!([{ "ip": four.to_string() }, { "ip": six }]);
        let status =
            json!({ "status": { "phase": "Running", "podIP": four.to_string(), "podIPs": both } });
        admin.merge(&pod, "/status", &status).await?;
    }
    let identity = server
        .service_account("baton-system", "baton-host-shim")
        .await?;
    let kubeconfig = server.kubeconfig_file(&identity)?;
    let (shim, _pins) = Shim::ready(&kubeconfig, &server.folder().join("slices")).await?;
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
    let by_name = json!({ "addresses": ["10.99.2.1"], "targetRef": target, "nodeName": NODE });
    let by_address = json!({ "addresses": ["10.99.2.2"] });
    let four = slice("four", "IPv4", "a-person", json!([by_name, by_address]));
    let six = json!([{ "addresses": ["fd00:99::3"] }, { "addresses": ["fd00:99::4"], "nodeName": "another" }]);
    let six = slice("six", "IPv6", "another-controller.example", six);
    admin.apply(&four).await?;
    admin.apply(&six).await?;
    for name in ["named", "four", "six"] {
        shim.until(
            "the Pod that a slice names has the adopter",
            is_attached,
            &full(name),
        )
        .await?;
    }
    ensure!(
        shim.pod(&full("nobodys"))?.is_none(),
        "it is said to be on another node"
    );

    admin.delete(&six).await?;
    shim.until(
        "the Pod that no slice names is let go",
        |pod| pod.is_none(),
        &full("six"),
    )
    .await?;
    ensure!(is_attached(shim.pod(&full("four"))?), "{}", shim.log());
    admin.delete(&four).await?;
    for name in ["named", "four"] {
        shim.until("the Pod is let go", |pod| pod.is_none(), &full(name))
            .await?;
    }
    ensure!(!shim.log().contains("not detached"), "{}", shim.log());
    shim.end()
}

/// All files below a directory.
fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            found.append(&mut files(&path)?);
        } else {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// The pin directory, removed on drop.
struct Pins(PathBuf);

impl Drop for Pins {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
