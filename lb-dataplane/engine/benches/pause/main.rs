//! The longest that packets wait while something changes: the worst single call of the engine that
//! the packet thread makes, case by case, with real engines. Prints a table; `make bench-pause`.
//!
//! Each case runs [`RUNS`] times. First the processor time of the worst call: of the runs' worst
//! ones the smallest says what the work takes, the largest what the machine added once. Then the
//! call that took the longest by the clock in any run, with its processor time and how often the
//! scheduler gave the processor to somebody else meanwhile: what is not processor time is that.
//! Processor time of one run alone may be a hypervisor's, of which the last figure says how much
//! there was in the whole case: the work of all runs is the same.

#[path = "../../tests/common/mod.rs"]
mod common;
mod lab;

use baton_api::{Algorithm, LIMIT_POLICIES, Micros};
use baton_engine::{Board, Instant, Measures, Row};
use baton_packet::Flags;
use lab::{Conn, Lab, Turn, far, frontend, pod, policy, stolen_ms};
use std::{collections::BTreeMap, net::SocketAddr};

const RUNS: usize = 3;
/// What each call may take.
const TARGET_US: f64 = 200.0;

type Case = (&'static str, fn() -> Lab);

fn main() {
    // `cargo test --benches` and `cargo bench` pass flags of their own.
    let filter = std::env::args().skip(1).find(|a| !a.starts_with('-'));
    let cases: &[Case] = &[
        ("0 to 1,000 backends in 10 policies", backends),
        ("one pod of 3,000 (300 policies) leaves", one_of_many),
        ("a pod of 16 Maglev listeners flaps 20 times", maglev),
        ("a frontend added at 200,000 flows", frontend_added),
        ("100 of 200 pods drain, 100,000 flows", drain),
        ("scrapes of 300 policies, 3,000 pods", scrapes),
        ("scrapes while 100 pods drain", scrapes_of_drains),
        ("200,000 flows are listed", listing),
        ("4,000 next hops at 200,000 flows", hops),
        ("10,000 routes change with 3,000 pods", routes),
        ("16,384 frontends, 4,096 pods, others for them", replaced),
        ("a pod drains by name in 1,024 policies", drain_by_name),
        ("a flow at 33,000 frontends shall move", migrate),
        ("1,024 policies of the same 256 pods change", shared),
        ("capped ejections, 256 pods in 300 policies", capped),
        ("50,000 idle timers of one ms, 200,000 flows", idle_timers),
        ("50,000 flows time out in one ms", time_outs),
        ("16 policies lose their affinity, 65,536 clients", affinity),
        ("what 3 other workers measured of 4,096 pods", exchange),
    ];
    println!(
        "{:<48} {:>7} {:>7}  {:>8} {:>7} {:>9} {:>9}  CPU us by call: best of {RUNS} runs",
        "case", "CPU us", "once", "clock us", "its CPU", "preempted", "stolen ms"
    );
    for (name, case) in cases {
        if filter.as_ref().is_some_and(|f| !name.contains(f.as_str())) {
            continue;
        }
        let mut calls: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
        let mut longest = Turn::default();
        let before = stolen_ms();
        for _ in 0..RUNS {
            let meter = case().meter;
            for (call, us) in meter.worst {
                let (least, most) = calls.entry(call).or_insert((f64::MAX, 0.0));
                (*least, *most) = (least.min(us), most.max(us));
            }
            if meter.longest.wall_us > longest.wall_us {
                longest = meter.longest;
            }
        }
        let worst = calls.values().map(|c| c.0).fold(0.0, f64::max);
        let once = calls.values().map(|c| c.1).fold(0.0, f64::max);
        let each: Vec<String> =
            (calls.iter()).map(|(call, (least, _))| format!("{call} {least:.0}")).collect();
        let mark = if worst > TARGET_US { '!' } else { ' ' };
        println!(
            "{name:<48} {worst:>7.0}{mark}{once:>7.0}  {:>8.0} {:>7.0} {:>9} {:>9}  {}",
            longest.wall_us,
            longest.cpu_us,
            longest.preempted,
            stolen_ms() - before,
            each.join(", ")
        );
    }
}

/// So many policies of so many pods each, all of them probed.
fn filled(policies: usize, pods: usize, flows: u32, leg_ports: u16) -> Lab {
    let mut lab = Lab::new(flows, 4_096, leg_ports);
    let numbers = |n: usize| n * pods..(n + 1) * pods;
    lab.snapshot.policies = (0..policies).map(|n| policy(n, numbers(n))).collect();
    lab.apply();
    lab.run_ms(1_500);
    lab
}

/// Flows of one policy, 150 opened in each millisecond.
fn with_flows(lab: &mut Lab, count: usize) -> Vec<Conn> {
    let mut flows = Vec::with_capacity(count);
    for n in 0..count {
        if n % 150 == 0 {
            lab.run_ms(1);
        }
        flows.push(lab.open(far(n), frontend(0)));
    }
    flows
}

/// Another worker, which says the same of each pod.
struct Other(Row);

impl Measures for Other {
    fn slots(&self) -> usize {
        4_096
    }

    fn row(&self, slot: usize) -> Option<Row> {
        let SocketAddr::V4(pod) = pod(slot) else {
            return None;
        };
        let mut row = self.0;
        row[1] = 0xffff << 32 | u64::from(pod.ip().to_bits());
        Some(row)
    }

    fn take(&mut self, _: Instant, _: usize, _: &Row) {}
}

fn exchange() -> Lab {
    let mut lab = filled(16, 256, 65_536, 1_024);
    let mut flow = with_flows(&mut lab, 1)[0];
    lab.exchange(&mut flow);
    let known = (0..lab.engine.slots()).find_map(|slot| lab.engine.row(slot));
    let mut other = Other(known.expect("one pod answered"));
    let mut seats = Board::seats(4, 4_096);
    let mut own = seats.remove(0).expect("a seat");
    for seat in seats.iter_mut().flatten() {
        for _ in 0..4_096 {
            seat.turn(&mut other, lab.now);
        }
    }
    lab.start();
    for _ in 0..2_000 {
        lab.run_ms(1);
        let (engine, now) = (&mut lab.engine, lab.now);
        lab.meter.time("turn", || own.turn(engine, now));
    }
    lab
}

fn backends() -> Lab {
    let mut lab = Lab::new(65_536, 1_024, 10_000);
    lab.snapshot.policies = vec![policy(99, [5_000])];
    lab.apply();
    lab.run_ms(100);
    lab.start();
    let all = (0..10).map(|n| policy(n, n * 100..(n + 1) * 100));
    lab.snapshot.policies.extend(all);
    lab.apply();
    lab.run_ms(2_000);
    lab
}

fn one_of_many() -> Lab {
    let mut lab = filled(300, 10, 65_536, 1_024);
    lab.start();
    for _ in 0..5 {
        let gone = lab.snapshot.policies[150].backends.pop();
        lab.apply();
        lab.run_ms(60);
        lab.snapshot.policies[150].backends.extend(gone);
        lab.apply();
        lab.run_ms(60);
    }
    lab
}

fn maglev() -> Lab {
    let mut lab = filled(50, 10, 65_536, 1_024);
    for n in 0..16 {
        let listener = &mut lab.snapshot.policies[n];
        *listener = policy(n, 0..10);
        listener.algorithm = Algorithm::Maglev;
    }
    lab.apply();
    lab.start();
    for turn in 0..20 {
        for listener in &mut lab.snapshot.policies[..16] {
            listener.backends[3].weight = turn % 2;
        }
        lab.apply();
        lab.run_ms(100);
    }
    lab
}

fn frontend_added() -> Lab {
    let mut lab = filled(1, 32, 262_144, 10_000);
    with_flows(&mut lab, 200_000);
    lab.start();
    for n in 1..=5 {
        lab.snapshot.policies.push(policy(n, 0..32));
        lab.apply();
        lab.run_ms(20);
    }
    lab
}

/// 200 pods with 100,000 idle flows, half of which drain from now on.
fn draining() -> Lab {
    let mut lab = filled(1, 200, 131_072, 4_096);
    let mut flows = with_flows(&mut lab, 100_000);
    for flow in &mut flows {
        lab.exchange(flow);
    }
    lab.run_ms(300);
    lab.start();
    for backend in &mut lab.snapshot.policies[0].backends[..100] {
        backend.draining = true;
    }
    lab
}

fn drain() -> Lab {
    let mut lab = draining();
    lab.apply();
    lab.run_ms(2_000);
    lab
}

fn scrapes() -> Lab {
    let mut lab = filled(300, 10, 65_536, 1_024);
    lab.start();
    for _ in 0..5 {
        lab.report();
        lab.run_ms(20);
    }
    lab
}

fn scrapes_of_drains() -> Lab {
    let mut lab = draining();
    // Nobody takes them, so that they stay and are told of.
    for backend in &mut lab.snapshot.policies[0].backends[100..] {
        backend.weight = 0;
    }
    lab.apply();
    lab.run_ms(200);
    lab.start();
    for _ in 0..3 {
        lab.report();
        lab.run_ms(20);
    }
    lab
}

fn listing() -> Lab {
    let mut lab = filled(1, 32, 262_144, 10_000);
    with_flows(&mut lab, 200_000);
    lab.start();
    assert_eq!(lab.list(), 200_000);
    lab
}

fn hops() -> Lab {
    let mut lab = filled(1, 32, 262_144, 10_000);
    with_flows(&mut lab, 196_000);
    lab.start();
    for n in 0..4_000_u16 {
        let [high, low] = n.to_be_bytes();
        lab.open(SocketAddr::new([10, 0, 128 + high, low].into(), 7_777), frontend(0));
    }
    lab.run_ms(3_000);
    lab
}

fn routes() -> Lab {
    let mut lab = filled(300, 10, 65_536, 1_024);
    lab.start();
    for n in 0..5 {
        lab.set_routes(10_000 + n);
        lab.run_ms(20);
        for at in 0..200 {
            lab.open(far(n as usize * 200 + at), frontend(0));
        }
    }
    lab
}

/// As many frontends, pods and policies as there may be, on a node's network, where all of them are
/// steered.
fn replaced() -> Lab {
    let mut lab = Lab::new(65_536, 4_096, 256);
    lab.engine.share_ports();
    for turn in 0..3 {
        let pods = |n: usize| 4 * n..4 * (n + 1);
        let pods = |n| pods(n + usize::from(turn) * LIMIT_POLICIES);
        let all = (0..LIMIT_POLICIES).map(|n| policy(n, pods(n)));
        lab.snapshot.policies = all.collect();
        for (n, policy) in lab.snapshot.policies.iter_mut().enumerate() {
            let ports = 16 * n..16 * (n + 1);
            let own = |port| SocketAddr::new([10, 9, turn, 1].into(), 1_000 + port as u16);
            policy.frontends = ports.map(|port| common::endpoint(own(port))).collect();
            policy.name = format!("shop/policy-{turn}-{n}/http");
        }
        lab.apply();
        lab.run_ms(100);
    }
    lab
}

/// Those that were replaced are still there.
fn migrate() -> Lab {
    let mut lab = replaced();
    lab.start();
    lab.migrate_nobodys();
    lab
}

/// As many policies as there may be, each of the same pods.
fn sharing() -> Lab {
    let mut lab = Lab::new(65_536, 1_024, 1_024);
    lab.snapshot.policies = (0..LIMIT_POLICIES).map(|n| policy(n, 0..256)).collect();
    lab.apply();
    lab.run_ms(1_500);
    with_flows(&mut lab, 10_000);
    lab.start();
    lab
}

fn shared() -> Lab {
    let mut lab = sharing();
    for policy in &mut lab.snapshot.policies {
        policy.timeouts.idle = Micros::from_secs(100);
    }
    lab.apply();
    lab.run_ms(100);
    for policy in &mut lab.snapshot.policies {
        policy.name.push('2');
        policy.frontends[0] =
            common::endpoint(SocketAddr::new([10, 9, 0, 2].into(), policy.frontends[0].port()));
    }
    lab.apply();
    lab.run_ms(100);
    lab
}

fn drain_by_name() -> Lab {
    let mut lab = sharing();
    for on in [true, false] {
        assert_eq!(lab.drain(255, on), 1);
        lab.run_ms(100);
    }
    lab
}

/// Every pod fails again and again, and none may be ejected.
fn capped() -> Lab {
    let mut lab = Lab::new(65_536, 1_024, 1_024);
    lab.snapshot.policies = (0..300).map(|n| policy(n, 0..256)).collect();
    for policy in &mut lab.snapshot.policies {
        policy.health.failure_threshold = 1;
        policy.health.max_ejected_percent = 0;
    }
    lab.apply();
    lab.run_ms(1_500);
    let flows: Vec<Conn> = (0..8_192)
        .map(|n| {
            let host = [198, 19, (n % 7) as u8, 1].into();
            lab.open(SocketAddr::new(host, 10_000 + (n / 7) as u16), frontend(0))
        })
        .collect();
    let get = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    lab.start();
    for turn in 0..2 {
        for flow in &flows[turn * 4_096..(turn + 1) * 4_096] {
            let _ = lab.give(&flow.by_client(Flags::PSH | Flags::ACK, get));
        }
        lab.run_ms(1_100);
        for flow in &flows[turn * 4_096..(turn + 1) * 4_096] {
            let _ = lab.give(&flow.by_client(Flags::PSH | Flags::ACK, get));
        }
    }
    lab
}

/// 200,000 flows, of which 50,000 have the same deadline, and lie in no order in the table.
fn crowd(idle: Option<Micros>) -> Lab {
    let mut lab = filled(1, 32, 262_144, 10_000);
    if let Some(idle) = idle {
        lab.snapshot.policies[0].timeouts.idle = idle;
        lab.apply();
    }
    let mut flows = with_flows(&mut lab, 200_000);
    fastrand::Rng::with_seed(1).shuffle(&mut flows);
    for flow in &flows[..50_000] {
        let _ = lab.give(&flow.by_client(Flags::RST, &[]));
    }
    for n in 200_000..250_000 {
        lab.open(far(n), frontend(0));
    }
    lab.start();
    lab
}

fn idle_timers() -> Lab {
    let mut lab = crowd(None);
    lab.run_ms(13_000);
    lab
}

fn time_outs() -> Lab {
    let mut lab = crowd(Some(Micros::from_secs(10)));
    lab.run_ms(13_000);
    assert_eq!(lab.list(), 0);
    lab
}

fn affinity() -> Lab {
    let mut lab = Lab::new(131_072, 1_024, 10_000);
    lab.snapshot.policies = (0..16).map(|n| policy(n, n * 10..(n + 1) * 10)).collect();
    for policy in &mut lab.snapshot.policies {
        policy.affinity = Some(baton_api::Affinity { client_ip: Default::default() });
    }
    lab.apply();
    lab.run_ms(1_500);
    for n in 0..65_536_u32 {
        let host = std::net::Ipv4Addr::from_bits(0xc614_0000 + n);
        lab.open(SocketAddr::new(host.into(), 9_999), frontend(n as usize % 16));
    }
    lab.start();
    for policy in &mut lab.snapshot.policies {
        policy.affinity = None;
    }
    lab.apply();
    lab.run_ms(20);
    lab
}
