//! Reads the adoption keys that a configuration names. Never logs or shows a byte of one.

use super::{Config, ConfigError};
use baton_config::{
    FolderError, FolderKey, KeysField,
    key::{Key, KeyError},
};
use std::path::{Path, PathBuf};

/// One key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedKey {
    /// Its epoch.
    pub epoch: u8,
    /// Its value.
    pub value: Key,
}

/// Mode bits that let anybody but the owner read or write.
const OTHERS: u32 = 0o077;

/// What is read for the keys of `config`, and the folders in which more may come.
pub fn sources(config: &Config) -> Vec<PathBuf> {
    match &config.keys {
        KeysField::Files(keys) => keys.iter().map(|k| config.folder.join(&k.file)).collect(),
        KeysField::Folder(folder) => folder.watched(&config.folder),
    }
}

/// Reads every key that `config` names: the first signs, all verify.
///
/// # Errors
/// A file that is missing, open to others or not 32 hexadecimal digits; the error points at its
/// entry, or names the file of the folder.
pub fn read(config: &Config, file: &Path, text: &str) -> Result<Vec<LoadedKey>, ConfigError> {
    let refuse = |at: String, problem| ConfigError::in_text(file, text, at, problem);
    match &config.keys {
        KeysField::Files(keys) => {
            let read = |(i, key): (usize, &baton_config::KeyFile)| {
                let path = config.folder.join(&key.file);
                let value = Key::read(&path, OTHERS)
                    .map_err(|error| refuse(format!("keys[{i}].file"), problem(&path, &error)))?;
                Ok(LoadedKey { epoch: key.epoch, value })
            };
            keys.iter().enumerate().map(read).collect()
        }
        KeysField::Folder(folder) => {
            let keys = folder.read(&config.folder, OTHERS).map_err(|error| {
                let words = match &error {
                    FolderError::Key { file, source } => problem(file, source),
                    other => other.to_string(),
                };
                refuse("keys.directory".to_owned(), words)
            })?;
            let loaded = |FolderKey { epoch, key, .. }| LoadedKey { epoch, value: key };
            Ok(keys.into_iter().map(loaded).collect())
        }
    }
}

/// Why a key file is refused.
fn problem(path: &Path, error: &KeyError) -> String {
    let shown = path.display();
    match error {
        KeyError::Unreadable(error) => format!("the key file {shown} cannot be read: {error}"),
        KeyError::Exposed { mode } => format!(
            "the key file {shown} is open to others (mode {:03o}): expected 600 or less, `chmod 600 {shown}` (of a mounted Secret: `defaultMode: 0400`)",
            mode & 0o777
        ),
        KeyError::Malformed(error) => format!("the key file {shown}: {error}"),
    }
}
