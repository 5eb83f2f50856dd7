//! How this binary's log lines look.

use crate::config::Log;
use baton_config::logging::{self, Level, Style, TryInitError};

/// Starts logging to standard error. Once per process.
pub fn start(log: &Log) -> Result<Level, TryInitError> {
    let style = Style { format: log.format, colours: false, modules: false };
    logging::start(style, log.level.filter())
}
