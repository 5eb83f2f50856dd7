//! A thousand requests in the kernel of one pod that stands still, all at once: how long after the
//! first of them is answered by another pod the last one is. It prints the times; what must hold is
//! that each is executed once and answered right.

use anyhow::{Context, Result, ensure};
use baton_api::Protocol;
use baton_lab::{Exchange, PostCount, Server, Verdict, policy};
use baton_ns::{Scene, never};
use rustix::event::{Timespec, epoll};
use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

const PORT: u16 = 8_080;
const PODS: usize = 3;
/// Each pod has a third of them.
const CONNECTIONS: u64 = 3_000;
const LIMIT: Duration = Duration::from_secs(20);

/// Connections, and what was received on each.
struct Clients {
    streams: Vec<(TcpStream, Vec<u8>)>,
    poll: rustix::fd::OwnedFd,
    posts: PostCount,
}

impl Clients {
    fn connect(scene: &Scene) -> Result<Self> {
        let address = scene.address(PORT)?;
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
        let posts = PostCount::to(address);
        Ok(Self {
            streams,
            poll,
            posts,
        })
    }

    /// One request on each connection, at once; which connection is answered when and by whom.
    fn round(&mut self, first: u64) -> Result<BTreeMap<u64, (Instant, String)>> {
        let mut bytes = Vec::new();
        for (connection, (stream, _)) in (0..).zip(&mut self.streams) {
            bytes.clear();
            self.posts.request(0, first + connection, &mut bytes);
            stream.write_all(&bytes)?;
        }
        let mut answers = BTreeMap::new();
        let end = Instant::now() + LIMIT;
        let mut events = Vec::with_capacity(64);
        while answers.len() < self.streams.len() {
            ensure!(Instant::now() < end, "{} are answered", answers.len());
            let second = Timespec {
                tv_sec: 1,
                tv_nsec: 0,
            };
            epoll::wait(
                &self.poll,
                rustix::buffer::spare_capacity(&mut events),
                Some(&second),
            )?;
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
        match self.posts.response(0, first + connection, received) {
            Verdict::More => Ok(None),
            Verdict::Right(_) => {
                let text = String::from_utf8_lossy(received);
                let pod = text
                    .split("X-Pod: ")
                    .nth(1)
                    .and_then(|t| t.split('\r').next());
                let pod = pod.context("no X-Pod")?.to_owned();
                received.clear();
                Ok(Some(pod))
            }
            verdict => anyhow::bail!("connection {connection}: {verdict:?}"),
        }
    }
}

#[test]
fn a_thousand_requests_that_nobody_reads() -> Result<()> {
    let mut scene = Scene::with_pods("stalled", PODS)?;
    let mut counters = scene
        .lab
        .in_each_pod(|pod| pod.counter(PORT, Duration::ZERO, Duration::ZERO))?;
    let backends: Vec<_> = counters.iter().map(Server::named).collect();
    let mut counting = policy("counting", PORT, &backends);
    counting.protocol = Protocol::Http1;
    counting.migration = never();
    scene.config.policies.push(counting);
    scene.start()?;
    let mut clients = Clients::connect(&scene)?;
    let before = clients.round(0)?;
    let stands = &mut counters[1];
    let name = stands.pod().name().to_owned();
    stands.process.freeze()?;
    let began = Instant::now();
    let after = scene.explained(clients.round(CONNECTIONS))?;
    stands.process.thaw()?;
    let there = before.iter().filter(|(_, (_, pod))| *pod == name);
    let mut moved: Vec<Instant> = there.map(|(c, _)| after[c].0).collect();
    moved.sort_unstable();
    let [first, .., last] = *moved else {
        anyhow::bail!("{} were at {name}", moved.len());
    };
    eprintln!(
        "{} requests: the first answered {:?} after the pod stood still, the last {:?} after that",
        moved.len(),
        first - began,
        last - first,
    );
    ensure!(
        after.values().all(|(_, pod)| *pod != name),
        "some waited for {name}"
    );
    let tally = clients.posts.tally(&counters)?;
    let right = tally.answered == 2 * CONNECTIONS && tally.twice == 0 && tally.missing == 0;
    ensure!(right, "{tally:?}");
    let released = scene.counter("releases_total{result=\"released\"}")?;
    ensure!(
        released >= moved.len() as u64,
        "{released} of {}",
        moved.len()
    );
    Ok(())
}
