//! What happens to a world from outside: deaths, freezes, new snapshots, new keys, attacks.
//!
//! Owns how each [`Happening`] is done. When is drawn in `swarm`.

use super::{Event, World, wire::NOWHERE};
use crate::{
    address::{self, key},
    fault::Happening,
    pod::adopter::answer,
    scenario::backend,
    swarm::vary,
    tcp::wire::{Ends, Out as Segment, Seg, build, receive},
    trace::Party,
};
use baton_api::MoveMethod;
use baton_engine::{Counter, Instant, Migrate};
use baton_packet::{Adoption, Flags, MessageKind, Reason, SegmentSpec, SeqNumber, build_adoption};
use std::net::SocketAddr;

/// An epoch whose key nobody has.
const FORGED_EPOCH: u8 = 99;

impl World {
    pub(super) fn happening(&mut self, what: Happening) {
        self.note(|| format!("*** {what:?}"));
        let now = self.now;
        let mut out = Vec::new();
        match what {
            Happening::Crash(i) => {
                if self.pods[i].process.is_alive() {
                    self.restarts.push((i, now, u64::MAX));
                }
                self.pods[i].crash(now, &mut out);
                self.pod_sends(i, out);
            }
            Happening::Restart(i, anew) => self.restart(i, anew),
            Happening::Freeze(i, on) => self.pods[i].process.freeze(on),
            Happening::Slow(i, more) => {
                self.pods[i].process.slow(more);
                self.pods[i].kernel.adopter.stalled_since = Some(now);
            }
            Happening::Listen(i, on) => self.listen(i, on),
            Happening::Adopter(i, on) => {
                self.pods[i].kernel.adopter.attached = on && self.scenario.adopts[i];
            }
            Happening::Syncookies(i, on) => self.pods[i].kernel.adopter.syncookies = on,
            Happening::Listed(i, on) => {
                self.listed[i] = on;
                self.apply();
            }
            Happening::Draining(i, on) => {
                self.draining[i] = on;
                self.apply();
            }
            Happening::Command(i, on) => {
                self.engine.drain(Instant(now), None, &address::pod_name(i), on);
                self.touched = true;
            }
            Happening::Migrate(seed) => self.somebody_moves_a_flow(seed),
            Happening::Weight(i, weight) => {
                self.weights[i] = weight;
                self.apply();
            }
            Happening::Policy(seed) => {
                let mut rng = fastrand::Rng::with_seed(seed);
                vary(&mut self.scenario.policy, &mut rng);
                self.apply();
            }
            Happening::PodKeys(i, epoch) => self.set_pod_keys(i, epoch),
            Happening::OurKeys(epoch) => self.set_our_keys(epoch),
            Happening::Neighbour(i, known) => {
                self.neighbours[i] = known;
                self.unreachable[i] |= !known;
                let at = address::pod(self.scenario.pods_v6, i).ip();
                self.engine.set_neighbour(at, known.then(|| address::pod_mac(i)));
                self.touched = true;
            }
            Happening::Checked(i, healthy) => {
                if let Some(at) = address::endpoint(address::pod(self.scenario.pods_v6, i)) {
                    self.engine.set_health(Instant(now), "web", at, healthy);
                }
                self.touched = true;
            }
            Happening::Frames(free) => self.out.free = free,
            Happening::Attack(seed) => self.attack(seed),
        }
    }

    pub(super) fn restart(&mut self, i: usize, anew: bool) {
        if !self.pods[i].process.is_alive() {
            self.listens_again(i);
        }
        self.pods[i].restart(self.now, anew);
        self.step_pod(i);
    }

    /// Some flow is to go to some pod, or to any other. What is in the way is the engine's to say.
    fn somebody_moves_a_flow(&mut self, seed: u64) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (flows, _) = self.engine.flows(Instant(self.now), 0, usize::MAX);
        let Some(flow) = rng.choice(&flows) else {
            return;
        };
        let wanted = Migrate {
            client: flow.client,
            frontend: None,
            to: rng.bool().then(|| address::pod_name(rng.usize(..self.pods.len()))),
        };
        let said = self.engine.migrate(Instant(self.now), &wanted, &mut self.out);
        self.note(|| format!("{wanted:?}: {said:?}"));
        self.engine_ran(Party::Baton, (0, NOWHERE), None);
    }

    fn listens_again(&mut self, i: usize) {
        let deaths = self.restarts.iter_mut();
        for (_, _, started) in deaths.filter(|(pod, _, started)| *pod == i && *started == u64::MAX)
        {
            *started = self.now;
        }
    }

    pub(super) fn listen(&mut self, i: usize, on: bool) {
        if !self.pods[i].process.is_alive() {
            return;
        }
        let mut out = Vec::new();
        if on == self.pods[i].kernel.is_listening() {
            return;
        }
        if on {
            self.pods[i].kernel.listen();
            self.listens_again(i);
        } else {
            // What was not accepted yet dies with the listener.
            self.restarts.push((i, self.now, u64::MAX));
            self.pods[i].kernel.close_listener(self.now, &mut out);
        }
        self.pod_sends(i, out);
    }

    /// Puts the present state of all backends in force.
    pub(super) fn apply(&mut self) {
        let mut policy = self.scenario.policy.clone();
        let backends = (0..self.pods.len()).filter(|i| self.listed[*i]);
        policy.backends = backends
            .filter_map(|i| {
                let mut backend = backend(self.scenario.pods_v6, i)?;
                backend.draining = self.draining[i];
                backend.weight = self.weights[i];
                backend.node = address::node_name(self.scenario.nodes[i]);
                Some(backend)
            })
            .collect();
        let adopts = |i: &usize| self.listed[*i] && self.scenario.adopts[*i];
        let adopters = (policy.migration.method == MoveMethod::Adoption)
            .then(|| (0..self.pods.len()).filter(adopts).collect());
        self.truth.rule(self.now, &policy, adopters);
        self.snapshot.policies = vec![policy];
        self.snapshot.generation += 1;
        if let Err(error) = self.engine.apply(Instant(self.now), &self.snapshot) {
            self.violated(format!("a snapshot is refused: {error}"));
        }
        while let Some(address) = self.engine.next_unresolved() {
            self.queue.push(self.now + 50, Event::Neighbour(address));
        }
        self.touched = true;
    }

    /// The dataplane signs with this epoch and still verifies the one before.
    pub(super) fn set_our_keys(&mut self, epoch: u8) {
        let before = std::mem::replace(&mut self.epoch, epoch);
        self.retired.extend(self.epochs);
        self.epochs = [epoch, before];
        self.retired.retain(|e| *e != epoch && *e != before);
        let keys = [(epoch, key(epoch)), (before, key(before))];
        let count = if epoch == before { 1 } else { 2 };
        self.engine.set_keys(&keys[..count]);
        self.touched = true;
    }

    /// A pod has this epoch's key and one more.
    pub(super) fn set_pod_keys(&mut self, pod: usize, epoch: u8) {
        let node = self.scenario.nodes[pod];
        let keys = &mut self.pods[pod].kernel.adopter.keys;
        keys.retain(|(e, _)| *e != epoch);
        keys.truncate(1);
        keys.insert(0, (epoch, address::key_on(node, epoch)));
    }

    fn attack(&mut self, seed: u64) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let pod = rng.usize(..self.pods.len());
        let (v6, clients_v6) = (self.scenario.pods_v6, self.scenario.v6);
        let ours = address::ours(v6);
        let at = self.now + 1;
        match rng.u32(..9) {
            0 => {
                // An adoption by somebody without the key.
                let from = SocketAddr::new(ours, address::LEG_PORTS_FROM + rng.u16(..64));
                let epoch = if rng.bool() { self.epoch } else { FORGED_EPOCH };
                let frame =
                    forged(MessageKind::Adopt, from, address::pod(v6, pod), epoch, &mut rng);
                self.queue.push(at, Event::ToPod(pod, frame));
            }
            1 => {
                // A true one once more, perhaps much later.
                if !self.captured.is_empty() {
                    let (pod, frame) = self.captured[rng.usize(..self.captured.len())].clone();
                    self.queue.push(at, Event::ToPod(pod, frame));
                }
            }
            2 => {
                // A refusal by somebody without the key, for an adoption that was sent.
                if let Some((pod, adoption)) = self.captured.last().cloned()
                    && let Some((_, seg)) = receive(&adoption)
                {
                    let kind = MessageKind::Answer(Reason::ALL[rng.usize(..Reason::ALL.len())]);
                    let mut frame = forged(kind, seg.dst, seg.src, self.epoch, &mut rng);
                    renumber(&mut frame, seg.ack, seg.seq);
                    self.queue.push(at, Event::ToEngine(Party::Pod(pod), frame));
                }
            }
            3 => {
                // A client speaks to the adopter.
                let client = rng.usize(..self.clients.len());
                let from = SocketAddr::new(address::client(clients_v6, client), rng.u16(1..1_000));
                let frame = forged(MessageKind::Adopt, from, self.scenario.frontend, 1, &mut rng);
                self.queue.push(at, Event::ToEngine(Party::Client(client), frame));
            }
            7 => {
                // A true answer once more, perhaps much later.
                if let Some((pod, frame)) = self.asked.overheard(&mut rng) {
                    self.queue.push(at, Event::ToEngine(Party::Pod(pod), frame));
                }
            }
            8 => {
                // A client speaks to the adopter over its connection.
                if let Some((client, frame)) = self.spoken.clone()
                    && let Some((_, seg)) = receive(&frame)
                {
                    let frame = message(MessageKind::Adopt, &seg, self.epoch, &mut rng);
                    self.queue.push(at, Event::ToEngine(Party::Client(client), frame));
                }
            }
            // Somebody who has a key, or had one, sees the next adoption.
            5 | 6 => self.ambush = Some(rng.u64(..)),
            _ => {
                // A guessed reset in a pod's name.
                let ends = Ends {
                    mac: address::pod_mac(pod),
                    via: address::OUR_MAC,
                    local: address::pod(v6, pod),
                    remote: SocketAddr::new(ours, address::LEG_PORTS_FROM + rng.u16(..64)),
                };
                let segment = Segment {
                    seq: SeqNumber(rng.u32(..)),
                    ack: None,
                    flags: Flags::RST,
                    window: 0,
                    offer: None,
                    stamps: None,
                    data: &[],
                };
                let frame = build(&ends, &segment);
                self.queue.push(at, Event::ToEngine(Party::Pod(pod), frame));
            }
        }
    }
}

/// What the adopters' answers count as where they are believed.
const BELIEVED: [Counter; 14] = [
    Counter::ProbesReady,
    Counter::ProbesRefused,
    Counter::LivenessProbesAnswered,
    Counter::LivenessProbesRefused,
    Counter::ForgetsAnswered,
    Counter::ForgetsInUse,
    Counter::RefusedNoListener,
    Counter::RefusedQueueFull,
    Counter::RefusedKernel,
    Counter::RefusedTupleInUse,
    Counter::RefusedAlreadyAdopted,
    Counter::RefusedSyncookies,
    Counter::RefusedRenew,
    Counter::RefusedPacketRules,
];

impl World {
    /// An adoption leaves: whoever waits for it answers before its pod can, with a key that was
    /// rotated out, or with none.
    pub(super) fn spring_ambush(&mut self, pod: usize, seg: &Seg<'_>) {
        let Some(seed) = self.ambush.take() else {
            return;
        };
        let mut rng = fastrand::Rng::with_seed(seed);
        let reason = Reason::ALL[rng.usize(..Reason::ALL.len())];
        let (epoch, key) = match self.retired.last() {
            Some(epoch) => (*epoch, key(*epoch)),
            None => (self.epoch, key(FORGED_EPOCH)),
        };
        let macs = (address::pod_mac(pod), address::OUR_MAC);
        let content = Adoption {
            server_ts: rng.u32(..),
            namespace: rng.u64(..),
            ..Adoption::bare(MessageKind::Answer(reason), epoch)
        };
        let frame = answer(seg, macs, &content, &key);
        self.queue.push(self.now + 1, Event::ToEngine(Party::Pod(pod), frame));
    }

    /// Why a frame that reaches the engine is an answer that it must not believe, if it is one.
    pub(super) fn distrusted(&self, from: Party, frame: &[u8]) -> Option<&'static str> {
        let Party::Pod(pod) = from else {
            return None;
        };
        let (segment, seg) = receive(frame)?;
        self.asked.distrust(pod, frame, &segment, &seg, self.epochs)
    }

    /// Answers that were believed.
    pub(super) fn believed(&self) -> u64 {
        BELIEVED.iter().map(|c| self.engine.counter(*c)).sum()
    }

    /// Sockets that a dataplane of former times left behind in the pods: open, of no process'
    /// interest.
    pub(super) fn predecessor(&mut self) {
        for (pod, port, seq) in self.scenario.stale.clone() {
            let peer = SocketAddr::new(address::ours(self.scenario.pods_v6), port);
            self.pods[pod].kernel.leave_behind(self.now, peer, SeqNumber(seq));
        }
    }
}

/// A message between two ends, with numbers of nobody's.
fn forged(
    kind: MessageKind,
    from: SocketAddr,
    to: SocketAddr,
    epoch: u8,
    rng: &mut fastrand::Rng,
) -> Vec<u8> {
    let seg = Seg {
        src: from,
        dst: to,
        seq: SeqNumber(rng.u32(..)),
        ack: SeqNumber(rng.u32(..)),
        flags: Flags::ACK,
        window: 1_000,
        stamps: Some((rng.u32(..), rng.u32(..))),
        options: &[],
        data: &[],
    };
    message(kind, &seg, epoch, rng)
}

/// A message in the place of a segment, signed with a key that is none.
fn message(kind: MessageKind, seg: &Seg<'_>, epoch: u8, rng: &mut fastrand::Rng) -> Vec<u8> {
    let spec = SegmentSpec {
        src_mac: address::ROUTER_MAC,
        dst_mac: address::OUR_MAC,
        src: seg.src.ip(),
        dst: seg.dst.ip(),
        src_port: seg.src.port(),
        dst_port: seg.dst.port(),
        seq: seg.seq,
        ack: seg.ack,
        flags: Flags::ACK,
        window: seg.window,
        timestamps: seg.stamps,
        payload: &[],
    };
    let message = Adoption {
        kind,
        mss: 1_400,
        server_wscale: 7,
        client_wscale: 7,
        wscale_ok: true,
        sack_ok: true,
        timestamps_ok: true,
        ecn_ok: false,
        epoch,
        server_ts: rng.u32(..),
        // A pod's own: the tag alone is wrong.
        namespace: 1,
    };
    let mut buffer = [0; 128];
    let len = build_adoption(&mut buffer, &spec, &message, &key(FORGED_EPOCH)).unwrap_or(0);
    buffer[..len].to_vec()
}

/// Other numbers in a forged message, with a right checksum again.
fn renumber(frame: &mut [u8], seq: SeqNumber, ack: SeqNumber) {
    let Some(l4) = receive(frame).map(|(segment, _)| usize::from(segment.l4)) else {
        return;
    };
    let words = |bytes: &[u8]| -> u32 {
        bytes.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum()
    };
    let old = words(&frame[l4 + 4..l4 + 12]);
    frame[l4 + 4..l4 + 8].copy_from_slice(&seq.0.to_be_bytes());
    frame[l4 + 8..l4 + 12].copy_from_slice(&ack.0.to_be_bytes());
    let new = words(&frame[l4 + 4..l4 + 12]);
    let field = u16::from_be_bytes([frame[l4 + 16], frame[l4 + 17]]);
    // RFC 1624: HC' = ~(~HC + ~m + m'), with four words changed.
    let mut sum = u32::from(!field) + (4 * 0xffff - old) + new;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    frame[l4 + 16..l4 + 18].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}
