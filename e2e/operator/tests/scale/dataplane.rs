//! A dataplane of a large class as the operator sees it: takes snapshots whole, keeps what it got,
//! and says of itself what the real one would: a figure for each policy and each backend.
//!
//! Owns its port. Forwards nothing.

use crate::world::{Content, content};
use anyhow::{Context, Result};
use baton_api::{
    Adoptability, BackendHealth, BackendState, Micros, PolicyState, Snapshot, State, WorkerState,
};
use baton_tls::{Material, Name, Server};
use http_body_util::{BodyExt, Full};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    sync::{Notify, watch},
    time::timeout,
};

/// One in so many policies has traffic.
const BUSY_EACH: usize = 10;

/// What is in force.
pub struct Force {
    /// Since when.
    pub at: Instant,
    /// As it came.
    bytes: Bytes,
    snapshot: Snapshot,
}

impl Force {
    /// What it says.
    pub fn content(&self) -> Content {
        content(&self.snapshot)
    }
}

struct Shared {
    started: Instant,
    force: watch::Sender<Option<Arc<Force>>>,
    pushes: AtomicU64,
    polls: watch::Sender<u64>,
}

/// A running one, on a thread of its own: large answers of one keep no other from answering.
/// Dropping it closes its port and its connections.
pub struct Dataplane {
    /// Where it listens.
    pub address: SocketAddr,
    shared: Arc<Shared>,
    stop: Arc<Notify>,
}

impl Dataplane {
    /// Listens at `address` (port 0: any), with TLS if there is material.
    pub fn start(address: SocketAddr, material: Option<Material>) -> Result<Self> {
        let server = material
            .map(|material| Server::new(Name::Dataplane, Name::Operator, material))
            .transpose()?
            .map(Arc::new);
        let listener = std::net::TcpListener::bind(address).with_context(|| address.to_string())?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            started: Instant::now(),
            force: watch::Sender::new(None),
            pushes: AtomicU64::new(0),
            polls: watch::Sender::new(0),
        });
        let stop = Arc::new(Notify::new());
        let (served, stopped) = (Arc::clone(&shared), Arc::clone(&stop));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        std::thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = stopped.notified() => {}
                    () = serve(listener, server, served) => {}
                }
            });
        });
        Ok(Self {
            address,
            shared,
            stop,
        })
    }

    /// Pushes that were taken.
    pub fn pushes(&self) -> u64 {
        self.shared.pushes.load(Relaxed)
    }

    /// How often it was asked for its state.
    pub fn polls(&self) -> u64 {
        *self.shared.polls.borrow()
    }

    /// Waits until it has been asked for its state so often.
    pub async fn polled(&self, wanted: u64, deadline: Duration) -> Result<()> {
        let mut polls = self.shared.polls.subscribe();
        let waited = timeout(deadline, polls.wait_for(|polls| *polls >= wanted)).await;
        waited.context("the operator asks no more for the state")??;
        Ok(())
    }

    /// Waits until exactly this is in force; gives since when.
    pub async fn has(&self, wanted: &Content, deadline: Duration) -> Result<Instant> {
        let mut force = self.shared.force.subscribe();
        let waited = timeout(deadline, async {
            loop {
                let now = force.borrow_and_update().clone();
                if let Some(now) = now
                    && now.content() == *wanted
                {
                    return Ok(now.at);
                }
                force.changed().await.context("it has ended")?;
            }
        });
        waited.await.unwrap_or_else(|_| {
            let policies = self
                .shared
                .force
                .borrow()
                .as_ref()
                .map(|f| f.snapshot.policies.len());
            anyhow::bail!(
                "{}: {} policies wanted, {policies:?} in force after {deadline:?}",
                self.address,
                wanted.len()
            )
        })
    }
}

impl Drop for Dataplane {
    fn drop(&mut self) {
        self.stop.notify_one();
    }
}

impl Shared {
    fn put(&self, bytes: Bytes) -> StatusCode {
        let Ok(snapshot) = serde_json::from_slice::<Snapshot>(&bytes) else {
            return StatusCode::UNPROCESSABLE_ENTITY;
        };
        if snapshot.validate().is_err() {
            return StatusCode::UNPROCESSABLE_ENTITY;
        }
        let before = self
            .force
            .borrow()
            .as_ref()
            .map_or(0, |f| f.snapshot.generation);
        if snapshot.generation <= before {
            return StatusCode::CONFLICT;
        }
        self.pushes.fetch_add(1, Relaxed);
        let at = Instant::now();
        self.force.send_replace(Some(Arc::new(Force {
            at,
            bytes,
            snapshot,
        })));
        StatusCode::OK
    }

    fn state(&self) -> State {
        let polls = *self.polls.borrow();
        let force = self.force.borrow().clone();
        let policies = force.iter().flat_map(|f| &f.snapshot.policies).enumerate();
        State {
            version: "test".into(),
            generation: force.as_ref().map_or(0, |f| f.snapshot.generation),
            uptime_seconds: self.started.elapsed().as_secs(),
            worker: WorkerState {
                mode: "native".into(),
                key_epochs: vec![1],
                ..WorkerState::default()
            },
            policies: policies
                .map(|(at, p)| policy(p, if at % BUSY_EACH == 0 { polls } else { 0 }))
                .collect(),
            ..State::default()
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> (StatusCode, Bytes) {
        match (request.method(), request.uri().path()) {
            (&Method::GET, "/v1/state") => {
                let body = serde_json::to_vec(&self.state()).unwrap_or_default();
                self.polls.send_modify(|polls| *polls += 1);
                (StatusCode::OK, body.into())
            }
            (&Method::GET, "/v1/snapshot") => match &*self.force.borrow() {
                Some(force) => (StatusCode::OK, force.bytes.clone()),
                None => (StatusCode::NOT_FOUND, Bytes::new()),
            },
            (&Method::PUT, "/v1/snapshot") => match request.into_body().collect().await {
                Ok(body) => (self.put(body.to_bytes()), Bytes::from_static(b"{}")),
                Err(_) => (StatusCode::BAD_REQUEST, Bytes::new()),
            },
            _ => (StatusCode::NOT_FOUND, Bytes::new()),
        }
    }
}

/// A policy's figures with so much traffic.
fn policy(policy: &baton_api::Policy, traffic: u64) -> PolicyState {
    PolicyState {
        name: policy.name.clone(),
        frontends: policy.frontends.clone(),
        algorithm: policy.algorithm,
        protocol: policy.protocol,
        flows: traffic % 100,
        flows_total: traffic * 10,
        migrations_total: traffic,
        rollbacks_total: 0,
        rescues_total: 0,
        replays_total: 0,
        lost_total: Default::default(),
        pinned: Default::default(),
        pins_total: Default::default(),
        moves_total: Default::default(),
        panic: false,
        placement: None,
        backends: policy
            .backends
            .iter()
            .map(|b| backend(b, traffic))
            .collect(),
    }
}

fn backend(backend: &baton_api::Backend, traffic: u64) -> BackendState {
    BackendState {
        name: backend.name.clone(),
        endpoint: backend.endpoint,
        weight: backend.weight,
        draining: backend.draining,
        adoptability: Adoptability::Ready,
        flows: traffic % 10,
        pinned: 0,
        outstanding: traffic % 3,
        first_byte: Micros(250 + traffic),
        wait: Some(Micros(250 + traffic)),
        load: None,
        transfers: false,
        unlike: false,
        placement: None,
        requests_total: traffic * 100,
        migrations_in_total: traffic,
        migrations_out_total: traffic,
        health: BackendHealth::Up,
        stranded: 0,
        rescued_total: 0,
        drain: None,
    }
}

async fn serve(listener: std::net::TcpListener, server: Option<Arc<Server>>, shared: Arc<Shared>) {
    let Ok(listener) = TcpListener::from_std(listener) else {
        return;
    };
    // Connections end with the set, and that with the runtime.
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        let _ = stream.set_nodelay(true);
        let (server, shared) = (server.clone(), Arc::clone(&shared));
        connections.spawn(async move {
            match server {
                None => connection(stream, shared).await,
                Some(server) => {
                    if let Ok(stream) = server.accept(stream).await {
                        connection(stream, shared).await;
                    }
                }
            }
        });
    }
}

async fn connection(stream: impl AsyncRead + AsyncWrite + Unpin, shared: Arc<Shared>) {
    let service = service_fn(|request| {
        let shared = Arc::clone(&shared);
        async move {
            let (code, body) = shared.answer(request).await;
            let mut response = Response::new(Full::new(body));
            *response.status_mut() = code;
            Ok::<_, Infallible>(response)
        }
    });
    // How it ends is the operator's to notice.
    let _ = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}
