//! The keyed hash of what clients choose: addresses and ports.
//!
//! Owns keys and their use. Two folded multiplications (64 by 64 bits to 128, both halves XORed),
//! as in wyhash and foldhash: who does not know the keys cannot choose what collides, and finds out
//! nothing, as no hash leaves the engine. It is not a cryptographic one, so the flow table notices
//! when too much collides, and takes new keys.
//!
//! # Decisions
//!
//! - **Hash keys and the numbers that pods see come from the system's random numbers**, the latter
//!   by a keyed hash of a count: nothing that a pod sees tells the next one, nor what is chosen.

use crate::ids::Addr;
use siphasher::sip::SipHasher13;
use std::hash::Hasher;

/// The keys of one table.
#[derive(Clone, Copy)]
pub(crate) struct Keyed([u64; 3]);

#[inline]
const fn fold(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    product as u64 ^ (product >> 64) as u64
}

impl Keyed {
    /// The keys of a generation, from what is secret.
    pub(crate) fn new((a, b): (u64, u64), generation: u64) -> Self {
        let key = |n: u64| {
            let mut hasher = SipHasher13::new_with_keys(a, b);
            hasher.write_u64(generation);
            hasher.write_u64(n);
            hasher.finish()
        };
        Self([key(0), key(1), key(2)])
    }

    /// Of a client's end and a number of ours.
    #[inline(always)]
    pub(crate) fn hash(&self, address: Addr, port: u16, ours: u16) -> u64 {
        let [a, b, c] = self.0;
        let ends = u64::from(port) << 16 | u64::from(ours);
        fold(fold(address.low ^ a, address.high ^ b) ^ ends, c)
    }

    /// Of a number of ours.
    #[inline(always)]
    pub(crate) fn hash_number(&self, number: u32) -> u64 {
        let [a, b, _] = self.0;
        fold(u64::from(number) ^ a, b | 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::to_addr;
    use std::net::IpAddr;

    /// Clients as they come: neighbouring addresses and ports. Chi squared over 1,024 chains is at
    /// most six standard deviations (sqrt(2 * 1,023)) above what chance gives.
    #[test]
    fn neighbours_spread() {
        for generation in 0..4 {
            let keyed = Keyed::new((1, 2), generation);
            let mut chains = [0u32; 1_024];
            for host in 0..64u8 {
                for port in 0..1_024u16 {
                    let addr = to_addr(IpAddr::from([192, 0, 2, host]));
                    chains[keyed.hash(addr, 32_768 + port, 3) as usize % 1_024] += 1;
                }
            }
            let squares = chains.iter().map(|n| (f64::from(*n) - 64.0).powi(2) / 64.0);
            let chi: f64 = squares.sum();
            assert!(chi < 1_023.0 + 6.0 * 45.3, "{chi}");
        }
    }
}
