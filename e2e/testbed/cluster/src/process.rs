//! Processes inside a node: started there, logged to files, waited for, killed by name on a test's
//! wish.
//!
//! All end with the node's first process, whatever happens to the value here.

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Time between two looks at a condition.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// How many of a log's last lines an error shows.
const TAIL_LINES: usize = 25;

/// A command that runs in all namespaces of the node whose first process is `init`.
pub(crate) fn inside(init: Pid, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("nsenter");
    command
        .arg(format!("--target={}", init.as_raw_nonzero()))
        .args(["--net", "--mount", "--uts", "--ipc", "--pid", "--"])
        .arg(program)
        .current_dir("/");
    command
}

/// A daemon of a node. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Daemon {
    name: String,
    /// `nsenter`, whose only child is the daemon.
    child: Child,
    log: PathBuf,
}

impl Daemon {
    /// Starts `command` (made by [`inside`]) with its output added to `FOLDER/NAME.log`.
    pub(crate) fn start(name: &str, command: &mut Command, folder: &Path) -> Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let mut options = fs::OpenOptions::new();
        let output = options
            .append(true)
            .create(true)
            .open(&log)
            .with_context(|| format!("opening {}", log.display()))?;
        let child = command
            .env_remove("KUBECONFIG")
            .stdin(Stdio::null())
            .stdout(output.try_clone().context("sharing a log")?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("starting {name}"))?;
        let name = name.to_owned();
        Ok(Self { name, child, log })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Waits until `condition` holds.
    ///
    /// # Errors
    /// With the end of the log, if the process ends first or the deadline passes.
    pub(crate) fn wait_until<T>(
        &mut self,
        what: &str,
        deadline: Duration,
        mut condition: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        let end = Instant::now() + deadline;
        loop {
            if let Some(status) = self.child.try_wait()? {
                bail!("{} ended ({status}) before it was {what}:\n{}", self.name, tail(&self.log));
            }
            match condition() {
                Ok(value) => return Ok(value),
                Err(e) if Instant::now() >= end => {
                    let (name, tail) = (&self.name, tail(&self.log));
                    return Err(
                        e.context(format!("{name} is not {what} after {deadline:?}:\n{tail}"))
                    );
                }
                Err(_) => thread::sleep(LOOK_INTERVAL),
            }
        }
    }

    /// Ends it with SIGKILL, as a crash would, and waits until it is gone.
    pub(crate) fn kill(&mut self) -> Result<()> {
        if self.child.try_wait()?.is_none() {
            // The only child of a process that is not waited for yet: nobody else's by now.
            if let Some(daemon) = only_child(self.child.id()) {
                signal(daemon, Signal::KILL)?;
            } else {
                self.child.kill()?;
            }
        }
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Err(e) = self.kill() {
            crate::say(&format!("ending {}: {e:#}", self.name));
        }
    }
}

/// Sends a signal to a process, or nothing if it has ended.
pub(crate) fn signal(process: Pid, signal: Signal) -> Result<()> {
    match pidfd_open(process, PidfdFlags::empty()) {
        Ok(handle) => match pidfd_send_signal(&handle, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(e) => Err(e).context("sending a signal"),
        },
        Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(e) => Err(e).context("opening a handle of a process"),
    }
}

/// The child of a process that has one.
pub(crate) fn only_child(parent: u32) -> Option<Pid> {
    let path = format!("/proc/{parent}/task/{parent}/children");
    let children = fs::read_to_string(path).ok()?;
    let child: i32 = children.split_whitespace().next()?.parse().ok()?;
    Pid::from_raw(child)
}

/// The last lines of a log.
pub(crate) fn tail(log: &Path) -> String {
    let log = fs::read(log).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    let lines: Vec<_> = log.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}
