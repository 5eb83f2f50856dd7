//! Legs: what each port of ours towards each backend is used for.
//!
//! Owns one table of all of them, so that neither a backend nor its range of ports costs memory
//! that no leg uses. It knows nothing of free ports (`ports`) and changes no flow.

use crate::{
    containers::{
        index::{FREE, Hash, Index},
        keyed::Keyed,
    },
    ids::{FlowId, Leg},
    tables::Shared,
};

/// What a port of ours towards a backend is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Owner(FlowId),
    Standby(FlowId),
    Closing(u32),
    /// Adoption probes.
    Probe,
    /// Whether anybody listens.
    LivenessProbe,
    /// Nobody any more: trackers are to forget it (slot in the table of open Forgets).
    Forget(u16),
    /// Of a flow that is handed on, in the pod that will have it, or that had it (slot in the table
    /// of transfers).
    Transfer(u16),
}

/// How a flow comes to the leg that was taken for it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum By {
    #[default]
    Adoption,
    Handshake,
    /// It is open, and was another flow's.
    Shared(Shared),
}

/// Two bits of kind, thirty of index.
const INDEX: u32 = (1 << 30) - 1;
/// Behind the slots of Forgets.
const TRANSFERS: u32 = 1 << 17;
/// How full the table may be, in percent: see `Index`.
const PERCENT: usize = 80;

fn pack(used: Use) -> u32 {
    match used {
        Use::Owner(id) => id & INDEX,
        Use::Standby(id) => id & INDEX | 1 << 30,
        Use::Closing(id) => id & INDEX | 2 << 30,
        Use::Probe => 3 << 30,
        Use::LivenessProbe => 3 << 30 | 1,
        Use::Forget(slot) => 3 << 30 | (u32::from(slot) + 2),
        Use::Transfer(slot) => 3 << 30 | TRANSFERS | u32::from(slot),
    }
}

#[inline]
fn unpack(packed: u32) -> Use {
    let id = packed & INDEX;
    match packed >> 30 {
        0 => Use::Owner(id),
        1 => Use::Standby(id),
        2 => Use::Closing(id),
        _ => match id {
            0 => Use::Probe,
            1 => Use::LivenessProbe,
            slot if slot & TRANSFERS != 0 => Use::Transfer(slot as u16),
            slot => Use::Forget((slot - 2) as u16),
        },
    }
}

/// All legs.
pub(crate) struct Legs {
    index: Index,
    keys: Keyed,
}

impl Legs {
    /// For so many.
    pub(crate) fn new(legs: usize, secret: (u64, u64)) -> Self {
        Self { index: Index::new(legs, PERCENT), keys: Keyed::new(secret, u64::MAX) }
    }

    /// A leg is its own mark: what has it is the one.
    #[inline]
    fn hash(keys: Keyed, mark: u32) -> Hash {
        Hash { place: keys.hash_number(mark), mark }
    }

    #[inline]
    fn hash_of(&self, leg: Leg) -> Hash {
        Self::hash(self.keys, u32::from(leg.backend) << 16 | u32::from(leg.port))
    }

    /// Reads where the look-up begins.
    #[inline]
    pub(crate) fn touch(&self, leg: Leg) -> u32 {
        self.index.touch(self.hash_of(leg))
    }

    /// What a leg is used for; none if it is none.
    #[inline(always)]
    pub(crate) fn used_by(&self, leg: Leg) -> Option<Use> {
        let hash = self.hash_of(leg);
        match self.index.guess(hash) {
            Some(used) if used != FREE => Some(unpack(used)),
            _ => self.used_elsewhere(hash),
        }
    }

    #[inline(never)]
    fn used_elsewhere(&self, hash: Hash) -> Option<Use> {
        self.index.find(hash, |_| true).map(unpack)
    }

    /// Says what a leg is for from now on.
    pub(crate) fn assign(&mut self, leg: Leg, used: Use) {
        let (hash, keys) = (self.hash_of(leg), self.keys);
        match self.index.find(hash, |_| true) {
            Some(old) => self.index.replace(hash, old, pack(used)),
            None => {
                let of = |_, mark| Some(Self::hash(keys, mark));
                let room = self.index.insert(hash, pack(used), of);
                debug_assert!(room, "made for fewer legs");
            }
        }
    }

    /// It is none any more. Whether it was one.
    pub(crate) fn clear(&mut self, leg: Leg) -> bool {
        let hash = self.hash_of(leg);
        let used = self.index.find(hash, |_| true);
        used.is_some_and(|used| self.index.remove(hash, used))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn uses_pack_without_loss() {
        for used in [
            Use::Owner(0),
            Use::Owner(1 << 20),
            Use::Standby(0),
            Use::Closing(77),
            Use::Probe,
            Use::LivenessProbe,
            Use::Forget(0),
            Use::Forget(u16::MAX),
            Use::Transfer(0),
            Use::Transfer(u16::MAX),
        ] {
            assert_eq!(unpack(pack(used)), used);
        }
    }

    #[test]
    fn as_many_legs_as_it_is_made_for_are_found() {
        let mut rng = fastrand::Rng::with_seed(7);
        let (mut legs, mut oracle) = (Legs::new(6_553, (1, 2)), HashMap::new());
        for turn in 0..40_000 {
            let (backend, port) = (rng.u16(..64), 10_000 + rng.u16(..200));
            let leg = Leg { backend, port };
            assert_eq!(legs.used_by(leg), oracle.get(&(backend, port)).copied());
            if rng.u8(..4) == 0 || oracle.len() == 6_553 {
                let was = oracle.remove(&(backend, port)).is_some();
                assert_eq!(legs.clear(leg), was);
            } else {
                legs.assign(leg, Use::Owner(turn));
                oracle.insert((backend, port), Use::Owner(turn));
            }
        }
        assert!(oracle.len() > 6_000, "{}", oracle.len());
        for ((backend, port), used) in oracle {
            assert_eq!(legs.used_by(Leg { backend, port }), Some(used));
        }
    }
}
