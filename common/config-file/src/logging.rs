//! Log lines to standard error, as text or JSON, with a level that can change while running.
//!
//! Owns the one subscriber of the process. What is worth a line is each binary's own.

use serde::{Deserialize, Serialize};
use tracing_subscriber::{
    Layer, Registry, fmt, layer::SubscriberExt, reload, util::SubscriberInitExt,
};

pub use tracing_subscriber::{EnvFilter, reload::Error as ReloadError, util::TryInitError};

/// The form of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For programs: one object per line.
    Json,
}

/// How log lines look.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// Their form.
    pub format: LogFormat,
    /// Whether lines of text have colours.
    pub colours: bool,
    /// Whether a line names the module that it comes from.
    pub modules: bool,
}

/// Changes the level of a running process.
pub struct Level(reload::Handle<EnvFilter, Registry>);

impl Level {
    /// Lets through what `filter` does from now on.
    ///
    /// # Errors
    /// Logging has ended.
    pub fn set(&self, filter: EnvFilter) -> Result<(), ReloadError> {
        self.0.reload(filter)
    }
}

/// A level, or levels per module as `info,lb_dataplane=debug`; none if the text is neither.
#[must_use]
pub fn filter(levels: &str) -> Option<EnvFilter> {
    // A single word would else pass as the name of a module.
    let words = ["off", "error", "warn", "info", "debug", "trace"];
    if !levels.contains(['=', ',']) && !words.contains(&levels) {
        return None;
    }
    EnvFilter::try_new(levels).ok()
}

/// Starts logging. Once per process.
///
/// # Errors
/// Logging has been started before; that first start stays in force.
pub fn start(style: Style, filter: EnvFilter) -> Result<Level, TryInitError> {
    let (filter, handle) = reload::Layer::new(filter);
    let lines = fmt::layer().with_writer(std::io::stderr).with_target(style.modules);
    let lines = match style.format {
        LogFormat::Text => lines.with_ansi(style.colours).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry().with(filter).with(lines).try_init()?;
    Ok(Level(handle))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_levels_per_module_are_filters_and_other_words_are_not() {
        for good in ["off", "error", "trace", "info,lb_dataplane=debug"] {
            let filter = filter(good).expect(good);
            // Its own order of the parts may differ.
            for part in good.split(',') {
                assert!(filter.to_string().contains(part), "{good}: {filter}");
            }
        }
        for bad in ["", "loud", "lb_dataplane", "info,lb_dataplane=loud"] {
            assert!(filter(bad).is_none(), "{bad}");
        }
    }
}
