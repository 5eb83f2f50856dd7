//! What a lab has made on the machine, written down before it is made, and how it is removed.
//!
//! One append-only file per lab under [`RECORD_DIR`], locked with flock for the life of its owner:
//! a record that can be locked belongs to an owner that is gone, whatever happened to it. The same
//! removal serves a clean end, a signal and the start after a crash. Never touches anything that is
//! not in a record.

use crate::node::{cgroup, netns, procfs};
use anyhow::{Context, Result, bail};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{FlockOperation, flock},
    io::Errno,
    mount::{UnmountFlags, unmount},
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open},
};
use serde::{Deserialize, Serialize};
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

/// What a lab has made: a line of JSON in its record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Thing {
    Group(i32),
    Mount(PathBuf),
    Namespace(String),
    Cgroup(PathBuf),
    Directory(PathBuf),
}

impl Thing {
    /// Its place in the order of removal.
    fn kind(&self) -> u8 {
        match self {
            Self::Group(_) => 0,
            Self::Mount(_) => 1,
            Self::Namespace(_) => 2,
            Self::Cgroup(_) => 3,
            Self::Directory(_) => 4,
        }
    }

    fn line(&self) -> Result<String> {
        Ok(serde_json::to_string(self)? + "\n")
    }

    /// Removes it. A group's processes are not one: [`Things::kill_processes`].
    fn remove(&self) -> Result<()> {
        match self {
            Self::Group(_) => Ok(()),
            Self::Mount(path) => match unmount(path, UnmountFlags::DETACH) {
                // Not mounted (EINVAL) or not there: nothing to do.
                Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(()),
                Err(e) => Err(e).with_context(|| format!("unmounting {}", path.display())),
            },
            Self::Namespace(name) => netns::delete(name),
            Self::Cgroup(path) => cgroup::remove(path),
            Self::Directory(path) => match fs::remove_dir_all(path) {
                Err(e) if e.kind() != ErrorKind::NotFound => {
                    Err(e).with_context(|| format!("removing {}", path.display()))
                }
                _ => Ok(()),
            },
        }
    }
}

/// In the order in which they were made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Things(Vec<Thing>);

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

impl Things {
    /// Reads a record. A last line without its end was cut by a crash, before the thing it names
    /// was made.
    fn parse(text: &str) -> Self {
        let lines = text.split_inclusive('\n').filter(|l| l.ends_with('\n'));
        Self(lines.filter_map(|l| serde_json::from_str(l).ok()).collect())
    }

    /// Living processes that are this lab's: in one of its namespaces, and either started by it
    /// (recorded process group) or at home in its directory. Both, so that no stranger is ever hit.
    fn processes(&self) -> Vec<procfs::ProcessInfo> {
        let network = |thing: &Thing| match thing {
            Thing::Namespace(name) => netns::identity(name),
            _ => None,
        };
        let networks: Vec<_> = self.0.iter().filter_map(network).collect();
        let is_ours = |process: &procfs::ProcessInfo| {
            let directory = process.directory();
            self.0.iter().any(|thing| match thing {
                Thing::Group(group) => *group == process.group,
                Thing::Directory(home) => directory.as_ref().is_some_and(|d| d.starts_with(home)),
                _ => false,
            })
        };
        procfs::processes()
            .into_iter()
            .filter(|p| p.network().is_some_and(|n| networks.contains(&n)))
            .filter(is_ours)
            .collect()
    }

    /// Removes everything, going on after failures.
    fn remove(&self) -> Result<()> {
        let mut things: Vec<&Thing> = self.0.iter().rev().collect();
        things.sort_by_key(|thing| thing.kind());
        let removed = things.into_iter().map(Thing::remove);
        let problems: Vec<_> = [self.kill_processes()]
            .into_iter()
            .chain(removed)
            .filter_map(|result| result.err().map(|e| format!("{e:#}")))
            .collect();
        if !problems.is_empty() {
            bail!("{}", problems.join("; "));
        }
        Ok(())
    }

    fn kill_processes(&self) -> Result<()> {
        let deadline = Instant::now() + KILL_DEADLINE;
        // A process may have forked between the look and the kill, so look again until none is
        // left.
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
            state: Mutex::new(State { file, things: Things::default(), closed: false }),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes down `thing`, to be called before it is made.
    pub(crate) fn note(&self, thing: Thing) -> Result<()> {
        self.start(|| Ok(((), thing)))
    }

    /// Makes something, as a process, and writes it down; not possible once removal has begun.
    pub(crate) fn start<T>(&self, make: impl FnOnce() -> Result<(T, Thing)>) -> Result<T> {
        let mut state = self.state();
        if state.closed {
            bail!("the lab is being removed");
        }
        let (value, thing) = make()?;
        let line = thing.line()?;
        state.things.0.push(thing);
        state
            .file
            .write_all(line.as_bytes())
            .with_context(|| format!("writing {}", self.path.display()))?;
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

/// Removes what labs left whose owner is gone. A failure is reported and tried again at the next
/// start.
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
        let things = Things(vec![
            Thing::Namespace("bt-x-1-router".into()),
            Thing::Cgroup("/sys/fs/cgroup/cpu/bt x".into()),
            Thing::Group(42),
            Thing::Mount("/tmp/a/bpf".into()),
            Thing::Directory("/tmp/a".into()),
        ]);
        let lines = things.0.iter().map(Thing::line);
        let text: String = lines.collect::<Result<_>>().unwrap();
        assert_eq!(Things::parse(&text), things);
        assert_eq!(Things::parse(&(text.clone() + "{\"Directory\":\"/tm\"}")), things);
        assert_eq!(Things::parse(&(text + "what is this\n\n")), things);
    }
}
