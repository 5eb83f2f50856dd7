//! Key files. Owns reading and judging them; a key never reaches a log or an error.

use std::{fmt, fs, io, os::unix::fs::MetadataExt, path::Path};

/// Hexadecimal digits of a key file.
pub const DIGITS: usize = 32;
/// The bits of `st_mode` that are permissions, with set-user-id, set-group-id and sticky.
const PERMISSIONS: u32 = 0o7777;

/// The secret of one key epoch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key(pub [u8; 16]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// Why a key file cannot be used. The admin has to correct the file; who tells so adds its name.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// Not there, or not readable by this process.
    #[error("cannot be read: {0}")]
    Unreadable(#[from] io::Error),
    /// Others than the owner may use it.
    #[error("is open to others (mode {mode:04o})")]
    Exposed {
        /// Its permissions.
        mode: u32,
    },
    /// Not the digits of a key.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

/// Why a text is not a key. Never repeats any of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Wrong length.
    #[error(
        "an adoption key is {DIGITS} hexadecimal digits (16 bytes), this text has {found} characters"
    )]
    Length {
        /// Bytes of the text.
        found: usize,
    },
    /// A character that is no hexadecimal digit.
    #[error(
        "an adoption key is {DIGITS} hexadecimal digits (16 bytes), character {position} is none"
    )]
    NotHex {
        /// Counted from 1.
        position: usize,
    },
}

impl Key {
    /// Reads a key file, unless its mode has any of the bits of `refused`.
    ///
    /// # Errors
    /// See [`KeyError`].
    pub fn read(path: &Path, refused: u32) -> Result<Self, KeyError> {
        let mode = fs::metadata(path)?.mode() & PERMISSIONS;
        if mode & refused != 0 {
            return Err(KeyError::Exposed { mode });
        }
        Ok(Self::parse(&fs::read(path)?)?)
    }

    /// From its digits; white space around them, such as the end of the line, is none of them.
    fn parse(text: &[u8]) -> Result<Self, Malformed> {
        let digits = text.trim_ascii();
        if digits.len() != DIGITS {
            let found = digits.len();
            return Err(Malformed::Length { found });
        }
        let mut key = [0; DIGITS / 2];
        for (i, digit) in digits.iter().enumerate() {
            let Some(value) = char::from(*digit).to_digit(16) else {
                return Err(Malformed::NotHex { position: i + 1 });
            };
            key[i / 2] = key[i / 2] << 4 | value as u8;
        }
        Ok(Self(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn thirty_two_digits_are_a_key() {
        let key = Key::parse(b"000102030405060708090a0B0C0d0e0f\n").expect("a key");
        assert_eq!(key.0, std::array::from_fn(|i| i as u8));
        let length = |found| Malformed::Length { found };
        let not_hex = |position| Malformed::NotHex { position };
        for (bad, why) in [
            (&b""[..], length(0)),
            (b"0001", length(4)),
            (b"000102030405060708090a0b0c0d0e0g", not_hex(32)),
            (b"000102030405060708090a0b0c0d0e0f0", length(33)),
            (b"0x0102030405060708090a0b0c0d0e0f", not_hex(2)),
            (b"+0+1+2+3+4+5+6+7+8+9+a+b+c+d+e+f", not_hex(1)),
        ] {
            assert_eq!(Key::parse(bad), Err(why), "{bad:?}");
        }
    }

    #[test]
    fn a_key_is_never_shown() {
        assert_eq!(format!("{:?}", Key([0xab; 16])), "Key(..)");
    }

    #[test]
    fn a_file_with_a_refused_mode_is_not_read() {
        let path = std::env::temp_dir().join(format!("bt-{}-key", std::process::id()));
        fs::write(&path, "ab".repeat(16)).expect("a key file");
        let read = |mode, refused| {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("a mode");
            Key::read(&path, refused)
        };
        assert_eq!(read(0o600, 0o077).expect("a key"), Key([0xab; 16]));
        assert_eq!(read(0o611, 0o066).expect("a key"), Key([0xab; 16]));
        for mode in [0o640, 0o604, 0o620, 0o610, 0o601] {
            let error = read(mode, 0o077).expect_err("open");
            assert!(matches!(error, KeyError::Exposed { mode: m } if m == mode), "{error}");
        }
        fs::remove_file(&path).expect("removed");
        let error = read_gone(&path);
        assert!(matches!(error, KeyError::Unreadable(_)), "{error}");
    }

    fn read_gone(path: &Path) -> KeyError {
        Key::read(path, 0o077).expect_err("gone")
    }
}
