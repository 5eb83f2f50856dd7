//! What `/proc` says about processes: group, namespace, working directory, CPU time.
//!
//! Only reads. A process that ends while it is looked at is simply not in the answer.

use crate::node::cpu_clock;
use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

/// One living process.
#[derive(Clone, Debug)]
pub(crate) struct ProcessInfo {
    pub(crate) pid: i32,
    pub(crate) group: i32,
}

/// All processes of the machine that are not zombies.
pub(crate) fn processes() -> Vec<ProcessInfo> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|pid: i32| {
            let (state, group) = state(Path::new(&format!("/proc/{pid}")))?;
            (state != "Z").then_some(ProcessInfo { pid, group })
        })
        .collect()
}

/// State and group of a process or thread.
fn state(of: &Path) -> Option<(String, i32)> {
    let stat = fs::read_to_string(of.join("stat")).ok()?;
    // The command name is in parentheses and may hold anything, so fields are counted after the
    // last one.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?.to_owned();
    Some((state, fields.nth(1)?.parse().ok()?))
}

impl ProcessInfo {
    /// Device and inode of its network namespace.
    pub(crate) fn network(&self) -> Option<(u64, u64)> {
        fs::metadata(format!("/proc/{}/ns/net", self.pid)).ok().map(|m| (m.dev(), m.ino()))
    }

    /// Whether each of its threads has stopped, or ended.
    pub(crate) fn is_stopped(&self) -> bool {
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid));
        let mut threads = threads.into_iter().flatten().flatten();
        threads.all(|t| state(&t.path()).is_none_or(|(state, _)| "TZX".contains(&state)))
    }

    /// Its working directory.
    pub(crate) fn directory(&self) -> Option<PathBuf> {
        fs::read_link(format!("/proc/{}/cwd", self.pid)).ok()
    }

    /// Its CPU time so far; nothing once it has ended.
    pub(crate) fn cpu_time(&self) -> Duration {
        cpu_clock::cpu_time(self.pid).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_this_process() {
        let me = i32::try_from(std::process::id()).unwrap();
        let info = processes().into_iter().find(|p| p.pid == me).unwrap();
        assert_eq!(info.directory(), std::env::current_dir().ok());
        assert!(info.cpu_time() > Duration::ZERO);
    }
}
