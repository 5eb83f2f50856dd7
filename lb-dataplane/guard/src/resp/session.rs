//! The session of a connection that can be restored on another server: `AUTH` and `SELECT`; and the
//! commands whose answers may change it, or hold the connection.
//!
//! Owns the credentials and the database's number, and renders the commands that restore them.
//! Never shows a secret; overwrites it when it is forgotten.

use super::table::Kind;
use crate::{line::decimal, pin::Pin};

/// User and password together. Hashes and generated passwords have up to 64 bytes; longer tokens
/// (of cloud identities) pin.
const AUTH_BYTES_MAX: usize = 96;
/// `SELECT` with up to 4 digits: redis makes 16 databases unless told otherwise.
const DIGITS_MAX: usize = 4;

/// Room for a prelude: `AUTH` with both arguments takes at most 31 bytes beside them, `SELECT` at
/// most 33.
pub const PRELUDE_MAX: usize = 192;
const _: () = assert!(AUTH_BYTES_MAX + 31 + 33 <= PRELUDE_MAX);

/// Each command of a prelude is answered with this.
const REPLY: &[u8] = b"+OK\r\n";

/// What was written as a prelude.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prelude {
    /// Bytes written.
    pub len: u16,
    /// Bytes of replies expected: 5 for each command.
    pub reply: u16,
}

/// Whether `data` is exactly what the replies to a prelude must be from offset `at` on.
pub fn prelude_reply_matches(at: u16, data: &[u8]) -> bool {
    let at = usize::from(at) % REPLY.len();
    let expected = REPLY.iter().cycle().skip(at);
    data.iter().zip(expected).all(|(is, must)| is == must)
}

/// The command whose arguments are being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    Nothing,
    Script,
    Select,
    /// New credentials.
    Auth,
    /// Credentials while some are known: they must be the same.
    AuthAgain,
}

/// What is remembered of a connection with `AUTH` or `SELECT`, or for as long as a command is
/// unanswered that may change the session or hold the connection.
#[derive(Clone)]
pub struct Session {
    /// User, then password.
    auth: [u8; AUTH_BYTES_MAX],
    auth_bytes: u8,
    /// `None`: the password alone.
    user_bytes: Option<u8>,
    /// The server accepted the credentials.
    authenticated: bool,
    reading: Reading,
    arguments: u8,
    /// Bytes read of the command's arguments, and how many of them are the first argument.
    at: u8,
    first_bytes: u8,
    /// The credentials differ from those that are known.
    differ: bool,
    /// Short arguments of SELECT and SCRIPT.
    text: [u8; 5],
    database: u16,
    next_database: u16,
    /// Low byte: the kind; above it, the low 24 bits of `sent` before the command. Oldest first.
    special: [u32; SPECIAL_MAX],
    special_count: u8,
    /// Where it is not in use: the next such one.
    pub(super) next: u32,
}

/// Outstanding commands whose answer changes the session or a hold.
const SPECIAL_MAX: usize = 8;
/// The low 24 bits of a count: more than `PIPELINE_MAX`.
const SPECIAL_INDEX: u32 = 0xff_ffff;

impl Default for Session {
    fn default() -> Self {
        Self::new()
    }
}

impl Session {
    /// The default one, with nothing to remember.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            auth: [0; AUTH_BYTES_MAX],
            auth_bytes: 0,
            user_bytes: None,
            authenticated: false,
            reading: Reading::Nothing,
            arguments: 0,
            at: 0,
            first_bytes: 0,
            differ: false,
            text: [0; 5],
            database: 0,
            next_database: 0,
            special: [0; SPECIAL_MAX],
            special_count: 0,
            next: u32::MAX,
        }
    }

    pub(super) fn is_default(&self) -> bool {
        !self.authenticated && self.database == 0
    }

    #[cfg(test)]
    pub(super) fn has_bytes(&self, bytes: &[u8]) -> bool {
        self.auth.windows(bytes.len()).any(|part| part == bytes)
    }

    /// Whether nothing has to be remembered.
    pub(super) fn is_idle(&self) -> bool {
        self.is_default() && self.special_count == 0 && self.reading == Reading::Nothing
    }

    /// Back to the default session; the secret is overwritten.
    pub(super) fn forget(&mut self) {
        *self = Self { special: self.special, special_count: self.special_count, ..Self::new() };
    }

    /// Notes that the answer to the command with this index counts.
    pub(super) fn remember(&mut self, kind: Kind, index: u32) -> Result<(), Pin> {
        let Some(free) = self.special.get_mut(usize::from(self.special_count)) else {
            return Err(Pin::PipelineTooDeep);
        };
        *free = (index & SPECIAL_INDEX) << 8 | kind as u32;
        self.special_count += 1;
        Ok(())
    }

    pub(super) fn waits_for(&self, kind: Kind) -> bool {
        self.special[..usize::from(self.special_count)].iter().any(|s| s & 0xff == kind as u32)
    }

    /// The command with this index is answered: its kind, if its answer counts.
    pub(super) fn is_answered(&mut self, index: u32) -> Option<u32> {
        if self.special_count == 0 || self.special[0] >> 8 != index & SPECIAL_INDEX {
            return None;
        }
        let kind = self.special[0] & 0xff;
        self.special.rotate_left(1);
        self.special_count -= 1;
        Some(kind)
    }

    fn forget_auth(&mut self) {
        self.auth.fill(0);
        self.auth_bytes = 0;
        self.user_bytes = None;
        self.authenticated = false;
    }

    /// The arguments of a command will follow.
    pub(super) fn begin(&mut self, kind: Kind) {
        self.reading = match kind {
            Kind::Select => Reading::Select,
            Kind::Auth if self.authenticated => Reading::AuthAgain,
            Kind::Auth => Reading::Auth,
            _ => Reading::Script,
        };
        self.arguments = 0;
        self.at = 0;
        self.first_bytes = 0;
        self.differ = false;
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Pin> {
        let at = usize::from(self.at);
        let beyond = match self.reading {
            Reading::Auth | Reading::AuthAgain => self.arguments >= 2,
            _ => self.arguments >= 1,
        };
        if beyond {
            return Ok(());
        }
        match self.reading {
            Reading::Nothing => return Ok(()),
            Reading::Auth => match self.auth.get_mut(at..at + bytes.len()) {
                Some(room) => room.copy_from_slice(bytes),
                None => return Err(Pin::Session),
            },
            Reading::AuthAgain => match self.auth.get(at..at + bytes.len()) {
                Some(known) => self.differ |= known != bytes,
                None => return Err(Pin::Session),
            },
            Reading::Select | Reading::Script => match self.text.get_mut(at..at + bytes.len()) {
                Some(room) => room.copy_from_slice(bytes),
                None if self.reading == Reading::Select => return Err(Pin::Session),
                // Longer than DEBUG: another subcommand, whatever follows.
                None => {
                    self.reading = Reading::Nothing;
                    return Ok(());
                }
            },
        }
        self.at += bytes.len() as u8;
        Ok(())
    }

    pub(super) fn argument_ended(&mut self) -> Result<(), Pin> {
        if self.arguments == 0 {
            self.first_bytes = self.at;
            let text = self.text.get(..usize::from(self.at)).unwrap_or_default();
            if self.reading == Reading::Script && text.eq_ignore_ascii_case(b"DEBUG") {
                return Err(Pin::ClientState);
            }
        }
        self.arguments = self.arguments.saturating_add(1);
        Ok(())
    }

    /// The command is complete: whether its answer counts.
    pub(super) fn command_ended(&mut self) -> Result<Option<Kind>, Pin> {
        let reading = core::mem::replace(&mut self.reading, Reading::Nothing);
        match (reading, self.arguments) {
            (Reading::Select, 1) => {
                let text = &self.text[..usize::from(self.at)];
                // Redis refuses leading zeros, and so on: what it accepts is a plain number.
                let odd = text.len() > DIGITS_MAX || (text.len() > 1 && text[0] == b'0');
                let number = decimal(text).filter(|_| !odd).ok_or(Pin::Session)?;
                self.next_database = number as u16;
                Ok(Some(Kind::Select))
            }
            (Reading::Auth, 1 | 2) => {
                self.auth_bytes = self.at;
                self.user_bytes = (self.arguments == 2).then_some(self.first_bytes);
                Ok(Some(Kind::Auth))
            }
            (Reading::AuthAgain, 1 | 2) => {
                let user = (self.arguments == 2).then_some(self.first_bytes);
                let same = !self.differ && self.at == self.auth_bytes && user == self.user_bytes;
                same.then_some(None).ok_or(Pin::Session)
            }
            // The server refuses any other number of arguments.
            (Reading::Auth, _) => {
                self.forget_auth();
                Ok(None)
            }
            _ => Ok(None),
        }
    }

    /// The server answered `AUTH` (else `SELECT`).
    pub(super) fn answered(&mut self, auth: bool, ok: bool) {
        match (auth, ok) {
            (true, true) => self.authenticated = true,
            (true, false) => self.forget_auth(),
            (false, true) => self.database = self.next_database,
            (false, false) => {}
        }
    }

    pub(super) fn prelude(&self, out: &mut [u8; PRELUDE_MAX]) -> Option<Prelude> {
        if self.is_default() {
            return None;
        }
        let mut writer = Writer { out, len: 0 };
        let mut reply = 0;
        if self.authenticated {
            let auth = &self.auth[..usize::from(self.auth_bytes)];
            match self.user_bytes {
                Some(user) => {
                    let (user, password) = auth.split_at_checked(usize::from(user))?;
                    writer.command(&[b"AUTH", user, password]);
                }
                None => writer.command(&[b"AUTH", auth]),
            }
            reply += REPLY.len() as u16;
        }
        if self.database != 0 {
            let mut digits = [0; 5];
            writer.command(&[b"SELECT", decimal_digits(self.database, &mut digits)]);
            reply += REPLY.len() as u16;
        }
        Some(Prelude { len: writer.len as u16, reply })
    }
}

fn decimal_digits(mut number: u16, digits: &mut [u8; 5]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[at..];
        }
    }
}

struct Writer<'a> {
    out: &'a mut [u8; PRELUDE_MAX],
    len: usize,
}

impl Writer<'_> {
    /// The room is enough: see `PRELUDE_MAX`.
    fn bytes(&mut self, bytes: &[u8]) {
        if let Some(room) = self.out.get_mut(self.len..self.len + bytes.len()) {
            room.copy_from_slice(bytes);
            self.len += bytes.len();
        }
    }

    fn header(&mut self, kind: u8, number: usize) {
        self.bytes(&[kind]);
        self.bytes(decimal_digits(number as u16, &mut [0; 5]));
        self.bytes(b"\r\n");
    }

    fn command(&mut self, words: &[&[u8]]) {
        self.header(b'*', words.len());
        for word in words {
            self.header(b'$', word.len());
            self.bytes(word);
            self.bytes(b"\r\n");
        }
    }
}
