//! The program as a user runs it: exact messages, exit codes, and which stream they go to.

use crate::common::{begins, has};
use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Command, Output},
    sync::{
        atomic::{AtomicU32, Ordering},
        mpsc,
    },
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

/// The near end of a connection: nobody listens at its port, and nobody else gets it meanwhile.
fn unheard() -> TcpStream {
    TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| TcpStream::connect(listener.local_addr()?))
        .expect("a connection")
}

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

    /// What a dataplane that takes commands there makes of it.
    fn asks(&self, control: SocketAddr, words: &str) -> (Option<i32>, String, String) {
        told(&self.run(&format!("{words} --control {control}")))
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
    assert_eq!(told(&output), (Some(0), "dataplane.yaml: good\n".into(), String::new()));
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
            "dataplane.yaml:5: policies[0].name: `w w` is not a name: expected 1 to 143 letters, digits, `-`, `.`, `_` or `/`",
        ),
        (
            "interface:",
            "mode: fast\ninterface:",
            "dataplane.yaml:1: mode: unknown variant `fast`, expected one of auto, native, generic, packet",
        ),
        ("interface: bt-none0\n", "", "dataplane.yaml:1: interface: is missing: expected a value"),
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
        assert_eq!(told(&output), (Some(1), String::new(), format!("lb-dataplane: {message}\n")),);
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
    has(&text, "--config <FILE>");
    let unheard = unheard();
    let closed = unheard.local_addr().expect("connected");
    let (code, _, text) = told(&folder.run(&format!("status --control {closed}")));
    assert_eq!(code, Some(2));
    begins(
        &text,
        &format!(
            "lb-dataplane: the dataplane does not answer: nobody listens at {closed}: is it running"
        ),
    );
    let (code, _, text) = told(&folder.run("status --netns ../x"));
    assert_eq!(code, Some(2));
    has(&text, "`ip netns list`");
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
    has(&text, "lo");
}

#[test]
fn run_refuses_ports_that_somebody_listens_on() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("its address").port();
    let (first, last) = (port.saturating_sub(40).max(1024), port.saturating_add(40));
    let config = format!("ports: {first}-{last}\n{}", GOOD.replace("bt-none0", "lo"));
    let (code, _, text) = told(&Folder::with(&config).run("run --config dataplane.yaml"));
    assert_eq!(code, Some(1));
    begins(&text, "lb-dataplane: port range in use: ");
}

/// Answers one request with this body.
fn answering(status: &'static str, body: &'static str) -> SocketAddr {
    serving(vec![(status, body.to_owned())]).0
}

/// Where somebody listens, and what is asked there.
type Serving = (SocketAddr, mpsc::Receiver<String>);

/// Answers requests one after the other with these, each on a connection of its own.
fn serving(answers: Vec<(&'static str, String)>) -> Serving {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    let (asked, heard) = mpsc::channel();
    thread::spawn(move || {
        for (status, body) in answers {
            let (mut stream, _) = listener.accept().expect("a request");
            let mut request = Vec::new();
            let mut byte = [0];
            while !request.ends_with(b"\r\n\r\n") && stream.read(&mut byte).expect("read") == 1 {
                request.push(byte[0]);
            }
            let head = String::from_utf8_lossy(&request).into_owned();
            let length = head
                .split_once("content-length: ")
                .and_then(|(_, rest)| rest.split("\r\n").next()?.parse().ok());
            let mut content = vec![0; length.unwrap_or(0)];
            stream.read_exact(&mut content).expect("a body");
            // Nobody may want to know.
            let _ = asked.send(head + &String::from_utf8_lossy(&content));
            let head = format!(
                "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                body.len()
            );
            stream.write_all(head.as_bytes()).expect("written");
            stream.write_all(body.as_bytes()).expect("written");
        }
    });
    (address, heard)
}

const STATE: &str = r#"{"version":"0.1.0","generation":1,"uptimeSeconds":5,
"worker":{"interface":"eth0","mode":"native","addresses":["10.0.0.1"],"ports":[20000,32767],"keyEpochs":[1]},
"policies":[],"counters":{},"tables":{},"problems":[]}"#;

#[test]
fn status_ends_with_0_if_it_works_and_1_if_not() {
    let folder = Folder::with(GOOD);
    let control = answering("200 OK", STATE);
    let (code, text, _) = folder.asks(control, "status");
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
    let (code, text, _) = folder.asks(control, "status");
    assert_eq!(code, Some(1));
    begins(&text, "It does NOT work as it should:\n  - no snapshot is in force\n");
    let control = answering("200 OK", STATE);
    let (code, text, _) = folder.asks(control, "backends -o json");
    assert_eq!((code, text.as_str()), (Some(0), "[]\n"));
    let control = answering(
        "503 Service Unavailable",
        r#"{"error":"the packet worker has stopped","field":null,"expected":null}"#,
    );
    let (code, _, text) = folder.asks(control, "flows");
    assert_eq!(code, Some(2));
    has(&text, "the packet worker has stopped");
}

/// The state with a backend that drains, with this many flows of which so many moved; without a
/// drain if there is none.
fn draining(flows: u64, drain: Option<u64>) -> String {
    let drain = drain.map_or("null".to_owned(), |moved| {
        format!(
            r#"{{"byCommand":true,"since":"1s","left":"{}s","moved":{moved},"ended":1,"closed":0,
            "waiting":{{"pinned: upgrade":{flows}}}}}"#,
            100 - moved
        )
    });
    let policy = format!(
        r#"[{{"name":"web","frontends":["10.0.0.1:80"],"algorithm":"LeastOutstanding","protocol":"HTTP1","flows":{flows},
        "flowsTotal":9,"migrationsTotal":0,"rollbacksTotal":0,"backends":[{{"name":"pod-a","endpoint":"10.0.1.1:80",
        "weight":1,"draining":true,"adoptability":"ready","health":"up","flows":{flows},"outstanding":0,
        "firstByte":"0us","requestsTotal":0,"migrationsInTotal":0,"migrationsOutTotal":0,"drain":{drain}}}]}}]"#
    );
    STATE.replace("\"policies\":[]", &format!("\"policies\":{policy}"))
}

const TAKEN: &str = r#"{"backends":1,"bySnapshot":0}"#;

/// Looks at a dataplane before and after an order of a drain.
fn drained(before: String, taken: (&'static str, &str), looks: Vec<String>) -> Serving {
    let mut answers = vec![("200 OK", before), (taken.0, taken.1.to_owned())];
    answers.extend(looks.into_iter().map(|state| ("200 OK", state)));
    serving(answers)
}

#[test]
fn a_drain_is_ordered_as_json_and_told_what_comes_next() {
    let folder = Folder::with(GOOD);
    let (control, asked) = drained(draining(3, None), ("200 OK", TAKEN), Vec::new());
    let (code, text, _) = folder.asks(control, "drain pod-a --policy web");
    assert_eq!(code, Some(0));
    begins(&text, "pod-a drains on 1 dataplane: no new connections");
    has(&text, "  lb-dataplane drain pod-a --undo\n");
    let request = asked.recv().expect("asked");
    begins(&request, "GET /v1/state HTTP/1.1\r\n");
    let request = asked.recv().expect("asked");
    begins(&request, "POST /v1/drain HTTP/1.1\r\n");
    has(&request, "content-type: application/json\r\n");
    assert!(request.ends_with(r#"{"backend":"pod-a","policy":"web","undo":false}"#), "{request}");
    let (control, asked) = drained(draining(3, Some(5)), ("200 OK", TAKEN), Vec::new());
    let (code, text, _) = folder.asks(control, "drain pod-a --undo -o json");
    assert_eq!(code, Some(0));
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&json["undone"], &json["backend"]), (&true.into(), &"pod-a".into()));
    let request = asked.iter().nth(1).expect("asked");
    assert!(request.ends_with("\"undo\":true}"), "{request}");
}

#[test]
fn a_drain_that_waits_shows_each_change_and_ends_when_nothing_is_left() {
    let folder = Folder::with(GOOD);
    let answers = |states: &[(u64, Option<u64>)]| {
        let states = states.iter();
        let looks = states.map(|(flows, drain)| draining(*flows, *drain));
        drained(draining(3, None), ("200 OK", TAKEN), looks.collect()).0
    };
    let control = answers(&[(3, Some(5)), (3, Some(5)), (1, Some(7)), (0, Some(8))]);
    let (code, text, progress) = folder.asks(control, "drain pod-a --wait");
    assert_eq!(code, Some(0), "{progress}");
    begins(&text, "pod-a is empty after ");
    assert!(text.ends_with("can be stopped: 8 moved, 1 ended, 0 closed.\n"), "{text}");
    assert_eq!(
        progress,
        "\
pod-a: 3 flows left (3 pinned: upgrade); 5 moved, 1 ended, 0 closed; deadline in 1m 35s
pod-a: 1 flow left (1 pinned: upgrade); 7 moved, 1 ended, 0 closed; deadline in 1m 33s
pod-a: 0 flows left; 8 moved, 1 ended, 0 closed
"
    );

    let control = answers(&[(2, Some(1)), (2, Some(1)), (2, Some(1))]);
    let (code, text, _) = folder.asks(control, "drain pod-a --wait --timeout 250ms");
    assert_eq!(code, Some(1));
    assert!(
        text.starts_with("pod-a is not empty after ")
            && text.ends_with("  lb-dataplane flows --backend pod-a\n"),
        "{text}"
    );

    // The dataplane goes.
    let mut gone = vec![("200 OK", draining(3, None)), ("200 OK", TAKEN.to_owned())];
    gone.extend((0..3).map(|_| {
        let stopped = r#"{"error":"the packet worker has stopped"}"#;
        ("503 Service Unavailable", stopped.to_owned())
    }));
    let (control, _) = serving(gone);
    let (code, _, complaint) = folder.asks(control, "drain pod-a --wait");
    assert_eq!(code, Some(2));
    has(&complaint, "has stopped");
}

#[test]
fn a_drain_that_is_refused_ends_with_1_and_one_that_cannot_be_ordered_with_2() {
    let folder = Folder::with(GOOD);
    let words = "no backend is named `pod-a`: expected one of a, b";
    for (status, ends, said) in [
        ("404 Not Found", 1, "refuses"),
        ("403 Forbidden", 1, "refuses"),
        ("503 Service Unavailable", 2, "did not take the order"),
    ] {
        let body = format!(r#"{{"error":"{words}","field":"backend","expected":"one of a, b"}}"#);
        let (control, _) = drained(draining(3, None), (status, &body), Vec::new());
        let (code, text, complaint) = folder.asks(control, "drain pod-a --wait");
        assert_eq!((code, text.as_str()), (Some(ends), ""), "{status}");
        assert_eq!(complaint, format!("lb-dataplane: the dataplane {said}: {words}\n"));
    }
    let (control, _) = serving(vec![("200 OK", draining(3, None))]);
    let (code, _, complaint) = folder.asks(control, "drain x");
    assert_eq!(code, Some(1));
    assert_eq!(complaint, "lb-dataplane: no policy has a backend x: expected one of pod-a\n");
    let unheard = unheard();
    let closed = unheard.local_addr().expect("connected");
    let (code, _, complaint) = told(&folder.run(&format!("drain x --control {closed}")));
    assert_eq!(code, Some(2));
    has(&complaint, "nobody listens at");
}

const FLOWS: &str = r#"{"truncated":false,"flows":[{"client":"10.0.0.7:4711","frontend":"10.0.0.1:80","policy":"web",
"backend":"pod-a","port":20000,"state":"Idle","migrations":0,"quiet":"5us"}]}"#;

#[test]
fn a_move_is_ordered_as_json_and_its_refusal_ends_with_1() {
    let folder = Folder::with(GOOD);
    let taken = r#"{"policy":"web","from":"pod-a","to":"pod-b","begun":true}"#;
    let (control, asked) = serving(vec![("200 OK", FLOWS.into()), ("200 OK", taken.into())]);
    let (code, text, _) = folder.asks(control, "migrate 10.0.0.7:4711 --to pod-b");
    assert_eq!(code, Some(0));
    assert_eq!(
        text,
        "\
10.0.0.7:4711 is being moved from pod-a to pod-b.
What became of it:
  lb-dataplane trace --past --for 1s --flow 10.0.0.7:4711
"
    );
    let request = asked.recv().expect("asked");
    begins(&request, "GET /v1/flows?limit=100000&client=10.0.0.7%3A4711 HTTP/1.1\r\n");
    let request = asked.recv().expect("asked");
    assert!(request.starts_with("POST /v1/migrate HTTP/1.1\r\n"));
    assert!(
        request.ends_with(r#"{"client":"10.0.0.7:4711","frontend":"10.0.0.1:80","to":"pod-b"}"#),
        "{request}"
    );
    for (status, ends) in [("409 Conflict", 1), ("503 Service Unavailable", 2)] {
        let body = r#"{"error":"the flow is pinned: upgrade"}"#;
        let (control, _) = serving(vec![("200 OK", FLOWS.into()), (status, body.into())]);
        let (code, text, complaint) = folder.asks(control, "migrate 10.0.0.7:4711");
        assert_eq!((code, text.as_str()), (Some(ends), ""), "{status}");
        assert!(complaint.contains("the flow is pinned: upgrade"));
    }
    // Another connection from the same port, to another address.
    let (control, _) = serving(vec![("200 OK", FLOWS.into())]);
    let (code, _, complaint) = folder.asks(control, "migrate 10.0.0.7:4711 --frontend 10.0.0.2:80");
    assert_eq!(code, Some(1));
    has(&complaint, "no dataplane has a flow of 10.0.0.7:4711");
}

#[test]
fn a_trace_goes_on_where_the_answer_before_ended() {
    let folder = Folder::with(GOOD);
    let events = |next: u64, missed: u64, more: bool, numbers: &[u64]| {
        let event = |seq: &u64| {
            format!(
                r#"{{"seq":{seq},"atMicros":{seq},"event":"moved","client":"10.0.0.7:4711","policy":"web","cause":"drain",
                "from":"a","to":"b"}}"#
            )
        };
        let events: Vec<String> = numbers.iter().map(event).collect();
        let body = format!(
            r#"{{"nowMicros":100,"unixMicros":3600000000,"next":"{next}","missed":{missed},"more":{more},"events":[{}]}}"#,
            events.join(",")
        );
        ("200 OK", body)
    };
    let (control, asked) = serving(vec![
        events(6, 0, true, &[5, 6]),
        events(9, 1, true, &[8]),
        events(9, 0, false, &[]),
        events(9, 0, false, &[]),
    ]);
    let (code, text, noted) = folder.asks(control, "trace --past --for 100ms");
    assert_eq!(code, Some(0), "{noted}");
    let line = "00:59:59.999  10.0.0.7:4711          moved a -> b (drain)  web\n";
    assert_eq!(text, line.repeat(3));
    assert_eq!(
        noted,
        "lb-dataplane: the dataplane: 1 events were overwritten before they could be read: name a --flow\n"
    );
    for since in [0, 6, 9] {
        let request = asked.recv().expect("asked");
        begins(&request, &format!("GET /v1/events?since={since} "));
    }
    let none = || events(6, 0, false, &[]);
    let (control, _) = serving(vec![events(6, 0, true, &[5]), none(), none()]);
    let (code, text, _) = folder.asks(control, "trace --past --for 100ms -o json");
    let said: serde_json::Value = serde_json::from_str(text.trim_end()).expect("JSON");
    let time = "1970-01-01T00:59:59.999905Z";
    assert_eq!((code, &said["time"], &said["seq"]), (Some(0), &time.into(), &5.into()));
    assert_eq!(said.get("dataplane"), None, "it is the only one");
}

#[test]
fn the_control_api_answers_as_it_is() {
    let folder = Folder::with(GOOD);
    let (control, asked) = serving(vec![("200 OK", FLOWS.into())]);
    let (code, text, _) = folder.asks(control, "api /v1/flows?limit=5");
    assert_eq!((code, text.as_str()), (Some(0), FLOWS));
    let request = asked.recv().expect("asked");
    begins(&request, "GET /v1/flows?limit=5 HTTP/1.1\r\n");
    for (status, ends) in [("409 Conflict", 1), ("503 Service Unavailable", 2)] {
        let (control, asked) = serving(vec![(status, r#"{"error":"not now"}"#.into())]);
        let (code, text, complaint) = folder.asks(control, "api /v1/drain --post {}");
        assert_eq!((code, text.as_str()), (Some(ends), ""), "{status}");
        assert_eq!(complaint, "lb-dataplane: not now\n");
        let request = asked.recv().expect("asked");
        begins(&request, "POST /v1/drain HTTP/1.1\r\n");
        assert!(request.ends_with("\r\n\r\n{}"), "{request}");
    }
}

#[test]
fn version_and_help() {
    let folder = Folder::with(GOOD);
    let (code, text, _) = told(&folder.run("version"));
    assert_eq!(code, Some(0));
    assert_eq!(text, concat!("lb-dataplane ", env!("CARGO_PKG_VERSION"), "\n"));
    let (code, text, _) = told(&folder.run("--help"));
    assert_eq!(code, Some(0));
    for word in [
        "run",
        "check",
        "status",
        "backends",
        "flows",
        "drain",
        "migrate",
        "trace",
        "api",
        "Exit codes",
    ] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let (code, text, _) = told(&folder.run("drain --help"));
    assert_eq!(code, Some(0));
    for words in [
        "It does NOT survive a",
        "--undo",
        "--wait",
        "[default: 60s]",
        "drain pod-a --undo",
        "can be stopped",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
}
