//! Notices that configuration files changed, and says what a new configuration changes.
//!
//! Never applies anything: `run` does, with what [`compare`] says.

use super::Loaded;
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher as _, event};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{sync::Notify, time};
use tracing::warn;

/// Files are read when nothing has changed for this long: an editor or a copy writes in several
/// steps.
const QUIET: Duration = Duration::from_millis(200);
/// Files are read after this long even if something keeps changing beside them.
const QUIET_LIMIT: Duration = Duration::from_secs(2);

/// Watches the folders of the configuration and its keys.
///
/// Folders, not files: editors and Kubernetes replace files, and a watch on a replaced file sees
/// nothing.
pub struct Watcher {
    watcher: RecommendedWatcher,
    changed: Arc<Notify>,
    /// Something was noticed, and the files were not looked at since.
    noticed: bool,
    folders: BTreeSet<Folder>,
    /// The files as they were before they were last read.
    seen: Sources,
}

/// A folder by its name, device and inode: one that was replaced took its watch along.
type Folder = (PathBuf, u64, u64);

/// The files that a configuration is made of, each as it was before it was read; a file that is not
/// there, too.
///
/// Looked at before the reading, so that a change in between is seen as one: at worst a file is
/// read twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources(BTreeMap<PathBuf, Stamp>);

/// What tells one state of a file from another without reading it: device, inode, and the time of
/// the last change of content or mode. None if it cannot be looked at.
type Stamp = Option<(u64, u64, i64, i64)>;

fn stamp(file: &Path) -> Stamp {
    let meta = fs::metadata(file).ok()?;
    Some((meta.dev(), meta.ino(), meta.ctime(), meta.ctime_nsec()))
}

impl Sources {
    /// Notes a file that is about to be read.
    pub fn note(&mut self, file: &Path) {
        self.0.insert(file.to_owned(), stamp(file));
    }

    /// The same files as they are now.
    fn now(&self) -> Self {
        Self(self.0.keys().map(|f| (f.clone(), stamp(f))).collect())
    }

    /// The folders in which a change of the files shows. Where one does not exist (yet), the
    /// nearest above it that does.
    fn folders(&self) -> BTreeSet<Folder> {
        let folder = |file: &Path| {
            file.ancestors().skip(1).find_map(|folder| {
                let folder = match folder {
                    nameless if nameless == Path::new("") => Path::new("."),
                    named => named,
                };
                let meta = fs::metadata(folder).ok().filter(fs::Metadata::is_dir)?;
                Some((folder.to_owned(), meta.dev(), meta.ino()))
            })
        };
        self.0.keys().filter_map(|file| folder(file)).collect()
    }
}

impl Watcher {
    /// Starts watching what was read.
    ///
    /// # Errors
    /// The kernel gives no more watches (`fs.inotify.max_user_instances`, `max_user_watches`).
    pub fn new(sources: Sources) -> notify::Result<Self> {
        let changed = Arc::new(Notify::new());
        let notifier = Arc::clone(&changed);
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // Reading the files makes events too; they must not make us read again. An error means
            // that events may be lost, which is a reason to look.
            if event.is_ok_and(|e| is_read(e.kind)) {
                return;
            }
            notifier.notify_one();
        })?;
        let mut this = Self {
            watcher,
            changed,
            noticed: false,
            folders: BTreeSet::new(),
            seen: Sources::default(),
        };
        this.follow(sources)?;
        Ok(this)
    }

    /// Watches the files of a configuration that is in force now, and no others.
    ///
    /// # Errors
    /// A folder cannot be watched.
    pub fn follow(&mut self, sources: Sources) -> notify::Result<()> {
        self.seen = sources;
        self.watch()
    }

    /// Watches the files of a refused configuration too: what it lacks may come, as a key that is
    /// written after it.
    ///
    /// # Errors
    /// A folder cannot be watched.
    pub fn follow_too(&mut self, sources: Sources) -> notify::Result<()> {
        self.seen.0.extend(sources.0);
        self.watch()
    }

    fn watch(&mut self) -> notify::Result<()> {
        // One pass more for each folder that appears while we look.
        loop {
            let folders = self.seen.folders();
            if folders == self.folders {
                break;
            }
            for (folder, ..) in self.folders.difference(&folders) {
                // A folder that is gone took its watch along.
                let _ = self.watcher.unwatch(folder);
            }
            for (folder, ..) in folders.difference(&self.folders) {
                self.watcher.watch(folder, RecursiveMode::NonRecursive)?;
            }
            self.folders = folders;
        }
        // What changed before the watch was there made no event.
        if self.seen.now() != self.seen {
            self.changed.notify_one();
        }
        Ok(())
    }

    /// Waits until one of the files changed and it is quiet again. Safe to drop and call again.
    ///
    /// Other files of the folders may change as they like: a log file there would else make us read
    /// the configuration for each line that reading it logs.
    pub async fn changed(&mut self) {
        loop {
            if !self.noticed {
                self.changed.notified().await;
                // Who drops this while it waits for quiet has not been told.
                self.noticed = true;
            }
            let limit = time::Instant::now() + QUIET_LIMIT;
            while time::Instant::now() < limit {
                if time::timeout(QUIET, self.changed.notified()).await.is_err() {
                    break;
                }
            }
            self.noticed = false;
            // A folder may have come that was waited for, or gone.
            if let Err(error) = self.watch() {
                warn!(%error, "a folder of the configuration cannot be watched");
            }
            let now = self.seen.now();
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
    /// The certificate of the control API does, its key, or whom it believes.
    pub tls: bool,
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
        ("hostNetwork", a.host_network != b.host_network),
        ("control", a.control != b.control),
        ("controlTls", a.control_tls.is_some() != b.control_tls.is_some()),
        (
            "controlTls.listen",
            matches!((&a.control_tls, &b.control_tls), (Some(a), Some(b)) if a.listen != b.listen),
        ),
        ("probes", a.probes != b.probes),
        ("log.format", a.log.format != b.log.format),
        ("limits", a.limits != b.limits),
        ("rings", a.rings != b.rings),
        ("workers", a.workers != b.workers),
    ];
    Change {
        policies: a.policies != b.policies,
        keys: old.keys != new.keys,
        tls: matches!((&old.tls, &new.tls), (Some(old), Some(new)) if old != new),
        log_level: a.log.level != b.log.level,
        restart: restart
            .into_iter()
            .filter_map(|(name, differs)| differs.then_some(name))
            .collect(),
    }
}
