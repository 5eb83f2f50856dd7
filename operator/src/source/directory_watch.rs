//! Notices that a directory of manifests may have changed.
//!
//! Owns the watch on the directory and on what is above it, because a directory may be a link that is exchanged, as
//! Kubernetes does with mounted ConfigMaps. Reads no manifest.

use anyhow::Context as _;
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher as _, event};
use std::{
    ffi::OsStr,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};
use tracing::warn;

/// Files are read when nothing has changed for this long: a copy of several files writes in several steps, and a file that is
/// read half-written is reported for nothing.
const QUIET: Duration = Duration::from_millis(10);
/// Files are read after this long even if something keeps changing.
const QUIET_LIMIT: Duration = Duration::from_millis(100);
/// Also without an event the files are looked at this often: links may lead to places that are not watched, and some
/// file systems (NFS) tell nothing.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// A watched directory.
pub struct Watch {
    watcher: RecommendedWatcher,
    changed: Arc<Notify>,
    path: PathBuf,
    /// Device and inode of the directory that is watched: one that was replaced took its watch along.
    watched: Option<(u64, u64)>,
}

impl Watch {
    /// Begins to watch.
    ///
    /// # Errors
    /// There is no such directory, or the kernel gives no more watches.
    pub fn new(path: &Path) -> anyhow::Result<Self> {
        let meta = fs::metadata(path).with_context(|| format!("--from-dir {}", path.display()))?;
        anyhow::ensure!(
            meta.is_dir(),
            "--from-dir {}: expected a directory",
            path.display()
        );
        let changed = Arc::new(Notify::new());
        let notifier = Arc::clone(&changed);
        let own_name = path.file_name().map(ToOwned::to_owned);
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // Reading the files makes events too, and so does what else lies beside the directory, as our own log may: neither
            // must make us read again. An error means that events may be lost, which is a reason to look.
            if event.is_ok_and(|e| is_read(e.kind) || is_beside(own_name.as_deref(), &e.paths)) {
                return;
            }
            notifier.notify_one();
        });
        let limits = "the kernel gives no more watches: fs.inotify.max_user_instances or max_user_watches is too small";
        let mut this = Self {
            watcher: watcher.context(limits)?,
            changed,
            path: path.to_owned(),
            watched: None,
        };
        // Where a link to the directory would be exchanged.
        if let Some(above) = path.parent() {
            let above = if above == Path::new("") {
                Path::new(".")
            } else {
                above
            };
            this.watcher
                .watch(above, RecursiveMode::NonRecursive)
                .with_context(|| format!("{} cannot be watched; {limits}", above.display()))?;
        }
        this.follow().context(limits)?;
        Ok(this)
    }

    /// Watches the directory that has the path now.
    fn follow(&mut self) -> notify::Result<()> {
        let now = fs::metadata(&self.path).ok().map(|m| (m.dev(), m.ino()));
        if now == self.watched {
            return Ok(());
        }
        if self.watched.take().is_some() {
            // A directory that is gone took its watch along.
            let _ = self.watcher.unwatch(&self.path);
        }
        if now.is_some() {
            self.watcher
                .watch(&self.path, RecursiveMode::NonRecursive)?;
            self.watched = now;
        }
        Ok(())
    }

    /// Waits until something may have changed and it is quiet again.
    pub async fn changed(&mut self) {
        let events = timeout(LOOK_EVERY, self.changed.notified()).await;
        let limit = Instant::now() + QUIET_LIMIT;
        while events.is_ok() && Instant::now() < limit {
            if timeout(QUIET, self.changed.notified()).await.is_err() {
                break;
            }
        }
        if let Err(error) = self.follow() {
            warn!(%error, directory = %self.path.display(), "the directory cannot be watched; it is looked at now and then");
        }
    }
}

/// Whether all of these are about something else than the directory of this name and what is in it.
fn is_beside(own_name: Option<&OsStr>, paths: &[PathBuf]) -> bool {
    let Some(own_name) = own_name else {
        return false;
    };
    let mut paths = paths.iter().peekable();
    paths.peek().is_some() && paths.all(|path| path.iter().all(|part| part != own_name))
}

fn is_read(kind: EventKind) -> bool {
    use event::{AccessKind, AccessMode};
    matches!(kind, EventKind::Access(access) if access != AccessKind::Close(AccessMode::Write))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_beside_the_directory_is_not_about_it() {
        let paths = |all: &[&str]| -> Vec<PathBuf> { all.iter().map(PathBuf::from).collect() };
        let name = Some(OsStr::new("manifests"));
        for (name, all, beside) in [
            (name, &["/etc/baton/operator.log"][..], true),
            (name, &["/etc/baton/manifests"], false),
            (name, &["./manifests"], false),
            (name, &["/etc/baton/manifests/web.yaml"], false),
            (name, &["/etc/baton/new", "/etc/baton/manifests"], false),
            // It is not said what changed.
            (name, &[], false),
            (None, &["/etc/baton/operator.log"], false),
        ] {
            assert_eq!(is_beside(name, &paths(all)), beside, "{all:?}");
        }
    }
}
