//! A host-shim process with its files, for tests that need root. Ends with the test.

pub mod cluster;
#[path = "../../../adopter/tests/it/common/mod.rs"]
pub mod common;

use common::{
    Lab, Pins, ends,
    segment::{Message, Segment},
    unique, wait_for,
};
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

pub const KEY_HEX: &str = "000102030405060708090a0b0c0d0e0f";
pub const KEY: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
/// For [`Files::config`].
pub const ONE_KEY: &str = "{epoch: 1, file: KEY}";
pub const OTHER_KEY: [u8; 16] = [0xab; 16];

/// A configuration, keys and a pin directory, removed on drop.
pub struct Files {
    dir: PathBuf,
    pub pins: Pins,
}

impl Files {
    pub fn new() -> Self {
        let dir = std::env::temp_dir().join(unique());
        fs::create_dir_all(&dir).expect("a directory");
        let files = Self { dir, pins: Pins::new() };
        files.write("key", KEY_HEX, 0o600);
        files.write("other-key", &"ab".repeat(16), 0o600);
        files.write("open-key", KEY_HEX, 0o644);
        files
    }

    pub fn path(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    /// Replaces a file in one step, as editors and Kubernetes do.
    pub fn write(&self, name: &str, text: &str, mode: u32) {
        let fresh = self.dir.join(".fresh");
        fs::write(&fresh, text).expect("write");
        fs::set_permissions(&fresh, fs::Permissions::from_mode(mode)).expect("permissions");
        fs::rename(fresh, self.dir.join(name)).expect("rename");
    }

    /// Writes shim.yaml; KEY, OTHER_KEY, OPEN_KEY and PINS stand for paths.
    pub fn config(&self, text: &str) {
        let text = text
            .replace("OTHER_KEY", &self.path("other-key"))
            .replace("OPEN_KEY", &self.path("open-key"))
            .replace("KEY", &self.path("key"))
            .replace("PINS", &self.pins.0.display().to_string());
        self.write("shim.yaml", &text, 0o644);
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// A running host-shim.
pub struct Daemon {
    child: Child,
    log: Arc<Mutex<String>>,
    control: SocketAddr,
}

/// An address that nobody else uses: a loopback address of its own. A free port of 127.0.0.1 may
/// become the source port of any connection before it is bound.
pub fn free_address() -> SocketAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    assert_ne!(number, 255, "addresses of this process are used up");
    SocketAddr::from(([127, high, low, number], 9901))
}

impl Daemon {
    /// Starts it and waits until it serves.
    pub fn start(files: &Files, control: SocketAddr, arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_host-shim"))
            .args(["run", "--config", &files.path("shim.yaml")])
            .args(arguments)
            .stderr(Stdio::piped())
            .spawn()
            .expect("start host-shim");
        let stderr = child.stderr.take().expect("piped");
        let log = Arc::new(Mutex::new(String::new()));
        let writer = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let mut log = writer.lock().expect("the log");
                log.push_str(&line);
                log.push('\n');
            }
        });
        let mut daemon = Self { child, log, control };
        wait_for("host-shim serves", || {
            let ended = daemon.child.try_wait().expect("wait");
            assert!(ended.is_none(), "host-shim ended: {}", daemon.log());
            TcpStream::connect(control).is_ok() && daemon.log().contains("running")
        });
        daemon
    }

    pub fn log(&self) -> String {
        self.log.lock().expect("the log").clone()
    }

    /// Sends a signal to this process only.
    pub fn signal(&self, name: &str) {
        common::run(&format!("kill -{name} {}", self.child.id()));
    }

    pub fn control(&self) -> SocketAddr {
        self.control
    }

    /// Waits until it has ended.
    pub fn ended(&mut self) -> ExitStatus {
        self.child.wait().expect("wait")
    }

    pub fn wait(mut self) -> ExitStatus {
        self.child.wait().expect("wait")
    }

    /// Status and body of a GET.
    pub fn get(&self, path: &str) -> (u16, String) {
        self.request("GET", path)
    }

    pub fn request(&self, method: &str, path: &str) -> (u16, String) {
        request(self.control, method, path)
    }

    pub fn state(&self) -> serde_json::Value {
        let (status, body) = self.get("/v1/state");
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).expect("JSON")
    }
}

/// Status and body of a request without a body.
pub fn request(address: SocketAddr, method: &str, path: &str) -> (u16, String) {
    request_with(address, method, path, "Host: localhost")
}

/// The same with other headers.
pub fn request_with(address: SocketAddr, method: &str, path: &str, headers: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("connect");
    stream.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
    write!(stream, "{method} {path} HTTP/1.1\r\n{headers}\r\nConnection: close\r\n\r\n")
        .expect("write");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("read");
    let status = text.split(' ').nth(1).and_then(|s| s.parse().ok());
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    (status.expect("a status"), body.to_owned())
}

/// What a probe of that epoch draws: `Some(reason)`, or `None` where no adopter with that key
/// answers.
pub fn probe(lab: &Lab, epoch: u8, key: &[u8; 16]) -> Option<u16> {
    Some(answer(lab, epoch, key)?.mss)
}

pub fn answer(lab: &Lab, epoch: u8, key: &[u8; 16]) -> Option<Message> {
    let (pod, ours) = ends(false, 8081, 50_000);
    let sent = Message::probe().epoch(epoch).segment(ours, pod, 1_000, 2_000, key);
    lab.send(&sent);
    // Behind the probe, something that draws a reset: silence needs no waiting.
    let (_, behind) = ends(false, 8081, 50_001);
    lab.send(&Segment { from: behind, options: Vec::new(), ..sent });
    lab.receive(behind).expect("the pod resets");
    let answer = lab.receive_queued(ours)?.segment;
    Message::parse(&answer).map(|(message, _)| message)
}

/// The reason of an Answer to a probe where nothing listens.
pub const ADOPTER_IS_THERE: Option<u16> = Some(1);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
