//! The keys of what dataplanes tell adopters (`docs/adoption-wire.md`), and the tag over it. Owns
//! what a tag covers; never the layout of a message.

use crate::SeqNumber;
use core::{fmt, hash::Hasher, net::IpAddr};
use siphasher::sip::SipHasher24;

pub(crate) const TAG_INPUT_BYTES: usize = 72;

/// The secret of one key epoch. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct AdoptionKey([u8; 16]);

/// Why a text is not a key. Never repeats any of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Wrong length.
    #[error(
        "an adoption key is 32 hexadecimal digits (16 bytes), this text has {found} characters"
    )]
    Length {
        /// Bytes of the text.
        found: usize,
    },
    /// A character that is no hexadecimal digit.
    #[error("an adoption key is 32 hexadecimal digits (16 bytes), character {position} is none")]
    NotHex {
        /// Counted from 1.
        position: usize,
    },
}

impl AdoptionKey {
    /// From its bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// From 32 hexadecimal digits.
    ///
    /// # Errors
    /// See [`KeyError`]; the admin has to correct the key.
    pub fn from_hex(text: &str) -> Result<Self, KeyError> {
        let text = text.as_bytes();
        if text.len() != 32 {
            return Err(KeyError::Length { found: text.len() });
        }
        let mut key = [0; 16];
        for (i, digit) in text.iter().enumerate() {
            let Some(value) = char::from(*digit).to_digit(16) else {
                return Err(KeyError::NotHex { position: i + 1 });
            };
            if let Some(byte) = key.get_mut(i / 2) {
                *byte = *byte << 4 | value as u8;
            }
        }
        Ok(Self(key))
    }

    /// Its bytes, to derive others from.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; 16] {
        &self.0
    }

    pub(crate) fn tag(&self, input: &[u8; TAG_INPUT_BYTES]) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(input);
        hasher.finish()
    }
}

impl fmt::Debug for AdoptionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AdoptionKey(secret)")
    }
}

/// What the tag is computed over, in the order of the wire format's table.
pub(crate) struct TagInput {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) src_port: u16,
    pub(crate) dst_port: u16,
    pub(crate) seq: SeqNumber,
    pub(crate) ack: SeqNumber,
    /// Bytes 2 to 8 of the option: experiment id, mss or reason, scales, flags.
    pub(crate) attributes: [u8; 6],
    pub(crate) window: u16,
    pub(crate) server_ts: u32,
    pub(crate) timestamps: (u32, u32),
    pub(crate) namespace: u64,
}

impl TagInput {
    pub(crate) fn bytes(&self) -> [u8; TAG_INPUT_BYTES] {
        let mut input = [0; TAG_INPUT_BYTES];
        input[..16].copy_from_slice(&mapped(self.src));
        input[16..32].copy_from_slice(&mapped(self.dst));
        input[32..34].copy_from_slice(&self.src_port.to_be_bytes());
        input[34..36].copy_from_slice(&self.dst_port.to_be_bytes());
        input[36..40].copy_from_slice(&self.seq.0.to_be_bytes());
        input[40..44].copy_from_slice(&self.ack.0.to_be_bytes());
        input[44..50].copy_from_slice(&self.attributes);
        input[50..52].copy_from_slice(&self.window.to_be_bytes());
        input[52..56].copy_from_slice(&self.server_ts.to_be_bytes());
        input[56..60].copy_from_slice(&self.timestamps.0.to_be_bytes());
        input[60..64].copy_from_slice(&self.timestamps.1.to_be_bytes());
        input[64..].copy_from_slice(&self.namespace.to_be_bytes());
        input
    }
}

/// An address as 16 bytes: an IPv4 address as the IPv4-mapped one (RFC 4291, section 2.5.5.2).
pub(crate) fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}
