//! What the binaries share in reading their configurations: where a field stands in YAML text, how a refusal
//! reads, key files, and logging.
//!
//! Knows no field of any configuration and what is valid for none: that is each binary's own.

pub mod key;
pub mod logging;

mod error;
mod locate;

pub use error::{ConfigError, reader_words};
pub use locate::{Document, Place};
