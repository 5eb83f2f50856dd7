//! RESP2, as redis speaks it: which commands are outstanding, how far their replies are, and what
//! the connection's session is.
//!
//! Owns the counting of commands and replies and what their answers change. Never looks at keys or
//! values.
//!
//! # Decisions
//!
//! - **Credentials lie apart** (`sessions`): with them each connection's tracker took 256 bytes,
//!   whatever its protocol. A connection has room for a session while it has one, or while a
//!   command is unanswered that may change it or hold the connection (`MULTI`, `WATCH`). Where
//!   there is no room, it is pinned (`sessions_full`); the engine gives the clients of one network
//!   half of it at most.

mod command;
mod reply;
mod session;
mod sessions;
mod table;

pub use session::{PRELUDE_MAX, Prelude, Session, prelude_reply_matches};
pub use sessions::{Sessions, Store};

use crate::{ToCome, pin::Pin};
use command::{Commands, Parser};
use reply::{Outcome, Replies};
use sessions::NONE;
use table::{Class, Kind};

/// Commands outstanding. Pipelines have hundreds; more is a bulk load, which had better stay where
/// it is.
const PIPELINE_MAX: u32 = 1 << 20;
#[derive(Clone)]
pub(crate) struct Resp {
    client: Parser,
    server: Replies,
    state: State,
}

#[derive(Clone)]
struct State {
    /// Its room among the sessions, if it needs any.
    session: u32,
    /// Commands whose name is known, and whole replies, since the last rest.
    sent: u32,
    answered: u32,
    /// `sent` behind the newest command that is not idempotent.
    tainted: u32,
    /// Inside a transaction; keys are watched.
    multi: bool,
    watch: bool,
    begun: bool,
    closing: bool,
}

impl Resp {
    pub(crate) const fn new() -> Self {
        Self {
            client: Parser::new(),
            server: Replies::new(),
            state: State {
                session: NONE,
                sent: 0,
                answered: 0,
                tainted: 0,
                multi: false,
                watch: false,
                begun: false,
                closing: false,
            },
        }
    }

    pub(crate) fn at_rest(&self) -> bool {
        self.state.outstanding() == 0
            && !self.state.held()
            && self.client.idle()
            && self.server.idle()
    }

    pub(crate) fn response_begun(&self) -> bool {
        self.state.begun
    }

    pub(crate) fn idempotent(&self) -> bool {
        let state = &self.state;
        let untainted = state.tainted.wrapping_sub(state.answered) as i32 <= 0;
        state.outstanding() > 0 && untainted && !state.held() && !self.client.in_name()
    }

    pub(crate) fn unanswered(&self) -> u32 {
        self.state.outstanding() + u32::from(self.client.in_name())
    }

    pub(crate) fn to_come(&self) -> ToCome {
        self.client.to_come()
    }

    pub(crate) fn client_skips(&self) -> u64 {
        u64::from(self.client.skips())
    }

    pub(crate) fn server_skips(&self) -> u64 {
        u64::from(self.server.skips())
    }

    pub(crate) fn closing(&self) -> bool {
        self.state.closing
    }

    /// Whether there is a session, or one may come of what is unanswered.
    pub(crate) fn has_session(&self) -> bool {
        self.state.session != NONE
    }

    pub(crate) fn prelude<S: Store>(
        &self,
        sessions: &Sessions<S>,
        out: &mut [u8; PRELUDE_MAX],
    ) -> Option<Prelude> {
        sessions.get(self.state.session)?.prelude(out)
    }

    /// Gives the room of the session back.
    pub(crate) fn forget<S: Store>(&mut self, sessions: &mut Sessions<S>) {
        sessions.give_back(self.state.session);
        self.state.session = NONE;
    }

    pub(crate) fn client<S: Store>(
        &mut self,
        gap: u32,
        data: &[u8],
        sessions: &mut Sessions<S>,
    ) -> Result<(), Pin> {
        self.client.skip(gap)?;
        let state = &mut self.state;
        self.client.take(data, &mut Talk { state, sessions })?;
        self.settle(sessions);
        Ok(())
    }

    pub(crate) fn server<S: Store>(
        &mut self,
        gap: u32,
        mut data: &[u8],
        sessions: &mut Sessions<S>,
    ) -> Result<(), Pin> {
        self.server.skip(gap)?;
        while !data.is_empty() {
            if self.server.idle() {
                // A command that is not complete has no answer yet.
                if self.state.outstanding() == u32::from(self.client.in_arguments()) {
                    return Err(Pin::ServerFirst);
                }
                self.state.begun = true;
            }
            let (rest, outcome) = self.server.take(data)?;
            data = rest;
            if let Some(outcome) = outcome {
                self.state.replied(outcome, sessions)?;
            }
        }
        self.settle(sessions);
        Ok(())
    }

    fn settle<S: Store>(&mut self, sessions: &mut Sessions<S>) {
        if sessions.get(self.state.session).is_some_and(Session::is_idle) {
            self.forget(sessions);
        }
        if self.at_rest() {
            let state = &mut self.state;
            state.begun = false;
            state.sent = 0;
            state.answered = 0;
            state.tainted = 0;
        }
    }
}

/// What a command's parts change.
struct Talk<'a, S> {
    state: &'a mut State,
    sessions: &'a mut Sessions<S>,
}

impl<S: Store> Talk<'_, S> {
    /// The connection's session; from now on it has room for one.
    fn session(&mut self) -> Result<&mut Session, Pin> {
        if self.state.session == NONE {
            self.state.session = self.sessions.take().ok_or(Pin::SessionsFull)?;
        }
        self.known().ok_or(Pin::SessionsFull)
    }

    /// The same if it has one. A command that turned out to be of no interest may have given it
    /// back already.
    fn known(&mut self) -> Option<&mut Session> {
        self.sessions.get_mut(self.state.session)
    }
}

impl<S: Store> Commands for Talk<'_, S> {
    fn named(&mut self, name: &[u8]) -> Result<bool, Pin> {
        let class = table::class(name);
        if self.state.outstanding() >= PIPELINE_MAX {
            return Err(Pin::PipelineTooDeep);
        }
        let mut captured = false;
        match class {
            Class::Pins(pin) => return Err(pin),
            Class::Special(kind @ (Kind::Auth | Kind::Select | Kind::Script)) => {
                // What RESET does is known only with its reply, which ends the reading of
                // arguments, and there is room for one of each.
                let known = self.session()?;
                if known.waits_for(Kind::Reset) || known.waits_for(kind) {
                    return Err(Pin::Session);
                }
                known.begin(kind);
                captured = true;
            }
            Class::Special(kind) => {
                let sent = self.state.sent;
                self.session()?.remember(kind, sent)?;
            }
            Class::Reads | Class::Other => {}
        }
        let state = &mut *self.state;
        state.sent = state.sent.wrapping_add(1);
        let twice_is_once =
            matches!(class, Class::Reads | Class::Special(Kind::Auth | Kind::Select));
        if !twice_is_once {
            state.tainted = state.sent;
        }
        Ok(captured)
    }

    fn bytes(&mut self, bytes: &[u8]) -> Result<(), Pin> {
        self.known().map_or(Ok(()), |known| known.bytes(bytes))
    }

    fn argument_ended(&mut self) -> Result<(), Pin> {
        self.known().map_or(Ok(()), Session::argument_ended)
    }

    fn command_ended(&mut self, captured: bool) -> Result<(), Pin> {
        let index = self.state.sent.wrapping_sub(1);
        if captured
            && let Some(known) = self.known()
            && let Some(kind) = known.command_ended()?
        {
            known.remember(kind, index)?;
        }
        Ok(())
    }
}

impl State {
    fn outstanding(&self) -> u32 {
        self.sent.wrapping_sub(self.answered)
    }

    /// Something ties the connection to this server for now.
    fn held(&self) -> bool {
        self.multi || self.watch
    }

    fn replied<S: Store>(
        &mut self,
        outcome: Outcome,
        sessions: &mut Sessions<S>,
    ) -> Result<(), Pin> {
        let index = self.answered;
        self.answered = self.answered.wrapping_add(1);
        let Some(session) = sessions.get_mut(self.session) else {
            return Ok(());
        };
        let Some(kind) = session.is_answered(index) else {
            return Ok(());
        };
        let is = |k: Kind| kind == k as u32;
        let ok = outcome == Outcome::Ok;
        if is(Kind::Multi) {
            self.multi |= ok;
        } else if is(Kind::Exec) {
            // Executed or aborted, the transaction is over (redis: execCommand,
            // execCommandAbort); without one EXEC does nothing. With any other error (wrong
            // arguments, LOADING, BUSY) older redis stays in the transaction.
            if outcome != Outcome::Error {
                self.watch &= !self.multi;
                self.multi = false;
            }
        } else if is(Kind::Discard) {
            self.watch &= !ok;
            self.multi &= !ok;
        } else if is(Kind::Watch) {
            self.watch |= ok;
        } else if is(Kind::Unwatch) {
            self.watch &= !ok;
        } else if is(Kind::Auth) || is(Kind::Select) {
            if outcome == Outcome::Queued {
                // It will count with EXEC, if that succeeds.
                return Err(Pin::Session);
            }
            session.answered(is(Kind::Auth), ok);
        } else if is(Kind::Reset) && outcome == Outcome::Reset {
            session.forget();
            self.multi = false;
            self.watch = false;
        } else if is(Kind::Quit) {
            self.closing = true;
        }
        Ok(())
    }
}
