//! The stored adoption keys. Owns their text form; never shows one.

use crate::Files;
use baton_api::{LIMIT_NODE_KEYS, NodeKey, NodeKeys};
use std::{collections::BTreeMap, fmt};
use zeroize::{Zeroize, Zeroizing};

/// The file that names the epoch to sign with.
pub const CURRENT_FILE: &str = "current";
/// Keys at one time. Rotation needs two; the wire tells 16 epochs apart.
pub const LIMIT_KEYS: usize = LIMIT_NODE_KEYS;

/// What an epoch's file is called, in front of the number.
const PREFIX: &str = "epoch-";
/// Hexadecimal digits of a key.
const DIGITS: usize = 32;
/// Epochs that the wire tells apart: four bits.
const WIRE_EPOCHS: u8 = 16;

/// The secret of one epoch. Wiped when dropped; `Debug` shows nothing of it.
#[derive(Clone, PartialEq, Eq)]
pub struct AdoptionKey([u8; 16]);

impl AdoptionKey {
    /// Has `rng` fill one with random bytes, which must be good enough for a secret.
    pub fn random(rng: &mut dyn FnMut(&mut [u8; 16])) -> Self {
        let mut bytes = [0; 16];
        rng(&mut bytes);
        let key = Self(bytes);
        bytes.zeroize();
        key
    }
}

impl Drop for AdoptionKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for AdoptionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AdoptionKey(..)")
    }
}

/// Why stored keys cannot be used. The admin has to correct or delete what is stored; the operator
/// does not overwrite it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// A name that is none of ours. Others than the operator must not keep anything there.
    #[error("`{name}` is not known here: expected `current` and `epoch-N` with N from 0 to 255")]
    UnknownName {
        /// It.
        name: String,
    },
    /// Not the digits of a key. None of them is told.
    #[error("`{name}` is not a key: expected {DIGITS} hexadecimal digits")]
    Malformed {
        /// The file.
        name: String,
    },
    /// `current` is no number, or one without a key.
    #[error("`current` does not name a key: expected one of {expected}")]
    Current {
        /// The epochs there are.
        expected: String,
    },
    /// Keys, but no `current`.
    #[error("`current` is missing: expected a file with one of {expected}, the epoch to sign with")]
    NoCurrent {
        /// The epochs there are.
        expected: String,
    },
    /// `current`, but no key.
    #[error(
        "there is no key: expected at least one file `epoch-N` with {DIGITS} hexadecimal digits"
    )]
    NoKey,
    /// More than [`LIMIT_KEYS`].
    #[error("there are {found} keys: expected at most {LIMIT_KEYS}")]
    TooMany {
        /// Stored.
        found: usize,
    },
    /// The wire cannot tell them apart.
    #[error(
        "epochs {first} and {second} are alike on the wire, which has them modulo {WIRE_EPOCHS}: remove one of them"
    )]
    Alike {
        /// One.
        first: u8,
        /// The other.
        second: u8,
    },
}

/// Live keys by epoch, and the one to sign with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySet {
    keys: BTreeMap<u8, AdoptionKey>,
    current: u8,
}

impl KeySet {
    /// One key, which is the current one.
    #[must_use]
    pub fn first(epoch: u8, key: AdoptionKey) -> Self {
        Self { keys: [(epoch, key)].into(), current: epoch }
    }

    /// From what is stored. No files at all are no keys.
    ///
    /// # Errors
    /// See [`KeyError`].
    pub fn from_files(files: &Files) -> Result<Option<Self>, KeyError> {
        if files.is_empty() {
            return Ok(None);
        }
        let mut keys = BTreeMap::new();
        for (name, bytes) in files.iter().filter(|(name, _)| *name != CURRENT_FILE) {
            let unknown = || KeyError::UnknownName { name: name.to_owned() };
            let epoch: u8 = name.strip_prefix(PREFIX).and_then(number).ok_or_else(unknown)?;
            let key = parse(bytes).ok_or_else(|| KeyError::Malformed { name: name.to_owned() })?;
            if let Some(first) = keys.keys().copied().find(|other| alike(*other, epoch)) {
                return Err(KeyError::Alike { first, second: epoch });
            }
            keys.insert(epoch, key);
        }
        if keys.is_empty() {
            return Err(KeyError::NoKey);
        }
        if keys.len() > LIMIT_KEYS {
            return Err(KeyError::TooMany { found: keys.len() });
        }
        let expected = || {
            let epochs: Vec<String> = keys.keys().map(u8::to_string).collect();
            epochs.join(", ")
        };
        let Some(text) = files.get(CURRENT_FILE) else {
            return Err(KeyError::NoCurrent { expected: expected() });
        };
        let current = std::str::from_utf8(text.trim_ascii()).ok().and_then(number);
        let current = current
            .filter(|epoch| keys.contains_key(epoch))
            .ok_or_else(|| KeyError::Current { expected: expected() })?;
        Ok(Some(Self { keys, current }))
    }

    /// As it is stored.
    #[must_use]
    pub fn to_files(&self) -> Files {
        let mut files = Files::new();
        for (epoch, key) in &self.keys {
            files.insert(format!("{PREFIX}{epoch}"), written(key).to_vec());
        }
        files.insert(CURRENT_FILE, format!("{}\n", self.current));
        files
    }

    /// What the host-shim of a node gets: its own, the one to sign with first.
    #[must_use]
    pub fn of_node(&self, node: &str) -> NodeKeys {
        let mut keys: Vec<(&u8, &AdoptionKey)> = self.keys.iter().collect();
        keys.sort_by_key(|(epoch, _)| **epoch != self.current);
        NodeKeys {
            node: node.to_owned(),
            keys: keys
                .into_iter()
                .map(|(epoch, key)| NodeKey::derive(*epoch, &key.0, node))
                .collect(),
        }
    }

    /// The epoch to sign with.
    #[must_use]
    pub const fn current(&self) -> u8 {
        self.current
    }

    /// All live epochs.
    #[must_use]
    pub fn epochs(&self) -> Vec<u8> {
        self.keys.keys().copied().collect()
    }

    /// The epoch behind the current one: it wraps.
    #[must_use]
    pub const fn successor(&self) -> u8 {
        self.current.wrapping_add(1)
    }

    /// Whether there is a key of that epoch.
    #[must_use]
    pub fn has(&self, epoch: u8) -> bool {
        self.keys.contains_key(&epoch)
    }

    /// Whether these are the epochs of all keys, and no others, modulo 16 or not.
    #[must_use]
    pub fn is_had_by(&self, epochs: &[u8]) -> bool {
        let has = |epoch: &u8| epochs.iter().any(|other| alike(*epoch, *other));
        epochs.len() == self.keys.len() && self.keys.keys().all(has)
    }

    /// Epochs that are neither the current one nor its successor: to be removed.
    #[must_use]
    pub fn old(&self) -> Vec<u8> {
        let (current, next) = (self.current, self.successor());
        self.epochs().into_iter().filter(|epoch| *epoch != current && *epoch != next).collect()
    }

    pub(super) fn add(&mut self, epoch: u8, key: AdoptionKey) {
        self.keys.insert(epoch, key);
    }

    pub(super) fn sign_with(&mut self, epoch: u8) {
        debug_assert!(self.has(epoch), "no key of epoch {epoch}");
        self.current = epoch;
    }

    pub(super) fn remove(&mut self, epoch: u8) {
        debug_assert_ne!(epoch, self.current, "the current key");
        self.keys.remove(&epoch);
    }
}

/// Whether the wire cannot tell two epochs apart.
pub(super) const fn alike(a: u8, b: u8) -> bool {
    a % WIRE_EPOCHS == b % WIRE_EPOCHS
}

/// A number as it is written: no sign, no zeros in front.
fn number(text: &str) -> Option<u8> {
    text.parse().ok().filter(|n: &u8| n.to_string() == text)
}

fn parse(text: &[u8]) -> Option<AdoptionKey> {
    let digits = text.trim_ascii();
    if digits.len() != DIGITS {
        return None;
    }
    let mut key = AdoptionKey([0; 16]);
    for (i, digit) in digits.iter().enumerate() {
        let value = u8::try_from(char::from(*digit).to_digit(16)?).ok()?;
        key.0[i / 2] = key.0[i / 2] << 4 | value;
    }
    Some(key)
}

fn written(key: &AdoptionKey) -> Zeroizing<Vec<u8>> {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let mut text = Zeroizing::new(Vec::with_capacity(DIGITS + 1));
    for byte in key.0 {
        text.push(HEX[usize::from(byte >> 4)]);
        text.push(HEX[usize::from(byte & 15)]);
    }
    text.push(b'\n');
    text
}
