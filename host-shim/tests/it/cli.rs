//! The binary as an admin meets it: what it says about bad input, and what preflight finds.

use crate::daemon::common::{INTERFACE, Lab};
use crate::daemon::{Files, common};
use std::process::{Command, Output};

fn host_shim(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_host-shim")).args(arguments).output().expect("run host-shim")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs it on a configuration that must be refused, and returns what it says.
fn refusal(files: &Files, config: &str) -> String {
    files.config(config);
    let output = host_shim(&["run", "--config", &files.path("shim.yaml")]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    text(&output.stderr)
}

#[test]
fn run_refuses_bad_configurations_by_file_line_and_field() {
    let files = Files::new();
    let at = files.path("shim.yaml");
    let missing = host_shim(&["run", "--config", &files.path("none.yaml")]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(text(&missing.stderr).contains("none.yaml: cannot be read: No such file"));

    let said = refusal(&files, "keys:\n  - {epoch: one, file: KEY}\n");
    assert!(said.contains(&format!("{at}:2:13: keys[0].epoch: ")), "{said}");
    assert!(said.contains("expected a whole number from 0 to 255"), "{said}");

    let said = refusal(&files, "keys:\n  - epoch: 1\n    file: OPEN_KEY\n");
    assert!(said.contains(&format!("{at}:3:5: keys[0].file: ")), "{said}");
    assert!(said.contains("mode 0644") && said.contains("chmod 600"), "{said}");

    let said =
        refusal(&files, "keys: [{epoch: 1, file: KEY}]\npods:\n  - name: a\n    interfac: eth0\n");
    assert!(said.contains(&format!("{at}:4:5: pods[0].interfac: ")), "{said}");

    let said = refusal(&files, "keys: [{epoch: 1, file: KEY}]\npin: /sys/fs/bpf/with.dot\n");
    assert!(said.contains("may not contain `.`"), "{said}");

    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address");
    let said = refusal(
        &files,
        &format!("keys: [{{epoch: 1, file: KEY}}]\ncontrol: {address}\npin: PINS\n"),
    );
    assert!(said.contains(&format!("control: cannot listen on {address}")), "{said}");
    // No refusal shows a key.
    assert!(!said.contains(crate::daemon::KEY_HEX), "{said}");
}

#[test]
fn preflight_finds_all_good() {
    let lab = Lab::new();
    let _listener = lab.listen("10.7.0.1:8080".parse().expect("an address"));
    let output = host_shim(&["preflight", "--netns", &lab.netns_name(), "--interface", INTERFACE]);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("All good"), "{said}");
    assert!(said.contains("listeners                1"), "{said}");
    assert!(said.lines().all(|line| line.chars().count() <= 100), "{said}");
}

#[test]
fn preflight_says_what_is_missing_and_what_to_change() {
    let lab = Lab::new();
    lab.sysctl("net.ipv4.tcp_syncookies=0");
    lab.sysctl("net.ipv4.tcp_timestamps=0");
    common::run(&format!(
        "ip netns exec {} iptables-nft -t nat -A PREROUTING -p tcp --dport 8080 -j REDIRECT --to-ports 15006",
        lab.netns_name()
    ));
    let output = host_shim(&["preflight", "--netns", &lab.netns_name(), "--interface", "eth7"]);
    let said = text(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(output.status.code(), Some(1), "{said}");
    for words in [
        "MISSING interface",
        "has no interface `eth7`; it has: lo, eth0",
        "MISSING net.ipv4.tcp_syncookies 0:",
        "sysctl -w net.ipv4.tcp_syncookies=1",
        "MISSING packet rules packet rules of the Pod's network namespace treat SYNs and adoptions differently (NAT in nftables' table `nat`, chain `PREROUTING`)",
        "note TCP options tcp_timestamps off",
        "note listeners none",
        "3 things are missing",
    ] {
        assert!(said.contains(words), "`{words}` is not in: {said}");
    }
}

#[test]
fn preflight_reads_a_configuration_and_speaks_json() {
    let (lab, files) = (Lab::new(), Files::new());
    files.config(&format!(
        "keys: [{{epoch: 1, file: KEY}}]\npin: PINS\npods:\n  - {{name: a, netns: {{name: {}}}, interface: eth0}}\n  \
         - {{name: b, netns: {{name: bt-none}}, interface: eth0}}\n",
        lab.netns_name()
    ));
    let config = files.path("shim.yaml");
    let output = host_shim(&["preflight", "--config", &config, "--output", "json"]);
    assert_eq!(output.status.code(), Some(1));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["good"], false);
    let findings = report["findings"].as_array().expect("a list");
    let missing: Vec<_> = findings.iter().filter(|f| f["status"] == "missing").collect();
    assert_eq!(missing.len(), 1, "{missing:?}");
    assert_eq!(missing[0]["check"], "network namespace");
    assert!(missing[0]["subject"].as_str().expect("text").starts_with("pod b "));

    files.config("keys: []\n");
    let output = host_shim(&["preflight", "--config", &config]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stdout);
    assert!(said.contains("shim.yaml:1:1: keys:"), "{said}");
}

#[test]
fn preflight_without_capabilities_names_them() {
    let output = Command::new("setpriv")
        .args(["--bounding-set", "-all", "--inh-caps", "-all"])
        .args([env!("CARGO_BIN_EXE_host-shim"), "preflight"])
        .output()
        .expect("setpriv is part of util-linux");
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stdout);
    for name in ["CAP_BPF", "CAP_NET_ADMIN", "CAP_SYS_ADMIN", "CAP_PERFMON"] {
        assert!(said.contains(name), "{said}");
    }
    assert!(said.contains("MISSING  adopter"), "{said}");
}

#[test]
fn wrong_arguments_exit_with_usage() {
    for arguments in [&["run"][..], &["preflight", "--netns", "x"], &["walk"], &[]] {
        let output = host_shim(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).contains("Usage"), "{output:?}");
    }
}
