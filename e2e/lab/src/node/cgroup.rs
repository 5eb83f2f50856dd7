//! CPU limits: one cgroup per pod, version 1 or 2, whichever has the cpu controller on this
//! machine. Where that is version 1, processes are in a group of version 2 besides, without a
//! limit: sockets and pressure are accounted to that one.
//!
//! Owns the cgroups that a lab made; never writes to any other (but to enable the cpu controller
//! for children of the root where version 2 has it off).

use anyhow::{Context, Result, bail};
use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Length of the scheduler's accounting period: the kernel's default, and what Kubernetes uses for
/// CPU limits.
const PERIOD_US: u64 = 100_000;
/// The kernel refuses a quota below 1 ms.
const QUOTA_MIN_US: u64 = 1_000;
/// A cgroup is empty moments after its last process ended.
const REMOVE_DEADLINE: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

/// A cgroup whose CPU time can be limited.
#[derive(Clone, Debug)]
pub(crate) struct Cgroup {
    path: PathBuf,
    version: Version,
    /// The group of version 2 where `path` is of version 1.
    unified: Option<PathBuf>,
}

/// The place where this machine has the cpu controller.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Hierarchy {
    mount: PathBuf,
    version: Version,
    unified: Option<PathBuf>,
}

impl Hierarchy {
    /// Finds it in `/proc/mounts`.
    pub(crate) fn find() -> Result<Self> {
        let mounts = fs::read_to_string("/proc/mounts").context("reading /proc/mounts")?;
        parse(&mounts, |mount| {
            fs::read_to_string(mount.join("cgroup.controllers")).unwrap_or_default()
        })
        .context(
            "no cgroup hierarchy with the cpu controller is mounted: mount cgroup2 at /sys/fs/cgroup",
        )
    }

    /// Where the cgroups of that name are, made or not.
    pub(crate) fn paths_of(&self, name: &str) -> impl Iterator<Item = PathBuf> {
        let mounts = [Some(&self.mount), self.unified.as_ref()];
        mounts.into_iter().flatten().map(move |m| m.join(name))
    }

    /// Makes a cgroup at the root of the hierarchy.
    pub(crate) fn create(&self, name: &str) -> Result<Cgroup> {
        if self.version == Version::V2 {
            let control = self.mount.join("cgroup.subtree_control");
            let enabled = fs::read_to_string(&control).unwrap_or_default();
            if !enabled.split_whitespace().any(|c| c == "cpu") {
                fs::write(&control, "+cpu").with_context(|| {
                    format!("enabling the cpu controller in {}", control.display())
                })?;
            }
        }
        for path in self.paths_of(name) {
            fs::create_dir(&path).with_context(|| format!("making cgroup {}", path.display()))?;
        }
        Ok(Cgroup {
            path: self.mount.join(name),
            version: self.version,
            unified: self.unified.as_ref().map(|mount| mount.join(name)),
        })
    }
}

/// The cpu controller's mount: version 1 lists it in the mount options, version 2 in
/// `cgroup.controllers`.
fn parse(mounts: &str, controllers: impl Fn(&Path) -> String) -> Option<Hierarchy> {
    let (mut first, mut second) = (None, None);
    for line in mounts.lines() {
        let mut fields = line.split(' ').skip(1);
        let (Some(mount), Some(kind), Some(options)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        match kind {
            "cgroup" if options.split(',').any(|o| o == "cpu") => {
                first.get_or_insert(PathBuf::from(mount));
            }
            "cgroup2" => {
                second.get_or_insert(PathBuf::from(mount));
            }
            _ => {}
        }
    }
    match (first, second) {
        (Some(mount), unified) => Some(Hierarchy { mount, version: Version::V1, unified }),
        (None, Some(mount)) => {
            let here = controllers(&mount).split_whitespace().any(|c| c == "cpu");
            here.then_some(Hierarchy { mount, version: Version::V2, unified: None })
        }
        (None, None) => None,
    }
}

impl Cgroup {
    /// The file that a process writes its id to in order to join, the last of all.
    pub(crate) fn processes_file(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }

    /// The one that it writes to before that; where there is none, the same.
    pub(crate) fn first_file(&self) -> PathBuf {
        let unified = self.unified.as_ref().unwrap_or(&self.path);
        unified.join("cgroup.procs")
    }

    /// Limits the CPU time to so many percent of one CPU; `None` lifts the limit.
    pub(crate) fn limit(&self, percent: Option<f64>) -> Result<()> {
        let quota_us = match percent {
            None => None,
            Some(p) if p > 0.0 && p.is_finite() => {
                let quota_us = (p / 100.0 * PERIOD_US as f64).round() as u64;
                if quota_us < QUOTA_MIN_US {
                    bail!("a CPU limit of {p} % is too small: the kernel's least is 1 %");
                }
                Some(quota_us)
            }
            Some(p) => bail!("a CPU limit of {p} % makes no sense: expected 1 or more"),
        };
        let write = |file: &str, value: String| {
            let path = self.path.join(file);
            fs::write(&path, &value)
                .with_context(|| format!("writing {value} to {}", path.display()))
        };
        match self.version {
            Version::V1 => {
                write("cpu.cfs_period_us", PERIOD_US.to_string())?;
                let quota = quota_us.map_or_else(|| "-1".to_owned(), |q| q.to_string());
                write("cpu.cfs_quota_us", quota)
            }
            Version::V2 => {
                let quota = quota_us.map_or_else(|| "max".to_owned(), |q| q.to_string());
                write("cpu.max", format!("{quota} {PERIOD_US}"))
            }
        }
    }

    /// Periods in which the limit was reached (`nr_throttled`, in either version).
    pub(crate) fn throttled_periods(&self) -> Result<u64> {
        let path = self.path.join("cpu.stat");
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let value = text.lines().find_map(|line| line.strip_prefix("nr_throttled "));
        let value = value.with_context(|| format!("no nr_throttled in {}", path.display()))?;
        Ok(value.trim().parse()?)
    }

    /// Process ids in the cgroup.
    pub(crate) fn processes(&self) -> Vec<i32> {
        fs::read_to_string(self.processes_file())
            .unwrap_or_default()
            .lines()
            .filter_map(|l| l.parse().ok())
            .collect()
    }
}

/// Removes an empty cgroup if it is there.
pub(crate) fn remove(path: &Path) -> Result<()> {
    let deadline = Instant::now() + REMOVE_DEADLINE;
    loop {
        match fs::remove_dir(path) {
            Ok(()) => return Ok(()),
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            // The kernel lets go of an ended process a moment after it is seen to end.
            Err(e) if e.kind() == ErrorKind::ResourceBusy && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(e) => {
                return Err(e).with_context(|| format!("removing cgroup {}", path.display()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_controller_is_found_in_either_version() {
        let v1 = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
                  cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\n\
                  cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n\
                  cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n";
        let found = parse(v1, |_| String::new()).unwrap();
        assert_eq!(found.version, Version::V1);
        assert_eq!(found.mount, Path::new("/sys/fs/cgroup/cpu,cpuacct"));
        let unified = Path::new("/sys/fs/cgroup/unified");
        assert_eq!(found.unified.as_deref(), Some(unified));

        let v2 = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n";
        let found = parse(v2, |_| "cpuset cpu io\n".to_owned()).unwrap();
        assert_eq!((found.version, found.unified), (Version::V2, None));

        assert_eq!(parse(v2, |_| "cpuset io\n".to_owned()), None);
        assert_eq!(parse("", |_| String::new()), None);
    }
}
