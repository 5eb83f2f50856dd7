//! The program on a real interface: a client, the dataplane and backends, each in a network
//! namespace, joined by a bridge in a fourth one. Needs root and iproute2.

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::{
    fs::{self, File},
    io::{Read, Write},
    net::TcpStream,
    os::{fd::AsFd, unix::fs::PermissionsExt},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

pub const DEADLINE: Duration = Duration::from_secs(20);
const SPACES: [&str; 4] = ["r", "c", "d", "b"];

pub fn ip(arguments: &str) {
    let output = Command::new("ip")
        .args(arguments.split_whitespace())
        .output()
        .expect("iproute2 is installed");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Asserts that a text has this part.
#[track_caller]
pub fn has(text: &str, part: &str) {
    assert!(text.contains(part), "no {part}: {text}");
}

/// Asserts that a text begins so.
#[track_caller]
pub fn begins(text: &str, part: &str) {
    assert!(text.starts_with(part), "{text}");
}

/// Four namespaces and a folder; all gone on drop.
pub struct Lab {
    pub name: String,
    pub folder: PathBuf,
}

impl Lab {
    /// `10.77.0.1` is the client, `.2` the dataplane, `.3` the backend, `.254` the router.
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        remove_leftovers();
        let name = format!("bt-{}-lbd{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
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
            ip(&format!("-n {router} link add v{i} type veth peer name eth0 netns {space}"));
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
    pub fn within<T: Send>(&self, space: &str, work: impl FnOnce() -> T + Send) -> T {
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

    pub fn configure(&self, policies: &str) {
        self.configure_with("", policies);
    }

    /// With more lines in front of the policies.
    pub fn configure_with(&self, more: &str, policies: &str) {
        let text = format!(
            "interface: eth0\nkeys: [{{epoch: 1, file: adoption.key}}]\n{more}policies:\n{policies}"
        );
        // Replaced in one step, as Kubernetes does.
        fs::write(self.folder.join("next"), text).expect("a file");
        fs::rename(self.folder.join("next"), self.file()).expect("renamed");
    }

    pub fn file(&self) -> PathBuf {
        self.folder.join("dataplane.yaml")
    }

    pub fn start(&self) -> Dataplane {
        self.start_with(&[])
    }

    pub fn start_with(&self, arguments: &[&str]) -> Dataplane {
        let log = File::create(self.folder.join("log")).expect("a log");
        let child = self.within("d", || {
            Command::new(env!("CARGO_BIN_EXE_lb-dataplane"))
                .arg("run")
                .arg("--config")
                .arg(self.file())
                .args(arguments)
                .stderr(log)
                .stdout(Stdio::null())
                .spawn()
                .expect("it runs")
        });
        Dataplane(child)
    }

    /// Status and text of a path of the control API.
    pub fn get(&self, path: &str) -> (u16, String) {
        self.within("d", || {
            let Ok(mut stream) = TcpStream::connect("127.0.0.1:9900") else {
                return (0, String::new());
            };
            write!(stream, "GET {path} HTTP/1.0\r\nhost: localhost\r\n\r\n").expect("sent");
            let mut text = String::new();
            stream.read_to_string(&mut text).expect("read");
            let status = text.split(' ').nth(1).and_then(|s| s.parse().ok());
            let body = text.split_once("\r\n\r\n").map(|(_, body)| body);
            (status.unwrap_or_default(), body.unwrap_or_default().to_owned())
        })
    }

    pub fn wait(&self, what: &str, path: &str, mut good: impl FnMut(u16, &str) -> bool) {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let (status, text) = self.get(path);
            if good(status, &text) {
                return;
            }
            let log = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
            assert!(Instant::now() < deadline, "{what}: {path} said {status}: {text}\nlog:\n{log}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Exit code and output of a command that asks the dataplane.
    pub fn tool(&self, arguments: &str) -> (Option<i32>, String) {
        let (code, output, _) = self.tool_all(arguments);
        (code, output)
    }

    /// The same, and what it complained of.
    pub fn tool_all(&self, arguments: &str) -> (Option<i32>, String, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_lb-dataplane"))
            .args(arguments.split_whitespace())
            .arg("--netns")
            .arg(format!("{}-d", self.name))
            .output()
            .expect("it runs");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        (output.status.code(), text(output.stdout), text(output.stderr))
    }

    pub fn client(&self) -> TcpStream {
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
pub struct Dataplane(Child);

impl Dataplane {
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .arg(format!("-{name}"))
            .arg(self.0.id().to_string())
            .status()
            .expect("kill is installed");
        assert!(status.success());
    }

    pub fn end(self) -> Option<i32> {
        self.signal("TERM");
        self.ended()
    }

    pub fn ended(mut self) -> Option<i32> {
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
