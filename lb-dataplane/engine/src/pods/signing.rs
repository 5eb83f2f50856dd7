//! Which keys sign what goes to a backend and verify what comes from it, and how they change.
//!
//! Owns the change of keys, some backends at a time. Deriving a node's own keys is `keys`'.

use crate::{Engine, backend::keys::Message, clock::Instant, mutants::Mutant};
use baton_packet::{Adoption, AdoptionKey, MessageKind, RawAdoption, Segment, parse_adoption};

/// So many backends get changed keys in one call: to derive one takes less than 1 us, and a backend
/// has two while they are rotated.
const KEYS_AT_ONCE: usize = 32;

impl Engine {
    /// Sets the adoption keys with their epochs; the first signs, all verify.
    pub fn set_keys(&mut self, keys: &[(u8, AdoptionKey)]) {
        let old = std::mem::replace(&mut self.keys, keys.to_vec());
        if self.mutated(Mutant::KeepOldKeys) {
            self.keys.extend(old);
        }
        self.rounds.stale_keys = Some(0);
        self.renew_keys();
        self.rounds.probes.by(0);
    }

    /// Goes on with keys that changed: some backends now, the others in `poll`.
    pub(crate) fn renew_keys(&mut self) {
        let Some(from) = self.rounds.stale_keys else {
            return;
        };
        let to = (from + KEYS_AT_ONCE).min(self.backends.len());
        for backend in &mut self.backends[from..to] {
            if backend.keyring.renew(&self.keys) {
                // `Ready` was said to another key: who does not know this one would drop adoptions.
                backend.adopter.forget(0);
                if self.keys.is_empty() {
                    // Nobody is asked.
                    backend.adopter.stop();
                }
                self.rounds.probes.by(0);
            }
        }
        self.rounds.stale_keys = (to < self.backends.len()).then_some(to);
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
            backend.adopter.forget(0);
            self.rounds.probes.by(now.ms());
        }
        renewed
    }

    /// The key to sign with towards a backend, and its epoch.
    pub(crate) fn signing_key(&self, backend: u16) -> Option<(u8, AdoptionKey)> {
        self.backends.get(usize::from(backend))?.keyring.signing()
    }

    /// What a backend's adopter says with a segment.
    pub(crate) fn message(&self, frame: &[u8], segment: &Segment, backend: u16) -> Message {
        let Some(raw) = parse_adoption(frame, segment) else {
            return Message::None;
        };
        match self.verified(&raw, backend).map(|says| (says.kind, says)) {
            Some((MessageKind::Answer(reason), says)) => Message::Answer(reason, says),
            _ => Message::Forged,
        }
    }

    fn verified(&self, raw: &RawAdoption, backend: u16) -> Option<Adoption> {
        if self.mutated(Mutant::TrustTags) {
            let kind = raw.claimed_kind()?;
            return Some(Adoption::bare(kind, raw.epoch()));
        }
        let keys = &self.backends.get(usize::from(backend))?.keyring.keys;
        let right = keys.iter().find(|d| d.epoch & 15 == raw.epoch() & 15)?;
        raw.verify(&right.key)
    }
}
