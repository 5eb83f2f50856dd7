//! What happened to flows, for whoever watches: a ring of fixed size, reserved at start.
//!
//! Owns the ring and what an event is called. Written on the packet path without allocation, by
//! whoever counts the same thing; read between batches. The oldest events are overwritten, read or
//! not.
//!
//! # Decisions
//!
//! - **Events of flows are a ring of 32,768 entries of 40 bytes**, written beside the counters by
//!   slots of tables; names are looked up when somebody reads, and a slot that went to another
//!   backend since lends its name to no older event. Readers never block; slow readers get a gap
//!   count.

use crate::{Cause, Lost, PinReason, clock::Instant, ids::Addr, obs::pins::Gone};
use baton_packet::Reason;

/// Events that the ring holds, 1.3 MB. A fleet that moves 1,000 flows a second makes two events of
/// each and is read by a watcher once a second; this is 16 times as much. With a move at each of
/// 28,000 requests a second, half a second.
const EVENTS: usize = 32_768;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum What {
    /// Somebody asked for a move that waits for the flow's next request.
    MoveAsked,
    /// That will not happen any more.
    MoveDropped,
    /// The first adoption of a move was sent.
    Adopting,
    /// A further one.
    AdoptingAgain,
    /// A leg to the new owner is being opened.
    Opening,
    /// The SYN was sent again.
    OpeningAgain,
    /// The request leaves on a leg that another flow had before.
    LegShared,
    /// An adoption was refused.
    Refused(Reason),
    /// The new owner confirmed.
    Moved,
    /// The old owner has the flow again.
    RolledBack,
    /// The owner is gone, and another one is needed.
    OwnerLost(Gone),
    /// A request that may have been executed is sent again.
    Replayed,
    /// The flow does not move any more.
    Pinned(PinReason),
    /// The owner is asked to hand the flow to another pod's application.
    TransferAsked,
    /// It has kept it.
    TransferFailed,
    /// The flow ended, or its client was told of an end, because of its backend.
    Lost(Lost),
}

impl What {
    pub(crate) fn label(self) -> &'static str {
        self.into()
    }

    pub(crate) fn reason(self) -> Option<&'static str> {
        Some(match self {
            What::Refused(reason) => reason.label(),
            What::OwnerLost(Gone::Closed) => "closed",
            What::OwnerLost(Gone::Reset) => "reset",
            What::OwnerLost(Gone::Silent) => "silent",
            What::OwnerLost(Gone::Released) => "released",
            What::Pinned(pin) => pin.label(),
            What::Lost(lost) => lost.label(),
            _ => return None,
        })
    }
}

/// One event. Slots of tables stand for names, which are looked up when it is read.
#[derive(Clone, Copy)]
pub(crate) struct Happened {
    pub(crate) at_us: u64,
    pub(crate) client: Addr,
    pub(crate) client_port: u16,
    pub(crate) frontend: u16,
    pub(crate) policy: u16,
    pub(crate) from: u16,
    pub(crate) to: u16,
    pub(crate) what: What,
    pub(crate) cause: Option<Cause>,
}

const _: () = assert!(size_of::<Happened>() <= 40);

/// The ring.
pub(crate) struct Events {
    pub(crate) ring: Box<[Happened]>,
    /// How many there were: the number of the last one.
    pub(crate) last: u64,
    /// The number of the last one that somebody read.
    pub(crate) read: u64,
    overwritten: u64,
    /// When the frame or call that is being handled came.
    pub(crate) now: Instant,
}

impl Events {
    pub(crate) fn new() -> Self {
        let blank = Happened {
            at_us: 0,
            client: Addr::default(),
            client_port: 0,
            frontend: 0,
            policy: 0,
            from: 0,
            to: 0,
            what: What::Moved,
            cause: None,
        };
        Self {
            ring: vec![blank; EVENTS].into_boxed_slice(),
            last: 0,
            read: 0,
            overwritten: 0,
            now: Instant(0),
        }
    }

    /// The number of the last event. Slots of tables that are taken for others from now on are not
    /// what older events mean.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// The number of the first event that is still there.
    pub(crate) fn first(&self) -> u64 {
        self.last.saturating_sub(EVENTS as u64) + 1
    }

    pub(crate) fn slot(number: u64) -> usize {
        number as usize % EVENTS
    }

    /// Events that were overwritten before anybody had read them.
    pub(crate) fn overwritten(&self) -> u64 {
        self.overwritten
    }

    pub(crate) fn push(&mut self, event: Happened) {
        let full = self.last >= EVENTS as u64;
        self.overwritten += u64::from(full && self.first() > self.read);
        self.last += 1;
        self.ring[Self::slot(self.last)] = event;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(at_us: u64) -> Happened {
        let mut event = Events::new().ring[0];
        event.at_us = at_us;
        event
    }

    #[test]
    fn the_ring_overwrites_the_oldest_and_says_when_nobody_had_read_it() {
        let mut events = Events::new();
        assert_eq!((events.first(), events.last()), (1, 0));
        for n in 1..=EVENTS as u64 {
            events.push(numbered(n));
        }
        assert_eq!((events.first(), events.overwritten()), (1, 0));
        events.push(numbered(EVENTS as u64 + 1));
        assert_eq!((events.first(), events.overwritten()), (2, 1));
        events.read = 3;
        for (n, overwritten) in [(2, 1), (3, 1), (4, 2)] {
            events.push(numbered(EVENTS as u64 + n));
            assert_eq!(events.overwritten(), overwritten, "{n}");
        }
        for number in events.first()..=events.last() {
            assert_eq!(events.ring[Events::slot(number)].at_us, number);
        }
    }
}
