//! Adoption keys: the dataplane's own, and what each backend's node has of them.
//!
//! Owns which key a message to a backend is signed with and an answer of it verified. A backend
//! with a node has that node's keys and no others, so that no other node can speak for it; one
//! without has the dataplane's own. They are derived when keys or nodes change, never for a packet.

use crate::{Engine, clock::Instant, mutants::Mutant};
use baton_api::node_key;
use baton_packet::{Adoption, AdoptionKey, RawAdoption};

/// So many backends get changed keys in one call: to derive one takes less than 1 us, and a backend
/// has two while they are rotated.
const KEYS_AT_ONCE: usize = 32;

/// The keys of one backend.
#[derive(Default)]
pub(crate) struct Keyring {
    node: Option<Box<str>>,
    /// Each with the key that it comes from, in the engine's order: the first signs.
    keys: Vec<Derived>,
}

struct Derived {
    epoch: u8,
    from: AdoptionKey,
    key: AdoptionKey,
}

impl Keyring {
    /// Derives what is not there yet. Whether the key to sign with is another one now.
    fn renew(&mut self, keys: &[(u8, AdoptionKey)]) -> bool {
        let same = |(d, (epoch, from)): (&Derived, &(u8, AdoptionKey))| {
            d.epoch == *epoch && d.from == *from
        };
        if self.keys.len() == keys.len() && self.keys.iter().zip(keys).all(same) {
            return false;
        }
        let signs = self.signing();
        let mut old = std::mem::take(&mut self.keys);
        for (epoch, from) in keys {
            let known = old
                .iter()
                .position(|d| d.epoch == *epoch && d.from == *from);
            let key = match (known, &self.node) {
                (Some(at), _) => old.swap_remove(at).key,
                (None, Some(node)) => AdoptionKey::from_bytes(node_key(from.bytes(), node)),
                (None, None) => from.clone(),
            };
            self.keys.push(Derived {
                epoch: *epoch,
                from: from.clone(),
                key,
            });
        }
        signs != self.signing()
    }

    fn signing(&self) -> Option<(u8, AdoptionKey)> {
        self.keys.first().map(|d| (d.epoch, d.key.clone()))
    }
}

impl Engine {
    /// Sets the adoption keys with their epochs; the first signs, all verify.
    pub fn set_keys(&mut self, keys: &[(u8, AdoptionKey)]) {
        let old = std::mem::replace(&mut self.keys, keys.to_vec());
        if self.mutated(Mutant::KeepOldKeys) {
            self.keys.extend(old);
        }
        self.stale_keys = Some(0);
        self.renew_keys();
        self.next_probe_ms = 0;
    }

    /// Goes on with keys that changed: some backends now, the others in `poll`.
    pub(crate) fn renew_keys(&mut self) {
        let Some(from) = self.stale_keys else { return };
        let to = (from + KEYS_AT_ONCE).min(self.backends.len());
        for backend in &mut self.backends[from..to] {
            if backend.keyring.renew(&self.keys) {
                // `Ready` was said to another key: who does not know this one would drop adoptions.
                backend.probe.forget();
                self.next_probe_ms = 0;
            }
        }
        self.stale_keys = (to < self.backends.len()).then_some(to);
    }

    /// A snapshot has a backend on that node, and gets the one that it had before. Whether keys had
    /// to be derived.
    pub(crate) fn place_node(
        &mut self,
        now: Instant,
        index: usize,
        node: &mut Option<Box<str>>,
    ) -> bool {
        let backend = &mut self.backends[index];
        if backend.keyring.node != *node {
            std::mem::swap(&mut backend.keyring.node, node);
            backend.keyring.keys.clear();
        }
        let renewed = backend.keyring.renew(&self.keys);
        if renewed {
            // Another node's adopter said what is known.
            backend.probe.forget();
            self.next_probe_ms = self.next_probe_ms.min(now.ms());
        }
        renewed
    }

    /// The key to sign with towards a backend, and its epoch.
    pub(crate) fn signing_key(&self, backend: u16) -> Option<(u8, AdoptionKey)> {
        self.backends.get(usize::from(backend))?.keyring.signing()
    }

    /// What a message from a backend says, if its tag is right.
    pub(crate) fn verified(&self, raw: &RawAdoption, backend: u16) -> Option<Adoption> {
        if self.mutated(Mutant::TrustTags) {
            let kind = raw.claimed_kind()?;
            return Some(Adoption::bare(kind, raw.epoch()));
        }
        let keys = &self.backends.get(usize::from(backend))?.keyring.keys;
        let right = keys.iter().find(|d| d.epoch & 15 == raw.epoch() & 15)?;
        raw.verify(&right.key)
    }
}
