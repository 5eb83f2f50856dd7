//! The operator's way into the daemon: mutual TLS, keys in a folder, and what stays reachable
//! without a certificate.

use crate::daemon::common::{Lab, wait_for};
use crate::daemon::{
    ADOPTER_IS_THERE, Daemon, Files, KEY, KEY_HEX, OTHER_KEY, free_address, probe,
};
use crate::support::Authority;
use baton_api::{NodeKey, NodeKeys, node_key};
use baton_tls::{Client, Name, Refusal};
use rcgen::ExtendedKeyUsagePurpose;
use serde_json::json;
use std::net::SocketAddr;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
};

fn operator(authority: &Authority) -> Client {
    let material = authority.material(&authority.pair(Name::Operator));
    Client::new(Name::Operator, material).expect("a client")
}

/// One GET over TLS: the whole answer, or why there was none.
fn get(client: &Client, address: SocketAddr, path: &str) -> Result<String, Refusal> {
    ask(client, address, "GET", path, "")
}

fn ask(
    client: &Client,
    address: SocketAddr,
    method: &str,
    path: &str,
    body: &str,
) -> Result<String, Refusal> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let stream = TcpStream::connect(address).await.expect("connected");
        let mut stream = client.connect(Name::Shim, stream).await?;
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
        );
        let told = |error: std::io::Error| Refusal::find(&error).expect("a refusal");
        stream.write_all(request.as_bytes()).await.map_err(told)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.map_err(told)?;
        Ok(answer)
    })
}

fn write(files: &Files, authority: &Authority) {
    let pair = authority.pair(Name::Shim);
    files.write("tls.crt", &pair.certificate, 0o644);
    files.write("tls.key", &pair.key, 0o600);
    files.write("ca.crt", &authority.pem, 0o644);
}

#[test]
fn the_operator_reads_the_state_and_both_secrets_are_exchanged() {
    let (files, authority) = (Files::new(), Authority::new());
    let (control, tls, probes) = (free_address(), free_address(), free_address());
    write(&files, &authority);
    std::fs::create_dir(files.path("keys")).expect("a directory");
    files.write("keys/epoch-18", KEY_HEX, 0o600);
    files.write("keys/current", "18", 0o644);
    // Relative names begin where the configuration is.
    files.config(&format!(
        "keys: {{directory: keys}}\ncontrol: {control}\nprobes: {probes}\npin: PINS\n\
         controlTls: {{listen: '{tls}', certificate: tls.crt, key: tls.key, clientAuthority: ca.crt}}\n"
    ));
    let daemon = Daemon::start(&files, control, &[]);
    let client = operator(&authority);
    let answer = get(&client, tls, "/v1/state").expect("taken");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    for part in [r#""keyEpochs":[18]"#, r#""signingEpoch":18"#, r#""pods":[]"#, r#""version":""#] {
        assert!(answer.contains(part), "{part} is not in {answer}");
    }
    let refusal = get(&operator(&Authority::new()), tls, "/v1/state").expect_err("a stranger");
    assert_eq!(refusal.reason.label(), "unknown_authority", "it does not know the shim either");

    // Without a certificate: health and metrics only.
    let at = |path: &str| crate::daemon::request(probes, "GET", path);
    assert_eq!(at("/healthz").0, 200);
    assert_eq!(at("/v1/state").0, 404);
    // Nor does a web page get in, by a name that DNS led here or from another site.
    for (address, path) in [(control, "/v1/state"), (probes, "/metrics")] {
        for (headers, status) in [
            ("Host: evil.example:9901", 421),
            ("Host: localhost\r\nOrigin: http://evil.example", 403),
            ("Host: localhost\r\nSec-Fetch-Site: cross-site", 403),
        ] {
            let answer = crate::daemon::request_with(address, "GET", path, headers);
            assert_eq!(answer.0, status, "{headers}: {}", answer.1);
        }
    }
    let (status, metrics) = at("/metrics");
    assert_eq!(status, 200);
    for line in [
        "baton_shim_control_tls_handshakes_total{result=\"accepted\"} 1",
        "baton_shim_control_tls_handshakes_total{result=\"refused_by_peer\"} 1",
        "baton_shim_control_foreign_requests_total{reason=\"host\"} 2",
        "baton_shim_control_foreign_requests_total{reason=\"page\"} 4",
        "# TYPE baton_shim_control_certificate_end_timestamp_seconds gauge",
    ] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }

    // One more key, then the other one signs.
    files.write("keys/epoch-19", &"ab".repeat(16), 0o600);
    wait_for("two epochs are live", || daemon.state()["keyEpochs"] == serde_json::json!([18, 19]));
    assert_eq!(daemon.state()["signingEpoch"], 18);
    files.write("keys/current", "19", 0o644);
    wait_for("the other signs", || daemon.state()["signingEpoch"] == 19);
    std::fs::remove_file(files.path("keys/epoch-18")).expect("removed");
    wait_for("the old key is gone", || daemon.state()["keyEpochs"] == serde_json::json!([19]));

    // Another authority: half of the files is refused, all of them are taken.
    let refused = || daemon.state()["configRefusals"].as_u64().expect("a number");
    let (next, before) = (Authority::new(), refused());
    let pair = next.pair(Name::Shim);
    files.write("tls.crt", &pair.certificate, 0o644);
    wait_for("the half is refused", || refused() > before);
    wait_for("the log says why", || {
        daemon.log().contains("the key does not belong to the certificate")
    });
    get(&client, tls, "/healthz").expect("the last good one stays");
    files.write("tls.key", &pair.key, 0o600);
    files.write("ca.crt", &next.pem, 0o644);
    let new = operator(&next);
    wait_for("the new authority", || get(&new, tls, "/healthz").is_ok());
    get(&client, tls, "/healthz").expect_err("the old one is over");
    daemon.signal("TERM");
    assert!(daemon.wait().success());
}

/// Keys as the operator sends them.
fn keys(node: &str, masters: &[(u8, [u8; 16])]) -> String {
    let keys = masters.iter();
    let keys = keys.map(|(epoch, master)| NodeKey::derive(*epoch, master, node));
    let keys = NodeKeys { node: node.into(), keys: keys.collect() };
    serde_json::to_string(&keys).expect("JSON")
}

#[test]
fn the_operator_and_nobody_else_sends_keys_and_they_outlive_a_restart() {
    let (lab, files, authority) = (Lab::new(), Files::new(), Authority::new());
    let (control, tls, probes) = (free_address(), free_address(), free_address());
    write(&files, &authority);
    files.config(&format!(
        "node: node-1\npods:\n  - {{name: pod-a, netns: {{name: {}}}, interface: eth0}}\ncontrol: {control}\nprobes: {probes}\npin: PINS\n\
         controlTls: {{listen: '{tls}', certificate: tls.crt, key: tls.key, clientAuthority: ca.crt}}\n",
        lab.netns_name()
    ));
    let daemon = Daemon::start(&files, control, &["--keep-on-exit"]);
    let (status, words) = daemon.get("/readyz");
    assert_eq!(status, 503);
    assert!(words.contains("has not sent the keys of node node-1"), "{words}");
    let state = daemon.state();
    assert_eq!((&state["keyEpochs"], &state["takesKeys"]), (&json!([]), &true.into()));
    let own = node_key(&KEY, "node-1");
    let good = keys("node-1", &[(18, KEY)]);

    // Not without the operator's certificate: not on the other ports, nor with another part's.
    for address in [control, probes] {
        assert_eq!(crate::daemon::request(address, "PUT", "/v1/keys").0, 404);
    }
    for other in [Name::Shim, Name::Dataplane] {
        let pair = authority.sign(other.as_str(), |params| {
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        });
        let client = Client::new(other, authority.material(&pair)).expect("a client");
        ask(&client, tls, "PUT", "/v1/keys", &good).expect_err("it is not the operator");
    }
    assert_eq!(daemon.state()["keyEpochs"], json!([]));
    assert_eq!(probe(&lab, 18, &own), None);

    let operator = operator(&authority);
    let put = |body: &str| ask(&operator, tls, "PUT", "/v1/keys", body).expect("an answer");
    let answer = put(&good);
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(answer.contains(r#""keyEpochs":[18],"signingEpoch":18,"takesKeys":true"#), "{answer}");
    assert_eq!(probe(&lab, 18, &own), ADOPTER_IS_THERE);
    // Another node's key, and the one that both come from, open nothing here.
    assert_eq!(probe(&lab, 18, &node_key(&KEY, "node-2")), None);
    assert_eq!(probe(&lab, 18, &KEY), None);
    assert_eq!(daemon.get("/readyz").0, 200);
    assert_eq!(daemon.state()["adoptionSegments"]["bad_tag"], 2);

    // What is wrong changes nothing, and is not repeated.
    let secret = "ab".repeat(16);
    for (body, status) in [
        (keys("node-2", &[(18, OTHER_KEY)]), 409),
        (keys("node-1", &[]), 422),
        (keys("node-1", &[(18, KEY), (2, OTHER_KEY)]), 422),
        (format!(r#"{{"node":"node-1","keys":[{{"epoch":1,"key":"{secret}0"}}]}}"#), 422),
        (format!(r#"{{"node":"node-1","keys":"{secret}"}}"#), 422),
        (format!("{}{}", good, " ".repeat(8 << 10)), 413),
    ] {
        let answer = put(&body);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        assert!(!answer.contains(&secret), "{answer}");
    }
    let answer = get(&operator, tls, "/v1/keys").expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
    assert_eq!(daemon.state()["keyEpochs"], json!([18]));
    assert_eq!(probe(&lab, 18, &own), ADOPTER_IS_THERE);

    // It is replaced while no operator is there.
    daemon.signal("TERM");
    let log = daemon.log();
    assert!(daemon.wait().success());
    assert_eq!(probe(&lab, 18, &own), ADOPTER_IS_THERE);
    let daemon = Daemon::start(&files, control, &["--keep-on-exit"]);
    assert_eq!(daemon.get("/readyz").0, 200);
    assert_eq!(daemon.state()["keyEpochs"], json!([2]), "modulo 16");
    assert_eq!(probe(&lab, 18, &own), ADOPTER_IS_THERE);
    // A rotation's last step.
    put(&keys("node-1", &[(19, OTHER_KEY)]));
    assert_eq!(daemon.state()["keyEpochs"], json!([19]));
    assert_eq!(probe(&lab, 18, &own), None);
    assert_eq!(probe(&lab, 19, &node_key(&OTHER_KEY, "node-1")), ADOPTER_IS_THERE);
    for text in [log, daemon.log()] {
        assert!(!text.contains(&secret) && !text.contains("06e22ef8"), "{text}");
    }
}

/// From another address, and from the kubelet's own, at the port of probes and at the operator's.
#[test]
fn probes_and_the_operator_are_answered_whoever_holds_the_ports() {
    let (files, authority) = (Files::new(), Authority::new());
    let (control, tls, probes) = (free_address(), free_address(), free_address());
    write(&files, &authority);
    files.config(&format!(
        "keys: [{{epoch: 1, file: KEY}}]\ncontrol: {control}\nprobes: {probes}\npin: PINS\n\
         controlTls: {{listen: '{tls}', certificate: tls.crt, key: tls.key, clientAuthority: ca.crt}}\n"
    ));
    let _daemon = Daemon::start(&files, control, &[]);
    let client = operator(&authority);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let connect = |source: &str, to: SocketAddr| {
        let source = SocketAddr::new(source.parse().expect("an address"), 0);
        runtime.block_on(async {
            let socket = TcpSocket::new_v4().expect("a socket");
            socket.bind(source).expect("bound");
            socket.connect(to).await.expect("connected")
        })
    };
    for hostile in ["127.0.0.9", "127.0.0.1"] {
        let mut held = Vec::new();
        for round in 0..10 {
            held.clear();
            for _ in 0..200 {
                held.push(connect(hostile, probes));
            }
            assert_eq!(crate::daemon::request(probes, "GET", "/healthz").0, 200);
            // Handshakes take their time.
            if round % 5 == 0 {
                held.extend((0..200).map(|_| connect(hostile, tls)));
                let answer = get(&client, tls, "/v1/state").expect("taken");
                assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
            }
        }
    }
}
