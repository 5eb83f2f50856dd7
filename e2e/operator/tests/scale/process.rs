//! The operator's process: the real binary, what it takes, what it says of itself. Dropping it
//! kills it.

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    ffi::OsString,
    fs::{self, File},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::sleep,
};

/// Time between two looks at its figures.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// Between two looks at its memory: the kernel keeps the peak of all memory, not of that which is
/// the process's alone.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(5);

/// Bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    /// Resident, the program's own file included.
    pub resident: u64,
    /// The most that this was.
    pub peak: u64,
    /// Resident and no file's.
    pub own: u64,
    /// The most that this was seen to be.
    pub own_peak: u64,
}

/// A running operator.
pub struct Operator {
    child: Child,
    /// Just before it was started.
    pub began: Instant,
    metrics: SocketAddr,
    log: PathBuf,
    own_peak: tokio::sync::watch::Receiver<u64>,
    sampler: tokio::task::JoinHandle<()>,
}

impl Operator {
    /// Starts one with these arguments of `run`.
    pub async fn start(arguments: &[OsString], log: &Path) -> Result<Self> {
        let output = File::create(log).with_context(|| log.display().to_string())?;
        // Free at this moment; nobody else asks for ports of this address.
        let metrics = TcpListener::bind("127.0.0.77:0").await?.local_addr()?;
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL"])
            .arg(baton_operator_tests::operator::binary("baton-operator")?)
            .arg("run");
        command
            .args(["--listen", &metrics.to_string()])
            .args(arguments);
        command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output);
        let began = Instant::now();
        let child = command
            .spawn()
            .context("starting the operator through setpriv (util-linux)")?;
        let (peak, own_peak) = tokio::sync::watch::channel(0);
        let id = child.id();
        let sampler = tokio::spawn(async move {
            while let Ok(own) = status_bytes(id, "RssAnon:") {
                peak.send_if_modified(|peak| std::mem::replace(peak, own.max(*peak)) < own);
                sleep(SAMPLE_INTERVAL).await;
            }
        });
        Ok(Self {
            child,
            began,
            metrics,
            log: log.to_owned(),
            own_peak,
            sampler,
        })
    }

    /// What it takes and took.
    pub fn memory(&self) -> Result<Memory> {
        let id = self.child.id();
        let own = status_bytes(id, "RssAnon:").with_context(|| self.log())?;
        Ok(Memory {
            resident: status_bytes(id, "VmRSS:")?,
            peak: status_bytes(id, "VmHWM:")?,
            own,
            own_peak: own.max(*self.own_peak.borrow()),
        })
    }

    /// Processor time so far.
    pub fn processor(&self) -> Result<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        // Behind the name, which may hold anything: user and system time are fields 14 and 15 of
        // the whole.
        let fields: Vec<&str> = stat
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .collect();
        let ticks = |at: usize| -> Result<u64> { Ok(fields.get(at).context("a field")?.parse()?) };
        // Linux has 100 ticks a second in what it tells processes.
        Ok(Duration::from_millis((ticks(11)? + ticks(12)?) * 10))
    }

    /// The sum of a figure over its labels; 0 where it has none yet.
    pub async fn figure(&self, name: &str) -> Result<f64> {
        let mut stream = TcpStream::connect(self.metrics).await?;
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            .await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        let lines = text.lines().filter(|line| {
            let rest = line.strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with(['{', ' ']))
        });
        Ok(lines
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum())
    }

    /// Waits until a figure satisfies; gives when.
    pub async fn until(
        &mut self,
        name: &str,
        deadline: Duration,
        wanted: impl Fn(f64) -> bool,
    ) -> Result<Instant> {
        let end = Instant::now() + deadline;
        loop {
            if let Some(status) = self.child.try_wait()? {
                bail!("the operator ended by itself ({status}):\n{}", self.log());
            }
            // It may not listen yet.
            let value = self.figure(name).await.ok();
            if value.is_some_and(&wanted) {
                return Ok(Instant::now());
            }
            if Instant::now() > end {
                bail!("{name} is {value:?} after {deadline:?}:\n{}", self.log());
            }
            sleep(LOOK_INTERVAL).await;
        }
    }

    /// Ends it with SIGTERM and waits for it.
    pub fn terminate(mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("the operator ended by itself ({status}):\n{}", self.log());
        }
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        let status = self.child.wait()?;
        anyhow::ensure!(
            status.success(),
            "the operator ended with {status}:\n{}",
            self.log()
        );
        Ok(())
    }

    /// The end of what it has logged.
    pub fn log(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&log[log.len().saturating_sub(20_000)..]).into_owned()
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        self.sampler.abort();
        // Both fail only if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn status_bytes(id: u32, field: &str) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{id}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kib = line
        .and_then(|l| l.trim().strip_suffix(" kB"))
        .with_context(|| field.to_owned())?;
    Ok(kib.parse::<u64>()? * 1024)
}
