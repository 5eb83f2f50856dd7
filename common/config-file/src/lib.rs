//! What the binaries share in reading their configurations: where a field stands in YAML text, how
//! a refusal reads, key files, logging, and the fields that both have (`keys`, `controlTls`); and
//! how files are written that nobody else may read.
//!
//! Knows no other field of any configuration and what is valid for none: that is each binary's own.

pub mod key;
pub mod logging;

mod control_tls;
mod error;
mod keys;
mod locate;
mod private;

pub use control_tls::ControlTls;
pub use error::{ConfigError, reader_words};
pub use keys::{FolderError, FolderKey, KEYS_EXPECTED, KeyFile, KeyFolder, KeysField};
pub use locate::{Document, Place};
pub use private::{PrivateFile, create_private};
