//! Downloads and uploads that move in their middle: the SDK's example in every pod, host-shim
//! between them, pods that drain one after the other.

use anyhow::{Context, Result, bail, ensure};
use baton_api::{Migration, MigrationMode, Protocol};
use baton_lab::{Contents, Server, Shim, ShimConfig, ShimTransfers, policy};
use baton_ns::{Scene, until};
use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    path::PathBuf,
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver},
    },
    thread,
    time::{Duration, Instant},
};

const PORT: u16 = 8_080;
/// Where host-shims of two nodes meet.
const FAR_PORT: u16 = 17_464;
/// Index of the file servers' policy.
const FILES: usize = 1;
/// A connection that stands still for this long is lost.
const PATIENCE: Duration = Duration::from_secs(10);
const MIB: usize = 1 << 20;
/// Moves of one connection; `BATON_MOVES` changes it.
const MOVES: u64 = 10;

fn moves() -> u64 {
    let given = std::env::var("BATON_MOVES").ok();
    given.and_then(|n| n.parse().ok()).unwrap_or(MOVES)
}

/// Two pods with a file server each, which share a directory.
struct Files {
    scene: Scene,
    /// The shim of the second pod's node, where that is another one.
    second: Option<Shim>,
    servers: Vec<Server>,
    directory: PathBuf,
}

impl Files {
    fn start(name: &str, protocol: Protocol, nodes: usize) -> Result<Self> {
        let mut scene = Scene::with_pods(name, 2)?;
        let directory = scene.lab.directory().join("files");
        std::fs::create_dir(&directory)?;
        let servers = scene.lab.in_each_pod(|pod| pod.files(PORT, &directory))?;
        let backends: Vec<_> = servers.iter().map(Server::named).collect();
        let mut files = policy("files", PORT, &backends);
        files.protocol = protocol;
        files.migration = Migration { mode: MigrationMode::DrainOnly, ..Migration::default() };
        scene.config.policies.push(files);
        let mut second = None;
        if nodes > 1 {
            let config = &mut scene.shim_config;
            config.transfers = Some(ShimTransfers { port: FAR_PORT });
            let others = ShimConfig {
                pods: config.pods.split_off(1),
                control: "127.0.0.1:9902".into(),
                pin: config.pin.join("second"),
                ..config.clone()
            };
            config.pin.push("first");
            second = Some(scene.lab.shim(&others)?);
        }
        scene.start()?;
        Ok(Self { scene, second, servers, directory })
    }

    fn address(&self) -> Result<SocketAddr> {
        self.scene.address(PORT)
    }

    fn connect(&self) -> Result<TcpStream> {
        let namespace = self.scene.lab.client().namespace();
        namespace.connect(self.address()?, PATIENCE)
    }

    /// What became of all that host-shims were asked for.
    fn ended(&self) -> Result<String> {
        let mut ended = Vec::new();
        for shim in self.scene.shim.iter().chain(&self.second) {
            let text = shim.control_text("/metrics")?;
            let lines = text.lines();
            let results = lines.filter_map(|l| l.strip_prefix("baton_shim_transfers_total{"));
            ended.extend(results.filter(|l| !l.ends_with(" 0")).map(str::to_owned));
        }
        Ok(ended.join(", "))
    }

    fn download_begun(&self) -> Result<()> {
        until("the download has begun", || {
            let backends = self.scene.state()?.policies.remove(FILES).backends;
            let flows: u64 = backends.iter().map(|b| b.flows).sum();
            ensure!(flows == 1, "{flows} flows");
            Ok(())
        })
    }

    /// Drains the pod that has the connection, until it has moved so often.
    fn keep_moving(&self, times: u64) -> Result<()> {
        let dataplane = self.scene.dataplane()?;
        for time in 1..=times {
            let has = |at: usize| -> Result<bool> {
                let name = self.servers[at].pod().name();
                Ok(self.scene.backend(FILES, name)?.flows > 0)
            };
            let at = match (has(0)?, has(1)?) {
                (true, false) => 0,
                (false, true) => 1,
                both => bail!("connections at both pods or none: {both:?}"),
            };
            let name = self.servers[at].pod().name().to_owned();
            dataplane.tool(&["drain", &name])?;
            let gone = until("the connection moves", || {
                ensure!(!has(at)?, "still there");
                Ok(())
            });
            self.scene.explained(gone)?;
            dataplane.tool(&["drain", &name, "--undo"])?;
            let policy = self.scene.policy(FILES)?;
            let ends = policy.moves_total.values().flatten();
            let moved: u64 = ends.filter(|(end, _)| *end == "moved").map(|(_, n)| n).sum();
            ensure!(moved == time, "{moved} moves after {time} drains");
        }
        // Between two files it moves as any other does.
        let handed_on = self.scene.counter("transfers_total{result=\"moved\"}")?;
        ensure!(handed_on * 2 >= times, "{handed_on} of {times} handed on");
        Ok(())
    }
}

/// The head of a response; its status and how many bytes follow.
fn head(from: &mut BufReader<TcpStream>) -> Result<(u16, usize)> {
    let (mut status, mut length) = (0, 0);
    for number in 0.. {
        let mut line = String::new();
        from.read_line(&mut line).context("a head")?;
        let line = line.trim_end();
        if number == 0 {
            let word = line.split(' ').nth(1).context("a status line")?;
            status = word.parse()?;
        } else if line.is_empty() {
            break;
        } else if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse()?;
        }
    }
    Ok((status, length))
}

/// Downloads a file again and again over one connection, each byte compared, until `enough`; how
/// many times, and in which time.
fn download(stream: TcpStream, contents: Contents, enough: &AtomicBool) -> Result<(u64, Duration)> {
    let mut to = stream.try_clone()?;
    let mut from = BufReader::with_capacity(256 << 10, stream);
    let begun = Instant::now();
    for round in 1.. {
        to.write_all(b"GET /file HTTP/1.1\r\nhost: files\r\n\r\n")?;
        let (status, length) = head(&mut from)?;
        ensure!((status, length) == (200, contents.bytes), "{status}, {length} bytes");
        contents.compare(&mut from)?;
        if enough.load(Ordering::Relaxed) {
            return Ok((round, begun.elapsed()));
        }
    }
    unreachable!("it ends when it is enough")
}

fn downloads_move(name: &str, protocol: Protocol, nodes: usize) -> Result<()> {
    let files = Files::start(name, protocol, nodes)?;
    let contents = Contents { seed: 1, bytes: 256 * MIB };
    contents.make(&files.directory.join("file"))?;
    let enough = AtomicBool::new(false);
    let times = moves();
    let (moved, downloaded) = thread::scope(|scope| {
        let stream = files.connect()?;
        let load = scope.spawn(|| download(stream, contents, &enough));
        files.download_begun()?;
        let moved = files.keep_moving(times);
        enough.store(true, Ordering::Relaxed);
        let downloaded = load.join().expect("no panic");
        anyhow::Ok((moved, downloaded))
    })?;
    let (rounds, took) = files.scene.explained(downloaded)?;
    files.scene.explained(moved)?;
    eprintln!(
        "{times} moves in {took:?}, {rounds} downloads of 256 MiB: {:.0} MB/s; {}",
        (rounds as usize * contents.bytes) as f64 / 1e6 / took.as_secs_f64(),
        files.ended()?
    );
    files.scene.nothing_lost(FILES)?;
    Ok(())
}

#[test]
fn a_download_moves_at_any_byte() -> Result<()> {
    downloads_move("movedown", Protocol::Http1, 1)
}

/// Each pod has a host-shim of its own, which knows nothing of the other one.
#[test]
fn a_download_moves_between_nodes() -> Result<()> {
    downloads_move("movenode", Protocol::Http1, 2)
}

/// Nobody but the applications knows what it is.
#[test]
fn it_moves_without_a_protocol_too() -> Result<()> {
    downloads_move("moveraw", Protocol::None, 1)
}

/// Reads so much, and the rest once it may.
struct Held<R> {
    from: R,
    first: usize,
    rest: Receiver<()>,
}

impl<R: Read> Read for Held<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.first == 0 {
            // Nobody says so if the moves failed.
            let _ = self.rest.recv();
            self.first = usize::MAX;
        }
        let most = into.len().min(self.first);
        let got = self.from.read(&mut into[..most])?;
        self.first -= got;
        Ok(got)
    }
}

/// Its client has said all and closed its direction, and waits for the rest.
#[test]
fn the_last_download_of_a_connection_moves_too() -> Result<()> {
    let files = Files::start("movelast", Protocol::Http1, 1)?;
    let contents = Contents { seed: 3, bytes: 256 * MIB };
    contents.make(&files.directory.join("file"))?;
    let (go, rest) = mpsc::channel();
    let times = moves();
    let mut to = files.connect()?;
    to.write_all(b"GET /file HTTP/1.1\r\nhost: files\r\n\r\n")?;
    to.shutdown(Shutdown::Write)?;
    let (moved, downloaded) = thread::scope(|scope| {
        let load = scope.spawn(move || -> Result<()> {
            let mut from = BufReader::with_capacity(256 << 10, to);
            let (status, length) = head(&mut from)?;
            ensure!((status, length) == (200, contents.bytes));
            // Buffers hold less than what is left.
            let first = contents.bytes / 2;
            let mut from = Held { from, first, rest };
            contents.compare(&mut from)?;
            ensure!(from.read(&mut [0])? == 0, "the server goes on");
            Ok(())
        });
        files.download_begun()?;
        let moved = files.keep_moving(times);
        drop(go);
        anyhow::Ok((moved, load.join().expect("no panic")))
    })?;
    files.scene.explained(downloaded)?;
    files.scene.explained(moved)?;
    files.scene.nothing_lost(FILES)?;
    Ok(())
}

#[test]
fn an_upload_moves_at_any_byte() -> Result<()> {
    let files = Files::start("moveup", Protocol::Http1, 1)?;
    let contents = Contents { seed: 2, bytes: 8 << 30 };
    let enough = AtomicBool::new(false);
    let times = moves();
    let (moved, sent) = thread::scope(|scope| {
        let mut stream = files.connect()?;
        let enough = &enough;
        let load = scope.spawn(move || -> Result<(usize, Duration)> {
            let begun = Instant::now();
            write!(
                stream,
                "PUT /up HTTP/1.1\r\nhost: files\r\ncontent-length: {}\r\n\r\n",
                contents.bytes
            )?;
            let sent = contents.write(&mut stream, || !enough.load(Ordering::Relaxed))?;
            Ok((sent, begun.elapsed()))
        });
        until("the upload has begun", || {
            ensure!(files.directory.join("up").exists(), "no file");
            Ok(())
        })?;
        let moved = files.keep_moving(times);
        enough.store(true, Ordering::Relaxed);
        let sent = load.join().expect("no panic");
        anyhow::Ok((moved, sent))
    })?;
    let (sent, took) = files.scene.explained(sent)?;
    files.scene.explained(moved)?;
    let all = until("all is written", || {
        let there = std::fs::metadata(files.directory.join("up"))?.len() as usize;
        ensure!(there >= sent, "{there} of {sent} bytes");
        Ok(())
    });
    files.scene.explained(all)?;
    let mut file = std::fs::File::open(files.directory.join("up"))?;
    Contents { bytes: sent, ..contents }.compare(&mut file)?;
    eprintln!("{times} moves in {took:?}: {:.0} MB/s", sent as f64 / 1e6 / took.as_secs_f64());
    Ok(())
}
