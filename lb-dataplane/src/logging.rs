//! How this binary's log lines look.

use crate::config::Log;
use baton_config::logging::{self, Level, Style};
use std::io::{IsTerminal as _, stderr};

/// Starts logging. Once per process.
///
/// # Errors
/// The level is none, or logging has been started before.
pub fn start(log: &Log) -> anyhow::Result<Level> {
    let style = Style { format: log.format, colours: stderr().is_terminal(), modules: true };
    Ok(logging::start(style, log.filter()?)?)
}
