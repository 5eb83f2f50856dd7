//! The daemon's loop: signals, changed files, pods that come and go. Decides when, never what.

use crate::{
    config::{Config, Discovery},
    control::{self, Control, Door},
    discovery::{ListenerReport, watch},
    logging,
    shim::Shim,
};
use anyhow::Context;
use baton_config::logging::Level;
use baton_tls::{Name, Server, listen};
use notify::{RecursiveMode, Watcher};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep},
};
use tracing::{error, info, warn};

/// How soon a pod that was made anew under the same name gets its adopter, and the least time
/// between two attempts.
const ATTEND_EVERY: Duration = Duration::from_millis(250);
/// While a discovered pod starts: its adopter is there within this and what attaching takes (a
/// millisecond).
const ATTEND_EAGERLY: Duration = Duration::from_millis(20);
/// An editor or a kubelet changes several files in a row; they are read when it is quiet.
const SETTLE: Duration = Duration::from_millis(100);

/// Runs until SIGTERM or SIGINT.
pub fn run(file: &Path, keep_on_exit: bool) -> anyhow::Result<()> {
    let config = Config::read(file)?;
    let level = logging::start(&config.log)?;
    if let Err(problem) = raise_descriptors() {
        warn!(%problem, "the limit of open files stays as it is");
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the asynchronous runtime")?;
    runtime.block_on(serve(file, config, level, keep_on_exit))
}

/// Each application of a pod and each pod of another node that is connected has a descriptor here:
/// more than the 1,024 that a process begins with as a rule.
fn raise_descriptors() -> rustix::io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let current = limit.maximum;
    setrlimit(Resource::Nofile, Rlimit { current, ..limit })
}

async fn serve(
    file: &Path,
    mut config: Config,
    level: Level,
    keep_on_exit: bool,
) -> anyhow::Result<()> {
    // Before anything is attached, so that no signal finds it half done.
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT")?;
    let mut hangup = signal(SignalKind::hangup()).context("SIGHUP")?;
    let tls = match &config.control_tls {
        Some((_, material)) => Some(Arc::new(
            Server::new(Name::Shim, Name::Operator, material.clone())
                .context("controlTls cannot be used")?,
        )),
        None => None,
    };
    let doors = open(&config, tls.as_ref())?;
    let shim = Arc::new(Mutex::new(Shim::start(&config)?));
    if baton_adopter::kernel::is_nodes(&config.pin) == Some(false) {
        warn!(
            pin = %config.pin.display(),
            "the node has no BPF file system there: adopters end with this container; on the node: mount -t bpf bpf /sys/fs/bpf, \
             then delete this Pod"
        );
    }
    let (attached, all) = lock(&shim).attached();
    info!(version = env!("CARGO_PKG_VERSION"), attached, pods = all, "running");
    let control = Arc::new(Control { shim: Arc::clone(&shim), tls, foreign: Default::default() });
    let mut serving = JoinSet::new();
    for (listener, door) in doors {
        serving.spawn(control::serve(listener, Arc::clone(&control), door));
    }

    let (changed, mut changes) = mpsc::channel::<()>(1);
    let mut watch = Watch::new(changed);
    if watch.follow(file, &config) {
        // What changed between the first reading and the watch.
        reload(file, &mut config, (&control, &level), "a file changed during the start");
    }
    let mut attend = interval(ATTEND_EVERY);
    attend.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut watches = JoinSet::new();
    let clients = match &config.discovery {
        Some(discovery) => Some(watch::clients(discovery.kubeconfig.as_deref()).await?),
        None => None,
    };
    let follow = |(clients, discovery): (&watch::Clients, &Discovery)| {
        watch::follow(&clients.own, &discovery.node, &mut watches)
    };
    let mut wanted = clients.as_ref().zip(config.discovery.as_ref()).map(follow);
    loop {
        let eager = lock(&shim).is_eager(Instant::now());
        let because = tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = attend.tick() => {
                lock(&shim).attend(Instant::now());
                continue;
            }
            _ = sleep(ATTEND_EAGERLY), if eager => {
                lock(&shim).attend(Instant::now());
                continue;
            }
            told = news(wanted.as_mut()) => {
                lock(&shim).want(&told, Instant::now());
                continue;
            }
            Some(ended) = watches.join_next() => {
                // A watch goes on for ever; what ended it is a bug, which shall not go unseen.
                ended.context("discovery ended by a bug: please report it with the log")?;
                anyhow::bail!("discovery ended, which it should not: please report it with the log");
            }
            _ = hangup.recv() => "SIGHUP",
            Some(()) = changes.recv() => {
                sleep(SETTLE).await;
                while changes.try_recv().is_ok() {}
                "a file changed"
            }
        };
        reload(file, &mut config, (&control, &level), because);
        if watch.follow(file, &config) {
            reload(file, &mut config, (&control, &level), because);
        }
    }

    serving.shutdown().await;
    let set = config.discovery.and_then(|d| d.daemon_set);
    let removed = match clients.zip(set) {
        Some((clients, (namespace, name))) => watch::is_removed(&clients, &namespace, &name).await,
        None => false,
    };
    if keep_on_exit && !removed {
        info!("leaving the adopter in place for the next host-shim");
        return Ok(());
    }
    info!("detaching from all pods");
    lock(&shim).stop().context("not everything could be removed")
}

/// What the cluster says next of its pods; never, where nobody is asked.
async fn news(wanted: Option<&mut watch::Wanted>) -> ListenerReport {
    if let Some(wanted) = wanted {
        while wanted.changed().await.is_ok() {
            if let Some(told) = wanted.borrow_and_update().clone() {
                return told;
            }
        }
    }
    std::future::pending().await
}

fn lock(shim: &Mutex<Shim>) -> std::sync::MutexGuard<'_, Shim> {
    shim.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Binds all places of the configuration.
fn open(config: &Config, tls: Option<&Arc<Server>>) -> anyhow::Result<Vec<(TcpListener, Door)>> {
    let tls = config.control_tls.as_ref().map(|(at, _)| *at).zip(tls);
    let wanted = [
        config.control.map(|at| ("control", at, Door::Plain)),
        tls.map(|(at, server)| ("controlTls.listen", at, Door::Tls(Arc::clone(server)))),
        config.probes.map(|at| ("probes", at, Door::Probes)),
    ];
    let mut doors = Vec::new();
    for (field, address, door) in wanted.into_iter().flatten() {
        let listener = listen::bind(address).with_context(|| {
            format!("{field}: cannot listen on {address}; is another host-shim running?")
        })?;
        doors.push((listener, door));
    }
    Ok(doors)
}

fn reload(file: &Path, config: &mut Config, (control, level): (&Control, &Level), because: &str) {
    let mut shim = lock(&control.shim);
    let next = match Config::read(file) {
        Ok(next) => next,
        Err(refusal) => {
            shim.reloads.refused += 1;
            error!(because, %refusal, "the configuration is refused; the last good one stays");
            return;
        }
    };
    if next == *config {
        return;
    }
    for (field, fixed) in [
        ("control", next.control != config.control),
        (
            "controlTls.listen",
            next.control_tls.as_ref().map(|(at, _)| at)
                != config.control_tls.as_ref().map(|(at, _)| at),
        ),
        ("probes", next.probes != config.probes),
        ("log.format", next.log.format != config.log.format),
        ("pin", next.pin != config.pin),
        ("discovery", next.discovery != config.discovery),
    ] {
        if fixed {
            warn!(field, "a change of this field takes effect at the next start");
        }
    }
    if let (Some(server), Some((_, material))) = (&control.tls, &next.control_tls) {
        match server.replace(material.clone()) {
            Ok(true) => info!("the certificate of the control API is exchanged"),
            Ok(false) => {}
            Err(problem) => error!(%problem, "the certificate of the control API stays"),
        }
    }
    match shim.apply(&next) {
        Ok(()) => {
            shim.reloads.good += 1;
            if next.log.level != config.log.level
                && let Err(problem) = level.set(next.log.level.filter())
            {
                error!(%problem, "the level of the log stays");
            }
            info!(because, "the configuration was read again");
            *config = next;
        }
        Err(problem) => {
            shim.reloads.refused += 1;
            error!(%problem, "the configuration could not be applied");
        }
    }
}

/// Watches the directories of the configuration and of the key files: files are replaced, not
/// written, by editors and by Kubernetes.
struct Watch {
    watcher: Option<notify::RecommendedWatcher>,
    followed: Vec<PathBuf>,
}

impl Watch {
    fn new(changed: mpsc::Sender<()>) -> Self {
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // Reading is no change; a full channel already says that something changed.
            if event.is_ok_and(|e| !e.kind.is_access()) {
                let _ = changed.try_send(());
            }
        });
        let watcher = watcher
            .inspect_err(|error| warn!(%error, "files are not watched; send SIGHUP after a change"))
            .ok();
        Self { watcher, followed: Vec::new() }
    }

    /// Returns whether a directory is watched that was not before: a change in it may have gone
    /// unseen.
    fn follow(&mut self, file: &Path, config: &Config) -> bool {
        let Some(watcher) = &mut self.watcher else {
            return false;
        };
        let files = std::iter::once(file).chain(config.files.iter().map(PathBuf::as_path));
        let mut wanted: Vec<PathBuf> = files
            .map(|f| match f.parent() {
                Some(dir) if !dir.as_os_str().is_empty() => dir.to_owned(),
                _ => PathBuf::from("."),
            })
            .collect();
        wanted.sort();
        wanted.dedup();
        let mut more = false;
        for dir in wanted.iter().filter(|d| !self.followed.contains(d)) {
            more = true;
            if let Err(error) = watcher.watch(dir, RecursiveMode::NonRecursive) {
                warn!(dir = %dir.display(), %error, "not watched; send SIGHUP after a change");
            }
        }
        for dir in self.followed.iter().filter(|d| !wanted.contains(d)) {
            let _ = watcher.unwatch(dir);
        }
        self.followed = wanted;
        more
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_descriptors_as_there_may_be() {
        let limit = getrlimit(Resource::Nofile);
        let current = limit.maximum.map_or(Some(1_024), |most| Some(most - 1));
        setrlimit(Resource::Nofile, Rlimit { current, ..limit }).expect("less is allowed");
        raise_descriptors().expect("so is the maximum");
        let raised = getrlimit(Resource::Nofile);
        assert_eq!(raised.current, limit.maximum);
    }
}
