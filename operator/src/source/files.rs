//! The files of a directory: which there are, which were changed, and the last good content of each.
//!
//! Owns when a file is read again: when it is another one by device, inode, size or times, and as long as it was changed so
//! lately that a further change could have the same time. Several files are read and taken apart at one time. Tells nobody
//! anything.

use super::{
    Sink,
    reading::{Content, Id, objects},
};
use crate::manifest::LIMIT_FILE_BYTES;
use baton_config::ConfigError;
use baton_crds::{Checker, GenerateError};
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    io::Read as _,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread,
    time::{SystemTime, UNIX_EPOCH},
};

/// Files of one directory.
const LIMIT_FILES: usize = 10_000;
/// Threads that read at one time: what is left of a large start is not worth more memory of theirs.
const LIMIT_READERS: usize = 4;
/// Fewer files than this are not worth a thread: it takes some 50 us to start, a file of ten endpoints 300 us to read.
const FILES_PER_READER: usize = 16;
/// A change later than this ago may be followed by one with the same times. Clocks of file systems tick at least every 10 ms
/// (`CONFIG_HZ`), or every 2 s (FAT).
const SETTLED_SECONDS: i64 = 3;

/// The files as they were last read.
#[derive(Debug, Default)]
pub(super) struct Files {
    /// The directory could be read.
    is_listed: bool,
    /// So could each file in it.
    is_read: bool,
    /// By name, which is the order in which they count.
    files: BTreeMap<OsString, File>,
}

#[derive(Debug, Default)]
struct File {
    /// Of the file as it was when it was read last, if a change since then shows.
    stamp: Option<Stamp>,
    /// Of the text that was read last, good or not.
    digest: u64,
    /// What is wrong with that text.
    problems: Vec<ConfigError>,
    /// A text was good since the start.
    known: bool,
    /// Of the last text that was good.
    objects: Vec<(Id, Content)>,
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

/// What a look came to.
#[derive(Debug)]
pub(super) struct Look {
    /// All that is wrong with files, also with those that were not read again.
    pub(super) problems: Vec<ConfigError>,
    /// Objects may be others than before.
    pub(super) changed: bool,
    /// Files that were read.
    pub(super) read: usize,
}

/// Takes files apart.
pub(super) struct Reader {
    directory: PathBuf,
    checker: Checker,
    sink: Sink,
    /// Seconds since 1970. Tests have another one.
    clock: fn() -> i64,
}

/// The objects of a file, or what is wrong with it.
type Objects = Result<Vec<(Id, Content)>, Vec<ConfigError>>;

/// One file, read.
enum Outcome {
    /// It holds the text that it held, or one with these objects.
    Text {
        stamp: Option<Stamp>,
        digest: u64,
        objects: Option<Objects>,
    },
    Unreadable(ConfigError),
}

impl Files {
    /// The directory and each file in it could be read.
    pub(super) fn are_read(&self) -> bool {
        self.is_listed && self.is_read
    }

    /// The directory could be read once.
    pub(super) fn are_listed(&self) -> bool {
        self.is_listed
    }

    /// Each file was good once.
    pub(super) fn are_known(&self) -> bool {
        self.files.values().all(|file| file.known)
    }

    /// The last good content of each, in order, with its name.
    pub(super) fn objects(&self) -> impl Iterator<Item = (&OsString, &Id, &Content)> {
        let all = self.files.iter();
        all.flat_map(|(name, file)| file.objects.iter().map(move |(id, c)| (name, id, c)))
    }

    /// Looks which files changed and reads those.
    pub(super) fn look(&mut self, reader: &Reader) -> Look {
        let mut look = Look {
            problems: Vec::new(),
            changed: false,
            read: 0,
        };
        self.is_read = false;
        let names = match names(&reader.directory) {
            Ok(names) => names,
            // What is known stays: somebody may be replacing the directory at this moment.
            Err(error) => {
                look.problems.push(error);
                return look;
            }
        };
        let before = self.files.len();
        self.files.retain(|name, _| names.contains(name));
        look.changed = self.files.len() != before;
        self.is_listed = true;
        self.is_read = true;
        let files = &self.files;
        let old: Vec<(OsString, u64)> = names
            .into_iter()
            .filter_map(|name| {
                let known = files.get(&name);
                let is_same = known.is_some_and(|file| {
                    let meta = fs::metadata(reader.directory.join(&name)).ok();
                    file.stamp.is_some() && file.stamp == meta.as_ref().map(Stamp::new)
                });
                let digest = known.map_or(0, |file| file.digest);
                (!is_same).then_some((name, digest))
            })
            .collect();
        look.read = old.len();
        for (name, outcome) in reader.read_all(&old) {
            match outcome {
                Outcome::Unreadable(error) => {
                    self.is_read = false;
                    if let Some(file) = self.files.get_mut(name) {
                        file.stamp = None;
                    }
                    look.problems.push(error);
                }
                Outcome::Text {
                    stamp,
                    digest,
                    objects,
                } => {
                    let file = self.files.entry(name.clone()).or_default();
                    file.stamp = stamp;
                    file.digest = digest;
                    match objects {
                        None => {}
                        Some(Ok(objects)) => {
                            file.objects = objects;
                            file.problems = Vec::new();
                            file.known = true;
                            look.changed = true;
                        }
                        Some(Err(problems)) => file.problems = problems,
                    }
                }
            }
        }
        let known = self.files.values().flat_map(|file| &file.problems);
        look.problems.extend(known.cloned());
        look
    }
}

impl Reader {
    /// Of this directory.
    ///
    /// # Errors
    /// The rules of the CRDs cannot be compiled, which is a bug.
    pub(super) fn new(directory: PathBuf, sink: Sink) -> Result<Self, GenerateError> {
        Ok(Self {
            directory,
            checker: Checker::new()?,
            sink,
            clock: now,
        })
    }

    /// Reads these files, of which the digests are known, several at a time; in their order.
    fn read_all<'a>(&self, files: &'a [(OsString, u64)]) -> Vec<(&'a OsString, Outcome)> {
        let most = thread::available_parallelism().map_or(1, usize::from);
        let wanted = files.len() / FILES_PER_READER;
        let readers = wanted.clamp(1, most.min(LIMIT_READERS));
        let next = AtomicUsize::new(0);
        let work = || {
            let mut text = String::new();
            let mut done = Vec::new();
            while let at = next.fetch_add(1, Relaxed)
                && let Some((name, digest)) = files.get(at)
            {
                done.push((at, self.read(name, *digest, &mut text)));
            }
            done
        };
        let mut done = thread::scope(|scope| {
            let others: Vec<_> = (1..readers).map(|_| scope.spawn(work)).collect();
            let mut done = work();
            for other in others {
                match other.join() {
                    Ok(more) => done.extend(more),
                    // A bug, which ends the process as it would without threads.
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            done
        });
        done.sort_unstable_by_key(|(at, _)| *at);
        let names = files.iter().map(|(name, _)| name);
        names.zip(done.into_iter().map(|(_, done)| done)).collect()
    }

    /// Reads one file; `known` is the digest of the text that it had, `text` is room for the new one.
    fn read(&self, name: &OsString, known: u64, text: &mut String) -> Outcome {
        let path = self.directory.join(name);
        let stamp = match self.text(&path, text) {
            Ok(stamp) => stamp,
            Err(error) => return Outcome::Unreadable(error),
        };
        let digest = digest(text);
        let objects = (digest != known).then(|| objects(&self.sink, &self.checker, &path, text));
        Outcome::Text {
            stamp,
            digest,
            objects,
        }
    }

    /// A file's text, and its stamp if that is of use.
    fn text(&self, file: &Path, text: &mut String) -> Result<Option<Stamp>, ConfigError> {
        let unreadable = |problem: String| ConfigError::unreadable(file, problem);
        let failed = |error: std::io::Error| unreadable(format!("cannot be read: {error}"));
        // In this order: what is written while it is read shows at the next look.
        let now = (self.clock)();
        let mut open = fs::File::open(file).map_err(failed)?;
        let meta = open.metadata().map_err(failed)?;
        if meta.len() > LIMIT_FILE_BYTES {
            let limit = LIMIT_FILE_BYTES >> 20;
            return Err(unreadable(format!("is larger than {limit} MiB: split it")));
        }
        text.clear();
        open.read_to_string(text).map_err(failed)?;
        let stamp = Stamp::new(&meta);
        Ok(stamp.is_settled(now).then_some(stamp))
    }
}

/// In seconds since 1970.
fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| i64::try_from(now.as_secs()).unwrap_or(i64::MAX))
}

/// Tells one text from another. Never 0, which is no text.
fn digest(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish().max(1)
}

/// The manifests' files, in order of their names.
fn names(directory: &Path) -> Result<BTreeSet<OsString>, ConfigError> {
    let unreadable = |error: std::io::Error| {
        ConfigError::unreadable(directory, format!("cannot be read: {error}"))
    };
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(directory).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
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
            return Err(ConfigError::unreadable(directory, problem));
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
#[path = "files_tests.rs"]
mod tests;
