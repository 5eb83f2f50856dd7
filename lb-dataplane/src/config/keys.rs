//! Reads the adoption keys that a configuration names. Never logs or shows a byte of one.

use super::{Config, ConfigError};
use baton_config::key::{Key, KeyError};
use std::path::Path;

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

/// Reads every key that `config` names, in its order: the first signs, all verify.
///
/// # Errors
/// A file that is missing, open to others or not 32 hexadecimal digits; the error points at its entry.
pub fn read(config: &Config, file: &Path, text: &str) -> Result<Vec<LoadedKey>, ConfigError> {
    let mut keys = Vec::with_capacity(config.keys.len());
    for (i, key) in config.keys.iter().enumerate() {
        let path = config.key_path(i);
        let value = Key::read(&path, OTHERS).map_err(|error| {
            let at = format!("keys[{i}].file");
            ConfigError::in_text(file, text, at, problem(&path, &error))
        })?;
        keys.push(LoadedKey {
            epoch: key.epoch,
            value,
        });
    }
    Ok(keys)
}

/// Why a key file is refused.
fn problem(path: &Path, error: &KeyError) -> String {
    let shown = path.display();
    match error {
        KeyError::Unreadable(error) => format!("the key file {shown} cannot be read: {error}"),
        KeyError::Exposed { mode } => format!(
            "the key file {shown} is open to others (mode {:03o}): expected 600 or less, `chmod 600 {shown}`",
            mode & 0o777
        ),
        KeyError::Malformed(error) => format!("the key file {shown}: {error}"),
    }
}
