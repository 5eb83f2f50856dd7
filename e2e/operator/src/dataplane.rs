//! A dataplane as the operator sees it: a control API over mutual TLS that takes snapshots by the real one's rules and
//! says which it has. It forwards nothing.
//!
//! Its certificate is the one that the operator has issued for dataplanes, so each push is a whole TLS handshake's worth.

use anyhow::{Context, Result};
use baton_api::{Snapshot, State, WorkerState};
use baton_tls::{Material, Name, Server};
use http_body_util::{BodyExt, Full};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use serde_json::json;
use std::{
    convert::Infallible,
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinHandle,
    time::timeout,
};

/// A snapshot that came, and when.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// When it was in force.
    pub at: Instant,
    /// What it says.
    pub snapshot: Arc<Snapshot>,
}

/// A running one. Dropping it closes its port and its connections.
#[derive(Debug)]
pub struct Dataplane {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    started: Instant,
    newest: watch::Sender<Option<Arrival>>,
    pushes: Mutex<Vec<u64>>,
}

/// An address of this machine that is not loopback, where the operator insists on TLS.
///
/// # Errors
/// If the machine has none.
pub fn own_address() -> Result<IpAddr> {
    // Connecting a UDP socket sends nothing; the kernel chooses the address that it would send from.
    let socket = UdpSocket::bind(("0.0.0.0", 0)).context("making a socket")?;
    socket.connect(("192.0.2.1", 9)).context(
        "this machine has no address but loopback: expected one, as of `ip address add 198.18.0.1/32 dev lo`",
    )?;
    Ok(socket.local_addr()?.ip())
}

impl Dataplane {
    /// Listens at `address` (port 0: any), with the certificate, key and authority of a Secret.
    ///
    /// # Errors
    /// If the port is taken or the material cannot be used.
    pub async fn start(address: SocketAddr, material: Material) -> Result<Self> {
        let server = Server::new(Name::Dataplane, Name::Operator, material)?;
        let listener = TcpListener::bind(address)
            .await
            .with_context(|| address.to_string())?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            started: Instant::now(),
            newest: watch::Sender::new(None),
            pushes: Mutex::new(Vec::new()),
        });
        let task = tokio::spawn(serve(listener, Arc::new(server), Arc::clone(&shared)));
        Ok(Self {
            address,
            shared,
            task,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The newest snapshot.
    #[must_use]
    pub fn newest(&self) -> Option<Arrival> {
        self.shared.newest.borrow().clone()
    }

    /// Generations of all pushes that were taken, in order.
    #[must_use]
    pub fn generations(&self) -> Vec<u64> {
        self.shared.pushes().clone()
    }

    /// Waits for the first snapshot of which `wanted` holds, also one that came before.
    ///
    /// # Errors
    /// With the newest one, at the deadline.
    pub async fn wait(
        &self,
        deadline: Duration,
        mut wanted: impl FnMut(&Snapshot) -> bool,
    ) -> Result<Arrival> {
        let mut newest = self.shared.newest.subscribe();
        let waited = newest.wait_for(|n| n.as_ref().is_some_and(|a| wanted(&a.snapshot)));
        match timeout(deadline, waited).await {
            Ok(found) => found?.clone().context("a snapshot"),
            Err(_) => {
                let newest = self
                    .newest()
                    .map(|a| (a.snapshot.generation, a.snapshot.policies.len()));
                anyhow::bail!(
                    "no such snapshot within {deadline:?}; the newest (generation, policies): {newest:?}"
                )
            }
        }
    }
}

impl Drop for Dataplane {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    fn pushes(&self) -> MutexGuard<'_, Vec<u64>> {
        self.pushes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// By the rules of the real one: the same again is no error, what is older is.
    fn offer(&self, snapshot: Snapshot) -> StatusCode {
        let now = Instant::now();
        let mut code = StatusCode::OK;
        self.newest.send_if_modified(|newest| {
            if let Some(in_force) = newest {
                if *in_force.snapshot == snapshot {
                    return false;
                }
                if snapshot.generation <= in_force.snapshot.generation {
                    code = StatusCode::CONFLICT;
                    return false;
                }
            }
            self.pushes().push(snapshot.generation);
            *newest = Some(Arrival {
                at: now,
                snapshot: Arc::new(snapshot),
            });
            true
        });
        code
    }

    fn state(&self) -> State {
        let newest = self.newest.borrow();
        State {
            version: "test".into(),
            generation: newest.as_ref().map_or(0, |a| a.snapshot.generation),
            uptime_seconds: self.started.elapsed().as_secs(),
            worker: WorkerState {
                mode: "native".into(),
                key_epochs: vec![1],
                ..WorkerState::default()
            },
            ..State::default()
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> (StatusCode, Vec<u8>) {
        let ok = |value: Result<Vec<u8>, serde_json::Error>| match value {
            Ok(body) => (StatusCode::OK, body),
            Err(e) => (
                StatusCode::INTERNAL_SERVER_ERROR,
                e.to_string().into_bytes(),
            ),
        };
        match (request.method(), request.uri().path()) {
            (&Method::GET, "/v1/state") => ok(serde_json::to_vec(&self.state())),
            (&Method::GET, "/v1/snapshot") => match self.newest.borrow().as_ref() {
                Some(newest) => ok(serde_json::to_vec(&*newest.snapshot)),
                None => refused(StatusCode::NOT_FOUND, "no snapshot yet"),
            },
            (&Method::PUT, "/v1/snapshot") => {
                let Ok(body) = request.into_body().collect().await else {
                    return refused(StatusCode::BAD_REQUEST, "the body did not come");
                };
                match serde_json::from_slice::<Snapshot>(&body.to_bytes()) {
                    Ok(snapshot) => match self.offer(snapshot) {
                        StatusCode::OK => (StatusCode::OK, b"{}".to_vec()),
                        code => refused(code, "not newer"),
                    },
                    Err(e) => refused(StatusCode::UNPROCESSABLE_ENTITY, &e.to_string()),
                }
            }
            _ => refused(StatusCode::NOT_FOUND, "nothing here"),
        }
    }
}

fn refused(code: StatusCode, why: &str) -> (StatusCode, Vec<u8>) {
    (code, json!({ "error": why }).to_string().into_bytes())
}

async fn serve(listener: TcpListener, server: Arc<Server>, shared: Arc<Shared>) {
    // Connections end with the set, and that with the task.
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        connections.spawn(connection(stream, Arc::clone(&server), Arc::clone(&shared)));
    }
}

async fn connection(stream: TcpStream, server: Arc<Server>, shared: Arc<Shared>) {
    // As the real one: answers are small and whole.
    let _ = stream.set_nodelay(true);
    let Ok(stream) = server.accept(stream).await else {
        return;
    };
    let service = service_fn(|request| {
        let shared = Arc::clone(&shared);
        async move {
            let (code, body) = shared.answer(request).await;
            let mut response = Response::new(Full::new(Bytes::from(body)));
            *response.status_mut() = code;
            Ok::<_, Infallible>(response)
        }
    });
    // How it ends is the operator's to notice.
    let _ = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}
