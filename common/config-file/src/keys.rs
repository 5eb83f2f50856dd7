//! The field `keys`, which both binaries have: a list of key files, or a folder as a mounted Secret
//! gives it.
//!
//! Owns the form of the field and what a folder of keys must hold. How many keys a list may have is
//! the binaries' own.

use crate::key::{Key, KeyError};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{
        MapAccess, SeqAccess, Visitor,
        value::{MapAccessDeserializer, SeqAccessDeserializer},
    },
};
use std::{
    fmt,
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

/// Keys that can be live at one time: the one in use and the one that it is being changed to.
const KEYS_MAX: usize = 2;
/// Epochs on the wire count modulo this.
const WIRE_EPOCHS: u8 = 16;
/// The file that holds the epoch to sign with.
pub const CURRENT: &str = "current";
/// Front of the name of a key's file.
const PREFIX: &str = "epoch-";
/// Entries of a folder that are looked at: two keys, `current`, what a mount adds, and room.
const ENTRIES_MAX: usize = 1_000;
/// Bytes of `current` that are read: a number of three digits and white space.
const CURRENT_BYTES_MAX: u64 = 16;

/// What `keys` says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum KeysField {
    /// Each key with its file, the one to sign with first.
    Files(Vec<KeyFile>),
    /// A folder of files `epoch-N`, and `current`, which holds the N to sign with.
    Folder(KeyFolder),
}

impl Default for KeysField {
    /// None.
    fn default() -> Self {
        Self::Files(Vec::new())
    }
}

/// One key of a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KeyFile {
    /// Which key a message is signed with, modulo 16 on the wire.
    pub epoch: u8,
    /// 32 hexadecimal digits.
    pub file: PathBuf,
}

/// A folder of keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KeyFolder {
    /// Its path.
    pub directory: PathBuf,
}

/// What may stand at `keys`, in words.
pub const KEYS_EXPECTED: &str =
    "a list of one or two {epoch: NUMBER, file: FILE}, or {directory: DIRECTORY}";

impl<'de> Deserialize<'de> for KeysField {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // By hand, because an untagged enum forgets what was wrong and where.
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = KeysField;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(KEYS_EXPECTED)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<KeysField, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(seq)).map(KeysField::Files)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<KeysField, A::Error> {
                KeyFolder::deserialize(MapAccessDeserializer::new(map)).map(KeysField::Folder)
            }
        }

        deserializer.deserialize_any(Either)
    }
}

/// One key of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FolderKey {
    /// Its epoch.
    pub epoch: u8,
    /// Where it lies.
    pub file: PathBuf,
    /// Its value.
    pub key: Key,
}

/// Why a folder of keys cannot be used. Whoever writes it has to correct the named file.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// Not there, or not readable by this process.
    #[error("the key directory {} cannot be read: {source}", directory.display())]
    Unreadable {
        /// Where it should be.
        directory: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A key file is bad; the binaries have words for that.
    #[error("{}: {source}", file.display())]
    Key {
        /// Where it lies.
        file: PathBuf,
        /// What is wrong.
        source: KeyError,
    },
    /// A name that begins as a key's and goes on otherwise.
    #[error("{} is no name of a key file: expected epoch-N with N from 0 to 255, as epoch-7", file.display())]
    Name {
        /// The file.
        file: PathBuf,
    },
    /// None, or too many.
    #[error(
        "the key directory {} has {found} files epoch-N: expected one, or two while the key is being changed",
        directory.display()
    )]
    Count {
        /// The folder.
        directory: PathBuf,
        /// How many there are.
        found: usize,
    },
    /// Two keys that a segment cannot tell apart.
    #[error("{} is the epoch of {} on the wire: expected two that differ modulo 16", second.display(), first.display())]
    Alike {
        /// The one.
        first: PathBuf,
        /// The other.
        second: PathBuf,
    },
    /// `current` is not there or not readable.
    #[error("{} cannot be read: {source}; expected the number of the epoch to sign with", file.display())]
    NoCurrent {
        /// Where it should be.
        file: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// `current` names no key of the folder.
    #[error("{} names no key that is there: expected {expected}", file.display())]
    Current {
        /// The file.
        file: PathBuf,
        /// The epochs that are there.
        expected: String,
    },
}

impl KeyFolder {
    /// The folder and its files, to be watched: `current` and the keys that are there now.
    #[must_use]
    pub fn watched(&self, base: &Path) -> Vec<PathBuf> {
        let directory = base.join(&self.directory);
        let mut files = vec![directory.join(CURRENT)];
        // What cannot be listed is said when it is read.
        files.extend(epochs(&directory).unwrap_or_default().into_values());
        files.push(directory);
        files
    }

    /// Reads the keys, the one to sign with first. Files whose mode has any of the bits of
    /// `refused` are not read.
    ///
    /// # Errors
    /// See [`FolderError`].
    pub fn read(&self, base: &Path, refused: u32) -> Result<Vec<FolderKey>, FolderError> {
        let directory = base.join(&self.directory);
        let epochs = epochs(&directory)?;
        if epochs.is_empty() || epochs.len() > KEYS_MAX {
            return Err(FolderError::Count { directory, found: epochs.len() });
        }
        let mut keys = Vec::with_capacity(KEYS_MAX);
        for (epoch, file) in epochs {
            if let Some(FolderKey { file: first, .. }) =
                keys.iter().find(|key: &&FolderKey| key.epoch % WIRE_EPOCHS == epoch % WIRE_EPOCHS)
            {
                return Err(FolderError::Alike { first: first.clone(), second: file });
            }
            match Key::read(&file, refused) {
                Ok(key) => keys.push(FolderKey { epoch, file, key }),
                Err(source) => return Err(FolderError::Key { file, source }),
            }
        }
        let current = current(&directory, &keys)?;
        keys.sort_by_key(|key| key.epoch != current);
        Ok(keys)
    }
}

/// The epoch that `current` holds, which is one of `keys`.
fn current(directory: &Path, keys: &[FolderKey]) -> Result<u8, FolderError> {
    let file = directory.join(CURRENT);
    let mut text = String::new();
    let read =
        File::open(&file).and_then(|open| open.take(CURRENT_BYTES_MAX).read_to_string(&mut text));
    if let Err(source) = read {
        return Err(FolderError::NoCurrent { file, source });
    }
    let epoch = number(text.trim_ascii()).filter(|epoch| keys.iter().any(|k| k.epoch == *epoch));
    epoch.ok_or_else(|| {
        let there: Vec<String> = keys.iter().map(|k| k.epoch.to_string()).collect();
        FolderError::Current { file, expected: there.join(" or ") }
    })
}

/// The key files of a folder by their epochs.
fn epochs(directory: &Path) -> Result<std::collections::BTreeMap<u8, PathBuf>, FolderError> {
    let unreadable = |source| FolderError::Unreadable { directory: directory.to_owned(), source };
    let mut found = std::collections::BTreeMap::new();
    for entry in fs::read_dir(directory).map_err(unreadable)?.take(ENTRIES_MAX) {
        let name = entry.map_err(unreadable)?.file_name();
        // Other files may be there: what a mount adds, what an editor leaves.
        let Some(rest) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else {
            continue;
        };
        let file = directory.join(&name);
        match number(rest) {
            Some(epoch) => found.insert(epoch, file),
            None => return Err(FolderError::Name { file }),
        };
    }
    Ok(found)
}

/// An epoch in its only form: no sign, no leading zero.
fn number(text: &str) -> Option<u8> {
    text.parse().ok().filter(|epoch: &u8| epoch.to_string() == text)
}

#[cfg(test)]
mod tests;
