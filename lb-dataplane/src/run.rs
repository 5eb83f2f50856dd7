//! `lb-dataplane run`: starts everything in order, applies changed configurations, ends in order.
//!
//! Owns the process's life. Nothing here is on the packet path.

use crate::{
    clock,
    commands::Notice,
    config::{Change, ConfigError, INTERFACE_AUTO, Loaded, Sources, Watcher, compare},
    control::{
        Control, Facts, host_ports,
        metrics::Metrics,
        serve::{self, Door, Gates, Listen},
        snapshot::{Refusal, Snapshots},
        socket,
    },
    cpu_quota::CpuQuota,
    ending::Ending,
    engines, health, logging, neighbour, preflight,
    steering::Steerer,
    worker::{Worker, WorkerFailure},
    workers::Workers,
};
use anyhow::{Context as _, bail};
use baton_api::{ControlAddress, WorkerState};
use baton_config::logging::Level;
use baton_engine::{Board, Engine, Settings};
use baton_packet::Mac;
use baton_tls::{Name, Server};
use baton_xsk::{Port, Steering, SteeringMaps};
use std::{
    hash::{BuildHasher, Hasher, RandomState},
    net::IpAddr,
    path::Path,
    sync::Arc,
    thread,
    time::Duration,
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{mpsc, oneshot},
    task::{JoinError, JoinSet},
    time::timeout,
};
use tracing::{error, info, warn};

/// How long the workers have to end their loops: they look at least every 500 ms.
const STOP_LIMIT: Duration = Duration::from_secs(3);

/// Runs until SIGTERM or SIGINT, and `grace` longer while there are connections.
///
/// # Errors
/// What kept it from starting or going on, in words for an admin.
pub fn run(file: &Path, grace: Duration) -> anyhow::Result<()> {
    let mut sources = Sources::default();
    let loaded = Loaded::read_noting(file, &mut sources)?;
    let level = logging::start(&loaded.config.log)?;
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the asynchronous runtime")?
        .block_on(serve(file, loaded, sources, level, grace))
}

async fn serve(
    file: &Path,
    mut loaded: Loaded,
    sources: Sources,
    level: Level,
    grace: Duration,
) -> anyhow::Result<()> {
    // Before anything is attached: a signal during the start must end in order too.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;

    // What changes later is compared with what the file says.
    let current = loaded.clone();
    if loaded.config.interface == INTERFACE_AUTO {
        loaded.config.interface = preflight::interface_name(neighbour::default_interface().await?)?;
    }
    let config = &loaded.config;
    let ifindex = preflight::interface_index(&config.interface)?;
    preflight::check_ports(config.ports)?;
    let of_interface = neighbour::interface_addresses(ifindex, &config.address).await?;
    let addresses = preflight::own_addresses(config, of_interface)?;
    // Again with the addresses that the interface turned out to have.
    config
        .check_snapshot(&config.snapshot(1), &addresses)
        .map_err(|error| ConfigError::at(file, error.path, error.problem))?;
    let (listener, socket) = match config.control {
        ControlAddress::Tcp(address) => (Some(serve::bind("control", address)?), None),
        ControlAddress::Unix(path) => (None, Some(socket::bind(path).await?)),
    };
    let tls = match (&config.control_tls, loaded.tls.clone()) {
        (Some(tls), Some(material)) => {
            let server = Server::new(Name::Dataplane, Name::Operator, material)
                .context("`controlTls` cannot be used")?;
            let listener = serve::bind("controlTls.listen", tls.listen)?;
            Some((listener, Arc::new(server)))
        }
        _ => None,
    };
    let probes = match config.probes {
        Some(address) => Some(serve::bind("probes", address)?),
        None => None,
    };
    let (ports, maps) = open_ports(&loaded, &addresses)?;
    let (mode, mtu, mac) = (ports[0].mode(), ports[0].mtu(), Mac(ports[0].mac()));
    let steerer =
        Steerer::new(Box::new(maps), addresses.clone(), config.ports.range(), config.host_network);
    let quota = CpuQuota::find();
    let (workers, inboxes) = Workers::new(ports.len() as u32).context("cannot make an eventfd")?;
    let (asks, asked) = mpsc::channel(neighbour::ASKS_MAX);
    let network = Arc::new(neighbour::Health::default());
    let control = Arc::new(Control {
        snapshots: Snapshots::new(
            workers.clone(),
            config.clone(),
            addresses.clone(),
            host_ports::listening,
            steerer.clone(),
        ),
        metrics: Metrics::new(
            config,
            mode.label(),
            Arc::clone(&network),
            tls.as_ref().map(|(_, server)| Arc::clone(server)),
        )?,
        health: Arc::clone(&network),
        failures: Arc::default(),
        facts: Facts::new(
            WorkerState {
                interface: config.interface.clone(),
                mode: mode.label().to_owned(),
                workers: ports.len() as u32,
                addresses: addresses.clone(),
                ports: config.ports.range().into_inner(),
                key_epochs: Vec::new(),
            },
            loaded.key_epochs(),
        ),
        workers: workers.clone(),
        tls: tls.as_ref().map(|(_, server)| Arc::clone(server)),
        gates: Gates::default(),
    });
    control.metrics.keys_loaded();
    let mut ended = JoinSet::new();
    let settings = engines::settings(config, &addresses, ports.len() as u32);
    let seats = Board::seats(ports.len(), config.limits.backends);
    let each = ports.into_iter().zip(settings).zip(inboxes).zip(seats);
    for (at, (((mut port, settings), inbox), seat)) in each.enumerate() {
        port.allow_spinning(quota.allows_spinning());
        let engine = engine(&loaded, settings, &port)?;
        // One of them tells what is counted once.
        let failures = if at == 0 { steerer.failures() } else { Arc::default() };
        let packets = Worker::new(engine, port, inbox, asks.clone(), seat, failures);
        spawn(&mut ended, at, packets)?;
    }
    drop(asks);
    tokio::spawn(quota.watch(workers.clone()));
    let place = neighbour::Place { ifindex, mac, mtu, host: config.host_network };
    let frontends = steerer.ports();
    let followed = neighbour::run(place, workers.clone(), steerer, asked, Arc::clone(&network));
    let mut neighbours = tokio::spawn(followed);
    let checks = health::run(
        workers.clone(),
        network,
        Arc::clone(&control.failures),
        control.snapshots.follow(),
        config.ports.range(),
        frontends,
    );
    let mut checks = tokio::spawn(checks);
    if let Some(policies) = &config.policies {
        control
            .snapshots
            .take_file(policies.clone())
            .await
            .map_err(|refusal| explain(file, refusal))?;
    }
    let retried = Arc::clone(&control);
    tokio::spawn(async move { retried.snapshots.retry().await });
    let steered = Arc::clone(&control);
    tokio::spawn(async move { steered.snapshots.steer().await });
    if let Some(listener) = listener {
        offer(listener, &control, Door::Plain);
    }
    // The file goes when this function ends.
    let _socket = socket.map(|socket| {
        offer(socket.listener, &control, Door::Socket);
        socket.file
    });
    if let Some((listener, server)) = tls {
        offer(listener, &control, Door::Tls(server));
    }
    if let Some(listener) = probes {
        offer(listener, &control, Door::Probes);
    }
    if matches!(config.control, ControlAddress::Tcp(at) if !at.ip().is_loopback()) {
        warn!(
            control = %config.control,
            "whoever reaches this address may change what is served: set `control` to a unix socket or a loopback address and use `controlTls` and `probes`"
        );
    }
    info!(
        interface = config.interface,
        mode = mode.label(),
        workers = workers.count(),
        host_network = config.host_network,
        addresses = ?addresses,
        ports = %config.ports,
        control = %config.control,
        control_tls = config.control_tls.as_ref().map(|tls| tls.listen.to_string()),
        probes = config.probes.map(|at| at.to_string()),
        policies = if config.policies.is_some() { "from the file" } else { "pushed" },
        "serving"
    );

    let mut reloader = Reloader {
        file,
        watcher: watcher(sources),
        current,
        level,
        control,
        workers: workers.clone(),
    };
    let mut ending: Option<Ending> = None;
    loop {
        let control = Arc::clone(&reloader.control);
        tokio::select! {
            _ = terminate.recv() => {
                if grace.is_zero() || ending.is_some() {
                    break;
                }
                ending = Some(Ending::begin(&control, grace));
            }
            _ = interrupt.recv() => break,
            () = over(ending, &control) => break,
            _ = hangup.recv() => reloader.reload().await,
            () = reloader.changed() => reloader.reload().await,
            Some(end) = ended.join_next() => return failed(end),
            end = &mut checks => {
                let Err(error) = end;
                return Err(anyhow::Error::from(error).context("backends can no longer be checked"));
            }
            end = &mut neighbours => {
                let error = match end {
                    Ok(Err(error)) => error.into(),
                    Ok(Ok(())) => anyhow::anyhow!("it ended"),
                    Err(error) => error.into(),
                };
                return Err(error.context("routes and neighbours can no longer be followed"));
            }
        }
    }
    match reloader.control.left().await.map(|left| left.flows) {
        Some(0) => info!("ending: no connection is cut"),
        Some(cut) => {
            warn!(
                "ending: {cut} connections are cut; their clients are reset at their next segment"
            );
        }
        None => warn!("ending: connections are cut; their clients are reset at their next segment"),
    }
    // A worker may be gone already, which is as good.
    let _ = workers.tell(Notice::Stop).await;
    let all = async { while ended.join_next().await.is_some() {} };
    if timeout(STOP_LIMIT, all).await.is_err() {
        warn!("a packet worker did not end in time");
    }
    Ok(())
}

fn offer(listener: impl Listen, control: &Arc<Control>, door: Door) {
    tokio::spawn(serve::serve(listener, Arc::clone(control), door));
}

/// The end of an end that is under way; never, if none is.
async fn over(ending: Option<Ending>, control: &Control) {
    match ending {
        Some(ending) => ending.over(control).await,
        None => std::future::pending().await,
    }
}

/// A port for each worker, at least one.
fn open_ports(loaded: &Loaded, addresses: &[IpAddr]) -> anyhow::Result<(Vec<Port>, SteeringMaps)> {
    let config = &loaded.config;
    let rings = config.rings;
    let settings = baton_xsk::Config {
        mode: config.mode.into(),
        workers: config.workers.wanted(config.ports, cpus()),
        frames: rings.frames,
        rx_ring: rings.rx,
        tx_ring: rings.tx,
        batch: rings.batch,
        busy_poll_us: rings.busy_poll_us,
        host: config.host_network,
        ..baton_xsk::Config::new(&config.interface)
    };
    let steering = Steering {
        // Snapshots bring the frontends.
        frontends: Vec::new(),
        by_address: Vec::new(),
        addresses: addresses.to_vec(),
        ports: config.ports.range(),
        backends: config.host_network.then(Vec::new),
    };
    let (ports, maps) = Port::open(&settings, &steering)?;
    let first = ports.first().context("an interface was opened without a port")?;
    for (mode, why) in first.fallbacks() {
        warn!(mode = mode.label(), why, "this mode does not work here");
    }
    Ok((ports, maps))
}

/// CPUs that this process may use: its affinity and its control group's quota are respected.
fn cpus() -> u32 {
    thread::available_parallelism().map_or(1, |cpus| cpus.get().try_into().unwrap_or(1))
}

fn engine(loaded: &Loaded, settings: Settings, port: &Port) -> anyhow::Result<Engine> {
    let settings = Settings {
        mac: Mac(port.mac()),
        mtu: u16::try_from(port.mtu()).unwrap_or(u16::MAX),
        seed: random_number(),
        hash_keys: (random_number(), random_number()),
        ..settings
    };
    let mut engine = Engine::new(settings, clock::now())?;
    if loaded.config.host_network {
        engine.share_ports();
    }
    engine.set_keys(&loaded.engine_keys());
    Ok(engine)
}

/// The standard library's hash keys come from the kernel's random numbers.
fn random_number() -> u64 {
    RandomState::new().build_hasher().finish()
}

type Ended = Result<Result<(), WorkerFailure>, oneshot::error::RecvError>;

/// Starts a packet thread; `ended` gets how it ended, or an error if it panicked.
fn spawn(ended: &mut JoinSet<Ended>, at: usize, worker: Worker) -> anyhow::Result<()> {
    let (sender, receiver) = oneshot::channel();
    thread::Builder::new()
        .name(format!("packets-{at}"))
        .spawn(move || {
            // Nobody listens any more if the process is ending by itself.
            let _ = sender.send(worker.run());
        })
        .context("cannot start a packet thread")?;
    ended.spawn(receiver);
    Ok(())
}

fn failed(end: Result<Ended, JoinError>) -> anyhow::Result<()> {
    match end {
        Ok(Ok(Ok(()))) => Ok(()),
        Ok(Ok(Err(failure))) => Err(failure.into()),
        Ok(Err(_)) | Err(_) => {
            bail!("the packet thread panicked: this is a bug, please report what it printed")
        }
    }
}

fn watcher(sources: Sources) -> Option<Watcher> {
    Watcher::new(sources)
        .inspect_err(|error| {
            warn!(%error, "changed files are not noticed (fs.inotify limits?); SIGHUP still works");
        })
        .ok()
}

/// Applies changed configurations.
struct Reloader<'a> {
    file: &'a Path,
    watcher: Option<Watcher>,
    /// What is in force.
    current: Loaded,
    level: Level,
    control: Arc<Control>,
    workers: Workers,
}

impl Reloader<'_> {
    async fn changed(&mut self) {
        match &mut self.watcher {
            Some(watcher) => watcher.changed().await,
            None => std::future::pending().await,
        }
    }

    async fn reload(&mut self) {
        let mut sources = Sources::default();
        let read = Loaded::read_noting(self.file, &mut sources);
        let (result, problems) = match read {
            Ok(new) => {
                let change = compare(&self.current, &new);
                match self.apply(new, &change).await {
                    Ok(()) if change.is_nothing() => ("unchanged", Vec::new()),
                    Ok(()) => ("applied", restart_needed(&change)),
                    Err(error) => ("refused", vec![refused(&error)]),
                }
            }
            Err(error) => ("refused", vec![refused(&error.into())]),
        };
        for problem in &problems {
            warn!("{problem}");
        }
        self.follow(sources, result == "refused");
        if result == "applied" {
            info!(file = %self.file.display(), "configuration in force");
        }
        self.control.metrics.reloads.with_label_values(&[result]).inc();
        if let Ok(mut shown) = self.control.facts.config_problems.lock() {
            *shown = problems;
        }
    }

    /// Watches what was read. What a refused configuration names is watched beside what is in
    /// force.
    fn follow(&mut self, sources: Sources, refused: bool) {
        let Some(watcher) = &mut self.watcher else {
            return;
        };
        let watched = if refused { watcher.follow_too(sources) } else { watcher.follow(sources) };
        if let Err(error) = watched {
            error!(%error, "a folder of the configuration cannot be watched");
        }
    }

    async fn use_keys(&self, loaded: &Loaded) -> anyhow::Result<()> {
        self.workers.tell(Notice::Keys(loaded.engine_keys())).await?;
        if let Ok(mut shown) = self.control.facts.key_epochs.lock() {
            *shown = loaded.key_epochs();
        }
        self.control.metrics.keys_loaded();
        Ok(())
    }

    /// New connections of the operator see the new certificate; open ones stay.
    fn use_tls(&self, new: &mut Loaded) -> anyhow::Result<()> {
        let (Some(server), Some(material)) = (&self.control.tls, &new.tls) else {
            // Whether there is TLS at all changes with a restart only.
            new.tls.clone_from(&self.current.tls);
            return Ok(());
        };
        if server.replace(material.clone())? {
            info!("the certificate of the control API is exchanged");
        }
        Ok(())
    }

    async fn apply(&mut self, mut new: Loaded, change: &Change) -> anyhow::Result<()> {
        if change.keys {
            self.use_keys(&new).await?;
        }
        let snapshots = &self.control.snapshots;
        match &new.config.policies {
            // What is in force stays until the operator pushes.
            None => snapshots.leave_to_pushes().await,
            // New keys make a new generation too where the file is the source, so that whoever
            // changed it sees that it is in force.
            Some(policies) if change.policies || change.keys => {
                let policies = policies.clone();
                if let Err(refusal) = snapshots.take_file(policies).await {
                    if change.keys {
                        self.use_keys(&self.current).await?;
                    }
                    return Err(explain(self.file, refusal));
                }
            }
            Some(_) => {}
        }
        self.use_tls(&mut new)?;
        if change.log_level {
            self.level.set(new.config.log.filter()?)?;
        }
        new.config.keep_fixed(&self.current.config);
        self.current = new;
        Ok(())
    }
}

/// Finds the line of a field that only the running dataplane could refuse.
fn explain(file: &Path, refusal: Refusal) -> anyhow::Error {
    match refusal {
        Refusal::Invalid(error) => ConfigError::at(file, error.path, error.problem).into(),
        other => other.into(),
    }
}

fn refused(error: &anyhow::Error) -> String {
    format!("the changed configuration is refused, the last good one stays: {error:#}")
}

fn restart_needed(change: &Change) -> Vec<String> {
    if change.restart.is_empty() {
        return Vec::new();
    }
    vec![format!(
        "these fields changed but hold only after a restart: {}",
        change.restart.join(", ")
    )]
}
