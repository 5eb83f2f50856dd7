//! Snapshots as text, put in force over flows that live. A refused one changes nothing; one that is
//! taken is served.
//!
//! Judges what the engine makes of a snapshot; how its text is read is judged beside the types.

use crate::{
    common::{Conn, Dest, conn::*, ours, policy},
    texts::text_of,
    watch::Watched,
};
use baton_api::{Micros, Snapshot};
use baton_engine::ApplyError;
use baton_packet::Flags;
use std::net::{IpAddr, SocketAddr};

/// What must be the same before and after a refusal: what is served, for whom, from where.
fn served(world: &Watched) -> String {
    let mut state = world.w.engine.state(world.w.now);
    state.counters.clear();
    let flows = world.w.engine.flows(world.w.now, 0, usize::MAX).0;
    format!("{state:?} {flows:?} {:?}", world.w.engine.steering())
}

/// The fields that a refusal may name: those of the snapshot, its generation, and the table that is
/// too small.
fn check_refusal(error: &ApplyError, offered: u64) {
    let words = error.to_string();
    match error {
        ApplyError::Invalid(e) | ApplyError::NoRoom(e) => {
            assert!(e.path.starts_with("policies"), "{words}");
        }
        ApplyError::PortConflict { path, port, .. } => {
            assert!(path.contains(".frontends["), "{words}");
            assert!((40_000..=40_063).contains(port), "{words}");
        }
        ApplyError::TooManyBackends { needed, limit } => {
            assert!(*needed > usize::from(*limit), "{words}");
        }
        ApplyError::Astray => panic!("{words}"),
        ApplyError::Stale { offered: o, current } => {
            assert!(*o == offered && offered < *current, "{words}");
        }
    }
}

/// What is refused whole is taken policy by policy, unless nothing can be said of any of them.
/// Whatever is taken, the books are right, and the same once more changes nothing.
fn each_by_itself(snapshot: &Snapshot) {
    let mut world = Watched::new(Watched::settings(0x0f), policy(2));
    let now = world.w.now;
    let Ok(first) = world.w.engine.apply_each(now, snapshot, &[]) else {
        return;
    };
    assert!(!first.refused.is_empty(), "it was refused as a whole");
    world.w.engine.check_invariants();
    let once = served(&world);
    let again = world.w.engine.apply_each(now, snapshot, &[]);
    assert_eq!(again, Ok(first));
    assert_eq!(served(&world), once);
}

/// A flow is opened and asks twice, as far as the snapshot lets it.
fn lives(world: &mut Watched, c: &mut Conn) {
    let sent = world.give(&world.w.syn_wire(c).build());
    let Some(syn) = sent.iter().find(|s| s.to != Dest::Client) else {
        return;
    };
    take_leg(c, syn);
    world.give(&world.w.synack_wire(c).build());
    (c.seq, c.server) = (c.seq.wrapping_add(1), c.server.wrapping_add(1));
    acks(world, c);
    asks(world, c);
    asks(world, c);
}

fn asks(world: &mut Watched, c: &mut Conn) {
    if c.pod == usize::MAX {
        // No pod has it: the snapshot's backends are none of the world's.
        return;
    }
    let sent = world.give(&world.w.client_wire(c, PSH_ACK, GET).build());
    c.client_sent(PSH_ACK, GET);
    if let Some(request) = sent.iter().rfind(|s| s.data() == GET) {
        if request.to == Dest::Client {
            return;
        }
        take_leg(c, request);
    }
    world.give(&world.w.pod_wire(c, PSH_ACK, OK).build());
    c.server_sent(PSH_ACK, OK);
    acks(world, c);
}

fn acks(world: &mut Watched, c: &Conn) {
    let ack = world.w.client_wire(c, Flags::ACK, &[]);
    world.give(&ack.build());
}

/// Waits long enough for probes, questions, drains and ejections; every poll is watched.
const A_WHILE_US: u64 = 700_000;

pub fn check(input: &[u8]) {
    let text = text_of(input);
    let Ok(snapshot) = serde_json::from_slice::<Snapshot>(&text) else {
        return;
    };
    let mut first = policy(2);
    first.timeouts.idle = Micros::from_secs(4);
    let mut world = Watched::new(Watched::settings(0x0f), first);
    let mut old = Conn::of(1, false);
    lives(&mut world, &mut old);
    let before = served(&world);
    let now = world.w.now;
    match world.w.engine.apply(now, &snapshot) {
        Err(error) => {
            check_refusal(&error, snapshot.generation);
            each_by_itself(&snapshot);
            assert_eq!(served(&world), before, "{error}");
            world.check_books();
            asks(&mut world, &mut old);
        }
        Ok(()) => {
            check_served(&world, &snapshot);
            world.w.snapshot = snapshot.clone();
            world.snapshot_changed();
            // The same once more is no change.
            let once = served(&world);
            assert_eq!(world.w.engine.apply(now, &snapshot), Ok(()));
            assert_eq!(served(&world), once);
            asks(&mut world, &mut old);
            for (n, frontend) in frontends(&snapshot).into_iter().take(4).enumerate() {
                let mut c = Conn::of(10 + n as u16, frontend.is_ipv6());
                c.frontend = frontend;
                lives(&mut world, &mut c);
                world.wait_us(A_WHILE_US);
                asks(&mut world, &mut c);
            }
        }
    }
    world.wait_us(A_WHILE_US);
    // An older one is refused whatever it says, and changes nothing.
    let current = world.w.snapshot.generation;
    if let Some(older) = current.checked_sub(1) {
        let before = served(&world);
        let older = Snapshot { generation: older, policies: Vec::new() };
        let refused = world.w.engine.apply(world.w.now, &older);
        let stale = ApplyError::Stale { offered: older.generation, current };
        assert_eq!(refused, Err(stale));
        assert_eq!(served(&world), before);
    }
}

/// A frontend as clients see it: an unspecified address is our own.
fn seen(frontend: &baton_api::Endpoint) -> SocketAddr {
    let address: IpAddr = match frontend.address() {
        a if a.is_unspecified() => ours(a.is_ipv6()),
        a => a,
    };
    SocketAddr::new(address, frontend.port())
}

/// Those of all policies.
fn frontends(snapshot: &Snapshot) -> Vec<SocketAddr> {
    let all = snapshot.policies.iter().flat_map(|p| &p.frontends);
    all.map(seen).collect()
}

/// All that the snapshot names is there, by its names.
fn check_served(world: &Watched, snapshot: &Snapshot) {
    world.check_books();
    let state = world.w.engine.state(world.w.now);
    assert_eq!(state.generation, snapshot.generation);
    let steering = world.w.engine.steering();
    for policy in &snapshot.policies {
        let steered = match policy.affinity {
            Some(_) => &steering.by_address,
            None => &steering.frontends,
        };
        for frontend in policy.frontends.iter().map(seen) {
            let there = steered.contains(&(frontend.ip(), frontend.port()));
            assert!(there, "{frontend} is not steered");
        }
        let named = state.policies.iter().find(|p| p.name == policy.name);
        let named = named.unwrap_or_else(|| panic!("{} is not served", policy.name));
        assert_eq!(named.backends.len(), policy.backends.len());
        for backend in &policy.backends {
            let same = |b: &&baton_api::BackendState| b.endpoint == backend.endpoint;
            let there = named.backends.iter().find(same).expect("each backend");
            assert_eq!(there.weight, backend.weight);
        }
    }
}
