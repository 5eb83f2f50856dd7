//! A thousand requests in the kernel of one pod that stands still, all at once: how long after the
//! first of them is answered by another pod the last one is. It prints the times; what must hold is
//! that each is executed once and answered right.

use anyhow::{Context, Result, ensure};
use baton_lab::{Exchange, HttpEcho, PostCount, Server, Verdict};
use baton_ns::{HTTP_PORT, Scene, never};
use rustix::event::{Timespec, epoll};
use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

const PORT: u16 = 8_080;
const PODS: usize = 3;
/// Each pod has a third of them.
const CONNECTIONS: u64 = 3_000;
const LIMIT: Duration = Duration::from_secs(20);

/// Connections, and what was received on each.
struct Clients<E> {
    streams: Vec<(TcpStream, Vec<u8>)>,
    poll: rustix::fd::OwnedFd,
    exchange: E,
}

impl<E: Exchange> Clients<E> {
    fn connect(scene: &Scene, address: SocketAddr, exchange: E) -> Result<Self> {
        let client = scene.lab.client().namespace();
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut streams = Vec::new();
        for number in 0..CONNECTIONS {
            let stream = client.connect(address, LIMIT)?;
            stream.set_nonblocking(true)?;
            let data = epoll::EventData::new_u64(number);
            epoll::add(&poll, &stream, data, epoll::EventFlags::IN)?;
            streams.push((stream, Vec::new()));
        }
        Ok(Self { streams, poll, exchange })
    }

    /// One request on each of these connections, at once; which one is answered when and by whom.
    fn round(&mut self, first: u64, on: &[u64]) -> Result<BTreeMap<u64, (Instant, String)>> {
        let mut bytes = Vec::new();
        for connection in on {
            bytes.clear();
            self.exchange.request(*connection as usize, first + connection, &mut bytes);
            self.streams[*connection as usize].0.write_all(&bytes)?;
        }
        let mut answers = BTreeMap::new();
        let end = Instant::now() + LIMIT;
        let mut events = Vec::with_capacity(64);
        while answers.len() < on.len() {
            ensure!(Instant::now() < end, "{} are answered", answers.len());
            let second = Timespec { tv_sec: 1, tv_nsec: 0 };
            epoll::wait(&self.poll, rustix::buffer::spare_capacity(&mut events), Some(&second))?;
            let at = Instant::now();
            for event in events.drain(..) {
                let connection = event.data.u64();
                if let Some(pod) = self.receive(connection, first)? {
                    answers.insert(connection, (at, pod));
                }
            }
        }
        Ok(answers)
    }

    /// The pod that answered, once the answer is complete.
    fn receive(&mut self, connection: u64, first: u64) -> Result<Option<String>> {
        let (stream, received) = &mut self.streams[connection as usize];
        let mut room = [0; 4_096];
        let count = stream.read(&mut room)?;
        ensure!(count > 0, "connection {connection} was closed");
        received.extend_from_slice(&room[..count]);
        match self.exchange.response(connection as usize, first + connection, received) {
            Verdict::More => Ok(None),
            Verdict::Right(_) => {
                let text = String::from_utf8_lossy(received);
                let pod = text.split("X-Pod: ").nth(1).and_then(|t| t.split('\r').next());
                let pod = pod.context("no X-Pod")?.to_owned();
                received.clear();
                Ok(Some(pod))
            }
            verdict => anyhow::bail!("connection {connection}: {verdict:?}"),
        }
    }
}

/// One of the servers stands still, and then all of its connections send a request. The exchange,
/// and how many requests were answered by others.
fn stands_still<E: Exchange>(
    scene: &Scene,
    server: &mut Server,
    mut clients: Clients<E>,
) -> Result<(E, u64)> {
    let all: Vec<u64> = (0..CONNECTIONS).collect();
    let before = clients.round(0, &all)?;
    let name = server.pod().name().to_owned();
    let there: Vec<u64> =
        all.into_iter().filter(|connection| before[connection].1 == name).collect();
    server.process.freeze()?;
    let began = Instant::now();
    let after = scene.explained(clients.round(CONNECTIONS, &there))?;
    server.process.thaw()?;
    let mut moved: Vec<Instant> = after.values().map(|(at, _)| *at).collect();
    moved.sort_unstable();
    let [first, .., last] = *moved else {
        anyhow::bail!("{} were at {name}", moved.len());
    };
    eprintln!(
        "{} requests to a pod that stands still: the first is answered {:?} after it was sent, \
         the last {:?} later",
        moved.len(),
        first - began,
        last - first,
    );
    let others = after.values().all(|(_, pod)| *pod != name);
    ensure!(others, "some waited for {name}");
    let released = scene.counter("releases_total{result=\"released\"}")?;
    ensure!(released >= moved.len() as u64, "{released} released");
    Ok((clients.exchange, moved.len() as u64))
}

#[test]
fn a_thousand_requests_that_nobody_reads_are_executed_once() -> Result<()> {
    let mut scene = Scene::with_pods("stalledposts", PODS)?;
    let mut counters = scene.add_counters(PORT, Duration::ZERO)?;
    scene.config.policies[1].migration = never();
    scene.start()?;
    let address = scene.address(PORT)?;
    let clients = Clients::connect(&scene, address, PostCount::to(address))?;
    let (posts, moved) = stands_still(&scene, &mut counters[1], clients)?;
    let tally = posts.tally(&counters)?;
    let sent = CONNECTIONS + moved;
    let right = tally.answered == sent && tally.twice == 0 && tally.missing == 0;
    ensure!(right, "{tally:?}");
    Ok(())
}

/// The same with a server that has no thread for each connection.
#[test]
fn a_thousand_requests_that_nginx_does_not_read_are_answered() -> Result<()> {
    let mut scene = Scene::with_pods("stallednginx", PODS)?;
    scene.config.policies[0].migration = never();
    scene.start()?;
    let address = scene.address(HTTP_PORT)?;
    let echo = HttpEcho::to(address, CONNECTIONS as usize);
    let clients = Clients::connect(&scene, address, echo)?;
    let mut servers = std::mem::take(&mut scene.nginx);
    stands_still(&scene, &mut servers[1], clients)?;
    Ok(())
}
