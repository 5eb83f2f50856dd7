//! The messages between an application and host-shim, one packet each: a byte that says which, then
//! the fields in their order, all numbers big-endian. Owns the format; who says what when is
//! `docs/adoption-wire.md`, Transfers.
//!
//! The transfer's number (`id`) is host-shim's choice. An address is 4 or 6, the address, and the
//! port. A text or state goes to the packet's end.

use std::net::{IpAddr, SocketAddr};

/// What is spoken. Another one is refused.
pub const VERSION: u16 = 1;
/// The abstract name of host-shim's socket in each pod's network namespace.
pub const NAME: &[u8] = b"baton";
/// Most bytes that an application says of one connection. A packet of this length fits into a
/// socket's default buffer (212,992 bytes, `net.core.wmem_default`) three times.
pub const STATE_BYTES_MAX: usize = 64 << 10;
/// Most ports of one application. More than any server listens on for one kind of requests.
pub const PORTS_MAX: usize = 64;
/// Most bytes of a reason: a sentence for a log.
pub const REASON_BYTES_MAX: usize = 256;
/// Most bytes of a packet: kind, number, two addresses, state.
pub const PACKET_BYTES_MAX: usize = 1 + 8 + 2 * 19 + STATE_BYTES_MAX;

macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident = $code:literal { $($field:ident: $kind:ident),* };)+) => {
        /// One packet.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "the fields are the same in all")]
        pub enum Message { $($(#[$doc])* $name { $($field: kinds::$kind),* }),+ }

        impl Message {
            /// Its packet.
            #[must_use]
            pub fn encode(&self) -> Vec<u8> {
                match self {
                    $(Self::$name { $($field),* } => {
                        #[allow(unused_mut, reason = "some have no fields")]
                        let mut out = vec![$code];
                        $(put::$kind(&mut out, $field);)*
                        out
                    })+
                }
            }

            /// The message of a packet.
            ///
            /// # Errors
            /// What is wrong with it.
            pub fn decode(packet: &[u8]) -> Result<Self, Malformed> {
                let (code, mut rest) = packet.split_first().ok_or(Malformed::Short)?;
                let message = match code {
                    $($code => Self::$name { $($field: take::$kind(&mut rest)?),* },)+
                    other => return Err(Malformed::Kind(*other)),
                };
                if rest.is_empty() { Ok(message) } else { Err(Malformed::Long) }
            }
        }
    };
}

#[allow(non_camel_case_types, reason = "named as the functions that write and read them")]
mod kinds {
    pub type number = u64;
    pub type short = u16;
    pub type ports = Vec<u16>;
    pub type address = std::net::SocketAddr;
    pub type state = Vec<u8>;
    pub type text = String;
}

messages! {
    /// From an application, first: what it speaks and the ports it listens on.
    Hello = 1 { version: short, ports: ports };
    /// To an application, which is known from now on.
    Welcome = 2 { version: short };
    /// To an application: may this connection go? One answer is expected: Out, NotMine, Refuse.
    Want = 3 { id: number, local: address, remote: address };
    /// From an application, with the connection's descriptor: yes, and what the next one must know.
    Out = 4 { id: number, state: state };
    /// From an application, to a Want: it has no such connection.
    NotMine = 5 { id: number };
    /// To an application: will you have this one? One answer is expected: Take, Refuse.
    Offer = 6 { id: number, local: address, remote: address, state: state };
    /// From an application, to an Offer, with a new TCP socket of its own: yes, into this one.
    Take = 7 { id: number };
    /// From an application, to a Want or Offer: no.
    Refuse = 8 { id: number, reason: text };
    /// To the application that takes it: the connection is in its socket, and talks.
    Yours = 9 { id: number };
    /// To the application that handed it out: another one has it, close your copy.
    Gone = 10 { id: number };
    /// To an application: nothing comes of it. Who handed the connection out goes on with it.
    Back = 11 { id: number, reason: text };
    /// From an application whose connection to host-shim broke while it handed a connection out,
    /// with the descriptor: whose is it? Answered by Gone or Back.
    Doubt = 12 { id: number, local: address, remote: address };
    /// Either side: the connection between both ends, and why.
    Bye = 13 { reason: text };
}

impl Message {
    /// Whether a descriptor belongs to it.
    #[must_use]
    pub const fn has_descriptor(&self) -> bool {
        matches!(self, Self::Out { .. } | Self::Take { .. } | Self::Doubt { .. })
    }
}

/// A reason that fits.
#[must_use]
pub fn reason(text: &str) -> String {
    let mut end = text.len().min(REASON_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

/// Why a packet is none of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// It ends too soon.
    #[error("the packet is too short")]
    Short,
    /// It goes on.
    #[error("the packet is too long")]
    Long,
    /// None of the messages.
    #[error("no message has the number {0}")]
    Kind(u8),
    /// A field cannot have that value.
    #[error("the field `{0}` is out of range")]
    Field(&'static str),
    /// A descriptor is missing, or one too many.
    #[error("the packet has another number of descriptors than its message")]
    Descriptors,
}

pub use put::address as put_address;
pub use take::address as take_address;

mod put {
    use super::{IpAddr, SocketAddr};

    pub(super) fn number(out: &mut Vec<u8>, value: &u64) {
        out.extend(value.to_be_bytes());
    }

    pub(super) fn short(out: &mut Vec<u8>, value: &u16) {
        out.extend(value.to_be_bytes());
    }

    pub(super) fn ports(out: &mut Vec<u8>, ports: &[u16]) {
        for port in ports {
            short(out, port);
        }
    }

    /// A byte that says the family, the address, the port.
    pub fn address(out: &mut Vec<u8>, address: &SocketAddr) {
        match address.ip() {
            IpAddr::V4(v4) => {
                out.push(4);
                out.extend(v4.octets());
            }
            IpAddr::V6(v6) => {
                out.push(6);
                out.extend(v6.octets());
            }
        }
        short(out, &address.port());
    }

    pub(super) fn state(out: &mut Vec<u8>, state: &[u8]) {
        out.extend(state);
    }

    pub(super) fn text(out: &mut Vec<u8>, text: &str) {
        out.extend(text.bytes());
    }
}

mod take {
    use super::{Malformed, PORTS_MAX, REASON_BYTES_MAX, STATE_BYTES_MAX, SocketAddr};

    fn bytes<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], Malformed> {
        let (found, more) = rest.split_first_chunk().ok_or(Malformed::Short)?;
        *rest = more;
        Ok(*found)
    }

    pub(super) fn number(rest: &mut &[u8]) -> Result<u64, Malformed> {
        bytes(rest).map(u64::from_be_bytes)
    }

    pub(super) fn short(rest: &mut &[u8]) -> Result<u16, Malformed> {
        bytes(rest).map(u16::from_be_bytes)
    }

    pub(super) fn ports(rest: &mut &[u8]) -> Result<Vec<u16>, Malformed> {
        if rest.len() > 2 * PORTS_MAX {
            return Err(Malformed::Field("ports"));
        }
        let mut ports = Vec::new();
        while !rest.is_empty() {
            match short(rest)? {
                0 => return Err(Malformed::Field("ports")),
                port => ports.push(port),
            }
        }
        Ok(ports)
    }

    /// What [`put_address`](super::put_address) wrote, off the begin of `rest`.
    ///
    /// # Errors
    /// It ends too soon, or the family is none.
    pub fn address(rest: &mut &[u8]) -> Result<SocketAddr, Malformed> {
        let [family] = bytes(rest)?;
        let ip = match family {
            4 => bytes::<4>(rest)?.into(),
            6 => bytes::<16>(rest)?.into(),
            _ => return Err(Malformed::Field("address")),
        };
        Ok(SocketAddr::new(ip, short(rest)?))
    }

    fn all<'a>(
        rest: &mut &'a [u8],
        most: usize,
        field: &'static str,
    ) -> Result<&'a [u8], Malformed> {
        if rest.len() > most {
            return Err(Malformed::Field(field));
        }
        Ok(std::mem::take(rest))
    }

    pub(super) fn state(rest: &mut &[u8]) -> Result<Vec<u8>, Malformed> {
        all(rest, STATE_BYTES_MAX, "state").map(<[u8]>::to_vec)
    }

    pub(super) fn text(rest: &mut &[u8]) -> Result<String, Malformed> {
        let text = all(rest, REASON_BYTES_MAX, "reason")?;
        let text = std::str::from_utf8(text).map_err(|_| Malformed::Field("reason"))?;
        Ok(text.to_owned())
    }
}
