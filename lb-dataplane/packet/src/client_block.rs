//! The client block (`docs/adoption-wire.md`): which client's address and port a pod shall see on a
//! connection that a dataplane begins. Owns its layout and its tag; never whether there is one.

use crate::{
    AdoptionKey, Flags, Segment, SegmentSpec,
    adoption_key::{TagInput, mapped},
    bytes::{array, be16, be32},
};
use core::net::{IpAddr, Ipv6Addr};

/// Bytes of the block: the whole payload of the SYN or Adopt that it is in.
pub const CLIENT_BLOCK_BYTES: usize = 40;
const EXPERIMENT: u16 = 0xba76;

/// The content of the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientBlock {
    /// The client's address, of the family of the segment that the block is in.
    pub client: IpAddr,
    /// The client's port.
    pub port: u16,
    /// Key epoch modulo 16.
    pub epoch: u8,
    /// The random number of the pod's network namespace.
    pub namespace: u64,
}

impl ClientBlock {
    fn input(&self, of: &Numbers) -> TagInput {
        let octets = mapped(self.client);
        let ([e0, e1], [p0, p1]) = (EXPERIMENT.to_be_bytes(), self.port.to_be_bytes());
        let part = |i: usize| be32_at(&octets, i);
        TagInput {
            src: of.src,
            dst: of.dst,
            src_port: of.src_port,
            dst_port: of.dst_port,
            seq: of.seq,
            ack: crate::SeqNumber(part(0)),
            attributes: [e0, e1, p0, p1, 0, self.epoch << 4],
            window: 0,
            server_ts: part(1),
            timestamps: (part(2), part(3)),
            namespace: self.namespace,
        }
    }

    /// The payload of the segment `of`, a SYN or Adopt, whose addresses, ports and sequence number
    /// the tag covers.
    ///
    /// An Adopt with a block begins so many bytes in front of the number that it is about: to a
    /// socket that was made of a copy of it, where the adopter has gone since, the block is nothing
    /// new. (A SYN's data such a kernel does not take.)
    #[must_use]
    pub fn bytes(&self, of: &SegmentSpec<'_>, key: &AdoptionKey) -> [u8; CLIENT_BLOCK_BYTES] {
        let of = Numbers {
            src: of.src,
            dst: of.dst,
            src_port: of.src_port,
            dst_port: of.dst_port,
            seq: match of.flags.has(Flags::SYN) {
                true => of.seq,
                false => of.seq.sub(CLIENT_BLOCK_BYTES as u32),
            },
        };
        let tag = key.tag(&self.input(&of).bytes());
        let mut block = [0; CLIENT_BLOCK_BYTES];
        block[..2].copy_from_slice(&EXPERIMENT.to_be_bytes());
        block[3] = self.epoch << 4;
        block[4..6].copy_from_slice(&self.port.to_be_bytes());
        block[8..24].copy_from_slice(&mapped(self.client));
        block[24..32].copy_from_slice(&self.namespace.to_be_bytes());
        block[32..].copy_from_slice(&tag.to_be_bytes());
        block
    }
}

/// What the tag covers of the segment.
#[derive(Clone, Copy, Debug)]
struct Numbers {
    src: IpAddr,
    dst: IpAddr,
    src_port: u16,
    dst_port: u16,
    seq: crate::SeqNumber,
}

/// A payload with the layout of a client block. Nothing in it is to be believed before
/// [`RawClientBlock::verify`].
#[derive(Clone, Copy, Debug)]
pub struct RawClientBlock {
    of: Numbers,
    block: ClientBlock,
    tag: u64,
}

/// The client block that is the segment's whole payload, if it has the exact layout of one. The tag
/// is not looked at.
#[must_use]
pub fn parse_client_block(frame: &[u8], seg: &Segment) -> Option<RawClientBlock> {
    if seg.payload_len() != CLIENT_BLOCK_BYTES as u32 {
        return None;
    }
    let block = array::<CLIENT_BLOCK_BYTES>(frame, usize::from(seg.payload))?;
    let address = Ipv6Addr::from(*array::<16>(block, 8)?);
    let client = match (seg.is_v6(), address.to_ipv4_mapped()) {
        (false, Some(v4)) => IpAddr::V4(v4),
        (true, None) => IpAddr::V6(address),
        _ => return None,
    };
    let zero = block[2] == 0 && block[3] & 15 == 0 && block[6..8] == [0, 0];
    if be16::<CLIENT_BLOCK_BYTES, 0>(block) != EXPERIMENT || !zero {
        return None;
    }
    Some(RawClientBlock {
        of: Numbers {
            src: seg.src,
            dst: seg.dst,
            src_port: seg.src_port,
            dst_port: seg.dst_port,
            seq: seg.seq,
        },
        block: ClientBlock {
            client,
            port: be16::<CLIENT_BLOCK_BYTES, 4>(block),
            epoch: block[3] >> 4,
            namespace: u64::from_be_bytes(*array(block, 24)?),
        },
        tag: u64::from_be_bytes(*array(block, 32)?),
    })
}

impl RawClientBlock {
    /// The content, if the tag is that of `key`. The tags are compared as two numbers, so the time
    /// this takes does not tell how much of a guess was right.
    #[must_use]
    pub fn verify(&self, key: &AdoptionKey) -> Option<ClientBlock> {
        (key.tag(&self.block.input(&self.of).bytes()) == self.tag).then_some(self.block)
    }
}

fn be32_at(octets: &[u8; 16], word: usize) -> u32 {
    array::<4>(octets, word * 4).map_or(0, be32::<4, 0>)
}
