//! The operator's process: the real binary, with a kubeconfig of its ServiceAccount. Dropping it
//! kills it.

use anyhow::{Context, Result, bail};
use baton_apiserver::memory_bytes;
use rustix::process::{Pid, Signal, kill_process};
use std::{
    env,
    ffi::OsString,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
};

/// How long a Lease lasts here: short, so that tests of another leader need not wait long.
pub const LEASE_SECONDS: u32 = 2;

/// A running operator.
#[derive(Debug)]
pub struct Operator {
    child: Child,
    log: PathBuf,
}

impl Operator {
    /// Starts one with a name of its own in the election.
    pub fn start(kubeconfig: &Path, folder: &Path, identity: &str) -> Result<Self> {
        Self::start_with(kubeconfig, folder, identity, &[])
    }

    /// The same with more arguments. Its log goes on where an earlier one of the same name ended.
    pub fn start_with(
        kubeconfig: &Path,
        folder: &Path,
        identity: &str,
        arguments: &[String],
    ) -> Result<Self> {
        let lease = LEASE_SECONDS.to_string();
        let own = [
            "--identity",
            identity,
            "--lease-seconds",
            &lease,
            "--namespace",
            crate::OPERATOR_NAMESPACE,
            "--listen",
            "127.0.0.1:0",
            "--kubeconfig",
        ];
        let mut all: Vec<OsString> = own.map(Into::into).into();
        all.push(kubeconfig.into());
        all.extend(arguments.iter().map(Into::into));
        Self::run(&all, &folder.join(format!("{identity}.log")))
    }

    /// Starts one with these arguments of `run`, and no others, whose log goes on where it ended.
    pub fn run(arguments: &[OsString], log: &Path) -> Result<Self> {
        let mut options = File::options();
        let output = options.append(true).create(true).open(log);
        let output = output.with_context(|| log.display().to_string())?;
        // It ends with the thread that started it, which is the test's, also if that is killed.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(binary("baton-operator")?)
            .arg("run")
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .context("starting the operator through setpriv (util-linux)")?;
        let log = log.to_owned();
        Ok(Self { child, log })
    }

    /// Its process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Kills it, as a node's death would.
    ///
    /// # Errors
    /// If it has ended by itself, with its log.
    pub fn kill(mut self) -> Result<()> {
        self.check()?;
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Ends it with SIGTERM and waits for it.
    pub fn terminate(mut self) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        Ok(self.child.wait()?)
    }

    /// Sends a signal, as SIGSTOP.
    ///
    /// # Errors
    /// If it has ended, with its log.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        self.check()?;
        kill_process(Pid::from_child(&self.child), signal).context("signalling the operator")
    }

    /// Whether it still runs.
    ///
    /// # Errors
    /// With its log if it has ended.
    pub fn check(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            Some(status) => bail!("the operator has ended ({status}):\n{}", self.log()),
            None => Ok(()),
        }
    }

    /// Resident memory in bytes: now, and at most so far.
    pub fn memory_bytes(&self) -> Result<(u64, u64)> {
        let read = |field| memory_bytes(self.child.id(), field);
        Ok((read("VmRSS")?, read("VmHWM")?))
    }

    /// Where it logs to.
    #[must_use]
    pub fn log_file(&self) -> &Path {
        &self.log
    }

    /// What it has logged.
    #[must_use]
    pub fn log(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        // Who reads a failed test wants to know what the operator thought of it.
        if std::thread::panicking() {
            eprintln!("{}:\n{}", self.log.display(), self.log());
        }
        // Both fail only if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A program of this workspace, built beside the tests or in `BATON_BIN_DIR`.
pub fn binary(name: &str) -> Result<PathBuf> {
    let own = env::current_exe().context("finding the running executable")?;
    let places: Vec<PathBuf> = match env::var_os("BATON_BIN_DIR") {
        Some(directory) => vec![directory.into()],
        // target/PROFILE for programs, target/PROFILE/deps for tests.
        None => own.ancestors().skip(1).take(2).map(Path::to_path_buf).collect(),
    };
    let found = places.iter().map(|p| p.join(name)).find(|p| p.is_file());
    found.with_context(|| {
        format!("{name} is not built: cargo build --profile ci -p {name} (looked in {places:?})")
    })
}
