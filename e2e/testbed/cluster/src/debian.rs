//! Programs from Debian packages that are downloaded and unpacked into the user's cache, but not
//! installed: their install scripts would start services on this machine.
//!
//! Owns the folder `containerd-DISTRIBUTION-VERSION` in the cache. Takes what the machine's own
//! `apt` sources offer; remove the folder to take a newer one.

use crate::{command, say, say_since};
use anyhow::{Context, Result, ensure};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

/// containerd and runc run Pods, the plugins give them a network.
const PACKAGES: [&str; 3] = ["containerd", "runc", "containernetworking-plugins"];

/// The folder that the packages are unpacked in; downloads them if they are not in the cache.
pub(crate) fn root(cache: &Path) -> Result<PathBuf> {
    let release = fs::read_to_string("/etc/os-release").context("reading /etc/os-release")?;
    let field = |key: &str| {
        let line = release.lines().find_map(|l| l.strip_prefix(key));
        line.unwrap_or("unknown").trim_matches('"').to_owned()
    };
    let target = cache.join(format!("containerd-{}-{}", field("ID="), field("VERSION_ID=")));
    if target.is_dir() {
        return Ok(target);
    }
    let start = Instant::now();
    say("downloading containerd, runc and CNI plugins, once (35 MB)");
    let unfinished = target.with_extension("unfinished");
    // From a run that was interrupted.
    let _ = fs::remove_dir_all(&unfinished);
    let packed = unfinished.join("packages");
    fs::create_dir_all(&packed).with_context(|| format!("making {}", packed.display()))?;
    let download = || {
        let mut apt = Command::new("apt-get");
        apt.args(["download", "-q"]).args(PACKAGES);
        command::check(apt.current_dir(&packed))
    };
    if download().is_err() {
        // The machine's lists may name versions that the mirrors have replaced.
        command::run("apt-get", &["update", "-q"])?;
        download()?;
    }
    for entry in fs::read_dir(&packed)? {
        let package = entry?.path();
        let mut unpack = Command::new("dpkg-deb");
        command::check(unpack.arg("-x").arg(&package).arg(&unfinished))?;
    }
    fs::remove_dir_all(&packed).context("removing the packed packages")?;
    for program in ["usr/bin/containerd", "usr/bin/ctr", "usr/sbin/runc", "usr/lib/cni/bridge"] {
        let path = unfinished.join(program);
        ensure!(path.is_file(), "the packages {PACKAGES:?} hold no {program}");
        // Says what is missing, if anything is.
        command::run("ldd", &[&path])?;
    }
    fs::rename(&unfinished, &target).with_context(|| format!("naming {}", target.display()))?;
    say_since(start, &format!("unpacked into {}", target.display()));
    Ok(target)
}
