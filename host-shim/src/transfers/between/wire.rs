//! What host-shims say to each other of Transfers, one message each: a byte that says which, then
//! the fields, all numbers big-endian; what has no length of its own goes to the end. Owns the
//! format; how messages are framed and encrypted is `session`'s, who says what when `heir`'s and
//! `decide`'s.

use super::super::decide::Ended;
use baton_sdk::wire::{put_address, take_address};
use bytes::Bytes;
use std::net::SocketAddr;

/// What is spoken. Another one is refused.
pub const VERSION: u16 = 1;
/// A Transfer between nodes: of all that there are, by whoever asks.
pub type Id = u128;
/// A namespace of Kubernetes: a DNS label.
const TENANT_BYTES_MAX: usize = 63;
const LABEL_BYTES_MAX: usize = 32;

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// From both, first: the namespace of Kubernetes that the pod is in, empty if unknown.
    Hello {
        version: u16,
        tenant: String,
    },
    /// Before the end: why.
    Bye {
        why: Ended,
    },
    /// Will the application there have this connection? `number`: of its network namespace, 0 where
    /// that is not known. Answered by Taken or No.
    Offer {
        id: Id,
        number: u64,
        local: SocketAddr,
        remote: SocketAddr,
        state: Vec<u8>,
    },
    Taken {
        id: Id,
    },
    /// It stays where it is. In place of Taken or Ready.
    No {
        id: Id,
        why: Ended,
    },
    /// The connection itself, which stands still. Answered by Ready or No.
    Record {
        id: Id,
        bytes: Bytes,
    },
    /// It is restored, and silent.
    Ready {
        id: Id,
    },
    /// Its former pod has parted with it. Answered by Spoken or Lost, also a second time.
    Go {
        id: Id,
    },
    Spoken {
        id: Id,
    },
    /// Nobody has it.
    Lost {
        id: Id,
    },
    /// Nothing comes of it.
    Undo {
        id: Id,
    },
}

/// Bytes that are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// What is left of a message.
struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (found, more) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = more;
        Ok(*found)
    }

    fn id(&mut self) -> Result<Id, Malformed> {
        self.bytes().map(u128::from_be_bytes)
    }

    fn address(&mut self) -> Result<SocketAddr, Malformed> {
        take_address(&mut self.0).map_err(|_| Malformed)
    }

    fn text(&mut self, most: usize) -> Result<String, Malformed> {
        let all = std::mem::take(&mut self.0);
        let text = std::str::from_utf8(all).map_err(|_| Malformed)?;
        (text.len() <= most).then(|| text.to_owned()).ok_or(Malformed)
    }

    fn why(&mut self) -> Result<Ended, Malformed> {
        let label = self.text(LABEL_BYTES_MAX)?;
        let found = Ended::ALL.iter().find(|ended| ended.label() == label);
        found.copied().ok_or(Malformed)
    }
}

impl Message {
    /// What it begins with, and what is long in it, which is not copied.
    pub fn encode(&self) -> (Vec<u8>, &[u8]) {
        let (code, id) = match self {
            Self::Hello { .. } => (1, None),
            Self::Bye { .. } => (2, None),
            Self::Offer { id, .. } => (3, Some(id)),
            Self::Taken { id } => (4, Some(id)),
            Self::No { id, .. } => (5, Some(id)),
            Self::Record { id, .. } => (6, Some(id)),
            Self::Ready { id } => (7, Some(id)),
            Self::Go { id } => (8, Some(id)),
            Self::Spoken { id } => (9, Some(id)),
            Self::Lost { id } => (10, Some(id)),
            Self::Undo { id } => (11, Some(id)),
        };
        let mut out = vec![code];
        out.extend(id.iter().flat_map(|id| id.to_be_bytes()));
        match self {
            Self::Hello { version, tenant } => {
                out.extend(version.to_be_bytes());
                out.extend(tenant.bytes());
            }
            Self::Bye { why } | Self::No { why, .. } => out.extend(why.label().bytes()),
            Self::Offer { number, local, remote, state, .. } => {
                out.extend(number.to_be_bytes());
                put_address(&mut out, local);
                put_address(&mut out, remote);
                out.extend(state);
            }
            Self::Record { bytes, .. } => return (out, bytes),
            _ => {}
        }
        (out, &[])
    }

    /// How long it is at most.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Record { bytes, .. } => 1 + size_of::<Id>() + bytes.len(),
            _ => 2 * baton_sdk::wire::STATE_BYTES_MAX,
        }
    }

    /// # Errors
    /// It is none.
    pub fn decode(bytes: &Bytes) -> Result<Self, Malformed> {
        let (code, rest) = bytes.split_first().ok_or(Malformed)?;
        let mut rest = Rest(rest);
        let message = match code {
            1 => Self::Hello {
                version: u16::from_be_bytes(rest.bytes()?),
                tenant: rest.text(TENANT_BYTES_MAX)?,
            },
            2 => Self::Bye { why: rest.why()? },
            3 => Self::Offer {
                id: rest.id()?,
                number: u64::from_be_bytes(rest.bytes()?),
                local: rest.address()?,
                remote: rest.address()?,
                state: match std::mem::take(&mut rest.0) {
                    state if state.len() <= baton_sdk::wire::STATE_BYTES_MAX => state.to_vec(),
                    _ => return Err(Malformed),
                },
            },
            4 => Self::Taken { id: rest.id()? },
            5 => Self::No { id: rest.id()?, why: rest.why()? },
            6 => {
                Self::Record { id: rest.id()?, bytes: bytes.slice_ref(std::mem::take(&mut rest.0)) }
            }
            7 => Self::Ready { id: rest.id()? },
            8 => Self::Go { id: rest.id()? },
            9 => Self::Spoken { id: rest.id()? },
            10 => Self::Lost { id: rest.id()? },
            11 => Self::Undo { id: rest.id()? },
            _ => return Err(Malformed),
        };
        rest.0.is_empty().then_some(message).ok_or(Malformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Message> {
        let id = 1 << 100 | 7;
        let mut all = vec![
            Message::Hello { version: VERSION, tenant: "shop".into() },
            Message::Taken { id },
            Message::Record { id, bytes: Bytes::from_static(&[1, 2, 3]) },
            Message::Ready { id },
            Message::Go { id },
            Message::Spoken { id },
            Message::Lost { id },
            Message::Undo { id },
        ];
        for why in Ended::ALL {
            all.push(Message::Bye { why: *why });
            all.push(Message::No { id, why: *why });
        }
        for (local, remote) in [("10.0.0.1:80", "10.0.0.2:9"), ("[fd00::1]:80", "[fd00::2]:9")] {
            all.push(Message::Offer {
                id,
                number: 99,
                local: local.parse().expect("an address"),
                remote: remote.parse().expect("an address"),
                state: b"state".to_vec(),
            });
        }
        all
    }

    fn whole(message: &Message) -> Bytes {
        let (head, rest) = message.encode();
        [&head, rest].concat().into()
    }

    #[test]
    fn messages_come_as_they_went() {
        for message in all() {
            let bytes = whole(&message);
            assert_eq!(Message::decode(&bytes), Ok(message.clone()));
            // Those that end with a text or bytes are shorter messages of their kind when they are
            // cut there.
            let fixed = !matches!(
                message,
                Message::Hello { .. } | Message::Offer { .. } | Message::Record { .. }
            );
            if fixed {
                for cut in 0..bytes.len() {
                    assert_eq!(Message::decode(&bytes.slice(..cut)), Err(Malformed), "{message:?}");
                }
                assert_eq!(Message::decode(&[&bytes[..], &[0]].concat().into()), Err(Malformed));
            }
        }
    }

    #[test]
    fn what_is_none_is_refused() {
        let long = "n".repeat(TENANT_BYTES_MAX + 1);
        let hello = Message::Hello { version: 1, tenant: long };
        for bytes in [&[][..], &[0], &[12], &whole(&hello), &[1, 0, 1, 0xff]] {
            let bytes = Bytes::copy_from_slice(bytes);
            assert_eq!(Message::decode(&bytes), Err(Malformed), "{bytes:?}");
        }
    }
}
