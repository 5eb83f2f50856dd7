//! An engine with clients and pods around it, and the time that each of its calls takes.
//!
//! Owns the meter: processor time of this thread, which says what the work takes, and the time that
//! passed, with how often the scheduler took the processor away meanwhile, which says what else
//! ran. Frames go through a buffer as they would lie in a ring; pods answer what the engine asks of
//! them, outside the measurement.

use super::common::{
    EPOCH, FRAME_BYTES, OUR_MAC, Out, ROUTER_MAC, Sent, answer, endpoint, key, ours, wire,
};
use baton_api::{Backend, Limits, Policy, Protocol, Snapshot};
use baton_engine::{
    DrainOrder, Engine, Instant, Migrate, MigrateOrder, Planner, Reporting, Route, Routes,
    Settings, SteeredEnds, Verdict, Via,
};
use baton_packet::{Flags, MessageKind, Reason};
use nix::sys::resource::{UsageWho, getrusage};
use rustix::time::{ClockId, clock_gettime};
use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
};
use wire::Wire;

/// What one call took.
#[derive(Clone, Copy, Default)]
pub struct Turn {
    /// Time that passed, in us.
    pub wall_us: f64,
    /// Processor time of this thread, in us.
    pub cpu_us: f64,
    /// How often another one got the processor in its place.
    pub preempted: i64,
}

/// The worst calls.
#[derive(Default)]
pub struct Meter {
    /// Processor times in us by what was called.
    pub worst: BTreeMap<&'static str, f64>,
    /// The one that took the longest by the clock.
    pub longest: Turn,
}

fn ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

fn preempted() -> i64 {
    let usage = getrusage(UsageWho::RUSAGE_THREAD).expect("a thread knows what it used");
    usage.involuntary_context_switches()
}

/// Time in ms that a hypervisor has taken from all processors so far. Threads count it as their own
/// processor time, and no switch shows it. The eighth number of the first line of `/proc/stat`, in
/// hundredths of a second (`USER_HZ`).
pub fn stolen_ms() -> u64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks = stat.split_whitespace().nth(8).and_then(|t| t.parse().ok());
    ticks.map_or(0, |ticks: u64| ticks * 10)
}

impl Meter {
    pub fn time<T>(&mut self, what: &'static str, call: impl FnOnce() -> T) -> T {
        let switches = preempted();
        let wall = ns(ClockId::Monotonic);
        let cpu = ns(ClockId::ThreadCPUTime);
        let result = call();
        let us = |clock, since| (ns(clock) - since) as f64 / 1_000.0;
        let cpu_us = us(ClockId::ThreadCPUTime, cpu);
        let wall_us = us(ClockId::Monotonic, wall);
        let worst = self.worst.entry(what).or_default();
        *worst = worst.max(cpu_us);
        if wall_us > self.longest.wall_us {
            self.longest = Turn { wall_us, cpu_us, preempted: preempted() - switches };
        }
        result
    }
}

/// An open connection. Both sides' next numbers are 1,001 and 5,001 until something was said.
#[derive(Clone, Copy)]
pub struct Conn {
    pub client: SocketAddr,
    pub frontend: SocketAddr,
    pub pod: SocketAddr,
    pub leg: SocketAddr,
    pub seq: u32,
    pub server: u32,
}

pub struct Lab {
    pub engine: Engine,
    planner: Planner,
    pub now: Instant,
    pub meter: Meter,
    pub snapshot: Snapshot,
    out: Out,
    buffer: Box<[u8; FRAME_BYTES]>,
}

/// Where pod number `n` listens: behind the router, as on another node.
pub fn pod(n: usize) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::from_bits(0x0a64_0000 + n as u32).into(), 8_080)
}

pub fn frontend(n: usize) -> SocketAddr {
    SocketAddr::new([10, 9, 0, 1].into(), 1_000 + n as u16)
}

/// Client number `n`, behind the router; 50,000 of each address.
pub fn far(n: usize) -> SocketAddr {
    let host = 0xc612_0000 + (n / 50_000) as u32 + 1;
    SocketAddr::new(Ipv4Addr::from_bits(host).into(), 10_000 + (n % 50_000) as u16)
}

/// Policy number `n` with pods of these numbers.
pub fn policy(n: usize, pods: impl IntoIterator<Item = usize>) -> Policy {
    let mut policy = super::common::policy(0);
    policy.name = format!("shop/policy-{n}/http");
    policy.frontends = vec![endpoint(frontend(n))];
    policy.protocol = Protocol::Http1;
    policy.migration = Default::default();
    policy.backends =
        pods.into_iter().map(|n| Backend::new(format!("shop/pod-{n}"), endpoint(pod(n)))).collect();
    policy
}

impl Lab {
    pub fn new(flows: u32, backends: u16, leg_ports: u16) -> Self {
        let settings = Settings {
            limits: Limits {
                flows,
                backends,
                closing_legs: 65_536,
                kept_segments: 4_096,
                guarded_flows: flows,
                resp_sessions: 1_024,
                affinities: 65_536,
                tracked_pairs: 1 << 20,
            },
            addresses: vec![ours(false)],
            legs_from_all: false,
            ports: 20_000..=19_999 + leg_ports,
            mac: OUR_MAC,
            seed: 1,
            share: baton_engine::Share::default(),
            hash_keys: (3, 4),
            mtu: 1_500,
        };
        let now = Instant(50_000_000);
        let planner = Planner::new(&settings, 1);
        let mut engine = Engine::new(settings, now).expect("settings of the benchmark");
        engine.set_keys(&[(EPOCH, key())]);
        let mut lab = Self {
            engine,
            planner,
            now,
            meter: Meter::default(),
            snapshot: Snapshot { generation: 0, policies: Vec::new() },
            out: Out::new(),
            buffer: Box::new([0; FRAME_BYTES]),
        };
        lab.set_routes(0);
        lab
    }

    /// Puts the lab's snapshot in force, as control thread and worker do it.
    pub fn apply(&mut self) {
        self.snapshot.generation += 1;
        let mut prepared =
            self.planner.prepare(&self.snapshot, None).expect("a good snapshot").remove(0);
        loop {
            let (engine, now) = (&mut self.engine, self.now);
            let piece = || engine.apply_piece(now, &mut prepared);
            if self.meter.time("apply", piece).expect("a good snapshot") {
                break;
            }
            self.now.0 += 50;
            self.poll_if_due();
        }
        self.planner.in_force(&mut prepared);
        let mut ends = Box::<SteeredEnds>::default();
        loop {
            let engine = &self.engine;
            let piece = || engine.steering_piece(&mut ends);
            if self.meter.time("steer", piece) {
                break;
            }
        }
        let router = super::common::router(false);
        self.engine.set_neighbour(router, Some(ROUTER_MAC));
    }

    /// What a scrape or a look at the state asks of the worker.
    pub fn report(&mut self) {
        let mut report = Box::<Reporting>::default();
        loop {
            let (engine, now) = (&self.engine, self.now);
            let piece = || engine.report_piece(now, &mut report);
            if self.meter.time("report", piece) {
                break;
            }
            self.now.0 += 50;
            self.poll_if_due();
        }
        let engine = &self.engine;
        let counters = || engine.counters().count();
        self.meter.time("report", counters);
        drop(report.end());
    }

    /// All flows, page by page.
    pub fn list(&mut self) -> usize {
        let (mut cursor, mut count) = (0, 0);
        loop {
            let (engine, now) = (&self.engine, self.now);
            let page = self.meter.time("flows", || engine.flows(now, cursor, FLOWS_PER_PAGE));
            count += page.0.len();
            match page.1 {
                Some(next) => cursor = next,
                None => return count,
            }
        }
    }

    /// The routes are what they were, with so many more.
    pub fn set_routes(&mut self, more: u32) {
        let router = super::common::router(false);
        let route =
            |prefix: [u8; 4], prefix_len, via| Route { prefix: prefix.into(), prefix_len, via };
        let mut routes =
            vec![route([10, 0, 0, 0], 16, Via::Link), route([0; 4], 0, Via::Router(router))];
        routes.extend((0..more).map(|n| {
            let prefix = Ipv4Addr::from_bits(0xac10_0000 + (n << 6)).octets();
            route(prefix, 24 + (n % 9) as u8, Via::Router(router))
        }));
        let mut routes = Routes::new(&routes);
        let engine = &mut self.engine;
        self.meter.time("routes", || engine.put_routes(&mut routes));
    }

    /// Has a pod drain in all policies, or not any more.
    pub fn drain(&mut self, pod: usize, on: bool) -> usize {
        let mut order = DrainOrder::new(None, format!("shop/pod-{pod}"), on);
        loop {
            let (engine, now) = (&mut self.engine, self.now);
            let piece = || engine.drain_piece(now, &mut order);
            if let Some(backends) = self.meter.time("drain", piece) {
                return backends;
            }
            self.now.0 += 50;
            self.poll_if_due();
        }
    }

    /// Looks for a flow that is not there at all frontends, to have it moved.
    pub fn migrate_nobodys(&mut self) {
        let mut order = MigrateOrder::new(Migrate {
            client: SocketAddr::from(([192, 0, 2, 1], 1)),
            frontend: None,
            to: None,
        });
        loop {
            let (engine, now, out) = (&mut self.engine, self.now, &mut self.out);
            let piece = || engine.migrate_piece(now, &mut order, out);
            if self.meter.time("migrate", piece).is_some() {
                return;
            }
            self.now.0 += 50;
            self.poll_if_due();
        }
    }

    /// From here on the meter counts.
    pub fn start(&mut self) {
        self.meter = Meter::default();
    }

    /// Lets time pass in steps of 1 ms, and does what is due then as often as the worker's loop
    /// would.
    pub fn run_ms(&mut self, ms: u64) {
        for _ in 0..ms {
            self.now.0 += 1_000;
            let mut turns = 0;
            while self.poll_if_due() {
                turns += 1;
                if turns == TURNS_PER_MS {
                    break;
                }
            }
            self.resolve();
        }
    }

    fn resolve(&mut self) {
        let engine = &mut self.engine;
        let asked = self.meter.time("resolve", || {
            let mut asked = 0;
            while let Some(address) = engine.next_unresolved() {
                std::hint::black_box(address);
                asked += 1;
            }
            asked
        });
        if asked > 0 {
            let router = super::common::router(false);
            self.engine.set_neighbour(router, Some(ROUTER_MAC));
        }
    }

    fn poll_if_due(&mut self) -> bool {
        let due = self.engine.next_deadline();
        let due = due.is_some_and(|due| due <= self.now);
        if due {
            self.poll();
        }
        due
    }

    pub fn poll(&mut self) {
        let Self { engine, meter, now, out, .. } = self;
        meter.time("poll", || engine.poll(*now, out));
        self.pods_answer();
    }

    /// Gives the engine a frame; what left of it.
    pub fn give(&mut self, frame: &[u8]) -> Option<Vec<u8>> {
        self.buffer[..frame.len()].copy_from_slice(frame);
        let Self { engine, meter, now, out, buffer, .. } = self;
        let verdict = meter.time("frame", || engine.frame(*now, &mut buffer[..], frame.len(), out));
        match verdict {
            Verdict::Transmit(len) => Some(self.buffer[..len].to_vec()),
            _ => None,
        }
    }

    /// Pods with an adopter: ready, and they take every connection that is given to them.
    fn pods_answer(&mut self) {
        for frame in self.out.take() {
            let segment = wire::tcp(&frame);
            let sent = Sent { to: super::common::Dest::Client, frame, segment, key: key() };
            let Some(message) = sent.message() else {
                continue;
            };
            let reply = match message.kind {
                MessageKind::Probe => answer(&sent, Reason::Ready, 0),
                MessageKind::Forget => answer(&sent, Reason::Forgotten, 0),
                MessageKind::Release | MessageKind::Transfer => answer(&sent, Reason::Kept, 0),
                MessageKind::Adopt => {
                    let s = &sent.segment;
                    let (pod, leg) = ((s.dst, s.dst_port).into(), (s.src, s.src_port).into());
                    let next = s.seq.0.wrapping_add(s.payload_len());
                    wire_of((pod, leg), s.ack.0, next, Flags::ACK, &[]).build()
                }
                MessageKind::Answer(_) => continue,
            };
            let _ = self.give(&reply);
            self.out.take();
        }
    }

    /// Opens a connection.
    pub fn open(&mut self, client: SocketAddr, frontend: SocketAddr) -> Conn {
        let syn = self.syn(client, frontend);
        let left = self.give(&syn).expect("the SYN is forwarded");
        let to_pod = wire::tcp(&left);
        let pod = SocketAddr::new(to_pod.dst, to_pod.dst_port);
        let leg = SocketAddr::new(to_pod.src, to_pod.src_port);
        let both = Flags::SYN | Flags::ACK;
        let mut synack = wire_of((pod, leg), 5_000, 1_001, both, &[]);
        synack.options = vec![2, 4, 5, 0xb4];
        let _ = self.give(&synack.build());
        let conn = Conn { client, frontend, pod, leg, seq: 1_001, server: 5_001 };
        let _ = self.give(&conn.by_client(Flags::ACK, &[]));
        self.out.take();
        conn
    }

    fn syn(&self, client: SocketAddr, frontend: SocketAddr) -> Vec<u8> {
        let mut syn = wire_of((client, frontend), 1_000, 0, Flags::SYN, &[]);
        syn.options = vec![2, 4, 5, 0xb4];
        syn.build()
    }

    /// One request and its response: the connection is idle then.
    pub fn exchange(&mut self, conn: &mut Conn) {
        let get = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        let _ = self.give(&conn.by_client(Flags::PSH | Flags::ACK, get));
        conn.seq += get.len() as u32;
        let ok = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        let _ = self.give(&conn.by_pod(Flags::PSH | Flags::ACK, ok));
        conn.server += ok.len() as u32;
        let _ = self.give(&conn.by_client(Flags::ACK, &[]));
        self.out.take();
    }
}

/// Flows that the control thread asks for at a time.
const FLOWS_PER_PAGE: usize = 512;
/// The loop turns so often within one millisecond if each turn takes 50 us.
const TURNS_PER_MS: usize = 20;

impl Conn {
    pub fn by_client(&self, flags: Flags, data: &[u8]) -> Vec<u8> {
        let ends = (self.client, self.frontend);
        wire_of(ends, self.seq, self.server, flags, data).build()
    }

    pub fn by_pod(&self, flags: Flags, data: &[u8]) -> Vec<u8> {
        wire_of((self.pod, self.leg), self.server, self.seq, flags, data).build()
    }
}

fn wire_of(
    (from, to): (SocketAddr, SocketAddr),
    seq: u32,
    ack: u32,
    flags: Flags,
    data: &[u8],
) -> Wire {
    Wire { data: data.to_vec(), ..Wire::new((ROUTER_MAC, OUR_MAC), (from, to), (seq, ack), flags) }
}
