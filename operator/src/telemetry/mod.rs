//! Logging, and spans for whoever collects them.
//!
//! Owns the subscriber of the process. What is worth a line or a span is each part's own; all spans
//! have the target [`baton_push::SPANS`].

use anyhow::Context as _;
use baton_config::logging::{EnvFilter, Style};

#[cfg(feature = "otel")]
mod export;
#[cfg(all(test, feature = "otel"))]
pub mod tests;

#[cfg(all(test, feature = "otel"))]
pub use export::figures;
#[cfg(feature = "otel")]
pub use export::{Endpoint, Export};

/// Nothing is exported by this build.
#[cfg(not(feature = "otel"))]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {}

#[cfg(not(feature = "otel"))]
impl Endpoint {
    /// # Errors
    /// Always.
    pub fn new(_: &str) -> anyhow::Result<Self> {
        anyhow::bail!("this build exports no spans: it was built without the feature `otel`")
    }
}

/// Nothing is exported by this build.
#[cfg(not(feature = "otel"))]
pub enum Export {}

#[cfg(not(feature = "otel"))]
impl Export {
    pub fn figures(&self) -> prometheus::IntCounterVec {
        match *self {}
    }

    pub async fn end(self) {
        match self {}
    }
}

/// Starts logging, and the export of spans if there is somewhere to export them to. In a tokio
/// runtime.
///
/// # Errors
/// Logging has been started before, or the export cannot be.
pub fn start(
    style: Style,
    level: EnvFilter,
    endpoint: Option<&Endpoint>,
    identity: &str,
) -> anyhow::Result<Option<Export>> {
    let Some(endpoint) = endpoint else {
        let _level =
            baton_config::logging::start(style, level).context("logging cannot be started")?;
        return Ok(None);
    };
    exporting(style, level, endpoint, identity).map(Some)
}

#[cfg(not(feature = "otel"))]
fn exporting(_: Style, _: EnvFilter, endpoint: &Endpoint, _: &str) -> anyhow::Result<Export> {
    match *endpoint {}
}

#[cfg(feature = "otel")]
fn exporting(
    style: Style,
    level: EnvFilter,
    endpoint: &Endpoint,
    identity: &str,
) -> anyhow::Result<Export> {
    use baton_config::logging::LogFormat;
    use tracing_subscriber::{
        Layer,
        filter::{FilterExt, filter_fn},
        fmt,
        layer::SubscriberExt,
        util::SubscriberInitExt,
    };
    let (spans, export) = export::layer(endpoint, identity)?;
    // As without an export: lines know nothing of its spans.
    let lines = fmt::layer().with_writer(std::io::stderr).with_target(style.modules);
    let lines = match style.format {
        LogFormat::Text => lines.with_ansi(style.colours).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    let no_span = filter_fn(|metadata| metadata.target() != baton_push::SPANS);
    tracing_subscriber::registry()
        .with(lines.with_filter(level.and(no_span)))
        .with(spans)
        .try_init()
        .context("logging cannot be started")?;
    Ok(export)
}
