//! Applications' connections to host-shim. Owns their limits and what is read of them at a time; an
//! application that reads nothing, says what nobody asked for, or fills its share, costs nobody
//! else anything. Knows no Transfers.

use super::{Place, decide::LinkId};
use baton_sdk::{
    packet::{self, Nothing},
    wire::{Message, VERSION, reason},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::{Duration, Instant},
};

/// Applications of one pod: a process each, and servers have one for each CPU at most.
pub const LINKS_MAX: usize = 64;
/// Applications of all pods, each with a descriptor: 64 pods that have as many as they may.
const LINKS_OF_NODE_MAX: usize = 64 * LINKS_MAX;
/// Ports of one pod's applications: as many as leave room in the adopter's table (`PORTS_MAX` of
/// `bpf/transfer.h`) for 64 pods that have as many as they may.
const PORTS_OF_POD_MAX: usize = 256;
/// An application says Hello as soon as it is connected.
const HELLO_FOR: Duration = Duration::from_secs(2);
/// What is read of one application before the others have their turn.
pub const MESSAGES_IN_TURN: usize = 16;
/// Connections whose owner is in doubt: an application asks once for each that it was handing out
/// when host-shim ended ([`super::open::TRANSFERS_OF_POD_MAX`]).
const DOUBTS_MAX: u32 = 128;

/// Why an application's connection was refused or closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::VariantArray, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Refused {
    /// The pod, or the node, has too many, or the pod's listen on too many ports.
    TooMany,
    /// It sent what is no message, or another version.
    Malformed,
    /// It answered what nobody had asked.
    Stray,
    /// It reads nothing.
    Slow,
    /// What its pod handed over does not close.
    Unclosed,
    /// It said no Hello.
    Silent,
}

impl Refused {
    /// All, in the order of their numbers.
    pub const ALL: &'static [Self] = <Self as strum::VariantArray>::VARIANTS;

    /// For metrics.
    pub fn label(self) -> &'static str {
        self.into()
    }
}

/// A pod whose applications may connect.
pub struct Pod {
    pub place: Place,
    pub listener: Option<(u64, OwnedFd)>,
    /// How many applications listen on each port.
    pub ports: BTreeMap<u16, usize>,
    pub links: usize,
    /// Its trouble has been told.
    pub told: bool,
    /// Where other nodes' host-shims connect, while it has an application.
    pub door: Option<(u64, OwnedFd)>,
    pub door_told: bool,
}

/// One application.
#[derive(Debug)]
pub struct Link {
    pub id: LinkId,
    /// Of which pod, by its namespace's cookie.
    pub pod: u64,
    /// What it sent and nobody read may be in it: see [`super::closers`].
    pub socket: OwnedFd,
    /// Where it listens, once it has said Hello.
    pub ports: Option<Vec<u16>>,
    /// Answers that it may still give.
    owed: u32,
    doubts: u32,
    since: Instant,
}

/// What an application said, or how it ended.
#[derive(Debug)]
pub enum Heard {
    /// It is known from now on.
    Hello(Vec<u16>),
    Said(Message, Option<OwnedFd>),
    /// There is nothing more.
    Nothing,
    Closed(Option<Refused>),
}

/// Why a pod gets no more applications, if so many are connected of it and of all pods.
pub fn no_room(of_pod: usize, of_node: usize) -> Option<String> {
    if of_pod >= LINKS_MAX {
        return Some(format!("{LINKS_MAX} applications of the pod are connected"));
    }
    let full = of_node >= LINKS_OF_NODE_MAX;
    full.then(|| format!("{LINKS_OF_NODE_MAX} applications of the node are connected"))
}

impl Pod {
    /// Whether its applications may listen on these, too.
    pub fn has_room_for(&self, ports: &[u16]) -> bool {
        let new: BTreeSet<_> = ports.iter().filter(|p| !self.ports.contains_key(p)).collect();
        self.ports.len() + new.len() <= PORTS_OF_POD_MAX
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Link {
    pub fn new(now: Instant, id: LinkId, pod: u64, socket: OwnedFd) -> Self {
        Self { id, pod, socket, ports: None, owed: 0, doubts: 0, since: now }
    }

    /// Until when it has to say Hello, if it has not yet.
    pub fn greets_by(&self) -> Option<Instant> {
        self.ports.is_none().then(|| self.since + HELLO_FOR)
    }

    /// It has said no Hello in time.
    pub fn refuse_silent(&mut self) {
        self.bye(Refused::Silent, "Hello comes at once");
    }

    /// Its pod has no room for its ports, of which none counts.
    pub fn refuse_ports(&mut self) {
        self.ports = None;
        let why = format!("applications of a pod listen on at most {PORTS_OF_POD_MAX} ports");
        self.bye(Refused::TooMany, &why);
    }

    pub fn listens_on(&self, port: u16) -> bool {
        self.ports.as_ref().is_some_and(|p| p.contains(&port))
    }

    /// Whether it has been sent; an application that leaves no room is given up.
    pub fn say(&mut self, message: &Message, descriptor: Option<BorrowedFd<'_>>) -> bool {
        if matches!(message, Message::Want { .. } | Message::Offer { .. }) {
            self.owed += 1;
        }
        packet::send(&self.socket, message, descriptor).is_ok()
    }

    /// The next message. Descriptors that came with what is not passed on are in `strays`.
    pub fn hear(&mut self, space: &mut [u8], strays: &mut Vec<OwnedFd>) -> Heard {
        let (message, descriptor) = match packet::receive(&self.socket, space, strays) {
            Ok(received) => received,
            Err(Nothing::Yet) => return Heard::Nothing,
            Err(Nothing::Malformed(why)) => return self.bye(Refused::Malformed, &why.to_string()),
            Err(Nothing::Closed | Nothing::Kernel(_)) => return Heard::Closed(None),
        };
        match self.judge(&message) {
            None => Heard::Said(message, descriptor),
            Some(other) => {
                strays.extend(descriptor);
                other
            }
        }
    }

    /// What becomes of a message that is not passed on.
    fn judge(&mut self, message: &Message) -> Option<Heard> {
        Some(match (message, &self.ports) {
            (Message::Hello { version, ports }, None) if *version == VERSION => {
                self.ports = Some(ports.clone());
                let welcome = Message::Welcome { version: VERSION };
                if self.say(&welcome, None) {
                    Heard::Hello(ports.clone())
                } else {
                    Heard::Closed(Some(Refused::Slow))
                }
            }
            (Message::Hello { version, .. }, None) => {
                let why = format!("version {version}: this host-shim speaks version {VERSION}");
                self.bye(Refused::Malformed, &why)
            }
            (Message::Bye { .. }, _) => Heard::Closed(None),
            (_, None) => self.bye(Refused::Malformed, "Hello comes first"),
            (
                Message::Out { .. }
                | Message::NotMine { .. }
                | Message::Take { .. }
                | Message::Refuse { .. },
                Some(_),
            ) => match self.owed.checked_sub(1) {
                Some(left) => {
                    self.owed = left;
                    return None;
                }
                None => self.bye(Refused::Stray, "an answer that nobody asked for"),
            },
            (Message::Doubt { .. }, Some(_)) => {
                self.doubts += 1;
                if self.doubts <= DOUBTS_MAX {
                    return None;
                }
                self.bye(Refused::Stray, "too many doubts")
            }
            _ => self.bye(Refused::Malformed, "that message is host-shim's to say"),
        })
    }

    fn bye(&mut self, refused: Refused, why: &str) -> Heard {
        let reason = reason(why);
        self.say(&Message::Bye { reason }, None);
        Heard::Closed(Some(refused))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_sdk::wire::PACKET_BYTES_MAX;
    use rustix::net::{
        AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags,
        SocketType, sendmsg, socketpair,
    };
    use std::{io::IoSlice, mem::MaybeUninit, net::SocketAddr};

    /// As many as one packet can have.
    const MANY: usize = 253;

    fn pair() -> (OwnedFd, Link) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (application, socket) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a pair");
        (application, Link::new(Instant::now(), 1, 7, socket))
    }

    fn send(application: &OwnedFd, packet: &[u8], descriptors: usize) {
        let all = vec![application.as_fd(); descriptors];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MANY))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&all)));
        let packet = [IoSlice::new(packet)];
        sendmsg(application, &packet, &mut control, SendFlags::empty()).expect("room");
    }

    #[test]
    fn neither_a_pod_nor_a_node_has_too_many() {
        assert_eq!(no_room(LINKS_MAX - 1, LINKS_OF_NODE_MAX - 1), None);
        let of_pod = no_room(LINKS_MAX, LINKS_MAX).expect("too many");
        assert!(of_pod.contains("of the pod"), "{of_pod}");
        let of_node = no_room(0, LINKS_OF_NODE_MAX).expect("too many");
        assert!(of_node.contains("of the node"), "{of_node}");
    }

    #[test]
    fn no_descriptor_is_closed_here() {
        let hello = Message::Hello { version: VERSION, ports: vec![80] };
        let end: SocketAddr = "[fd00::1]:80".parse().expect("an address");
        let doubt = Message::Doubt { id: 1, local: end, remote: end };
        let (out, yours) = (Message::Out { id: 1, state: vec![] }, Message::Yours { id: 1 });
        for (what, greets, packet, descriptors) in [
            ("an empty packet", true, vec![], 1),
            ("no message", true, vec![0xff], MANY),
            ("too long", true, vec![1; PACKET_BYTES_MAX + 1], 3),
            ("too many", true, doubt.encode(), 2),
            ("all that fit", true, doubt.encode(), MANY),
            ("none belongs there", true, Message::NotMine { id: 1 }.encode(), 1),
            ("before Hello", false, out.encode(), 1),
            ("nobody asked", true, out.encode(), 1),
            ("host-shim's to say", true, yours.encode(), 1),
        ] {
            let (application, mut link) = pair();
            let (mut space, mut strays) = (vec![0; PACKET_BYTES_MAX], Vec::new());
            assert_eq!(link.greets_by(), Some(link.since + HELLO_FOR), "{what}");
            if greets {
                packet::send(&application, &hello, None).expect("room");
                let heard = link.hear(&mut space, &mut strays);
                assert!(matches!(heard, Heard::Hello(_)), "{what}: {heard:?}");
                assert_eq!(link.greets_by(), None, "{what}");
            }
            send(&application, &packet, descriptors);
            let heard = link.hear(&mut space, &mut strays);
            assert!(matches!(heard, Heard::Closed(_)), "{what}: {heard:?}");
            assert_eq!(strays.len(), descriptors, "{what}");
        }
    }

    #[test]
    fn the_doubt_that_is_one_too_many_is_handed_back() {
        let (application, mut link) = pair();
        link.ports = Some(vec![80]);
        link.doubts = DOUBTS_MAX - 1;
        let end: SocketAddr = "10.0.0.1:80".parse().expect("an address");
        let doubt = Message::Doubt { id: 1, local: end, remote: end };
        let (mut space, mut strays) = (vec![0; PACKET_BYTES_MAX], Vec::new());
        for is_heard in [true, false] {
            packet::send(&application, &doubt, Some(application.as_fd())).expect("room");
            let heard = link.hear(&mut space, &mut strays);
            assert_eq!(matches!(heard, Heard::Said(_, Some(_))), is_heard, "{heard:?}");
            assert_eq!(strays.is_empty(), is_heard);
        }
    }
}
