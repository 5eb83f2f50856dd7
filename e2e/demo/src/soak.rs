//! The soak: whatever can happen to pods happens to them at random, under HTTP and redis load, and
//! nobody may notice.
//!
//! Owns the order of events and the verdict. One event is over, and its pods are back, before the
//! next begins; what happens when is a function of the seed (but for the machine's own timing).

use crate::{
    SoakArguments,
    bench::{duration, grouped},
    scene::{self, Baton},
};
use anyhow::{Context, Result, ensure};
use baton_api::{
    Algorithm, Backend, BackendHealth, Health, Micros, Migration, MigrationMode, Policy, Protocol,
    State,
};
use baton_lab::{
    Counts, DataplaneConfig, HttpEcho, Lab, Load, LoadOptions, LoadReport, Pod, REDIS_PORT,
    RedisCheck, Server, policy,
};
use std::{
    sync::atomic::Ordering,
    thread,
    time::{Duration, Instant},
};

const HTTP_PORT: u16 = 80;
const PODS: usize = 4;
/// 64 and 32 connections every 10 ms: 9,600 requests a second, which leaves the machine room for
/// restarts.
const HTTP_CONNECTIONS: usize = 64;
const REDIS_CONNECTIONS: usize = 32;
const PACE: Duration = Duration::from_millis(10);
/// Between a frozen pod and what clients notice.
const RESPONSE_TIMEOUT: Micros = Micros::from_millis(200);
const LINE: Duration = Duration::from_secs(10);
const PAUSE_MAX_MS: u64 = 500;
const DOWN_MAX_MS: u64 = 400;
const FREEZE_MAX_MS: u64 = 1_500;
const WEIGHT_MAX: u16 = 4;
/// A pod is back, or a drain is over, within this time. Ejections are the longest part.
const BACK: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(10);

/// What can happen. Some are listed more than once: they come that much more often.
const EVENTS: [Event; 12] = [
    Event::Kill,
    Event::Kill,
    Event::Kill,
    Event::KillTwo,
    Event::Terminate,
    Event::Terminate,
    Event::Freeze,
    Event::Freeze,
    Event::Drain,
    Event::Weights,
    Event::Migration,
    Event::Algorithm,
];

#[derive(Clone, Copy, Debug)]
enum Event {
    Kill,
    KillTwo,
    Terminate,
    Freeze,
    Drain,
    Weights,
    Migration,
    Algorithm,
}

/// Everything that runs. Fields end in the order in which they are declared: the lab last.
struct Soak {
    rng: fastrand::Rng,
    web: Load<HttpEcho>,
    redis: Load<RedisCheck>,
    baton: Baton,
    config: DataplaneConfig,
    nginx: Vec<Server>,
    servers: Vec<Server>,
    events: Counts,
    /// What went wrong beside the loads' own errors.
    problems: Vec<String>,
    seen_errors: u64,
}

/// Runs the soak. `true` if nobody noticed.
pub fn soak(arguments: &SoakArguments) -> Result<bool> {
    let seed = arguments.seed.unwrap_or_else(|| fastrand::u64(..));
    eprintln!("Soak of {} min, seed {seed}", arguments.minutes);
    let lab = scene::lab("soak", PODS)?;
    let mut soak = Soak::start(&lab, seed)?;
    let start = Instant::now();
    let end = start + Duration::from_secs(60 * arguments.minutes);
    let mut next_line = LINE;
    while Instant::now() < end {
        soak.step()?;
        if start.elapsed() >= next_line {
            next_line = start.elapsed() + LINE;
            eprintln!("{:6.0} s  {}", start.elapsed().as_secs_f64(), soak.line()?);
        }
    }
    let good = soak.finish()?;
    lab.remove()?;
    Ok(good)
}

impl Soak {
    fn start(lab: &Lab, seed: u64) -> Result<Self> {
        let (nginx, servers) = (scene::nginx(lab)?, lab.in_each_pod(Pod::redis)?);
        let policies = vec![
            policy("web", HTTP_PORT, &scene::named(&nginx)),
            Policy {
                protocol: Protocol::Resp,
                ..policy("redis", REDIS_PORT, &scene::named(&servers))
            },
        ];
        let policies = policies.into_iter().map(|p| Policy {
            response_timeout: Some(RESPONSE_TIMEOUT),
            health: Health {
                // A frozen pod shall be used again soon after it goes on, or a soak would be mostly
                // waiting.
                base_ejection_time: Micros::from_secs(1),
                ..Health::default()
            },
            ..p
        });
        let config = lab.dataplane_config(policies.collect())?;
        let baton = Baton::start(lab, &config)?;
        let options =
            |port, connections| LoadOptions { pace: Some(PACE), ..baton.load(port, connections) };
        let client = lab.client().namespace();
        let addresses: Vec<_> = servers.iter().map(Server::address).collect();
        Ok(Self {
            rng: fastrand::Rng::with_seed(seed),
            web: HttpEcho::start(client, options(HTTP_PORT, HTTP_CONNECTIONS))?,
            redis: RedisCheck::start_reading(
                client,
                &addresses,
                options(REDIS_PORT, REDIS_CONNECTIONS),
            )?,
            baton,
            config,
            nginx,
            servers,
            events: Counts::new(),
            problems: Vec::new(),
            seen_errors: 0,
        })
    }

    /// One event and a pause.
    fn step(&mut self) -> Result<()> {
        ensure!(!self.web.is_finished() && !self.redis.is_finished(), "a load has ended by itself");
        let event = EVENTS[self.rng.usize(..EVENTS.len())];
        let at = self.rng.usize(..PODS);
        *self.events.entry(format!("{event:?}")).or_default() += 1;
        match event {
            Event::Kill => self.end(&[at], true)?,
            Event::KillTwo => self.end(&[at, (at + 1) % PODS], true)?,
            Event::Terminate => self.end(&[at], false)?,
            Event::Freeze => self.freeze(at)?,
            Event::Drain => self.drain(at)?,
            Event::Weights => {
                for i in 0..2 {
                    for j in 0..PODS {
                        self.config.policies[i].backends[j].weight = self.rng.u16(0..=WEIGHT_MAX);
                    }
                    // At least one takes new connections.
                    self.config.policies[i].backends[at].weight = 1;
                }
                self.baton.dataplane.reconfigure(&self.config)?;
            }
            Event::Migration => {
                let mode = self.rng.choice([
                    MigrationMode::DrainOnly,
                    MigrationMode::WhenBetter,
                    MigrationMode::Always,
                ]);
                self.each_policy(|p| {
                    p.migration =
                        Migration { mode: mode.unwrap_or_default(), ..Migration::default() };
                })?;
            }
            Event::Algorithm => {
                let algorithm = self.rng.choice([
                    Algorithm::LeastOutstanding,
                    Algorithm::WeightedRoundRobin,
                    Algorithm::Maglev,
                    Algorithm::Random,
                ]);
                self.each_policy(|p| p.algorithm = algorithm.unwrap_or_default())?;
            }
        }
        thread::sleep(Duration::from_millis(self.rng.u64(0..PAUSE_MAX_MS)));
        self.look_at_errors(event, at)
    }

    fn each_policy(&mut self, change: impl Fn(&mut Policy)) -> Result<()> {
        self.config.policies.iter_mut().for_each(change);
        self.baton.dataplane.reconfigure(&self.config)
    }

    /// One server of each of some pods ends and comes back.
    fn end(&mut self, pods: &[usize], killed: bool) -> Result<()> {
        let web = self.rng.bool();
        for at in pods {
            let process = &mut self.server(web, *at).process;
            if killed {
                process.crash()?;
            } else {
                process.terminate()?;
            }
        }
        thread::sleep(Duration::from_millis(self.rng.u64(0..DOWN_MAX_MS)));
        for at in pods {
            self.server(web, *at).restart()?;
        }
        pods.iter().try_for_each(|at| self.wait_back(*at))
    }

    fn freeze(&mut self, at: usize) -> Result<()> {
        let web = self.rng.bool();
        let length = Duration::from_millis(self.rng.u64(10..FREEZE_MAX_MS));
        self.server(web, at).process.freeze()?;
        thread::sleep(length);
        self.server(web, at).process.thaw()?;
        self.wait_back(at)
    }

    fn drain(&mut self, at: usize) -> Result<()> {
        let set = |soak: &mut Self, draining| {
            for policy in &mut soak.config.policies {
                policy.backends[at].draining = draining;
            }
            soak.baton.dataplane.reconfigure(&soak.config)
        };
        set(self, true)?;
        let empty = |b: &Backend, state: &State| -> Result<()> {
            let found = state.policies.iter().flat_map(|p| &p.backends);
            let mut found = found.filter(|f| f.endpoint == b.endpoint);
            let found = found.next().context("a backend is missing")?;
            ensure!(found.flows == 0, "{} of {}: {:?}", found.flows, b.name, found.drain);
            Ok(())
        };
        self.wait(at, "does not drain", empty)?;
        set(self, false)
    }

    fn server(&mut self, web: bool, at: usize) -> &mut Server {
        let servers = if web { &mut self.nginx } else { &mut self.servers };
        &mut servers[at]
    }

    fn wait_back(&mut self, at: usize) -> Result<()> {
        let back = |b: &Backend, state: &State| -> Result<()> {
            let found = state.policies.iter().flat_map(|p| &p.backends);
            let mut found = found.filter(|f| f.endpoint == b.endpoint);
            let found = found.next().context("a backend is missing")?;
            ensure!(
                found.health == BackendHealth::Up
                    && found.adoptability.is_ready()
                    && found.stranded == 0,
                "{} at {}: {}, {}, {} stranded",
                b.name,
                b.endpoint,
                found.health,
                found.adoptability,
                found.stranded
            );
            Ok(())
        };
        self.wait(at, "is not back", back)
    }

    /// Waits until `condition` holds for both backends of a pod; notes a problem if it does not in
    /// time.
    fn wait(
        &mut self,
        at: usize,
        what: &str,
        condition: impl Fn(&Backend, &State) -> Result<()>,
    ) -> Result<()> {
        let end = Instant::now() + BACK;
        loop {
            let state = self.baton.dataplane.state()?;
            let mut backends = self.config.policies.iter().map(|p| &p.backends[at]);
            match backends.try_for_each(|b| condition(b, &state)) {
                Ok(()) => return Ok(()),
                Err(e) if Instant::now() >= end => {
                    let problem = format!("pod {at} {what} after {BACK:?}: {e:#}");
                    eprintln!("baton-demo: {problem}");
                    self.problems.push(problem);
                    return Ok(());
                }
                Err(_) => thread::sleep(LOOK),
            }
        }
    }

    fn errors(&self) -> u64 {
        let live = [self.web.progress(), self.redis.progress()];
        live.iter().map(|p| p.errors.load(Ordering::Relaxed)).sum()
    }

    /// Says at once which event clients noticed, and what the dataplane makes of it.
    fn look_at_errors(&mut self, event: Event, at: usize) -> Result<()> {
        let errors = self.errors();
        if errors > self.seen_errors {
            let state = self.baton.dataplane.state()?;
            eprintln!(
                "baton-demo: {} errors at {event:?} of pod {at}; policies: {}",
                errors - self.seen_errors,
                serde_json::to_string(&state.policies)?
            );
            self.seen_errors = errors;
        }
        Ok(())
    }

    fn line(&self) -> Result<String> {
        let (rescued, replayed, lost, moved) = totals(&self.baton.dataplane.state()?);
        let events: u64 = self.events.values().sum();
        let done = |p: &baton_lab::Progress| grouped(p.requests.load(Ordering::Relaxed));
        Ok(format!(
            "{} HTTP, {} redis, {} errors; {events} events, {} moved, {} rescued, {} replayed, {lost} lost",
            done(self.web.progress()),
            done(self.redis.progress()),
            self.errors(),
            grouped(moved),
            grouped(rescued),
            grouped(replayed),
        ))
    }

    fn finish(self) -> Result<bool> {
        let line = self.line()?;
        let (_, _, lost, _) = totals(&self.baton.dataplane.state()?);
        let (web, _) = self.web.stop()?;
        let (redis, _) = self.redis.stop()?;
        println!("\n{line}\nevents: {:?}", self.events);
        for (name, report) in [("HTTP", &web), ("redis", &redis)] {
            println!("{}", summary(name, report));
        }
        for problem in &self.problems {
            println!("problem: {problem}");
        }
        self.baton.stop()?;
        Ok(web.errors.is_empty()
            && redis.errors.is_empty()
            && self.problems.is_empty()
            && lost == 0)
    }
}

fn summary(name: &str, report: &LoadReport) -> String {
    format!(
        "{name}: {} right answers, errors {:?}, p50 {}, p99 {}, max {}",
        grouped(report.requests),
        report.errors,
        duration(report.latency.p50_us),
        duration(report.latency.p99_us),
        duration(report.latency.max_us)
    )
}

/// Rescued, replayed, lost and moved, over all policies.
fn totals(state: &State) -> (u64, u64, u64, u64) {
    state.policies.iter().fold((0, 0, 0, 0), |sum, p| {
        (
            sum.0 + p.rescues_total,
            sum.1 + p.replays_total,
            sum.2 + p.lost_total.values().sum::<u64>(),
            sum.3 + p.migrations_total,
        )
    })
}
