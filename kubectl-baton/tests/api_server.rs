//! The program as a user runs it, against a real API server: what it says where nothing is
//! installed, where only the definitions are, without rights, and without a cluster; exit codes; a
//! dump next to a Secret.

use baton_apiserver::{ApiServer, shared};
use serde_json::{Value, json};
use std::{
    env, fs,
    io::{BufRead as _, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

/// A new kind is served some time after its definition is there.
const DEADLINE: Duration = Duration::from_secs(60);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(100);

/// A folder of one test, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("bt-kubectl-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn kubeconfig(&self, content: &Value) -> PathBuf {
        let path = self.0.join("config");
        fs::write(&path, content.to_string()).expect("a file");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What is left behind is in the temporary folder.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What the program says.
struct Said {
    out: String,
    err: String,
    code: Option<i32>,
}

fn run(kubeconfig: &Path, words: &[&str]) -> Said {
    run_with(kubeconfig, words, &[])
}

fn run_with(kubeconfig: &Path, words: &[&str], env: &[(&str, &str)]) -> Said {
    let output: Output = Command::new(env!("CARGO_BIN_EXE_kubectl-baton"))
        .args(words)
        .env("KUBECONFIG", kubeconfig)
        .envs(env.iter().copied())
        .output()
        .expect("the program runs");
    let text = |bytes: &[u8]| {
        String::from_utf8_lossy(bytes).split_whitespace().collect::<Vec<_>>().join(" ")
    };
    Said { out: text(&output.stdout), err: text(&output.stderr), code: output.status.code() }
}

async fn post(server: &ApiServer, path: &str, object: &Value) {
    let admin = server.admin().await.expect("an admin");
    let request = kube_request(path, object);
    let answer = admin.request::<Value>(request).await;
    answer.unwrap_or_else(|error| panic!("POST {path}: {error}"));
}

fn kube_request(path: &str, object: &Value) -> hyper::Request<Vec<u8>> {
    hyper::Request::post(path)
        .header("content-type", "application/json")
        .body(object.to_string().into_bytes())
        .expect("a request")
}

/// The definitions as they are generated.
fn definitions() -> Vec<Value> {
    let files = baton_crds::files().expect("the definitions");
    let read = |yaml: &str| serde_saphyr::from_multiple::<Value>(yaml).expect("YAML");
    files.iter().flat_map(|file| read(&file.yaml)).collect()
}

/// One test, because the cases are one cluster's life: bare, with definitions, with a policy.
#[tokio::test]
async fn a_cluster_from_bare_to_a_policy_that_nobody_serves() {
    let Some(server) = shared() else { return };
    let folder = Folder::new("admin");
    let admin = folder.kubeconfig(&server.admin_identity().kubeconfig());

    let said = run(&admin, &["status"]);
    assert_eq!(said.code, Some(1), "{} {}", said.out, said.err);
    assert!(
        said.out.contains("Baton is not installed: the cluster does not know its definitions"),
        "{}",
        said.out
    );
    // The API server of the tests has no nodes.
    let said = run(&admin, &["check", "-A"]);
    assert_eq!(said.code, Some(1), "{} {}", said.out, said.err);
    for part in [
        "Baton can NOT be installed: - the cluster has no node",
        "kubernetes v1.",
        "1.31 or newer is needed",
    ] {
        assert!(said.out.contains(part), "{part}: {}", said.out);
    }
    let said = run(&admin, &["backends"]);
    assert_eq!(said.code, Some(2), "{}", said.err);
    assert!(said.err.contains("Baton is not installed in this cluster"), "{}", said.err);

    for definition in definitions() {
        post(server, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).await;
    }
    let started = Instant::now();
    let said = loop {
        let said = run(&admin, &["status", "-A", "-o", "json"]);
        if !said.out.contains("not installed") {
            break said;
        }
        assert!(started.elapsed() < DEADLINE, "{}", said.out);
        tokio::time::sleep(LOOK).await;
    };
    assert_eq!(said.code, Some(1), "{} {}", said.out, said.err);
    let report: Value = serde_json::from_str(&said.out).expect("JSON");
    let problem = report["problems"][0].as_str().expect("a problem");
    assert!(
        problem.starts_with("only Baton's definitions are installed")
            && problem.contains("helm install"),
        "{problem}"
    );
    assert_eq!(report["unseen"], json!([]), "an admin may see all");
    let said = run(&admin, &["flows"]);
    assert!(said.code == Some(2) && said.err.contains("there is no dataplane"), "{}", said.err);

    let namespace = server.namespace("kubectl").await.expect("a namespace");
    let namespace = namespace.name.as_str();
    let policy = json!({
        "apiVersion": "baton.dev/v1alpha1", "kind": "LoadBalancerPolicy", "metadata": {"name": "web"},
        "spec": {"targetRefs": [{"name": "web"}], "listeners": [{"name": "http", "port": 8080}]},
    });
    post(
        server,
        &format!("/apis/baton.dev/v1alpha1/namespaces/{namespace}/loadbalancerpolicies"),
        &policy,
    )
    .await;
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "front"},
        "spec": {"selector": {"app": "front"}, "ports": [{"name": "http", "port": 80}]},
    });
    post(server, &format!("/api/v1/namespaces/{namespace}/services"), &service).await;
    let said = run(&admin, &["check", "-n", namespace]);
    let row = format!("{namespace}/front 80 HTTP1 0 0 0 move");
    assert!(said.out.contains(&row), "{}", said.out);
    let said = run(&admin, &["status", "-n", namespace]);
    let words = format!("policy {namespace}/web: the operator has said nothing about it");
    assert!(said.code == Some(1) && said.out.contains(&words), "{}", said.out);

    // Next to a Secret whose content is nowhere in the dump.
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"password": "hunter2"}});
    post(server, &format!("/api/v1/namespaces/{namespace}/secrets"), &secret).await;
    let file = folder.0.join("dump.tar.gz");
    let said = run(&admin, &["sysdump", "--file", file.to_str().expect("a path")]);
    assert_eq!(said.code, Some(0), "{} {}", said.out, said.err);
    let listed = Command::new("tar").args(["-xzOf"]).arg(&file).output().expect("tar");
    let text = String::from_utf8_lossy(&listed.stdout);
    assert!(
        text.contains("\"loadbalancerpolicies\"") || text.contains("\"LoadBalancerPolicy\""),
        "{text}"
    );
    // `hunter2`, and the same as the API server shows it.
    assert!(
        !text.contains("hunter2") && !text.contains("aHVudGVyMg") && !text.contains("\"Secret\""),
        "a Secret is in it"
    );

    nobody(server, namespace).await;
}

/// Somebody without any right is told which one is missing.
async fn nobody(server: &ApiServer, namespace: &str) {
    let identity = server.service_account(namespace, "default").await.expect("a token");
    let folder = Folder::new("nobody");
    let config = folder.kubeconfig(&identity.kubeconfig());
    let said = run(&config, &["status", "-n", namespace]);
    assert_eq!(said.code, Some(2), "{} {}", said.out, said.err);
    assert!(said.err.contains("no permission for `list` on `"), "{}", said.err);
    assert!(said.err.contains("ask for a Role or ClusterRole"), "{}", said.err);
    // What one may not see does not forbid Baton.
    let said = run(&config, &["check", "-n", namespace]);
    assert_eq!(said.code, Some(0), "{} {}", said.out, said.err);
    for part in [
        "Nothing that could be looked at forbids Baton. Not looked at: - no permission for `get` on `configmaps`",
        "no permission for `list` on `nodes`",
    ] {
        assert!(said.out.contains(part), "{part}: {}", said.out);
    }
}

#[test]
fn without_a_cluster_the_error_says_what_to_change() {
    let folder = Folder::new("none");
    let gone = folder.0.join("gone");
    let said = run(&gone, &["status"]);
    assert_eq!((said.code, said.out.as_str()), (Some(2), ""));
    assert!(said.err.contains("kubeconfig"), "{}", said.err);
    // The near end of a connection: nobody listens there, and nobody else gets the port meanwhile.
    let unheard = TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| TcpStream::connect(listener.local_addr()?))
        .expect("a connection");
    let port = unheard.local_addr().expect("connected").port();
    let config = folder.kubeconfig(&json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": format!("http://127.0.0.1:{port}")}}],
        "users": [{"name": "c", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
    }));
    let said = run(&config, &["status"]);
    assert_eq!(said.code, Some(2), "{}", said.err);
    assert!(
        said.err.contains(&format!("http://127.0.0.1:{port} does not answer: ")),
        "{}",
        said.err
    );
    let said = run(&config, &["--context", "other", "status"]);
    assert!(said.code == Some(2) && said.err.contains("no context `other`"), "{}", said.err);
}

/// A proxy that refuses; what it is asked comes out of the channel.
fn proxy() -> (String, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let place = listener.local_addr().expect("it listens").to_string();
    let (tell, asked) = mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let mut head = String::new();
            let mut lines = BufReader::new(&stream);
            while !head.ends_with("\r\n\r\n") && lines.read_line(&mut head).expect("text") > 0 {}
            if tell.send(head).is_err() {
                return;
            }
            let answer = b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n";
            stream.write_all(answer).expect("answered");
        }
    });
    (place, asked)
}

#[test]
fn a_proxy_is_asked_as_kubectl_asks_it_and_nobody_sees_its_password() {
    let (place, asked) = proxy();
    let url = format!("http://u:secret@{place}");
    let folder = Folder::new("proxy");
    let config = |proxy: Value| {
        let cluster = json!({"server": "https://baton.invalid:6443", "proxy-url": proxy});
        folder.kubeconfig(&json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "c", "user": {}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        }))
    };
    let through = format!("https://baton.invalid:6443 (through the proxy http://{place})");
    // The second one's exception is of the proxy itself.
    for (own, env) in [
        (json!(url), vec![]),
        (Value::Null, vec![("HTTPS_PROXY", &*url), ("NO_PROXY", "127.0.0.1")]),
    ] {
        let said = run_with(&config(own), &["status"], &env);
        assert_eq!(said.code, Some(2), "{}", said.err);
        assert!(said.err.contains(&through), "{}", said.err);
        assert!(!said.err.contains("secret"), "{}", said.err);
        let heads: String = asked.try_iter().collect();
        let head = heads.to_ascii_lowercase();
        assert!(head.starts_with("connect baton.invalid:6443 "), "{head}");
        assert!(head.contains("proxy-authorization: basic "), "{head}");
    }
    let env = [("HTTPS_PROXY", &*url), ("NO_PROXY", ".invalid")];
    let said = run_with(&config(Value::Null), &["status"], &env);
    let direct = "https://baton.invalid:6443 does not answer";
    assert!(said.err.contains(direct), "{}", said.err);
    assert!(asked.try_recv().is_err(), "it has an exception");
    let said = run(&config(json!("ftp://u:secret@there")), &["status"]);
    let words = "the proxy ftp://there has the scheme `ftp`: expected http, https or socks5";
    assert!(said.err.contains(words), "{}", said.err);
}

#[test]
fn what_needs_no_cluster_works_without_one() {
    let nowhere = Path::new("/nonexistent/config");
    let said = run(nowhere, &["version", "--client"]);
    assert_eq!(
        (said.code, said.out),
        (Some(0), format!("kubectl-baton {}", env!("CARGO_PKG_VERSION")))
    );
    for shell in ["bash", "zsh", "fish"] {
        let said = run(nowhere, &["completion", shell]);
        assert!(said.code == Some(0) && said.out.contains("sysdump"), "{shell}");
    }
    let said = run(nowhere, &["migrate"]);
    assert_eq!(said.code, Some(2), "there is no such command");
}
