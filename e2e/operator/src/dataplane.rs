//! A dataplane as the operator sees it: a control API that takes snapshots by the real one's rules
//! and says which it has. It forwards nothing. A test says how long it takes over a push, and which
//! flows and keys it reports.
//!
//! On loopback it speaks plain HTTP, elsewhere mutual TLS with the certificate that the operator
//! has issued for dataplanes.

use crate::{
    control::{Answers, Said, refused, said, serve},
    objects::{Load, figures},
};
use anyhow::{Context, Result};
use baton_api::{Policy, PolicyState, Snapshot, State, WorkerState};
use baton_tls::{Material, Name, Server};
use http_body_util::BodyExt;
use hyper::{
    Method, Request, StatusCode,
    body::{Bytes, Incoming},
};
use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::{
    net::TcpListener,
    sync::watch,
    task::JoinHandle,
    time::{sleep, timeout},
};

/// Of a busy one's policies, one in so many has traffic.
const BUSY_EACH: usize = 10;

/// A snapshot that came, and when.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// When it was in force.
    pub at: Instant,
    /// What it says.
    pub snapshot: Arc<Snapshot>,
    /// Its bytes behind the generation.
    pub content: Bytes,
}

/// What a dataplane does with pushes that come from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushes {
    /// Takes and answers them at once.
    Prompt,
    /// Takes and answers them after this long.
    Late(Duration),
    /// Does neither before [`Dataplane::release`]. A push whose sender has gone meanwhile is taken
    /// then too, as far as the rules let.
    Held,
}

/// A push that came, whatever became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Push {
    /// When all of it was there.
    pub received: Instant,
    /// Its number.
    pub generation: u64,
    /// What was answered; nothing as long as it is held.
    pub answered: Option<StatusCode>,
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
    pace: Mutex<Pushes>,
    /// How often pushes that were held have been let go.
    releases: watch::Sender<u64>,
    /// How often it was asked for its state.
    looks: watch::Sender<u64>,
    pushes: watch::Sender<Vec<Push>>,
    /// Every arrival, if a test wants them.
    history: Mutex<Option<Vec<Arrival>>>,
    reported: Mutex<Reported>,
}

/// What it says of itself.
#[derive(Debug)]
struct Reported {
    policies: Vec<PolicyState>,
    /// Instead, figures of its own: all policies that it has, one in ten with traffic.
    busy: bool,
    key_epochs: Vec<u8>,
}

/// An address of this machine that is not loopback, where the operator insists on TLS.
pub fn own_address() -> Result<IpAddr> {
    // Connecting a UDP socket sends nothing; the kernel chooses the address that it would send
    // from.
    let socket = UdpSocket::bind(("0.0.0.0", 0)).context("making a socket")?;
    socket.connect(("192.0.2.1", 9)).context(
        "this machine has no address but loopback: expected one, as of `ip address add 198.18.0.1/32 dev lo`",
    )?;
    Ok(socket.local_addr()?.ip())
}

impl Dataplane {
    /// Listens at `address` (port 0: any), with the certificate, key and authority of a Secret.
    pub async fn start(address: SocketAddr, material: Material) -> Result<Self> {
        let server = Server::new(Name::Dataplane, Name::Operator, material)?;
        Self::listen(address, Some(Arc::new(server))).await
    }

    /// Listens at an address of loopback, without TLS.
    pub async fn start_plain(address: SocketAddr) -> Result<Self> {
        Self::listen(address, None).await
    }

    async fn listen(address: SocketAddr, tls: Option<Arc<Server>>) -> Result<Self> {
        let listener = TcpListener::bind(address).await.with_context(|| address.to_string())?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            started: Instant::now(),
            newest: watch::Sender::new(None),
            pace: Mutex::new(Pushes::Prompt),
            releases: watch::Sender::new(0),
            looks: watch::Sender::new(0),
            pushes: watch::Sender::new(Vec::new()),
            history: Mutex::new(None),
            reported: Mutex::new(Reported {
                policies: Vec::new(),
                busy: false,
                key_epochs: vec![1],
            }),
        });
        let task = tokio::spawn(serve(listener, tls, Arc::clone(&shared)));
        Ok(Self { address, shared, task })
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
        let pushes = self.shared.pushes.borrow();
        let taken = pushes.iter().filter(|p| p.answered == Some(StatusCode::OK));
        taken.map(|p| p.generation).collect()
    }

    /// All pushes, in the order in which they came.
    #[must_use]
    pub fn pushes(&self) -> Vec<Push> {
        self.shared.pushes.borrow().clone()
    }

    /// It does this with pushes that come from now on.
    pub fn set_pushes(&self, pace: Pushes) {
        *self.shared.pace() = pace;
    }

    /// Takes and answers the pushes that are held, as far as the rules let.
    pub fn release(&self) {
        self.shared.releases.send_modify(|releases| *releases += 1);
    }

    /// Waits until its state was asked for so many times more.
    ///
    /// # Errors
    /// At the deadline.
    pub async fn wait_looks(&self, deadline: Duration, more: u64) -> Result<()> {
        let mut looks = self.shared.looks.subscribe();
        let wanted = *looks.borrow() + more;
        let waited = timeout(deadline, looks.wait_for(|looks| *looks >= wanted)).await;
        waited.with_context(|| format!("{} is not asked for its state", self.address))??;
        Ok(())
    }

    /// From now on every snapshot that comes is kept for [`Dataplane::history`].
    pub fn remember(&self) {
        self.shared.history().get_or_insert_default();
    }

    /// What came since [`Dataplane::remember`].
    #[must_use]
    pub fn history(&self) -> Vec<Arrival> {
        self.shared.history().clone().unwrap_or_default()
    }

    /// The figures of its policies, from the next look on.
    pub fn set_figures(&self, policies: Vec<PolicyState>) {
        self.shared.reported().policies = policies;
    }

    /// From the next look on it reports all policies that it has, of which one in ten has other
    /// figures at each look.
    pub fn be_busy(&self) {
        self.shared.reported().busy = true;
    }

    /// The epochs of its adoption keys, the one that it signs with first, from the next look on.
    pub fn set_key_epochs(&self, epochs: &[u8]) {
        self.shared.reported().key_epochs = epochs.to_vec();
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
                let newest =
                    self.newest().map(|a| (a.snapshot.generation, a.snapshot.policies.len()));
                anyhow::bail!(
                    "{}: no such snapshot within {deadline:?}; the newest (generation, policies): {newest:?}",
                    self.address
                )
            }
        }
    }

    /// Waits until pushes of which `wanted` holds have come, whatever became of them.
    ///
    /// # Errors
    /// With those that have, at the deadline.
    pub async fn wait_pushes(
        &self,
        deadline: Duration,
        mut wanted: impl FnMut(&[Push]) -> bool,
    ) -> Result<Vec<Push>> {
        let mut pushes = self.shared.pushes.subscribe();
        match timeout(deadline, pushes.wait_for(|pushes| wanted(pushes))).await {
            Ok(found) => Ok(found?.clone()),
            Err(_) => anyhow::bail!(
                "{}: no such pushes within {deadline:?}: {:?}",
                self.address,
                self.pushes()
            ),
        }
    }
}

impl Drop for Dataplane {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    fn history(&self) -> MutexGuard<'_, Option<Vec<Arrival>>> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pace(&self) -> MutexGuard<'_, Pushes> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reported(&self) -> MutexGuard<'_, Reported> {
        self.reported.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// By the rules of the real one: the same again is no error, what is older is.
    fn offer(&self, snapshot: Snapshot, body: &Bytes) -> StatusCode {
        let begin = body.windows(POLICIES.len()).position(|window| window == POLICIES);
        let arrival = Arrival {
            at: Instant::now(),
            snapshot: Arc::new(snapshot),
            content: body.slice(begin.unwrap_or_default()..),
        };
        let mut code = StatusCode::OK;
        self.newest.send_if_modified(|newest| {
            if let Some(in_force) = newest {
                if in_force.snapshot == arrival.snapshot {
                    return false;
                }
                if arrival.snapshot.generation <= in_force.snapshot.generation {
                    code = StatusCode::CONFLICT;
                    return false;
                }
            }
            if let Some(history) = &mut *self.history() {
                history.push(arrival.clone());
            }
            *newest = Some(arrival);
            true
        });
        code
    }

    /// Takes a push at its pace. A task of its own, which goes on if the sender goes.
    async fn put(self: Arc<Self>, body: Bytes) -> Said {
        let snapshot: Snapshot = match serde_json::from_slice(&body) {
            Ok(snapshot) => snapshot,
            Err(e) => return refused(StatusCode::UNPROCESSABLE_ENTITY, &e.to_string()),
        };
        if let Err(e) = snapshot.validate() {
            return refused(StatusCode::UNPROCESSABLE_ENTITY, &e.to_string());
        }
        let mut place = 0;
        self.pushes.send_modify(|pushes| {
            place = pushes.len();
            pushes.push(Push {
                received: Instant::now(),
                generation: snapshot.generation,
                answered: None,
            });
        });
        let mut releases = self.releases.subscribe();
        let pace = *self.pace();
        match pace {
            Pushes::Prompt => {}
            Pushes::Late(after) => sleep(after).await,
            // An error means that the dataplane is gone, and with it this task.
            Pushes::Held => drop(releases.changed().await),
        }
        let code = self.offer(snapshot, &body);
        self.pushes.send_modify(|pushes| pushes[place].answered = Some(code));
        match code {
            StatusCode::OK => (code, b"{}".to_vec()),
            code => refused(code, "not newer"),
        }
    }

    /// What a busy one counts.
    fn figures(&self, snapshot: &Snapshot) -> Vec<PolicyState> {
        let looks = *self.looks.borrow();
        let busy = Load { flows: looks % 100, outstanding: looks % 3, ..Load::default() };
        let of = |(at, policy): (usize, &Policy)| {
            let backends = policy.backends.iter().filter(|_| at % BUSY_EACH == 0);
            let loads: Vec<_> = backends.map(|b| (b.name.as_str(), busy)).collect();
            figures(policy, &loads)
        };
        snapshot.policies.iter().enumerate().map(of).collect()
    }

    fn state(&self) -> State {
        let newest = self.newest.borrow().as_ref().map(|a| Arc::clone(&a.snapshot));
        let reported = self.reported();
        let policies = match &newest {
            Some(snapshot) if reported.busy => self.figures(snapshot),
            _ => reported.policies.clone(),
        };
        State {
            version: "test".into(),
            generation: newest.map_or(0, |snapshot| snapshot.generation),
            uptime_seconds: self.started.elapsed().as_secs(),
            worker: WorkerState {
                mode: "native".into(),
                key_epochs: reported.key_epochs.clone(),
                ..WorkerState::default()
            },
            policies,
            ..State::default()
        }
    }
}

/// What stands behind the generation of a snapshot.
const POLICIES: &[u8] = b"\"policies\"";

impl Answers for Shared {
    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Said {
        match (request.method(), request.uri().path()) {
            (&Method::GET, "/v1/state") => {
                self.looks.send_modify(|looks| *looks += 1);
                said(&self.state())
            }
            (&Method::GET, "/v1/snapshot") => match self.newest.borrow().as_ref() {
                Some(newest) => said(&*newest.snapshot),
                None => refused(StatusCode::NOT_FOUND, "no snapshot yet"),
            },
            (&Method::PUT, "/v1/snapshot") => {
                let Ok(body) = request.into_body().collect().await else {
                    return refused(StatusCode::BAD_REQUEST, "the body did not come");
                };
                match tokio::spawn(self.put(body.to_bytes())).await {
                    Ok(said) => said,
                    Err(e) => refused(StatusCode::INTERNAL_SERVER_ERROR, &e.to_string()),
                }
            }
            _ => refused(StatusCode::NOT_FOUND, "nothing here"),
        }
    }
}
