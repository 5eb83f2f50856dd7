//! One server process: started with its output in a file, waited for, stopped on drop.
//!
//! Its standard input is a pipe from this process, and it ends when that closes. So it ends with
//! this process whatever happens to it, and whichever thread started it.

use anyhow::{Context, Result, bail};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open},
};
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// What the servers' program looks for: to end when its standard input closes, and which folder to
/// remove then.
const END_WITH_STDIN: &str = "BATON_END_WITH_STDIN";
const REMOVE_AT_END: &str = "BATON_REMOVE_AT_END";
/// Time between two looks at a condition.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);
/// From the first SIGTERM to the second: kube-apiserver ends within a second if nobody watches.
const STOP_GRACE: Duration = Duration::from_secs(3);
/// A server that has not ended this long after the second SIGTERM never will.
const STOP_DEADLINE: Duration = Duration::from_secs(20);
/// How many of the log's last lines an error shows.
const TAIL_LINES: usize = 30;

/// A running server. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Process {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `program NAME ARGUMENTS`, with its output added to `log`. If this process goes
    /// without ending it, the server removes `folder`, if one is given.
    pub(crate) fn start(
        program: &Path,
        name: &'static str,
        arguments: &[String],
        log: PathBuf,
        folder: Option<&Path>,
    ) -> Result<Self> {
        let mut options = fs::OpenOptions::new();
        let output: File = options
            .append(true)
            .create(true)
            .open(&log)
            .with_context(|| format!("opening {}", log.display()))?;
        let child = Command::new(program)
            .arg(name)
            .args(arguments)
            .env(END_WITH_STDIN, "1")
            .env(REMOVE_AT_END, folder.unwrap_or(Path::new("")))
            // These would let the caller's environment into a server that tests rely on.
            .env_remove("KUBECONFIG")
            .stdin(Stdio::piped())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("starting {name} ({})", program.display()))?;
        Ok(Self { name, child, log })
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until `condition` holds.
    ///
    /// # Errors
    /// With the end of the log, if the process ends first or the deadline passes.
    pub(crate) fn wait_until(
        &mut self,
        what: &str,
        deadline: Duration,
        mut condition: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        let end = Instant::now() + deadline;
        loop {
            if let Some(status) = self.child.try_wait()? {
                bail!("{} ended ({status}) before it was {what}:\n{}", self.name, self.tail());
            }
            match condition() {
                Ok(()) => return Ok(()),
                Err(e) if Instant::now() >= end => {
                    let name = self.name;
                    return Err(e.context(format!(
                        "{name} is not {what} after {deadline:?}:\n{}",
                        self.tail()
                    )));
                }
                // A pause between two looks, whose end is the condition or the deadline: a server
                // has no way to tell that it listens.
                Err(_) => thread::sleep(LOOK_INTERVAL),
            }
        }
    }

    /// Ends it with SIGTERM, as a restart of the machine's service would. kube-apiserver waits a
    /// minute for open watches then; a second SIGTERM ends that, and what it has stored is stored.
    pub(crate) fn stop(mut self) -> Result<()> {
        let id = Pid::from_child(&self.child);
        let handle =
            pidfd_open(id, PidfdFlags::empty()).context("opening a handle of the server")?;
        for deadline in [STOP_GRACE, STOP_DEADLINE] {
            kill_process(id, Signal::TERM).with_context(|| format!("stopping {}", self.name))?;
            let timeout = Timespec::try_from(deadline).context("deadline")?;
            if poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&timeout))? > 0 {
                self.child.wait()?;
                return Ok(());
            }
        }
        bail!("{} still runs {STOP_DEADLINE:?} after a second SIGTERM:\n{}", self.name, self.tail())
    }

    /// Ends it with SIGKILL, as a crash would.
    pub(crate) fn kill(mut self) -> Result<()> {
        self.child.kill().with_context(|| format!("killing {}", self.name))?;
        self.child.wait()?;
        Ok(())
    }

    fn tail(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if it has ended, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Memory of a process in bytes, as a field of `/proc/PID/status` says: `VmRSS` now, `VmHWM` at
/// most so far.
pub fn memory_bytes(pid: u32, field: &str) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&path).with_context(|| path.clone())?;
    let mut lines = status.lines();
    let value = lines.find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let kib = value
        .and_then(|value| value.trim().strip_suffix(" kB"))
        .with_context(|| format!("{path} has no {field}"))?;
    Ok(kib.parse::<u64>()? * 1024)
}
