//! Notices that a directory of manifests may have changed.
//!
//! Owns the watch on the directory and on what is above it, because a directory may be a link that
//! is exchanged, as Kubernetes does with mounted ConfigMaps. Reads no manifest.

use anyhow::{Context as _, ensure};
use notify::{
    EventKind, RecommendedWatcher, RecursiveMode, Watcher as _,
    event::{AccessKind, AccessMode, ModifyKind},
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};

/// Files are read when nothing has changed for this long: a copy of several files writes in several
/// steps, and a file that is read half-written is reported for nothing.
const QUIET: Duration = Duration::from_millis(10);
/// Files are read after this long even if something keeps changing.
const QUIET_LIMIT: Duration = Duration::from_millis(100);
/// Also without an event the files are looked at this often: links may lead to places that are not
/// watched, and some file systems (NFS) tell nothing.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// A watched directory.
pub struct Watch {
    watcher: RecommendedWatcher,
    changed: Arc<Notify>,
    path: PathBuf,
}

impl Watch {
    /// Begins to watch a directory, of which the path is absolute.
    ///
    /// # Errors
    /// There is no such directory, or the kernel gives no more watches.
    pub fn new(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        ensure!(path.is_dir(), "--from-dir {shown}: expected a directory");
        let changed = Arc::new(Notify::new());
        let (notifier, about) = (Arc::clone(&changed), path.to_owned());
        let told = move |event: notify::Result<notify::Event>| {
            // An error means that events may be lost, which is a reason to look.
            if event.is_ok_and(|event| is_no_news(&about, &event)) {
                return;
            }
            notifier.notify_one();
        };
        let limits = "the kernel gives no more watches: fs.inotify.max_user_instances or max_user_watches is too small";
        let mut watcher = notify::recommended_watcher(told).context(limits)?;
        // Where a link to the directory would be exchanged.
        for path in path.parent().into_iter().chain([path]) {
            watcher
                .watch(path, RecursiveMode::NonRecursive)
                .with_context(|| format!("{} cannot be watched; {limits}", path.display()))?;
        }
        Ok(Self { watcher, changed, path: path.to_owned() })
    }

    /// Waits until something may have changed and it is quiet again.
    pub async fn changed(&mut self) {
        if timeout(LOOK_EVERY, self.changed.notified()).await.is_ok() {
            let limit = Instant::now() + QUIET_LIMIT;
            while Instant::now() < limit && timeout(QUIET, self.changed.notified()).await.is_ok() {}
        }
        // A directory that was replaced took its watch along, and while there is none, its parent's
        // tells when it comes.
        let _ = self.watcher.unwatch(&self.path);
        let _ = self.watcher.watch(&self.path, RecursiveMode::NonRecursive);
    }
}

/// Reading the files makes events too, and so does what else lies beside the directory, as our own
/// log may: neither must make us read again. What is written into a file counts when the file is
/// closed: before that, it may hold some of its documents, or none.
fn is_no_news(directory: &Path, event: &notify::Event) -> bool {
    let is_read = match event.kind {
        EventKind::Access(access) => access != AccessKind::Close(AccessMode::Write),
        EventKind::Modify(ModifyKind::Data(_)) => true,
        _ => false,
    };
    // If there is no path, it is not said what changed.
    let is_about = |path: &PathBuf| path.starts_with(directory);
    is_read || !event.paths.is_empty() && !event.paths.iter().any(is_about)
}

#[cfg(test)]
mod tests {
    use super::*;
    use notify::event::DataChange;

    #[test]
    fn what_lies_beside_the_directory_is_no_news_of_it_and_neither_is_that_it_is_read() {
        let written = EventKind::Access(AccessKind::Close(AccessMode::Write));
        let read = EventKind::Access(AccessKind::Close(AccessMode::Read));
        let half = EventKind::Modify(ModifyKind::Data(DataChange::Any));
        for (kind, paths, expected) in [
            (written, &["/etc/baton/operator.log"][..], true),
            (written, &["/etc/baton/manifests"], false),
            (written, &["/etc/baton/manifests/web.yaml"], false),
            (written, &["/etc/baton/new", "/etc/baton/manifests"], false),
            (EventKind::Other, &[], false),
            (read, &["/etc/baton/manifests/web.yaml"], true),
            (half, &["/etc/baton/manifests/web.yaml"], true),
        ] {
            let paths = paths.iter().map(PathBuf::from).collect();
            let event = notify::Event { paths, ..notify::Event::new(kind) };
            let got = is_no_news(Path::new("/etc/baton/manifests"), &event);
            assert_eq!(got, expected, "{event:?}");
        }
    }
}
