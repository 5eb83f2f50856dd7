//! What one seed's world is like.
//!
//! Owns every draw from the seed. Swarm testing: each seed makes some faults wild and leaves others
//! out altogether, so that all combinations come up. It never runs anything.

use crate::{
    address::{self, FRONTEND_PORT, endpoint},
    client::ClientSpec,
    clock::{MS, SECOND, Time},
    fault::{Fault, Happening},
    link::LinkSpec,
    pod::process::ProcessSpec,
    scenario::{PODS_MAX, START, Scenario, Steady, backend, usual_limits},
    smol::SmolSpec,
    steady,
    tcp::Config,
};
use baton_api::{
    Affinity, Algorithm, BackendFailure, ClientAddress, ClientIp, Drain, Health, Legs, Limits,
    Micros, Migration, MigrationMode, MoveMethod, OnDeadline, Policy, Protocol, Timeouts,
};
use std::net::SocketAddr;

struct Draw {
    rng: fastrand::Rng,
    wild: [bool; Fault::ALL.len()],
}

impl Draw {
    fn has(&self, fault: Fault) -> bool {
        self.wild[fault as usize]
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.rng.usize(..of.len())]
    }

    fn percent(&mut self, share: u32) -> bool {
        self.rng.u32(..100) < share
    }

    fn up_to(&mut self, most: Time) -> Time {
        self.rng.u64(..=most)
    }
}

impl Scenario {
    /// The world of a seed.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        if let Some(kind) = Steady::of(seed) {
            return steady::scenario(seed, kind);
        }
        let mut rng = fastrand::Rng::with_seed(seed ^ 0xba70_ba70);
        let share = [2, 10, 20, 35, 60][rng.usize(..5)];
        let mut wild = [false; Fault::ALL.len()];
        for fault in &mut wild {
            *fault = rng.u32(..100) < share;
        }
        let mut d = Draw { rng, wild };
        let v6 = d.percent(33);
        let pods = d.rng.usize(2..=PODS_MAX);
        let clients = d.one(&[1, 1, 2, 3, 4, 6, 8, 12]);
        let mut policy = policy(&mut d, v6, pods);
        let pods_v6 = v6 ^ crosses(seed);
        if pods_v6 != v6 {
            policy.backends = (0..pods).filter_map(|i| backend(pods_v6, i)).collect();
        }
        let expects_header = expects_header(seed);
        if expects_header {
            introduces(&mut policy);
        }
        let frontend = SocketAddr::new(policy.frontends[0].address(), FRONTEND_PORT);
        let calm_at = START + d.one(&[300 * MS, 800 * MS, 1_500 * MS, 3 * SECOND]);
        let mut client_specs: Vec<_> =
            (0..clients).map(|_| client(&mut d, &policy, clients)).collect();
        let window = (START + 20 * MS, calm_at);
        let copies = late_copies(seed, policy.migration.legs == Legs::Shared);
        let ports = if d.has(Fault::SmallTables) { 64 } else { 128 };
        Self {
            v6,
            pods_v6,
            wild: d.wild,
            frontend,
            limits: limits(&mut d),
            ports,
            smol: smol(seed, &mut client_specs),
            stale: stale(seed, pods, ports),
            exit_marks: exit_marks(seed, pods),
            adopts: adopts(seed, pods),
            cooperates: cooperates(seed, pods),
            nodes: nodes(seed, pods),
            between_nodes: between_nodes(seed, pods),
            pods: (0..pods).map(|_| server(&mut d, expects_header)).collect(),
            clients: client_specs,
            client_links: (0..clients).map(|_| copies(link_pair(&mut d, false, window))).collect(),
            pod_links: (0..pods).map(|_| copies(link_pair(&mut d, true, window))).collect(),
            plan: plan(&mut d, pods, window),
            calm_at,
            steady: None,
            poll_lag: if d.has(Fault::LatePolls) { d.one(&[300, 2 * MS, 20 * MS]) } else { 0 },
            policy,
        }
    }
}

/// Which clients have smoltcp instead of the model. A draw of its own.
fn smol(seed: u64, clients: &mut [(ClientSpec, Config)]) -> Vec<Option<SmolSpec>> {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0x5301_7c90);
    let share = [0, 0, 0, 50, 100][rng.usize(..5)];
    let draw = |(spec, _): &mut (ClientSpec, Config)| {
        let keep_alive = [7 * MS, 90 * MS, 900 * MS][rng.usize(..3)];
        let drawn = SmolSpec { seed: rng.u64(..), keep_alive, nagle: rng.bool() };
        if rng.u32(..100) >= share {
            return None;
        }
        // Its initial sequence numbers are its own, and may be near those of a port's former
        // connection.
        spec.reuse_port = false;
        Some(drawn)
    };
    clients.iter_mut().map(draw).collect()
}

/// Whether clients and pods are of two IP families. A draw of its own.
fn crosses(seed: u64) -> bool {
    fastrand::Rng::with_seed(seed ^ 0xc705_5e40).u32(..100) < 15
}

/// What a dataplane left behind: a restarted one meets many of its predecessor's sockets. A draw of
/// its own.
fn stale(seed: u64, pods: usize, ports: u16) -> Vec<(usize, u16, u32)> {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0x57a1_e000);
    let share = [0, 0, 0, 0, 4, 30][rng.usize(..6)];
    let all = (0..pods).flat_map(|pod| (0..ports).map(move |n| (pod, address::LEG_PORTS_FROM + n)));
    let mut stale = Vec::new();
    for (pod, port) in all {
        if rng.u32(..100) < share {
            stale.push((pod, port, rng.u32(..)));
        }
    }
    stale
}

/// All pods, none, or some: adopters of different age.
fn exit_marks(seed: u64, pods: usize) -> Vec<bool> {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0xe817_3a4c);
    let share = [0, 50, 100][rng.usize(..3)];
    (0..pods).map(|_| rng.u32(..100) < share).collect()
}

/// All pods, none, or some have an adopter. A draw of its own.
fn adopts(seed: u64, pods: usize) -> Vec<bool> {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0xad09_7e40);
    let share = [0, 50, 100, 100, 100][rng.usize(..5)];
    (0..pods).map(|_| rng.u32(..100) < share).collect()
}

/// All pods' applications, none, or some. A draw of its own.
fn cooperates(seed: u64, pods: usize) -> Vec<bool> {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0x7a5f_e400);
    let share = [0, 0, 70, 100][rng.usize(..4)];
    (0..pods).map(|_| rng.u32(..100) < share).collect()
}

/// All pods on one node, or each on one of two. A draw of its own.
fn nodes(seed: u64, pods: usize) -> Vec<usize> {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0x0de5_7a5f);
    let count = [1, 2][rng.usize(..2)];
    (0..pods).map(|_| rng.usize(..count)).collect()
}

/// All pods' host-shims, none, or some. A draw of its own.
fn between_nodes(seed: u64, pods: usize) -> Vec<bool> {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0xbe7e_e400);
    let share = [0, 70, 100][rng.usize(..3)];
    (0..pods).map(|_| rng.u32(..100) < share).collect()
}

fn policy(d: &mut Draw, v6: bool, pods: usize) -> Policy {
    let address = if d.percent(25) { address::virtual_ip(v6) } else { address::ours(v6) };
    let protocol = match d.rng.u32(..100) {
        0..60 => Protocol::Http1,
        60..82 => Protocol::Resp,
        82..95 => Protocol::RequestResponse,
        _ => Protocol::None,
    };
    let algorithm =
        d.one(&[Algorithm::LeastOutstanding, Algorithm::WeightedRoundRobin, Algorithm::Maglev]);
    let frontend = endpoint(SocketAddr::new(address, FRONTEND_PORT));
    let backends = (0..pods).filter_map(|i| backend(v6, i)).collect();
    let mut policy = Policy {
        algorithm,
        protocol,
        timeouts: Timeouts {
            idle: Micros::from_secs(30),
            handshake: Micros::from_secs(5),
            half_closed: Micros::from_secs(20),
        },
        ..Policy::new("web", frontend.into_iter().collect(), backends)
    };
    vary(&mut policy, &mut d.rng);
    if d.percent(10) {
        policy.timeouts.idle = Micros::from_millis(400);
    }
    policy
}

/// Draws what of a policy may change while it is in force.
pub fn vary(policy: &mut Policy, rng: &mut fastrand::Rng) {
    policy.migration = Migration {
        mode: match rng.u32(..100) {
            0..70 => MigrationMode::Always,
            70..90 => MigrationMode::WhenBetter,
            _ => MigrationMode::Never,
        },
        ratio_percent: 100 + rng.u32(..150),
        gain: Micros(rng.u64(..800)),
        cooldown: Micros([0, 0, 5_000][rng.usize(..3)]),
        per_second: if rng.u32(..10) == 0 { rng.u32(1..50) } else { 0 },
        ..Migration::default()
    };
    policy.on_backend_failure = match rng.u32(..100) {
        0..55 => BackendFailure::ReplayIdempotent,
        55..75 => BackendFailure::Replay,
        75..90 => BackendFailure::AdoptIdleOnly,
        _ => BackendFailure::Reset,
    };
    policy.response_timeout = match rng.u32(..10) {
        0 => Some(Micros::from_millis(rng.u64(1..20))),
        1 | 2 => Some(Micros::from_millis(rng.u64(20..400))),
        _ => None,
    };
    policy.drain = Drain {
        quiet: Micros::from_millis(rng.u64(..60)),
        deadline: Micros::from_millis(rng.u64(..1_500)),
        on_deadline: if rng.bool() { OnDeadline::Wait } else { OnDeadline::Close },
    };
    policy.health = Health {
        failure_threshold: rng.u32(..6),
        base_ejection_time: Micros::from_millis(rng.u64(100..2_000)),
        max_ejected_percent: [34, 50, 100][rng.usize(..3)],
        panic_percent: [0, 25, 60][rng.usize(..3)],
        ..Health::default()
    };
    policy.slow_start = match policy.algorithm {
        Algorithm::Maglev => Micros(0),
        _ => Micros::from_millis([0, 0, 500][rng.usize(..3)]),
    };
    vary_later(policy, rng);
}

/// What policies learned to say later. A draw of its own, so that all else is as it was.
fn vary_later(policy: &mut Policy, rng: &fastrand::Rng) {
    let mut rng = fastrand::Rng::with_seed(rng.clone().u64(..) ^ 0xaff1_2177);
    let migration = &mut policy.migration;
    if migration.mode == MigrationMode::Never && rng.bool() {
        migration.mode = MigrationMode::DrainOnly;
    }
    let mut seldom = |limit: u32| match rng.u32(..8) {
        0 => rng.u32(1..limit),
        _ => 0,
    };
    (migration.per_flow, migration.per_backend_per_second) = (seldom(5), seldom(30));
    let together = rng.u32(..8) == 0;
    if together && migration.mode == MigrationMode::Always {
        migration.mode = MigrationMode::WhenBetter;
    }
    policy.affinity = together.then(|| Affinity {
        client_ip: ClientIp { timeout: Micros::from_millis(rng.u64(1_000..3_000)) },
    });
    if policy.algorithm != Algorithm::Maglev && rng.u32(..4) == 0 {
        policy.algorithm = Algorithm::Random;
    }
    policy.migration.method = match rng.u32(..4) {
        0 => MoveMethod::Adoption,
        1 => MoveMethod::Translation,
        _ => MoveMethod::Auto,
    };
    let introduced = policy.client_address == ClientAddress::ProxyV2;
    policy.client_address = ClientAddress::Hidden;
    if rng.u32(..3) == 0 {
        policy.migration.legs = Legs::Shared;
    } else if rng.u32(..3) == 0 {
        policy.client_address = ClientAddress::Restore;
    }
    if introduced {
        // Its servers expect it for as long as they run.
        introduces(policy);
    }
}

fn introduces(policy: &mut Policy) {
    policy.client_address = ClientAddress::ProxyV2;
    policy.migration.legs = Legs::Private;
}

/// Whether the servers expect a header of the PROXY protocol. A draw of its own.
fn expects_header(seed: u64) -> bool {
    fastrand::Rng::with_seed(seed ^ 0x9207_0002).u32(..6) == 0
}

fn limits(d: &mut Draw) -> Limits {
    if d.has(Fault::SmallTables) {
        return Limits {
            flows: 16,
            backends: PODS_MAX as u16 + 1,
            closing_legs: 16,
            kept_segments: d.rng.u32(1..12),
            guarded_flows: d.rng.u32(1..10),
            resp_sessions: 2,
            affinities: d.rng.u32(1..3),
            tracked_pairs: 64,
        };
    }
    usual_limits()
}

fn client(d: &mut Draw, policy: &Policy, clients: usize) -> (ClientSpec, Config) {
    let odd = d.has(Fault::OddClients);
    let guarded = matches!(policy.protocol, Protocol::Http1 | Protocol::Resp);
    let conns = d.rng.u32(1..=3);
    // Some tens of requests in all.
    let requests = (120 / clients as u32 / conns).clamp(3, 40) as u16;
    let spec = ClientSpec {
        start: START + 5 * MS + d.up_to(60 * MS),
        conns,
        requests: (1, requests),
        depth: if guarded && d.percent(30) { d.rng.usize(2..=4) } else { 1 },
        think: d.one(&[0, 500, 5 * MS, 40 * MS]),
        piece: if d.percent(25) { d.one(&[5, 40, 700]) } else { 0 },
        piece_pause: d.one(&[0, 300, 5 * MS]),
        slow_read: (odd && d.percent(40)).then(|| (d.one(&[300, 2_000]), d.one(&[MS, 8 * MS]))),
        half_close: if odd { 30 } else { 0 },
        abort: if odd { 25 } else { 0 },
        abort_within: d.one(&[2 * MS, 30 * MS, 300 * MS]),
        posts: d.one(&[0, 20, 60]),
        selects: if d.percent(40) { 15 } else { 0 },
        body: d.one(&[200, 3_000, 14_000]),
        answer: d.one(&[100, 2_000, 30_000]),
        reuse_port: d.percent(30),
    };
    let stamps = d.percent(80);
    let config = Config {
        mss: match (policy.frontends[0].address().is_ipv6(), d.percent(5)) {
            // Too small for the kernel to adopt.
            (true, true) => 1_000,
            (false, true) => 500,
            (true, false) => d.one(&[1_440, 1_440, 1_220]),
            (false, false) => d.one(&[1_460, 1_460, 1_380, 536]),
        },
        scale: if d.percent(85) { Some(d.rng.u8(0..=8)) } else { None },
        sack: d.percent(85),
        stamps,
        buffer: d.one(&[2_000, 8_000, 65_535, 262_144]),
        delayed_ack_us: d.one(&[0, 0, 40 * MS]),
    };
    (spec, config)
}

fn server(d: &mut Draw, expects_header: bool) -> ProcessSpec {
    let (short, late, closes) =
        (d.has(Fault::AcceptQueue), d.has(Fault::Lateness), d.has(Fault::PodCloses));
    ProcessSpec {
        backlog: if short { d.rng.usize(..3) } else { 511 },
        buffer: d.one(&[4_000, 65_535, 131_072]),
        delayed_ack: d.one(&[0, 40 * MS]),
        accept_delay: if short || late { d.one(&[0, 300, 10 * MS]) } else { 0 },
        read_delay: if late { d.one(&[200, 5 * MS, 60 * MS]) } else { 0 },
        think: d.one(&[0, 200, 2 * MS, 20 * MS]),
        tail: None,
        piece: if late { d.one(&[10, 500, 5_000]) } else { 0 },
        piece_pause: d.one(&[0, 200, 3 * MS]),
        idle: closes.then(|| d.one(&[2 * MS, 20 * MS, 200 * MS])),
        announced_closes: if closes { 8 } else { 0 },
        aborts: if closes && d.percent(40) { d.one(&[3, 3, 60]) } else { 0 },
        expects_header,
    }
}

/// Where frames arrive twice, the second copy may be as late as a segment of another flow's time on
/// the same leg; there are more of them where flows share legs. A draw of its own.
fn late_copies(seed: u64, shared: bool) -> impl Fn([LinkSpec; 2]) -> [LinkSpec; 2] {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0xc0_91e5);
    let late = [0, 0, 3 * MS, 30 * MS][rng.usize(..4)];
    let least = if shared && late > 0 { 300 } else { 0 };
    move |pair| {
        pair.map(|spec| LinkSpec {
            duplicates: spec.duplicates.max(least),
            copy_us: spec.copy_us.max(late),
            ..spec
        })
    }
}

fn link_pair(d: &mut Draw, pod: bool, window: (Time, Time)) -> [LinkSpec; 2] {
    let delay = if pod { d.one(&[10, 30, 150]) } else { d.one(&[30, 300, 2 * MS, 15 * MS]) };
    let bad = d.percent(60);
    std::array::from_fn(|_| {
        let bad = bad && d.percent(75);
        link(d, delay, bad, window)
    })
}

fn link(d: &mut Draw, delay_us: Time, bad: bool, (from, to): (Time, Time)) -> LinkSpec {
    let mut spec = LinkSpec {
        delay_us,
        jitter_us: if d.percent(50) { delay_us / 2 } else { 0 },
        reorder_us: delay_us * 3 + 100,
        copy_us: delay_us * 3 + 100,
        ..LinkSpec::default()
    };
    if !bad {
        return spec;
    }
    let share = |d: &mut Draw, fault, of: &[u32]| if d.has(fault) { d.one(of) } else { 0 };
    spec.loss = share(d, Fault::Loss, &[50, 200, 1_000]);
    spec.duplicates = share(d, Fault::Duplicates, &[100, 500]);
    spec.reordered = share(d, Fault::Reordering, &[100, 500, 1_500]);
    spec.corrupted = share(d, Fault::Corruption, &[50, 300]);
    if d.has(Fault::Partition) {
        for _ in 0..d.rng.u32(..3) {
            let start = d.rng.u64(from..to);
            let length = d.one(&[5 * MS, 60 * MS, 400 * MS, 1_200 * MS]);
            spec.partitions.push((start, (start + length).min(to)));
        }
    }
    spec
}

fn plan(d: &mut Draw, pods: usize, (from, to): (Time, Time)) -> Vec<(Time, Happening)> {
    let mut plan = Vec::new();
    let times = |d: &mut Draw, fault: Fault, most: u32| {
        if d.has(fault) { d.rng.u32(1..=most) } else { 0 }
    };
    // Something that is so for a while and then is not.
    let mut spell = |d: &mut Draw,
                     fault: Fault,
                     most: u32,
                     of: &[Time],
                     make: &dyn Fn(usize, bool) -> Happening| {
        for _ in 0..times(d, fault, most) {
            let pod = d.rng.usize(..pods);
            let start = d.rng.u64(from..to);
            let length = d.one(of);
            plan.push((start, make(pod, true)));
            plan.push((start + length, make(pod, false)));
        }
    };
    let short = &[5 * MS, 50 * MS, 300 * MS, SECOND];
    spell(d, Fault::Freeze, 3, short, &Happening::Freeze);
    spell(d, Fault::Unlisten, 3, short, &|pod, off| Happening::Listen(pod, !off));
    spell(d, Fault::Adopter, 2, short, &|pod, off| Happening::Adopter(pod, !off));
    spell(d, Fault::Adopter, 1, short, &|pod, off| Happening::Syncookies(pod, !off));
    spell(d, Fault::Backends, 3, short, &|pod, off| Happening::Listed(pod, !off));
    spell(d, Fault::Drains, 3, short, &Happening::Draining);
    spell(d, Fault::Drains, 2, short, &Happening::Command);
    spell(d, Fault::Neighbours, 2, short, &|pod, off| Happening::Neighbour(pod, !off));
    spell(d, Fault::Frames, 3, &[200, 3 * MS, 60 * MS], &|_, off| Happening::Frames(!off));
    for _ in 0..times(d, Fault::Crash, 4) {
        let pod = d.rng.usize(..pods);
        let start = d.rng.u64(from..to);
        let length = d.one(&[2 * MS, 80 * MS, 300 * MS, SECOND]);
        plan.push((start, Happening::Crash(pod)));
        plan.push((start + length, Happening::Restart(pod, d.percent(30))));
    }
    for _ in 0..times(d, Fault::Backends, 3) {
        let (pod, weight) = (d.rng.usize(..pods), d.rng.u16(..4));
        plan.push((d.rng.u64(from..to), Happening::Weight(pod, weight)));
    }
    for _ in 0..times(d, Fault::Policies, 3) {
        plan.push((d.rng.u64(from..to), Happening::Policy(d.rng.u64(..))));
    }
    for _ in 0..times(d, Fault::Checks, 3) {
        let found = d.one(&[Some(false), Some(true), None]);
        let pod = d.rng.usize(..pods);
        plan.push((d.rng.u64(from..to), Happening::Checked(pod, found)));
    }
    for _ in 0..times(d, Fault::Attacks, 40) {
        plan.push((d.rng.u64(from..to), Happening::Attack(d.rng.u64(..))));
    }
    if d.has(Fault::Keys) {
        for epoch in 2..=d.rng.u8(2..=4) {
            let at = d.rng.u64(from..to);
            plan.push((at + d.up_to(20 * MS), Happening::OurKeys(epoch)));
            for pod in 0..pods {
                let late = d.one(&[0, MS, 50 * MS]);
                plan.push((at + d.up_to(late), Happening::PodKeys(pod, epoch)));
            }
        }
    }
    for _ in 0..times(d, Fault::Drains, 12) {
        plan.push((d.rng.u64(from..to), Happening::Migrate(d.rng.u64(..))));
    }
    plan.retain(|(at, _)| *at < to);
    plan.sort_by_key(|(at, _)| *at);
    plan
}
