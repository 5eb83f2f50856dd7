//! The cgroup of a node: one at the root of every hierarchy, named as the node, under which its
//! kubelet makes those of Pods. A kubelet removes cgroups of Pods that it does not know, so no two
//! may share one.
//!
//! Owns these and what is under them. Never writes to any other cgroup and never mounts or unmounts
//! a hierarchy; but with version 2 it enables the controllers of the root for its children, where
//! they are off.

use anyhow::{Context, Result, bail};
use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

const LOOK_INTERVAL: Duration = Duration::from_millis(10);
/// What kubelet insists on with version 2, as far as the kernel has it.
const CONTROLLERS_V2: [&str; 6] = ["cpuset", "cpu", "io", "hugetlb", "memory", "pids"];

/// A mounted hierarchy.
#[derive(Debug, PartialEq, Eq)]
struct Hierarchy {
    mount: PathBuf,
    /// Version 2.
    unified: bool,
}

/// Makes the node's cgroup in every hierarchy.
pub(crate) fn create(name: &str) -> Result<()> {
    let hierarchies = hierarchies()?;
    if hierarchies.is_empty() {
        bail!("no cgroup hierarchy is mounted under /sys/fs/cgroup: mount cgroup2 there");
    }
    for Hierarchy { mount, unified } in hierarchies {
        let path = mount.join(name);
        if unified {
            let on = fs::read_to_string(mount.join("cgroup.subtree_control")).unwrap_or_default();
            let there = fs::read_to_string(mount.join("cgroup.controllers")).unwrap_or_default();
            let has = |list: &str, c: &str| list.split_whitespace().any(|w| w == c);
            for controller in CONTROLLERS_V2.iter().filter(|c| has(&there, c) && !has(&on, c)) {
                let control = mount.join("cgroup.subtree_control");
                fs::write(&control, format!("+{controller}"))
                    .with_context(|| format!("enabling {controller} in {}", control.display()))?;
            }
        }
        fs::create_dir(&path).with_context(|| format!("making cgroup {}", path.display()))?;
        // A new cpuset of version 1 is empty, and nothing can run in it.
        for file in ["cpuset.cpus", "cpuset.mems"] {
            let parent = mount.join(file);
            if !unified && parent.exists() {
                let value = fs::read_to_string(&parent)
                    .with_context(|| format!("reading {}", parent.display()))?;
                fs::write(path.join(file), value.trim())
                    .with_context(|| format!("writing {}/{file}", path.display()))?;
            }
        }
    }
    Ok(())
}

/// Removes all cgroups whose name begins with `prefix`, at the root of every hierarchy, with all
/// that is under them.
pub(crate) fn remove_all(prefix: &str, deadline: Instant) -> Result<()> {
    for Hierarchy { mount, .. } in hierarchies()? {
        for folder in children(&mount) {
            let name = folder.file_name().unwrap_or_default();
            if name.as_encoded_bytes().starts_with(prefix.as_bytes()) {
                remove(&folder, deadline)?;
            }
        }
    }
    Ok(())
}

/// Removes a cgroup, children first. The kernel lets go of an ended process a moment after it is
/// seen to end.
fn remove(path: &Path, deadline: Instant) -> Result<()> {
    for child in children(path) {
        remove(&child, deadline)?;
    }
    loop {
        match fs::remove_dir(path) {
            Ok(()) => return Ok(()),
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            Err(e) if e.kind() == ErrorKind::ResourceBusy && Instant::now() < deadline => {
                thread::sleep(LOOK_INTERVAL);
            }
            Err(e) => return Err(e).with_context(|| format!("removing cgroup {}", path.display())),
        }
    }
}

fn children(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|e| e.path()).filter(|p| p.is_dir()).collect()
}

fn hierarchies() -> Result<Vec<Hierarchy>> {
    let mounts = fs::read_to_string("/proc/self/mounts").context("reading /proc/self/mounts")?;
    Ok(parse(&mounts, |mount| {
        fs::read_to_string(mount.join("cgroup.controllers")).is_ok_and(|c| !c.trim().is_empty())
    }))
}

/// All of version 1, and version 2 where it has controllers (beside version 1 it has none, but
/// containers join it all the same).
fn parse(mounts: &str, has_controllers: impl Fn(&Path) -> bool) -> Vec<Hierarchy> {
    let fields = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        Some((PathBuf::from(fields.next()?), fields.next()?))
    });
    fields
        .filter(|(mount, _)| mount.starts_with("/sys/fs/cgroup"))
        .filter_map(|(mount, kind)| match kind {
            "cgroup" => Some(Hierarchy { mount, unified: false }),
            "cgroup2" if has_controllers(&mount) => Some(Hierarchy { mount, unified: true }),
            "cgroup2" => Some(Hierarchy { mount, unified: false }),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_of_both_versions_are_found() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
            cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
            cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n\
            cgroup2 /other cgroup2 rw 0 0\n";
        let found = parse(mounts, |_| false);
        let hierarchy = |mount: &str, unified| Hierarchy { mount: mount.into(), unified };
        assert_eq!(
            found,
            [hierarchy("/sys/fs/cgroup/cpu", false), hierarchy("/sys/fs/cgroup/unified", false)]
        );
        let found = parse("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n", |_| true);
        assert_eq!(found, [hierarchy("/sys/fs/cgroup", true)]);
    }
}
