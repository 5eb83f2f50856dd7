//! Carries a program out on a watched engine: clients, pods, adopters, attackers and admins, each
//! as right or wrong as the program says.
//!
//! Follows the numbers of each flow loosely, so that a program gets deep without knowing them.
//! Asserts nothing by itself.

use crate::{
    common::{Conn, End, Listener, ROUTER_MAC, Sent, answer, conn::*, endpoint, ours, pod, wire},
    outsiders::{self, wrong},
    program::{AUTH, FLOWS, PODS, Program, talk},
    watch::{Watched, keys},
};
use baton_api::{Protocol, Snapshot};
use baton_engine::{Route, Via};
use baton_packet::{Flags, Reason};
use std::net::{IpAddr, SocketAddr};
use wire::Wire;

/// Changes to the next frame that is given in.
#[derive(Default)]
struct Mutation {
    bytes: Vec<(u8, u8)>,
    mended: bool,
    /// Only the pseudo header is summed, as a veth peer leaves it.
    partial: bool,
}

pub struct Driver {
    pub world: Watched,
    pub conns: Vec<Conn>,
    /// Earlier pods and legs of each flow.
    older: Vec<Vec<(usize, SocketAddr)>>,
    adoptions: Vec<Vec<Sent>>,
    /// The last SYN to each flow's owner, and what is added to the owner's numbers since it
    /// answered.
    openings: Vec<Option<Sent>>,
    shifts: Vec<u32>,
    mutation: Option<Mutation>,
}

impl Driver {
    pub fn new(program: &mut Program<'_>) -> Self {
        let settings = Watched::settings(program.byte());
        let policy = program.policy();
        let conns = (0..FLOWS).map(|n| fresh(n as u16, 0)).collect();
        Self {
            world: Watched::new(settings, policy),
            conns,
            older: vec![Vec::new(); FLOWS],
            adoptions: vec![Vec::new(); FLOWS],
            openings: vec![None; FLOWS],
            shifts: vec![0; FLOWS],
            mutation: None,
        }
    }

    /// Runs the program to its end.
    pub fn run(input: &[u8]) -> Self {
        Self::run_with(input, true)
    }

    /// The same with header prediction and looking ahead, or without.
    pub fn run_with(input: &[u8], short: bool) -> Self {
        /// Operations of one program, so that none takes long.
        const OPERATIONS_MAX: usize = 256;
        let mut program = Program::new(input);
        let mut driver = Self::new(&mut program);
        driver.world.engine().set_prediction(short);
        driver.world.w.looks = short;
        for _ in 0..OPERATIONS_MAX {
            if program.is_over() {
                break;
            }
            driver.operation(&mut program);
        }
        driver
    }

    /// The low bits of a byte say what happens, the high ones to which flow (or pod).
    fn operation(&mut self, program: &mut Program<'_>) {
        let byte = program.byte();
        let f = usize::from(byte >> 5) % FLOWS;
        match byte & 31 {
            0 => self.handshake(f),
            1 => self.exchange(f),
            2 => self.client(f, PSH_ACK, program.said_by_client()),
            3 => self.pod(f, PSH_ACK, program.said_by_pod()),
            4 => self.client_wrong(f, program),
            5 => self.pod_wrong(f, program, false),
            6 => self.pod_wrong(f, program, true),
            7 => self.adopter(f, program),
            8 => match program.byte() {
                kind @ 128.. => self.opened(f, kind),
                replies => self.confirm(f, replies),
            },
            9 => {
                let sent = self.world.wait_us(program.wait_us());
                self.learn(sent);
            }
            10 => self.dies(f % PODS, program.byte()),
            11 => self.kernel(f % PODS, program.byte()),
            12 => self.drain(f % PODS, program.byte()),
            13 => {
                let byte = program.byte();
                let at = endpoint(pod(byte & 4 != 0, f % PODS));
                let healthy = [None, Some(true), Some(false)][usize::from(byte % 3)];
                let now = self.world.w.now;
                self.world.engine().set_health(now, "web", at, healthy);
            }
            14 => {
                let frames = program.byte();
                self.world.w.out.free = match frames {
                    0..16 => usize::from(frames),
                    _ => usize::MAX,
                };
            }
            15 => self.apply_backends(program),
            16 => self.apply_policy(program),
            17 => self.set_keys(program.byte()),
            18 => self.neighbour(f % PODS, program.byte()),
            19 => self.routes(program.byte()),
            20 => {
                let count = usize::from(program.byte());
                let frame = program.bytes(count).to_vec();
                self.give(&frame);
            }
            21 => {
                let kind = program.byte();
                let bytes = (0..kind % 8).map(|_| (program.byte(), program.byte()));
                self.mutation = Some(Mutation {
                    bytes: bytes.collect(),
                    mended: kind & 8 != 0,
                    partial: kind & 16 != 0,
                });
            }
            kind @ 22..=24 => {
                let world = &self.world;
                let frame = match kind {
                    22 => outsiders::icmp(&world.left, program),
                    23 => outsiders::attacker(&world.w, &self.conns[f], program),
                    _ => outsiders::again(&world.left, program.byte()),
                };
                frame.iter().for_each(|frame| self.give(frame));
            }
            25 => self.client(f, Flags::ACK, &[]),
            26 => self.client(f, FIN_ACK, &[]),
            27 => self.pod(f, FIN_ACK, &[]),
            28 => match program.byte() & 1 {
                0 => self.client(f, Flags::RST, &[]),
                _ => self.pod(f, RST_ACK, &[]),
            },
            29 => self.session(f, program.byte()),
            30 => {
                self.conns[f] = fresh(f as u16, program.byte());
                self.older[f].clear();
                self.adoptions[f].clear();
            }
            _ => {
                let request = talk(self.protocol()).0;
                self.client(f, PSH_ACK, request);
            }
        }
        self.world.check_books();
    }

    fn protocol(&self) -> Protocol {
        self.world.w.snapshot.policies[0].protocol
    }

    /// Gives a frame in, with what the program changes of it, and learns from what leaves.
    pub fn give(&mut self, frame: &[u8]) {
        let mut frame = frame.to_vec();
        if let Some(mutation) = self.mutation.take() {
            for (at, byte) in &mutation.bytes {
                if let Some(b) = frame.get_mut(usize::from(*at)) {
                    *b = *byte;
                }
            }
            if mutation.mended || mutation.partial {
                wire::settle_ipv4(&mut frame);
                wire::settle_tcp(&mut frame, mutation.partial);
            }
        }
        let sent = self.world.give(&frame);
        self.learn(sent);
    }

    /// Where the flows are now, and which adoptions left.
    fn learn(&mut self, sent: Vec<Sent>) {
        if sent.is_empty() {
            return;
        }
        let w = &self.world.w;
        let (views, _) = w.engine.flows(w.now, 0, usize::MAX);
        for (f, c) in self.conns.iter_mut().enumerate() {
            let mine = |v: &&baton_api::FlowView| v.client == c.client;
            let Some(view) = views.iter().find(mine).filter(|v| v.port != 0) else {
                continue;
            };
            let name = view.backend.trim_start_matches("pod-");
            let Ok(index) = name.trim_end_matches("-v6").parse::<usize>() else {
                continue;
            };
            let leg = SocketAddr::new(ours(c.v6()), view.port);
            if (c.pod, c.leg) != (index, leg) {
                self.older[f].push((c.pod, c.leg));
                (c.pod, c.leg) = (index, leg);
                self.shifts[f] = 0;
            }
        }
        for s in sent {
            let leg = SocketAddr::new(s.segment.src, s.segment.src_port);
            let owner = self.conns.iter().position(|c| c.leg == leg);
            if let Some(f) = owner.filter(|_| s.message().is_some()) {
                self.adoptions[f].push(s);
            } else if let Some(f) = owner.filter(|_| s.is(Flags::SYN)) {
                self.openings[f] = Some(s);
            }
        }
    }

    /// A right segment of the client's.
    fn client(&mut self, f: usize, flags: Flags, data: &[u8]) {
        let c = &mut self.conns[f];
        let wire = self.world.w.client_wire(c, flags, data);
        c.client_sent(flags, data);
        self.give(&wire.build());
    }

    /// A right segment of the owner's.
    fn pod(&mut self, f: usize, flags: Flags, data: &[u8]) {
        let wire = self.pod_wire(f, flags, data);
        self.conns[f].server_sent(flags, data);
        self.give(&wire.build());
    }

    /// The same, without sending it.
    fn pod_wire(&self, f: usize, flags: Flags, data: &[u8]) -> Wire {
        let mut wire = self.world.w.pod_wire(&self.conns[f], flags, data);
        wire.seq = wire.seq.wrapping_sub(self.shifts[f]);
        wire
    }

    /// The owner answers our SYN, with less than was asked for if `kind` says so.
    fn opened(&mut self, f: usize, kind: u8) {
        const ISN: u32 = 0xffff_ff00;
        let Some(syn) = &self.openings[f] else {
            return;
        };
        let c = &mut self.conns[f];
        let mut p = c.clone();
        (p.seq, p.server) = (syn.segment.seq.0, ISN);
        p.server_clock = u32::from(kind) << 24;
        p.options.timestamps &= kind & 1 == 0;
        if kind & 2 != 0 {
            p.options.server_wscale = None;
        }
        self.shifts[f] = c.server.wrapping_sub(ISN).wrapping_sub(1);
        let frame = self.world.w.synack_wire(&p).build();
        self.give(&frame);
    }

    fn handshake(&mut self, f: usize) {
        let c = &self.conns[f];
        if self.world.w.state(c).is_some() {
            // It is there: it goes on with its conversation.
            return self.exchange(f);
        }
        let frame = self.world.w.syn_wire(c).build();
        self.give(&frame);
        let frame = self.world.w.synack_wire(&self.conns[f]).build();
        self.give(&frame);
        let c = &mut self.conns[f];
        c.seq = c.seq.wrapping_add(1);
        c.server = c.server.wrapping_add(1);
        self.client(f, Flags::ACK, &[]);
    }

    fn exchange(&mut self, f: usize) {
        let (request, response) = talk(self.protocol());
        self.client(f, PSH_ACK, request);
        self.pod(f, PSH_ACK, response);
        self.client(f, Flags::ACK, &[]);
    }

    /// A command with which a session begins, and its reply.
    fn session(&mut self, f: usize, kind: u8) {
        self.client(f, PSH_ACK, if kind & 1 == 0 { SELECT } else { AUTH });
        self.pod(f, PSH_ACK, PLUS_OK);
        self.client(f, Flags::ACK, &[]);
    }

    fn client_wrong(&mut self, f: usize, program: &mut Program<'_>) {
        let (flags, seq, ack) = (program.flags(), program.offset(), program.offset());
        let data = program.said_by_client();
        let (w, c) = (&self.world.w, &self.conns[f]);
        let mut wire = w.client_wire(c, flags, data);
        if flags.has(Flags::SYN) {
            wire.options = w.syn_wire(c).options;
        }
        wrong(&mut wire, seq, ack);
        self.give(&wire.build());
    }

    fn pod_wrong(&mut self, f: usize, program: &mut Program<'_>, old: bool) {
        let (flags, seq, ack) = (program.flags(), program.offset(), program.offset());
        let data = program.said_by_pod();
        let mut c = self.conns[f].clone();
        if old {
            let Some((pod, leg)) = self.older[f].last() else {
                return;
            };
            (c.pod, c.leg) = (*pod, *leg);
        }
        let mut wire = self.world.w.pod_wire(&c, flags, data);
        if flags.has(Flags::SYN) {
            wire = Wire { flags, ..self.world.w.synack_wire(&c) };
        }
        wrong(&mut wire, seq, ack);
        self.give(&wire.build());
    }

    /// An adopter's answer, to the last adoption or the one before it, right or forged.
    fn adopter(&mut self, f: usize, program: &mut Program<'_>) {
        let (kind, ts) = (program.byte(), program.offset());
        let Some(back) = self.adoptions[f].len().checked_sub(1 + usize::from(kind >> 7)) else {
            return;
        };
        let adoption = &self.adoptions[f][back];
        let reason = Reason::from_code(u16::from(kind & 7)).unwrap_or(Reason::NoListener);
        let ts = self.conns[f].seq.wrapping_add_signed(ts);
        let mut answer = answer(adoption, reason, ts);
        if kind & 0x40 != 0 {
            // A byte of the tag.
            let at = usize::from(adoption.segment.l4) + 20 + 15;
            answer[at] ^= 1;
            wire::settle_tcp(&mut answer, false);
        }
        self.give(&answer);
    }

    /// The new owner's first segment: an ACK of all that came with an adoption, or replies to what
    /// restores a session in front of it.
    fn confirm(&mut self, f: usize, replies: u8) {
        let count = usize::from(replies % 3);
        let mut wire = self.pod_wire(f, Flags::ACK, &[]);
        wire.data = PLUS_OK.repeat(count);
        wire.seq = wire.seq.wrapping_sub(wire.data.len() as u32);
        self.give(&wire.build());
    }

    /// The process of a pod ends its connections; what its kernel says from then on.
    fn dies(&mut self, index: usize, kind: u8) {
        let how = End::BOTH[usize::from(kind & 1)];
        for f in (0..FLOWS).filter(|f| self.conns[*f].pod == index).collect::<Vec<_>>() {
            let frame = self.pod_wire(f, how.flags(), &[]).build();
            self.give(&frame);
        }
        let listener = LISTENERS[usize::from(kind >> 1) % LISTENERS.len()];
        self.world.w.listeners[index] = listener;
        self.world.w.adopters[index] = match listener {
            Listener::Listens => Some(Reason::Ready),
            Listener::Refuses => Some(Reason::NoListener),
            Listener::Silent => None,
        };
    }

    fn kernel(&mut self, index: usize, kind: u8) {
        self.world.w.listeners[index] = LISTENERS[usize::from(kind) % LISTENERS.len()];
        self.world.w.adopters[index] = Reason::from_code(u16::from(kind >> 4));
    }

    fn drain(&mut self, index: usize, kind: u8) {
        let name = crate::common::pod_name(kind & 2 != 0, index);
        let policy = (kind & 4 != 0).then_some("web");
        let now = self.world.w.now;
        self.world.engine().drain(now, policy, &name, kind & 1 == 0);
    }

    /// Other backends: which pods are listed, which of them drains, which weigh nothing, and
    /// whether a second policy has them too.
    fn apply_backends(&mut self, program: &mut Program<'_>) {
        let (listed, kind) = (program.byte(), program.byte());
        let all = crate::common::policy(PODS).backends;
        self.apply(|snapshot| {
            let policy = &mut snapshot.policies[0];
            let named = |i: usize| listed >> (i % PODS) & 1 == 0;
            let backends = all.iter().enumerate().filter(|(i, _)| named(*i));
            policy.backends = backends.map(|(_, b)| b.clone()).collect();
            for (i, b) in policy.backends.iter_mut().enumerate() {
                b.draining = usize::from(kind & 7) == i;
                b.weight = u16::from(kind >> 3 & 7 != i as u8 + 1);
            }
            policy.frontends.truncate(if kind & 0x40 != 0 { 1 } else { 2 });
            if policy.frontends.len() == 1 && kind & 0x40 == 0 {
                policy.frontends.push(endpoint(crate::common::frontend(true)));
            }
            snapshot.policies.truncate(1);
            if kind & 0x80 != 0 {
                let mut second = snapshot.policies[0].clone();
                second.name = "other".into();
                second.frontends = vec![endpoint(SocketAddr::new(ours(false), 81))];
                snapshot.policies.push(second);
            }
        });
    }

    /// Another policy over the flows that there are.
    fn apply_policy(&mut self, program: &mut Program<'_>) {
        let changed = program.policy();
        self.apply(|snapshot| {
            let now = &snapshot.policies[0];
            snapshot.policies[0] = baton_api::Policy {
                frontends: now.frontends.clone(),
                backends: now.backends.clone(),
                ..changed
            };
        });
    }

    fn apply(&mut self, change: impl FnOnce(&mut Snapshot)) {
        let w = &mut self.world.w;
        let before = w.snapshot.clone();
        change(&mut w.snapshot);
        w.snapshot.generation += 1;
        // Pods that still close may leave no room.
        match w.engine.apply(w.now, &w.snapshot) {
            Ok(()) => w.apply(),
            Err(_) => w.snapshot = before,
        }
        self.world.snapshot_changed();
    }

    fn set_keys(&mut self, kind: u8) {
        let [a, b, c] = keys();
        let chosen = match kind % 8 {
            0 => vec![a],
            1 => vec![b, a],
            2 => vec![a, b],
            3 => vec![b],
            4 => vec![c],
            5 => vec![c, b],
            6 => vec![],
            // Two keys with one epoch on the wire: configuration refuses them, the engine must live
            // with them.
            _ => vec![a, c],
        };
        self.world.engine().set_keys(&chosen);
    }

    /// The kernel's word on a neighbour, for a pod or the router.
    fn neighbour(&mut self, index: usize, kind: u8) {
        let v6 = kind & 1 != 0;
        let (address, mac) = if kind & 2 != 0 {
            (crate::common::router(v6), ROUTER_MAC)
        } else {
            (pod(v6, index).ip(), crate::common::pod_mac(index))
        };
        let known = (kind & 4 != 0).then_some(mac);
        self.world.engine().set_neighbour(address, known);
        while self.world.engine().next_unresolved().is_some() {}
    }

    fn routes(&mut self, kind: u8) {
        let route = |prefix: IpAddr, prefix_len, via: Option<IpAddr>| Route {
            prefix,
            prefix_len,
            via: via.map_or(Via::Link, Via::Router),
        };
        let mut routes = Vec::new();
        for v6 in [false, true] {
            if kind & 1 != 0 {
                let bits = if v6 { 64 } else { 16 };
                routes.push(route(ours(v6), bits, None));
            }
            if kind & 2 != 0 {
                let any: IpAddr = if v6 { [0; 16].into() } else { [0; 4].into() };
                routes.push(route(any, 0, Some(crate::common::router(v6))));
            }
            // On a node's network, and what it drops.
            let to_pods = [
                (4, Via::Host(None)),
                (8, Via::Host(Some(pod(v6, 31).ip()))),
                (16, Via::Elsewhere),
            ];
            for (index, (bit, via)) in to_pods.into_iter().enumerate() {
                if kind & bit != 0 {
                    let prefix_len = if v6 { 128 } else { 32 };
                    routes.push(Route { via, ..route(pod(v6, index).ip(), prefix_len, None) });
                }
            }
        }
        self.world.engine().set_routes(&routes);
    }
}

const LISTENERS: [Listener; 3] = [Listener::Listens, Listener::Refuses, Listener::Silent];

/// A connection that has not begun, of a client with these habits.
fn fresh(n: u16, kind: u8) -> Conn {
    let mut c = Conn::of(n + u16::from(kind & 1) * 100, n % 3 == 2);
    c.pod = 0;
    c.options.timestamps = kind & 2 == 0;
    c.options.sack = kind & 4 == 0;
    c.options.ecn = kind & 8 != 0;
    c.options.mss = [Some(1_460), Some(40), None, Some(65_535)][usize::from(kind >> 4 & 3)];
    if kind & 0x40 != 0 {
        c.options.client_wscale = None;
    }
    if kind & 0x80 != 0 {
        // MPTCP and TFO, which are stripped.
        c.options.extra = vec![30, 4, 0, 0, 34, 2, 1, 1];
        c.options.sack = false;
    }
    c
}
