//! Adoption keys: the dataplane's own, and what each backend's node has of them.
//!
//! Owns which key a message to a backend is signed with and an answer of it verified. A backend
//! with a node has that node's keys and no others, so that no other node can speak for it; one
//! without has the dataplane's own. They are derived when keys or nodes change, never for a packet.

use baton_api::node_key;
use baton_packet::{Adoption, AdoptionKey, Reason};

/// What a segment from a backend is between its adopter and us.
pub(crate) enum Message {
    /// Nothing: it is its kernel's.
    None,
    /// An answer, with a right tag.
    Answer(Reason, Adoption),
    /// Something that no adopter says.
    Forged,
}

/// The keys of one backend.
#[derive(Default)]
pub(crate) struct Keyring {
    pub(crate) node: Option<Box<str>>,
    /// Each with the key that it comes from, in the engine's order: the first signs.
    pub(crate) keys: Vec<Derived>,
}

pub(crate) struct Derived {
    pub(crate) epoch: u8,
    from: AdoptionKey,
    pub(crate) key: AdoptionKey,
}

impl Keyring {
    /// Derives what is not there yet. Whether the key to sign with is another one now.
    pub(crate) fn renew(&mut self, keys: &[(u8, AdoptionKey)]) -> bool {
        let same = |(d, (epoch, from)): (&Derived, &(u8, AdoptionKey))| {
            d.epoch == *epoch && d.from == *from
        };
        if self.keys.len() == keys.len() && self.keys.iter().zip(keys).all(same) {
            return false;
        }
        let signs = self.signing();
        let mut old = std::mem::take(&mut self.keys);
        for (epoch, from) in keys {
            let known = old.iter().position(|d| d.epoch == *epoch && d.from == *from);
            let key = match (known, &self.node) {
                (Some(at), _) => old.swap_remove(at).key,
                (None, Some(node)) => AdoptionKey::from_bytes(node_key(from.bytes(), node)),
                (None, None) => from.clone(),
            };
            self.keys.push(Derived { epoch: *epoch, from: from.clone(), key });
        }
        signs != self.signing()
    }

    pub(crate) fn signing(&self) -> Option<(u8, AdoptionKey)> {
        self.keys.first().map(|d| (d.epoch, d.key.clone()))
    }
}
