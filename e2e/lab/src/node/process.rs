//! Processes inside a lab: started in a namespace (and cgroup), logged to files, waited for, killed
//! on drop.
//!
//! Each leads a process group of its own, so that a server's workers go with it and so that Ctrl-C
//! at a terminal reaches only the lab's owner, which then ends everything in order.

use crate::node::{cgroup::Cgroup, netns::Namespace, procfs, record::Thing, shared::Shared};
use anyhow::{Context, Result, bail, ensure};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open},
};
use std::{
    fs::{self, File},
    net::{SocketAddr, TcpStream},
    os::{fd::OwnedFd, unix::process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// How long a server may take until it listens. Debug builds on a busy machine need seconds, not
/// tens of them.
pub const LISTEN_DEADLINE: Duration = Duration::from_secs(20);
/// Time between two looks at a condition; short against a server's start, long against one look's
/// cost.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);
/// A killed or terminated server is gone within this time.
const END_DEADLINE: Duration = Duration::from_secs(10);
/// A connection inside one machine is answered far below this, or not at all.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);

/// What to start.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Short name for logs and messages.
    pub name: String,
    /// Program, looked up in `PATH` if it has no slash.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
}

impl Spec {
    /// A program with arguments, named after the program.
    pub fn new<A: Into<String>>(
        program: impl Into<PathBuf>,
        arguments: impl IntoIterator<Item = A>,
    ) -> Self {
        let program = program.into();
        Self {
            name: program
                .file_name()
                .map_or_else(|| "process".into(), |n| n.to_string_lossy().into_owned()),
            program,
            arguments: arguments.into_iter().map(Into::into).collect(),
        }
    }

    /// With another name.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }
}

/// A running process of the lab. Dropping it kills its whole group.
#[derive(Debug)]
pub struct Process {
    name: String,
    namespace: Namespace,
    child: Child,
    group: Pid,
    stdout: PathBuf,
    stderr: PathBuf,
    ended: Option<ExitStatus>,
}

impl Process {
    pub(crate) fn start(
        lab: &Arc<Shared>,
        namespace: &Namespace,
        cgroup: Option<&Cgroup>,
        spec: &Spec,
    ) -> Result<Self> {
        let log = lab.new_log(&spec.name);
        let (stdout, stderr) = (log.with_extension("out"), log.with_extension("err"));
        let mut command = match cgroup {
            None => Command::new(&spec.program),
            // The shell joins the cgroup and becomes the program: no process of it ever runs
            // outside.
            Some(cgroup) => {
                let mut shell = Command::new("sh");
                let join = "echo $$ > \"$0\" && echo $$ > \"$1\" && shift && exec \"$@\"";
                shell.args(["-c", join]);
                shell.arg(cgroup.first_file()).arg(cgroup.processes_file());
                shell.arg(&spec.program);
                shell
            }
        };
        command
            .args(&spec.arguments)
            .current_dir(lab.directory())
            .stdin(Stdio::null())
            .stdout(File::create(&stdout).with_context(|| stdout.display().to_string())?)
            .stderr(File::create(&stderr).with_context(|| stderr.display().to_string())?)
            .process_group(0);
        let child = lab.record.start(|| {
            let child = namespace.run(|| command.spawn())?.with_context(|| {
                format!("starting `{}`: is it installed? (`make setup`)", spec.program.display())
            })?;
            let group = i32::try_from(child.id())?;
            Ok((child, Thing::Group(group)))
        })?;
        let group = Pid::from_raw(i32::try_from(child.id())?).context("process id 0")?;
        let mut process = Self {
            name: spec.name.clone(),
            namespace: namespace.clone(),
            child,
            group,
            stdout,
            stderr,
            ended: None,
        };
        if let Some(cgroup) = cgroup {
            process.wait_joined(cgroup)?;
        }
        Ok(process)
    }

    /// Waits until the shell has joined the cgroup (or has failed to, and says so on standard
    /// error).
    fn wait_joined(&mut self, cgroup: &Cgroup) -> Result<()> {
        let end = Instant::now() + LISTEN_DEADLINE;
        let pid = i32::try_from(self.pid())?;
        while !cgroup.processes().contains(&pid) && self.try_wait()?.is_none() {
            if Instant::now() >= end {
                bail!("{} does not join its cgroup", self.name);
            }
            thread::sleep(LOOK_INTERVAL / 10);
        }
        Ok(())
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The namespace that it was started in.
    #[must_use]
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// What it wrote to standard output so far.
    #[must_use]
    pub fn stdout(&self) -> String {
        read_lossy(&self.stdout)
    }

    /// What it wrote to standard error so far.
    #[must_use]
    pub fn stderr(&self) -> String {
        read_lossy(&self.stderr)
    }

    /// Its exit status if it has ended.
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait()?;
        }
        Ok(self.ended)
    }

    /// Waits until it ends by itself.
    ///
    /// # Errors
    /// If it still runs at the deadline; it is left running.
    pub fn wait(&mut self, deadline: Duration) -> Result<ExitStatus> {
        if let Some(status) = self.try_wait()? {
            return Ok(status);
        }
        let handle = pidfd_open(self.group, PidfdFlags::empty())?;
        let timeout = Timespec::try_from(deadline).context("deadline")?;
        let readable = poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&timeout))?;
        if readable == 0 {
            bail!("{} still runs after {deadline:?}", self.name);
        }
        let status = self.child.wait()?;
        self.ended = Some(status);
        Ok(status)
    }

    /// Waits until `condition` holds, while the process runs.
    ///
    /// # Errors
    /// With the end of its output if it ends first, or with the last refusal at the deadline.
    pub fn wait_until(
        &mut self,
        what: &str,
        deadline: Duration,
        mut condition: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        let end = Instant::now() + deadline;
        loop {
            if let Some(status) = self.try_wait()? {
                bail!("{} ended ({status}) before it was {what}:\n{}", self.name, self.tail());
            }
            match condition() {
                Ok(()) => return Ok(()),
                Err(e) if Instant::now() >= end => {
                    return Err(e.context(format!(
                        "{} is not {what} after {deadline:?}:\n{}",
                        self.name,
                        self.tail()
                    )));
                }
                Err(_) => thread::sleep(LOOK_INTERVAL),
            }
        }
    }

    /// Waits until it accepts connections at `address`, seen from its own namespace.
    pub fn wait_listening(&mut self, address: SocketAddr) -> Result<()> {
        self.wait_listening_for(&self.namespace.clone(), address)
    }

    /// The same, seen from another namespace.
    pub fn wait_listening_for(&mut self, namespace: &Namespace, address: SocketAddr) -> Result<()> {
        self.wait_until("listening", LISTEN_DEADLINE, || {
            namespace
                .run(|| TcpStream::connect_timeout(&address, CONNECT_TIMEOUT))?
                .map(drop)
                .with_context(|| format!("connecting to {address}"))
        })
    }

    /// CPU time of the process and all of its group so far.
    #[must_use]
    pub fn cpu_time(&self) -> Duration {
        procfs::processes()
            .iter()
            .filter(|p| p.group == self.group.as_raw_nonzero().get())
            .map(procfs::ProcessInfo::cpu_time)
            .sum()
    }

    /// Sends a signal to the process itself, as SIGHUP to reload.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        if self.try_wait()?.is_some() {
            bail!("{} has ended", self.name);
        }
        kill_process(self.group, signal).with_context(|| format!("signalling {}", self.name))
    }

    /// Ends it: SIGTERM, and SIGKILL to the group if it still runs after `grace`.
    pub fn stop(&mut self, grace: Duration) -> Result<ExitStatus> {
        if self.try_wait()?.is_none() {
            self.signal(Signal::TERM)?;
            if self.wait(grace).is_err() {
                eprintln!("baton-lab: {} ignores SIGTERM for {grace:?}", self.name);
            }
        }
        self.kill()
    }

    /// Ends it and its group with SIGKILL, as a crash would.
    pub fn kill(&mut self) -> Result<ExitStatus> {
        if let Some(status) = self.try_wait()? {
            // The leader is gone and waited for; workers that it left may remain in the group.
            self.kill_rest();
            return Ok(status);
        }
        // The leader is not waited for yet, so its id, which names the group, cannot belong to
        // another.
        let _ = kill_process_group(self.group, Signal::KILL);
        let status = self.child.wait()?;
        self.ended = Some(status);
        Ok(status)
    }

    /// SIGKILL to the whole group at once, as when a node's kernel runs out of memory. Returns when
    /// every process of it has let go of its sockets, so that the next one can listen at once.
    pub fn crash(&mut self) -> Result<()> {
        let members = self.members()?;
        kill_process_group(self.group, Signal::KILL)?;
        self.wait_gone(&members)
    }

    /// SIGTERM to the leader, as a kubelet sends it, without anything before it. Returns when the
    /// whole group is gone.
    pub fn terminate(&mut self) -> Result<()> {
        let members = self.members()?;
        kill_process(self.group, Signal::TERM)?;
        self.wait_gone(&members)
    }

    /// SIGQUIT to the leader, with which nginx closes idle connections and listeners, finishes
    /// requests, and ends: what its container images ask a kubelet to send (`STOPSIGNAL`). Returns
    /// when the whole group is gone.
    pub fn quit(&mut self) -> Result<()> {
        let members = self.members()?;
        kill_process(self.group, Signal::QUIT)?;
        self.wait_gone(&members)
    }

    /// Stops the whole group where it is; its kernel goes on to acknowledge. Returns once each of
    /// its threads has stopped: one that was told to and has not run since still reads what comes.
    pub fn freeze(&mut self) -> Result<()> {
        self.signal_group(Signal::STOP)?;
        let group = self.group.as_raw_nonzero().get();
        let mut members = procfs::processes();
        members.retain(|p| p.group == group);
        self.wait_until("stopped", END_DEADLINE, || {
            let stopped = members.iter().all(procfs::ProcessInfo::is_stopped);
            ensure!(stopped, "a thread of it runs");
            Ok(())
        })
    }

    /// Lets the group go on after [`Process::freeze`].
    pub fn thaw(&mut self) -> Result<()> {
        self.signal_group(Signal::CONT)
    }

    fn signal_group(&mut self, signal: Signal) -> Result<()> {
        if self.try_wait()?.is_some() {
            bail!("{} has ended", self.name);
        }
        kill_process_group(self.group, signal).with_context(|| format!("signalling {}", self.name))
    }

    /// Handles of all processes of the group.
    fn members(&mut self) -> Result<Vec<OwnedFd>> {
        if let Some(status) = self.try_wait()? {
            bail!("{} has ended by itself ({status}):\n{}", self.name, self.tail());
        }
        let group = self.group.as_raw_nonzero().get();
        let pids = procfs::processes()
            .into_iter()
            .filter(|p| p.group == group)
            .filter_map(|p| Pid::from_raw(p.pid));
        // One that ended since the look has nothing left to wait for.
        Ok(pids.filter_map(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()).collect())
    }

    /// Waits for the leader and the given members. A process that its handle calls ended has closed
    /// its files before (`do_exit` in kernel/exit.c: `exit_files` and `exit_task_work` come before
    /// `exit_notify`).
    fn wait_gone(&mut self, members: &[OwnedFd]) -> Result<()> {
        let end = Instant::now() + END_DEADLINE;
        for handle in members {
            let left = end.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).context("deadline")?;
            if poll(&mut [PollFd::new(handle, PollFlags::IN)], Some(&timeout))? == 0 {
                bail!("{} does not end within {END_DEADLINE:?}", self.name);
            }
        }
        let left = end.saturating_duration_since(Instant::now());
        self.wait(left).map(drop)
    }

    /// Kills what is left of the group of an ended leader. The number could name a stranger's group
    /// by now, so only processes in this namespace count.
    fn kill_rest(&self) {
        let network = crate::node::netns::identity(self.namespace.name());
        for process in procfs::processes() {
            if process.group == self.group.as_raw_nonzero().get()
                && network.is_some()
                && process.network() == network
                && let Some(pid) = Pid::from_raw(process.pid)
            {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }

    /// The last lines of its output, for messages.
    #[must_use]
    pub fn tail(&self) -> String {
        [("stdout", self.stdout()), ("stderr", self.stderr())]
            .iter()
            .filter(|(_, text)| !text.trim().is_empty())
            .map(|(stream, text)| {
                let lines: Vec<_> = text.lines().collect();
                let from = lines.len().saturating_sub(20);
                format!("--- {} {stream}\n{}\n", self.name, lines[from..].join("\n"))
            })
            .collect()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if thread::panicking() {
            eprint!("{}", self.tail());
        }
        if let Err(e) = self.kill() {
            eprintln!("baton-lab: ending {}: {e:#}", self.name);
        }
    }
}

fn read_lossy(path: &Path) -> String {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}
