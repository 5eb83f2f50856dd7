//! The program on a real interface: it serves, reloads, tells what is wrong, and ends in order.
//! Needs root and iproute2.

use crate::common::{Lab, begins, has, ip};
use pcap_file::pcapng::{Block, PcapNgReader};
use std::{
    fs::{self, File},
    io::{Cursor, Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    process::{Command, Stdio},
    thread,
};

/// A backend that sends everything back; ends with the test's process.
fn echo(lab: &Lab, port: u16) {
    let listener = lab.within("b", || TcpListener::bind(("10.77.0.3", port)).expect("a port"));
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut out = stream.try_clone().expect("a descriptor");
                let _ = std::io::copy(&mut &stream, &mut out);
            });
        }
    });
}

/// Sends bytes that cannot be mistaken for others and wants them back.
fn exchange(stream: &mut TcpStream, bytes: usize) {
    let sent: Vec<u8> = (0..bytes).map(|i| (i * 31 % 251) as u8).collect();
    let mut writer = stream.try_clone().expect("a descriptor");
    let copy = sent.clone();
    let writing = thread::spawn(move || writer.write_all(&copy).expect("sent"));
    let mut got = vec![0; bytes];
    stream.read_exact(&mut got).expect("all came back");
    writing.join().expect("no panic");
    assert!(got == sent, "other bytes came back");
}

const POLICY: &str = "  - name: echo
    frontends: ['0.0.0.0:80']
    protocol: None
    backends: [{name: b, endpoint: '10.77.0.3:8080'}]
";

#[test]
fn asked_to_end_it_is_not_ready_and_serves_what_it_has_until_that_ends() {
    let lab = Lab::new();
    echo(&lab, 8080);
    lab.configure(POLICY);
    let dataplane = lab.start_with(&["--grace-seconds", "600"]);
    lab.wait("ready", "/readyz", |status, _| status == 200);
    let mut stream = lab.client();
    exchange(&mut stream, 1_000);
    dataplane.signal("TERM");
    lab.wait("not ready", "/readyz", |status, text| status == 503 && text.contains("asked to end"));
    // Who has not heard of that yet is served too.
    exchange(&mut lab.client(), 1_000);
    exchange(&mut stream, 1_000_000);
    drop(stream);
    assert_eq!(dataplane.ended(), Some(0));
}

#[test]
fn a_second_signal_and_the_end_of_the_grace_period_end_it_with_connections() {
    for (grace, again) in [("600", true), ("1", false)] {
        let lab = Lab::new();
        echo(&lab, 8080);
        lab.configure(POLICY);
        let dataplane = lab.start_with(&["--grace-seconds", grace]);
        lab.wait("ready", "/readyz", |status, _| status == 200);
        let mut stream = lab.client();
        exchange(&mut stream, 1_000);
        dataplane.signal("TERM");
        if again {
            lab.wait("not ready", "/readyz", |status, _| status == 503);
            dataplane.signal("TERM");
        }
        assert_eq!(dataplane.ended(), Some(0));
    }
}

#[test]
fn it_serves_reloads_without_touching_connections_and_ends_in_order() {
    let lab = Lab::new();
    echo(&lab, 8080);
    lab.configure(POLICY);
    // Without carrier from before the start on, of which no event tells.
    ip(&format!("-n {}-r link set v2 down", lab.name));
    let dataplane = lab.start();
    lab.wait("link down", "/readyz", |_, text| text.contains("eth0 is down"));
    ip(&format!("-n {}-r link set v2 up", lab.name));
    lab.wait("ready", "/readyz", |status, _| status == 200);

    let mut stream = lab.client();
    exchange(&mut stream, 1_000_000);
    let (code, text) = lab.tool("status");
    assert_eq!(code, Some(0), "{text}");
    begins(&text, "It works.\n");
    let (_, text) = lab.tool("flows --policy echo --backend b -o json");
    let flows: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(flows["flows"].as_array().map(Vec::len), Some(1), "{text}");
    assert_eq!(flows["truncated"], false, "{text}");

    // Another policy, noticed by itself; the open connection goes on.
    lab.configure(&POLICY.replace("name: b,", "name: renamed,"));
    lab.wait("the second generation", "/v1/state", |_, text| text.contains("\"generation\":2"));
    exchange(&mut stream, 100_000);

    // A bad one is refused with its line; what was in force stays, and so does the connection.
    lab.configure(&POLICY.replace("name: b,", "name: '',"));
    dataplane.signal("HUP");
    lab.wait("the refusal", "/v1/state", |_, text| {
        text.contains("dataplane.yaml:7: policies[0].backends[0].name: ")
    });
    let (code, text) = lab.tool("status");
    assert_eq!(code, Some(1), "{text}");
    has(&text, "the last good one stays");
    let (_, metrics) = lab.get("/metrics");
    has(&metrics, "baton_dataplane_snapshot_generation 2\n");
    exchange(&mut stream, 100_000);
    exchange(&mut lab.client(), 1_000);

    // Made good again, the complaint goes.
    lab.configure(POLICY);
    lab.wait("the third generation", "/v1/state", |_, text| {
        text.contains("\"generation\":3") && text.contains("\"problems\":[]")
    });

    // A key that is written after the configuration that names it: refused, then noticed by itself.
    let text = fs::read_to_string(lab.file()).expect("the configuration");
    let text = text.replace("epoch: 1, file: adoption.key", "epoch: 2, file: later.key");
    fs::write(lab.file(), text).expect("written");
    lab.wait("the missing key", "/v1/state", |_, text| text.contains("later.key cannot be read"));
    exchange(&mut stream, 1_000);
    let key = lab.folder.join("later.key");
    fs::write(&key, "ffeeddccbbaa99887766554433221100").expect("a key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("its mode");
    lab.wait("the new key", "/v1/state", |_, text| {
        text.contains("\"keyEpochs\":[2]") && text.contains("\"problems\":[]")
    });
    exchange(&mut stream, 1_000);

    // Link down shows, and comes back by itself.
    ip(&format!("-n {}-r link set v2 down", lab.name));
    lab.wait("link down", "/readyz", |_, text| text.contains("eth0 is down"));
    ip(&format!("-n {}-r link set v2 up", lab.name));
    lab.wait("ready again", "/readyz", |status, _| status == 200);
    exchange(&mut stream, 100_000);

    // What its buffers are not made for is said, and not for longer than it is so.
    let mtu = |bytes: u32| ip(&format!("-n {}-d link set eth0 mtu {bytes}", lab.name));
    mtu(1_400);
    lab.wait("the other MTU", "/v1/state", |_, text| {
        text.contains("MTU is 1400, it was 1500 at the start")
    });
    mtu(1_500);
    lab.wait("no problem", "/v1/state", |_, text| text.contains("\"problems\":[]"));

    assert_eq!(dataplane.end(), Some(0));
    let links = Command::new("ip")
        .args(["-n", &format!("{}-d", lab.name), "link", "show", "eth0"])
        .output()
        .expect("iproute2 is installed");
    let links = String::from_utf8_lossy(&links.stdout).into_owned();
    assert!(!links.contains("xdp"), "the program is still attached: {links}");
}

#[test]
fn a_missing_capability_and_ports_of_the_kernel_are_named() {
    let lab = Lab::new();
    lab.configure(POLICY);
    let run = |lab: &Lab, bounding: &str| {
        let output = lab.within("d", || {
            Command::new("setpriv")
                .arg(format!("--bounding-set={bounding}"))
                .arg(env!("CARGO_BIN_EXE_lb-dataplane"))
                .arg("run")
                .arg("--config")
                .arg(lab.file())
                .output()
                .expect("setpriv (util-linux) is installed")
        });
        let text = String::from_utf8(output.stderr).expect("text");
        (output.status.code(), text)
    };
    for (bounding, name) in [
        ("-net_raw", "CAP_NET_RAW"),
        ("-net_admin", "CAP_NET_ADMIN"),
        ("-bpf,-sys_admin", "CAP_BPF"),
    ] {
        let (code, text) = run(&lab, bounding);
        assert_eq!(code, Some(1), "{text}");
        assert!(
            text.starts_with("lb-dataplane: this process lacks ") && text.contains(name),
            "{text}"
        );
    }
    lab.configure(&format!("{POLICY}ports: 20000-59999\n"));
    let (code, text) = run(&lab, "+all");
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("port range in use") && text.contains("ip_local_reserved_ports=20000-59999"),
        "{text}"
    );
}

#[test]
fn over_a_unix_socket_commands_work_and_no_port_takes_them() {
    let lab = Lab::new();
    echo(&lab, 8080);
    let socket = lab.folder.join("run/control.sock");
    let place = format!("unix:{}", socket.display());
    lab.configure_with(&format!("control: {place}\nprobes: 127.0.0.1:9900\n"), POLICY);
    let dataplane = lab.start();
    lab.wait("ready", "/readyz", |status, _| status == 200);
    let status = || lab.tool(&format!("status --control {place}"));
    let (code, text) = status();
    assert_eq!(code, Some(0), "{text}");
    for order in ["drain b", "drain b --undo"] {
        let (code, text) = lab.tool(&format!("{order} --control {place}"));
        assert_eq!(code, Some(0), "{text}");
    }
    for path in ["/v1/state", "/v1/flows", "/v1/snapshot", "/v1/drain"] {
        let (status, text) = lab.get(path);
        assert_eq!(status, 404, "{path}: {text}");
    }
    let (code, _, text) = lab.tool_all("status");
    assert_eq!(code, Some(2), "the port has probes only: {text}");

    // A second one is refused, and the first one goes on.
    assert_eq!(lab.start().ended(), Some(1));
    let log = fs::read_to_string(lab.folder.join("log")).expect("a log");
    has(&log, "another dataplane answers there");
    assert_eq!(status().0, Some(0));

    // Killed, it leaves the socket behind, which is in nobody's way.
    dataplane.signal("KILL");
    assert_eq!(dataplane.ended(), None);
    assert!(socket.exists());
    let (code, _, text) = lab.tool_all(&format!("status --control {place}"));
    assert_eq!(code, Some(2));
    has(&text, &format!("nobody listens at {place}"));
    let again = lab.start();
    lab.wait("ready again", "/readyz", |status, _| status == 200);
    assert_eq!(status().0, Some(0));
    assert_eq!(again.end(), Some(0));
    assert!(!socket.exists(), "an end in order removes it");
}

#[test]
fn a_capture_that_is_interrupted_is_whole() {
    let lab = Lab::new();
    echo(&lab, 8080);
    lab.configure(POLICY);
    let dataplane = lab.start();
    lab.wait("ready", "/readyz", |status, _| status == 200);
    let mut stream = lab.client();
    for (number, end) in ["INT", "TERM", "input"].into_iter().enumerate() {
        let file = lab.folder.join(end);
        let mut capture = Command::new(env!("CARGO_BIN_EXE_lb-dataplane"));
        // What `kubectl baton` runs in a Pod ends by its standard input.
        if end == "input" {
            capture
                .args(["api", "/v1/capture?for=60s", "--end-on-input"])
                .stdout(File::create(&file).expect("a file"));
        } else {
            capture.args(["capture", "--for", "60s", "--write"]).arg(&file);
        }
        capture
            .args(["--netns", &format!("{}-d", lab.name)])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped());
        let mut capture = capture.spawn().expect("it runs");
        let begun = format!("baton_dataplane_captures_total {}", number + 1);
        lab.wait("the capture", "/metrics", |_, text| text.lines().any(|line| line == begun));
        exchange(&mut stream, 1_000);
        if end == "input" {
            // Whoever had it run is gone.
            drop(capture.stdin.take());
        } else {
            let pid = capture.id().to_string();
            let status = Command::new("kill").args([&format!("-{end}"), &pid]).status();
            assert!(status.expect("kill is installed").success());
        }
        let output = capture.wait_with_output().expect("it ends");
        let said = String::from_utf8(output.stderr).expect("text");
        assert!(output.status.success(), "{end}: {said}");
        let bytes = fs::read(&file).expect("the file");
        let words = baton_cli::last_words(&bytes).expect("the end");
        assert!(words.contains("ended because it was asked to end"), "{end}: {words}");
        assert_eq!(said.contains(words), end != "input", "{said}");
        let mut reader = PcapNgReader::new(Cursor::new(bytes)).expect("pcapng");
        let (mut packets, mut ends) = (0, 0);
        while let Some(block) = reader.next_block() {
            match block.expect("a good block").0 {
                Block::EnhancedPacket(_) => packets += 1,
                Block::InterfaceStatistics(_) => ends += 1,
                _ => {}
            }
        }
        assert!(packets > 0 && ends == 1, "{end}: {packets} packets, {ends} ends");
    }
    assert_eq!(dataplane.end(), Some(0));
}
