//! What happens to a hand-over: plain data.
//!
//! Owns the inputs of decisions. Nothing here decides.

use super::view::Opening;
use baton_packet::{EndMark, Flags, Reason, Segment, SeqNumber};

/// A segment from an owner whose adoption is unconfirmed.
#[derive(Clone, Copy, Debug)]
pub struct Reply {
    /// Its number.
    pub seq: SeqNumber,
    /// That of what follows it.
    pub end: SeqNumber,
    /// What it acknowledges, if it does.
    pub ack: Option<SeqNumber>,
    /// It has the flag.
    pub syn: bool,
    /// It has the flag.
    pub fin: bool,
    /// It has the flag.
    pub rst: bool,
    /// It carries data.
    pub data: bool,
    /// It echoes a timestamp that is newer than any of the flow's: its kernel takes what it is sent
    /// for old duplicates (RFC 7323 section 5).
    pub drops: bool,
    /// It ends, by a process that goes on.
    pub meant: bool,
}

impl Reply {
    /// Of a segment, with what its timestamps and its adopter's mark say.
    #[must_use]
    pub fn of(segment: &Segment, drops: bool, mark: Option<EndMark>) -> Self {
        let has = |flag| segment.flags.has(flag);
        Self {
            seq: segment.seq,
            end: segment.seq.add(segment.seq_len()),
            ack: has(Flags::ACK).then_some(segment.ack),
            syn: has(Flags::SYN),
            fin: has(Flags::FIN),
            rst: has(Flags::RST),
            data: segment.payload_len() > 0,
            drops,
            meant: mark == Some(EndMark::Listening),
        }
    }
}

/// How an owner ended.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// By a FIN in order, else by an exact RST.
    pub fin: bool,
    /// What the adopter says of its process.
    pub mark: Option<EndMark>,
    /// What it had of the client's bytes.
    pub acked: Option<SeqNumber>,
}

impl End {
    /// Its process was exiting.
    #[must_use]
    pub fn exited(self) -> bool {
        self.mark == Some(EndMark::Exiting)
    }

    /// Its application had read nothing of the request that a Release asked about.
    #[must_use]
    pub fn released(self) -> bool {
        self.mark == Some(EndMark::Released)
    }

    /// A process that goes on: one that shuts down lets go of the listener first.
    #[must_use]
    pub fn closer_listens(self) -> bool {
        matches!(self.mark, Some(EndMark::Listening | EndMark::Unread))
    }
}

/// What the replies to restoring bytes come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restored {
    /// Not all are there yet.
    Partly,
    /// All are, and right.
    Wholly,
    /// The new owner did not take the session.
    Not,
}

/// What happened.
#[derive(Clone, Copy, Debug)]
pub enum Input {
    /// A segment from an unconfirmed owner, not from its adopter.
    Reply(Reply),
    /// An answer to our SYN from an owner whose leg is being opened.
    Opening(Opening),
    /// The replies to what restores a session were judged, as [`Then::JudgeSession`] asked.
    Restored(Restored),
    /// The adopter refused, authenticated and with the adoption's numbers.
    Refused {
        /// Why.
        reason: Reason,
        /// With [`Reason::TupleInUse`]: the number that the socket in the way expects.
        expects: SeqNumber,
        /// With [`Reason::Renew`]: the pod was another one already when the request was sent.
        replaced_before: bool,
    },
    /// The adoption's timer ended.
    Silence,
    /// Whether another pod has the request now, as [`Then::FindAnother`] asked.
    Another {
        /// One has.
        found: bool,
    },
    /// The flow's owner is settled.
    Settled,
    /// A segment from the old owner while the new one is unconfirmed.
    Standby {
        /// It has new data.
        new: bool,
        /// It is a RST with the exact number, and no adopter's.
        reset: bool,
        /// It is a FIN.
        fin: bool,
    },
    /// The owner ended its direction of the connection, or all of it.
    OwnerEnded {
        /// How.
        end: End,
        /// The owner is known to go away, or to be gone.
        gone: bool,
        /// Policy wants flows to outlive their backends.
        rescues: bool,
        /// And some backend could adopt this one.
        rescuable: bool,
        /// It is at rest, and needs no leg until its next request.
        legless: bool,
    },
    /// Somebody listens in the owner's pod.
    PodLives {
        /// Another process than the flow's.
        replaced: bool,
        /// The answer is late enough for the end to stand.
        settled: bool,
        /// Nothing tells the end of a process that exits from a close that was meant, and the
        /// protocol tells where responses end.
        unmarked: bool,
    },
    /// Nobody does.
    PodGone {
        /// Nothing is heard of the pod.
        silent: bool,
        /// Some backend could adopt the flow.
        rescuable: bool,
    },
    /// The held end was meant.
    CloseStands,
    /// The client of a flow without a leg goes on.
    Wanted,
    /// The client sent a request to an owner that has ended.
    RequestAtDead,
    /// A flow without owner is looked at.
    OrphanDue {
        /// So long it has had none.
        waited_ms: u64,
    },
    /// Whether a backend takes the orphan now, as [`Then::FindRescuer`] asked.
    Rescuer {
        /// One does.
        found: bool,
    },
    /// The owner has not begun to answer within policy's time.
    Overdue,
    /// Whether another backend takes the overdue request, as [`Then::FindRival`] asked.
    Rival {
        /// One does.
        found: bool,
    },
    /// The owner answers nothing to anybody.
    Stalled,
    /// Whether another backend would do better, as [`Then::FindBetter`] asked.
    Better {
        /// One would, and the owner's adopter can be asked.
        found: bool,
    },
    /// An answer to a Release, authenticated.
    ReleaseAnswered {
        /// What became of the request.
        reason: Reason,
        /// The answer's number.
        seq: SeqNumber,
        /// And what it acknowledges.
        ack: SeqNumber,
    },
    /// The time for such an answer is over.
    ReleaseLate,
}
