//! The program as a user runs it: exact messages, exit codes, and which stream they go to.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Command, Output},
    sync::atomic::{AtomicU32, Ordering},
    thread,
};

const GOOD: &str = "\
interface: bt-none0
keys:
  - {epoch: 1, file: adoption-1.key}
policies:
  - name: web
    frontends: ['0.0.0.0:80']
    backends:
      - {name: a, endpoint: '10.9.0.1:80'}
";

/// A folder with a configuration and its key, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn with(config: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let path = std::env::temp_dir().join(format!(
            "bt-cli-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        ));
        fs::create_dir_all(&path).expect("a folder");
        fs::write(path.join("dataplane.yaml"), config).expect("a file");
        let key = path.join("adoption-1.key");
        fs::write(&key, "00112233445566778899aabbccddeeff\n").expect("a key");
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("its mode");
        Self(path)
    }

    fn run(&self, arguments: &str) -> Output {
        Command::new(env!("CARGO_BIN_EXE_lb-dataplane"))
            .args(arguments.split_whitespace())
            .current_dir(&self.0)
            .output()
            .expect("it runs")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Exit code, standard output, standard error.
fn told(output: &Output) -> (Option<i32>, String, String) {
    (
        output.status.code(),
        String::from_utf8(output.stdout.clone()).expect("text"),
        String::from_utf8(output.stderr.clone()).expect("text"),
    )
}

#[test]
fn check_says_good() {
    let output = Folder::with(GOOD).run("check --config dataplane.yaml");
    assert_eq!(
        told(&output),
        (Some(0), "dataplane.yaml: good\n".into(), String::new())
    );
}

#[test]
fn check_refuses_with_file_line_field_and_what_was_expected() {
    for (from, to, message) in [
        (
            "endpoint: '10.9.0.1:80'",
            "endpoint: 10.9.0.1",
            "dataplane.yaml:8: policies[0].backends[0].endpoint: `10.9.0.1` is not an address and port: expected as 10.0.0.1:80 or [fd00::1]:80",
        ),
        (
            "name: web",
            "name: 'w w'",
            "dataplane.yaml:5: policies[0].name: `w w` is not a name: expected 1 to 127 letters, digits, `-`, `.`, `_` or `/`",
        ),
        (
            "interface:",
            "mode: fast\ninterface:",
            "dataplane.yaml:1: mode: unknown variant `fast`, expected one of auto, native, generic, packet",
        ),
        (
            "interface: bt-none0\n",
            "",
            "dataplane.yaml:1: interface: is missing: expected a value",
        ),
        (
            "epoch: 1",
            "epoch: 300",
            "dataplane.yaml:3: keys[0].epoch: expected a whole number from 0 to 255",
        ),
        (
            "file: adoption-1.key",
            "file: other.key",
            "dataplane.yaml:3: keys[0].file: the key file other.key cannot be read: No such file or directory (os error 2)",
        ),
        (
            "keys:",
            "ports: 20000\nkeys:",
            "dataplane.yaml:2: ports: `20000` is not a range of ports: expected first and last, as 20000-32767",
        ),
    ] {
        let output = Folder::with(&GOOD.replacen(from, to, 1)).run("check --config dataplane.yaml");
        assert_eq!(
            told(&output),
            (Some(1), String::new(), format!("lb-dataplane: {message}\n")),
        );
    }
}

#[test]
fn what_cannot_be_asked_ends_with_2() {
    let folder = Folder::with(GOOD);
    let (code, _, text) = told(&folder.run("check --config nothing.yaml"));
    assert_eq!(code, Some(2));
    assert_eq!(
        text,
        "lb-dataplane: nothing.yaml: cannot be read: No such file or directory (os error 2)\n"
    );
    let (code, _, text) = told(&folder.run("check"));
    assert_eq!(code, Some(2));
    assert!(text.contains("--config <FILE>"), "{text}");
    // A port that was just free: nobody answers there.
    let closed = TcpListener::bind("127.0.0.1:0")
        .and_then(|l| l.local_addr())
        .expect("a port");
    let (code, _, text) = told(&folder.run(&format!("status --control {closed}")));
    assert_eq!(code, Some(2));
    assert!(
        text.starts_with(&format!(
            "lb-dataplane: no dataplane answers at {closed}: is it running"
        )),
        "{text}"
    );
    let (code, _, text) = told(&folder.run("status --netns ../x"));
    assert_eq!(code, Some(2));
    assert!(text.contains("`ip netns list`"), "{text}");
}

#[test]
fn run_tells_what_keeps_it_from_starting() {
    let (code, _, text) = told(&Folder::with(GOOD).run("run --config dataplane.yaml"));
    assert_eq!(code, Some(1));
    assert!(
        text.starts_with(
            "lb-dataplane: `interface: bt-none0`: there is no such interface here; there are: "
        ),
        "{text}"
    );
    assert!(text.contains("lo"), "{text}");
}

#[test]
fn run_refuses_ports_that_somebody_listens_on() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("its address").port();
    let (first, last) = (port.saturating_sub(40).max(1024), port.saturating_add(40));
    let config = format!("ports: {first}-{last}\n{}", GOOD.replace("bt-none0", "lo"));
    let (code, _, text) = told(&Folder::with(&config).run("run --config dataplane.yaml"));
    assert_eq!(code, Some(1));
    assert!(
        text.starts_with("lb-dataplane: port range in use: "),
        "{text}"
    );
}

/// Answers one request with this body.
fn answering(status: &str, body: &'static str) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a request");
        let mut request = Vec::new();
        let mut byte = [0];
        while !request.ends_with(b"\r\n\r\n") && stream.read(&mut byte).expect("read") == 1 {
            request.push(byte[0]);
        }
        stream.write_all(head.as_bytes()).expect("written");
        stream.write_all(body.as_bytes()).expect("written");
    });
    address
}

const STATE: &str = r#"{"version":"0.1.0","generation":1,"uptimeSeconds":5,
"worker":{"interface":"eth0","mode":"native","addresses":["10.0.0.1"],"ports":[20000,32767],"keyEpochs":[1]},
"policies":[],"counters":{},"tables":{},"problems":[]}"#;

#[test]
fn status_ends_with_0_if_it_works_and_1_if_not() {
    let folder = Folder::with(GOOD);
    let control = answering("200 OK", STATE);
    let (code, text, _) = told(&folder.run(&format!("status --control {control}")));
    assert_eq!(code, Some(0));
    assert_eq!(
        text,
        "\
It works.

version 0.1.0, up 5s, native mode on eth0, generation 1
address 10.0.0.1, leg ports 20000-32767, key epochs 1
"
    );
    let bad = r#"{"version":"0.1.0","generation":0,"uptimeSeconds":5,
"worker":{"interface":"eth0","mode":"native","addresses":[],"ports":[20000,32767],"keyEpochs":[]},
"policies":[],"counters":{},"tables":{},"problems":["no snapshot is in force"]}"#;
    let control = answering("200 OK", bad);
    let (code, text, _) = told(&folder.run(&format!("status --control {control}")));
    assert_eq!(code, Some(1));
    assert!(
        text.starts_with("It does NOT work as it should:\n  - no snapshot is in force\n"),
        "{text}"
    );
    let control = answering("200 OK", STATE);
    let (code, text, _) = told(&folder.run(&format!("backends -o json --control {control}")));
    assert_eq!((code, text.as_str()), (Some(0), "[]\n"));
    let control = answering(
        "503 Service Unavailable",
        r#"{"error":"the packet worker has stopped","field":null,"expected":null}"#,
    );
    let (code, _, text) = told(&folder.run(&format!("flows --control {control}")));
    assert_eq!(code, Some(2));
    assert!(text.contains("the packet worker has stopped"), "{text}");
}

#[test]
fn version_and_help() {
    let folder = Folder::with(GOOD);
    let (code, text, _) = told(&folder.run("version"));
    assert_eq!(code, Some(0));
    assert_eq!(
        text,
        concat!("lb-dataplane ", env!("CARGO_PKG_VERSION"), "\n")
    );
    let (code, text, _) = told(&folder.run("--help"));
    assert_eq!(code, Some(0));
    for word in ["run", "check", "status", "backends", "flows", "Exit codes"] {
        assert!(text.contains(word), "{word}: {text}");
    }
}
