//! What travels between the dataplane and the pods, in abstract numbers, and the network that
//! carries it.
//!
//! Owns the packets and what a network may do to them. A request is one unit of the client's
//! stream, a FIN another one; a response is one or two units of the server's stream. It knows
//! nothing of who sends or receives.

/// One leg: a pod and our port towards it. Ports are never used twice: see the head of the crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Leg {
    /// The pod's number.
    pub pod: u8,
    /// Our port towards it, counted from 0.
    pub port: u8,
}

/// Why an adopter refuses (`docs/adoption-wire.md`; reasons that are alike to both sides are one).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Refusal {
    /// Nothing listens there.
    NoListener,
    /// The accept queue is full; stands for every other passing refusal too.
    QueueFull,
    /// Another socket is on the tuple; with the number that it expects.
    TupleInUse(u8),
    /// Adopted before, and that socket is gone.
    AlreadyAdopted,
}

/// A segment, as far as the hand-over looks at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Wire {
    /// The adoption segment.
    Adopt {
        /// First byte of the client that the socket expects.
        seq: u8,
        /// First byte that the socket sends.
        ack: u8,
    },
    /// Our SYN, for a socket with these numbers. (The pod's own are others, by a constant that its
    /// answer tells: [`Packet::isn`].)
    Syn {
        /// First unit of the client that the socket expects.
        seq: u8,
        /// First unit that it sends, as the client will see it.
        ack: u8,
    },
    /// A listener's answer to it.
    SynAck {
        /// First unit of the client that it expects.
        ack: u8,
        /// It agrees to less than the client was promised.
        unlike: bool,
    },
    /// A kernel's refusal of it: a reset with number 0.
    SynRefused {
        /// First unit of the client that was offered.
        ack: u8,
    },
    /// What ends the handshake.
    Opens {
        /// First unit of the client.
        seq: u8,
        /// First unit of the pod.
        ack: u8,
    },
    /// One unit: a request towards a pod, a part of a response from one.
    Data {
        /// Its place in its stream.
        seq: u8,
        /// What its sender has of the other stream.
        ack: u8,
    },
    /// One byte that the socket has already.
    Keepalive {
        /// The byte's place.
        seq: u8,
        /// What the client has.
        ack: u8,
    },
    /// No payload.
    Ack {
        /// The sender's next unit.
        seq: u8,
        /// What the sender has of the other stream.
        ack: u8,
    },
    /// End of stream.
    Fin {
        /// Its place.
        seq: u8,
        /// What the sender has of the other stream.
        ack: u8,
    },
    /// A reset without ACK number, as a kernel answers a segment of no connection.
    Rst {
        /// Its number.
        seq: u8,
    },
    /// A reset of a connection that was there.
    RstAck {
        /// Its number.
        seq: u8,
        /// What the sender had of the other stream.
        ack: u8,
    },
    /// Let go of the connection, if it is as these numbers say.
    Release {
        /// First unit that the application has not read.
        seq: u8,
        /// Next unit that it sends.
        ack: u8,
    },
    /// The reset of one that was let go of, with the mark of that.
    Released {
        /// Its number.
        seq: u8,
        /// What the sender had of the other stream.
        ack: u8,
    },
    /// The answer to later copies of a Release.
    Told {
        /// It was let go of; otherwise it is kept.
        released: bool,
        /// The Release's `ack`.
        seq: u8,
        /// The Release's `seq`.
        ack: u8,
    },
    /// An adopter's authenticated answer, with the numbers of the adoption swapped.
    Answer {
        /// The reason.
        why: Refusal,
        /// The adoption's `ack`.
        seq: u8,
        /// The adoption's `seq`.
        ack: u8,
    },
}

/// Which way a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Way {
    /// From the dataplane to the leg's pod.
    ToPod,
    /// From the leg's pod to the dataplane.
    FromPod,
}

/// A segment on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Packet {
    /// Which way it goes.
    pub way: Way,
    /// Between which ends.
    pub leg: Leg,
    /// In whose own numbers it is, where the leg was opened by a handshake: each one that a pod
    /// answers on a leg begins at a number that no other one has. 0: in nobody's.
    pub isn: u8,
    /// What it is.
    pub wire: Wire,
}

/// What a network may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Network {
    /// Whatever was ever sent may arrive at any time, any number of times, in any order, or never.
    Forever,
    /// Each packet arrives once, in any order, but for as many losses and duplicates as the
    /// configuration allows.
    Counted,
}

/// Packets in flight, sorted: equal sets are equal states.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct InFlight(Vec<Packet>);

impl InFlight {
    /// Sends one.
    pub fn send(&mut self, network: Network, packet: Packet) {
        match self.0.binary_search(&packet) {
            Ok(_) if network == Network::Forever => {}
            Ok(at) | Err(at) => self.0.insert(at, packet),
        }
    }

    /// Takes one out, where packets arrive once.
    pub fn take(&mut self, network: Network, packet: &Packet) {
        if network == Network::Counted
            && let Ok(at) = self.0.binary_search(packet)
        {
            self.0.remove(at);
        }
    }

    /// Each different one.
    pub fn each(&self) -> impl Iterator<Item = Packet> + '_ {
        let mut last = None;
        self.0.iter().copied().filter(move |p| last.replace(*p) != Some(*p))
    }

    /// Nothing is on its way.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes out what can have no effect any more.
    pub fn forget(&mut self, useless: impl Fn(&Packet) -> bool) {
        self.0.retain(|p| !useless(p));
    }
}
