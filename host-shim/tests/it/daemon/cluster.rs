//! An API server that knows what it was told at first, and a /proc of some real processes: what
//! host-shim finds pods by.

use super::{Daemon, Files, ONE_KEY, common::Lab, free_address};
use baton_adopter::Netns;
use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::fs::symlink,
    path::PathBuf,
    process::{Child, Command},
    sync::Arc,
};

use super::common::wait_for;

/// Objects by the last part of their path.
type Objects = Arc<Value>;

/// One node's part of a cluster, removed on drop.
pub struct Cluster {
    api: SocketAddr,
    proc: PathBuf,
}

/// A process in a namespace.
pub struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    pub fn netns(&self) -> String {
        Netns::Pid(self.0.id()).path().display().to_string()
    }
}

/// A Pod of this node with the label `app: NAME`.
pub fn pod(namespace: &str, name: &str, uid: &str, status: &Value) -> Value {
    let labels = json!({"app": name});
    json!({
        "metadata": {"namespace": namespace, "name": name, "uid": uid, "labels": labels},
        "spec": {}, "status": status,
    })
}

/// The API server's objects: these Pods, each with a Service and a policy.
fn objects(pods: &[Value]) -> Value {
    let meta = |pod: &Value| json!({"namespace": pod["metadata"]["namespace"], "name": pod["metadata"]["name"]});
    let of = |spec: &dyn Fn(&Value) -> Value| -> Vec<Value> {
        let one = |pod| json!({"metadata": meta(pod), "spec": spec(pod)});
        pods.iter().map(one).collect()
    };
    json!({
        "services": of(&|pod| json!({"selector": pod["metadata"]["labels"]})),
        "loadbalancerpolicies": of(&|pod| json!({"targetRefs": [{"name": pod["metadata"]["name"]}]})),
        "endpointslices": [],
        "pods": pods,
    })
}

impl Cluster {
    pub fn new(files: &Files, pods: &[Value]) -> Self {
        let listener = TcpListener::bind((free_address().ip(), 0)).expect("a port");
        let api = listener.local_addr().expect("bound");
        let objects = Objects::new(objects(pods));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let objects = Arc::clone(&objects);
                std::thread::spawn(move || answer(stream, &objects));
            }
        });
        let proc = PathBuf::from(files.path("proc"));
        fs::create_dir_all(proc.join("1/ns")).expect("a directory");
        // This one is where the node's first is, which it may be not allowed to look at.
        symlink("/proc/self/ns/net", proc.join("1/ns/net")).expect("a link");
        Self { api, proc }
    }

    /// A process of the Pod with this UID.
    pub fn run(&self, lab: &Lab, uid: &str) -> Process {
        let command = ["netns", "exec", &lab.netns_name(), "sleep", "1000"];
        let child = Command::new("ip").args(command).spawn().expect("ip starts");
        let process = Process(child);
        let wanted = lab.netns().identity().expect("it is there");
        wait_for("it is in the namespace", || {
            Netns::Pid(process.0.id()).identity().is_ok_and(|is| is == wanted)
        });
        let dir = self.dir(&process);
        fs::create_dir_all(dir.join("ns")).expect("a directory");
        symlink(process.netns(), dir.join("ns/net")).expect("a link");
        fs::write(dir.join("comm"), "sleep\n").expect("a file");
        fs::write(dir.join("cmdline"), "sleep\0-x\0").expect("a file");
        let cgroup = format!("0::/kubepods/pod{uid}/x\n");
        fs::write(dir.join("cgroup"), cgroup).expect("a file");
        process
    }

    pub fn end(&self, process: Process) {
        fs::remove_dir_all(self.dir(&process)).expect("it is there");
        drop(process);
    }

    fn dir(&self, process: &Process) -> PathBuf {
        self.proc.join(process.0.id().to_string())
    }

    pub fn start(&self, files: &Files) -> Daemon {
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c", "users": [{"name": "u", "user": {}}],
            "clusters": [{"name": "k", "cluster": {"server": format!("http://{}", self.api)}}],
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        });
        files.write("kubeconfig", &kubeconfig.to_string(), 0o600);
        let (control, proc) = (free_address(), self.proc.display());
        let kubeconfig = files.path("kubeconfig");
        files.config(&format!(
            "keys: [{ONE_KEY}]\ncontrol: {control}\npin: PINS\ndiscovery: {{node: n, kubeconfig: {kubeconfig}, proc: {proc}}}\n",
        ));
        Daemon::start(files, control, &[])
    }
}

/// Answers a list, or begins a watch in which nothing happens.
fn answer(mut stream: TcpStream, objects: &Value) {
    let mut lines = BufReader::new(stream.try_clone().expect("a descriptor")).lines();
    let first = lines.next().and_then(Result::ok).unwrap_or_default();
    let mut rest = lines.by_ref().map_while(Result::ok);
    while rest.next().is_some_and(|line| !line.is_empty()) {}
    let path = first.split(' ').nth(1).unwrap_or_default();
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let items = &objects[path.rsplit('/').next().unwrap_or_default()];
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n";
    if query.contains("watch=true") {
        let begun = write!(stream, "{head}Transfer-Encoding: chunked\r\n\r\n");
        // Until nobody listens any more.
        while begun.is_ok() && rest.next().is_some() {}
        return;
    }
    let body = json!({"metadata": {"resourceVersion": "1"}, "items": items}).to_string();
    let length = body.len();
    let _ = write!(stream, "{head}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}");
}
