//! Spans on their way to a collector: OTLP over HTTP, protobuf.
//!
//! Owns a bounded queue and the task that empties it. Whoever ends a span never waits: what does not fit, and what the
//! collector does not take, is counted and lost. Attributes are names, numbers and outcomes, never the content of a Secret.

use super::http::{Client, REQUEST_LIMIT};
use crate::metrics::PREFIX;
use anyhow::{Context as _, bail};
use hyper::Uri;
use opentelemetry::{KeyValue, trace::TracerProvider as _};
use opentelemetry_otlp::{
    Protocol, RetryPolicy, SpanExporter, WithExportConfig as _, WithHttpConfig as _,
};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    trace::{SdkTracerProvider, Span, SpanData, SpanExporter as _, SpanProcessor},
};
use prometheus::{IntCounterVec, Opts};
use std::{env, sync::Arc, time::Duration};
use tokio::{
    sync::{Notify, mpsc, oneshot},
    task::JoinHandle,
    time::{Instant, MissedTickBehavior, interval, timeout},
};
use tracing::{Subscriber, warn};
use tracing_subscriber::{Layer, filter::Targets, registry::LookupSpan};

/// Spans that wait: some 4 MB, which a burst of 1,000 policies does not fill.
pub const LIMIT_QUEUE: usize = 4_096;
/// Spans of one request: some 300 KB.
const LIMIT_BATCH: usize = 512;
/// A span waits no longer than this for others.
const EVERY: Duration = Duration::from_secs(2);
/// Between two lines about failures.
const WARN_EVERY: Duration = Duration::from_secs(60);
/// What waits at the end has this long.
pub const END_LIMIT: Duration = Duration::from_secs(3);
/// Who speaks, unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES say otherwise.
const SERVICE: &str = "baton-operator";
/// Behind the endpoint.
const PATH: &str = "/v1/traces";

/// Where spans go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    url: String,
    authority: String,
}

impl Endpoint {
    /// From `http://HOST:PORT`, as OTEL_EXPORTER_OTLP_ENDPOINT has it.
    ///
    /// # Errors
    /// It is none.
    pub fn new(text: &str) -> anyhow::Result<Self> {
        let expected = "expected as http://127.0.0.1:4318";
        // The text is not shown: it may hold a password.
        let url: Uri = text
            .parse()
            .with_context(|| format!("the OTLP endpoint is no URL: {expected}"))?;
        match url.scheme_str() {
            Some("http") => {}
            Some("https") => bail!(
                "the OTLP endpoint is https, which is not spoken here: {expected}, of a collector on this node or in this \
                 Pod, which passes spans on with TLS"
            ),
            _ => bail!("the OTLP endpoint has no scheme that is known: {expected}"),
        }
        let authority = url.authority().context("the OTLP endpoint has no host")?;
        if authority.as_str().contains('@') {
            bail!(
                "the OTLP endpoint holds a user: {expected}, and credentials in OTEL_EXPORTER_OTLP_HEADERS"
            );
        }
        let base = text.trim_end_matches('/');
        Ok(Self {
            url: format!("{base}{PATH}"),
            authority: match authority.port() {
                Some(_) => authority.to_string(),
                None => format!("{authority}:80"),
            },
        })
    }
}

/// Takes ended spans in.
#[derive(Debug)]
struct Queue {
    sender: mpsc::Sender<SpanData>,
    full: Arc<Notify>,
    figures: IntCounterVec,
}

impl SpanProcessor for Queue {
    fn on_start(&self, _: &mut Span, _: &opentelemetry::Context) {}

    fn on_end(&self, span: SpanData) {
        if !span.span_context.is_sampled() {
            return;
        }
        if self.sender.try_send(span).is_err() {
            self.figures.with_label_values(&["dropped"]).inc();
        } else if self.sender.max_capacity() - self.sender.capacity() >= LIMIT_BATCH {
            self.full.notify_one();
        }
    }

    // The task does both; whoever owns it waits for it.
    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// The export, which ends with the process.
pub struct Export {
    figures: IntCounterVec,
    task: Option<Task>,
    running: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
    /// Spans end only while it lives.
    provider: SdkTracerProvider,
}

struct Task {
    exporter: SpanExporter,
    spans: mpsc::Receiver<SpanData>,
    full: Arc<Notify>,
    figures: IntCounterVec,
    /// Lost since the last line about it, and when that was.
    lost: u64,
    warned: Option<Instant>,
}

/// What became of spans.
///
/// # Errors
/// The name is none: a bug.
pub fn figures() -> prometheus::Result<IntCounterVec> {
    let help = "Spans for a collector, by what became of them.";
    let opts = Opts::new(format!("{PREFIX}spans_total"), help);
    IntCounterVec::new(opts, &["result"])
}

/// What takes spans out of the process's own, and the export, which does nothing before it begins.
///
/// # Errors
/// The variables of the environment that OpenTelemetry knows make no sense.
pub fn layer<S>(
    endpoint: &Endpoint,
    identity: &str,
) -> anyhow::Result<(impl Layer<S> + Send + Sync + use<S>, Export)>
where
    S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
{
    let figures = figures()?;
    let resource = resource(identity);
    let mut exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(Client::new(endpoint.authority.clone()))
        .with_endpoint(endpoint.url.clone())
        .with_protocol(Protocol::HttpBinary)
        .with_timeout(REQUEST_LIMIT)
        // What a collector does not take is lost: the next batch waits.
        .with_retry_policy(RetryPolicy::disabled())
        .build()
        .context("spans cannot be exported")?;
    exporter.set_resource(&resource);
    let (sender, spans) = mpsc::channel(LIMIT_QUEUE);
    let full = Arc::new(Notify::new());
    let queue = Queue {
        sender,
        full: Arc::clone(&full),
        figures: figures.clone(),
    };
    let provider = SdkTracerProvider::builder()
        .with_span_processor(queue)
        .with_resource(resource)
        .build();
    let layer = tracing_opentelemetry::layer()
        .with_tracer(provider.tracer(SERVICE))
        .with_location(false)
        .with_threads(false)
        .with_tracked_inactivity(false)
        .with_level(false)
        .with_target(false)
        .with_context_activation(false)
        .with_filter(Targets::new().with_target(baton_push::SPANS, tracing::Level::TRACE));
    let task = Task {
        exporter,
        spans,
        full,
        figures: figures.clone(),
        lost: 0,
        warned: None,
    };
    let export = Export {
        figures,
        task: Some(task),
        running: None,
        provider,
    };
    Ok((layer, export))
}

fn resource(identity: &str) -> Resource {
    let attributes = [
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::new("service.instance.id", identity.to_owned()),
    ];
    let said = env::var_os("OTEL_SERVICE_NAME").is_some_and(|name| !name.is_empty())
        || env::var("OTEL_RESOURCE_ATTRIBUTES").is_ok_and(|all| all.contains("service.name="));
    let resource = Resource::builder().with_attributes(attributes);
    if said {
        resource.build()
    } else {
        resource.with_service_name(SERVICE).build()
    }
}

impl Export {
    /// Begins. In a tokio runtime.
    pub fn begin(&mut self) {
        if let Some(task) = self.task.take() {
            let (stop, stopped) = oneshot::channel();
            self.running = Some((stop, tokio::spawn(task.run(stopped))));
        }
    }

    /// What became of spans, to be registered.
    pub fn figures(&self) -> IntCounterVec {
        self.figures.clone()
    }

    /// Sends what waits and ends, within a limit.
    pub async fn end(self) {
        if let Some((stop, task)) = self.running {
            // It lives: nothing else ends it.
            let _ = stop.send(());
            let abort = task.abort_handle();
            if timeout(END_LIMIT, task).await.is_err() {
                abort.abort();
                warn!("the collector does not take the last spans in time; they are lost");
            }
        }
        // Has nothing left to do.
        let _ = self.provider.shutdown();
    }
}

impl Task {
    async fn run(mut self, mut stop: oneshot::Receiver<()>) {
        let mut every = interval(EVERY);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let full = Arc::clone(&self.full);
        loop {
            let ends = tokio::select! {
                _ = &mut stop => true,
                _ = every.tick() => false,
                () = full.notified() => false,
            };
            self.empty().await;
            if ends {
                return;
            }
        }
    }

    async fn empty(&mut self) {
        loop {
            let mut batch = Vec::new();
            while batch.len() < LIMIT_BATCH
                && let Ok(span) = self.spans.try_recv()
            {
                batch.push(span);
            }
            if batch.is_empty() {
                return;
            }
            let spans = batch.len() as u64;
            match self.exporter.export(batch).await {
                Ok(()) => self.figures.with_label_values(&["exported"]).inc_by(spans),
                Err(error) => {
                    self.figures.with_label_values(&["failed"]).inc_by(spans);
                    self.lost += spans;
                    self.complain(&error);
                }
            }
        }
    }

    fn complain(&mut self, error: &dyn std::error::Error) {
        let now = Instant::now();
        if self.warned.is_some_and(|then| now - then < WARN_EVERY) {
            return;
        }
        self.warned = Some(now);
        let lost = std::mem::take(&mut self.lost);
        warn!(%error, lost, "spans cannot be exported: is a collector there, and does it take OTLP over HTTP?");
    }
}
