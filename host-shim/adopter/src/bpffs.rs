//! The directory of pinned BPF objects, which keeps the adopter in place while no host-shim runs.
//! Owns the directory, its lock and its mount; never what the files in it mean.

use crate::{Error, kernel::is_bpffs};
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
    mount::{MountFlags, mount},
};
use std::{
    ffi::CStr,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Where a node's host-shim pins its objects.
pub const DEFAULT_PIN_DIR: &str = "/sys/fs/bpf/baton";
/// Where every distribution mounts the BPF file system.
const BPFFS: &str = "/sys/fs/bpf";

/// A predecessor that is about to end, or a child that it forked and that has not executed yet,
/// holds the lock for a moment longer.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);
const LOCK_RETRY: Duration = Duration::from_millis(10);

/// A directory in a BPF file system that only this process uses.
#[derive(Debug)]
pub(crate) struct PinDir {
    path: PathBuf,
    /// Holds the lock.
    _lock: File,
}

impl PinDir {
    /// Makes the directory, mounts a BPF file system if there is none, and locks it against a
    /// second host-shim.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let refuse = |problem: String| Error::Pin { path: path.to_owned(), problem };
        if !path.is_absolute() {
            return Err(refuse("expected an absolute path".into()));
        }
        if path.starts_with(BPFFS) && path != Path::new(BPFFS) {
            let below = path.strip_prefix(BPFFS).unwrap_or(path);
            if below.to_string_lossy().contains('.') {
                return Err(refuse("names in a BPF file system may not contain `.`".into()));
            }
            ensure_mounted(Path::new(BPFFS)).map_err(|e| refuse(mount_advice(BPFFS, &e)))?;
            fs::create_dir_all(path).map_err(|e| refuse(format!("cannot be made: {e}")))?;
        } else {
            if let Err(e) = fs::create_dir_all(path) {
                return Err(refuse(format!("cannot be made: {e}")));
            }
            ensure_mounted(path)
                .map_err(|e| refuse(mount_advice(&path.display().to_string(), &e)))?;
        }
        let lock = File::open(path).map_err(|e| refuse(format!("cannot be opened: {e}")))?;
        let deadline = Instant::now() + LOCK_PATIENCE;
        loop {
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK) if Instant::now() < deadline => {
                    std::thread::sleep(LOCK_RETRY);
                }
                Err(Errno::WOULDBLOCK) => {
                    return Err(Error::Busy { path: path.to_owned() });
                }
                Err(e) => return Err(refuse(format!("cannot be locked: {e}"))),
            }
        }
        Ok(Self { path: path.to_owned(), _lock: lock })
    }

    /// The file of that name.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The names in it.
    pub(crate) fn names(&self) -> Result<Vec<String>, Error> {
        let entries = fs::read_dir(&self.path).map_err(|e| self.problem(&e))?;
        entries
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<io::Result<Vec<_>>>()
            .map_err(|e| self.problem(&e))
    }

    /// Removes the directory itself, if nothing is left in it and it is not a mount of its own.
    pub(crate) fn remove(&self) {
        // Busy or not empty is no failure: a mount that an admin made stays.
        let _ = fs::remove_dir(&self.path);
    }

    fn problem(&self, e: &io::Error) -> Error {
        Error::Pin { path: self.path.clone(), problem: e.to_string() }
    }
}

fn ensure_mounted(path: &Path) -> io::Result<()> {
    if is_bpffs(path) {
        return Ok(());
    }
    // Only root may use it, as with the one that systemd mounts.
    let data: &CStr = c"mode=0700";
    mount("bpf", path, "bpf", MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC, data)?;
    Ok(())
}

fn mount_advice(path: &str, e: &io::Error) -> String {
    format!(
        "no BPF file system is mounted at {path}, and mounting one failed: {e}; run `mount -t bpf bpf {path}` on the \
         node, or give host-shim CAP_SYS_ADMIN"
    )
}
