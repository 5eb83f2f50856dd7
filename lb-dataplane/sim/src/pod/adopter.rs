//! The adopter at a pod's ingress, as `docs/adoption-wire.md` and
//! `host-shim/adopter/src/bpf/adopter.bpf.c` have it.
//!
//! Owns its keys, its memory of recent adoptions and the judgement of one message. It makes no
//! socket; the kernel model does.

use crate::{clock::Time, tcp::wire::Seg};
use baton_packet::{
    ADOPTION_HEADER_BYTES, Adoption, AdoptionKey, Destination, Flags, Listener, ListenerReport,
    LoadReport, Mac, MessageKind, Reason, Segment, SegmentSpec, SeqNumber, StallTotal,
    build_adoption, parse_adoption,
};
use std::{
    collections::BTreeMap,
    net::SocketAddr,
    num::{NonZeroU8, NonZeroU16},
};

/// The BPF map holds 65,536; a world makes some hundreds.
const RECENT_MAX: usize = 4_096;
/// `bpf_sk_assign_tcp_reqsk` takes no MSS below these.
const MSS_MIN_V4: u16 = 536;
const MSS_MIN_V6: u16 = 1_220;

/// What sits on the tuple of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing at all.
    Nothing,
    /// A listener: its accept queue is full or not.
    Listener {
        /// No room for one more.
        full: bool,
    },
    /// Another socket, with its next expected byte.
    Socket(SeqNumber),
    /// A TIME_WAIT, likewise.
    TimeWait(SeqNumber),
}

/// What becomes of a frame at the ingress.
#[derive(Debug)]
pub enum Judgement {
    /// No message: the stack sees it.
    NotMine,
    /// A message that is dropped and counted.
    Dropped,
    /// Answered with this frame.
    Answered(Reason, Vec<u8>),
    /// An adoption repeated while its socket lives: the stack sees it.
    Repeated,
    /// The kernel is to make a socket of it.
    Adopt(Adoption),
    /// The kernel is to let go of the socket on the tuple, if that is as the message says.
    Release,
    /// host-shim is to hand the socket on the tuple to another pod.
    Transfer(Question),
}

/// A Transfer, as its copies are known again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Question {
    /// The connection's other end.
    pub peer: SocketAddr,
    /// The message's numbers.
    pub numbers: (u32, u32),
    /// Where it leads.
    pub to: Destination,
}

/// One pod's adopter.
pub struct Adopter {
    /// Whether it is attached at all.
    pub attached: bool,
    /// Live keys by epoch.
    pub keys: Vec<(u8, AdoptionKey)>,
    /// `net.ipv4.tcp_syncookies` is not 0.
    pub syncookies: bool,
    /// The listener is an MPTCP one.
    pub mptcp: bool,
    /// What it tells of its pod: whether ends of processes that exit are marked, and which listener
    /// there is.
    pub told: ListenerReport,
    /// Its kernel has the pod's group stand still for nine tenths of the time since.
    pub stalled_since: Option<Time>,
    /// The number of the pod's network namespace, and since when.
    pub namespace: (u64, Time),
    /// Adoptions that were decided, with the refusal or `None`.
    recent: BTreeMap<(SocketAddr, u32, u32), Option<Reason>>,
    /// Releases that were decided, with the answer.
    releases: BTreeMap<(SocketAddr, u32, u32), Reason>,
    /// Transfers that host-shim was told of, with the answer once there is one.
    transfers: BTreeMap<Question, Option<Reason>>,
}

impl Default for Adopter {
    fn default() -> Self {
        Self {
            attached: true,
            keys: Vec::new(),
            syncookies: true,
            mptcp: false,
            told: ListenerReport::default(),
            stalled_since: None,
            namespace: (1, 0),
            recent: BTreeMap::new(),
            releases: BTreeMap::new(),
            transfers: BTreeMap::new(),
        }
    }
}

impl Adopter {
    /// Another listener than before, held by one process.
    pub fn next_listener(&mut self) {
        let id = self.told.listener.map_or(1, |l| l.id.wrapping_add(1));
        self.told.listener = self.told.marks_exits.then_some(Listener {
            id,
            holders: NonZeroU8::MIN,
            several: false,
        });
    }

    /// In a new network namespace: nothing is known of what was adopted, and the number is another
    /// one.
    pub fn forget(&mut self, now: Time) {
        self.recent.clear();
        self.releases.clear();
        self.transfers.clear();
        self.namespace = (self.namespace.0 + 1, now);
    }

    /// Judges a frame. `find` looks for a socket on the tuple, `listener` for the listener alone.
    pub fn judge(
        &mut self,
        frame: &[u8],
        segment: &Segment,
        seg: &Seg<'_>,
        macs: (Mac, Mac),
        (on_tuple, listener): (Found, Found),
        now: Time,
    ) -> Judgement {
        let head = seg.options.first_chunk::<4>();
        let is_message = matches!(head, Some([253, 28, 0xba, 0x70..=0x75]));
        if !self.attached || !is_message || seg.options.len() < 28 {
            return Judgement::NotMine;
        }
        let whole = usize::from(segment.payload) == usize::from(segment.l4) + ADOPTION_HEADER_BYTES;
        let Some(raw) = parse_adoption(frame, segment).filter(|_| whole) else {
            return Judgement::Dropped;
        };
        let live = self.keys.iter().find(|(epoch, _)| epoch & 15 == raw.epoch());
        let Some((epoch, key)) = live.cloned() else {
            return Judgement::Dropped;
        };
        let Some(message) = raw.verify(&key) else {
            return Judgement::Dropped;
        };
        let seg = &Seg { seq: seg.seq.add(message.kind.in_front()), ..*seg };
        let elsewhere = message.namespace != self.namespace.0;
        let (reason, detail) = match message.kind {
            MessageKind::Answer(_) => return Judgement::Dropped,
            MessageKind::Forget if elsewhere => return Judgement::Dropped,
            MessageKind::Adopt | MessageKind::Release | MessageKind::Transfer if elsewhere => {
                (Reason::Renew, ((now - self.namespace.1) / 1_000) as u32)
            }
            MessageKind::Probe => match self.obstacle(listener, None) {
                Some(Reason::NoListener) => (Reason::NoListener, 0),
                obstacle => (obstacle.unwrap_or(Reason::Ready), self.told.field()),
            },
            MessageKind::Forget => match on_tuple {
                Found::Nothing | Found::Listener { .. } => (Reason::Forgotten, 0),
                Found::TimeWait(_) => (Reason::TupleInUse, 0),
                // In front of an adoption that met silence.
                Found::Socket(_) if message.wscale_ok => (Reason::TupleInUse, 0),
                Found::Socket(_) => return Judgement::Dropped,
            },
            // Who looks at sockets answers nobody; later copies are.
            MessageKind::Release => match self.releases.get(&(seg.src, seg.seq.0, seg.ack.0)) {
                Some(reason) => (*reason, 0),
                None => return Judgement::Release,
            },
            MessageKind::Transfer => {
                let stamps = seg.stamps.unwrap_or_default();
                let Some(to) = Destination::from_message(&message, segment.window, stamps, None)
                else {
                    return Judgement::Dropped;
                };
                let question = Question { peer: seg.src, numbers: (seg.seq.0, seg.ack.0), to };
                match self.transfers.get(&question) {
                    Some(Some(reason)) => (*reason, to.peer_port.into()),
                    Some(None) => return Judgement::Dropped,
                    None => {
                        self.transfers.insert(question, None);
                        return Judgement::Transfer(question);
                    }
                }
            }
            MessageKind::Adopt => match self.adopt(seg, &message, on_tuple) {
                Ok(judgement) => return judgement,
                Err(refusal) => refusal,
            },
        };
        let content = Adoption {
            server_ts: detail,
            namespace: self.namespace.0,
            ..Adoption::bare(MessageKind::Answer(reason), epoch)
        };
        let load = match message.kind {
            MessageKind::Probe if reason != Reason::NoListener => self.load(now).fields(),
            _ => seg.stamps.unwrap_or_default(),
        };
        let seg = &Seg { stamps: seg.stamps.map(|_| load), ..*seg };
        let answer = answer(seg, macs, &content, &key);
        Judgement::Answered(reason, answer)
    }

    fn load(&self, now: Time) -> LoadReport {
        let stalled_us = self.stalled_since.map_or(0, |since| (now - since) / 10 * 9);
        LoadReport {
            queue: 0,
            room: NonZeroU16::MAX,
            drops: 0,
            throttled_now: false,
            throttled: Some(StallTotal::of_ns(stalled_us * 1_000)),
            pressure: None,
        }
    }

    /// What became of a Transfer.
    pub fn transferred(&mut self, question: Question, reason: Reason) {
        self.transfers.insert(question, Some(reason));
    }

    fn obstacle(&self, found: Found, adoption: Option<(&Adoption, bool)>) -> Option<Reason> {
        match found {
            Found::Nothing | Found::Socket(_) | Found::TimeWait(_) => {
                return Some(Reason::NoListener);
            }
            Found::Listener { .. } if !self.syncookies => return Some(Reason::SyncookiesOff),
            Found::Listener { full: true } => return Some(Reason::AcceptQueueFull),
            Found::Listener { full: false } if self.mptcp => return Some(Reason::KernelRefused),
            Found::Listener { full: false } => {}
        }
        let small =
            adoption.is_some_and(|(a, v6)| a.mss < if v6 { MSS_MIN_V6 } else { MSS_MIN_V4 });
        small.then_some(Reason::KernelRefused)
    }

    /// What became of a Release.
    pub fn released(&mut self, seg: &Seg<'_>, reason: Reason) {
        if self.releases.len() >= RECENT_MAX {
            self.releases.pop_first();
        }
        self.releases.insert((seg.src, seg.seq.0, seg.ack.0), reason);
    }

    /// All copies of an adoption have one fate, as long as it is remembered.
    fn adopt(
        &mut self,
        seg: &Seg<'_>,
        message: &Adoption,
        found: Found,
    ) -> Result<Judgement, (Reason, u32)> {
        let in_the_way = match found {
            Found::Socket(rcv_nxt) | Found::TimeWait(rcv_nxt) => rcv_nxt.0,
            _ => 0,
        };
        let this = (seg.src, seg.seq.0, seg.ack.0);
        if let Some(fate) = self.recent.get(&this) {
            return match (fate, found) {
                (None, Found::Socket(_) | Found::TimeWait(_)) => Ok(Judgement::Repeated),
                (None, _) => Err((Reason::AlreadyAdopted, 0)),
                (Some(Reason::TupleInUse), _) => Err((Reason::TupleInUse, in_the_way)),
                (Some(reason), _) => Err((*reason, 0)),
            };
        }
        let refusal = match found {
            Found::Nothing => Some(Reason::NoListener),
            Found::Socket(_) | Found::TimeWait(_) => Some(Reason::TupleInUse),
            Found::Listener { .. } => self.obstacle(found, Some((message, seg.src.is_ipv6()))),
        };
        if self.recent.len() >= RECENT_MAX {
            self.recent.pop_first();
        }
        self.recent.insert(this, refusal);
        match refusal {
            Some(reason) => Err((reason, in_the_way)),
            None => Ok(Judgement::Adopt(*message)),
        }
    }
}

/// The answer to a message: ends swapped, numbers swapped, timestamps as they came. A SYN's number
/// is acknowledged.
pub(crate) fn answer(
    seg: &Seg<'_>,
    (own, via): (Mac, Mac),
    content: &Adoption,
    key: &AdoptionKey,
) -> Vec<u8> {
    let spec = SegmentSpec {
        src_mac: own,
        dst_mac: via,
        src: seg.dst.ip(),
        dst: seg.src.ip(),
        src_port: seg.dst.port(),
        dst_port: seg.src.port(),
        seq: seg.ack,
        ack: seg.seq.add(u32::from(seg.flags.has(Flags::SYN))),
        flags: Flags::RST | Flags::ACK,
        window: 0,
        timestamps: seg.stamps,
        payload: &[],
    };
    let mut buffer = [0; 128];
    let len = build_adoption(&mut buffer, &spec, content, key).unwrap_or(0);
    buffer[..len].to_vec()
}
