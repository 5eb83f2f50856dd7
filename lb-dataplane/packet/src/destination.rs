//! Where a Transfer leads (`docs/adoption-wire.md`, Transfers). Owns in which fields of the message
//! that is; never who may go where.

use crate::{Adoption, MessageKind, SegmentSpec};

/// The pod that shall have a connection, on the same node as the one that has it, and the port that
/// the connection comes from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Destination {
    /// The random number of that pod's network namespace.
    pub namespace: u64,
    /// The port of its application.
    pub port: u16,
    /// The port that it sees its peer at; the peer's address stays.
    pub peer_port: u16,
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
        // Halves of the number, exact.
        let (high, low) = ((self.namespace >> 32) as u32, self.namespace as u32);
        let spec = SegmentSpec {
            window: self.peer_port,
            timestamps: Some((high, low)),
            ..*spec
        };
        let message = Adoption {
            mss: self.port,
            server_ts: self.address_end,
            namespace,
            ..Adoption::bare(MessageKind::Transfer, epoch)
        };
        (spec, message)
    }

    /// From a message that was verified, the window of its segment and its timestamps; `None` if it
    /// is no Transfer.
    #[must_use]
    pub fn from_message(message: &Adoption, window: u16, (high, low): (u32, u32)) -> Option<Self> {
        (message.kind == MessageKind::Transfer).then_some(Self {
            namespace: u64::from(high) << 32 | u64::from(low),
            port: message.mss,
            peer_port: window,
            address_end: message.server_ts,
        })
    }
}
