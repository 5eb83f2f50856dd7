//! The listeners of the control API: plain for commands on this machine, TLS for the operator, and
//! one for probes.
//!
//! Owns who gets in and how much of this process anybody can hold: connections, their time, bodies.
//! Knows no path.

use super::{
    Control, capture,
    reply::Reply,
    routes::{self, Access},
};
use baton_tls::{Places, Reason, Refusal, Server, listen};
use http_body_util::Either;
use hyper::{Method, StatusCode, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::{
    convert::Infallible,
    fmt::Display,
    io,
    net::{IpAddr, SocketAddr},
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    sync::{self, Semaphore},
    time::{self, Instant},
};
use tracing::{debug, warn};

/// Connections at one time of each listener: an operator or the kubelet, a scraper and a few
/// people. With TLS, who has no certificate does not hold one, but one of as many for handshakes,
/// for [`baton_tls::HANDSHAKE_LIMIT`] at most.
pub(super) const CONNECTIONS_MAX: usize = 64;
/// From the first byte of a request to its answer, and between two requests of one connection.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
/// A connection ends after this, so that whoever does not take its answers holds no memory for
/// long, and so that no client stays for long that a new authority would not let in.
pub(super) const AGE_LIMIT: Duration = Duration::from_secs(300);
/// The same at the probes' listener, where anybody may come.
const PROBES_AGE_LIMIT: Duration = Duration::from_secs(30);
/// Bytes of a request's head, and of what is read ahead of a body. Ours have some hundred.
const BUFFER_MAX_BYTES: usize = 64 << 10;
/// Snapshots that are received at one time: 16 MiB each, and one operator pushes one.
const BODIES_MAX: usize = 2;
/// Captures at one time: the packet thread has one tap.
const CAPTURES_MAX: usize = 1;
/// How old the metrics are at most that the probes' listener gives: a flood of scrapes must not
/// hold up the worker.
const METRICS_AGE_LIMIT: Duration = Duration::from_secs(1);
/// After a failed accept (no more file descriptors) nothing better can be done than to wait.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Refused handshakes make at most one line in the log per this time: anybody can cause them.
const REFUSAL_PAUSE: Duration = Duration::from_secs(10);

/// What all requests share.
pub struct Gates {
    /// Places for snapshots that are received.
    pub bodies: Semaphore,
    /// The one place for a capture.
    pub capture: Arc<Semaphore>,
    /// Which capture that is.
    pub captures: capture::Numbers,
    metrics: sync::Mutex<Option<(Instant, Reply)>>,
}

impl Default for Gates {
    fn default() -> Self {
        Self {
            bodies: Semaphore::new(BODIES_MAX),
            capture: Arc::new(Semaphore::new(CAPTURES_MAX)),
            captures: capture::Numbers::default(),
            metrics: sync::Mutex::new(None),
        }
    }
}

impl Gates {
    /// The last answer if it is fresh, or a new one. The text is shared by all who get it.
    pub async fn recent(&self, answer: impl Future<Output = Reply>) -> Reply {
        let mut last = self.metrics.lock().await;
        match &*last {
            Some((at, reply)) if at.elapsed() < METRICS_AGE_LIMIT => reply.clone(),
            _ => {
                let reply = answer.await;
                *last = Some((Instant::now(), reply.clone()));
                reply
            }
        }
    }
}

/// Who comes in how.
#[derive(Clone)]
pub enum Door {
    /// Any program that reaches this port, for everything; no web page.
    Plain,
    /// Whoever may open the unix socket, for everything.
    Socket,
    /// Only the operator.
    Tls(Arc<Server>),
    /// Anybody, for health and metrics; over loopback no web page.
    Probes,
}

impl Door {
    /// Whether a web page in a browser of this machine could come in.
    fn is_near_pages<L: Listen>(&self, stream: &L::Stream) -> bool {
        match self {
            Self::Plain => true,
            Self::Probes => L::is_loopback(stream),
            Self::Socket | Self::Tls(_) => false,
        }
    }
}

/// Binds an address; `field` is where the configuration has it.
///
/// # Errors
/// It is in use, or not an address of this machine.
pub fn bind(field: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    use anyhow::Context as _;
    listen::bind(address).with_context(|| {
        format!("`{field}: {address}`: cannot listen there (is another dataplane running?)")
    })
}

/// Where connections come in.
pub trait Listen: Send + 'static {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    /// Its other end, for the log.
    type Peer: Display + Copy + Send + Sync;

    /// Its other end's address, if it has one.
    fn address(peer: &Self::Peer) -> Option<IpAddr>;

    /// Whether it came to a loopback address.
    fn is_loopback(stream: &Self::Stream) -> bool;

    /// The next one.
    fn next(&self) -> impl Future<Output = io::Result<(Self::Stream, Self::Peer)>> + Send;
}

impl Listen for TcpListener {
    type Stream = TcpStream;
    type Peer = SocketAddr;

    fn address(peer: &SocketAddr) -> Option<IpAddr> {
        Some(peer.ip())
    }

    fn is_loopback(stream: &TcpStream) -> bool {
        listen::is_loopback(stream)
    }

    async fn next(&self) -> io::Result<(TcpStream, SocketAddr)> {
        listen::accept(self).await
    }
}

impl Listen for UnixListener {
    type Stream = UnixStream;
    type Peer = &'static str;

    fn address(_: &&'static str) -> Option<IpAddr> {
        None
    }

    fn is_loopback(_: &UnixStream) -> bool {
        false
    }

    async fn next(&self) -> io::Result<(UnixStream, &'static str)> {
        let (stream, _) = self.accept().await?;
        Ok((stream, "a process of this machine"))
    }
}

/// Serves until the process ends.
pub async fn serve<L: Listen>(listener: L, control: Arc<Control>, door: Door) -> Infallible {
    let places = Places::new(CONNECTIONS_MAX);
    // Who is not known yet takes no place from who is.
    let handshakes = Places::new(CONNECTIONS_MAX);
    let refusals = Arc::new(Refusals::default());
    loop {
        let (stream, peer) = match listener.next().await {
            Ok(accepted) => accepted,
            Err(error) => {
                warn!(%error, "cannot accept a control connection");
                time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let from = L::address(&peer);
        let mut way = Way {
            access: Access::All,
            near_pages: door.is_near_pages::<L>(&stream),
            age_limit: AGE_LIMIT,
        };
        let serving = Arc::clone(&control);
        let evicted = match &door {
            Door::Tls(server) => {
                let (server, places) = (Arc::clone(server), Arc::clone(&places));
                let refusals = Arc::clone(&refusals);
                handshakes.serve(from, async move {
                    match server.accept(stream).await {
                        Ok(stream) => {
                            let control = Arc::clone(&serving);
                            let served = async move { http(stream, peer, &serving, way).await };
                            count_evicted(&control, places.serve(from, served));
                        }
                        Err(refusal) => refusals.note(peer, &refusal),
                    }
                })
            }
            Door::Plain | Door::Socket | Door::Probes => {
                if let Door::Probes = door {
                    way.access = Access::Probes;
                    way.age_limit = PROBES_AGE_LIMIT;
                }
                places.serve(from, async move { http(stream, peer, &serving, way).await })
            }
        };
        count_evicted(&control, evicted);
    }
}

fn count_evicted(control: &Control, evicted: bool) {
    control.metrics.connections_evicted.inc_by(evicted.into());
}

/// What a connection is good for.
#[derive(Clone, Copy)]
pub(super) struct Way {
    /// What may be asked.
    pub access: Access,
    /// A web page may be at its other end.
    pub near_pages: bool,
    /// How long it lasts.
    pub age_limit: Duration,
}

/// Answers the requests of one connection.
pub(super) async fn http<S>(stream: S, peer: impl Display, control: &Arc<Control>, way: Way)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let Way { access, near_pages, age_limit } = way;
    let service = service_fn(|request| async move {
        if near_pages && let Some(refusal) = routes::refuse_pages(control, &request) {
            count(control, refusal.status());
            return Ok(refusal.map(Either::Left));
        }
        if request.method() == Method::GET && access.is_for(capture::PATH, &request) {
            let reply = capture::get(control, &request).await;
            count(control, reply.status());
            return Ok(reply);
        }
        let answer = routes::route(control, access, request);
        let reply = match time::timeout(REQUEST_LIMIT, answer).await {
            Ok(reply) => reply,
            Err(_) => routes::too_slow(),
        };
        count(control, reply.status());
        Ok::<_, Infallible>(reply.map(Either::Left))
    });
    let mut served = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(REQUEST_LIMIT)
            .max_buf_size(BUFFER_MAX_BYTES)
            .serve_connection(TokioIo::new(stream), service)
    );
    let ended = match time::timeout(age_limit, served.as_mut()).await {
        Ok(ended) => ended,
        Err(_) => {
            // The request in progress is answered, if the peer takes the answer.
            served.as_mut().graceful_shutdown();
            time::timeout(REQUEST_LIMIT, served).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        debug!(%peer, %error, "a control connection ended");
    }
}

/// What the log says of refused handshakes.
#[derive(Default)]
struct Refusals {
    told: Mutex<Option<Instant>>,
    untold: AtomicU64,
}

impl Refusals {
    fn note(&self, peer: impl Display, refusal: &Refusal) {
        // Whoever looks for open ports makes these.
        let noise = matches!(refusal.reason, Reason::Closed | Reason::Timeout | Reason::Protocol);
        if noise || !self.may_tell() {
            self.untold.fetch_add(u64::from(!noise), Ordering::Relaxed);
            debug!(%peer, %refusal, "a TLS handshake failed");
            return;
        }
        let others = self.untold.swap(0, Ordering::Relaxed);
        warn!(%peer, %refusal, others, "somebody was refused at `controlTls.listen`");
    }

    fn may_tell(&self) -> bool {
        let Ok(mut told) = self.told.lock() else {
            return false;
        };
        let quiet = told.is_none_or(|at| at.elapsed() >= REFUSAL_PAUSE);
        if quiet {
            *told = Some(Instant::now());
        }
        quiet
    }
}

fn count(control: &Control, status: StatusCode) {
    let class = class(status.as_u16());
    control.metrics.requests.with_label_values(&[class]).inc();
}

fn class(status: u16) -> &'static str {
    match status {
        200..=299 => "2xx",
        400..=499 => "4xx",
        _ => "5xx",
    }
}
