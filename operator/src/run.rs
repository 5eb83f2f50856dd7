//! `run`: starts everything in order and ends it in order.
//!
//! Owns the process's life. What the parts do is theirs.

use crate::{
    args::{Kubernetes, Run, Source},
    connect::Connector,
    core::Core,
    fleet::{Fleet, ShimPods},
    health::Health,
    http,
    kind::Kind,
    leader::{self, Leadership},
    ledger::Ledger,
    metrics::Metrics,
    notice::Notice,
    outbox::Outbox,
    owner,
    peers::Peers,
    push_metrics::PushFigures,
    secrets::{Keeper, store::Store},
    shutdown::{Shutdown, shutdown},
    source::{self, LIMIT_QUEUE, Sink},
    state_dir::StateDir,
    telemetry,
    translate::Translator,
    writer,
};
use anyhow::{Context as _, bail};
use baton_config::logging::Style;
use baton_index::Index;
use baton_push::{
    keys::Stored,
    push::{Metrics as PushMetrics, Settings},
};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use prometheus::IntCounterVec;
use std::{io::IsTerminal, path::Path, sync::Arc, time::Duration};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{
        mpsc::{Receiver, channel},
        oneshot, watch,
    },
    task::{JoinError, JoinHandle},
    time::timeout,
};
use tracing::{info, warn};

/// Threads of the runtime: the fold may take one for a while, the Lease is renewed on the other.
const THREADS: usize = 2;
/// From the signal to the end of everything. Kubernetes gives 30 s.
const END_LIMIT: Duration = Duration::from_secs(12);
/// More than a Lease lasts.
const LEASE_ROOM: Duration = Duration::from_secs(5);
/// To connect to the API server, and for it to begin to answer. Watches then last as long as they
/// do.
const API_CONNECT: Duration = Duration::from_secs(5);

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// What kept it from starting or going on, in words for an admin.
pub fn run(run: Run) -> anyhow::Result<()> {
    let style =
        Style { format: run.log.format, colours: std::io::stderr().is_terminal(), modules: false };
    let identity = match &run.source {
        Source::Kubernetes(kubernetes) => kubernetes.identity.clone(),
        Source::Directory { .. } => "directory".to_owned(),
    };
    let level = run.log.level.clone();
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .enable_all()
        .build()
        .context("cannot start the asynchronous runtime")?
        .block_on(async {
            let export = telemetry::start(style, level, run.spans.as_ref(), &identity)?;
            let ended = serve(run, export.as_ref().map(telemetry::Export::figures)).await;
            if let Some(export) = export {
                export.end().await;
            }
            ended
        })
}

/// What all ways of running have.
struct Parts {
    metrics: Metrics,
    health: Arc<Health>,
    ledger: Arc<Ledger>,
    outbox: Arc<Outbox>,
    events: Receiver<Notice>,
    connector: Arc<Connector>,
    peers: Arc<Peers>,
    live_keys: Arc<watch::Sender<Option<Arc<Stored>>>>,
    key_rest: Duration,
    sink: Sink,
    core: Core,
    leadership: watch::Sender<Leadership>,
}

async fn serve(run: Run, spans: Option<IntCounterVec>) -> anyhow::Result<()> {
    // Before anything else: a signal during the start must end in order too.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (trigger, ended) = shutdown();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        info!("ending; dataplanes go on with what they have");
        trigger.pull();
    });
    let shims = ShimPods {
        namespace: match &run.source {
            Source::Kubernetes(kubernetes) => Some(kubernetes.namespace.clone()),
            Source::Directory { .. } => None,
        },
        selector: run.shim_selector.clone(),
        port: run.shim_port,
    };
    let (index, overtaken_wait) = match &run.source {
        // There is no election, so nobody can be in the way.
        Source::Directory { .. } => (Index::of_files(), Duration::ZERO),
        // Longer than a Lease lasts: whoever still leads then is the leader.
        Source::Kubernetes(kubernetes) => (Index::new(), kubernetes.lease + LEASE_ROOM),
    };
    let settings = Settings { overtaken_wait, ..Settings::default() };
    let listener = http::bind(run.listen)?;
    let parts = parts(index, settings, shims, run.key_rest, spans)?;
    let (metrics, health) = (parts.metrics.clone(), Arc::clone(&parts.health));
    tokio::spawn(http::serve(listener, metrics, health));
    match run.source {
        Source::Directory { from, state } => {
            info!(listen = %run.listen, from_dir = %from.display(), state_dir = %state.display(), "running");
            directory(parts, &from, &state, ended).await
        }
        Source::Kubernetes(kubernetes) => {
            info!(
                listen = %run.listen,
                namespace = kubernetes.namespace,
                identity = kubernetes.identity,
                "running"
            );
            cluster(parts, &kubernetes, ended).await
        }
    }
}

fn parts(
    index: Index,
    settings: Settings,
    shims: ShimPods,
    key_rest: Duration,
    spans: Option<IntCounterVec>,
) -> anyhow::Result<Parts> {
    let metrics = Metrics::new().context("figures cannot be registered")?;
    if let Some(spans) = spans {
        metrics.add(spans).context("figures of spans cannot be registered")?;
    }
    let health = Arc::new(Health::new(&Kind::ALL.map(Kind::as_str)));
    let ledger = Arc::new(Ledger::default());
    let (outbox, events) = Outbox::new(Arc::clone(&ledger), metrics.clone());
    let outbox = Arc::new(outbox);
    let connector = Arc::new(Connector::default());
    let push_metrics = Arc::new(PushMetrics::default());
    metrics
        .add(PushFigures::new(Arc::clone(&push_metrics)))
        .context("figures of pushes cannot be registered")?;
    let (messages, received) = channel(LIMIT_QUEUE);
    let (leadership, led) = watch::channel(Leadership::Standby);
    let connect: Arc<Connector> = Arc::clone(&connector);
    let peers = Arc::new(Peers::default());
    let live_keys = Arc::new(watch::Sender::new(None));
    let translator = Arc::new(Translator::new());
    let core = Core {
        index,
        messages: received,
        leadership: led,
        fleet: Fleet::new(
            connect,
            settings,
            push_metrics,
            Arc::clone(&peers),
            live_keys.subscribe(),
            translator.texts(),
            shims,
        ),
        outbox: Arc::clone(&outbox),
        health: Arc::clone(&health),
        metrics: metrics.clone(),
        unsynced: Kind::ALL.into(),
        taken: 0,
    };
    let sink = Sink {
        messages,
        translator,
        ledger: Arc::clone(&ledger),
        health: Arc::clone(&health),
        metrics: metrics.clone(),
    };
    Ok(Parts {
        metrics,
        health,
        ledger,
        outbox,
        events,
        connector,
        peers,
        live_keys,
        key_rest,
        sink,
        core,
        leadership,
    })
}

impl Parts {
    fn keeper(&self, store: Store) -> Keeper {
        Keeper {
            store,
            connector: Arc::clone(&self.connector),
            peers: Arc::clone(&self.peers),
            live_keys: Arc::clone(&self.live_keys),
            key_rest: self.key_rest,
            outbox: Arc::clone(&self.outbox),
            leadership: self.leadership.subscribe(),
            metrics: self.metrics.clone(),
        }
    }
}

async fn directory(
    parts: Parts,
    from: &Path,
    state: &Path,
    mut ended: Shutdown,
) -> anyhow::Result<()> {
    let state = Arc::new(StateDir::open(state)?);
    let epoch = state.next_epoch()?;
    let keeper = parts.keeper(Store::Directory(Arc::clone(&state)));
    let mut core = tokio::spawn(parts.core.run(ended.clone()));
    let source = source::directory::run(from.to_owned(), parts.sink);
    let mut source = tokio::spawn(source);
    let writer = writer::files::Files {
        state,
        outbox: parts.outbox,
        events: parts.events,
        ledger: parts.ledger,
        metrics: parts.metrics,
    };
    let mut writer = tokio::spawn(writer.run(ended.clone()));
    // Whoever holds the directory's lock leads.
    parts.leadership.send_replace(Leadership::Leading { epoch });
    let mut keeper = tokio::spawn(keeper.run());
    tokio::select! {
        // First: the core ends by the same signal, which is no bug then.
        biased;
        () = ended.wait() => {}
        end = &mut source => {
            end.context("the source ended by a bug")??;
            bail!("the source ended");
        }
        end = &mut core => return over("the core", end),
        end = &mut writer => return over("the writer of statuses", end),
        end = &mut keeper => return over("the keeper of keys and certificates", end),
    }
    finish(core).await;
    Ok(())
}

async fn cluster(parts: Parts, settings: &Kubernetes, mut ended: Shutdown) -> anyhow::Result<()> {
    let client = client(settings.kubeconfig.as_deref()).await?;
    let namespace = &settings.namespace;
    let owner = if settings.owned_by_account {
        tokio::select! {
            () = ended.wait() => return Ok(()),
            owner = owner::find(&client, namespace) => owner,
        }
    } else {
        None
    };
    let store = Store::kubernetes(client.clone(), namespace, &settings.identity, owner.clone());
    let keeper = parts.keeper(store);
    let led = parts.leadership.subscribe();
    let mut core = tokio::spawn(parts.core.run(ended.clone()));
    let mut source = tokio::spawn(source::kubernetes::run(client.clone(), parts.sink));
    let writer = writer::kubernetes::Writer {
        client: client.clone(),
        outbox: parts.outbox,
        ledger: parts.ledger,
        metrics: parts.metrics.clone(),
        told: Arc::default(),
    };
    let mut writer = tokio::spawn(writer.run(led.clone()));
    let identity = settings.identity.clone();
    let events = writer::events::run(client.clone(), identity, parts.events, led, parts.metrics);
    let mut events = tokio::spawn(events);
    let mut keeper = tokio::spawn(keeper.run());
    let election = leader::Settings {
        namespace: settings.namespace.clone(),
        identity: settings.identity.clone(),
        duration: settings.lease,
        owner,
    };
    let (release, released) = oneshot::channel();
    let mut election = tokio::spawn(leader::run(client, election, parts.leadership, released));
    tokio::select! {
        // First: the core ends by the same signal, which is no bug then.
        biased;
        () = ended.wait() => {}
        end = &mut source => return over("the source", end),
        end = &mut core => return over("the core", end),
        end = &mut writer => return over("the writer of statuses", end),
        end = &mut events => return over("the writer of Events", end),
        end = &mut keeper => return over("the keeper of keys and certificates", end),
        end = &mut election => return over("the election", end),
    }
    // Nothing is written any more, then nothing is pushed any more, then another process may lead.
    writer.abort();
    events.abort();
    keeper.abort();
    finish(core).await;
    // The election is there: nothing else ends it.
    let _ = release.send(());
    if timeout(END_LIMIT, election).await.is_err() {
        warn!("the Lease could not be given back in time");
    }
    Ok(())
}

/// A client of the API server that the usual places name, or this kubeconfig.
///
/// # Errors
/// None is named, or the kubeconfig makes no sense.
pub async fn client(kubeconfig: Option<&Path>) -> anyhow::Result<Client> {
    let mut config = match kubeconfig {
        Some(file) => {
            let read = Kubeconfig::read_from(file);
            let read = read.with_context(|| format!("--kubeconfig {}", file.display()))?;
            let options = KubeConfigOptions::default();
            Config::from_custom_kubeconfig(read, &options)
                .await
                .with_context(|| format!("--kubeconfig {}", file.display()))?
        }
        None => Config::infer().await.context(
            "no API server is known: run in a Pod with a ServiceAccount, set KUBECONFIG, give --kubeconfig, or use \
             --from-dir",
        )?,
    };
    config.connect_timeout = Some(API_CONNECT);
    Client::try_from(config).context("no client of the API server can be made")
}

/// A part that should not end has ended.
fn over<T>(what: &str, end: Result<T, JoinError>) -> anyhow::Result<()> {
    match end {
        Ok(_) => bail!("{what} ended, which it should not: please report it with the log"),
        Err(error) => bail!("{what} ended by a bug ({error}): please report it with the log"),
    }
}

async fn finish(core: JoinHandle<()>) {
    if timeout(END_LIMIT, core).await.is_err() {
        warn!("pushes under way did not end in time");
    }
    info!("ended");
}
