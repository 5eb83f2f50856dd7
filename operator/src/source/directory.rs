//! The directory source: manifests of a directory, read again when they change.
//!
//! Owns what the files hold, what of it was told, and when a file is read again. A file that is bad
//! is reported with its line and field, and its last good content stays; so one slip of a pen takes
//! nobody's backends away. If it was bad from the start, nobody knows what it held: then the core
//! is told that objects may be missing, and dataplanes keep what they have of them. An empty file
//! is a bad one: `kubectl get ... > FILE` empties it before it asks.

use super::{Ended, Sink, Translation, directory_watch::Watch, report};
use crate::{kind::Kind, translate};
use baton_config::ConfigError;
use baton_crds::{Checker, FILE_BYTES_MAX, GenerateError};
use baton_index::{Change, Key};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, hash_map::Entry},
    ffi::OsString,
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    io::{self, Read as _},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};
use tokio::task::spawn_blocking;
use tracing::{debug, error, info, warn};

/// Files of one directory.
const LIMIT_FILES: usize = 10_000;
/// A change later than this ago may be followed by one with the same times. Clocks of file systems
/// tick at least every 10 ms (`CONFIG_HZ`), or every 2 s (FAT).
const SETTLED_SECONDS: i64 = 3;

/// Follows a directory until the core ends.
///
/// # Errors
/// There is no such directory, or it cannot be watched.
pub async fn run(path: PathBuf, sink: Sink) -> anyhow::Result<()> {
    let path = std::path::absolute(path)?;
    let mut watch = Watch::new(&path)?;
    let mut directory = Directory::new(path, sink)?;
    // It ends when nobody listens any more.
    while directory.look().await.is_ok() {
        watch.changed().await;
    }
    Ok(())
}

/// How much of what there was at the start is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Known {
    /// The directory could not be read yet.
    Nothing,
    /// Some file was not good since the start.
    Part,
    /// Each file was.
    All,
}

/// Which object.
type Id = (Kind, Key);

/// What a file says of an object.
#[derive(Clone, Debug, PartialEq)]
enum Content {
    /// JSON, where what is told of it also depends on what was said about it before.
    Text(Arc<str>),
    /// What is told of it, whose parts the index keeps anyhow: JSON would be 30 MB more with 50,000
    /// endpoints.
    Plain(Change),
}

/// By name, which is the order in which they count.
type Files = BTreeMap<OsString, File>;

#[derive(Debug, Default)]
struct File {
    /// Of the file as it was when it was read last, if a change since then shows.
    stamp: Option<Stamp>,
    /// Of the text that was read last, good or not.
    digest: Option<u64>,
    /// What is wrong with it.
    problems: Vec<ConfigError>,
    /// What the last good text held; nothing if none was good since the start.
    objects: Option<Vec<(Id, Content)>>,
}

/// The directory as it was last read.
struct Directory {
    reader: Arc<Reader>,
    files: Files,
    known: Known,
    /// Objects as they were told.
    told: HashMap<Id, Content>,
    /// Objects that several files hold.
    twice: Vec<ConfigError>,
    /// What was reported, so that it is reported once.
    problems: BTreeSet<String>,
}

impl Directory {
    /// Nothing is read yet.
    ///
    /// # Errors
    /// The rules of the CRDs cannot be compiled, which is a bug.
    fn new(path: PathBuf, sink: Sink) -> Result<Self, GenerateError> {
        let reader = Reader { directory: path, checker: Checker::new()?, sink, clock: now };
        Ok(Self {
            reader: Arc::new(reader),
            files: Files::new(),
            known: Known::Nothing,
            told: HashMap::new(),
            twice: Vec::new(),
            problems: BTreeSet::new(),
        })
    }

    /// Reads what changed and tells it. Gives how many files were read.
    async fn look(&mut self) -> Result<usize, Ended> {
        // On a thread that may wait for the disk. A panic there is a bug, which ends the process.
        let (reader, mut files) = (Arc::clone(&self.reader), std::mem::take(&mut self.files));
        let looked = spawn_blocking(move || (reader.look(&mut files), files));
        let (look, files) = looked.await.map_err(|_| Ended)?;
        self.files = files;
        let listed = look.is_ok();
        let (mut problems, look) = match look {
            Ok(look) => (Vec::new(), look),
            // What is known stays: somebody may be replacing the directory at this moment.
            Err(error) => (vec![error], Look::default()),
        };
        debug!(?look, "looked at the files");
        if look.changed {
            self.tell().await?;
        }
        problems.extend(self.twice.iter().cloned());
        problems.extend(self.files.values().flat_map(|file| file.problems.clone()));
        self.report(&problems);
        if listed {
            self.follow().await?;
        }
        Ok(look.read)
    }

    /// Tells what the files hold beside what was told; of two objects with one name, the first
    /// file's counts.
    async fn tell(&mut self) -> Result<(), Ended> {
        let mut merged = HashMap::with_capacity(self.told.len());
        self.twice.clear();
        for (name, file) in &self.files {
            for (id, content) in file.objects.iter().flatten() {
                match merged.entry(id) {
                    Entry::Vacant(vacant) => {
                        vacant.insert((content, name));
                    }
                    Entry::Occupied(first) => {
                        let (kind, key) = (id.0.as_str(), &id.1);
                        let first = self.reader.directory.join(first.get().1);
                        let first = first.display();
                        let problem = format!(
                            "{kind} {key} is in {first} already, which counts: remove one of them"
                        );
                        let path = self.reader.directory.join(name);
                        self.twice.push(ConfigError::new(path, problem));
                    }
                }
            }
        }
        let sink = &self.reader.sink;
        let gone = self.told.keys().filter(|id| !merged.contains_key(id));
        let mut gone: Vec<Id> = gone.cloned().collect();
        gone.sort_unstable();
        for id in gone {
            self.told.remove(&id);
            let (kind, key) = id;
            report::gone(sink, kind, &key);
            sink.change(kind, translate::gone(kind, key)).await?;
        }
        let news = merged.into_iter().map(|(id, (content, _))| (id, content));
        let mut news: Vec<_> =
            news.filter(|(id, content)| self.told.get(id) != Some(content)).collect();
        news.sort_unstable_by_key(|(id, _)| *id);
        for (id, content) in news {
            let (kind, key) = id;
            let translation = match content {
                Content::Plain(change) => Translation::Change(change.clone()),
                Content::Text(json) => {
                    // It was readable before.
                    let value = serde_json::from_str(json).unwrap_or_default();
                    let object = read(*kind, &value);
                    object.map_or(Translation::Nothing, |object| object(sink, key))
                }
            };
            sink.tell(*kind, key, translation).await?;
            self.told.insert(id.clone(), content.clone());
        }
        Ok(())
    }

    /// Tells what has come to be known.
    async fn follow(&mut self) -> Result<(), Ended> {
        let sink = &self.reader.sink;
        let is_whole = self.files.values().all(|file| file.objects.is_some());
        let known = if is_whole { Known::All } else { Known::Part };
        if known <= self.known {
            return Ok(());
        }
        if known == Known::Part {
            sink.partial(true).await?;
            warn!(
                "files are bad, and what they held before this start is not known: until each was good once, \
                 dataplanes keep all policies and backends that they have, also those that are in no file"
            );
        } else {
            if self.known == Known::Part {
                sink.partial(false).await?;
            }
            let directory = self.reader.directory.display();
            info!(%directory, objects = self.told.len(), "all manifests are known");
        }
        if self.known == Known::Nothing {
            for kind in Kind::ALL {
                sink.synced(kind).await?;
            }
        }
        self.known = known;
        Ok(())
    }

    fn report(&mut self, problems: &[ConfigError]) {
        let refused = &self.reader.sink.metrics.refused;
        let count = i64::try_from(problems.len()).unwrap_or(i64::MAX);
        refused.with_label_values(&["file"]).set(count);
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

/// Reads files.
struct Reader {
    directory: PathBuf,
    checker: Checker,
    sink: Sink,
    /// Seconds since 1970. Tests have another one.
    clock: fn() -> i64,
}

/// What a look came to.
#[derive(Debug, Default)]
struct Look {
    /// Objects may be others than before.
    changed: bool,
    /// Files that were read.
    read: usize,
}

impl Reader {
    /// Reads the files that changed.
    fn look(&self, files: &mut Files) -> Result<Look, ConfigError> {
        let names = names(&self.directory).map_err(|error| unreadable(&self.directory, &error))?;
        let before = files.len();
        files.retain(|name, _| names.contains(name));
        let mut look = Look { changed: files.len() != before, read: 0 };
        for name in names {
            let path = self.directory.join(&name);
            let file = files.entry(name).or_default();
            // In this order: what is written while it is read shows at the next look.
            let now = (self.clock)();
            let meta = fs::metadata(&path);
            let stamp = meta.as_ref().ok().map(Stamp::new);
            if stamp.is_some() && stamp == file.stamp {
                continue;
            }
            look.read += 1;
            file.stamp = stamp.filter(|stamp| stamp.is_settled(now));
            let text = match meta.and_then(|meta| text(&path, &meta)) {
                Ok(text) => text,
                Err(error) => {
                    // It is tried again with each look.
                    (file.stamp, file.digest) = (None, None);
                    file.problems = vec![unreadable(&path, &error)];
                    continue;
                }
            };
            let mut hasher = DefaultHasher::new();
            text.hash(&mut hasher);
            let digest = Some(hasher.finish());
            if digest == file.digest {
                continue;
            }
            file.digest = digest;
            if text.is_empty() {
                // Whoever writes over a file has it empty first, and may take a while.
                let problem = "is empty, as a file is before it is written: remove it if nothing is to be in it";
                file.problems = vec![ConfigError::new(path, problem.to_owned())];
                continue;
            }
            match self.objects(&path, &text) {
                Ok(objects) => {
                    file.objects = Some(objects);
                    file.problems.clear();
                    look.changed = true;
                }
                Err(problems) => file.problems = problems,
            }
        }
        Ok(look)
    }

    /// The objects of a text that matter here.
    fn objects(&self, file: &Path, text: &str) -> Result<Vec<(Id, Content)>, Vec<ConfigError>> {
        let mut objects = Vec::new();
        let report = self.checker.read(text, file, |mut value| {
            let words = |at| {
                let words = value.pointer(at).and_then(Value::as_str);
                words.unwrap_or_default()
            };
            let (version, kind) = (words("/apiVersion"), words("/kind"));
            let (name, namespace) = (words("/metadata/name"), words("/metadata/namespace"));
            let Some(kind) = Kind::of(version, kind) else {
                warn!(file = %file.display(), kind, version, "not read: this kind does not matter here");
                return Ok(());
            };
            if name.is_empty() {
                let problem = "is missing: expected the name of the object";
                return Err(("metadata.name".to_owned(), problem.to_owned()));
            }
            // As `kubectl` does it: what is in no namespace is in `default`.
            let namespace = match (kind.is_namespaced(), namespace) {
                (false, _) => "",
                (true, "") => "default",
                (true, namespace) => namespace,
            };
            let key = self.sink.translator.named(namespace, name);
            if kind.is_namespaced() {
                value["metadata"]["namespace"] = (*key.namespace).into();
            }
            let object = read(kind, &value)?;
            let plain = match kind {
                Kind::Policy | Kind::Class => Translation::Nothing,
                _ => object(&self.sink, &key),
            };
            let content = match plain {
                Translation::Change(change) => Content::Plain(change),
                _ => Content::Text(value.to_string().into()),
            };
            objects.push(((kind, key), content));
            Ok(())
        });
        objects.shrink_to_fit();
        if report.problems.is_empty() { Ok(objects) } else { Err(report.problems) }
    }
}

/// What of a file changes when its content does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    /// Whoever sets the time of the content back does not set this one.
    changed: (i64, i64),
}

impl Stamp {
    fn new(meta: &fs::Metadata) -> Self {
        Self {
            device: meta.dev(),
            inode: meta.ino(),
            bytes: meta.size(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        }
    }

    /// Whether any later change gives another stamp, seen at `now` (seconds since 1970).
    fn is_settled(&self, now: i64) -> bool {
        self.changed.0.max(self.modified.0) + SETTLED_SECONDS <= now
    }
}

/// In seconds since 1970.
fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| i64::try_from(now.as_secs()).unwrap_or(i64::MAX))
}

/// What is told of a readable object.
type Object = Box<dyn FnOnce(&Sink, &Key) -> Translation>;

/// Reads a value as what it says it is, or gives the field that is wrong.
fn read(kind: Kind, value: &Value) -> Result<Object, (String, String)> {
    match kind {
        Kind::Policy => parse(value, report::policy_of_manifest),
        Kind::Class => parse(value, report::class),
        Kind::Service => parse(value, report::service),
        Kind::Slice => parse(value, report::slice),
        Kind::Pod => parse(value, report::pod),
        Kind::Node => parse(value, report::node),
        Kind::Namespace => parse(value, report::namespace),
    }
}

fn parse<K: DeserializeOwned + 'static>(
    value: &Value,
    translate: report::Translate<K>,
) -> Result<Object, (String, String)> {
    // Keeping track of the path takes longer than reading does.
    let object = K::deserialize(value).or_else(|_| {
        serde_path_to_error::deserialize(value)
            .map_err(|error| (error.path().to_string(), error.inner().to_string()))
    })?;
    Ok(Box::new(move |sink, key| translate(sink, key, &object)))
}

fn unreadable(path: &Path, error: &io::Error) -> ConfigError {
    ConfigError::unreadable(path, format!("cannot be read: {error}"))
}

fn text(file: &Path, meta: &fs::Metadata) -> io::Result<String> {
    let limit = FILE_BYTES_MAX as u64;
    if meta.len() > limit {
        let problem = format!("larger than {} MiB: split it", limit >> 20);
        return Err(io::Error::other(problem));
    }
    let mut text = String::new();
    fs::File::open(file)?.take(limit + 1).read_to_string(&mut text)?;
    Ok(text)
}

/// The manifests' files, in order of their names.
fn names(directory: &Path) -> io::Result<BTreeSet<OsString>> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let extension = Path::new(&name).extension();
        let is_manifest = extension.is_some_and(|e| e == "yaml" || e == "yml" || e == "json");
        // Hidden files are editors' and half-written ones; those behind links are what counts.
        let is_hidden = name.to_str().is_none_or(|name| name.starts_with('.'));
        if is_manifest && !is_hidden && !is_directory(&entry) {
            names.insert(name);
        }
        if names.len() > LIMIT_FILES {
            let problem = format!("more than {LIMIT_FILES} files: put several objects into one");
            return Err(io::Error::other(problem));
        }
    }
    Ok(names)
}

fn is_directory(entry: &fs::DirEntry) -> bool {
    match entry.file_type() {
        Ok(kind) if !kind.is_symlink() => kind.is_dir(),
        _ => entry.path().is_dir(),
    }
}

#[cfg(test)]
#[path = "directory_tests.rs"]
mod tests;
