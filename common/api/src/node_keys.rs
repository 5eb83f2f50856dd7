//! Adoption keys of one node, and their way to its host-shim. They are derived from the keys that
//! only the operator and dataplanes have.
//!
//! Owns the derivation (`docs/adoption-wire.md`), what a node may be called, and the body of
//! `PUT /v1/keys`. Never shows a key.
//!
//! # Decisions
//!
//! - **Beside its own, each node has one key that all nodes have**, for connections that
//!   applications of two nodes hand to each other: both host-shims must have it, and no other
//!   program has. Whoever has taken a node over can offer such applications of other nodes
//!   connections, as a client of theirs can, and takes what is offered at the addresses of its own
//!   pods. Rejected: a key for each pair of nodes, which are a million where there are a thousand.
//!
//! - **Each node has keys of its own** (`api/src/node_keys.rs`, `engine/src/backend/keys.rs`),
//!   derived from masters that only dataplanes and the operator have, so that what is on one node
//!   opens no Pod of another. The engine derives a backend's when keys or nodes change, never for a
//!   packet. The operator sends a shim its node's, by its Pod's `nodeName`, over the connection by
//!   which it reads the state (`PUT /v1/keys`); the pinned maps keep them over a restart. Rejected:
//!   a Secret per node, which RBAC could not keep from other shims, as they share a ServiceAccount,
//!   and which would need rights on Secrets without a name.

use ring::hmac::{Context, HMAC_SHA256, Key};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Bytes of a node's name: a DNS subdomain, as Kubernetes has it.
pub const LIMIT_NODE_BYTES: usize = 253;
/// Keys that a host-shim is given at one time; a rotation needs two.
pub const LIMIT_NODE_KEYS: usize = 8;

/// In front of the name in what is hashed, so that no other use of the same key can mean a node.
const PURPOSE: &[u8] = b"baton node\0";
/// In front of nothing: the key that all nodes have.
const TRANSFERS: &[u8] = b"baton transfers\0";
/// Hexadecimal digits of a key.
const DIGITS: usize = 32;

/// The key of a node: whoever has it learns nothing of another node's.
#[must_use]
pub fn node_key(master: &[u8; 16], node: &str) -> [u8; 16] {
    let mut context = Context::with_key(&Key::new(HMAC_SHA256, master));
    context.update(PURPOSE);
    context.update(node.as_bytes());
    let tag = context.sign();
    // SHA-256 gives 32 bytes.
    std::array::from_fn(|i| tag.as_ref()[i])
}

/// The key that host-shims of all nodes speak to each other with.
#[must_use]
pub fn transfer_key(master: &[u8; 16]) -> [u8; 32] {
    let mut context = Context::with_key(&Key::new(HMAC_SHA256, master));
    context.update(TRANSFERS);
    let tag = context.sign();
    std::array::from_fn(|i| tag.as_ref()[i])
}

/// Whether a text can be a node's name.
#[must_use]
pub fn is_node_name(text: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    (1..=LIMIT_NODE_BYTES).contains(&text.len()) && text.chars().all(good)
}

/// The body of `PUT /v1/keys`: all keys of a node; those that are not among them end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeKeys {
    /// Whose they are. A host-shim of another node refuses them.
    pub node: String,
    /// By epoch.
    pub keys: Vec<NodeKey>,
}

/// One of them.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeKey {
    /// Modulo 16 on the wire.
    pub epoch: u8,
    /// 32 hexadecimal digits.
    key: String,
    /// That of all nodes: 64 hexadecimal digits.
    transfers: String,
}

impl fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeKey {{ epoch: {}, .. }}", self.epoch)
    }
}

/// Why keys are refused. None of them is told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeKeysError {
    /// None, or too many.
    #[error("{0} keys: expected 1 to {LIMIT_NODE_KEYS}")]
    Count(usize),
    /// Two that the wire cannot tell apart.
    #[error("epochs {0} and {1} are alike on the wire, which has them modulo 16")]
    Alike(u8, u8),
    /// Not the digits of a key.
    #[error("the key of epoch {0} is none: expected {DIGITS} hexadecimal digits")]
    Malformed(u8),
}

impl NodeKey {
    /// The key that a node has of a master key.
    #[must_use]
    pub fn derive(epoch: u8, master: &[u8; 16], node: &str) -> Self {
        Self {
            epoch,
            key: digits(&node_key(master, node)),
            transfers: digits(&transfer_key(master)),
        }
    }

    fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
        let digits: Vec<u8> = text
            .chars()
            .map(|c| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
            .collect::<Option<_>>()?;
        (digits.len() == 2 * N)
            .then(|| std::array::from_fn(|i| digits[2 * i] << 4 | digits[2 * i + 1]))
    }
}

fn digits(bytes: &[u8]) -> String {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let nibbles = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    nibbles.map(|digit| char::from(HEX[usize::from(digit)])).collect()
}

/// The keys of one epoch: its number, the node's own, and that of all nodes.
pub type EpochKeys = (u8, [u8; 16], [u8; 32]);

impl NodeKeys {
    /// By epoch.
    ///
    /// # Errors
    /// See [`NodeKeysError`]: none is to be used then.
    pub fn checked(&self) -> Result<Vec<EpochKeys>, NodeKeysError> {
        if self.keys.is_empty() || self.keys.len() > LIMIT_NODE_KEYS {
            return Err(NodeKeysError::Count(self.keys.len()));
        }
        let mut checked: Vec<EpochKeys> = Vec::new();
        for key in &self.keys {
            if let Some((other, ..)) =
                checked.iter().find(|(epoch, ..)| epoch % 16 == key.epoch % 16)
            {
                return Err(NodeKeysError::Alike(*other, key.epoch));
            }
            let malformed = NodeKeysError::Malformed(key.epoch);
            let keys = NodeKey::bytes(&key.key).zip(NodeKey::bytes(&key.transfers));
            let (own, transfers) = keys.ok_or(malformed)?;
            checked.push((key.epoch, own, transfers));
        }
        Ok(checked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MASTER: [u8; 16] = *b"\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f";

    fn key(epoch: u8, key: &str) -> NodeKey {
        NodeKey { epoch, key: key.to_owned(), transfers: digits(&[0; 32]) }
    }

    #[test]
    fn a_nodes_key_is_that_of_the_wire_format() {
        // docs/adoption-wire.md has the same; made with Python's hmac and hashlib.
        let of = |node| NodeKey::derive(1, &MASTER, node).key;
        assert_eq!(of("node-1"), "06e22ef82fd70adc136e4d7c93121978");
        assert_eq!(of("node-2"), "6c9f0735a74dbb7d13754e203eb588e5");
        let of_all = NodeKey::derive(1, &MASTER, "node-1").transfers;
        assert_eq!(of_all, "13c5a2e2e438a94935e24a745d1ff80c2775bd4581ff8fbca8a6ef9a1f638240");
        assert_eq!(of_all, NodeKey::derive(1, &MASTER, "node-2").transfers);
        let name = "n".repeat(LIMIT_NODE_BYTES);
        assert_eq!(of(&name), "6da95c48bd0218cb94157dfb02d4ab91");
        assert_ne!(node_key(&[1; 16], "node-1"), node_key(&MASTER, "node-1"));
    }

    #[test]
    fn keys_come_as_they_went() {
        let sent = NodeKeys {
            node: "node-1".into(),
            keys: vec![
                NodeKey::derive(15, &MASTER, "node-1"),
                NodeKey::derive(16, &[7; 16], "node-1"),
            ],
        };
        let text = serde_json::to_string(&sent).expect("JSON");
        let came: NodeKeys = serde_json::from_str(&text).expect("keys");
        let of = |epoch, master| (epoch, node_key(master, "node-1"), transfer_key(master));
        let expected = vec![of(15, &MASTER), of(16, &[7; 16])];
        assert_eq!(came.checked(), Ok(expected));
        let shown = format!("{came:?}");
        assert!(!shown.contains(&came.keys[0].key), "{shown}");
    }

    #[test]
    fn keys_that_are_none_are_refused_without_being_told() {
        let digits = "00".repeat(16);
        let of = |keys: Vec<NodeKey>| NodeKeys { node: "n".into(), keys }.checked();
        assert_eq!(of(Vec::new()), Err(NodeKeysError::Count(0)));
        let many = (0..9).map(|epoch| key(epoch, &digits)).collect();
        assert_eq!(of(many), Err(NodeKeysError::Count(9)));
        let short = NodeKey { transfers: digits.clone(), ..key(3, &digits) };
        assert_eq!(of(vec![short]), Err(NodeKeysError::Malformed(3)));
        let alike = vec![key(1, &digits), key(17, &digits)];
        assert_eq!(of(alike), Err(NodeKeysError::Alike(1, 17)));
        for bad in ["", "00", &"0g".repeat(16), &"+1".repeat(16), &"0".repeat(33), &"é".repeat(16)]
        {
            let refusal = of(vec![key(3, bad)]).expect_err(bad);
            assert_eq!(refusal, NodeKeysError::Malformed(3));
            assert!(bad.is_empty() || bad == "00" || !refusal.to_string().contains(bad));
        }
    }

    #[test]
    fn names_of_nodes_are_those_of_kubernetes() {
        for good in ["a", "node-1", "ip-10-0-0-1.ec2.internal", "Node_1"] {
            assert!(is_node_name(good), "{good}");
        }
        for bad in ["", "a b", "a/b", "a\0", "é", &"n".repeat(254)] {
            assert!(!is_node_name(bad), "{bad}");
        }
    }
}
