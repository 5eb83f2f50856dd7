//! What comes next where another node's host-shim offers a connection: a function of what is and
//! what happened. Owns that the connection is silent here until its former pod has parted with it
//! (Go), and that it is given up after a bounded time without that word. No I/O, no clock; the
//! other side is [`decide`](super::super::decide).

use super::super::decide::{Ended, LinkId};

/// Where an offered connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The application is asked whether it takes it.
    Offered {
        to: LinkId,
    },
    /// It does; the connection itself is awaited.
    Taken {
        to: LinkId,
    },
    /// This step is being done.
    Doing {
        to: LinkId,
        step: Step,
    },
    /// It is restored and silent, and may be the only one there is.
    Ready {
        to: LinkId,
    },
    Over,
}

impl Phase {
    /// A record that comes at another time is not kept.
    pub const fn awaits_record(self) -> bool {
        matches!(self, Self::Taken { .. })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Restore,
    /// The socket begins to talk.
    Speak,
    /// The application gets it.
    Give,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Taken(LinkId),
    Refused(LinkId),
    /// The application's connection to host-shim has ended.
    Closed(LinkId),
    /// The connection has come.
    Record,
    /// The other side says that nothing comes of it.
    Undone,
    /// The channel to the other side has ended.
    Cut,
    Go,
    LeaseOver,
    Done(Step),
    Failed(Step),
}

/// What is to be done now, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    SayTaken,
    SayNo(Ended),
    SayReady,
    SaySpoken,
    SayLost,
    Do(Step),
    /// The socket is forgotten, without a word.
    Abort,
    /// It resets the peer.
    Reset,
    /// The application does not get it.
    Back(LinkId),
    Count(Outcome),
}

/// What became of an offered connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::VariantArray, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Outcome {
    Taken,
    /// The application does not take it, or it cannot be restored here.
    Declined,
    /// The other side gave it up, or the channel broke, while it had it.
    Undone,
    /// It came too late.
    LeaseOver,
    /// It was ready and nobody said Go. Where its former pod had parted with it, it is lost.
    Abandoned,
    /// It could not be given to the application, and was reset.
    Reset,
}

impl Outcome {
    /// All, in the order of their numbers.
    pub const ALL: &'static [Self] = <Self as strum::VariantArray>::VARIANTS;

    /// For metrics.
    pub fn label(self) -> &'static str {
        self.into()
    }
}

/// The next phase and what is to be done.
pub fn decide(phase: Phase, event: Event) -> (Phase, Vec<Effect>) {
    use {Effect as F, Event as E};
    let over = |effects: Vec<Effect>, outcome| {
        let counted = std::iter::once(F::Count(outcome));
        (Phase::Over, effects.into_iter().chain(counted).collect())
    };
    let declined = |why| over(vec![F::SayNo(why)], Outcome::Declined);
    match (phase, event) {
        (Phase::Offered { to }, E::Taken(link)) if link == to => {
            (Phase::Taken { to }, vec![F::SayTaken])
        }
        (Phase::Offered { to }, E::Refused(link)) if link == to => declined(Ended::NotTaken),
        (Phase::Offered { to } | Phase::Taken { to }, E::Closed(link)) if link == to => {
            declined(Ended::TakerLeft)
        }
        (Phase::Offered { to } | Phase::Taken { to }, E::Undone | E::Cut) => {
            over(vec![F::Back(to)], Outcome::Undone)
        }
        (Phase::Offered { to } | Phase::Taken { to }, E::LeaseOver) => {
            let effects = vec![F::SayNo(Ended::LeaseOver), F::Back(to)];
            over(effects, Outcome::LeaseOver)
        }
        (Phase::Taken { to }, E::Record) => does(to, Step::Restore),
        (Phase::Doing { to, step }, E::Done(done)) if done == step => match step {
            Step::Restore => (Phase::Ready { to }, vec![F::SayReady]),
            Step::Speak => does(to, Step::Give),
            Step::Give => over(vec![F::SaySpoken], Outcome::Taken),
        },
        (Phase::Doing { to, step }, E::Failed(failed)) if failed == step => match step {
            Step::Restore => {
                let effects = vec![F::SayNo(Ended::NotRestored), F::Back(to)];
                over(effects, Outcome::Declined)
            }
            Step::Speak | Step::Give => {
                over(vec![F::Reset, F::SayLost, F::Back(to)], Outcome::Reset)
            }
        },
        // Whether its application is still there shows when it is given to it: without a word now,
        // as it may be the only one there is, and is reset then.
        (Phase::Ready { to }, E::Go) => does(to, Step::Speak),
        (Phase::Ready { to }, E::Undone) => over(vec![F::Abort, F::Back(to)], Outcome::Undone),
        (Phase::Ready { to }, E::LeaseOver) => {
            over(vec![F::Abort, F::Back(to)], Outcome::Abandoned)
        }
        (phase, _) => (phase, Vec::new()),
    }
}

fn does(to: LinkId, step: Step) -> (Phase, Vec<Effect>) {
    (Phase::Doing { to, step }, vec![Effect::Do(step)])
}
