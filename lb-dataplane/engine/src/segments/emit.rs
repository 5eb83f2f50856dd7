//! Frames out: forwarding in place and segments of our own.
//!
//! Owns addresses, ports and next hops of what leaves. It decides nothing.

use crate::{
    Engine, Output, Verdict,
    clock::Instant,
    flow::{Bits, Flow},
    handover::Mark,
    ids::{FlowId, Leg, from_addr},
    net::{
        across::Across,
        resets::Whom,
        routes::{self, HopId},
    },
    obs::{
        counters::{Counter, DropReason},
        figures::Reset,
    },
    states::State,
};
use baton_packet::{
    Decoded, Flags, Mac, Rewrite, RewriteError, Segment, SegmentSpec, SeqNumber, allow_fragments,
    build_segment, carry_tcp, ether_dst, ether_src, rewrite_tcp,
};
use std::net::IpAddr;

impl Engine {
    /// Whether one more may be sent; counted if not.
    pub(crate) fn may_reset(&mut self, now: Instant, whom: Whom) -> bool {
        let may = self.net.resets.take(now, whom);
        if !may {
            self.counters.add(match whom {
                Whom::Strangers => Counter::ResetsLimited,
                Whom::Clients => Counter::ChallengesLimited,
                Whom::Pods => Counter::PodResetsLimited,
            });
        }
        may
    }
}

impl Engine {
    /// A segment without payload towards a leg's backend; the caller fills in the rest.
    pub(crate) fn to_leg(&self, leg: Leg) -> Option<SegmentSpec<'static>> {
        let backend = self.backends.get(usize::from(leg.backend))?;
        let (src, src_port) = self.net.sources.end(backend.source?, leg.port);
        Some(SegmentSpec {
            src_mac: self.settings.mac,
            dst_mac: self.net.hops.mac(backend.hop?)?,
            src,
            dst: from_addr(backend.addr),
            src_port,
            dst_port: backend.port,
            seq: SeqNumber(0),
            ack: SeqNumber(0),
            flags: Flags::ACK,
            window: 0,
            timestamps: None,
            payload: &[],
        })
    }

    /// The port that a leg comes from.
    pub(crate) fn leg_port(&self, leg: Leg) -> u16 {
        let backend = self.backends.get(usize::from(leg.backend));
        match backend.and_then(|b| b.source) {
            Some(source) => self.net.sources.end(source, leg.port).1,
            None => leg.port,
        }
    }

    /// Builds a segment in a free frame and sends it. `false` if no frame was free or it could not
    /// be built.
    pub(crate) fn emit(
        &mut self,
        out: &mut impl Output,
        build: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> bool {
        let Some(buffer) = out.frame() else {
            self.counters.add(Counter::NoFrame);
            return false;
        };
        let Some(len) = build(buffer) else {
            return false;
        };
        out.send(len);
        true
    }

    /// Rewrites the client's segment for a leg.
    #[inline]
    pub(crate) fn forward_to_leg(
        &mut self,
        frame: &mut [u8],
        segment: &Segment,
        leg: Leg,
    ) -> Verdict {
        if let Some(shift) = self.legs.shifts.of(leg) {
            let _ = shift.to_pod(frame, segment);
        }
        self.readdressed_to_leg(frame, segment, leg)
    }

    /// The same for one that has the leg's numbers.
    #[inline]
    pub(crate) fn readdressed_to_leg(
        &mut self,
        frame: &mut [u8],
        segment: &Segment,
        leg: Leg,
    ) -> Verdict {
        let Some(backend) = self.backends.get(usize::from(leg.backend)) else {
            return Verdict::Drop(DropReason::NoBackend);
        };
        let (Some(src), Some(dst_mac)) =
            (backend.source, backend.hop.and_then(|h| self.net.hops.mac(h)))
        else {
            return Verdict::Drop(DropReason::NoNeighbour);
        };
        let (src, src_port) = self.net.sources.end(src, leg.port);
        let to = Rewrite {
            src,
            dst: from_addr(backend.addr),
            src_port,
            dst_port: backend.port,
            src_mac: self.settings.mac,
            dst_mac,
        };
        self.readdressed(frame, segment, to)
    }

    /// Rewrites the backend's segment for the client.
    #[inline]
    pub(crate) fn forward_to_client(
        &mut self,
        frame: &mut [u8],
        segment: &Segment,
        id: FlowId,
    ) -> Verdict {
        let flow = &self.flows[id];
        let frontend = &self.frontends[usize::from(flow.frontend)];
        let Some(dst_mac) = self.client_mac(flow) else {
            return Verdict::Drop(DropReason::NoNeighbour);
        };
        let to = Rewrite {
            src: from_addr(frontend.addr),
            dst: from_addr(flow.client),
            src_port: frontend.port,
            dst_port: flow.client_port,
            src_mac: self.settings.mac,
            dst_mac,
        };
        if flow.is_narrower_than(u32::from(segment.end - segment.l4)) {
            allow_fragments(frame, segment);
        }
        self.readdressed(frame, segment, to)
    }

    /// The segment with other addresses; those of the other family it gets when all is done
    /// (`across`).
    #[inline]
    fn readdressed(&mut self, frame: &mut [u8], segment: &Segment, to: Rewrite) -> Verdict {
        if segment.is_v6() != to.dst.is_ipv6() {
            self.net.across = Some(Across::Segment(*segment, to));
            return Verdict::Transmit(usize::from(segment.end));
        }
        finish(rewrite_tcp(frame, segment, &to), segment)
    }

    /// Sends the kept copies of client segments to the owner leg. They are owed until it has
    /// acknowledged them where no frame is free for all, and where this one takes the place of a
    /// pod that had: the client has heard that they arrived, and sends them no more. Whether all
    /// left that may.
    pub(crate) fn replay_kept(&mut self, id: FlowId, out: &mut impl Output) -> bool {
        let flow = &mut self.flows[id];
        let told = flow.state == State::Request
            && flow.progress.is(Mark::Rescue)
            && flow.client_acked.after(flow.boundary);
        if told {
            flow.client_acked = flow.boundary;
            flow.progress.set(Mark::CopiesOwed, true);
        }
        if self.request_waits(id) {
            return true;
        }
        let flow = &self.flows[id];
        let Some(spec) = self.to_leg(flow.owner) else {
            return true;
        };
        let shift = self.legs.shifts.of(flow.owner);
        let to = Rewrite {
            src: spec.src,
            dst: spec.dst,
            src_port: spec.src_port,
            dst_port: spec.dst_port,
            src_mac: spec.src_mac,
            dst_mac: spec.dst_mac,
        };
        for copy in self.copies.kept.iter(flow.kept) {
            let Some(buffer) = out.frame() else {
                self.counters.add(Counter::NoFrame);
                self.flows[id].progress.set(Mark::CopiesOwed, true);
                return false;
            };
            let Some(room) = buffer.get_mut(..copy.len()) else {
                continue;
            };
            room.copy_from_slice(copy);
            let Ok(Decoded::Tcp(segment)) = baton_packet::decode(room) else {
                continue;
            };
            if let Some(shift) = shift {
                let _ = shift.to_pod(room, &segment);
            }
            let readdressed = if segment.is_v6() == to.dst.is_ipv6() {
                rewrite_tcp(room, &segment, &to).map(|()| usize::from(segment.end))
            } else {
                carry_tcp(buffer, &segment, &to)
            };
            if let Ok(len) = readdressed {
                out.send(len);
            }
        }
        true
    }

    /// The client's SYN to the owner leg: nothing else of it counts than what was noted.
    pub(crate) fn send_syn(&mut self, id: FlowId, out: &mut impl Output) {
        let flow = &self.flows[id];
        let first = flow.client_next.sub(self.in_front(id));
        let numbers = (first.sub(1), flow.client_ts);
        self.emit_syn(id, numbers, out);
    }

    /// Timestamps of a segment in the client's name.
    pub(crate) fn client_stamps(flow: &Flow) -> Option<(u32, u32)> {
        flow.bits.has(Bits::TIMESTAMPS).then_some((flow.client_ts, flow.server_ts))
    }

    /// Resets a leg in the client's name. A pod that has not taken the request expects `boundary`,
    /// one that has expects the next byte, so an unconfirmed leg gets both (RFC 5961 section 3.2:
    /// only an exact number resets).
    pub(crate) fn reset_leg(&mut self, id: FlowId, leg: Leg, out: &mut impl Output) {
        if !leg.is_some() {
            return;
        }
        let Some(mut spec) = self.to_leg(leg) else {
            return;
        };
        let flow = &self.flows[id];
        spec.flags = Flags::RST | Flags::ACK;
        spec.ack = flow.server_next;
        spec.timestamps = Self::client_stamps(flow);
        // A leg that is not the owner any more knows nothing from the boundary on.
        let unconfirmed = leg != flow.owner || flow.standby.is_some() || flow.state.is_moving();
        // What waits was not sent.
        let next = self.sent_until(id).unwrap_or(flow.client_next);
        let numbers = [flow.boundary, next];
        let one = !unconfirmed || numbers[0] == numbers[1];
        let in_front = self.expected_in_front(id, leg);
        for seq in in_front.iter().chain(&numbers[usize::from(one)..]) {
            spec.seq = *seq;
            self.emit_to(leg, spec, out);
        }
        self.counters.add(Counter::ResetsToBackends);
    }

    /// Resets whatever socket sits on a leg's tuple and expects `seq`.
    pub(crate) fn reset_stale(&mut self, leg: Leg, seq: SeqNumber, out: &mut impl Output) {
        self.counters.add(Counter::StaleSockets);
        if self.reset_at(leg, seq, out) {
            self.counters.add(Counter::ResetsToBackends);
        }
    }

    /// Ends a pod's TIME_WAIT, which expects `seq` next: Linux forgets it at a RST with that number
    /// (`tcp_timewait_state_process`, unless `net.ipv4.tcp_rfc1337` is 1), and ignores it where
    /// there is none. A connection tracker keeps 10 s of it instead of 120.
    pub(crate) fn end_time_wait(&mut self, leg: Leg, seq: SeqNumber, out: &mut impl Output) {
        if self.reset_at(leg, seq, out) {
            self.counters.add(Counter::TimeWaitsEnded);
        }
    }

    /// A bare RST with this number. Whether there is a way for it.
    pub(crate) fn reset_at(&mut self, leg: Leg, seq: SeqNumber, out: &mut impl Output) -> bool {
        let Some(mut spec) = self.to_leg(leg) else {
            return false;
        };
        (spec.flags, spec.seq) = (Flags::RST, seq);
        self.emit_to(leg, spec, out);
        true
    }

    /// A segment towards the client in the backend's name, with the flow's present numbers.
    fn client_spec(&self, id: FlowId, flags: Flags) -> Option<SegmentSpec<'static>> {
        let flow = &self.flows[id];
        let frontend = &self.frontends[usize::from(flow.frontend)];
        let stamps = flow.bits.has(Bits::TIMESTAMPS) && !flags.has(Flags::RST);
        Some(SegmentSpec {
            src_mac: self.settings.mac,
            dst_mac: self.client_mac(flow)?,
            src: from_addr(frontend.addr),
            dst: from_addr(flow.client),
            src_port: frontend.port,
            dst_port: flow.client_port,
            seq: flow.server_next,
            // Where the owner's own end is passed on, no more than the owner had.
            ack: if flow.state == State::ServerFin { flow.client_acked } else { flow.client_next },
            flags,
            window: if flags.has(Flags::RST) { 0 } else { u16::MAX },
            timestamps: stamps.then_some((flow.server_ts, flow.client_ts)),
            payload: &[],
        })
    }

    /// Resets the client's connection in the backend's name.
    pub(crate) fn reset_client(&mut self, id: FlowId, why: Reset, out: &mut impl Output) {
        if let Some(spec) = self.client_spec(id, Flags::RST | Flags::ACK) {
            self.counters.add(Counter::ResetsToClients);
            self.count_reset(self.flows[id].policy, why);
            self.emit(out, |buffer| build_segment(buffer, &spec));
        }
    }

    /// Closes the client's connection in the backend's name: the FIN that was held back, or our
    /// own.
    pub(crate) fn send_fin_to_client(&mut self, id: FlowId, out: &mut impl Output) {
        let flow = &mut self.flows[id];
        if !flow.bits.has(Bits::FIN_SENT) {
            flow.bits.set(Bits::FIN_SENT, true);
            flow.server_next = flow.server_next.add(1);
            flow.progress.tries = 0;
        }
        if let Some(mut spec) = self.client_spec(id, Flags::FIN | Flags::ACK) {
            // Sent once more, it is the same number again.
            spec.seq = spec.seq.add(u32::MAX);
            self.emit(out, |buffer| build_segment(buffer, &spec));
        }
    }

    /// Acknowledges the client's FIN in the backend's name.
    pub(crate) fn ack_client(&mut self, id: FlowId, out: &mut impl Output) {
        if let Some(spec) = self.client_spec(id, Flags::ACK) {
            self.emit(out, |buffer| build_segment(buffer, &spec));
        }
    }

    /// Answers the client of a flow without a leg, and promises what a kernel does at first (Linux
    /// `tcp_select_initial_window`: 64 KiB). What is more than the next owner's window waits then
    /// (`backlog`).
    pub(crate) fn answer_legless(&mut self, id: FlowId, out: &mut impl Output) {
        let scale = self.flows[id].scales >> 4;
        if let Some(mut spec) = self.client_spec(id, Flags::ACK) {
            spec.window >>= scale;
            self.emit(out, |buffer| build_segment(buffer, &spec));
        }
    }

    /// Acknowledges to the client what it knows to be acknowledged.
    pub(crate) fn challenge_client(&mut self, id: FlowId, out: &mut impl Output) {
        if let Some(mut spec) = self.client_spec(id, Flags::ACK) {
            // In front of what it lacks, so that a living client takes nothing from it, the window
            // above all.
            spec.seq = self.flows[id].server_acked.sub(1);
            spec.ack = self.flows[id].client_acked;
            self.emit(out, |buffer| build_segment(buffer, &spec));
        }
    }

    /// Answers a segment that belongs to nothing with a reset (RFC 9293 section 3.10.7.1), out the
    /// way it came. False if it gets none.
    pub(crate) fn reset_unknown(
        &mut self,
        now: Instant,
        frame: &[u8],
        segment: &Segment,
        whom: Whom,
        out: &mut impl Output,
    ) -> bool {
        if segment.flags.has(Flags::RST) || !self.may_reset(now, whom) {
            return false;
        }
        let acked = segment.flags.has(Flags::ACK);
        let spec = SegmentSpec {
            src_mac: ether_dst(frame),
            dst_mac: ether_src(frame),
            src: segment.dst,
            dst: segment.src,
            src_port: segment.dst_port,
            dst_port: segment.src_port,
            seq: if acked { segment.ack } else { SeqNumber(0) },
            ack: if acked { SeqNumber(0) } else { segment.seq.add(segment.seq_len()) },
            flags: if acked { Flags::RST } else { Flags::RST | Flags::ACK },
            window: 0,
            timestamps: None,
            payload: &[],
        };
        self.counters.add(match whom {
            Whom::Pods => Counter::ResetsToBackends,
            Whom::Strangers | Whom::Clients => Counter::ResetsToClients,
        });
        self.emit(out, |buffer| build_segment(buffer, &spec));
        true
    }

    /// The next hop towards an address, as a number in the neighbour table. `seen` is where a frame
    /// from there came from; what came through the host's stack goes back through it, wherever the
    /// route leads: it may have changed the addresses.
    pub(crate) fn hop_to(&mut self, address: IpAddr, seen: Option<Mac>) -> Option<HopId> {
        let host = routes::host(address.is_ipv6());
        let via = match seen {
            Some(Mac::HOST) => host,
            _ => self.net.routes.next_hop(address)?,
        };
        let hop = self.net.hops.intern(via)?;
        if via == host {
            self.net.hops.set(host, Some(Mac::HOST));
        } else if let Some(mac) = seen {
            self.net.hops.learn(hop, mac);
        }
        Some(hop)
    }

    /// The next hop towards a client whose first segment came from `seen`. One on our own link has
    /// none of its own before its connection is open: anybody there can begin connections in the
    /// name of as many addresses as he likes.
    pub(crate) fn hop_to_opening(&mut self, client: IpAddr, seen: Mac) -> Option<HopId> {
        let via = self.net.routes.next_hop(client);
        if seen == Mac::HOST || via != Some(client) {
            return self.hop_to(client, Some(seen));
        }
        Some(self.net.hops.known(client).unwrap_or(HopId::NONE))
    }

    /// The flow is open: a client on our own link has a next hop from now on, which the kernel is
    /// asked for. Where there are too many, it stays with where its SYN came from.
    pub(crate) fn hop_of_open(&mut self, id: FlowId) {
        let flow = &self.flows[id];
        if flow.hop != HopId::NONE {
            return;
        }
        let (client, mac) = (from_addr(flow.client), flow.mac);
        match self.net.hops.intern_client(client) {
            Some(hop) => {
                self.net.hops.learn(hop, mac);
                self.net.hops.hold(hop);
                self.flows[id].hop = hop;
            }
            None => self.counters.add(Counter::NextHopsFull),
        }
    }

    /// Where frames to the flow's client go.
    #[inline]
    pub(crate) fn client_mac(&self, flow: &Flow) -> Option<Mac> {
        if flow.hop == HopId::NONE { Some(flow.mac) } else { self.net.hops.mac(flow.hop) }
    }
}

#[inline]
fn finish(rewritten: Result<(), RewriteError>, segment: &Segment) -> Verdict {
    match rewritten {
        Ok(()) => Verdict::Transmit(usize::from(segment.end)),
        Err(RewriteError::TtlExpired) => Verdict::Drop(DropReason::TtlExpired),
        Err(_) => Verdict::Drop(DropReason::NotOurs),
    }
}
