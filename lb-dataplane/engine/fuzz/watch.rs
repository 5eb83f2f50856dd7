//! An engine that is watched at each step: what goes in, what comes out, and what it takes for it.
//!
//! Asserts, whatever the input is: no allocation in `frame` and `poll`, frames within their
//! buffers, right checksums on all that leaves, forwarding only between frontends and clients or
//! legs and backends, tables that agree with each other, timers that get on. Knows nothing of what
//! the input shall do.

use crate::{
    allocations::taking_nothing,
    common::{FRAME_BYTES, OUR_MAC, Sent, World, ours, settings},
};
use baton_api::Policy;
use baton_engine::{Counter, Engine, Settings};
use baton_packet::{AdoptionKey, Decoded, decode};
use std::{
    collections::BTreeSet,
    hash::{DefaultHasher, Hash},
    net::IpAddr,
};

/// Keys with their epochs; the first is in force at the start, the last has the first one's epoch
/// on the wire.
pub fn keys() -> [(u8, AdoptionKey); 3] {
    [(3, 7), (4, 8), (19, 9)].map(|(epoch, byte)| (epoch, AdoptionKey::from_bytes([byte; 16])))
}

/// The world of the engine's tests, around an engine that is watched.
pub struct Watched {
    pub w: World,
    frontends: BTreeSet<(IpAddr, u16)>,
    backends: BTreeSet<(IpAddr, u16)>,
    /// What left of late, to be given in again.
    pub left: Vec<Vec<u8>>,
    /// Of all that left, in its order.
    pub digest: DefaultHasher,
}

impl Watched {
    pub fn new(settings: Settings, policy: Policy) -> Self {
        let mut w = World::unprobed(settings, policy);
        (w.strict, w.careful) = (false, false);
        w.log = Some(Vec::new());
        w.more_keys = keys().map(|(_, key)| key).to_vec();
        w.around = |call| taking_nothing(call);
        let mut watched = Self {
            w,
            frontends: BTreeSet::new(),
            backends: BTreeSet::new(),
            left: Vec::new(),
            digest: DefaultHasher::new(),
        };
        watched.snapshot_changed();
        watched.w.poll();
        watched.look();
        watched
    }

    /// Small tables, so that they run full.
    pub fn settings(sizes: u8) -> Settings {
        let mut s = settings();
        s.limits.flows = 16;
        s.limits.closing_legs = 16;
        s.limits.backends = 10;
        s.limits.kept_segments = [1, 3, 6, 32][usize::from(sizes & 3)];
        s.limits.guarded_flows = [1, 3, 16, 16][usize::from(sizes >> 2 & 3)];
        s.limits.resp_sessions = 2;
        s.limits.affinities = 2;
        s.ports = 40_000..=40_063;
        s.seed = u64::from(sizes >> 4);
        s
    }

    pub fn engine(&mut self) -> &mut Engine {
        &mut self.w.engine
    }

    /// Notes who may be spoken to. What was listed may have flows still.
    pub fn snapshot_changed(&mut self) {
        for policy in &self.w.snapshot.policies {
            let ends = |e: &baton_api::Endpoint| match e.address() {
                // Our own one is meant.
                a if a.is_unspecified() => (ours(a.is_ipv6()), e.port()),
                a => (a, e.port()),
            };
            self.frontends.extend(policy.frontends.iter().map(ends));
            let backends = policy.backends.iter().map(|b| ends(&b.endpoint));
            self.backends.extend(backends);
        }
    }

    /// Gives one frame in. What leaves, but for what pods are asked, which they answer.
    pub fn give(&mut self, frame: &[u8]) -> Vec<Sent> {
        let sent = self.w.inject(&frame[..frame.len().min(FRAME_BYTES)]);
        self.look();
        sent
    }

    /// Lets time pass, polling at every deadline.
    pub fn wait_us(&mut self, us: u64) -> Vec<Sent> {
        let sent = self.w.run_us(us);
        self.look();
        sent
    }

    /// Tables, and events that no row foresees.
    pub fn check_books(&self) {
        self.w.engine.check_invariants();
        assert_eq!(self.w.count(Counter::UnexpectedEvents), 0);
    }

    /// Looks at what left, and remembers the last of it.
    fn look(&mut self) {
        const REMEMBERED: usize = 16;
        self.check_books();
        for (frame, forwarded) in self.w.log.replace(Vec::new()).unwrap_or_default() {
            frame[..].hash(&mut self.digest);
            if forwarded {
                self.check_forwarded(&frame);
            }
            self.left.push(frame);
        }
        let more = self.left.len().saturating_sub(REMEMBERED);
        self.left.drain(..more);
    }

    /// A forwarded frame goes from where to where the engine may forward.
    fn check_forwarded(&self, frame: &[u8]) {
        assert_eq!(baton_packet::ether_src(frame), OUR_MAC);
        match decode(frame) {
            Ok(Decoded::Tcp(segment)) => {
                let ends = ((segment.src, segment.src_port), (segment.dst, segment.dst_port));
                let leg = |(ip, port): (IpAddr, u16)| {
                    let own = ip == ours(ip.is_ipv6());
                    let source = own || self.w.engine.steering().sources.contains(&ip);
                    source && (40_000..=40_063).contains(&port)
                };
                let to_backend = leg(ends.0) && self.backends.contains(&ends.1);
                let to_client = self.frontends.contains(&ends.0);
                assert!(to_backend || to_client, "forwarded {segment:?}");
            }
            Ok(Decoded::Icmp(_)) => {}
            other => panic!("forwarded {other:?}"),
        }
    }

    /// Nothing happens any more: in the end everything is forgotten, and without policies nothing
    /// is left at all.
    pub fn ends(&mut self) {
        // A pod that does not close its side of an old leg has 60 s; orphans wait for 10 s, the
        // client's half of a flow for 3 s.
        const LONGEST_S: u32 = 90;
        const TABLES: [&str; 6] = [
            "flows",
            "closing_legs",
            "kept_segments",
            "guarded_flows",
            "resp_sessions",
            "affinities",
        ];
        self.w.out.free = usize::MAX;
        for _ in 0..LONGEST_S {
            if TABLES.iter().all(|table| self.w.table(table).0 == 0) {
                break;
            }
            self.wait_us(1_000_000);
        }
        for table in TABLES {
            assert_eq!(self.w.table(table).0, 0, "{table}");
        }
        self.w.snapshot.policies.clear();
        self.w.snapshot.generation += 1;
        let applied = self.w.engine.apply(self.w.now, &self.w.snapshot);
        assert_eq!(applied, Ok(()), "nothing may always be served");
        self.wait_us(1_000_000);
        assert_eq!(self.w.table("backends").0, 0, "legs are left");
        let steering = self.w.engine.steering();
        assert_eq!((steering.frontends, steering.by_address), (vec![], vec![]));
    }
}
