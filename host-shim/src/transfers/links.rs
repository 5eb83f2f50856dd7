//! Applications' connections to host-shim. Owns their limits and what is read of them at a time; an
//! application that reads nothing, says what nobody asked for, or fills its share, costs nobody
//! else anything. Knows no Transfers.

use super::{Place, decide::LinkId};
use baton_sdk::{
    packet::{self, Nothing},
    wire::{Message, VERSION, reason},
};
use std::{
    collections::BTreeMap,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

/// Applications of one pod: a process each, and servers have one for each CPU at most.
pub const LINKS_MAX: usize = 64;
/// What is read of one application before the others have their turn.
pub const MESSAGES_IN_TURN: usize = 16;
/// Connections whose owner is in doubt: an application asks once for each that it was handing out
/// when host-shim ended ([`super::open::TRANSFERS_OF_POD_MAX`]).
const DOUBTS_MAX: u32 = 128;

/// Why an application's connection was refused or closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The pod has too many.
    TooMany,
    /// It sent what is no message, or another version.
    Malformed,
    /// It answered what nobody had asked.
    Stray,
    /// It reads nothing.
    Slow,
    /// What its pod handed over does not close.
    Unclosed,
}

impl Refused {
    /// All, in the order of their numbers.
    pub const ALL: [Self; 5] = [
        Self::TooMany,
        Self::Malformed,
        Self::Stray,
        Self::Slow,
        Self::Unclosed,
    ];

    /// For metrics.
    pub const fn label(self) -> &'static str {
        match self {
            Self::TooMany => "too_many",
            Self::Malformed => "malformed",
            Self::Stray => "stray",
            Self::Slow => "slow",
            Self::Unclosed => "unclosed",
        }
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

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Link {
    pub fn new(id: LinkId, pod: u64, socket: OwnedFd) -> Self {
        Self {
            id,
            pod,
            socket,
            ports: None,
            owed: 0,
            doubts: 0,
        }
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
        (application, Link::new(1, 7, socket))
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
    fn no_descriptor_is_closed_here() {
        let hello = Message::Hello {
            version: VERSION,
            ports: vec![80],
        };
        let end: SocketAddr = "[fd00::1]:80".parse().expect("an address");
        let doubt = Message::Doubt {
            id: 1,
            local: end,
            remote: end,
        };
        let (out, yours) = (
            Message::Out {
                id: 1,
                state: vec![],
            },
            Message::Yours { id: 1 },
        );
        for (what, greets, packet, descriptors) in [
            ("an empty packet", true, vec![], 1),
            ("no message", true, vec![0xff], MANY),
            ("too long", true, vec![1; PACKET_BYTES_MAX + 1], 3),
            ("too many", true, doubt.encode(), 2),
            ("all that fit", true, doubt.encode(), MANY),
            (
                "none belongs there",
                true,
                Message::Take { id: 1 }.encode(),
                1,
            ),
            ("before Hello", false, out.encode(), 1),
            ("nobody asked", true, out.encode(), 1),
            ("host-shim's to say", true, yours.encode(), 1),
        ] {
            let (application, mut link) = pair();
            let (mut space, mut strays) = (vec![0; PACKET_BYTES_MAX], Vec::new());
            if greets {
                packet::send(&application, &hello, None).expect("room");
                let heard = link.hear(&mut space, &mut strays);
                assert!(matches!(heard, Heard::Hello(_)), "{what}: {heard:?}");
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
        let doubt = Message::Doubt {
            id: 1,
            local: end,
            remote: end,
        };
        let (mut space, mut strays) = (vec![0; PACKET_BYTES_MAX], Vec::new());
        for is_heard in [true, false] {
            packet::send(&application, &doubt, Some(application.as_fd())).expect("room");
            let heard = link.hear(&mut space, &mut strays);
            assert_eq!(
                matches!(heard, Heard::Said(_, Some(_))),
                is_heard,
                "{heard:?}"
            );
            assert_eq!(strays.is_empty(), is_heard);
        }
    }
}
