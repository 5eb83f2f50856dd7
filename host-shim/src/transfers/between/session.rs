//! One channel between two host-shims as bytes: the handshake, encryption, and where messages begin
//! and end (`docs/adoption-wire.md`, Transfers between nodes). Owns these and how much is kept of
//! what comes; never a socket, a clock, or what a message says.
//!
//! `Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s`: both have the key, nobody else does, and each channel
//! has keys of its own, so that what was recorded opens nothing. A first message that is played
//! back is answered, and nothing more: so a responder takes nobody for authentic before a message
//! behind the handshake was decrypted.

use bytes::{BufMut, Bytes, BytesMut};
use snow::{Builder, HandshakeState, TransportState};

/// In front of the handshake, with the epoch's number; both are in what is authenticated.
const VERSION: u8 = 1;
const OPENING_BYTES: usize = 2;
const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// An ephemeral key and a tag: each of both messages of the handshake.
const HANDSHAKE_BYTES: usize = 48;
/// Noise: a message, and the tag in it.
const NOISE_BYTES_MAX: usize = 65_535;
const TAG_BYTES: usize = 16;
/// In front of a Noise message, and in front of one of ours.
const LENGTH_BYTES: usize = 2;
const HEAD_BYTES: usize = 4;
/// Of a message: one full queue of a connection (`QUEUE_BYTES_MAX` of tcp-repair), or both half
/// full, and what else there is to say of it.
pub const MESSAGE_BYTES_MAX: usize = baton_tcp_repair::QUEUE_BYTES_MAX as usize + (64 << 10);
/// Of the first message of a responder's peer, which nobody has seen to have the key: a greeting.
const GREETING_BYTES_MAX: usize = 512;

/// A key of all host-shims, by its epoch.
pub type Key = (u8, [u8; 32]);

/// Why a channel is of no use any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// It is of another version, or of an epoch that is not had.
    Unknown,
    /// It has not the key, or was changed on the way.
    Unauthentic,
    /// A message is longer than any may be.
    TooLong,
}

#[derive(Debug)]
enum State {
    /// The other side's opening is expected.
    Awaiting,
    Shaking(Box<HandshakeState>),
    Open(Box<TransportState>),
    Broken,
}

/// One side of a channel.
#[derive(Debug)]
pub struct Session {
    state: State,
    /// Of which epoch its key is, once that is known.
    epoch: Option<u8>,
    initiates: bool,
    /// Something was decrypted.
    authentic: bool,
    input: Vec<u8>,
    plain: BytesMut,
    /// To be sent.
    pub out: BytesMut,
}

fn handshake(key: &Key, initiates: bool) -> Option<HandshakeState> {
    let builder = Builder::new(PATTERN.parse().ok()?);
    let opening = [VERSION, key.0];
    let builder = builder.psk(0, &key.1).ok()?.prologue(&opening).ok()?;
    let built = if initiates { builder.build_initiator() } else { builder.build_responder() };
    built.ok()
}

impl Session {
    fn new(state: State, initiates: bool) -> Self {
        Self {
            state,
            epoch: None,
            initiates,
            authentic: false,
            input: Vec::new(),
            plain: BytesMut::new(),
            out: BytesMut::new(),
        }
    }

    /// The side that connects. `None` without randomness.
    pub fn initiate(key: &Key) -> Option<Self> {
        let mut shaking = handshake(key, true)?;
        let mut first = [0; HANDSHAKE_BYTES];
        shaking.write_message(&[], &mut first).ok()?;
        let mut session = Self::new(State::Shaking(Box::new(shaking)), true);
        session.epoch = Some(key.0);
        session.out.extend([VERSION, key.0]);
        session.out.extend(first);
        Some(session)
    }

    /// The side that accepts.
    pub fn respond() -> Self {
        Self::new(State::Awaiting, false)
    }

    pub fn epoch(&self) -> Option<u8> {
        self.epoch
    }

    /// Whether the other side is known to have the key.
    pub fn is_authentic(&self) -> bool {
        self.authentic
    }

    /// Whether something can be said.
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    /// Bytes that it keeps.
    pub fn keeps(&self) -> usize {
        self.input.len() + self.plain.len() + self.out.len()
    }

    /// Takes what has come.
    pub fn hear(&mut self, bytes: &[u8], keys: &[Key]) -> Result<(), Broken> {
        self.input.extend_from_slice(bytes);
        let progressed = self.progress(keys);
        if progressed.is_err() {
            self.state = State::Broken;
            self.input.clear();
        }
        progressed
    }

    fn progress(&mut self, keys: &[Key]) -> Result<(), Broken> {
        if matches!(self.state, State::Awaiting) {
            let Some([version, epoch]) = self.input.first_chunk::<OPENING_BYTES>() else {
                return Ok(());
            };
            let key = keys.iter().find(|(of, _)| of == epoch);
            let key = key.filter(|_| *version == VERSION).ok_or(Broken::Unknown)?;
            let shaking = handshake(key, false).ok_or(Broken::Unauthentic)?;
            self.epoch = Some(*epoch);
            self.state = State::Shaking(Box::new(shaking));
            self.input.drain(..OPENING_BYTES);
        }
        if matches!(self.state, State::Shaking(_)) {
            if self.input.len() < HANDSHAKE_BYTES {
                return Ok(());
            }
            self.shake()?;
        }
        self.decrypt()
    }

    fn shake(&mut self) -> Result<(), Broken> {
        let State::Shaking(mut shaking) = std::mem::replace(&mut self.state, State::Broken) else {
            return Ok(());
        };
        let mut scratch = [0; HANDSHAKE_BYTES];
        let message: Vec<u8> = self.input.drain(..HANDSHAKE_BYTES).collect();
        let bad = |_| Broken::Unauthentic;
        shaking.read_message(&message, &mut scratch).map_err(bad)?;
        if self.initiates {
            self.authentic = true;
        } else {
            shaking.write_message(&[], &mut scratch).map_err(bad)?;
            self.out.extend(scratch);
        }
        let open = shaking.into_transport_mode().map_err(bad)?;
        self.state = State::Open(Box::new(open));
        Ok(())
    }

    fn decrypt(&mut self) -> Result<(), Broken> {
        let State::Open(open) = &mut self.state else {
            return Ok(());
        };
        let mut at = 0;
        while let Some((length, rest)) = self.input[at..].split_first_chunk::<LENGTH_BYTES>() {
            let length = usize::from(u16::from_be_bytes(*length));
            if !self.authentic && length > GREETING_BYTES_MAX {
                return Err(Broken::TooLong);
            }
            let Some(message) = rest.get(..length) else {
                break;
            };
            let before = self.plain.len();
            self.plain.resize(before + length, 0);
            let read = open.read_message(message, &mut self.plain[before..]);
            let Ok(read) = read else {
                self.plain.truncate(before);
                return Err(Broken::Unauthentic);
            };
            self.plain.truncate(before + read);
            self.authentic = true;
            at += LENGTH_BYTES + length;
        }
        self.input.drain(..at);
        match self.message_bytes() {
            Some(length) if length > MESSAGE_BYTES_MAX => Err(Broken::TooLong),
            // Room for all of it is made once. Whoever says so has the key.
            Some(length) => {
                let rest = (HEAD_BYTES + length).saturating_sub(self.plain.len());
                self.plain.reserve(rest);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Of the message that has begun.
    fn message_bytes(&self) -> Option<usize> {
        let length = u32::from_be_bytes(*self.plain.first_chunk::<HEAD_BYTES>()?);
        usize::try_from(length).ok()
    }

    /// The next whole message.
    pub fn next(&mut self) -> Result<Option<Bytes>, Broken> {
        let Some(length) = self.message_bytes() else {
            return Ok(None);
        };
        if length > MESSAGE_BYTES_MAX {
            return Err(Broken::TooLong);
        }
        let end = HEAD_BYTES + length;
        if self.plain.len() < end {
            return Ok(None);
        }
        let message = self.plain.split_to(end).freeze().slice(HEAD_BYTES..);
        if self.plain.is_empty() {
            // What a long message needed is not kept.
            self.plain = BytesMut::new();
        }
        Ok(Some(message))
    }

    /// Has a message sent, whose rest may be long. `false` if it is too long, or the handshake is
    /// not over.
    pub fn say(&mut self, head: &[u8], rest: &[u8]) -> bool {
        let State::Open(open) = &mut self.state else {
            return false;
        };
        let length = head.len() + rest.len();
        if length > MESSAGE_BYTES_MAX {
            return false;
        }
        // Below 2^32.
        let head = [&(length as u32).to_be_bytes(), head].concat();
        let pieces = |of| <[u8]>::chunks(of, NOISE_BYTES_MAX - TAG_BYTES);
        let count = pieces(&head).len() + pieces(rest).len();
        let more = HEAD_BYTES + length + count * (LENGTH_BYTES + TAG_BYTES);
        self.out.reserve(more);
        for piece in pieces(&head).chain(pieces(rest)) {
            let bytes = piece.len() + TAG_BYTES;
            let before = self.out.len();
            // At most 65,535.
            self.out.put_u16(bytes as u16);
            self.out.resize(before + LENGTH_BYTES + bytes, 0);
            let room = &mut self.out[before + LENGTH_BYTES..];
            if open.write_message(piece, room).is_err() {
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [Key; 2] = [(1, [7; 32]), (2, [8; 32])];

    fn pass(from: &mut Session, to: &mut Session) -> Result<(), Broken> {
        let bytes = std::mem::take(&mut from.out);
        // In pieces, as a network has it.
        bytes.chunks(7).try_for_each(|piece| to.hear(piece, &KEYS))
    }

    fn open(key: &Key) -> (Session, Session) {
        let mut a = Session::initiate(key).expect("randomness");
        let mut b = Session::respond();
        pass(&mut a, &mut b).expect("it is the key");
        assert!(b.is_open() && !b.is_authentic());
        pass(&mut b, &mut a).expect("it is the key");
        assert!(a.is_open() && a.is_authentic());
        (a, b)
    }

    #[test]
    fn messages_of_any_length_arrive_whole_and_in_order() {
        let (mut a, mut b) = open(&KEYS[1]);
        assert_eq!((a.epoch(), b.epoch()), (Some(2), Some(2)));
        for bytes in [0, 1, 100, 65_519, 65_520, 200_000] {
            let message: Vec<u8> = (0..bytes).map(|n| n as u8).collect();
            assert!(a.say(&message, &[]) || bytes > GREETING_BYTES_MAX);
            pass(&mut a, &mut b).expect("authentic");
            assert!(b.is_authentic());
            assert_eq!(b.next(), Ok(Some(message.clone().into())));
            assert_eq!(b.next(), Ok(None));
            assert!(b.say(&[], &message));
            pass(&mut b, &mut a).expect("authentic");
            assert_eq!(a.next(), Ok(Some(message.into())));
            assert_eq!((a.keeps(), b.keeps()), (0, 0));
        }
    }

    #[test]
    fn without_the_key_nobody_is_heard() {
        let mut a = Session::initiate(&(1, [9; 32])).expect("randomness");
        let mut b = Session::respond();
        assert_eq!(pass(&mut a, &mut b), Err(Broken::Unauthentic));
        assert!(b.out.is_empty() && !b.is_open() && !b.is_authentic());
        for (at, broken) in [(0, Broken::Unknown), (1, Broken::Unknown), (40, Broken::Unauthentic)]
        {
            let mut a = Session::initiate(&KEYS[0]).expect("randomness");
            let mut b = Session::respond();
            a.out[at] ^= 64;
            assert_eq!(pass(&mut a, &mut b), Err(broken), "byte {at}");
        }
        // The other epoch's number is in what is authenticated.
        let mut a = Session::initiate(&(1, KEYS[1].1)).expect("randomness");
        a.out[1] = 2;
        assert_eq!(pass(&mut a, &mut Session::respond()), Err(Broken::Unauthentic));
    }

    #[test]
    fn what_was_recorded_opens_nothing() {
        let mut a = Session::initiate(&KEYS[0]).expect("randomness");
        let mut b = Session::respond();
        let first = a.out.clone();
        pass(&mut a, &mut b).expect("it is the key");
        pass(&mut b, &mut a).expect("it is the key");
        assert!(a.say(b"go", b""));
        let second = a.out.clone();
        let mut replayed = Session::respond();
        assert_eq!(replayed.hear(&first, &KEYS), Ok(()));
        assert!(!replayed.is_authentic());
        assert_eq!(replayed.hear(&second, &KEYS), Err(Broken::Unauthentic));
        assert_eq!((replayed.is_authentic(), replayed.next()), (false, Ok(None)));
        // Nor twice over the same channel.
        assert_eq!(b.hear(&second, &KEYS), Ok(()));
        assert_eq!(b.hear(&second, &KEYS), Err(Broken::Unauthentic));
    }

    #[test]
    fn what_is_too_long_is_refused_before_it_is_kept() {
        let (mut a, mut b) = open(&KEYS[0]);
        assert!(!a.say(&[0], &vec![0; MESSAGE_BYTES_MAX]));
        assert!(a.say(&[0; GREETING_BYTES_MAX], &[]));
        let before = a.out.len();
        assert_eq!(b.hear(&a.out[..2], &KEYS), Err(Broken::TooLong));
        assert!(before > GREETING_BYTES_MAX && b.keeps() == 0);
        // A head that says more than there may be.
        let (mut a, mut b) = open(&KEYS[0]);
        assert!(a.say(b"fi", b"rst"));
        pass(&mut a, &mut b).expect("authentic");
        assert_eq!(b.next(), Ok(Some(Bytes::from_static(b"first"))));
        let State::Open(open) = &mut a.state else { panic!() };
        let mut sealed = [0; 64];
        let head = u32::try_from(MESSAGE_BYTES_MAX + 1).expect("few").to_be_bytes();
        let length = open.write_message(&head, &mut sealed).expect("room");
        let framed = [&(length as u16).to_be_bytes(), &sealed[..length]].concat();
        assert_eq!(b.hear(&framed, &KEYS), Err(Broken::TooLong));
    }
}
