//! The directory source: manifests of a directory, read again when they change.
//!
//! Owns which objects the files hold and what changed in them. A file that is bad is reported with its line and field, and
//! its last good content stays; so one slip of a pen takes nobody's backends away. If it was bad from the start, nobody knows
//! what it held: then the core is told that objects may be missing, and dataplanes keep what they have of them.

use super::{
    Ended, Sink,
    directory_watch::Watch,
    files::{Files, Look, Reader},
    reading::{Content, Id},
    report,
};
use crate::{kind::Kind, translate};
use baton_config::ConfigError;
use baton_crds::GenerateError;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, hash_map::Entry},
    path::PathBuf,
    sync::Arc,
};
use tokio::task::spawn_blocking;
use tracing::{debug, error, info, warn};

/// Follows a directory until the core ends.
///
/// # Errors
/// The directory cannot be read at the start, or not be watched.
pub async fn run(path: PathBuf, sink: Sink) -> anyhow::Result<()> {
    let mut watch = Watch::new(&path)?;
    let mut directory = Directory::new(path, sink.clone())?;
    let mut told = Known::Nothing;
    // It ends when nobody listens any more.
    while directory.tell().await.is_ok() {
        let known = directory.known().max(told);
        if known != told && follow(&sink, told, known).await.is_err() {
            break;
        }
        match known {
            Known::Nothing => {
                let directory = directory.path.display();
                warn!(%directory, "cannot be read: nothing is pushed before it can");
            }
            _ if known == told => {}
            Known::Part => warn!(
                "files are bad, and what they held before this start is not known: until each was good once, dataplanes keep \
                 all policies and backends that they have, also those that are in no file"
            ),
            Known::All => {
                let objects = directory.told.len();
                info!(directory = %directory.path.display(), objects, "all manifests are known");
            }
        }
        told = known;
        watch.changed().await;
    }
    Ok(())
}

/// How much of what there was at the start is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Known {
    /// The directory could not be read yet.
    Nothing,
    /// Some file was not good since the start.
    Part,
    /// Each file was.
    All,
}

/// Tells what has come to be known.
async fn follow(sink: &Sink, before: Known, now: Known) -> Result<(), Ended> {
    if before == Known::Part || now == Known::Part {
        sink.partial(now == Known::Part).await?;
    }
    if before == Known::Nothing {
        for kind in Kind::ALL {
            sink.synced(kind).await?;
        }
    }
    Ok(())
}

/// The directory as it was last read.
pub(super) struct Directory {
    path: PathBuf,
    sink: Sink,
    reader: Arc<Reader>,
    files: Files,
    /// Objects as they were told.
    told: BTreeMap<Id, Content>,
    /// Objects that several files hold.
    twice: Vec<ConfigError>,
    /// What was reported, so that it is reported once.
    problems: BTreeSet<String>,
}

/// What is not as it was told.
#[derive(Default)]
struct Changes {
    gone: Vec<Id>,
    /// In order.
    news: Vec<(Id, Content)>,
}

impl Directory {
    /// Nothing is read yet.
    ///
    /// # Errors
    /// The rules of the CRDs cannot be compiled, which is a bug.
    pub(super) fn new(path: PathBuf, sink: Sink) -> Result<Self, GenerateError> {
        let reader = Reader::new(path.clone(), sink.clone())?;
        Ok(Self {
            path,
            sink,
            reader: Arc::new(reader),
            files: Files::default(),
            told: BTreeMap::new(),
            twice: Vec::new(),
            problems: BTreeSet::new(),
        })
    }

    /// How much of what there was at the start is known.
    pub(super) fn known(&self) -> Known {
        if !self.files.are_listed() {
            Known::Nothing
        } else if self.files.are_read() && self.files.are_known() {
            Known::All
        } else {
            Known::Part
        }
    }

    /// Reads what changed and tells it. Gives how many files were read.
    pub(super) async fn tell(&mut self) -> Result<usize, Ended> {
        let Look {
            mut problems,
            changed,
            read,
        } = self.look().await;
        debug!(read, changed, "looked at the files");
        let changes = if changed {
            self.changes()
        } else {
            Changes::default()
        };
        problems.extend(self.twice.iter().cloned());
        let refused = i64::try_from(problems.len()).unwrap_or(i64::MAX);
        self.sink
            .metrics
            .refused
            .with_label_values(&["file"])
            .set(refused);
        self.report(&problems);
        for id in changes.gone {
            self.told.remove(&id);
            let (kind, key) = id;
            report::gone(&self.sink, kind, &key);
            self.sink.change(kind, translate::gone(kind, key)).await?;
        }
        for (id, content) in changes.news {
            let told = content.told(&self.sink, &id);
            self.sink.tell(id.0, &id.1, told).await?;
            self.told.insert(id, content);
        }
        Ok(read)
    }

    /// Looks at the files, on a thread that may wait for the disk.
    async fn look(&mut self) -> Look {
        let mut files = std::mem::take(&mut self.files);
        let reader = Arc::clone(&self.reader);
        let looked = spawn_blocking(move || {
            let look = files.look(&reader);
            (files, look)
        });
        match looked.await {
            Ok((files, look)) => {
                self.files = files;
                look
            }
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // The runtime ends, and this task with it.
            Err(_) => std::future::pending().await,
        }
    }

    /// What the files hold beside what was told; of two objects with one name, the first file's counts.
    fn changes(&mut self) -> Changes {
        let mut merged = HashMap::with_capacity(self.told.len());
        let mut twice = Vec::new();
        for (file, id, content) in self.files.objects() {
            match merged.entry(id) {
                Entry::Vacant(vacant) => {
                    vacant.insert((content, file));
                }
                Entry::Occupied(first) => {
                    let (kind, key) = id;
                    let problem = format!(
                        "{} {key} is in {} already, which counts: remove one of them",
                        kind.as_str(),
                        self.path.join(first.get().1).display()
                    );
                    twice.push(ConfigError::new(self.path.join(file), problem));
                }
            }
        }
        let gone = self.told.keys().filter(|id| !merged.contains_key(id));
        let gone = gone.cloned().collect();
        let news = merged
            .into_iter()
            .filter(|(id, (content, _))| self.told.get(id) != Some(content));
        let mut news: Vec<(Id, Content)> = news
            .map(|(id, (content, _))| (id.clone(), content.clone()))
            .collect();
        news.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        self.twice = twice;
        Changes { gone, news }
    }

    fn report(&mut self, problems: &[ConfigError]) {
        let words: BTreeSet<String> = problems.iter().map(ConfigError::to_string).collect();
        for problem in words.difference(&self.problems) {
            error!("{problem}; its last good content stays");
        }
        if words.is_empty() && !self.problems.is_empty() {
            info!("all manifests are good again");
        }
        self.problems = words;
    }
}
