//! The operator's process, with what it takes and what it says of itself.

use anyhow::{Context, Result, bail, ensure};
use baton_apiserver::memory_bytes;
use baton_operator_tests::operator;
use std::{
    ffi::OsString,
    fs,
    net::SocketAddr,
    path::Path,
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
    process: operator::Operator,
    /// Just before it was started.
    pub began: Instant,
    metrics: SocketAddr,
    own_peak: tokio::sync::watch::Receiver<u64>,
    sampler: tokio::task::JoinHandle<()>,
}

impl Operator {
    /// Starts one with these arguments of `run`.
    pub async fn start(arguments: &[OsString], log: &Path) -> Result<Self> {
        // Free at this moment; nobody else asks for ports of this address.
        let metrics = TcpListener::bind("127.0.0.77:0").await?.local_addr()?;
        let listen = ["--listen".into(), metrics.to_string().into()];
        let began = Instant::now();
        let process = operator::Operator::run(&[&listen, arguments].concat(), log)?;
        let (peak, own_peak) = tokio::sync::watch::channel(0);
        let id = process.id();
        let sampler = tokio::spawn(async move {
            while let Ok(own) = memory_bytes(id, "RssAnon") {
                peak.send_if_modified(|peak| std::mem::replace(peak, own.max(*peak)) < own);
                sleep(SAMPLE_INTERVAL).await;
            }
        });
        Ok(Self { process, began, metrics, own_peak, sampler })
    }

    /// What it takes and took.
    pub fn memory(&self) -> Result<Memory> {
        let own = memory_bytes(self.process.id(), "RssAnon").with_context(|| self.log())?;
        let (resident, peak) = self.process.memory_bytes()?;
        Ok(Memory { resident, peak, own, own_peak: own.max(*self.own_peak.borrow()) })
    }

    /// Processor time so far.
    pub fn processor(&self) -> Result<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process.id()))?;
        // Behind the name, which may hold anything: user and system time are fields 14 and 15 of
        // the whole.
        let fields: Vec<&str> =
            stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
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
        Ok(lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
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
            self.process.check()?;
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
    pub fn terminate(self) -> Result<()> {
        let Self { process, sampler, .. } = self;
        sampler.abort();
        let log = process.log_file().to_owned();
        let status = process.terminate()?;
        ensure!(status.success(), "{status}; its log: {}", log.display());
        Ok(())
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        self.process.log()
    }
}
