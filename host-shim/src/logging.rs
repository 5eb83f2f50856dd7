//! How this binary's log lines look.

use crate::config::{Log, LogLevel};
use baton_config::logging::{self, EnvFilter, Style};

/// Starts logging to standard error; the first call counts.
pub fn start(log: &Log) {
    let level = match log.level {
        LogLevel::Error => "error",
        LogLevel::Warn => "warn",
        LogLevel::Info => "info",
        LogLevel::Debug => "debug",
        LogLevel::Trace => "trace",
    };
    let style = Style { format: log.format, colours: false, modules: false };
    // Fails only if logging has started already.
    let _ = logging::start(style, EnvFilter::new(level));
}
