//! Where a Transfer leads (`docs/adoption-wire.md`, Transfers). Owns in which fields of the message
//! that is; never who may go where.

use crate::{
    Adoption, AdoptionKey, CLIENT_BLOCK_BYTES, ClientBlock, Flags, MessageKind, SegmentSpec,
};
use core::net::{IpAddr, SocketAddr};

/// Which pod shall have a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Which {
    /// The one whose network namespace has this random number.
    Namespace(u64),
    /// One of another node, by IPv6: bytes 4 to 11 of its address, which begins as that of the pod
    /// that has the connection does.
    Address(u64),
}

/// The pod that shall have a connection, and the port that the connection comes from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Destination {
    /// Which pod it is.
    pub which: Which,
    /// The port of its application.
    pub port: u16,
    /// The port that it sees its peer at.
    pub peer_port: u16,
    /// The address that it sees its peer at, if that is another one than before.
    pub peer: Option<IpAddr>,
    /// The last four bytes of the pod's address.
    pub address_end: u32,
}

impl Destination {
    /// The message to the pod numbered `namespace`, and what `spec` has to say beside it.
    #[must_use]
    pub fn into_message<'a>(
        self,
        spec: &SegmentSpec<'a>,
        namespace: u64,
        epoch: u8,
    ) -> (SegmentSpec<'a>, Adoption) {
        let (number, says_address) = match self.which {
            Which::Namespace(number) => (number, false),
            Which::Address(middle) => (middle, true),
        };
        // Halves of the number, exact.
        let (high, low) = ((number >> 32) as u32, number as u32);
        let spec = SegmentSpec {
            window: match self.peer {
                Some(_) => 0,
                None => self.peer_port,
            },
            timestamps: Some((high, low)),
            ..*spec
        };
        let message = Adoption {
            mss: self.port,
            server_ts: self.address_end,
            namespace,
            // The lowest bit.
            wscale_ok: says_address,
            ..Adoption::bare(MessageKind::Transfer, epoch)
        };
        (spec, message)
    }

    /// The payload of that message, if it has one: `spec` is the whole message's.
    #[must_use]
    pub fn block(
        self,
        spec: &SegmentSpec<'_>,
        message: &Adoption,
        key: &AdoptionKey,
    ) -> Option<[u8; CLIENT_BLOCK_BYTES]> {
        let block = ClientBlock {
            client: self.peer?,
            port: self.peer_port,
            epoch: message.epoch & 15,
            namespace: message.namespace,
        };
        let of =
            SegmentSpec { seq: spec.seq.sub(message.kind.in_front()), flags: Flags::ACK, ..*spec };
        Some(block.bytes(&of, key))
    }

    /// From a message that was verified, the window of its segment, its timestamps, and what its
    /// block says; `None` if it is no Transfer.
    #[must_use]
    pub fn from_message(
        message: &Adoption,
        window: u16,
        (high, low): (u32, u32),
        peer: Option<SocketAddr>,
    ) -> Option<Self> {
        let number = u64::from(high) << 32 | u64::from(low);
        let which = if message.wscale_ok { Which::Address } else { Which::Namespace };
        let is_whole = peer.is_some() == (window == 0);
        (message.kind == MessageKind::Transfer && is_whole).then_some(Self {
            which: which(number),
            port: message.mss,
            peer_port: peer.map_or(window, |peer| peer.port()),
            peer: peer.map(|peer| peer.ip()),
            address_end: message.server_ts,
        })
    }
}
