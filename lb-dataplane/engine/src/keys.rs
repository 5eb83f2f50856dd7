//! Adoption keys: the dataplane's own, and what each backend's node has of them.
//!
//! Owns which key a message to a backend is signed with and an answer of it verified. A backend with a node has that node's
//! keys and no others, so that no other node can speak for it; one without has the dataplane's own. They are derived when
//! keys or nodes change, never for a packet.

use crate::{Engine, engine::Instant, flow::to_addr, mutants::Mutant, sift::Wanted};
use baton_api::node_key;
use baton_packet::{Adoption, AdoptionKey, RawAdoption};

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
        for backend in &mut self.backends {
            if backend.keyring.renew(&self.keys) {
                // `Ready` was said to another key: who does not know this one would drop adoptions.
                backend.probe.forget();
            }
        }
        self.next_probe_ms = 0;
    }

    /// Takes the nodes of the backends of a snapshot whose backends are placed. Policies may share a backend: whoever names
    /// its node knows more than who does not.
    pub(crate) fn place_nodes(&mut self, now: Instant, wanted: &[Wanted<'_>]) {
        let mut nodes: Vec<Option<&str>> = vec![None; self.backends.len()];
        for backend in wanted.iter().flat_map(|w| &w.spec.backends) {
            let addr = to_addr(backend.endpoint.address());
            if let Some(index) = self.backend_ids.find(&addr, backend.endpoint.port()) {
                let node = &mut nodes[usize::from(index)];
                *node = node.or(backend.node.as_deref());
            }
        }
        for (backend, node) in self.backends.iter_mut().zip(nodes) {
            // One that left the snapshot keeps its node for what it says still.
            if !backend.listed {
                continue;
            }
            if backend.keyring.node.as_deref() != node {
                backend.keyring = Keyring {
                    node: node.map(Into::into),
                    keys: Vec::new(),
                };
            }
            if backend.keyring.renew(&self.keys) {
                // Another node's adopter said what is known.
                backend.probe.forget();
                self.next_probe_ms = self.next_probe_ms.min(now.ms());
            }
        }
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
