//! The daemon's loop: signals, changed files, pods that come and go. Decides when, never what.

use crate::{config::Config, control, logging, shim::Shim};
use anyhow::Context;
use notify::{RecursiveMode, Watcher};
use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    time::{MissedTickBehavior, interval, sleep},
};
use tracing::{error, info, warn};

/// How soon a pod that was made anew under the same name gets its adopter, and the least time between two attempts.
const ATTEND_EVERY: Duration = Duration::from_millis(250);
/// An editor or a kubelet changes several files in a row; they are read when it is quiet.
const SETTLE: Duration = Duration::from_millis(100);

/// Runs until SIGTERM or SIGINT.
pub fn run(file: &Path, keep_on_exit: bool) -> anyhow::Result<()> {
    let config = Config::read(file)?;
    logging::start(&config.log);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the asynchronous runtime")?;
    runtime.block_on(serve(file, config, keep_on_exit))
}

async fn serve(file: &Path, mut config: Config, keep_on_exit: bool) -> anyhow::Result<()> {
    // Before anything is attached, so that no signal finds it half done.
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT")?;
    let mut hangup = signal(SignalKind::hangup()).context("SIGHUP")?;
    let listener = match config.control {
        Some(address) => Some(TcpListener::bind(address).await.with_context(|| {
            format!("control: cannot listen on {address}; is another host-shim running?")
        })?),
        None => None,
    };
    let shim = Arc::new(Mutex::new(Shim::start(&config)?));
    let (attached, all) = lock(&shim).attached();
    info!(
        version = env!("CARGO_PKG_VERSION"),
        attached,
        pods = all,
        "running"
    );
    let control = listener.map(|l| tokio::spawn(control::serve(l, Arc::clone(&shim))));

    let (changed, mut changes) = mpsc::channel::<()>(1);
    let mut watch = Watch::new(changed);
    if watch.follow(file, &config) {
        // What changed between the first reading and the watch.
        reload(file, &mut config, &shim, "a file changed during the start");
    }
    let mut attend = interval(ATTEND_EVERY);
    attend.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let because = tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = attend.tick() => {
                lock(&shim).attend(Instant::now());
                continue;
            }
            _ = hangup.recv() => "SIGHUP",
            Some(()) = changes.recv() => {
                sleep(SETTLE).await;
                while changes.try_recv().is_ok() {}
                "a file changed"
            }
        };
        reload(file, &mut config, &shim, because);
        if watch.follow(file, &config) {
            reload(file, &mut config, &shim, because);
        }
    }

    if let Some(control) = control {
        control.abort();
        let _ = control.await;
    }
    if keep_on_exit {
        info!("leaving the adopter in place for the next host-shim");
        return Ok(());
    }
    info!("detaching from all pods");
    lock(&shim)
        .stop()
        .context("not everything could be removed")
}

fn lock(shim: &Mutex<Shim>) -> std::sync::MutexGuard<'_, Shim> {
    shim.lock().unwrap_or_else(PoisonError::into_inner)
}

fn reload(file: &Path, config: &mut Config, shim: &Mutex<Shim>, because: &str) {
    let mut shim = lock(shim);
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
        ("log", next.log != config.log),
        ("pin", next.pin != config.pin),
    ] {
        if fixed {
            warn!(
                field,
                "a change of this field takes effect at the next start"
            );
        }
    }
    match shim.apply(&next) {
        Ok(()) => {
            shim.reloads.good += 1;
            info!(because, "the configuration was read again");
            *config = next;
        }
        Err(problem) => {
            shim.reloads.refused += 1;
            error!(%problem, "the configuration could not be applied");
        }
    }
}

/// Watches the directories of the configuration and of the key files: files are replaced, not written, by editors
/// and by Kubernetes.
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
        Self {
            watcher,
            followed: Vec::new(),
        }
    }

    /// Returns whether a directory is watched that was not before: a change in it may have gone unseen.
    fn follow(&mut self, file: &Path, config: &Config) -> bool {
        let Some(watcher) = &mut self.watcher else {
            return false;
        };
        let files = std::iter::once(file).chain(config.keys.iter().map(|k| k.file.as_path()));
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
