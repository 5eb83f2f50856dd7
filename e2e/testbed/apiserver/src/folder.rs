//! One folder per server under the machine's temporary folder, and removing those that were left
//! behind.
//!
//! Each folder holds a lock file that its owner keeps locked. One whose lock can be taken has no
//! owner any more, whatever happened to it; that needs no process ids, which are used again.

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, Mode, flock, mkdir};
use std::{
    env,
    fs::{self, File},
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU32, Ordering},
};

/// Folders of servers begin with this.
const PREFIX: &str = "baton-apiserver-";
/// Held locked by the owner.
const LOCK: &str = "lock";

/// A server's folder. Dropping it removes it.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    /// Locked for the folder's life; the kernel unlocks it when the process ends in any way.
    _lock: File,
}

impl Folder {
    /// Makes one that only this user can read, after removing what earlier owners left.
    pub(crate) fn create() -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let parent = env::temp_dir();
        // One starter at a time: a folder without its lock taken yet would look left behind.
        let gate_path = parent.join("baton-apiserver.lock");
        let gate = File::create(&gate_path).with_context(|| gate_path.display().to_string())?;
        flock(&gate, FlockOperation::LockExclusive).context("locking the temporary folder")?;
        remove_abandoned(&parent)?;
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("{PREFIX}{}-{number}", process::id()));
        mkdir(&path, Mode::RWXU).with_context(|| format!("making {}", path.display()))?;
        let lock = File::create(path.join(LOCK)).context("making the folder's lock")?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).context("locking the folder")?;
        Ok(Self { path, _lock: lock })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file into it that only this user can read, and gives its path.
    pub(crate) fn write(&self, name: &str, content: &str) -> Result<PathBuf> {
        use std::{io::Write, os::unix::fs::OpenOptionsExt};
        let path = self.path.join(name);
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        options
            .open(&path)
            .and_then(|mut file| file.write_all(content.as_bytes()))
            .with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed now is removed at the next start.
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn remove_abandoned(parent: &Path) -> Result<()> {
    for entry in fs::read_dir(parent).with_context(|| parent.display().to_string())? {
        let Ok(entry) = entry else { continue };
        if !entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes())
            || !entry.path().is_dir()
        {
            continue;
        }
        let abandoned = match File::open(entry.path().join(LOCK)) {
            Ok(lock) => flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok(),
            // Killed between making the folder and its lock, or another user's: removal tells.
            Err(_) => true,
        };
        if abandoned {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_left_behind_goes_and_what_is_in_use_stays() {
        let kept = Folder::create().unwrap();
        let left = env::temp_dir().join(format!("{PREFIX}left-behind-{}", process::id()));
        fs::create_dir_all(left.join("etcd")).unwrap();
        File::create(left.join(LOCK)).unwrap();
        let other = Folder::create().unwrap();
        assert!(!left.exists());
        assert!(kept.path().exists());
        let gone = other.path().to_owned();
        drop(other);
        assert!(!gone.exists());
    }
}
