//! Notices that configuration files changed, and says what a new configuration changes.
//!
//! Never applies anything: `run` does, with what [`compare`] says.

use super::Loaded;
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher as _, event};
use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{sync::Notify, time};

/// Files are read when nothing has changed for this long: an editor or a copy writes in several steps.
const QUIET: Duration = Duration::from_millis(200);
/// Files are read after this long even if something keeps changing beside them.
const QUIET_LIMIT: Duration = Duration::from_secs(2);

/// Watches the folders of the configuration and its keys.
///
/// Folders, not files: editors and Kubernetes replace files, and a watch on a replaced file sees nothing.
pub struct Watcher {
    watcher: RecommendedWatcher,
    changed: Arc<Notify>,
    folders: BTreeSet<PathBuf>,
    files: Vec<PathBuf>,
    /// The files as they were when they were last read.
    seen: Vec<Stamp>,
}

/// What tells one state of a file from another without reading it: device, inode, and the time of the last
/// change of content or mode. None if it cannot be looked at.
type Stamp = Option<(u64, u64, i64, i64)>;

fn stamps(files: &[PathBuf]) -> Vec<Stamp> {
    let stamp = |m: fs::Metadata| (m.dev(), m.ino(), m.ctime(), m.ctime_nsec());
    files
        .iter()
        .map(|file| fs::metadata(file).ok().map(stamp))
        .collect()
}

impl Watcher {
    /// Starts watching.
    ///
    /// # Errors
    /// The kernel gives no more watches (`fs.inotify.max_user_instances`, `max_user_watches`).
    pub fn new(file: &Path, loaded: &Loaded) -> notify::Result<Self> {
        let changed = Arc::new(Notify::new());
        let notifier = Arc::clone(&changed);
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // Reading the files makes events too; they must not make us read again. An error means that
            // events may be lost, which is a reason to look.
            if event.is_ok_and(|e| is_read(e.kind)) {
                return;
            }
            notifier.notify_one();
        })?;
        let mut this = Self {
            watcher,
            changed,
            folders: BTreeSet::new(),
            files: Vec::new(),
            seen: Vec::new(),
        };
        this.follow(file, loaded)?;
        Ok(this)
    }

    /// Watches the folders that `loaded` names from now on, and no others.
    ///
    /// # Errors
    /// A folder cannot be watched.
    pub fn follow(&mut self, file: &Path, loaded: &Loaded) -> notify::Result<()> {
        let keys = (0..loaded.config.keys.len()).map(|i| loaded.config.key_path(i));
        let files: Vec<PathBuf> = keys.chain([file.to_owned()]).collect();
        let folders: BTreeSet<PathBuf> = files
            .iter()
            .map(|path| match path.parent() {
                Some(folder) if folder != Path::new("") => folder.to_owned(),
                _ => PathBuf::from("."),
            })
            .collect();
        if files != self.files {
            self.seen = stamps(&files);
            self.files = files;
        }
        for folder in folders.difference(&self.folders) {
            self.watcher.watch(folder, RecursiveMode::NonRecursive)?;
        }
        for folder in self.folders.difference(&folders) {
            // A folder that is gone took its watch along.
            let _ = self.watcher.unwatch(folder);
        }
        self.folders = folders;
        Ok(())
    }

    /// Waits until one of the files changed and it is quiet again. Safe to drop and call again.
    ///
    /// Other files of the folders may change as they like: a log file there would else make us read the
    /// configuration for each line that reading it logs.
    pub async fn changed(&mut self) {
        loop {
            self.changed.notified().await;
            let limit = time::Instant::now() + QUIET_LIMIT;
            while time::Instant::now() < limit {
                if time::timeout(QUIET, self.changed.notified()).await.is_err() {
                    break;
                }
            }
            let now = stamps(&self.files);
            if now != self.seen {
                self.seen = now;
                return;
            }
        }
    }
}

fn is_read(kind: EventKind) -> bool {
    use event::{AccessKind, AccessMode};
    matches!(kind, EventKind::Access(access)
        if access != AccessKind::Close(AccessMode::Write))
}

/// What differs between two configurations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The policies do.
    pub policies: bool,
    /// The keys do: their epochs, order or values.
    pub keys: bool,
    /// The log level does.
    pub log_level: bool,
    /// Fields that differ but hold only after a restart.
    pub restart: Vec<&'static str>,
}

impl Change {
    /// Nothing differs.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// Says what `new` changes against `old`.
#[must_use]
pub fn compare(old: &Loaded, new: &Loaded) -> Change {
    let (a, b) = (&old.config, &new.config);
    let restart = [
        ("interface", a.interface != b.interface),
        ("address", a.address != b.address),
        ("ports", a.ports != b.ports),
        ("mode", a.mode != b.mode),
        ("control", a.control != b.control),
        ("log.format", a.log.format != b.log.format),
        ("limits", a.limits != b.limits),
        ("rings", a.rings != b.rings),
    ];
    Change {
        policies: a.policies != b.policies,
        keys: old.keys != new.keys,
        log_level: a.log.level != b.log.level,
        restart: restart
            .into_iter()
            .filter_map(|(name, differs)| differs.then_some(name))
            .collect(),
    }
}
