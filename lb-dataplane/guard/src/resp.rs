//! RESP2, as redis speaks it: which commands are outstanding, how far their replies are, and what
//! the connection's session is.
//!
//! Owns the counting of commands and replies and what their answers change. Never looks at keys or
//! values.

mod command;
mod reply;
mod session;
mod table;

pub use session::{PRELUDE_MAX, Prelude, prelude_reply_matches};

use crate::{ToCome, pin::Pin};
use command::{Commands, Parser};
use reply::{Outcome, Replies};
use session::Session;
use table::{Class, Kind};

/// Commands outstanding. Pipelines have hundreds; more is a bulk load, which had better stay where
/// it is.
const PIPELINE_MAX: u32 = 1 << 20;
/// Outstanding commands whose answer changes the session or a hold.
const SPECIAL_MAX: usize = 8;

/// The low 24 bits of a count: more than `PIPELINE_MAX`.
const SPECIAL_INDEX: u32 = 0xff_ffff;

#[derive(Clone)]
pub(crate) struct Resp {
    client: Parser,
    server: Replies,
    state: State,
}

#[derive(Clone)]
struct State {
    session: Session,
    /// Commands whose name is known, and whole replies, since the last rest.
    sent: u32,
    answered: u32,
    /// `sent` behind the newest command that is not idempotent.
    tainted: u32,
    /// Low byte: the kind; above it, the low 24 bits of `sent` before the command. Oldest first.
    special: [u32; SPECIAL_MAX],
    special_count: u8,
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
                session: Session::new(),
                sent: 0,
                answered: 0,
                tainted: 0,
                special: [0; SPECIAL_MAX],
                special_count: 0,
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

    pub(crate) fn has_session(&self) -> bool {
        !self.state.session.is_default()
    }

    pub(crate) fn prelude(&self, out: &mut [u8; PRELUDE_MAX]) -> Option<Prelude> {
        self.state.session.prelude(out)
    }

    pub(crate) fn client(&mut self, gap: u32, data: &[u8]) -> Result<(), Pin> {
        self.client.skip(gap)?;
        self.client.take(data, &mut self.state)?;
        self.settle();
        Ok(())
    }

    pub(crate) fn server(&mut self, gap: u32, mut data: &[u8]) -> Result<(), Pin> {
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
                self.state.replied(outcome)?;
            }
        }
        self.settle();
        Ok(())
    }

    fn settle(&mut self) {
        if self.at_rest() {
            let state = &mut self.state;
            state.begun = false;
            state.sent = 0;
            state.answered = 0;
            state.tainted = 0;
        }
    }
}

impl Commands for State {
    fn named(&mut self, name: &[u8]) -> Result<bool, Pin> {
        let class = table::class(name);
        if self.outstanding() >= PIPELINE_MAX {
            return Err(Pin::PipelineTooDeep);
        }
        let mut captured = false;
        match class {
            Class::Pins(pin) => return Err(pin),
            Class::Special(kind @ (Kind::Auth | Kind::Select | Kind::Script)) => {
                // What RESET does is known only with its reply, and there is room for one of each.
                let session = kind != Kind::Script;
                if session && (self.waits_for(Kind::Reset) || self.waits_for(kind)) {
                    return Err(Pin::Session);
                }
                self.session.begin(kind);
                captured = true;
            }
            Class::Special(kind) => self.remember(kind, self.sent)?,
            Class::Reads | Class::Other => {}
        }
        self.sent = self.sent.wrapping_add(1);
        let twice_is_once = matches!(
            class,
            Class::Reads | Class::Special(Kind::Auth | Kind::Select)
        );
        if !twice_is_once {
            self.tainted = self.sent;
        }
        Ok(captured)
    }

    fn bytes(&mut self, bytes: &[u8]) -> Result<(), Pin> {
        self.session.bytes(bytes)
    }

    fn argument_ended(&mut self) -> Result<(), Pin> {
        self.session.argument_ended()
    }

    fn command_ended(&mut self, captured: bool) -> Result<(), Pin> {
        if captured && let Some(kind) = self.session.command_ended()? {
            self.remember(kind, self.sent.wrapping_sub(1))?;
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

    /// Notes that the answer to the command with this index counts.
    fn remember(&mut self, kind: Kind, index: u32) -> Result<(), Pin> {
        let Some(free) = self.special.get_mut(usize::from(self.special_count)) else {
            return Err(Pin::PipelineTooDeep);
        };
        *free = (index & SPECIAL_INDEX) << 8 | kind as u32;
        self.special_count += 1;
        Ok(())
    }

    fn waits_for(&self, kind: Kind) -> bool {
        self.special[..usize::from(self.special_count)]
            .iter()
            .any(|s| s & 0xff == kind as u32)
    }

    fn replied(&mut self, outcome: Outcome) -> Result<(), Pin> {
        let index = self.answered & SPECIAL_INDEX;
        self.answered = self.answered.wrapping_add(1);
        if self.special_count == 0 || self.special[0] >> 8 != index {
            return Ok(());
        }
        let kind = self.special[0] & 0xff;
        self.special.rotate_left(1);
        self.special_count -= 1;
        let is = |k: Kind| kind == k as u32;
        let ok = outcome == Outcome::Ok;
        if is(Kind::Multi) {
            self.multi |= ok;
        } else if is(Kind::Exec) {
            // Whatever EXEC answers, the transaction is over (redis: execCommand,
            // execCommandAbort). Without one it does nothing.
            self.watch &= !self.multi;
            self.multi = false;
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
            self.session.answered(is(Kind::Auth), ok);
        } else if is(Kind::Reset) && outcome == Outcome::Reset {
            self.session.forget();
            self.multi = false;
            self.watch = false;
        } else if is(Kind::Quit) {
            self.closing = true;
        }
        Ok(())
    }
}
