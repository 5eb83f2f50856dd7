//! Frames between the parties: over the links, into the engine, out of it, with every one that
//! leaves compared to the truth.
//!
//! Owns the calls of the engine for frames and timers. What a frame does in a client or pod is
//! theirs.

use super::{Counts, Event, FRAME_BYTES, World};
use crate::{
    address,
    asked::kind,
    client::Note,
    pod::PodNote,
    tcp::wire::{Seg, receive},
    trace::{Base, Party},
};
use baton_engine::{DropReason, Instant, Verdict};
use baton_packet::{Flags, SeqNumber, ether_dst, ether_src};

/// Adoptions that an attacker remembers.
const CAPTURED_MAX: usize = 32;
/// What a header of the PROXY protocol begins with.
const PROXY_SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Ports from which only attackers send.
pub(super) const ATTACKER_PORTS_TO: u16 = 1_024;

/// The numbers of no frame.
pub(super) const NOWHERE: (SeqNumber, SeqNumber) = (SeqNumber(0), SeqNumber(0));

/// What the engine was called with.
#[derive(Clone, Copy)]
pub(super) struct Call {
    origin: Party,
    /// The port of ours or of the client that the frame names.
    port: u16,
    /// The frame's own number, and that behind it.
    seq: SeqNumber,
    end: SeqNumber,
    /// Counted ends that no client's end was matched with yet.
    pub(super) counted: u64,
    /// Sessions were restored in this call: bytes of the engine's own precede the client's.
    restores: bool,
}

impl World {
    pub(super) fn happens(&mut self, event: Event) {
        match event {
            Event::ToEngine(from, frame) => self.give_engine(from, frame),
            Event::ToClient(i, frame) => {
                self.clients[i].stack.frame(self.now, &frame);
                self.step_client(i);
            }
            Event::ToPod(i, frame) => {
                let mut out = Vec::new();
                self.pods[i].frame(self.now, &frame, &mut out);
                self.pod_sends(i, out);
            }
            Event::Happens(what) => self.happening(what),
            Event::Transfer(pod, question) => self.transfer(pod, question),
            Event::Neighbour(address) => {
                let pod = address::pod_at(address, self.pods.len());
                let mac = match pod {
                    Some(pod) if self.neighbours[pod] => Some(address::pod_mac(pod)),
                    Some(_) => None,
                    None => Some(address::ROUTER_MAC),
                };
                if mac.is_some() {
                    self.engine.set_neighbour(address, mac);
                    self.touched = true;
                }
            }
        }
    }

    pub(super) fn step_client(&mut self, i: usize) {
        let mut out = Vec::new();
        self.clients[i].step(self.now, &mut out);
        self.client_notes(i);
        for frame in out {
            self.carry(Party::Client(i), Party::Baton, frame);
        }
    }

    pub(super) fn step_pod(&mut self, i: usize) {
        let mut out = Vec::new();
        self.pods[i].step(self.now, &mut out);
        self.pod_sends(i, out);
    }

    pub(super) fn pod_sends(&mut self, i: usize, frames: Vec<Vec<u8>>) {
        for note in std::mem::take(&mut self.pods[i].kernel.notes) {
            let checked = match note {
                PodNote::Executed { request, execution, sees, .. } => {
                    self.check_client(sees, request.tag.conn);
                    self.note(|| format!("pod {i} executes {} as {execution:#x}", request.tag));
                    self.watch_placement(i, request.tag.conn);
                    self.truth.executed(self.now, i, &request, execution)
                }
                PodNote::Adopted { peer, seq, ack } => {
                    self.note(|| format!("pod {i} adopts :{}", peer.port()));
                    self.truth.adopted(i, peer.port(), seq, ack)
                }
                PodNote::TransferAsked(question) => {
                    self.transfer_asked(i, question);
                    Ok(())
                }
                PodNote::Wrong(what) => Err(format!("stream: {what}")),
            };
            self.expect(checked);
        }
        for frame in frames {
            self.asked.says(i, &frame);
            self.carry(Party::Pod(i), Party::Baton, frame);
        }
    }

    fn client_notes(&mut self, i: usize) {
        for note in std::mem::take(&mut self.clients[i].notes) {
            match note {
                Note::Connects { conn, port, isn } => {
                    self.stats.connections += 1;
                    self.note(|| format!("client {i} opens connection {conn} from :{port}"));
                    self.truth.connects(i, conn, port, isn);
                }
                Note::Open(conn) => {
                    if let Some(conn) = self.truth.conns.get_mut(&conn) {
                        conn.open = true;
                    }
                }
                Note::Begins(request) => {
                    self.stats.requests += 1;
                    self.note(|| format!("client {i} asks {request:?}"));
                    self.truth.begins(self.now, request);
                }
                Note::Wrote(conn, bytes) => self.truth.wrote(conn, &bytes),
                Note::Closes(conn) => {
                    self.note(|| format!("client {i} closes connection {conn}"));
                    if let Some(conn) = self.truth.conns.get_mut(&conn) {
                        conn.client_closed = true;
                    }
                }
                Note::Answered(request, execution) => {
                    self.stats.answered += 1;
                    self.note(|| format!("client {i} has the answer to {}", request.tag));
                    let checked = self.truth.answered(&request, execution);
                    self.expect(checked);
                }
                Note::Ended(conn, end, open) => self.client_ended(i, conn, end, open.len()),
                Note::Wrong(what) => self.violated(format!("stream: client {i}: {what}")),
            }
        }
    }

    /// Sends a frame over the link between two parties.
    pub(super) fn carry(&mut self, from: Party, to: Party, frame: Vec<u8>) {
        let base = self.trace.is_some().then(|| self.base(&frame));
        let shown = base.map(|_| frame.clone());
        let queue = &mut self.queue;
        let (link, event): (_, &dyn Fn(Vec<u8>) -> Event) = match (from, to) {
            (Party::Client(i), _) => {
                (&mut self.client_links[i][0], &move |f| Event::ToEngine(from, f))
            }
            (Party::Pod(i), _) => (&mut self.pod_links[i][0], &move |f| Event::ToEngine(from, f)),
            (_, Party::Client(i)) => {
                (&mut self.client_links[i][1], &move |f| Event::ToClient(i, f))
            }
            (_, Party::Pod(i)) => (&mut self.pod_links[i][1], &move |f| Event::ToPod(i, f)),
            _ => return,
        };
        let fate = link.send(self.now, frame, &mut |at, f| queue.push(at, event(f)));
        self.count_fate(fate);
        if let (Some(trace), Some(base), Some(frame)) = (&mut self.trace, base, shown) {
            trace.sent(self.now, (from, to), base, &frame, fate);
        }
    }

    fn base(&self, frame: &[u8]) -> Base {
        let Some((_, seg)) = receive(frame) else {
            return Base::default();
        };
        let id = [(seg.src, seg.dst), (seg.dst, seg.src)].into_iter().find_map(|(a, b)| match self
            .party_at(
            a,
        )? {
            Party::Client(i) => self.truth.of_client(i, a.port()),
            Party::Pod(i) => self.truth.of_leg(i, b.port()),
            Party::Baton => None,
        });
        let Some((id, conn)) = id.and_then(|id| Some((id, self.truth.conns.get(&id)?))) else {
            return Base::default();
        };
        Base { conn: Some(id), client: conn.isn.0, server: conn.isn.1.unwrap_or_default() }
    }

    fn give_engine(&mut self, from: Party, mut frame: Vec<u8>) {
        let len = frame.len();
        debug_assert!(len <= FRAME_BYTES);
        let port = self.looks_at(from, &frame);
        let span = receive(&frame).map_or(NOWHERE, |(_, seg)| (seg.seq, seg.end()));
        self.stats.frames += 1;
        let dropped = |w: &Self, reason: DropReason| w.engine.dropped(reason);
        let before = self.trace.is_some().then(|| self.states());
        let distrusted = self.distrusted(from, &frame);
        let distrusted = distrusted.map(|why| (why, self.believed()));
        let drops: u64 = DropReason::ALL.iter().map(|r| dropped(self, *r)).sum();
        frame.resize(FRAME_BYTES, 0x5a);
        let verdict = self.engine.frame(Instant(self.now), &mut frame, len, &mut self.out);
        let drops = DropReason::ALL.iter().map(|r| dropped(self, *r)).sum::<u64>() - drops;
        let transmit = match verdict {
            Verdict::Transmit(len) => {
                frame.truncate(len);
                Some(frame)
            }
            _ => None,
        };
        if drops != u64::from(matches!(verdict, Verdict::Drop(_))) {
            self.violated(format!("frames: {verdict:?}, and {drops} counted as dropped"));
        }
        if let Some(before) = before {
            self.note_states(&before, &format!("{verdict:?}"));
        }
        if let Some((why, before)) = distrusted
            && before != self.believed()
        {
            self.violated(why);
        }
        self.engine_ran(from, (port, span), transmit);
    }

    /// What the truth learns from a frame before the engine sees it; the port of ours or of the
    /// client that it names.
    fn looks_at(&mut self, from: Party, frame: &[u8]) -> u16 {
        let Some((_, seg)) = receive(frame) else {
            return 0;
        };
        match from {
            Party::Pod(pod) => {
                let leg = seg.dst.port();
                // An adopter's refusal looks like a reset, and is none.
                let message = seg.options.starts_with(&[253, 28]);
                if message {
                    self.truth.answered.insert(pod);
                }
                if seg.flags.has(Flags::SYN | Flags::ACK) {
                    self.truth.opened((pod, leg), &seg);
                }
                if seg.flags.any(Flags::FIN | Flags::RST) && !message {
                    self.owner_ends(pod, leg, seg.seq);
                }
                if seg.flags.has(Flags::FIN) {
                    self.legs.ends((pod, leg));
                }
                if seg.flags.has(Flags::ACK) && !message {
                    let socket = !seg.flags.has(Flags::RST);
                    self.truth.pod_acks((pod, leg), seg.ack, socket);
                }
                leg
            }
            Party::Client(i) => {
                if seg.flags == Flags::ACK && seg.data.is_empty() && kind(&seg).is_none() {
                    self.spoken = Some((i, frame.to_vec()));
                }
                seg.src.port()
            }
            Party::Baton => 0,
        }
    }

    pub(super) fn poll_engine(&mut self) {
        self.poll_at = None;
        let before = self.trace.is_some().then(|| self.states());
        self.engine.poll(Instant(self.now), &mut self.out);
        if let Some(before) = before {
            self.note_states(&before, "timer");
        }
        self.engine_ran(Party::Baton, (0, NOWHERE), None);
    }

    /// Everything that left the engine in one call.
    pub(super) fn engine_ran(
        &mut self,
        origin: Party,
        (port, (seq, end)): (u16, (SeqNumber, SeqNumber)),
        transmit: Option<Vec<u8>>,
    ) {
        self.touched = true;
        let before = std::mem::replace(&mut self.counts, Counts::of(&self.engine));
        let mut call = Call {
            origin,
            port,
            seq,
            end,
            counted: self.counts.ends - before.ends,
            restores: self.counts.sessions != before.sessions,
        };
        if !self.out.free
            && self.counts.legs_reset > before.legs_reset
            && let Party::Pod(pod) = origin
        {
            self.unsent_resets.extend(self.truth.of_leg(pod, port));
        }
        for frame in std::mem::take(&mut self.out.sent) {
            self.leaves(frame, true, &mut call);
        }
        if let Some(frame) = transmit {
            self.leaves(frame, false, &mut call);
        }
        while let Some(address) = self.engine.next_unresolved() {
            self.queue.push(self.now + 50, Event::Neighbour(address));
        }
        // ListenerReport to nobody yet, for lack of a frame.
        self.untold += call.counted;
    }

    /// A frame leaves the engine: made by it, or the one that came in.
    fn leaves(&mut self, frame: Vec<u8>, own: bool, call: &mut Call) {
        let Some((_, seg)) = receive(&frame) else {
            return self.violated("frames: the engine sends a frame that no kernel takes");
        };
        let Some(to) = self.party_at(seg.dst) else {
            return self
                .violated(format!("frames: the engine sends to {}, who is nobody", seg.dst));
        };
        let (own_mac, next) = (ether_src(&frame), ether_dst(&frame));
        let right = match to {
            Party::Pod(i) => address::pod_mac(i),
            _ => address::ROUTER_MAC,
        };
        if own_mac != address::OUR_MAC || next != right {
            self.violated(format!(
                "frames: to {to} with link-layer addresses {own_mac} and {next}"
            ));
        }
        match to {
            Party::Client(i) => self.leaves_to_client(i, &seg, own, call),
            Party::Pod(i) => self.leaves_to_pod(i, &seg, &frame, own, call),
            Party::Baton => {}
        }
        self.carry(Party::Baton, to, frame);
    }

    fn leaves_to_pod(&mut self, pod: usize, seg: &Seg<'_>, frame: &[u8], own: bool, call: &Call) {
        let port = seg.src.port();
        let message = kind(seg);
        // A client block is no part of the stream.
        let begins = own && (message.is_some() || seg.flags.has(Flags::SYN));
        let data = if begins { &[] } else { seg.data };
        let seq = match message {
            Some(0x70) => seg.seq.add(seg.data.len() as u32),
            _ => seg.seq,
        };
        let seg = &Seg { seq, data, ..*seg };
        match message {
            Some(kind) if own => self.asked.leaves((pod, port), kind, seg),
            Some(_) => {
                return self.violated("options: a message of a client's reaches a pod's adopter");
            }
            None => {}
        }
        // Of these messages only an adoption begins anything of a connection's.
        if matches!(message, Some(0x71 | 0x73..=0x75)) {
            if message == Some(0x75) && self.captured.len() < CAPTURED_MAX {
                self.captured.push((pod, frame.to_vec()));
            }
            return;
        }
        if !own {
            if let Party::Client(i) = call.origin
                && let Some(conn) = self.truth.of_numbers(i, call.port, Some(call.seq), None)
            {
                if let Some((_, true)) = self.truth.another_of_port((pod, port), conn) {
                    // Of an earlier connection of that port, and late: the pod's kernel throws it
                    // away, by its numbers.
                    return;
                }
                // What its pod has had of it before does not go on.
                let len = seg.end().since(seg.seq);
                self.is_on_leg((pod, port), conn, seg, Some(call.end.sub(len as u32)));
            }
        } else if message.is_none() && !seg.flags.any(Flags::SYN | Flags::RST) {
            // A bare FIN may be that of a leg which closes.
            if self.truth.legs_are_shared()
                && (!seg.flags.has(Flags::FIN) || !seg.data.is_empty())
                && let Some((conn, _)) = self.flow_on(pod, port, self.client_asks(call), None)
            {
                // The client's port may have a later one, of which the engine has not heard yet.
                let before = self.truth.another_of_port((pod, port), conn);
                let known = self.truth.conns.get(&conn).is_some_and(|c| c.open);
                let conn = match (before, self.client_asks(call)) {
                    (Some((before, false)), None) if !known => before,
                    _ => conn,
                };
                self.is_on_leg((pod, port), conn, seg, None);
            }
        } else if (message.is_some() || (seg.flags.has(Flags::SYN) && !seg.options.is_empty()))
            && let Some((conn, _)) = self.flow_on(pod, port, Some(seg.seq), None)
        {
            self.truth.leg_is(pod, port, conn);
        }
        if let Some(conn) = self.truth.of_leg(pod, port) {
            // A bare ACK may still go to the old owner, and a question to a leg that is parked.
            let begins = message.is_some() || seg.flags.has(Flags::SYN);
            if begins || !(seg.data.is_empty() || seg.data == [0]) {
                self.truth.goes_over(conn, (pod, port));
            }
            let start = match message {
                Some(_) => Some((seg.seq.0, seg.ack.0)),
                None => seg.flags.has(Flags::SYN).then_some((seg.seq.0, 0)),
            };
            let checked = match (message, seg.flags.has(Flags::SYN)) {
                (Some(_), _) => Ok(()),
                (None, true) => self.truth.syn_leaves((pod, port), conn, seg.seq, own),
                // A late copy of the client's SYN opened it again, with what the client says yet.
                (None, false) if self.truth.is_over(conn) => Ok(()),
                (None, false) => self.truth.on_opened((pod, port), seg),
            };
            self.expect(checked);
            let reset = seg.flags.has(Flags::RST);
            let checked = self.legs.sent(self.now, (pod, port), conn, start, reset);
            self.expect(checked);
        }
        if message.is_some() {
            self.spring_ambush(pod, seg);
            if self.captured.len() < CAPTURED_MAX {
                self.captured.push((pod, frame.to_vec()));
            }
            let checked = self.truth.adoption_leaves(pod, port, seg.seq, seg.ack, !call.restores);
            return self.expect(checked);
        }
        // One byte that the other side has: the engine's, or smoltcp's. No client writes such a
        // byte.
        let keepalive = seg.data == [0];
        let restores = own && call.restores;
        // Whether it is right its application says.
        let header = own && seg.data.starts_with(PROXY_SIGNATURE);
        if seg.data.is_empty() || keepalive || restores || header {
            return;
        }
        if let Some(conn) = self.truth.of_leg(pod, port) {
            let seq = self.truth.as_client_has((pod, port), seg.seq);
            let checked = self.truth.to_pod(conn, (pod, port), seq, seg.data);
            self.expect(checked);
        }
    }

    /// The number of the client's frame that this is about. Its port may have another connection by
    /// now, of which the engine has heard nothing.
    fn client_asks(&self, call: &Call) -> Option<SeqNumber> {
        matches!(call.origin, Party::Client(_)).then_some(call.seq)
    }

    /// A segment of a connection leaves on a leg: on its own, or on one that is its from now on.
    fn is_on_leg(&mut self, leg: (usize, u16), conn: u32, seg: &Seg<'_>, own: Option<SeqNumber>) {
        let before = self.truth.of_leg(leg.0, leg.1);
        let begins = seg.flags.has(Flags::SYN);
        // It may come back to a leg that it had before.
        let comes = match own {
            Some(own) => self.truth.as_client_has(leg, seg.seq) != own,
            None => self.truth.is_elsewhere(conn, leg),
        };
        let its = before.is_none_or(|before| before == conn) && !comes;
        let stays = its || begins || !seg.flags.has(Flags::ACK);
        if stays || !self.truth.legs_are_shared() {
            return self.truth.leg_is(leg.0, leg.1, conn);
        }
        // One byte in front of the next one asks whether the socket lives.
        let next = seg.seq.add(u32::from(seg.data == [0]));
        self.truth.shares(leg, conn, (next, seg.ack), own);
        self.legs.shared(self.now, leg, conn);
    }

    fn leaves_to_client(&mut self, client: usize, seg: &Seg<'_>, own: bool, call: &mut Call) {
        let port = seg.dst.port();
        if port < ATTACKER_PORTS_TO {
            return;
        }
        let acked = seg.flags.has(Flags::ACK).then_some(seg.ack);
        let Some(id) = self.truth.of_numbers(client, port, acked, Some(seg.seq)) else {
            return self.violated(format!(
                "frames: to client {client}, port {port}, which has no connection"
            ));
        };
        if seg.src != self.scenario.frontend {
            self.violated(format!("frames: to client {client} from {}", seg.src));
        }
        // What its stack has agreed to stays, whatever a pod that was replaced says to a late SYN.
        if seg.flags.has(Flags::SYN)
            && let Some(conn) = self.truth.conns.get_mut(&id)
            && !conn.open
            && conn.server_next().is_none_or(|next| Some(next) == conn.isn.1.map(|isn| isn.add(1)))
        {
            conn.isn.1 = Some(seg.seq);
        }
        if !seg.data.is_empty() {
            match call.origin {
                Party::Pod(pod) if !own => {
                    let before = self.truth.conns.get(&id).and_then(|c| c.speaker);
                    let checked = self.truth.to_client(id, (pod, call.port), seg.seq, seg.data);
                    self.expect(checked);
                    let after = self.truth.conns.get(&id).and_then(|c| c.speaker);
                    if let Some(after) = after.filter(|_| before != after) {
                        self.legs.moved(before, after);
                    }
                }
                _ => self.violated(format!(
                    "single owner: data of the engine's own towards connection {id}"
                )),
            }
        }
        if own && seg.flags.has(Flags::ACK) && !seg.flags.has(Flags::RST) {
            let checked = self.truth.acknowledges(id, seg.ack);
            self.expect(checked);
        }
        if seg.flags.any(Flags::FIN | Flags::RST) {
            self.judge_end(id, seg, own, call);
        }
    }
}
