//! Network namespaces by name, and running code or processes inside one.
//!
//! Owns: creating and entering `/run/netns/NAME`. Never uses `ip netns exec`, which would give the
//! process another view of `/sys`: a thread enters the namespace and the child inherits it from
//! that thread.

use crate::node::command;
use anyhow::{Context, Result};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::{
    fs::{self, File},
    net::{SocketAddr, TcpStream},
    os::fd::AsFd,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

/// Where iproute2 keeps named namespaces.
const NETNS_DIR: &str = "/run/netns";

/// A named network namespace. Clones refer to the same one.
#[derive(Clone, Debug)]
pub struct Namespace {
    name: Arc<str>,
    handle: Arc<File>,
}

impl Namespace {
    /// Makes the namespace with its loopback up. Removal is the [record's](crate::node::record)
    /// work.
    pub(crate) fn create(name: &str) -> Result<Self> {
        command::run("ip", &["netns", "add", name])?;
        command::run("ip", &["-n", name, "link", "set", "lo", "up"])?;
        Self::open(name)
    }

    /// Opens an existing one.
    pub fn open(name: &str) -> Result<Self> {
        let path = path_of(name);
        let handle =
            File::open(&path).with_context(|| format!("no namespace {}", path.display()))?;
        Ok(Self { name: name.into(), handle: Arc::new(handle) })
    }

    /// Its name, as `ip netns` shows it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its file under `/run/netns`.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        path_of(&self.name)
    }

    /// Moves the calling thread into the namespace for the rest of its life.
    ///
    /// # Errors
    /// Without CAP_SYS_ADMIN.
    pub fn enter_this_thread(&self) -> Result<()> {
        move_into_link_name_space(self.handle.as_fd(), Some(LinkNameSpaceType::Network))
            .with_context(|| format!("entering namespace {}", self.name))
    }

    /// Runs `work` on a fresh thread inside the namespace and waits for its result.
    ///
    /// # Errors
    /// If the namespace cannot be entered. A panic of `work` goes on in the caller.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        thread::scope(|scope| {
            let job = scope.spawn(|| self.enter_this_thread().map(|()| work()));
            job.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// A connection from inside, usable on any thread: without delays of small segments, and with a
    /// limit for connecting, reading and writing.
    pub fn connect(&self, address: SocketAddr, limit: Duration) -> Result<TcpStream> {
        let stream = self
            .run(|| TcpStream::connect_timeout(&address, limit))?
            .with_context(|| format!("connecting to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(limit))?;
        stream.set_write_timeout(Some(limit))?;
        Ok(stream)
    }

    /// Starts a thread inside the namespace.
    pub fn spawn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> thread::JoinHandle<Result<T>> {
        let namespace = self.clone();
        thread::spawn(move || namespace.enter_this_thread().and_then(|()| work()))
    }

    /// Writes a network sysctl of this namespace, as `set_sysctl("net/ipv4/ip_forward", "1")`.
    pub fn set_sysctl(&self, key: &str, value: &str) -> Result<()> {
        let path = Path::new("/proc/sys").join(key);
        // /proc/sys/net shows the namespace of the thread that opens it.
        self.run(|| fs::write(&path, value))?
            .with_context(|| format!("setting {key} to {value} in namespace {}", self.name))
    }

    /// Runs one `ip` command inside, as `ip(&["addr", "show"])`, and gives its output.
    ///
    /// # Errors
    /// With what `ip` said, if it fails.
    pub fn ip(&self, arguments: &[&str]) -> Result<String> {
        let mut all = vec!["-n", self.name()];
        all.extend_from_slice(arguments);
        command::run("ip", &all)
    }

    /// The hardware address of one of its interfaces.
    pub fn mac(&self, interface: &str) -> Result<[u8; 6]> {
        // `/sys` shows the namespace of who mounted it, so the address is asked of iproute2.
        let text = self.ip(&["-o", "link", "show", interface])?;
        let address = text
            .split("link/ether ")
            .nth(1)
            .and_then(|t| t.split(' ').next())
            .context("no address")?;
        let bytes: Vec<u8> = address
            .split(':')
            .map(|byte| u8::from_str_radix(byte, 16))
            .collect::<std::result::Result<_, _>>()?;
        bytes.try_into().ok().context("six bytes")
    }
}

fn path_of(name: &str) -> PathBuf {
    Path::new(NETNS_DIR).join(name)
}

/// Device and inode of a named namespace, by which a process's namespace is recognised. `None` if
/// it is gone.
pub(crate) fn identity(name: &str) -> Option<(u64, u64)> {
    fs::metadata(path_of(name)).ok().map(|m| (m.dev(), m.ino()))
}

/// Removes a named namespace if it is there.
pub(crate) fn delete(name: &str) -> Result<()> {
    if path_of(name).exists() {
        command::run("ip", &["netns", "del", name])?;
    }
    Ok(())
}
