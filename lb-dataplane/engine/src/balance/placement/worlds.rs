//! Worlds of servers and clients in steps of 10 us, in which the decision is tried: noise only,
//! where next to nothing may move, and distress, where flows have to leave soon. A run is a seed.
//!
//! Owns its servers (queues with one worker each, on cores of their own or shared ones) and
//! clients. The load, the standings and the decision are the real ones.

use super::*;
use crate::backend::load::Load;
use baton_api::MigrationMode;
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

const TICK_US: u64 = 10;
/// A CPU quota's period.
const PERIOD_US: u64 = 100_000;
/// What a move costs the new server.
const MOVE_US: f64 = 40.0;
/// From an answer to the next request of a client that does not think.
const TURN_US: u64 = 20;

#[derive(Clone, Copy)]
enum Times {
    Constant,
    Exponential,
    /// Pareto with exponent 1.5, at most 200 times the mean.
    HeavyTailed,
}

#[derive(Clone)]
struct World {
    pods: usize,
    /// Later ones join at this time.
    at_first: usize,
    join_us: u64,
    /// All pods run on so many cores; none: each has its own.
    cores: Option<usize>,
    service_us: f64,
    times: Times,
    clients: usize,
    /// Mean pause of a client between answer and request; 0: none.
    think_us: f64,
    /// Exponent of the clients' rates, and all their requests per second: an open loop.
    zipf: Option<(f64, f64)>,
    /// Percent of the time that the first pod may run.
    quota: Option<f64>,
    /// The first pod takes so many times longer.
    slow: f64,
    /// The same for all pods within this time.
    all_slow: Option<(u64, u64)>,
    run_us: u64,
    warm_us: u64,
}

impl Default for World {
    fn default() -> Self {
        Self {
            pods: 4,
            at_first: 4,
            join_us: 0,
            cores: None,
            service_us: 50.0,
            times: Times::Exponential,
            clients: 32,
            think_us: 0.0,
            zipf: None,
            quota: None,
            slow: 1.0,
            all_slow: None,
            run_us: 5_000_000,
            warm_us: 1_000_000,
        }
    }
}

#[derive(Debug, Default)]
struct Outcome {
    answers: usize,
    p99_us: u64,
    requests: u64,
    moves: u64,
    most_moves_of_a_flow: u32,
    distressed: u64,
    first_distress_us: Option<u64>,
    /// From joining until the new pods have 0.8 of their share.
    shared_us: Option<u64>,
    flows: Vec<u32>,
}

struct Client {
    owner: usize,
    rate: f64,
    waiting: VecDeque<u64>,
    busy: bool,
    arrived_us: u64,
    sent_us: Option<u64>,
    moved_us: u64,
    moves: u32,
}

struct Run<'a> {
    world: &'a World,
    mode: MigrationMode,
    rng: fastrand::Rng,
    placement: Placement,
    loads: Vec<Load>,
    flows: Vec<u32>,
    queues: Vec<VecDeque<(usize, f64)>>,
    clients: Vec<Client>,
    pods: usize,
    out: Outcome,
}

impl Run<'_> {
    fn seat(&self, at: usize, now_us: u64) -> Seat {
        Seat {
            load: self.loads[at].reading(now_us),
            flows: self.flows[at],
            weight: 256,
            usable: at < self.pods,
            takes_over: at < self.pods,
        }
    }

    fn choose(&mut self, at: usize, now_us: u64) -> Option<Choice> {
        let client = &self.clients[at];
        let (owner, sent_us) = (client.owner, client.sent_us?);
        let asking = Asking {
            now_us,
            owner,
            gap_us: now_us - sent_us,
            rested: now_us >= client.moved_us + 5_000,
            gain_us: 300.0,
            ratio: 1.5,
            committed: Committed::default(),
        };
        let mut placement = std::mem::take(&mut self.placement);
        let mut rng = self.rng.clone();
        let choice = match self.mode {
            MigrationMode::Never => None,
            MigrationMode::WhenBetter => {
                placement.decide(asking, |p| self.seat(p, now_us), |_| 2.0 * MOVE_US, &mut rng)
            }
            mode => {
                let seat = |p| self.seat(p, now_us);
                let in_flight = |p| Some(f64::from(seat(p).load.outstanding));
                rules::choose(mode, owner, self.pods, in_flight, seat, &mut rng)
            }
        };
        (self.placement, self.rng) = (placement, rng);
        choice
    }

    /// The client's next waiting request is sent.
    fn begin(&mut self, at: usize, now_us: u64) {
        let choice = self.choose(at, now_us);
        let counts = now_us >= self.world.warm_us;
        self.out.requests += u64::from(counts);
        let client = &mut self.clients[at];
        client.arrived_us = client.waiting.pop_front().unwrap_or(now_us);
        client.sent_us = Some(now_us);
        client.busy = true;
        let mut work_us = 0.0;
        if let Some(choice) = choice {
            self.flows[client.owner] -= 1;
            self.flows[choice.to] += 1;
            client.owner = choice.to;
            client.moves += 1;
            client.moved_us = now_us;
            work_us = MOVE_US;
            self.out.moves += u64::from(counts);
            if choice.why == Why::Distress {
                self.out.first_distress_us.get_or_insert(now_us);
            }
        }
        let (mean_us, u) = (self.world.service_us, 1.0 - self.rng.f64());
        work_us += match self.world.times {
            Times::Constant => mean_us,
            Times::Exponential => -u.ln() * mean_us,
            Times::HeavyTailed => (mean_us / 3.0 * u.powf(-1.0 / 1.5)).min(200.0 * mean_us),
        };
        self.loads[client.owner].request(now_us);
        self.queues[client.owner].push_back((at, work_us));
    }
}

fn run(world: &World, mode: MigrationMode, seed: u64) -> Outcome {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut ranks: Vec<usize> = (1..=world.clients).collect();
    rng.shuffle(&mut ranks);
    let weight = |rank: usize| world.zipf.map_or(0.0, |(s, _)| (rank as f64).powf(-s));
    let weights: f64 = ranks.iter().map(|rank| weight(*rank)).sum();
    let total = world.zipf.map_or(0.0, |(_, per_second)| per_second);
    let client = |(i, rank): (usize, &usize)| Client {
        owner: i % world.at_first,
        rate: total * weight(*rank) / weights.max(1e-9),
        waiting: VecDeque::new(),
        busy: false,
        arrived_us: 0,
        sent_us: None,
        moved_us: 0,
        moves: 0,
    };
    let clients: Vec<Client> = ranks.iter().enumerate().map(client).collect();
    let mut flows = vec![0; world.pods];
    for client in &clients {
        flows[client.owner] += 1;
    }
    let first_gap = |rng: &mut fastrand::Rng, rate: f64| match rate {
        0.0 => rng.u64(0..1_000.max(world.think_us as u64 + 1)),
        rate => (-(1.0 - rng.f64()).ln() / rate * 1e6) as u64,
    };
    let mut due: BinaryHeap<Reverse<(u64, usize)>> = clients
        .iter()
        .enumerate()
        .map(|(i, c)| Reverse((first_gap(&mut rng, c.rate), i)))
        .collect();
    let mut run = Run {
        world,
        mode,
        placement: Placement::new(world.pods),
        loads: vec![Load::default(); world.pods],
        flows,
        queues: vec![VecDeque::new(); world.pods],
        clients,
        pods: world.at_first,
        out: Outcome::default(),
        rng,
    };
    let mut times_us = Vec::new();
    let (mut on_core, mut ready) = (Vec::<(usize, u64)>::new(), VecDeque::<usize>::new());
    let (mut used_us, mut period) = (0, 0);
    for now_us in (0..world.run_us).step_by(TICK_US as usize) {
        if world.join_us > 0 && now_us == world.join_us {
            run.pods = world.pods;
        }
        while let Some(Reverse((at_us, i))) = due.peek().copied()
            && at_us <= now_us
        {
            due.pop();
            run.clients[i].waiting.push_back(at_us);
            if run.clients[i].rate > 0.0 {
                let gap_us = first_gap(&mut run.rng, run.clients[i].rate).max(1);
                due.push(Reverse((at_us + gap_us, i)));
            }
            if !run.clients[i].busy {
                run.begin(i, now_us);
            }
        }
        let working: Vec<usize> = match world.cores {
            None => (0..run.pods).collect(),
            Some(cores) => {
                on_core.retain(|(p, until_us)| *until_us > now_us && !run.queues[*p].is_empty());
                ready.retain(|p| !run.queues[*p].is_empty());
                for p in 0..run.pods {
                    let runs = on_core.iter().any(|(other, _)| *other == p);
                    if !run.queues[p].is_empty() && !runs && !ready.contains(&p) {
                        ready.push_back(p);
                    }
                }
                while on_core.len() < cores
                    && let Some(p) = ready.pop_front()
                {
                    on_core.push((p, now_us + run.rng.u64(2_000..4_000)));
                }
                on_core.iter().map(|(p, _)| *p).collect()
            }
        };
        if now_us / PERIOD_US != period {
            (period, used_us) = (now_us / PERIOD_US, 0);
        }
        for p in working {
            let mut left_us = TICK_US as f64;
            if p == 0 && !run.queues[p].is_empty() {
                if world.quota.is_some_and(|part| used_us as f64 >= part * PERIOD_US as f64 / 100.0)
                {
                    continue;
                }
                used_us += TICK_US;
                left_us /= world.slow;
            }
            if world.all_slow.is_some_and(|(from, to)| (from..to).contains(&now_us)) {
                left_us /= 10.0;
            }
            while let Some((i, work_us)) = run.queues[p].front_mut() {
                let done_us = left_us.min(*work_us);
                *work_us -= done_us;
                left_us -= done_us;
                if *work_us > 0.0 {
                    break;
                }
                let (i, end_us) = (*i, now_us + TICK_US);
                run.queues[p].pop_front();
                let client = &mut run.clients[i];
                client.busy = false;
                let took_us = end_us - client.sent_us.unwrap_or(end_us);
                run.loads[p].answered(end_us, took_us);
                if client.arrived_us >= world.warm_us {
                    times_us.push(end_us - client.arrived_us);
                }
                if client.rate == 0.0 {
                    let think_us = -(1.0 - run.rng.f64()).ln() * world.think_us;
                    due.push(Reverse((end_us + TURN_US + think_us as u64, i)));
                } else if !client.waiting.is_empty() {
                    run.begin(i, end_us);
                }
            }
        }
        if run.pods > world.at_first && run.out.shared_us.is_none() {
            let share = world.clients as f64 / world.pods as f64;
            let has = |flows: &u32| f64::from(*flows) >= 0.8 * share;
            if run.flows[world.at_first..].iter().all(has) {
                run.out.shared_us = Some(now_us - world.join_us);
            }
        }
    }
    times_us.sort_unstable();
    let Run { mut out, placement, flows, clients, .. } = run;
    out.answers = times_us.len();
    out.p99_us = times_us.get(times_us.len() * 99 / 100).copied().unwrap_or(0);
    out.most_moves_of_a_flow = clients.iter().map(|c| c.moves).max().unwrap_or(0);
    out.distressed = placement.distressed_total;
    out.flows = flows;
    out
}

const SEEDS: std::ops::Range<u64> = 1..4;

/// `WhenBetter` and another rule in the same world.
fn against(world: &World, other: MigrationMode, seed: u64) -> (Outcome, Outcome) {
    (run(world, MigrationMode::WhenBetter, seed), run(world, other, seed))
}

#[test]
fn in_calm_next_to_nothing_moves_whatever_the_noise() {
    let worlds = [1, 8, 32, 128, 512].into_iter().flat_map(|clients| {
        [Some(1), Some(2), None].map(|cores| World {
            cores,
            clients,
            run_us: 3_000_000,
            ..World::default()
        })
    });
    let own = [Times::Constant, Times::Exponential].map(|times| World {
        times,
        service_us: 1_000.0,
        ..World::default()
    });
    let paced = [(50.0, 64, 40_000.0), (1_000.0, 64, 40_000.0), (700.0, 64, 20_000.0)];
    let paced = paced.map(|(service_us, clients, think_us)| World {
        service_us,
        clients,
        think_us,
        ..World::default()
    });
    let heavy =
        World { cores: Some(1), service_us: 100.0, times: Times::HeavyTailed, ..World::default() };
    for (number, world) in worlds.chain(own).chain(paced).chain([heavy]).enumerate() {
        for seed in SEEDS {
            let (better, never) = against(&world, MigrationMode::Never, seed);
            let text = format!("world {number}, seed {seed}: {better:?}; {never:?}");
            assert!(better.moves * 1_000 <= better.requests * 5, "{text}");
            assert!(better.most_moves_of_a_flow <= 4, "{text}");
            // Of heavy tails two runs differ by more than that.
            let heavy = matches!(world.times, Times::HeavyTailed);
            let served = better.answers * 100 >= never.answers * 98;
            assert!(heavy || served, "{text}");
        }
    }
}

#[test]
fn all_slow_together_is_no_reason() {
    for (cores, think_us) in [(None, 5_000.0), (Some(2), 0.0)] {
        let world = World {
            cores,
            think_us,
            service_us: 100.0,
            all_slow: Some((2_000_000, 3_500_000)),
            ..World::default()
        };
        for seed in SEEDS {
            let out = run(&world, MigrationMode::WhenBetter, seed);
            assert!(out.moves * 1_000 <= out.requests, "{out:?}");
            assert_eq!(out.distressed, 0, "{out:?}");
        }
    }
}

#[test]
fn a_pod_without_cpu_is_left_within_a_second_and_the_others_serve_as_if_alone() {
    for quota in [5.0, 25.0] {
        let world = World {
            cores: Some(2),
            quota: Some(quota),
            run_us: 8_000_000,
            warm_us: 2_000_000,
            ..World::default()
        };
        let alone = World { pods: 3, at_first: 3, quota: None, ..world.clone() };
        for seed in SEEDS {
            let (better, never) = against(&world, MigrationMode::Never, seed);
            let alone = run(&alone, MigrationMode::Never, seed);
            let text = format!("{quota}, seed {seed}: {better:?}; {never:?}; {alone:?}");
            assert!(better.answers * 100 >= alone.answers * 95, "{text}");
            assert!(better.p99_us <= 2 * alone.p99_us, "{text}");
            assert!(better.p99_us < never.p99_us, "{text}");
            // The worlds begin with the quota in force.
            let found_us = better.first_distress_us.expect("found");
            assert!(found_us < 1_000_000, "{text}");
        }
    }
}

#[test]
fn a_pod_twice_as_slow_keeps_the_flows_that_it_can_serve_as_fast() {
    let world = World {
        slow: 2.0,
        service_us: 500.0,
        run_us: 12_000_000,
        warm_us: 6_000_000,
        ..World::default()
    };
    for seed in SEEDS {
        let (better, never) = against(&world, MigrationMode::Never, seed);
        let text = format!("seed {seed}: {better:?}; {never:?}");
        assert!(better.p99_us * 10 <= never.p99_us * 9, "{text}");
        assert!(better.answers * 100 >= never.answers * 98, "{text}");
        assert!((3..8).contains(&better.flows[0]), "{text}");
    }
}

#[test]
fn who_joins_gets_its_share_within_seconds_and_nobody_moves_twice() {
    for (cores, think_us) in [(Some(2), 0.0), (None, 40_000.0)] {
        let world = World {
            pods: 6,
            at_first: 2,
            join_us: 1_500_000,
            cores,
            think_us,
            clients: 64,
            run_us: 8_000_000,
            ..World::default()
        };
        for seed in SEEDS {
            let out = run(&world, MigrationMode::WhenBetter, seed);
            assert!(out.shared_us.is_some_and(|us| us < 5_000_000), "{out:?}");
            assert!(out.most_moves_of_a_flow <= 2, "{out:?}");
        }
    }
}

#[test]
fn where_few_flows_send_most_requests_the_tail_is_that_of_prequal_s_rule_with_half_the_moves() {
    let world = World {
        pods: 12,
        at_first: 12,
        clients: 720,
        zipf: Some((1.0, 3_600.0)),
        service_us: 1_000.0,
        run_us: 12_000_000,
        warm_us: 6_000_000,
        ..World::default()
    };
    let (mut better_us, mut prequal_us) = (Vec::new(), Vec::new());
    for seed in SEEDS {
        let (better, prequal) = against(&world, MigrationMode::Prequal, seed);
        assert!(better.moves * 2 <= prequal.moves, "{better:?}; {prequal:?}");
        better_us.push(better.p99_us);
        prequal_us.push(prequal.p99_us);
    }
    better_us.sort_unstable();
    prequal_us.sort_unstable();
    assert!(better_us[1] * 10 <= prequal_us[1] * 11, "{better_us:?}; {prequal_us:?}");
}
