//! Named secrets as they are stored: the keys of a Secret, or the files of a directory.
//!
//! Owns their bytes and wipes them when dropped. Never shows a byte of them.

use std::{collections::BTreeMap, fmt};
use zeroize::Zeroizing;

/// Names and bytes, such as `tls.crt` and `tls.key`. What is dropped is wiped; `Debug` tells names
/// and lengths only.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Files(BTreeMap<String, Zeroizing<Vec<u8>>>);

impl Files {
    /// None.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one, or replaces the one of that name.
    pub fn insert(&mut self, name: impl Into<String>, bytes: impl Into<Vec<u8>>) {
        self.0.insert(name.into(), Zeroizing::new(bytes.into()));
    }

    /// The bytes of one.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.0.get(name).map(|bytes| bytes.as_slice())
    }

    /// Takes one out.
    pub fn remove(&mut self, name: &str) -> Option<Zeroizing<Vec<u8>>> {
        self.0.remove(name)
    }

    /// All, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice()))
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<N: Into<String>, B: Into<Vec<u8>>> FromIterator<(N, B)> for Files {
    fn from_iter<I: IntoIterator<Item = (N, B)>>(items: I) -> Self {
        let mut files = Self::new();
        for (name, bytes) in items {
            files.insert(name, bytes);
        }
        files
    }
}

impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lengths = self.iter().map(|(name, bytes)| (name, format!("{} bytes", bytes.len())));
        f.debug_map().entries(lengths).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_tells_names_and_lengths_and_no_byte() {
        let files: Files =
            [("tls.key", b"sesame".to_vec()), ("a", b"x".to_vec())].into_iter().collect();
        assert_eq!(format!("{files:?}"), r#"{"a": "1 bytes", "tls.key": "6 bytes"}"#);
        assert_eq!(files.get("tls.key"), Some(b"sesame".as_slice()));
    }
}
