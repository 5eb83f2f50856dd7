//! A pod's kernel: sockets by 4-tuple, the listener with its accept queue, and the adopter in front
//! of them.
//!
//! Owns every socket of the pod, whoever has it. It never reads what is said over a connection.

use super::{
    Cause, PodNote,
    adopter::{Adopter, Found, Judgement},
    restored::{Restored, Told},
};
use crate::{
    clock::Time,
    tcp::{
        Adopted, Config, Effect, Socket, State,
        wire::{Ends, Seg, receive, reset_for},
    },
};
use baton_packet::{
    Adoption, Decoded, EndMark, Flags, Mac, MessageKind, Reason, SeqNumber, decode, put_end_mark,
};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::SocketAddr,
};

/// Request sockets at one time (Linux `tcp_max_syn_backlog`, at least 128).
const REQUESTS_MAX: usize = 128;

/// Who has a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// A request socket: SYN-ACK sent.
    Request,
    /// In the accept queue.
    Queue,
    /// The process, or nobody any more.
    Process,
}

struct Slot {
    socket: Socket,
    place: Place,
}

/// One pod's kernel.
pub struct Kernel {
    at: SocketAddr,
    /// Own link-layer address and the next hop's.
    macs: (Mac, Mac),
    config: Config,
    backlog: usize,
    listening: bool,
    sockets: BTreeMap<SocketAddr, Slot>,
    queue: VecDeque<SocketAddr>,
    ends: BTreeMap<SocketAddr, Cause>,
    /// Tuples whose sockets other pods have: what comes for these draws no RST.
    moved: BTreeSet<SocketAddr>,
    rng: fastrand::Rng,
    /// The adopter.
    pub adopter: Adopter,
    /// What it was told of clients.
    pub restored: Restored,
    /// What happened since the world looked.
    pub notes: Vec<PodNote>,
    /// SYNs and handshakes that met a full accept queue.
    pub overflows: u64,
}

impl Kernel {
    /// A kernel without a listener.
    #[must_use]
    pub fn new(
        at: SocketAddr,
        macs: (Mac, Mac),
        backlog: usize,
        buffer: u32,
        delayed_ack_us: Time,
        seed: u64,
    ) -> Self {
        Self {
            at,
            macs,
            config: Config {
                mss: if at.is_ipv6() { 1_440 } else { 1_460 },
                scale: Some(7),
                sack: true,
                stamps: true,
                buffer,
                delayed_ack_us,
            },
            backlog,
            listening: false,
            sockets: BTreeMap::new(),
            queue: VecDeque::new(),
            ends: BTreeMap::new(),
            moved: BTreeSet::new(),
            rng: fastrand::Rng::with_seed(seed),
            adopter: Adopter::default(),
            restored: Restored::default(),
            notes: Vec::new(),
            overflows: 0,
        }
    }

    /// The process listens.
    pub fn listen(&mut self) {
        self.listening = true;
        self.adopter.next_listener();
    }

    /// Whether it does.
    #[must_use]
    pub fn is_listening(&self) -> bool {
        self.listening
    }

    /// Why the socket towards a peer ended, if it did.
    #[must_use]
    pub fn cause(&self, peer: &SocketAddr) -> Option<Cause> {
        self.ends.get(peer).copied()
    }

    /// The state of the socket towards a peer.
    #[must_use]
    pub fn state(&self, peer: &SocketAddr) -> Option<State> {
        self.sockets.get(peer).map(|slot| slot.socket.state())
    }

    /// The process closes its listener: what it did not accept is reset (Linux
    /// `inet_csk_listen_stop`).
    pub fn close_listener(&mut self, now: Time, out: &mut Vec<Vec<u8>>) {
        self.listening = false;
        for peer in std::mem::take(&mut self.queue) {
            if let Some(mut slot) = self.sockets.remove(&peer) {
                self.ends.insert(peer, Cause::Crash);
                out.extend(slot.socket.abort(now));
            }
        }
        let ends = &mut self.ends;
        self.sockets.retain(|peer, slot| {
            let stays = slot.place != Place::Request;
            if !stays {
                ends.insert(*peer, Cause::Crash);
            }
            stays
        });
    }

    /// The process is gone: the kernel closes what it had (Linux `tcp_close`).
    pub fn forsake_all(&mut self, now: Time, out: &mut Vec<Vec<u8>>) {
        let peers: Vec<SocketAddr> = self.sockets.keys().copied().collect();
        for peer in peers {
            self.forsake(now, &peer, Cause::Crash, out);
        }
    }

    /// Closes one socket for good: FIN, or RST where bytes were left unread.
    pub fn forsake(&mut self, now: Time, peer: &SocketAddr, why: Cause, out: &mut Vec<Vec<u8>>) {
        let Some(slot) = self.sockets.get_mut(peer) else {
            return;
        };
        if slot.socket.is_orphan() {
            return;
        }
        self.ends.entry(*peer).or_insert(why);
        if slot.socket.orphan() {
            slot.socket.poll(now, out);
        } else {
            out.extend(slot.socket.abort(now));
        }
    }

    /// The application resets a connection.
    pub fn abort(&mut self, now: Time, peer: &SocketAddr, why: Cause, out: &mut Vec<Vec<u8>>) {
        if let Some(mut slot) = self.sockets.remove(peer) {
            self.ends.entry(*peer).or_insert(why);
            out.extend(slot.socket.abort(now));
        }
    }

    /// Another pod has the address: nothing is left.
    pub fn forget_all(&mut self, now: Time) {
        self.sockets.clear();
        self.queue.clear();
        self.ends.clear();
        self.moved.clear();
        self.restored = Restored::default();
        self.adopter.forget(now);
        self.listening = false;
    }

    /// `accept()`.
    pub fn accept(&mut self) -> Option<SocketAddr> {
        let peer = self.queue.pop_front()?;
        if let Some(slot) = self.sockets.get_mut(&peer) {
            slot.place = Place::Process;
        }
        Some(peer)
    }

    /// Whether connections wait to be accepted.
    #[must_use]
    pub fn has_waiting(&self) -> bool {
        !self.queue.is_empty()
    }

    /// The socket that the process has towards a peer.
    pub fn socket(&mut self, peer: &SocketAddr) -> Option<&mut Socket> {
        let slot = self.sockets.get_mut(peer)?;
        (slot.place == Place::Process).then_some(&mut slot.socket)
    }

    /// When [`Kernel::poll`] has to be called at the latest.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.sockets.values().filter_map(|s| s.socket.deadline()).min()
    }

    /// Sends what is due.
    pub fn poll(&mut self, now: Time, out: &mut Vec<Vec<u8>>) {
        for slot in self.sockets.values_mut() {
            if slot.socket.deadline().is_some_and(|at| at <= now) || slot.socket.unsent() > 0 {
                slot.socket.poll(now, out);
            }
        }
        let queue = &self.queue;
        self.sockets.retain(|peer, slot| {
            // What the process has not seen yet stays, to be accepted and found dead.
            slot.socket.state() != State::Closed
                || (slot.place == Place::Queue && queue.contains(peer))
                || (slot.place == Place::Process && !slot.socket.is_orphan())
        });
    }

    /// Linux `sk_acceptq_is_full`.
    fn is_full(&self) -> bool {
        self.queue.len() > self.backlog
    }

    fn listener(&self) -> Found {
        if self.listening { Found::Listener { full: self.is_full() } } else { Found::Nothing }
    }

    fn find(&self, peer: &SocketAddr) -> Found {
        match self.sockets.get(peer) {
            Some(slot) if slot.socket.state() == State::TimeWait => {
                Found::TimeWait(slot.socket.rcv_nxt())
            }
            Some(slot) if slot.socket.state() != State::Closed => {
                Found::Socket(slot.socket.rcv_nxt())
            }
            _ => self.listener(),
        }
    }

    /// A frame arrived.
    pub fn frame(&mut self, now: Time, frame: &[u8], out: &mut Vec<Vec<u8>>) {
        let Some((segment, mut seg)) = receive(frame) else {
            return;
        };
        if seg.dst != self.at {
            if seg.dst.ip() == self.at.ip() {
                out.extend(reset_for(&self.ends_of(&seg), &seg));
            }
            return;
        }
        match self.adopter.take_block(frame, &segment, &mut seg) {
            Told::Nothing => {}
            Told::Bad => return,
            Told::Begins(client) => {
                if let Err(why) = self.restored.begins(&seg, client) {
                    self.notes.push(PodNote::Wrong(why));
                }
            }
        }
        let found = (self.find(&seg.src), self.listener());
        let judgement = self.adopter.judge(frame, &segment, &seg, self.macs, found, now);
        match judgement {
            Judgement::Dropped => {}
            Judgement::Answered(reason, answer) => {
                if reason == Reason::Forgotten {
                    self.moved.remove(&seg.src);
                }
                out.push(answer);
            }
            Judgement::Adopt(message) => self.adopt(now, &seg, &message),
            Judgement::Release => {
                let seg = Seg { seq: seg.seq.add(MessageKind::Release.in_front()), ..seg };
                self.release(now, &seg, out);
            }
            Judgement::Transfer(question) => {
                self.notes.push(PodNote::TransferAsked(question));
            }
            Judgement::NotMine | Judgement::Repeated => self.segment(now, &seg, out),
        }
    }

    /// As the adopter's iterator does (`bpf_sock_destroy`): a socket of which nothing was read from
    /// the message's number on, and nothing written beyond its acknowledgement, is reset with the
    /// mark of that.
    fn release(&mut self, now: Time, seg: &Seg<'_>, out: &mut Vec<Vec<u8>>) {
        let mut reason = Reason::Kept;
        if let Some(slot) = self.sockets.get_mut(&seg.src)
            && slot.place != Place::Request
            && !slot.socket.is_orphan()
            && slot.socket.state() == State::Established
            && slot.socket.read_to() == seg.seq
            && slot.socket.snd_nxt() == seg.ack
            && slot.socket.unsent() == 0
        {
            reason = Reason::Released;
            self.ends.insert(seg.src, Cause::Released);
            if let Some(mut frame) = slot.socket.abort(now) {
                if let Ok(Decoded::Tcp(segment)) = decode(&frame) {
                    put_end_mark(&mut frame, &segment, EndMark::Released);
                }
                out.push(frame);
            }
        }
        self.adopter.released(seg, reason);
    }

    fn ends_of(&self, seg: &Seg<'_>) -> Ends {
        Ends { mac: self.macs.0, via: self.macs.1, local: seg.dst, remote: seg.src }
    }

    fn adopt(&mut self, now: Time, seg: &Seg<'_>, message: &Adoption) {
        let how = Adopted {
            mss: message.mss,
            scales: message.wscale_ok.then_some((message.server_wscale, message.client_wscale)),
            sack: message.sack_ok,
            stamps: message
                .timestamps_ok
                .then(|| (message.server_ts, seg.stamps.map_or(0, |(value, _)| value))),
        };
        let socket = Socket::adopt(self.config, self.ends_of(seg), now, seg, &how);
        self.notes.push(PodNote::Adopted { peer: seg.src, seq: seg.seq, ack: seg.ack });
        self.insert(seg.src, socket, Place::Queue);
        self.queue.push_back(seg.src);
    }

    fn segment(&mut self, now: Time, seg: &Seg<'_>, out: &mut Vec<Vec<u8>>) {
        let full = self.is_full();
        let Some(slot) = self.sockets.get_mut(&seg.src) else {
            return self.without_socket(seg, out);
        };
        if slot.socket.state() == State::Closed {
            return self.without_socket(seg, out);
        }
        if slot.place == Place::Request {
            let completes = seg.flags.has(Flags::ACK) && !seg.flags.any(Flags::SYN | Flags::RST);
            if completes && full {
                // Linux `tcp_check_req`: dropped, and the SYN-ACK is repeated by its timer.
                self.overflows += 1;
                return;
            }
        }
        match slot.socket.segment(now, seg, out) {
            Effect::None => {}
            Effect::Opened => {
                slot.place = Place::Queue;
                self.queue.push_back(seg.src);
            }
            Effect::Reopen => {
                let isn = slot.socket.snd_nxt().add(65_537);
                self.sockets.remove(&seg.src);
                self.open(seg, isn, out);
            }
        }
    }

    fn without_socket(&mut self, seg: &Seg<'_>, out: &mut Vec<Vec<u8>>) {
        let syn = seg.flags.has(Flags::SYN) && !seg.flags.any(Flags::ACK | Flags::RST);
        if self.listening && syn {
            let isn = SeqNumber(self.rng.u32(..));
            self.open(seg, isn, out);
        } else if syn || !self.moved.contains(&seg.src) {
            out.extend(reset_for(&self.ends_of(seg), seg));
        }
    }

    /// The process's open socket towards a peer, for another pod's kernel: it ends here without a
    /// word (`TCP_REPAIR`). None if there is no such socket.
    pub fn hand_out(&mut self, peer: &SocketAddr) -> Option<Socket> {
        let slot = self.sockets.get(peer)?;
        let whole = slot.place == Place::Process
            && slot.socket.state() == State::Established
            && !slot.socket.is_orphan();
        if !whole {
            return None;
        }
        self.moved.insert(*peer);
        self.sockets.remove(peer).map(|slot| slot.socket)
    }

    /// Whether a socket could be put on the tuple of a peer.
    #[must_use]
    pub fn is_free(&self, peer: &SocketAddr) -> bool {
        matches!(self.find(peer), Found::Nothing | Found::Listener { .. })
    }

    /// Takes another pod's socket over, towards this peer.
    pub fn take_over(&mut self, now: Time, peer: SocketAddr, mut socket: Socket) {
        socket.restored(
            now,
            Ends { mac: self.macs.0, via: self.macs.1, local: self.at, remote: peer },
        );
        self.insert(peer, socket, Place::Process);
    }

    /// Linux `tcp_conn_request`.
    fn open(&mut self, seg: &Seg<'_>, isn: SeqNumber, out: &mut Vec<Vec<u8>>) {
        if !self.listening {
            out.extend(reset_for(&self.ends_of(seg), seg));
            return;
        }
        let requests = self.sockets.values().filter(|s| s.place == Place::Request);
        if self.is_full() || requests.count() >= REQUESTS_MAX {
            self.overflows += 1;
            return;
        }
        let socket = Socket::answer(self.config, self.ends_of(seg), isn, seg);
        self.insert(seg.src, socket, Place::Request);
    }

    /// A new socket on a tuple. One that is over may still be there for the process to find; it
    /// never does.
    fn insert(&mut self, peer: SocketAddr, socket: Socket, place: Place) {
        self.ends.remove(&peer);
        self.moved.remove(&peer);
        self.queue.retain(|waiting| *waiting != peer);
        self.sockets.insert(peer, Slot { socket, place });
    }

    /// An open connection with `peer` that nobody remembers, its client's next byte at `seq`.
    pub fn leave_behind(&mut self, now: Time, peer: SocketAddr, seq: SeqNumber) {
        let ends = Ends { mac: self.macs.0, via: self.macs.1, local: self.at, remote: peer };
        let seg = Seg {
            src: peer,
            dst: self.at,
            seq,
            ack: SeqNumber(!seq.0),
            flags: Flags::ACK,
            window: 500,
            stamps: Some((seq.0, 0)),
            options: &[],
            data: &[],
        };
        let how = Adopted {
            mss: self.config.mss,
            scales: Some((7, 7)),
            sack: true,
            stamps: Some((0, seq.0)),
        };
        let socket = Socket::adopt(self.config, ends, now, &seg, &how);
        self.insert(peer, socket, Place::Process);
    }

    /// Sockets that are not over.
    #[must_use]
    pub fn alive(&self) -> usize {
        self.sockets.len()
    }
}
