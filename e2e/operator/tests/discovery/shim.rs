//! A host-shim under test: its process, its files, and what its control API says.

use anyhow::{Context, Result, ensure};
use baton_operator_tests::cluster::wait_for;
use serde_json::{Value, json};
use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{self, Child, Command},
    time::Duration,
};

const KEY: &str = "000102030405060708090a0b0c0d0e0f";

/// A host-shim with its files.
pub struct Shim {
    child: Child,
    control: SocketAddr,
    folder: PathBuf,
    pins: PathBuf,
}

impl Shim {
    /// On the node that has the folder's name: tests of one process share an API server, and a shim
    /// attaches to the Pods of all namespaces on its node.
    pub fn start(kubeconfig: &Path, folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder)?;
        let control = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let name = folder.file_name().context("a folder")?.to_string_lossy();
        let pins = PathBuf::from(format!("/sys/fs/bpf/bt-{}-{name}", process::id()));
        let key = folder.join("key");
        fs::write(&key, KEY)?;
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600))?;
        let config = json!({
            "keys": [{ "epoch": 1, "file": key }],
            "control": control.to_string(),
            "pin": pins,
            "discovery": { "node": name, "kubeconfig": kubeconfig },
        });
        fs::write(folder.join("shim.yaml"), config.to_string())?;
        let log = fs::File::options().append(true).create(true).open(folder.join("log"))?;
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(baton_operator_tests::operator::binary("host-shim")?)
            .args(["run", "--keep-on-exit", "--config"])
            .arg(folder.join("shim.yaml"))
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        Ok(Self { child, control, folder: folder.to_owned(), pins })
    }

    /// One that knows what the API server has, and its pins.
    pub async fn ready(kubeconfig: &Path, folder: &Path) -> Result<(Self, Pins)> {
        let shim = Self::start(kubeconfig, folder)?;
        let pins = Pins(shim.pins.clone());
        wait_for("host-shim is ready", async || {
            let (status, body) = shim.get("/readyz").with_context(|| shim.log())?;
            ensure!(status == 200, "{status} {body}\n{}", shim.log());
            Ok(())
        })
        .await?;
        Ok((shim, pins))
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    pub fn get(&self, path: &str) -> Result<(u16, String)> {
        let mut stream = TcpStream::connect_timeout(&self.control, Duration::from_secs(1))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let (head, body) = text.split_once("\r\n\r\n").context("an answer")?;
        let status = head.split(' ').nth(1).context("a status")?.parse()?;
        Ok((status, body.to_owned()))
    }

    /// What it says of a pod.
    pub fn pod(&self, name: &str) -> Result<Option<Value>> {
        let (_, body) = self.get("/v1/state")?;
        let state: Value = serde_json::from_str(&body)?;
        let pods = state["pods"].as_array().context("pods")?;
        Ok(pods.iter().find(|pod| pod["name"] == name).cloned())
    }

    pub async fn until(
        &self,
        what: &str,
        holds: impl Fn(Option<Value>) -> bool,
        name: &str,
    ) -> Result<()> {
        wait_for(what, async || {
            let pod = self.pod(name)?;
            ensure!(holds(pod.clone()), "{pod:?}\n{}", self.log());
            Ok(())
        })
        .await
    }

    /// Ends it as an upgrade does: what it attached stays.
    pub fn end(mut self) -> Result<()> {
        let id = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(id, rustix::process::Signal::TERM)?;
        let status = self.child.wait()?;
        ensure!(status.success(), "host-shim ended with {status}: {}", self.log());
        Ok(())
    }
}

impl Drop for Shim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The pin directory, removed on drop.
pub struct Pins(PathBuf);

impl Pins {
    /// All files below it.
    pub fn files(&self) -> Result<Vec<PathBuf>> {
        files(&self.0)
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            found.append(&mut files(&path)?);
        } else {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
