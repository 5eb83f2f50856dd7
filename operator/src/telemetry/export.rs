//! Spans on their way to a collector: OTLP over HTTP, protobuf.
//!
//! Owns how many spans wait, and counts what becomes of them; the queue and its thread are the
//! SDK's. Whoever ends a span never waits: what does not fit, and what the collector does not take,
//! is lost. Attributes are names, numbers and outcomes, never the content of a Secret.

use crate::metrics::PREFIX;
use anyhow::{Context as _, bail};
use http_body_util::{BodyExt, Full, Limited};
use hyper::Uri;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use opentelemetry::{KeyValue, trace::TracerProvider as _};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{
    Protocol, RetryPolicy, SpanExporter, WithExportConfig as _, WithHttpConfig as _,
};
use opentelemetry_sdk::{
    Resource,
    error::{OTelSdkError, OTelSdkResult},
    trace::{
        self, BatchConfigBuilder, BatchSpanProcessor, SdkTracerProvider, Span, SpanData,
        SpanExporter as _, SpanProcessor,
    },
};
use prometheus::{IntCounterVec, Opts};
use std::{
    env,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use tokio::{runtime::Handle, task::spawn_blocking, time::timeout};
use tracing::{Subscriber, warn};
use tracing_subscriber::{Layer, filter::Targets, registry::LookupSpan};

/// Spans that wait: some 4 MB, which a burst of 1,000 policies does not fill.
pub const LIMIT_QUEUE: usize = 4_096;
/// Spans of one request: some 300 KB.
const LIMIT_BATCH: usize = 512;
/// A request, connection included. A collector on the same node answers within milliseconds.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);
/// Bytes of an answer: it says how many spans were refused.
const ANSWER_LIMIT_BYTES: usize = 64 << 10;
/// A span waits no longer than this for others.
const EVERY: Duration = Duration::from_secs(2);
/// Between two lines about failures.
const WARN_EVERY: Duration = Duration::from_secs(60);
/// What waits at the end has this long.
const END_LIMIT: Duration = Duration::from_secs(3);
/// Who speaks, unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES say otherwise.
const SERVICE: &str = "baton-operator";
/// Behind the endpoint.
const PATH: &str = "/v1/traces";

/// Where spans go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint(String);

impl Endpoint {
    /// From `http://HOST:PORT`, as OTEL_EXPORTER_OTLP_ENDPOINT has it.
    ///
    /// # Errors
    /// It is none.
    pub fn new(text: &str) -> anyhow::Result<Self> {
        let expected = "expected as http://127.0.0.1:4318";
        // The text is not shown: it may hold a password.
        let url: Uri =
            text.parse().with_context(|| format!("the OTLP endpoint is no URL: {expected}"))?;
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
        Ok(Self(format!("{base}{PATH}")))
    }
}

/// The way to a collector.
#[derive(Debug)]
struct Http(Client<HttpConnector, Full<Bytes>>);

impl HttpClient for Http {
    fn send_bytes<'a, 'b>(
        &'a self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            let answer = self.0.request(request.map(Full::new)).await?;
            let (head, body) = answer.into_parts();
            let body = Limited::new(body, ANSWER_LIMIT_BYTES).collect().await?;
            Ok(Response::from_parts(head, body.to_bytes()))
        })
    }
}

/// Lets in as many spans as may wait.
#[derive(Debug)]
struct Bounded {
    inner: BatchSpanProcessor,
    waiting: Arc<AtomicUsize>,
    figures: IntCounterVec,
}

impl SpanProcessor for Bounded {
    fn on_start(&self, _: &mut Span, _: &opentelemetry::Context) {}

    fn on_end(&self, span: SpanData) {
        if !span.span_context.is_sampled() {
            return;
        }
        if self.waiting.fetch_add(1, Relaxed) < LIMIT_QUEUE {
            self.inner.on_end(span);
        } else {
            self.waiting.fetch_sub(1, Relaxed);
            self.figures.with_label_values(&["dropped"]).inc();
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn shutdown_with_timeout(&self, limit: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(limit)
    }
}

/// Sends spans for the SDK's thread, which is none of the runtime that the client needs.
#[derive(Debug)]
struct Sender {
    exporter: Arc<SpanExporter>,
    runtime: Handle,
    waiting: Arc<AtomicUsize>,
    figures: IntCounterVec,
    /// Lost since the last line about it, and when that was.
    lost: Mutex<(usize, Option<Instant>)>,
}

impl trace::SpanExporter for Sender {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let (exporter, spans) = (Arc::clone(&self.exporter), batch.len());
        let sent = self.runtime.spawn(async move {
            let sent = timeout(REQUEST_LIMIT, exporter.export(batch)).await;
            sent.unwrap_or(Err(OTelSdkError::Timeout(REQUEST_LIMIT)))
        });
        let failed = |error| Err(OTelSdkError::InternalFailure(format!("{error}")));
        let result = sent.await.unwrap_or_else(failed);
        let outcome = if result.is_ok() { "exported" } else { "failed" };
        self.figures.with_label_values(&[outcome]).inc_by(spans as u64);
        self.waiting.fetch_sub(spans, Relaxed);
        if let Err(error) = &result {
            self.complain(error, spans);
        }
        result
    }
}

impl Sender {
    fn complain(&self, error: &OTelSdkError, spans: usize) {
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.0 += spans;
        if lost.1.is_none_or(|then| then.elapsed() >= WARN_EVERY) {
            let lost = std::mem::replace(&mut *lost, (0, Some(Instant::now()))).0;
            warn!(%error, lost, "spans cannot be exported: is a collector there, and does it take OTLP over HTTP?");
        }
    }
}

/// The export, which ends with the process.
pub struct Export {
    figures: IntCounterVec,
    provider: SdkTracerProvider,
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

/// What takes spans out of the process's own, and the export. In a tokio runtime.
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
    let client = Client::builder(TokioExecutor::new()).build_http();
    let mut exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(Http(client))
        .with_endpoint(endpoint.0.clone())
        .with_protocol(Protocol::HttpBinary)
        // What a collector does not take is lost: the next batch waits.
        .with_retry_policy(RetryPolicy::disabled())
        .build()
        .context("spans cannot be exported")?;
    exporter.set_resource(&resource);
    let waiting = Arc::new(AtomicUsize::new(0));
    let sender = Sender {
        exporter: Arc::new(exporter),
        runtime: Handle::current(),
        waiting: Arc::clone(&waiting),
        figures: figures.clone(),
        lost: Mutex::default(),
    };
    let config = BatchConfigBuilder::default()
        .with_max_queue_size(LIMIT_QUEUE)
        .with_max_export_batch_size(LIMIT_BATCH)
        .with_scheduled_delay(EVERY)
        .build();
    let queue = Bounded {
        inner: BatchSpanProcessor::builder(sender).with_batch_config(config).build(),
        waiting,
        figures: figures.clone(),
    };
    let provider =
        SdkTracerProvider::builder().with_span_processor(queue).with_resource(resource).build();
    let layer = tracing_opentelemetry::layer()
        .with_tracer(provider.tracer(SERVICE))
        .with_location(false)
        .with_threads(false)
        .with_tracked_inactivity(false)
        .with_level(false)
        .with_target(false)
        .with_context_activation(false)
        .with_filter(Targets::new().with_target(baton_push::SPANS, tracing::Level::TRACE));
    Ok((layer, Export { figures, provider }))
}

fn resource(identity: &str) -> Resource {
    let attributes = [
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::new("service.instance.id", identity.to_owned()),
    ];
    let said = env::var_os("OTEL_SERVICE_NAME").is_some_and(|name| !name.is_empty())
        || env::var("OTEL_RESOURCE_ATTRIBUTES").is_ok_and(|all| all.contains("service.name="));
    let resource = Resource::builder().with_attributes(attributes);
    if said { resource.build() } else { resource.with_service_name(SERVICE).build() }
}

impl Export {
    /// What became of spans, to be registered.
    pub fn figures(&self) -> IntCounterVec {
        self.figures.clone()
    }

    /// Sends what waits and ends, within a limit.
    pub async fn end(self) {
        let end = spawn_blocking(move || self.provider.shutdown_with_timeout(END_LIMIT));
        if !matches!(end.await, Ok(Ok(()))) {
            warn!("the collector does not take the last spans in time; they are lost");
        }
    }
}
