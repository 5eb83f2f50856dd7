//! What a lab has made on the machine, written down before it is made, and how it is removed.
//!
//! One append-only file per lab under [`RECORD_DIR`], locked with flock for the life of its owner: a record that
//! can be locked belongs to an owner that is gone, whatever happened to it. The same removal serves a clean end,
//! a signal and the start after a crash. Never touches anything that is not in a record.

use crate::{cgroup, netns, procfs};
use anyhow::{Context, Result, bail};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{FlockOperation, flock},
    mount::{UnmountFlags, unmount},
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open},
};
use std::{
    fs::{self, File, OpenOptions},
    io::{ErrorKind, Read, Write},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Records of all labs of this machine.
pub const RECORD_DIR: &str = "/run/baton-lab";

/// A killed process is gone within this time, or something is badly wrong with the machine.
const KILL_DEADLINE: Duration = Duration::from_secs(10);

/// Things to remove, in the order in which they were made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Things {
    namespaces: Vec<String>,
    cgroups: Vec<PathBuf>,
    groups: Vec<i32>,
    mounts: Vec<PathBuf>,
    directories: Vec<PathBuf>,
}

/// The record of a living lab of this process.
#[derive(Debug)]
pub(crate) struct Record {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    file: File,
    things: Things,
    closed: bool,
}

/// One line of a record.
pub(crate) enum Thing<'a> {
    Namespace(&'a str),
    Cgroup(&'a Path),
    Group(i32),
    Mount(&'a Path),
    Directory(&'a Path),
}

impl Things {
    fn add(&mut self, thing: &Thing<'_>) -> String {
        match thing {
            Thing::Namespace(name) => {
                self.namespaces.push((*name).to_owned());
                format!("namespace {name}\n")
            }
            Thing::Cgroup(path) => {
                self.cgroups.push(path.to_path_buf());
                format!("cgroup {}\n", path.display())
            }
            Thing::Group(group) => {
                self.groups.push(*group);
                format!("group {group}\n")
            }
            Thing::Mount(path) => {
                self.mounts.push(path.to_path_buf());
                format!("mount {}\n", path.display())
            }
            Thing::Directory(path) => {
                self.directories.push(path.to_path_buf());
                format!("directory {}\n", path.display())
            }
        }
    }

    /// Reads a record. A last line without its end was cut by a crash, before the thing it names was made.
    fn parse(text: &str) -> Self {
        let mut things = Self::default();
        for line in text.split_inclusive('\n').filter(|l| l.ends_with('\n')) {
            let Some((kind, value)) = line.trim_end_matches('\n').split_once(' ') else {
                continue;
            };
            let path = Path::new(value);
            match kind {
                "namespace" => _ = things.add(&Thing::Namespace(value)),
                "cgroup" => _ = things.add(&Thing::Cgroup(path)),
                "group" => _ = value.parse().map(|g| things.add(&Thing::Group(g))),
                "mount" => _ = things.add(&Thing::Mount(path)),
                "directory" => _ = things.add(&Thing::Directory(path)),
                _ => {}
            }
        }
        things
    }

    /// Living processes that are this lab's: in one of its namespaces, and either started by it
    /// (recorded process group) or at home in its directory. Both, so that no stranger is ever hit.
    fn processes(&self) -> Vec<procfs::ProcessInfo> {
        let networks: Vec<_> = self
            .namespaces
            .iter()
            .filter_map(|n| netns::identity(n))
            .collect();
        procfs::processes()
            .into_iter()
            .filter(|p| p.network().is_some_and(|n| networks.contains(&n)))
            .filter(|p| {
                self.groups.contains(&p.group)
                    || p.directory()
                        .is_some_and(|d| self.directories.iter().any(|home| d.starts_with(home)))
            })
            .collect()
    }

    /// Removes everything, going on after failures.
    fn remove(&self) -> Result<()> {
        let mut problems = Vec::new();
        let mut note = |result: Result<()>| {
            if let Err(e) = result {
                problems.push(format!("{e:#}"));
            }
        };
        note(self.kill_processes());
        for path in self.mounts.iter().rev() {
            note(match unmount(path, UnmountFlags::DETACH) {
                // Not mounted (EINVAL) or not there: nothing to do.
                Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => Ok(()),
                Err(e) => Err(e).with_context(|| format!("unmounting {}", path.display())),
            });
        }
        for name in self.namespaces.iter().rev() {
            note(netns::delete(name));
        }
        for path in self.cgroups.iter().rev() {
            note(cgroup::remove(path));
        }
        for path in self.directories.iter().rev() {
            note(match fs::remove_dir_all(path) {
                Err(e) if e.kind() != ErrorKind::NotFound => {
                    Err(e).with_context(|| format!("removing {}", path.display()))
                }
                _ => Ok(()),
            });
        }
        if !problems.is_empty() {
            bail!("{}", problems.join("; "));
        }
        Ok(())
    }

    fn kill_processes(&self) -> Result<()> {
        let deadline = Instant::now() + KILL_DEADLINE;
        // A process may have forked between the look and the kill, so look again until none is left.
        loop {
            let found = self.processes();
            if found.is_empty() {
                return Ok(());
            }
            for process in &found {
                let Some(pid) = Pid::from_raw(process.pid) else {
                    continue;
                };
                let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else {
                    continue;
                };
                let _ = kill_process(pid, Signal::KILL);
                let left = deadline.saturating_duration_since(Instant::now());
                let timeout = Timespec::try_from(left).context("deadline")?;
                poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&timeout))?;
            }
            if Instant::now() >= deadline {
                bail!("processes of the lab do not end: {found:?}");
            }
        }
    }
}

impl Record {
    /// Removes what dead labs left and starts the record of lab `id`.
    pub(crate) fn create(id: &str) -> Result<Self> {
        fs::create_dir_all(RECORD_DIR).with_context(|| format!("making {RECORD_DIR}"))?;
        // Nobody cleans up while a record is between its creation and its lock.
        let _all = lock_all()?;
        remove_dead();
        let path = Path::new(RECORD_DIR).join(format!("{id}.lab"));
        let file = OpenOptions::new()
            .create_new(true)
            .write(true)
            .open(&path)
            .with_context(|| format!("making {}", path.display()))?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(Self {
            path,
            state: Mutex::new(State {
                file,
                things: Things::default(),
                closed: false,
            }),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes down `thing`, to be called before it is made.
    pub(crate) fn note(&self, thing: &Thing<'_>) -> Result<()> {
        let mut state = self.state();
        if state.closed {
            bail!("the lab is being removed");
        }
        let line = state.things.add(thing);
        state
            .file
            .write_all(line.as_bytes())
            .with_context(|| format!("writing {}", self.path.display()))
    }

    /// Starts a process and writes down its group; not possible once removal has begun.
    pub(crate) fn start<T>(&self, spawn: impl FnOnce() -> Result<(T, i32)>) -> Result<T> {
        let mut state = self.state();
        if state.closed {
            bail!("the lab is being removed");
        }
        let (value, group) = spawn()?;
        let line = state.things.add(&Thing::Group(group));
        state.file.write_all(line.as_bytes())?;
        Ok(value)
    }

    /// Removes everything in the record and the record itself. Further calls do nothing.
    pub(crate) fn remove(&self) -> Result<()> {
        let mut state = self.state();
        if std::mem::replace(&mut state.closed, true) {
            return Ok(());
        }
        state.things.remove()?;
        fs::remove_file(&self.path).with_context(|| format!("removing {}", self.path.display()))
    }
}

fn lock_all() -> Result<File> {
    let path = Path::new(RECORD_DIR).join("lock");
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .with_context(|| format!("opening {}: root is needed", path.display()))?;
    flock(&file, FlockOperation::LockExclusive)?;
    Ok(file)
}

/// Removes what labs left whose owner is gone. A failure is reported and tried again at the next start.
fn remove_dead() {
    let Ok(entries) = fs::read_dir(RECORD_DIR) else {
        return;
    };
    for path in entries.filter_map(|e| Some(e.ok()?.path())) {
        if path.extension().is_none_or(|e| e != "lab") {
            continue;
        }
        let Ok(mut file) = File::open(&path) else {
            continue;
        };
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            continue;
        }
        let mut text = String::new();
        let removed = file
            .read_to_string(&mut text)
            .map_err(anyhow::Error::from)
            .and_then(|_| Things::parse(&text).remove())
            .and_then(|()| Ok(fs::remove_file(&path)?));
        if let Err(e) = removed {
            eprintln!("baton-lab: cleaning up after {}: {e:#}", path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back_and_a_cut_line_is_ignored() {
        let mut things = Things::default();
        let mut text = things.add(&Thing::Namespace("bt-x-1-router"));
        text += &things.add(&Thing::Cgroup(Path::new("/sys/fs/cgroup/cpu/bt x")));
        text += &things.add(&Thing::Group(42));
        text += &things.add(&Thing::Mount(Path::new("/tmp/a/bpf")));
        text += &things.add(&Thing::Directory(Path::new("/tmp/a")));
        assert_eq!(Things::parse(&text), things);
        assert_eq!(Things::parse(&(text.clone() + "directory /tm")), things);
        assert_eq!(Things::parse(&(text + "what is this\n\n")), things);
    }
}
