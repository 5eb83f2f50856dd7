//! Worlds without faults, in which placement is judged: requests of uneven length alone, one pod
//! that becomes slow, or one that only its kernel tells on.
//!
//! Owns their scenarios, and the record of which pod executed whose requests: a flow moves where
//! its connection's next request is executed elsewhere. What is promised of moves is the engine's
//! own (`promises`); how many there were is counted here. It never looks into the engine.

use crate::{
    address::{self, FRONTEND_PORT},
    client::ClientSpec,
    clock::{MS, SECOND, Time},
    fault::{Fault, Happening},
    link::LinkSpec,
    pod::process::ProcessSpec,
    scenario::{PODS_MAX, START, Scenario, Steady, backend, usual_limits},
    tcp::Config,
};
use baton_api::{Algorithm, LoadSignal, Policy, Protocol};
use baton_engine::promises::{HOT_US, LEFT_ALONE_US, RETURN_MIN_US, calm_moves};
use std::{collections::BTreeMap, fmt, net::SocketAddr};

/// Of so many seeds one is a world of noise, one has a slow pod and one a pod under pressure. They
/// are longer than the others.
const EVERY: u64 = 200;
/// Pods of a steady world at least: where one is slow, the others show it.
const PODS_MIN: usize = 3;
/// Flows of each pod at first.
const FLOWS: usize = 3;
/// A world of noise lasts so long: some memories of what is read of backends (half a second).
const NOISE: Time = 4 * SECOND;
/// Where a pod is under pressure clients come so late: two of the probes that are sent each second
/// while there are no flows tell by then how much time it stands still.
const PRESSED_UNTOLD: Time = 2_500 * MS;
/// The readings know the pods by then.
const SLOW_FROM: Time = SECOND;
/// Longest pause between two requests of a client, and longest answer of a pod that is not slow.
const PAUSE_MAX: Time = 60 * MS;
const ANSWER_MAX: Time = 10 * MS;
/// How much longer a slow pod takes.
const SLOWER: [Time; 3] = [30 * MS, 60 * MS, 120 * MS];

impl Steady {
    /// What a seed's world is for, if it is a steady one.
    #[must_use]
    pub fn of(seed: u64) -> Option<Self> {
        match seed % EVERY {
            49 => Some(Self::Pressed { pod: (seed / EVERY) as usize % PODS_MIN }),
            99 => Some(Self::Noise),
            199 => Some(Self::Slow {
                pod: (seed / EVERY) as usize % PODS_MIN,
                at: START + SLOW_FROM,
                more: SLOWER[(seed / EVERY) as usize % SLOWER.len()],
            }),
            _ => None,
        }
    }
}

/// Latest time after a pod became slow by `more` that a request is executed there. Somebody has to
/// ask, who may pause before; then no answer comes, or the first late one; and it has to wait for
/// long enough (twice that, as it may be answering).
fn left_max(more: Time) -> Time {
    PAUSE_MAX + more + 2 * HOT_US
}

/// A steady world.
#[must_use]
pub fn scenario(seed: u64, kind: Steady) -> Scenario {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0x57ea_d700);
    let v6 = rng.bool();
    let pods = rng.usize(PODS_MIN..=PODS_MAX);
    let clients = pods * FLOWS;
    let frontend = SocketAddr::new(address::ours(v6), FRONTEND_PORT);
    let (calm_at, plan) = match kind {
        Steady::Noise => (START + NOISE, Vec::new()),
        // Then it is tried again.
        Steady::Slow { pod, at, more } => {
            (at + LEFT_ALONE_US, vec![(at, Happening::Slow(pod, more))])
        }
        Steady::Pressed { pod } => {
            (START + PRESSED_UNTOLD + SECOND, vec![(START, Happening::Slow(pod, SLOWER[2]))])
        }
    };
    let first = match kind {
        Steady::Pressed { .. } => START + PRESSED_UNTOLD,
        Steady::Noise | Steady::Slow { .. } => START + 5 * MS,
    };
    let link = |delay_us| {
        let spec = LinkSpec { delay_us, jitter_us: delay_us / 2, ..LinkSpec::default() };
        [spec.clone(), spec]
    };
    let client = |rng: &mut fastrand::Rng| {
        let spec = ClientSpec {
            start: first + rng.u64(..=10 * MS),
            conns: 1,
            // All go on until the end.
            requests: (1_000, 1_000),
            depth: 1,
            think: PAUSE_MAX,
            piece: 0,
            piece_pause: 0,
            slow_read: None,
            half_close: 0,
            abort: 0,
            abort_within: 0,
            posts: 20,
            selects: 0,
            body: 200,
            answer: 500,
            reuse_port: false,
        };
        let config = Config {
            mss: if v6 { 1_440 } else { 1_460 },
            scale: Some(7),
            sack: true,
            stamps: true,
            buffer: 65_535,
            delayed_ack_us: 0,
        };
        (spec, config)
    };
    let server = ProcessSpec {
        backlog: 511,
        buffer: 65_535,
        delayed_ack: 0,
        accept_delay: 0,
        read_delay: 0,
        think: 2 * MS,
        // A few take so long that the mean of some hundred requests is half above another one's.
        tail: Some((5, ANSWER_MAX - 2 * MS)),
        piece: 0,
        piece_pause: 0,
        idle: None,
        announced_closes: 0,
        aborts: 0,
        expects_header: false,
    };
    Scenario {
        v6,
        pods_v6: v6,
        wild: [false; Fault::ALL.len()],
        frontend,
        policy: policy(v6, frontend, pods, rng.bool(), kind),
        limits: usual_limits(),
        ports: 128,
        pods: vec![server; pods],
        clients: (0..clients).map(|_| client(&mut rng)).collect(),
        client_links: vec![link(100); clients],
        pod_links: vec![link(30); pods],
        plan,
        calm_at,
        poll_lag: 0,
        smol: vec![None; clients],
        stale: Vec::new(),
        exit_marks: vec![true; pods],
        adopts: vec![true; pods],
        cooperates: vec![false; pods],
        nodes: vec![0; pods],
        between_nodes: vec![false; pods],
        steady: Some(kind),
    }
}

/// With the defaults of what decides about moves.
fn policy(v6: bool, frontend: SocketAddr, pods: usize, http: bool, kind: Steady) -> Policy {
    let (algorithm, load) = match kind {
        // As many flows for each.
        Steady::Noise | Steady::Slow { .. } => (Algorithm::WeightedRoundRobin, LoadSignal::Latency),
        Steady::Pressed { .. } => (Algorithm::LeastOutstanding, LoadSignal::LatencyAndPressure),
    };
    let backends = (0..pods).filter_map(|i| backend(v6, i)).collect();
    let frontends = address::endpoint(frontend).into_iter().collect();
    Policy {
        algorithm,
        load,
        protocol: if http { Protocol::Http1 } else { Protocol::Resp },
        ..Policy::new("web", frontends, backends)
    }
}

/// Figures of steady worlds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Worlds of noise, their requests and moves.
    pub noise: [u64; 3],
    /// Worlds with a slow pod, their requests, moves away from it, and other ones.
    pub slow: [u64; 4],
    /// Longest until its last request was executed.
    pub left_us: Time,
    /// Worlds with a pod under pressure, and their requests, of which it got none.
    pub pressed: [u64; 2],
}

impl Seen {
    /// Adds another run's, or other runs', figures.
    pub fn add(&mut self, other: &Seen) {
        let pairs = self.noise.iter_mut().zip(other.noise);
        let pairs = pairs.chain(self.pressed.iter_mut().zip(other.pressed));
        for (sum, more) in pairs.chain(self.slow.iter_mut().zip(other.slow)) {
            *sum += more;
        }
        self.left_us = self.left_us.max(other.left_us);
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [noise, noise_requests, noise_moves] = self.noise;
        let [slow, slow_requests, away, others] = self.slow;
        let [pressed, pressed_requests] = self.pressed;
        write!(
            f,
            "without faults:\n  {noise} worlds of noise: {noise_requests} requests, {noise_moves} moves\n  \
             {slow} with a slow pod: {slow_requests} requests, {away} moves off it, its last request {} ms after, {others} other moves\n  \
             {pressed} with a pod under pressure: {pressed_requests} requests, none there",
            self.left_us / MS
        )
    }
}

/// Watches the moves of a steady world.
pub struct Watch {
    kind: Steady,
    /// Where each connection's last request was executed.
    at: BTreeMap<u32, usize>,
    /// When a connection left a pod.
    left: BTreeMap<(u32, usize), Time>,
    requests: u64,
    /// Moves that are none away from a slow pod.
    moves: u64,
    /// What to tell of it.
    pub seen: Seen,
}

impl Watch {
    /// Of a world of this kind.
    #[must_use]
    pub fn new(kind: Steady) -> Self {
        let mut seen = Seen::default();
        match kind {
            Steady::Noise => seen.noise[0] = 1,
            Steady::Slow { .. } => seen.slow[0] = 1,
            Steady::Pressed { .. } => seen.pressed[0] = 1,
        }
        Self { kind, at: BTreeMap::new(), left: BTreeMap::new(), requests: 0, moves: 0, seen }
    }

    /// A pod executes a request of a connection.
    ///
    /// # Errors
    /// Its flow should not be there.
    pub fn executes(&mut self, now: Time, pod: usize, conn: u32) -> Result<(), String> {
        self.requests += 1;
        let before = self.at.insert(conn, pod);
        let mut away = false;
        match self.kind {
            Steady::Noise => self.seen.noise[1] += 1,
            Steady::Pressed { pod: pressed } => {
                self.seen.pressed[1] += 1;
                if pod == pressed {
                    return Err(format!(
                        "placement: connection {conn} is served by pod {pod}, whose kernel says that it stands still"
                    ));
                }
            }
            Steady::Slow { pod: slow, at, more } => {
                self.seen.slow[1] += 1;
                away = before == Some(slow) && now >= at;
                if pod == slow && now >= at {
                    self.seen.left_us = self.seen.left_us.max(now - at);
                    if now >= at + left_max(more) {
                        return Err(format!(
                            "placement: connection {conn} is served by pod {pod} {} ms after that became slow",
                            (now - at) / MS
                        ));
                    }
                }
            }
        }
        let Some(before) = before.filter(|before| *before != pod) else {
            return Ok(());
        };
        self.left.insert((conn, before), now);
        let back = self.left.get(&(conn, pod)).map(|left| now - left);
        if let Some(after) = back.filter(|after| *after < RETURN_MIN_US) {
            return Err(format!(
                "placement: connection {conn} is back at pod {pod} {} ms after it left",
                after / MS
            ));
        }
        if away {
            self.seen.slow[2] += 1;
            return Ok(());
        }
        self.moves += 1;
        match self.kind {
            Steady::Noise => self.seen.noise[2] += 1,
            Steady::Slow { .. } => self.seen.slow[3] += 1,
            Steady::Pressed { .. } => {}
        }
        // Each has one more that is decided and not executed yet.
        let (requests, moves) = (self.requests + self.at.len() as u64, self.moves);
        let most = calm_moves(requests);
        if moves > most {
            return Err(format!(
                "placement: {moves} moves with {requests} requests although nothing is wrong, at most {most}"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many requests of each of 8 connections, which stay at two pods.
    fn settled(kind: Steady, from: Time, requests: u64) -> Watch {
        let mut watch = Watch::new(kind);
        for n in 0..requests {
            for conn in 0..8 {
                let checked = watch.executes(from + n, conn as usize % 2, conn);
                assert_eq!(checked, Ok(()));
            }
        }
        watch
    }

    #[test]
    fn moves_in_calm_are_bounded_by_the_requests() {
        for requests in [1, 100, 1_000] {
            let mut watch = settled(Steady::Noise, START, requests);
            let moved = |n: u64| watch.executes(START + SECOND, 2 + n as usize, 0);
            let first = (0..).map(moved).position(|checked| checked.is_err());
            let most = calm_moves(8 * requests + 8) as usize;
            assert!(first.is_some_and(|n| n >= 2 && n.abs_diff(most) <= 1), "{first:?}");
        }
    }

    #[test]
    fn nobody_comes_back_at_once() {
        for (after, right) in [(RETURN_MIN_US - 1, false), (RETURN_MIN_US, true)] {
            let mut watch = settled(Steady::Noise, START, 1);
            assert_eq!(watch.executes(START + SECOND, 1, 0), Ok(()));
            let back = watch.executes(START + SECOND + after, 0, 0);
            assert_eq!(back.is_ok(), right, "{back:?}");
        }
    }

    #[test]
    fn a_slow_pod_is_left_in_time_by_all_at_once_and_for_good() {
        let (at, more) = (START + SECOND, 30 * MS);
        let kind = Steady::Slow { pod: 0, at, more };
        let mut watch = settled(kind, START, 1);
        for conn in [0, 2, 4, 6] {
            assert_eq!(watch.executes(at + 40 * MS, 1, conn), Ok(()));
        }
        assert_eq!((watch.seen.slow[2], watch.moves), (4, 0), "for distress");
        let late = at + left_max(more);
        assert!(watch.executes(late, 0, 1).is_err(), "nobody goes there");
        let mut watch = settled(kind, START, 1);
        assert_eq!(watch.executes(late - 1, 0, 0), Ok(()));
        assert!(watch.executes(late, 0, 0).is_err(), "nobody stays");
    }

    #[test]
    fn nobody_goes_to_a_pod_under_pressure() {
        let mut watch = Watch::new(Steady::Pressed { pod: 1 });
        assert_eq!(watch.executes(START, 0, 7), Ok(()));
        assert!(watch.executes(START, 1, 8).is_err());
    }

    #[test]
    fn seeds_have_all_kinds_and_hardly_any() {
        let all: Vec<Steady> = (0..2 * EVERY).filter_map(Steady::of).collect();
        assert_eq!(all.len(), 6);
        assert_eq!(all.iter().filter(|kind| **kind == Steady::Noise).count(), 2);
        let pressed = |kind: &&Steady| matches!(kind, Steady::Pressed { .. });
        assert_eq!(all.iter().filter(pressed).count(), 2);
    }
}
