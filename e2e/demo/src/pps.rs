//! Packets per second through the dataplane, by workers and frame size: what of it is the engine's,
//! the kernel's system calls', and the kernel's in between.
//!
//! Real kernels open the connections and begin a response of known length; the generator
//! (`baton_lab::Overheard`) goes on with segments and acknowledgements by turns, and what the
//! dataplane sends is counted and dropped at the node's end of its veth. So no pod and no client
//! costs anything. The generator has a CPU of its own only where there are more than workers.

use crate::{
    PpsArguments,
    bench::{Columns, grouped, keep, succeeded, table},
    scene,
};
use anyhow::{Context as _, Result, ensure};
use baton_api::{Protocol, State};
use baton_lab::{Blasted, Dataplane, policy};
use serde::Serialize;
use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
    time::Duration,
};

const PORT: u16 = 80;
const PODS: usize = 4;
const CONNECTIONS: usize = 64;
/// Of a segment's data: none, and a full segment.
const LENGTHS: [u16; 2] = [0, 1_448];
/// `USER_HZ`: ticks of `/proc` a second.
const TICKS: f64 = 100.0;
/// How long a connection may take to open.
const LIMIT: Duration = Duration::from_secs(5);
/// More than any run sends.
const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n";
const COLUMNS: &Columns = &[
    ("workers", 7),
    ("bytes", 6),
    ("sent/s", 11),
    ("forwarded/s", 13),
    ("share", 7),
    ("engine ns", 11),
    ("calls ns", 10),
    ("softirq ns", 12),
];

/// What `pps.json` holds.
#[derive(Debug, Serialize)]
struct Bench {
    seconds: u64,
    rows: Vec<Row>,
}

/// One run. Times are CPU time for each frame forwarded.
#[derive(Debug, Serialize)]
struct Row {
    workers: u32,
    /// Of every second frame; the others are acknowledgements of 66.
    frame_bytes: u16,
    sent_per_second: f64,
    forwarded_per_second: f64,
    /// Worker threads in user space: rings and engine.
    engine_ns: f64,
    /// Worker threads in the kernel: what they send is copied and handed to the veth.
    calls_ns: f64,
    /// Soft interrupts of all CPUs: the veth's receiving side, with the steering program.
    softirq_ns: f64,
    /// Frames that the engine dropped.
    dropped: u64,
}

/// Ticks so far.
#[derive(Clone, Copy, Default)]
struct Ticks {
    user: u64,
    system: u64,
    softirq: u64,
}

impl Ticks {
    fn of(dataplane: &Dataplane) -> Result<Self> {
        let mut ticks = Self::default();
        let tasks = format!("/proc/{}/task", dataplane.process.pid());
        for task in fs::read_dir(tasks)? {
            let stat = fs::read_to_string(task?.path().join("stat"))?;
            let (name, fields) = stat.rsplit_once(") ").context("a thread's stat")?;
            if !name.contains("(packets-") {
                continue;
            }
            // Fields 14 and 15 of proc_pid_stat(5); the first one here is the third.
            let fields: Vec<&str> = fields.split(' ').collect();
            ticks.user += fields[11].parse::<u64>()?;
            ticks.system += fields[12].parse::<u64>()?;
        }
        let stat = fs::read_to_string("/proc/stat")?;
        let softirq = stat.split_whitespace().nth(7).context("/proc/stat")?;
        ticks.softirq = softirq.parse()?;
        Ok(ticks)
    }
}

/// Answers each connection's first bytes with the head of a long response, and says no more.
fn serve(listener: &TcpListener) {
    let mut open: Vec<TcpStream> = Vec::new();
    for stream in listener.incoming() {
        let Ok(mut stream) = stream else { return };
        let mut request = [0; 1_024];
        if stream.read(&mut request).is_ok() && stream.write_all(HEAD).is_ok() {
            open.push(stream);
        }
    }
}

fn dropped(state: &State) -> u64 {
    let drops = state.counters.iter();
    drops.filter(|(name, _)| name.starts_with("drops_total")).map(|(_, count)| *count).sum()
}

fn run(workers: u32, length: u16, time: Duration) -> Result<Row> {
    let lab = scene::lab("pps", PODS)?;
    let mut servers: Vec<(String, SocketAddr)> = Vec::new();
    for pod in lab.pods() {
        let address = SocketAddr::new(pod.ipv4(), PORT);
        let listener = pod.namespace().run(|| TcpListener::bind(address))??;
        thread::spawn(move || serve(&listener));
        servers.push((pod.name().to_owned(), address));
    }
    let mut stays = policy("pps", PORT, &servers);
    stays.protocol = Protocol::Http1;
    let mut config = lab.dataplane_config(vec![stays])?;
    config.workers = Some(workers);
    let baton = scene::Baton::start(&lab, &config)?;
    let overheard = lab.overhear()?;
    let mut connections = Vec::with_capacity(CONNECTIONS);
    for _ in 0..CONNECTIONS {
        let client = lab.client().namespace();
        let mut stream = client.connect(baton.dataplane.address(PORT), LIMIT)?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")?;
        let mut head = [0; HEAD.len()];
        stream.read_exact(&mut head)?;
        connections.push(stream);
    }
    let (drops, before) = (dropped(&baton.dataplane.state()?), Ticks::of(&baton.dataplane)?);
    let Blasted { sent, back, took } = overheard.blast(&lab, (PORT, CONNECTIONS), length, time)?;
    let after = Ticks::of(&baton.dataplane)?;
    let dropped = dropped(&baton.dataplane.state()?) - drops;
    ensure!(back > 0, "nothing came back");
    let each = |before: u64, after: u64| (after - before) as f64 / TICKS * 1e9 / back as f64;
    let row = Row {
        workers,
        frame_bytes: 66 + length,
        sent_per_second: sent as f64 / took.as_secs_f64(),
        forwarded_per_second: back as f64 / took.as_secs_f64(),
        engine_ns: each(before.user, after.user),
        calls_ns: each(before.system, after.system),
        softirq_ns: each(before.softirq, after.softirq),
        dropped,
    };
    drop(connections);
    baton.stop()?;
    Ok(row)
}

impl Row {
    fn cells(&self) -> Vec<String> {
        vec![
            self.workers.to_string(),
            self.frame_bytes.to_string(),
            grouped(self.sent_per_second as u64),
            grouped(self.forwarded_per_second as u64),
            format!("{:.2}", self.forwarded_per_second / self.sent_per_second),
            format!("{:.0}", self.engine_ns),
            format!("{:.0}", self.calls_ns),
            format!("{:.0}", self.softirq_ns),
        ]
    }
}

/// Runs each number of workers with each size of frame.
pub fn pps(arguments: &PpsArguments) -> Result<bool> {
    let time = Duration::from_secs(arguments.seconds);
    let mut rows = Vec::new();
    let mut failures = Vec::new();
    for &workers in &arguments.workers {
        for length in LENGTHS {
            let row = run(workers, length, time)?;
            println!("{:?}", row.cells());
            if row.dropped > 0 {
                failures.push(format!(
                    "{workers} workers: {} frames dropped by the engine",
                    row.dropped
                ));
            }
            rows.push(row);
        }
    }
    let bench = Bench { seconds: arguments.seconds, rows };
    println!(
        "\n{}Every second frame is an acknowledgement of 66 bytes. Generator, workers and soft \
         interrupts share {} CPUs.",
        table(COLUMNS, bench.rows.iter().map(Row::cells)),
        thread::available_parallelism()?
    );
    println!("{}", keep(&arguments.out, "pps.json", &bench)?.display());
    Ok(succeeded(&failures))
}
