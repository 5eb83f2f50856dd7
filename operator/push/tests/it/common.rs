//! A made-up dataplane: the control API over real sockets, with the rules for generations, and
//! faults on demand.

use baton_api::{NodeKeys, Policy, Snapshot, State};
use baton_push::{
    keys::Stored,
    push::{
        Connect, Epoch, Figures, Metrics, Outcome, PolicySet, Pusher, Report, Settings, Target,
        TargetKind, Version,
    },
};
use http_body_util::{BodyExt, Full};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use std::{
    collections::BTreeMap,
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    sync::{Semaphore, mpsc, watch},
    task::JoinSet,
    time::timeout,
};

/// Nothing here takes so long; what does not happen by then is an error.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// What the tests change and look at.
#[derive(Default)]
pub struct Inner {
    pub snapshot: Option<Snapshot>,
    pub puts: Vec<(u64, Vec<String>)>,
    pub reads: usize,
    pub connections: usize,
    pub uptime_seconds: u64,
    pub key_epochs: Vec<u8>,
    /// It is a shim that has its keys from the operator.
    pub takes_keys: bool,
    /// What it was sent.
    pub keys: Vec<NodeKeys>,
    /// A policy of this name is refused.
    pub refuses: Option<String>,
    /// The connection ends behind each answer, with no word of it in the answer.
    pub closes: bool,
}

#[derive(Clone)]
pub struct Fake {
    pub address: SocketAddr,
    inner: Arc<Mutex<Inner>>,
    /// One permit lets one push be answered; many are there unless a test takes them.
    pub gate: Arc<Semaphore>,
    /// Ends all connections, and those to come, while it is true.
    down: watch::Sender<bool>,
}

/// What a server does with an accepted connection before HTTP.
pub type Accept = Arc<dyn Fn(tokio::net::TcpStream) -> AcceptFuture + Send + Sync>;
type AcceptFuture = std::pin::Pin<Box<dyn Future<Output = Option<Box<dyn Both>>> + Send>>;
pub trait Both: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Both for T {}

impl Fake {
    pub async fn start() -> Self {
        let plain: Accept =
            Arc::new(|stream| Box::pin(async { Some(Box::new(stream) as Box<dyn Both>) }));
        Self::start_with(plain).await
    }

    pub async fn start_with(accept: Accept) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let fake = Self {
            address: listener.local_addr().expect("an address"),
            inner: Arc::default(),
            gate: Arc::new(Semaphore::new(1_000_000)),
            down: watch::Sender::new(false),
        };
        fake.inner().key_epochs = vec![1];
        tokio::spawn(fake.clone().serve(listener, accept));
        fake
    }

    async fn serve(self, listener: TcpListener, accept: Accept) {
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.expect("a connection");
            let (fake, accept) = (self.clone(), Arc::clone(&accept));
            connections.spawn(async move {
                if *fake.down.borrow() {
                    return;
                }
                fake.inner().connections += 1;
                let Some(stream) = accept(stream).await else {
                    return;
                };
                let mut down = fake.down.subscribe();
                let answered = Arc::new(Semaphore::new(0));
                let service = service_fn(|request| {
                    let fake = fake.clone();
                    let answered = Arc::clone(&answered);
                    async move {
                        let reply = fake.answer(request).await;
                        answered.add_permits(1);
                        Ok::<_, Infallible>(reply)
                    }
                });
                let connection =
                    http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                tokio::pin!(connection);
                let closes = async {
                    if !fake.inner().closes {
                        std::future::pending::<()>().await;
                    }
                    answered.acquire().await.expect("open").forget();
                };
                tokio::select! {
                    _ = &mut connection => return,
                    _ = down.wait_for(|down| *down) => return,
                    () = closes => {}
                }
                // What was answered goes out, then the connection ends.
                connection.as_mut().graceful_shutdown();
                let _ended = connection.await;
            });
        }
    }

    /// The process ends and another one begins.
    pub fn restart(&self) {
        self.down.send_replace(true);
        {
            let mut inner = self.inner();
            inner.snapshot = None;
            inner.uptime_seconds = 0;
        }
        self.down.send_replace(false);
    }

    pub fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("inner")
    }

    pub fn set_down(&self, down: bool) {
        self.down.send_replace(down);
    }

    pub fn puts(&self) -> Vec<(u64, Vec<String>)> {
        self.inner().puts.clone()
    }

    pub fn generation(&self) -> u64 {
        let inner = self.inner();
        inner.snapshot.as_ref().map_or(0, |s| s.generation)
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let path = request.uri().path().to_owned();
        match (request.method(), path.as_str()) {
            (&Method::GET, "/v1/snapshot") => {
                let mut inner = self.inner();
                inner.reads += 1;
                match &inner.snapshot {
                    Some(snapshot) => json(200, serde_json::to_vec(snapshot).expect("written")),
                    None => {
                        json(404, br#"{"error":"none yet","field":null,"expected":null}"#.to_vec())
                    }
                }
            }
            (&Method::GET, "/v1/state") => self.state(),
            (&Method::PUT, "/v1/keys") => {
                let body = request.into_body().collect().await.expect("a body");
                let keys: NodeKeys = serde_json::from_slice(&body.to_bytes()).expect("keys");
                let mut inner = self.inner();
                inner.key_epochs = keys.keys.iter().map(|key| key.epoch % 16).collect();
                inner.keys.push(keys);
                drop(inner);
                self.state()
            }
            (&Method::PUT, "/v1/snapshot") => {
                let body = match request.into_body().collect().await {
                    Ok(body) => body.to_bytes(),
                    Err(error) => return json(400, error.to_string().into_bytes()),
                };
                self.gate.acquire().await.expect("open").forget();
                self.put(&body)
            }
            _ => json(404, b"nothing".to_vec()),
        }
    }

    fn state(&self) -> Response<Full<Bytes>> {
        let inner = self.inner();
        let mut state = State {
            generation: inner.snapshot.as_ref().map_or(0, |s| s.generation),
            uptime_seconds: inner.uptime_seconds,
            ..State::default()
        };
        state.worker.key_epochs.clone_from(&inner.key_epochs);
        let mut value = serde_json::to_value(&state).expect("written");
        value["problems"] = serde_json::json!(["gateway"]);
        // A shim has it at another place.
        value["keyEpochs"] = serde_json::json!(inner.key_epochs);
        value["takesKeys"] = serde_json::json!(inner.takes_keys);
        json(200, serde_json::to_vec(&value).expect("written"))
    }

    fn put(&self, body: &[u8]) -> Response<Full<Bytes>> {
        let snapshot: Snapshot = serde_json::from_slice(body).expect("a snapshot");
        let mut inner = self.inner();
        let names: Vec<String> = snapshot.policies.iter().map(|p| p.name.clone()).collect();
        inner.puts.push((snapshot.generation, names.clone()));
        if let Some(at) = inner.refuses.as_ref().and_then(|bad| names.iter().position(|n| n == bad))
        {
            let error = serde_json::json!({
                "error": "port 80 is one of the legs' ports: expected another",
                "field": format!("policies[{at}].frontends[0]"),
                "expected": "another",
            });
            return json(422, error.to_string().into_bytes());
        }
        if let Some(current) = &inner.snapshot {
            if *current == snapshot {
                return json(200, br#"{"generation":1,"unchanged":true}"#.to_vec());
            }
            if snapshot.generation <= current.generation {
                return json(409, br#"{"error":"stale"}"#.to_vec());
            }
        }
        inner.snapshot = Some(snapshot);
        json(200, br#"{"generation":1,"unchanged":false}"#.to_vec())
    }
}

fn json(status: u16, body: Vec<u8>) -> Response<Full<Bytes>> {
    let mut reply = Response::new(Full::new(body.into()));
    *reply.status_mut() = StatusCode::from_u16(status).expect("a status");
    reply
}

/// A pusher with its reports.
pub struct Operator {
    pub pusher: Pusher,
    pub reports: mpsc::Receiver<Report>,
    pub metrics: Arc<Metrics>,
    /// The adoption keys that are stored.
    pub keys: watch::Sender<Option<Arc<Stored>>>,
}

/// Quick about everything that a test would wait for.
pub fn quick() -> Settings {
    Settings {
        poll_interval: Duration::from_millis(20),
        shim_poll_interval: Duration::from_millis(20),
        backoff_min: Duration::from_millis(2),
        backoff_max: Duration::from_millis(20),
        ..Settings::default()
    }
}

impl Operator {
    pub fn new(epoch: u32, settings: Settings, connect: Arc<dyn Connect>) -> Self {
        let metrics = Arc::new(Metrics::default());
        let rng = fastrand::Rng::with_seed(7);
        let keys = watch::Sender::new(None);
        let (pusher, reports) = Pusher::new(
            settings,
            Epoch(epoch),
            connect,
            Arc::new(()),
            keys.subscribe(),
            Arc::clone(&metrics),
            rng,
        );
        Self { pusher, reports, metrics, keys }
    }

    pub fn figures(&self) -> Figures {
        self.metrics.figures()
    }

    /// These are the dataplanes of class `c`.
    pub fn targets(&mut self, fakes: &[(&str, &Fake)]) {
        self.pusher.set_targets(&targets(fakes)).expect("few");
    }

    /// Policies of these names are what class `c` has.
    pub fn publish(&mut self, names: &[&str]) -> Version {
        self.pusher.publish("c", &policies(names)).expect("written")
    }

    /// Waits until all was looked at more often than `times` times.
    pub async fn looks(&self, times: u64) {
        let before = self.figures().polls;
        until("looks", || self.figures().polls > before + times).await;
    }

    /// Waits until a dataplane's state is reported.
    pub async fn state(&mut self) {
        self.report("a state", |r| matches!(r.result, Outcome::State { .. }).then_some(())).await;
    }

    /// The next report for which `wanted` gives something.
    pub async fn report<T>(
        &mut self,
        what: &str,
        mut wanted: impl FnMut(&Report) -> Option<T>,
    ) -> T {
        let found = async {
            loop {
                let report = self.reports.recv().await.expect("the pusher lives");
                if let Some(found) = wanted(&report) {
                    return found;
                }
            }
        };
        timeout(DEADLINE, found).await.unwrap_or_else(|_| panic!("no report: {what}"))
    }

    /// The generation with which `target` acknowledges `version` or a later one, and whether it was
    /// pushed.
    pub async fn acknowledged(&mut self, target: &str, version: Version) -> (u64, bool) {
        self.report(&format!("{target} at {version:?}"), |report| match report.result {
            Outcome::Acknowledged { generation, version: v, pushed, .. }
                if &*report.target == target && v >= version =>
            {
                Some((generation, pushed))
            }
            _ => None,
        })
        .await
    }
}

fn targets(fakes: &[(&str, &Fake)]) -> BTreeMap<String, Target> {
    let target = |fake: &Fake| Target {
        address: fake.address,
        kind: TargetKind::Dataplane { class: "c".to_owned() },
    };
    fakes.iter().map(|(name, fake)| ((*name).to_owned(), target(fake))).collect()
}

pub fn policies(names: &[&str]) -> PolicySet {
    let policy = |name: &&str| {
        let text = format!(
            r#"{{"name":"{name}","frontends":["0.0.0.0:80"],"backends":[{{"name":"b","endpoint":"10.0.0.1:80"}}]}}"#
        );
        let policy: Policy = serde_json::from_str(&text).expect("a policy");
        ((*name).to_owned(), Arc::new(policy))
    };
    Arc::new(names.iter().map(policy).collect())
}

/// Waits until something is so.
pub async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let looked = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(DEADLINE, looked).await.unwrap_or_else(|_| panic!("not within {DEADLINE:?}: {what}"));
}
