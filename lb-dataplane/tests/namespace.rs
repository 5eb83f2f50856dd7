//! The program on a real interface: a client, the dataplane and a backend, each in a network namespace, joined
//! by a bridge in a fourth one. Needs root and iproute2.

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::{
    fs::{self, File},
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::{fd::AsFd, unix::fs::PermissionsExt},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

const DEADLINE: Duration = Duration::from_secs(20);
const SPACES: [&str; 4] = ["r", "c", "d", "b"];

fn ip(arguments: &str) {
    let output = Command::new("ip")
        .args(arguments.split_whitespace())
        .output()
        .expect("iproute2 is installed");
    assert!(
        output.status.success(),
        "ip {arguments}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Four namespaces and a folder; all gone on drop.
struct Lab {
    name: String,
    folder: PathBuf,
}

impl Lab {
    /// `10.77.0.1` is the client, `.2` the dataplane, `.3` the backend, `.254` the router.
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        remove_leftovers();
        let name = format!(
            "bt-{}-lbd{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let folder = std::env::temp_dir().join(&name);
        fs::create_dir_all(&folder).expect("a folder");
        let lab = Self { name, folder };
        for space in SPACES {
            ip(&format!("netns add {}-{space}", lab.name));
            ip(&format!("-n {}-{space} link set lo up", lab.name));
        }
        let router = format!("{}-r", lab.name);
        ip(&format!("-n {router} link add br0 type bridge"));
        ip(&format!("-n {router} addr add 10.77.0.254/24 dev br0"));
        ip(&format!("-n {router} link set br0 up"));
        for (i, space) in SPACES.into_iter().enumerate().skip(1) {
            let space = format!("{}-{space}", lab.name);
            ip(&format!(
                "-n {router} link add v{i} type veth peer name eth0 netns {space}"
            ));
            ip(&format!("-n {router} link set v{i} master br0 up"));
            ip(&format!("-n {space} addr add 10.77.0.{i}/24 dev eth0"));
            ip(&format!("-n {space} link set eth0 up"));
            ip(&format!("-n {space} route add default via 10.77.0.254"));
        }
        let key = lab.folder.join("adoption.key");
        fs::write(&key, "00112233445566778899aabbccddeeff").expect("a key");
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("its mode");
        lab
    }

    /// Runs `work` on a thread of its own in one of the namespaces.
    fn within<T: Send>(&self, space: &str, work: impl FnOnce() -> T + Send) -> T {
        let path = format!("/run/netns/{}-{space}", self.name);
        thread::scope(|scope| {
            scope
                .spawn(|| {
                    let file = File::open(path).expect("the namespace");
                    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                        .expect("entered");
                    work()
                })
                .join()
                .expect("no panic")
        })
    }

    fn configure(&self, policies: &str) {
        let text = format!(
            "interface: eth0\nkeys: [{{epoch: 1, file: adoption.key}}]\npolicies:\n{policies}"
        );
        // Replaced in one step, as Kubernetes does.
        fs::write(self.folder.join("next"), text).expect("a file");
        fs::rename(self.folder.join("next"), self.file()).expect("renamed");
    }

    fn file(&self) -> PathBuf {
        self.folder.join("dataplane.yaml")
    }

    fn start(&self) -> Dataplane {
        let log = File::create(self.folder.join("log")).expect("a log");
        let child = self.within("d", || {
            Command::new(env!("CARGO_BIN_EXE_lb-dataplane"))
                .arg("run")
                .arg("--config")
                .arg(self.file())
                .stderr(log)
                .stdout(Stdio::null())
                .spawn()
                .expect("it runs")
        });
        Dataplane(child)
    }

    /// Status and text of a path of the control API.
    fn get(&self, path: &str) -> (u16, String) {
        self.within("d", || {
            let Ok(mut stream) = TcpStream::connect("127.0.0.1:9900") else {
                return (0, String::new());
            };
            write!(stream, "GET {path} HTTP/1.0\r\nhost: t\r\n\r\n").expect("sent");
            let mut text = String::new();
            stream.read_to_string(&mut text).expect("read");
            let status = text.split(' ').nth(1).and_then(|s| s.parse().ok());
            let body = text.split_once("\r\n\r\n").map(|(_, body)| body);
            (
                status.unwrap_or_default(),
                body.unwrap_or_default().to_owned(),
            )
        })
    }

    fn wait(&self, what: &str, path: &str, mut good: impl FnMut(u16, &str) -> bool) {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let (status, text) = self.get(path);
            if good(status, &text) {
                return;
            }
            let log = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
            assert!(
                Instant::now() < deadline,
                "{what}: {path} said {status}: {text}\nlog:\n{log}"
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Output and exit code of a command that asks the dataplane.
    fn tool(&self, arguments: &str) -> (Option<i32>, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_lb-dataplane"))
            .args(arguments.split_whitespace())
            .arg("--netns")
            .arg(format!("{}-d", self.name))
            .output()
            .expect("it runs");
        let text = String::from_utf8(output.stdout).expect("text");
        (output.status.code(), text)
    }

    /// A backend that sends everything back; ends with the test's process.
    fn echo(&self, port: u16) {
        let listener = self.within("b", || {
            TcpListener::bind(("10.77.0.3", port)).expect("a port")
        });
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                thread::spawn(move || {
                    let mut out = stream.try_clone().expect("a descriptor");
                    let _ = std::io::copy(&mut &stream, &mut out);
                });
            }
        });
    }

    fn client(&self) -> TcpStream {
        let stream = self.within("c", || {
            TcpStream::connect(("10.77.0.2", 80)).expect("connected through the dataplane")
        });
        stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
        stream
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for space in SPACES {
            let _ = Command::new("ip")
                .args(["netns", "del", &format!("{}-{space}", self.name)])
                .output();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Removes what runs that were killed left behind: namespaces of this test whose process is gone.
fn remove_leftovers() {
    for entry in fs::read_dir("/run/netns").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let mut parts = name.split('-');
        let ours = parts.next() == Some("bt");
        let pid = parts.next().and_then(|pid| pid.parse::<u32>().ok());
        let lbd = parts.next().is_some_and(|part| part.starts_with("lbd"));
        if let (true, Some(pid), true) = (ours, pid, lbd)
            && !PathBuf::from(format!("/proc/{pid}")).exists()
        {
            let _ = Command::new("ip").args(["netns", "del", &name]).output();
        }
    }
}

/// Killed on drop, so that a failed test leaves nothing.
struct Dataplane(Child);

impl Dataplane {
    fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .arg(format!("-{name}"))
            .arg(self.0.id().to_string())
            .status()
            .expect("kill is installed");
        assert!(status.success());
    }

    fn end(mut self) -> Option<i32> {
        self.signal("TERM");
        let deadline = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = self.0.try_wait().expect("its status") {
                return status.code();
            }
            assert!(Instant::now() < deadline, "it does not end");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Dataplane {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
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
fn it_serves_reloads_without_touching_connections_and_ends_in_order() {
    let lab = Lab::new();
    lab.echo(8080);
    lab.configure(POLICY);
    let dataplane = lab.start();
    lab.wait("ready", "/readyz", |status, _| status == 200);

    let mut stream = lab.client();
    exchange(&mut stream, 1_000_000);
    let (code, text) = lab.tool("status");
    assert_eq!(code, Some(0), "{text}");
    assert!(text.starts_with("It works.\n"), "{text}");
    let (_, text) = lab.tool("flows --policy echo --backend b -o json");
    let flows: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(flows.as_array().map(Vec::len), Some(1), "{text}");

    // Another policy, noticed by itself; the open connection goes on.
    lab.configure(&POLICY.replace("name: b,", "name: renamed,"));
    lab.wait("the second generation", "/v1/state", |_, text| {
        text.contains("\"generation\":2")
    });
    exchange(&mut stream, 100_000);

    // A bad one is refused with its line; what was in force stays, and so does the connection.
    lab.configure(&POLICY.replace("name: b,", "name: '',"));
    dataplane.signal("HUP");
    lab.wait("the refusal", "/v1/state", |_, text| {
        text.contains("dataplane.yaml:7: policies[0].backends[0].name: ")
    });
    let (code, text) = lab.tool("status");
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("the last good one stays"), "{text}");
    let (_, metrics) = lab.get("/metrics");
    assert!(
        metrics.contains("baton_dataplane_snapshot_generation 2\n"),
        "{metrics}"
    );
    exchange(&mut stream, 100_000);
    exchange(&mut lab.client(), 1_000);

    // Made good again, the complaint goes.
    lab.configure(POLICY);
    lab.wait("the third generation", "/v1/state", |_, text| {
        text.contains("\"generation\":3") && text.contains("\"problems\":[]")
    });

    // Link down shows, and comes back by itself.
    ip(&format!("-n {}-r link set v2 down", lab.name));
    lab.wait("link down", "/readyz", |_, text| {
        text.contains("eth0 is down")
    });
    ip(&format!("-n {}-r link set v2 up", lab.name));
    lab.wait("ready again", "/readyz", |status, _| status == 200);
    exchange(&mut stream, 100_000);

    assert_eq!(dataplane.end(), Some(0));
    let links = Command::new("ip")
        .args(["-n", &format!("{}-d", lab.name), "link", "show", "eth0"])
        .output()
        .expect("iproute2 is installed");
    let links = String::from_utf8_lossy(&links.stdout).into_owned();
    assert!(
        !links.contains("xdp"),
        "the program is still attached: {links}"
    );
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
