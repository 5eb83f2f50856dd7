//! The programs that a cluster is made of, each from the cache or made once.

use crate::{command, debian, say, say_since};
use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, flock};
use std::{
    fs::{self, File},
    path::PathBuf,
    process::Command,
    time::Instant,
};

/// Helm's release. Its name in the cache holds it, so a change fetches anew.
const HELM: &str = "v4.2.4";

/// Paths of the programs.
#[derive(Clone, Debug)]
pub struct Binaries {
    /// etcd, kube-apiserver and all others by their first argument; also `kubectl`.
    pub kubernetes: PathBuf,
    /// Where Debian's packages are unpacked.
    pub(crate) debian: PathBuf,
}

impl Binaries {
    /// Finds all in the cache; builds or downloads what is missing, which takes minutes the first
    /// time and is said on standard error.
    ///
    /// # Errors
    /// If something can neither be found nor made, with what to install.
    pub fn get() -> Result<Self> {
        let kubernetes = baton_kubernetes::node_program()?;
        let _lock = lock("containerd.lock")?;
        let debian = debian::root(&baton_kubernetes::cache()?)?;
        Ok(Self { kubernetes, debian })
    }

    /// A program of the unpacked packages, as `usr/bin/ctr`.
    pub(crate) fn debian(&self, path: &str) -> PathBuf {
        self.debian.join(path)
    }
}

/// The path of Helm; builds it if it is not cached.
pub fn helm() -> Result<PathBuf> {
    let cache = baton_kubernetes::cache()?;
    let target = cache.join(format!("helm-{HELM}"));
    let _lock = lock("helm.lock")?;
    if target.is_file() {
        return Ok(target);
    }
    let go =
        baton_kubernetes::go().context("Go is needed to build Helm: `make setup` installs it")?;
    let start = Instant::now();
    say(&format!("building Helm {HELM}, once: 2 to 5 minutes on two cores"));
    let folder = cache.join("helm.unfinished");
    let mut install = Command::new("nice");
    install.args(["-n", "5"]).arg(go);
    install.args(["install", "-trimpath", "-ldflags", "-s -w"]);
    install.arg(format!("helm.sh/helm/v4/cmd/helm@{HELM}"));
    // Outside of any module, and without cgo, which would want the machine's headers.
    command::check(install.current_dir(&cache).env("GOBIN", &folder).env("CGO_ENABLED", "0"))?;
    fs::rename(folder.join("helm"), &target)
        .with_context(|| format!("naming {}", target.display()))?;
    fs::remove_dir(&folder).context("removing a folder of the cache")?;
    say_since(start, &format!("built {}", target.display()));
    Ok(target)
}

/// Two test processes would otherwise download or build the same at once.
fn lock(name: &str) -> Result<File> {
    let cache = baton_kubernetes::cache()?;
    fs::create_dir_all(&cache).with_context(|| format!("making {}", cache.display()))?;
    let path = cache.join(name);
    let lock = File::create(&path).with_context(|| format!("opening {}", path.display()))?;
    flock(&lock, FlockOperation::LockExclusive).context("locking the cache")?;
    Ok(lock)
}
