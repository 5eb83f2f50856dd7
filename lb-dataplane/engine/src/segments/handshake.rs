//! Opening a flow: the client's SYN, the backend's answer, and what to do when the answer is none.
//!
//! # Decisions
//!
//! - **What anybody can begin gives way to what is newer**: a handshake that is not complete after
//!   250 ms when as many more have begun with its pod as may be half open (a quarter of the leg
//!   ports, `handshake.rs`), a request that is not complete when every tracker is taken
//!   (`guards.rs`). SYNs never take the eighth of the ports that rescues and drains need. 200,000
//!   SYNs at the chart's limits with a pod killed in the middle: 0 errors on 64 connections, 20 of
//!   20 new ones opened (`e2e/ns` `faults_limits_flood`).
//! - **An eighth of the flows is kept for policies with fewer than their equal part of it**
//!   ([`shares::leaves_others_theirs`]). Who
//!   opened connections and held them had left other tenants' clients without an answer. Rejected:
//!   a threshold that moves (as `ports` has it): a policy has up to 16 listeners, each a policy
//!   here, and 16 such thresholds come to all of the table.
//! - **SYN cookies could be had from adoptions, and are not built.** An adoption names both first
//!   numbers, so a cookie needs no translated leg: the flow would begin with the client's ACK, as
//!   an orphan. But it would have no owner until a pod adopts it, which 37 places of the engine
//!   have to expect then; pods without the adopter could not be served so, the others' applications
//!   would see the connection begin without a SYN; and of the client's options only what three bits
//!   and a timestamp hold would be left. What it adds begins where handshakes of 250 ms, and the
//!   100 ms of rest behind each, take all of a pod's leg ports that SYNs may have: by calculation
//!   25,000 SYN/s for each pod with the chart's 10,000 ports. Below that, who is longer than 250 ms
//!   on his way is told to try again.
//! - **Clients of a family that no backend has** go to backends of the other one, and each segment
//!   is written anew (`across`). Where the dataplane has no address of that family itself, they are
//!   refused with a reset, as a kernel does it, so that they try the other address at once (RFC
//!   8305); counted `no_family`.
//! - **A SYN within a connection is challenged** (RFC 5961 section 4), also where that has no leg
//!   or no pod; once a pod has answered its SYN, or when its client was told that it ends, only a
//!   SYN that is older by the client's clock: a late copy. Where client and pod have closed and the
//!   client lacks something, one that is not newer, as a kernel in TIME-WAIT has it: copies that
//!   the network made of SYNs had ended 1 of 1,000 half-closed connections before their answer
//!   arrived (3 % of packets lost, 1.5 % doubled). A clock that is another host's, behind the same
//!   address, costs that host one reset and a second until its next SYN.
//! - **Who is not in `allowFrom` gets no answer**, as with most implementations of NetworkPolicy,
//!   before anything is taken for him: counted `not_allowed`. A flow begins with a SYN only, so
//!   nothing else asks. Rejected: a reset, which tells a scan that somebody listens.

use crate::{
    Engine, Output, Verdict,
    backend::{
        Evidence,
        ports::{Purpose, Rest},
    },
    clock::Instant,
    containers::shares,
    flow::{Bits, Flow},
    ids::{FlowId, Leg, to_addr},
    net::resets::Whom,
    obs::{
        counters::{Counter, DropReason},
        figures::Reset,
        pins::PinReason,
    },
    states::{Conn, Event, Frame, State},
    tables::legs::Use,
    timing::{HALF_OPEN_US, SYN_PORTS_MAX, SYN_TRIES_MAX},
};
use baton_packet::{Flags, Segment, SynOptions, ether_src, parse_syn_options, timestamps};
use siphasher::sip::SipHasher13;
use std::hash::Hasher;

/// With so many handshakes towards one backend that are not complete, one in so many of its ports,
/// another one takes the place of the oldest: anybody can begin them, with any address.
const HALF_OPEN_PORTS: usize = 4;
/// The same in flows, for all backends together, if they are evenly many.
const HALF_OPEN_FLOWS: usize = 2;
/// But never with fewer, as when many clients come back at once.
const HALF_OPEN_MIN: usize = 16;
/// MSS where the SYN names none (RFC 9293 section 3.7.1).
const MSS_DEFAULT_V4: u16 = 536;
const MSS_DEFAULT_V6: u16 = 1_220;

/// Whether a SYN-ACK agrees to classic ECN (RFC 3168 section 6.1.1). With both flags it only
/// repeats what it was offered.
fn agrees_to_ecn(flags: Flags) -> bool {
    flags.has(Flags::ECE) && !flags.has(Flags::CWR)
}

/// How much later a SYN is than what the flow's client sent last, by that one's clock, if it has
/// one.
fn later_by(frame: &[u8], segment: &Segment, flow: &Flow) -> Option<i32> {
    if !flow.bits.has(Bits::TIMESTAMPS) {
        return None;
    }
    let stamps = parse_syn_options(segment.options(frame)).timestamps;
    stamps.map(|(value, _)| value.wrapping_sub(flow.client_ts).cast_signed())
}

/// Whether a SYN is from before what the flow's client sent last: a late copy, which must not end
/// the connection of a client that may have sent more already.
fn is_older(frame: &[u8], segment: &Segment, flow: &Flow) -> bool {
    later_by(frame, segment, flow).is_some_and(|later| later < 0)
}

/// Whether a SYN is no copy of one that the flow's client sent before, as a kernel in TIME-WAIT
/// judges it (RFC 6191; Linux `tcp_timewait_state_process`).
fn comes_later(frame: &[u8], segment: &Segment, flow: &Flow) -> bool {
    match later_by(frame, segment, flow) {
        Some(later) if later != 0 => later > 0,
        _ => segment.seq.after(flow.client_next),
    }
}

/// What a client offers, without its timestamp and window.
fn offer(segment: &Segment, options: &SynOptions) -> (u16, u8, [bool; 3]) {
    let default = if segment.is_v6() { MSS_DEFAULT_V6 } else { MSS_DEFAULT_V4 };
    let has =
        [options.window_scale.is_some(), options.sack_permitted, options.timestamps.is_some()];
    let scale = options.window_scale.unwrap_or(0);
    (options.mss.unwrap_or(default), scale, has)
}

/// Whether a SYN that comes again offers what the flow remembers. With another offer it is another
/// connection's begin: which of the two a pod answers, and by what it would then read windows,
/// nobody here could tell, and its leg may be others' later.
fn offers_the_same(frame: &[u8], segment: &Segment, flow: &Flow) -> bool {
    let has = [Bits::WSCALE, Bits::SACK, Bits::TIMESTAMPS].map(|bit| flow.bits.has(bit));
    let options = parse_syn_options(segment.options(frame));
    offer(segment, &options) == (flow.mss, flow.scales, has)
}

/// What a SYN-ACK says of the flow.
fn learn_answer(now: Instant, frame: &[u8], segment: &Segment, flow: &mut Flow) {
    let options = parse_syn_options(segment.options(frame));
    let both = |bits: &Bits, bit: u16, server: bool| bits.has(bit) && server;
    let bits = flow.bits;
    flow.bits.set(Bits::WSCALE, both(&bits, Bits::WSCALE, options.window_scale.is_some()));
    flow.bits.set(Bits::SACK, both(&bits, Bits::SACK, options.sack_permitted));
    flow.bits.set(Bits::TIMESTAMPS, both(&bits, Bits::TIMESTAMPS, options.timestamps.is_some()));
    let ecn = agrees_to_ecn(segment.flags);
    flow.bits.set(Bits::ECN, both(&bits, Bits::ECN, ecn));
    if flow.bits.has(Bits::WSCALE) {
        flow.scales = options.window_scale.unwrap_or(0) << 4 | flow.scales & 15;
    } else {
        flow.scales = 0;
    }
    if let Some((value, _)) = options.timestamps {
        flow.server_ts = value;
        flow.server_ts_ms = now.ms32();
    }
    flow.client_acked = segment.ack;
    flow.server_next = segment.seq.add(segment.seq_len());
    flow.server_acked = segment.seq;
    flow.moved_ms = now.ms32();
}

impl Engine {
    /// Another SYN-ACK of a flow whose client has not answered one yet. With another number it is a
    /// new listener's, to a repeated SYN: the client takes whichever reaches it, and the older one
    /// may have been lost.
    pub(crate) fn answered_anew(
        &mut self,
        now: Instant,
        frame: &[u8],
        segment: &Segment,
        id: FlowId,
    ) {
        let flow = &mut self.flows[id];
        let stamps = timestamps(segment.options(frame)).filter(|_| flow.bits.has(Bits::TIMESTAMPS));
        let late =
            stamps.is_some_and(|(value, _)| value.wrapping_sub(flow.server_ts).cast_signed() < 0);
        if segment.flags.has(Flags::SYN | Flags::ACK)
            && segment.ack == flow.client_next
            && segment.seq != flow.server_acked
            && !late
        {
            learn_answer(now, frame, segment, flow);
        }
    }

    pub(crate) fn client_syn(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        segment: &Segment,
        frontend: u16,
        found: Option<FlowId>,
        out: &mut impl Output,
    ) -> Verdict {
        if let Some(id) = found {
            let late = is_older(frame, segment, &self.flows[id]);
            let flow = &mut self.flows[id];
            let same = flow.client_next == segment.seq.add(1)
                && flow.state.is_opening()
                && (flow.state != State::SynSent || offers_the_same(frame, segment, flow));
            // Also without a pod it is its client's, unless that was told that it ends.
            let over = match flow.state {
                State::SynAcked => !late,
                State::FinSentToClient if late => false,
                State::FinSentToClient | State::Closed => {
                    flow.server_acked == flow.server_next || comes_later(frame, segment, flow)
                }
                state => matches!(state.conn(), Conn::Opening | Conn::Closed),
            };
            if same {
                let owner = flow.owner;
                if flow.progress.tries >= SYN_PORTS_MAX {
                    flow.progress.tries = 1;
                }
                if self.begins_anew(id, segment) {
                    self.send_syn(id, out);
                    return Verdict::Absorbed;
                }
                return self.forward_to_leg(frame, segment, owner);
            }
            if !over {
                // Challenged here (RFC 5961 section 4): a backend that knows the flow no more would
                // open another connection inside of it. A client that means it answers with an
                // exact RST, and sends its SYN again. So does one whose port another host behind
                // its address had, whose SYN only looks older.
                if self.may_reset(now, Whom::Clients) {
                    self.challenge_client(id, out);
                }
                return Verdict::Absorbed;
            }
            // The client reuses its port for a new connection.
            let _ = self.step(now, id, Event::ClientRst, out);
        }
        let verdict = self.open(now, frame, segment, frontend, out);
        if verdict == Verdict::Drop(DropReason::NoFamily)
            && self.reset_unknown(now, frame, segment, Whom::Strangers, out)
        {
            // No wait helps: the client had better try the frontend's other family (RFC 8305).
            let policy = self.frontends[usize::from(frontend)].policy;
            self.count_reset(policy, Reset::NoFamily);
        }
        verdict
    }

    fn open(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        segment: &Segment,
        frontend: u16,
        out: &mut impl Output,
    ) -> Verdict {
        let slot = &self.frontends[usize::from(frontend)];
        if !slot.listed {
            return Verdict::Drop(DropReason::NotOurs);
        }
        let policy = slot.policy;
        if !self.policies[usize::from(policy)].lets_in(segment.src) {
            return Verdict::Drop(DropReason::NotAllowed);
        }
        let client = to_addr(segment.src);
        let mac = ether_src(frame);
        let Some(hop) = self.hop_to_opening(segment.src, mac) else {
            return Verdict::Drop(DropReason::NoRoute);
        };
        // Stable across dataplanes and restarts: no key.
        let mut hasher = SipHasher13::new();
        hasher.write(&client.octets());
        hasher.write_u16(segment.src_port);
        let hash = hasher.finish();
        let v6 = segment.is_v6();
        let Ok(backend) = self.choose_restoring(now, (policy, client), (v6, hash)) else {
            return Verdict::Drop(DropReason::NotAsked);
        };
        let Some(backend) = backend else {
            return Verdict::Drop(DropReason::NoBackend);
        };
        if self.backends[usize::from(backend)].source.is_none() {
            return Verdict::Drop(DropReason::NoFamily);
        }
        self.bound_half_open(now, backend, out);
        if self.flows.is_full() {
            return Verdict::Drop(DropReason::FlowTableFull);
        }
        let (used, own) = (self.flows.used(), self.policies[usize::from(policy)].flows);
        let of = (used, self.flows.limit());
        if !shares::leaves_others_theirs(of, own, self.ids.policies.len()) {
            return Verdict::Drop(DropReason::FlowsOfOthers);
        }
        let ports = &mut self.backends[usize::from(backend)].ports;
        let Some(port) = ports.take(&mut self.legs.rests, now.ms(), Purpose::Handshake) else {
            return Verdict::Drop(DropReason::NoPort);
        };

        let options = parse_syn_options(segment.options(frame));
        let mut flow = Flow::new(client, segment.src_port, frontend, policy);
        (flow.hop, flow.mac) = (hop, mac);
        flow.state = State::SynSent;
        // The SYN alone: data in it reaches no pod, is not acknowledged and comes again.
        flow.client_next = segment.seq.add(1);
        flow.client_acked = segment.seq;
        flow.client_window = segment.window;
        let (mss, scale, [scales, sack, stamps]) = offer(segment, &options);
        (flow.mss, flow.scales) = (mss, scale);
        flow.last_ms = now.ms32();
        flow.sent_us = now.0 as u32;
        flow.progress.tries = 1;
        flow.network = shares::network(flow.client_network(), self.settings.hash_keys);
        flow.bits.set(Bits::WSCALE, scales);
        flow.bits.set(Bits::SACK, sack);
        flow.bits.set(Bits::TIMESTAMPS, stamps);
        flow.bits.set(Bits::ECN, segment.flags.has(Flags::ECE | Flags::CWR));
        if let Some((value, _)) = options.timestamps {
            flow.client_ts = value;
        }
        let moves = flow.is_adoptable(self.backends[usize::from(backend)].addr.is_v6())
            || self.policies[usize::from(policy)].translates();
        let Some(id) = self.flows.insert(flow) else {
            self.backends[usize::from(backend)].ports.give_back(
                &mut self.legs.rests,
                port,
                now.ms(),
                Rest::Clean,
            );
            return Verdict::Drop(DropReason::FlowTableFull);
        };
        self.frontends[usize::from(frontend)].flows += 1;
        self.net.hops.hold(hop);
        let leg = Leg { backend, port };
        self.own_leg(id, leg);
        self.note_restored(id);
        if !moves {
            self.pin(id, PinReason::SmallMss);
        }
        let policy = &mut self.policies[usize::from(policy)];
        policy.flows += 1;
        policy.flows_total += 1;
        self.counters.add(Counter::FlowsOpened);
        self.arm(now, id, crate::states::Action::ArmHandshake);
        if self.begins_anew(id, segment) {
            self.send_syn(id, out);
            return Verdict::Absorbed;
        }
        self.forward_to_leg(frame, segment, leg)
    }

    /// Whether the SYN on its owner leg is not the client's own with other addresses. One with data
    /// never is: a kernel that takes these without a cookie (Linux `TFO_SERVER_COOKIE_NOT_REQD`)
    /// gives them to its application, and the client, whose leg may be another one by then, sends
    /// them again.
    fn begins_anew(&self, id: FlowId, syn: &Segment) -> bool {
        self.is_restored(id) || self.flows[id].progress.told.is_due() || syn.payload_len() > 0
    }

    /// Makes room for one more handshake with a backend: the oldest that is not complete gives way,
    /// where there are too many. If there is a client behind it, that one is told with a reset, and
    /// connects again.
    fn bound_half_open(&mut self, now: Instant, backend: u16, out: &mut impl Output) {
        let ports = &self.backends[usize::from(backend)].ports;
        let Some((oldest, count)) = ports.half_open(&self.legs.rests) else {
            return;
        };
        let flows = self.flows.limit() as usize / (HALF_OPEN_FLOWS * self.backends.len().max(1));
        let enough = (ports.all() / HALF_OPEN_PORTS).min(flows).max(HALF_OPEN_MIN);
        if count < enough {
            return;
        }
        let oldest = Leg { backend, port: oldest };
        if let Some(Use::Owner(id)) = self.legs.uses.used_by(oldest)
            && (now.0 as u32).wrapping_sub(self.flows[id].sent_us) >= HALF_OPEN_US
        {
            self.counters.add(Counter::HalfOpenReplaced);
            let _ = self.step(now, id, Event::Outnumbered, out);
        }
    }

    /// A segment from the backend that was sent the SYN.
    pub(crate) fn answer_to_syn(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        segment: &Segment,
        id: FlowId,
        out: &mut impl Output,
    ) -> Verdict {
        let flow = &mut self.flows[id];
        let flags = segment.flags;
        let acks_syn = flags.has(Flags::ACK) && segment.ack == flow.client_next;
        if flags.has(Flags::RST) {
            if !acks_syn {
                return Verdict::Absorbed;
            }
            return self.syn_refused(now, frame, segment, id, out);
        }
        if flags.has(Flags::SYN | Flags::ACK) && acks_syn {
            learn_answer(now, frame, segment, flow);
            let backend = flow.owner.backend;
            self.backends[usize::from(backend)].figures.begun += 1;
            self.backend_works(id);
            let _ = self.step(now, id, Event::SynAck, out);
            return self.forward_to_client(frame, segment, id);
        }
        // Any other answer is a stale socket's: a challenge ACK, or the SYN-ACK of an older SYN.
        let owner = flow.owner;
        if flow.progress.tries >= SYN_PORTS_MAX {
            return Verdict::Absorbed;
        }
        flow.progress.tries += 1;
        self.reset_stale(owner, segment.ack, out);
        let _ = self.step(now, id, Event::SynStale, out);
        Verdict::Absorbed
    }

    fn syn_refused(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        segment: &Segment,
        id: FlowId,
        out: &mut impl Output,
    ) -> Verdict {
        let refused_by = self.flows[id].owner.backend;
        self.backend_fails(now, id);
        if !self.backends[usize::from(refused_by)].liveness.is_down() {
            self.learn(now, refused_by, Evidence::Refused, out);
        }
        let next = self.another_for_syn(now, id);
        let verdict = self.forward_to_client(frame, segment, id);
        let treat = if let Some(leg) = next {
            self.redirect.leg = leg;
            self.step(now, id, Event::SynRefused, out)
        } else {
            self.counters.add(Counter::ResetsToClients);
            self.count_reset(self.flows[id].policy, Reset::Refused);
            self.step(now, id, Event::SynRefusedByAll, out)
        };
        match treat {
            Frame::Forward => verdict,
            Frame::Absorb => Verdict::Absorbed,
        }
    }

    /// A leg to another backend for a flow whose SYN was refused or met silence, while tries are
    /// left.
    pub(crate) fn another_for_syn(&mut self, now: Instant, id: FlowId) -> Option<Leg> {
        let flow = &mut self.flows[id];
        flow.progress.tries = flow.progress.tries.saturating_add(1);
        if flow.progress.tries > SYN_TRIES_MAX {
            return None;
        }
        let (owner, v6) = (flow.owner.backend, flow.is_v6());
        let (policy, client) = (flow.policy, flow.client);
        let hash = self.rng.u64(..);
        let target = self.choose_new(now, (policy, client), (v6, hash), Some(owner))?;
        let leg = self.take_port(now, target, Purpose::Handshake)?;
        self.client_goes(id, target);
        Some(leg)
    }

    /// The owner leg goes to the leg that the event's classifier took.
    pub(crate) fn redirect(&mut self, now: Instant, id: FlowId) {
        let leg = std::mem::replace(&mut self.redirect.leg, Leg::NONE);
        self.drop_owner(now, id, Rest::Quiet);
        self.own_leg(id, leg);
        self.begins_on_leg(now, id);
        self.flows[id].progress.leg_is_new();
    }
}
