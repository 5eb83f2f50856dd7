//! `GET /v1/capture`: frames of chosen flows as they pass, as a pcapng stream; `DELETE` ends it in
//! order.
//!
//! Owns who may ask, how a capture begins and ends, and what the file says beside the frames. One
//! at a time. The task that writes the stream is its own: if the asker goes, it ends the capture.

use super::{
    Control,
    asked::{percent_decoded, refuse_browsers},
    reply::{Reply, json, text, unavailable},
};
use crate::{
    capture::{
        Drains, FILE_MAX_BYTES, Filter, NAMES_MAX, Order, Packet, SNAPLEN_HEADERS, SNAPLEN_MAX,
        SNAPLEN_MIN, TIME_DEFAULT, TIME_MAX, pcapng, taps,
    },
    clock,
    workers::Workers,
};
use baton_api::{CAPTURE, Clients, ErrorReply, Micros, Snapshot, is_backend};
use baton_packet::MessageKind;
use http_body_util::{Either, Full};
use hyper::{
    Request, Response, StatusCode,
    body::{Body, Bytes, Frame},
    header::{CONTENT_TYPE, HeaderValue},
};
use std::{
    collections::{HashMap, HashSet},
    convert::Infallible,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc, watch},
    time::{Instant, MissedTickBehavior, interval, timeout_at},
};
use tracing::{info, warn};

/// Where it is.
pub const PATH: &str = "/v1/capture";
/// Between two looks at what was copied: 8,192 places last for 400,000 frames per second.
const LOOK: Duration = Duration::from_millis(20);
/// Bytes that are sent at one time.
const CHUNK_BYTES: usize = 256 << 10;
/// Chunks that wait for the asker.
const CHUNKS_MAX: usize = 8;
/// So long after the capture's end the asker may take the rest.
const REST_LIMIT: Duration = Duration::from_secs(10);
/// Connections that are introduced by a comment: later ones are not, so that no flood of them takes
/// memory.
const INTRODUCED_MAX: usize = 4_096;

/// Captures have numbers, by which the one that is under way can be ended and no other.
pub struct Numbers {
    last: AtomicU64,
    ended: watch::Sender<u64>,
}

impl Default for Numbers {
    fn default() -> Self {
        Self { last: AtomicU64::new(0), ended: watch::Sender::new(0) }
    }
}

/// A stream of chunks, and its number.
pub struct Chunks(mpsc::Receiver<Bytes>, u64);

impl Body for Chunks {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = self.0.poll_recv(context);
        next.map(|chunk| chunk.map(|chunk| Ok(Frame::data(chunk))))
    }
}

/// Reads what is asked for: `client`, `policy` and `backend` (these two as often as wanted), `for`,
/// `payload`, `snaplen`.
pub(super) fn parse(query: &str) -> Result<Order, ErrorReply> {
    let mut filter = Filter::default();
    let (mut time, mut payload, mut snaplen) = (TIME_DEFAULT, false, None);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = percent_decoded(value);
        let refuse = |problem: String| Err(ErrorReply::field(name, &problem));
        match name {
            "client" => match value.parse::<Clients>() {
                Ok(clients) => filter.clients = Some(clients),
                Err(error) => return refuse(error.to_string()),
            },
            "policy" => filter.policies.push(value),
            "backend" => filter.backends.push(value),
            "for" => match value.parse::<Micros>() {
                Ok(asked) if asked.0 > 0 && Duration::from_micros(asked.0) <= TIME_MAX => {
                    time = Duration::from_micros(asked.0);
                }
                _ => {
                    let most = TIME_MAX.as_secs();
                    return refuse(format!(
                        "`{value}` is not possible: expected a time of at most {most}s, as 10s"
                    ));
                }
            },
            "payload" => match value.as_str() {
                "true" => payload = true,
                "false" => payload = false,
                _ => return refuse("expected true or false".to_owned()),
            },
            "snaplen" => match value.parse::<usize>() {
                Ok(bytes) if (SNAPLEN_MIN..=SNAPLEN_MAX).contains(&bytes) => snaplen = Some(bytes),
                _ => {
                    return refuse(format!(
                        "`{value}` is not possible: expected {SNAPLEN_MIN} to {SNAPLEN_MAX} bytes"
                    ));
                }
            },
            _ => {
                return refuse(
                    "is not known: expected client, policy, backend, for, payload or snaplen"
                        .to_owned(),
                );
            }
        }
    }
    for (name, names) in [("policy", &filter.policies), ("backend", &filter.backends)] {
        if names.len() > NAMES_MAX {
            let problem = format!("{} are too many: expected at most {NAMES_MAX}", names.len());
            return Err(ErrorReply::field(name, &problem));
        }
    }
    let usual = if payload { SNAPLEN_MAX } else { SNAPLEN_HEADERS };
    Ok(Order { filter, payload, snaplen: snaplen.unwrap_or(usual), time })
}

/// Names that are none: a capture of nothing would look like silence.
fn known(filter: &Filter, snapshot: &Snapshot) -> Result<(), ErrorReply> {
    for name in &filter.policies {
        if !snapshot.policies.iter().any(|policy| policy.name == *name) {
            let problem =
                format!("no policy is named `{name}`: `lb-dataplane backends` shows them");
            return Err(ErrorReply::field("policy", &problem));
        }
    }
    for name in &filter.backends {
        let mut all = snapshot.policies.iter().flat_map(|policy| &policy.backends);
        if !all.any(|backend| is_backend(&backend.name, name)) {
            let problem =
                format!("no backend is named `{name}`: `lb-dataplane backends` shows them");
            return Err(ErrorReply::field("backend", &problem));
        }
    }
    Ok(())
}

/// Begins a capture; the answer goes on until it ends.
pub async fn get<B>(
    control: &Control,
    request: &Request<B>,
) -> Response<Either<Full<Bytes>, Chunks>> {
    match begin(control, request).await {
        Ok(chunks) => {
            let number = HeaderValue::from(chunks.1);
            let mut reply = Response::new(Either::Right(chunks));
            reply.headers_mut().insert(CAPTURE, number);
            let kind = HeaderValue::from_static("application/x-pcapng");
            reply.headers_mut().insert(CONTENT_TYPE, kind);
            reply
        }
        Err(refusal) => refusal.map(Either::Left),
    }
}

/// Ends the capture of a number, if it is under way: its stream goes on until the last block.
pub fn end<B>(control: &Control, request: &Request<B>) -> Reply {
    if let Some(refusal) = refuse_browsers(request.headers(), false) {
        return refusal;
    }
    let query = request.uri().query().unwrap_or_default();
    let number = query.strip_prefix("number=");
    let Some(number) = number.and_then(|number| number.parse::<u64>().ok()) else {
        let expected = format!("expected the header {CAPTURE} of the capture's answer");
        let error = ErrorReply::field("number", &expected);
        return json(StatusCode::BAD_REQUEST, &error);
    };
    let gates = &control.gates;
    let last = gates.captures.last.load(Ordering::Relaxed);
    if gates.capture.available_permits() > 0 || last != number {
        let error = ErrorReply::new(format!("no capture {number} is under way"));
        return json(StatusCode::NOT_FOUND, &error);
    }
    gates.captures.ended.send_replace(number);
    text(StatusCode::ACCEPTED, "it ends\n")
}

async fn begin<B>(control: &Control, request: &Request<B>) -> Result<Chunks, Reply> {
    if let Some(refusal) = refuse_browsers(request.headers(), false) {
        return Err(refusal);
    }
    let query = request.uri().query().unwrap_or_default();
    let order = parse(query).map_err(|error| json(StatusCode::BAD_REQUEST, &error))?;
    let snapshot = control.snapshots.current().unwrap_or_default();
    known(&order.filter, &snapshot).map_err(|error| json(StatusCode::NOT_FOUND, &error))?;
    let place = Arc::clone(&control.gates.capture).try_acquire_owned();
    let place = place.map_err(|_| {
        let error = ErrorReply::new("another capture is under way: only one is possible at a time");
        json(StatusCode::CONFLICT, &error)
    })?;
    let workers = &control.workers;
    let (taps, drains) = taps(&order, workers.count(), clock::now());
    if let Err(error) = workers.capture(taps).await {
        // Those that had begun.
        let _ = workers.end_capture().await;
        return Err(unavailable(error));
    }
    info!(
        what = order.filter.words(),
        payload = order.payload,
        seconds = order.time.as_secs_f64(),
        "a capture begins"
    );
    let (sender, receiver) = mpsc::channel(CHUNKS_MAX);
    let captures = &control.gates.captures;
    let number = captures.last.fetch_add(1, Ordering::Relaxed) + 1;
    let stream = Stream {
        workers: workers.clone(),
        interface: control.facts.worker.interface.clone(),
        names: names(&snapshot),
        introduced: HashSet::new(),
        order,
        drains,
        sender,
        out: Vec::with_capacity(CHUNK_BYTES),
        written: 0,
        delivered: 0,
        number,
        ended: captures.ended.subscribe(),
        _place: place,
    };
    tokio::spawn(stream.run());
    Ok(Chunks(receiver, number))
}

/// Names of backends by their addresses.
fn names(snapshot: &Snapshot) -> HashMap<SocketAddr, String> {
    let all = snapshot.policies.iter().flat_map(|policy| &policy.backends);
    all.map(|backend| {
        let at = SocketAddr::new(backend.endpoint.address(), backend.endpoint.port());
        (at, backend.name.clone())
    })
    .collect()
}

/// A capture under way.
struct Stream {
    workers: Workers,
    interface: String,
    names: HashMap<SocketAddr, String>,
    /// Legs of which a comment has said whose they are.
    introduced: HashSet<(SocketAddr, SocketAddr, SocketAddr)>,
    order: Order,
    drains: Drains,
    sender: mpsc::Sender<Bytes>,
    out: Vec<u8>,
    written: u64,
    delivered: u64,
    number: u64,
    /// The number of the last capture that was ended.
    ended: watch::Receiver<u64>,
    /// The next capture may begin when this one is over.
    _place: OwnedSemaphorePermit,
}

impl Stream {
    async fn run(mut self) {
        let start_ns = clock::wall_ns();
        let deadline = Instant::now() + self.order.time;
        let comment = format!(
            "Baton dataplane, {}; {}",
            self.order.filter.words(),
            if self.order.payload { "with payload" } else { "headers only, payload is cut off" }
        );
        pcapng::head(&mut self.out, &self.interface, self.order.snaplen, &comment);
        let why = self.copy(deadline).await;
        // A worker may be gone, and its tap with it.
        let _ = self.workers.end_capture().await;
        let limit = Instant::now() + REST_LIMIT;
        self.take();
        let counts = self.drains.totals();
        let statistics = pcapng::Statistics {
            start_ns,
            end_ns: clock::wall_ns(),
            received: counts.matched,
            dropped: counts.lost(),
            delivered: self.delivered,
            comment: format!(
                "{} frames; ended because {why}; lost: {} because the reader was too slow, {} above the limit of bytes per second, {} \
                 not looked at in a burst",
                self.delivered, counts.ring_full, counts.rate, counts.unseen
            ),
        };
        pcapng::end(&mut self.out, &statistics);
        let told = self.send(limit).await;
        info!(why, frames = statistics.delivered, lost = statistics.dropped, "the capture is over");
        if !told && !self.sender.is_closed() {
            warn!("the end of the capture was not taken in time");
        }
    }

    /// Hands on what is copied until the end; says why it is the end.
    async fn copy(&mut self, deadline: Instant) -> &'static str {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.take();
            if !self.send(deadline + REST_LIMIT).await {
                return "nobody takes it any more";
            }
            if Instant::now() >= deadline {
                return "its time is over";
            }
            if *self.ended.borrow_and_update() == self.number {
                return "it was asked to end";
            }
            if self.written >= FILE_MAX_BYTES {
                return "the file is as large as it may be";
            }
            if !self.workers.is_alive() {
                return "the dataplane ends";
            }
            tokio::select! {
                _ = looks.tick() => {}
                () = tokio::time::sleep_until(deadline) => {}
                () = self.sender.closed() => {}
                // Without the control API nobody can ask for it, and the looks go on.
                Ok(()) = self.ended.changed() => {}
            }
        }
    }

    /// Writes what was copied since the last time, and gives the buffers back.
    fn take(&mut self) {
        while self.out.len() < CHUNK_BYTES * CHUNKS_MAX
            && let Some((of, packet)) = self.drains.next()
        {
            let comment = self.comment(&packet);
            pcapng::packet(&mut self.out, &packet, comment.as_deref());
            self.delivered += 1;
            self.drains.give_back(of, packet);
        }
    }

    async fn send(&mut self, limit: Instant) -> bool {
        while !self.out.is_empty() {
            let rest = self.out.split_off(self.out.len().min(CHUNK_BYTES));
            let chunk = Bytes::from(std::mem::replace(&mut self.out, rest));
            self.written += chunk.len() as u64;
            if !matches!(timeout_at(limit, self.sender.send(chunk)).await, Ok(Ok(()))) {
                return false;
            }
        }
        !self.sender.is_closed()
    }

    /// What the bytes alone do not say: adoptions in words, and whose a leg is, once.
    fn comment(&mut self, packet: &Packet) -> Option<String> {
        let (peer, own) = packet.leg?;
        let name = self.names.get(&peer);
        let message = packet.message.map(|kind| {
            let name = name.map_or("the backend", String::as_str);
            match kind {
                MessageKind::Adopt => format!("asks {name} to adopt this connection"),
                MessageKind::Probe => format!("asks {name} whether it could adopt"),
                MessageKind::Forget => {
                    format!("has trackers on the way to {name} forget this pair")
                }
                MessageKind::Release => {
                    format!(
                        "asks {name} to let go of this connection, whose request nobody has read"
                    )
                }
                MessageKind::Transfer => {
                    format!("asks {name} to hand this connection to another pod's application")
                }
                MessageKind::Answer(reason) => format!("{name} answers: {}", reason.label()),
            }
        });
        let owner = packet.client.and_then(|client| {
            let new = self.introduced.len() < INTRODUCED_MAX
                && self.introduced.insert((peer, own, client));
            new.then(|| {
                let name = name.map(|name| format!(" to {name}")).unwrap_or_default();
                format!("leg{name} of client {client}")
            })
        });
        match (message, owner) {
            (Some(message), Some(owner)) => Some(format!("{message}; {owner}")),
            (message, owner) => message.or(owner),
        }
    }
}
