//! Transfers: which flows may be handed on in the middle of a message, and what shows that one was.
//!
//! Owns no time and no choice of a pod (`transfer` of the engine).

use super::{Mark, Numbers, View};
use baton_packet::{Flags, Segment, parse_adoption};

/// Whether a flow may be handed on by its application: the server has not closed, its owner is
/// confirmed, has the client's own numbers, and is not asked to let go of it. A client that has
/// said all goes along, as it waits for the rest of its answer. What the protocol's guard says does
/// not matter: the application says how far it is.
#[must_use]
pub fn may_be_transferred(view: &View) -> bool {
    view.state.serves()
        && !view.progress.is(Mark::ReleaseAsked)
        && !view.progress.is(Mark::Translated)
}

/// Whether a segment from the pair that a Transfer named is the connection's. Both its numbers are
/// near: it acknowledges no less of the client's than the owner had, and no more than there is; and
/// it lies within a window of what the client has. (The pair was free before, and what somebody may
/// have left there is in the way of the connection too. A message of the adopter's is none.)
#[must_use]
pub fn shows_heir(frame: &[u8], segment: &Segment, numbers: &Numbers, window: u32) -> bool {
    let flags = segment.flags;
    flags.has(Flags::ACK)
        && !flags.has(Flags::SYN)
        && !flags.has(Flags::RST)
        && segment.ack.at_or_after(numbers.client_acked)
        && segment.ack.at_or_before(numbers.client_next)
        && segment.seq.since(numbers.server_acked).unsigned_abs() <= window
        && parse_adoption(frame, segment).is_none()
}

/// Whether a segment from the pair that the connection had before is the connection's still: data
/// that was on its way. Nothing ends it from there.
#[must_use]
pub fn is_left_over(segment: &Segment) -> bool {
    let flags = segment.flags;
    segment.payload_len() > 0
        && !flags.has(Flags::SYN)
        && !flags.has(Flags::RST)
        && !flags.has(Flags::FIN)
}
