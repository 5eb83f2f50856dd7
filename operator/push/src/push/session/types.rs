//! What goes into a session and comes out of it. Owns no decision.

use crate::push::{Refusal, Unreached, Version};
use std::time::Duration;

/// What can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    /// `GET /v1/snapshot`, compared with the newest content.
    Read,
    /// `PUT /v1/snapshot`.
    Put {
        /// Its number.
        generation: u64,
        /// Its content.
        version: Version,
    },
    /// `GET /v1/state`.
    Poll,
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// To [`Request::Read`].
    Holds {
        /// Of what is in force; 0 if nothing is.
        generation: u64,
        /// The version of ours that is equal to it.
        version: Option<Version>,
    },
    /// To [`Request::Put`]: in force.
    Accepted,
    /// To [`Request::Put`]: a newer generation is in force.
    Conflict,
    /// To [`Request::Put`]: the content is wrong.
    Refused(Refusal),
    /// To [`Request::Poll`].
    State {
        /// Of what is in force.
        generation: u64,
        /// Since its start.
        uptime_seconds: u64,
        /// How long the answer took.
        took: Duration,
    },
    /// To [`Request::Poll`]: not asked, there was no room for the answer.
    NoRoom,
    /// None, or one that makes no sense. Whether a push arrived is not known.
    Failed(String),
}

/// What happens to a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// This is the newest content; none if the class has none.
    Wanted(Option<Version>),
    /// Something changed that makes a new try worth while.
    Nudge,
    /// What it shall have besides content is another one: it is looked at now.
    Look,
    /// Time has passed.
    Tick,
    /// The request under way ended.
    Answer(Answer),
}

/// What is worth telling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// See [`crate::push::Outcome::Acknowledged`].
    Acknowledged {
        /// Under which number.
        generation: u64,
        /// Which content.
        version: Version,
        /// False if the dataplane had it before.
        pushed: bool,
    },
    /// See [`crate::push::Outcome::Refused`].
    Refused {
        /// Which content.
        version: Version,
        /// Why.
        refusal: Refusal,
    },
    /// See [`crate::push::Outcome::Overtaken`].
    Overtaken {
        /// Of the other content.
        generation: u64,
    },
    /// See [`crate::push::Outcome::Unreachable`].
    Unreachable(Unreached),
    /// The target started again since it was last seen.
    Restarted,
}

/// What follows from an event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Next {
    /// In order.
    pub news: Vec<News>,
    /// To be asked now; it is under way until its [`Event::Answer`].
    pub ask: Option<Request>,
}
