//! What a decision looks at: plain data.
//!
//! Owns what a hand-over remembers of itself ([`Progress`]) and the rest of its view. Nothing here
//! decides.

use super::told::Told;
use crate::states::State;
use baton_packet::SeqNumber;

/// What a hand-over remembers of itself; the decision's own state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Progress {
    /// Tries of the present adoption, or of a rescue.
    pub tries: u8,
    /// Adoption segments sent on the owner leg.
    pub asked: u8,
    /// Refusals among the answers to them.
    pub refusals: u8,
    /// How often the outstanding request was given to another pod although one may have executed
    /// it.
    pub replays: u8,
    /// Legs one after the other that ended without a mark and had been sent nothing.
    pub idle_ends: u8,
    /// Whether the pods of its legs were told of the client.
    pub(crate) told: Told,
    /// A bit for each [`Mark`].
    marks: u16,
}

/// What is so or not of a hand-over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Mark {
    /// The standby leg closed or reset: nothing to roll back to.
    StandbyGone = 1,
    /// The client's FIN came while an adoption was unconfirmed, or the flow had no owner.
    ClientFin = 1 << 1,
    /// The adoption in flight saves a flow whose owner is gone.
    Rescue = 1 << 2,
    /// No application can have seen the kept bytes yet.
    Unseen = 1 << 3,
    /// The owner ended by a FIN; otherwise by a RST, or in silence.
    OwnerFin = 1 << 4,
    /// The owner's adopter was asked to let go of the flow, and has not answered: copies of all
    /// that the client sent are needed until then. Only while a request is unanswered.
    ReleaseAsked = 1 << 5,
    /// It answered, or too late: this request is not asked about again.
    ReleaseSettled = 1 << 6,
    /// And it had let go of it.
    Released = 1 << 7,
    /// It has a place in the table of transfers.
    Transfer = 1 << 8,
    /// The owner has to be sent the kept copies again, until it has acknowledged them: no frame was
    /// free for all, or nobody else will.
    CopiesOwed = 1 << 9,
    /// The last move was a transfer. Nothing depends on it: it is told.
    HandedOn = 1 << 10,
    /// The present owner's leg was opened, or is being opened, by a handshake of ours instead of an
    /// adoption.
    Opening = 1 << 11,
    /// And the pod has answered: its numbers are shifted on that leg.
    Translated = 1 << 12,
    /// The present owner's leg was another flow's before.
    Shared = 1 << 13,
    /// The standby leg may be another flow's next.
    Reusable = 1 << 14,
    /// The first of two replies to a session's restoring bytes came.
    PreludeHalf = 1 << 15,
}

impl Progress {
    /// Whether it is so.
    #[must_use]
    pub const fn is(&self, mark: Mark) -> bool {
        self.marks & mark as u16 != 0
    }

    /// It is, or is not.
    pub const fn set(&mut self, mark: Mark, on: bool) {
        self.marks = match on {
            true => self.marks | mark as u16,
            false => self.marks & !(mark as u16),
        };
    }

    /// It is not any more. Whether it was.
    pub const fn take(&mut self, mark: Mark) -> bool {
        let was = self.is(mark);
        self.set(mark, false);
        was
    }

    /// The owner's leg is being opened by a handshake that the pod has not answered.
    #[must_use]
    pub const fn is_opening(&self) -> bool {
        self.is(Mark::Opening) && !self.is(Mark::Translated)
    }

    /// What was sent to a leg before, and came from it, is not about this one.
    pub const fn leg_is_new(&mut self) {
        (self.asked, self.refusals) = (0, 0);
    }

    /// A hand-over from a living owner begins.
    pub const fn hand_over(&mut self) {
        self.tries = 1;
        self.leg_is_new();
        self.set(Mark::StandbyGone, false);
        self.set(Mark::ClientFin, false);
        self.set(Mark::ReleaseAsked, false);
        // That was about another leg, or what was said on this one before.
        self.set(Mark::Reusable, false);
    }
}

/// Both streams' numbers.
#[derive(Clone, Copy, Debug)]
pub struct Numbers {
    /// First byte of the request that an adoption carries.
    pub boundary: SeqNumber,
    /// Next new byte of the client.
    pub client_next: SeqNumber,
    /// Highest client byte that the owner acknowledged.
    pub client_acked: SeqNumber,
    /// Next new byte of the server.
    pub server_next: SeqNumber,
    /// Highest server byte that the client acknowledged.
    pub server_acked: SeqNumber,
    /// First byte that the open adoption's socket expects: the boundary, or what restores a session
    /// in front of it.
    pub adoption_expects: SeqNumber,
    /// First byte that it sends.
    pub adoption_sends: SeqNumber,
}

/// Where the conversation is, as the protocol's guard knows it. Without a guard nothing is known to
/// be unanswered, and each request counts as complete.
#[derive(Clone, Copy, Debug, Default)]
pub struct Talk {
    /// All requests are answered.
    pub answered: bool,
    /// And no state ties the flow to its owner.
    pub at_rest: bool,
    /// A guard knows that some request is unanswered.
    pub unanswered: bool,
    /// The response ends with the connection.
    pub until_close: bool,
    /// The last message announced the close.
    pub closing: bool,
    /// A response has begun.
    pub response_begun: bool,
    /// All of the request is there.
    pub complete: bool,
}

/// What comes of a handshake with a pod that shall take a flow over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// The pod agreed, and its numbers are known.
    Opened,
    /// It agreed to less than the client was promised.
    Unlike,
    /// It agreed, and there is no room to remember its numbers. That says nothing of the pod.
    NoRoom,
    /// Its kernel refused.
    Refused,
    /// Another socket is on the pair, and expects this number.
    Stale(SeqNumber),
}

/// What a decision looks at.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// Where the flow is in the declared table.
    pub state: State,
    /// What the hand-over remembers.
    pub progress: Progress,
    /// Both streams' numbers.
    pub numbers: Numbers,
    /// Where the conversation is.
    pub talk: Talk,
    /// It has an owner, or had one that is gone; one that was legless has not.
    pub owned: bool,
    /// A request is outstanding at the owner.
    pub outstanding: bool,
    /// The adoption restores a session first.
    pub restoring: bool,
    /// The flow does not move any more.
    pub pinned: bool,
    /// Requests and answers are told apart.
    pub followed: bool,
    /// Because a pod did not take its session.
    pub session_refused: bool,
    /// Copies hold every byte since the boundary, and no answer has begun.
    pub kept_whole: bool,
    /// Policy allows to execute the outstanding request once more.
    pub replay_allowed: bool,
    /// Another port towards the owner's pod is free.
    pub another_port: bool,
    /// Policy's time for an answer is over.
    pub overdue: bool,
    /// Tries of one adoption; [`crate::timing::ADOPTION_TRIES_MAX`] but in the model.
    pub tries_max: u8,
    /// Such ends in a row until one is believed; [`crate::timing::IDLE_ENDS_MAX`] but in the model.
    pub idle_ends_max: u8,
}

impl View {
    /// Each side has acknowledged everything of the other.
    #[must_use]
    pub fn all_acked(&self) -> bool {
        let n = &self.numbers;
        n.client_acked == n.client_next && n.server_acked == n.server_next
    }

    /// Policy allows to execute the outstanding request once more, and a whole copy of it is there.
    #[must_use]
    pub fn may_replay(&self) -> bool {
        self.replay_allowed && self.kept_whole
    }

    /// The owner's leg is being opened, and the pod has not answered: it was sent a SYN, and
    /// nothing of any request.
    #[must_use]
    pub fn is_opening(&self) -> bool {
        self.progress.is_opening()
    }

    /// Whether an adopter's answer is to the open adoption: it has its numbers, swapped.
    #[must_use]
    pub fn is_answered_by(&self, seq: SeqNumber, ack: SeqNumber) -> bool {
        seq == self.numbers.adoption_sends && ack == self.numbers.adoption_expects
    }
}

/// What keeps hand-overs safe. [`Safeguards::ALL`] is the product; the model and the simulation
/// take one away and must find what it prevents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Safeguards {
    /// A bare RST confirms nothing.
    pub bare_rst_is_no_answer: bool,
    /// Nor do another connection's numbers.
    pub stale_numbers_are_no_answer: bool,
    /// An adoption of unknown fate was not refused.
    pub unknown_fate_is_no_refusal: bool,
    /// `AlreadyAdopted` means an unknown fate, not a refusal.
    pub already_adopted_is_no_refusal: bool,
    /// An end that acknowledges the request is no withdrawal.
    pub taken_data_is_no_withdrawal: bool,
    /// A flow rolls back only when each adoption in flight was refused.
    pub each_refusal_is_awaited: bool,
    /// A request is executed once more at most [`crate::timing::REPLAYS_MAX`] times.
    pub replays_are_counted: bool,
    /// A request is unseen only where its pod acknowledged nothing of it.
    pub unseen_is_unacknowledged: bool,
    /// An end behind the client's own FIN is counted as a loss if a request is unanswered.
    pub half_closed_is_counted: bool,
    /// The FIN of a client whose idle flow lost its new owner too is answered.
    pub kept_fin_is_answered: bool,
    /// A bare RST from an owner that adopted the flow is believed only once a challenge with a
    /// number of its own drew one.
    pub late_rst_is_told_apart: bool,
    /// So is one from an owner that accepted the flow itself.
    pub every_rst_is_told_apart: bool,
    /// A refused SYN says nothing of a handshake that was answered before.
    pub late_refusal_is_no_end: bool,
    /// A SYN-ACK confirms nothing.
    pub syn_ack_is_no_answer: bool,
    /// A handshake that a pod gives up is no close.
    pub given_up_is_no_close: bool,
    /// What a pod says on another flow's former leg before it has the request is no answer,
    /// nor is what is older than the flow's time on it.
    pub unasked_is_no_answer: bool,
    /// An end that nothing marks says that the leg is over, and nothing of the connection.
    pub unmarked_end_is_the_legs: bool,
    /// A request that an application may have read is not given to another pod.
    pub what_is_kept_stays: bool,
}

impl Safeguards {
    /// All of them.
    pub const ALL: Self = Self {
        bare_rst_is_no_answer: true,
        stale_numbers_are_no_answer: true,
        unknown_fate_is_no_refusal: true,
        already_adopted_is_no_refusal: true,
        taken_data_is_no_withdrawal: true,
        each_refusal_is_awaited: true,
        replays_are_counted: true,
        unseen_is_unacknowledged: true,
        half_closed_is_counted: true,
        kept_fin_is_answered: true,
        late_rst_is_told_apart: true,
        every_rst_is_told_apart: true,
        late_refusal_is_no_end: true,
        syn_ack_is_no_answer: true,
        given_up_is_no_close: true,
        unasked_is_no_answer: true,
        unmarked_end_is_the_legs: true,
        what_is_kept_stays: true,
    };
}
