//! The directory source: manifests of a directory, read again when they change.
//!
//! Owns which objects the files hold and what changed in them. A file that is bad is reported with its line and field, and
//! its last good content stays; so one slip of a pen takes nobody's backends away. If it was bad from the start, nobody knows
//! what it held: then the core is told that objects may be missing, and dataplanes keep what they have of them.

use super::{Ended, Sink, Told, directory_watch::Watch};
use crate::{
    kind::Kind,
    manifest::{self, LIMIT_FILE_BYTES, Manifest},
    objects::{Node, Pod, RawClass, RawPolicy},
    source::report,
    translate,
};
use baton_config::ConfigError;
use baton_crds::{Checker, GenerateError};
use baton_index::{Change, Key};
use k8s_openapi::{
    api::{core::v1::Service, discovery::v1::EndpointSlice},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::ResourceExt;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
    sync::Arc,
};
use tracing::{error, info, warn};

/// Files of one directory.
const LIMIT_FILES: usize = 10_000;

/// Follows a directory until the core ends.
///
/// # Errors
/// The directory cannot be read at the start, or not be watched.
pub async fn run(path: PathBuf, sink: Sink) -> anyhow::Result<()> {
    let mut watch = Watch::new(&path)?;
    let mut directory = Directory::new(path)?;
    let mut told = Known::Nothing;
    // It ends when nobody listens any more.
    while directory.tell(&sink).await.is_ok() {
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

/// Which object.
type Id = (Kind, Key);
/// An object as text: a tenth of what the parsed one takes.
type Json = Arc<str>;

/// What a file says of an object.
#[derive(Clone, Debug)]
enum Content {
    /// As it stands there: what is told of it depends on more than that.
    Text(Json),
    /// What is told of it, which the index keeps anyhow, and a digest of how it stands there.
    Plain(u64, Change),
}

impl PartialEq for Content {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Text(one), Self::Text(other)) => one == other,
            (Self::Plain(one, _), Self::Plain(other, _)) => one == other,
            _ => false,
        }
    }
}

/// The directory as it was last read.
pub(super) struct Directory {
    path: PathBuf,
    checker: Checker,
    /// The directory could be read.
    is_listed: bool,
    /// So could each file in it.
    is_read: bool,
    /// The last good content of each file.
    files: BTreeMap<PathBuf, File>,
    /// Objects as they were told.
    told: BTreeMap<Id, Content>,
    /// What was reported, so that it is reported once.
    problems: BTreeSet<String>,
}

#[derive(Debug, Default)]
struct File {
    /// Of the text that was read last, good or not.
    digest: u64,
    /// What is wrong with that text.
    problems: Vec<ConfigError>,
    /// A text was good since the start.
    known: bool,
    /// Of the last text that was good.
    objects: Vec<(Id, Content)>,
}

impl Directory {
    /// Nothing is read yet.
    ///
    /// # Errors
    /// The rules of the CRDs cannot be compiled, which is a bug.
    pub(super) fn new(path: PathBuf) -> Result<Self, GenerateError> {
        Ok(Self {
            path,
            checker: Checker::new()?,
            is_listed: false,
            is_read: false,
            files: BTreeMap::new(),
            told: BTreeMap::new(),
            problems: BTreeSet::new(),
        })
    }

    /// How much of what there was at the start is known.
    pub(super) fn known(&self) -> Known {
        if !self.is_listed {
            Known::Nothing
        } else if self.is_read && self.files.values().all(|file| file.known) {
            Known::All
        } else {
            Known::Part
        }
    }

    /// Reads what changed and tells it.
    pub(super) async fn tell(&mut self, sink: &Sink) -> Result<(), Ended> {
        let mut problems = self.read(sink);
        let objects = self.merged(&mut problems);
        let refused = i64::try_from(problems.len()).unwrap_or(i64::MAX);
        sink.metrics
            .refused
            .with_label_values(&["file"])
            .set(refused);
        self.report(&problems);
        let gone: Vec<Id> = self
            .told
            .keys()
            .filter(|id| !objects.contains_key(id))
            .cloned()
            .collect();
        for id in gone {
            self.told.remove(&id);
            let (kind, key) = id;
            report::gone(sink, kind, &key);
            sink.change(kind, translate::gone(kind, key)).await?;
        }
        for ((kind, key), value) in objects {
            let id = (kind, key);
            if self.told.get(&id).is_some_and(|told| *told == value) {
                continue;
            }
            let told = match &value {
                Content::Text(json) => translated(sink, kind, &id.1, json),
                Content::Plain(_, change) => Told::Change(change.clone()),
            };
            sink.tell(kind, &id.1, told).await?;
            self.told.insert(id, value);
        }
        Ok(())
    }

    /// Reads the files that changed. Gives all problems there are, also those of files that did not.
    fn read(&mut self, sink: &Sink) -> Vec<ConfigError> {
        self.is_read = false;
        let names = match names(&self.path) {
            Ok(names) => names,
            // What is known stays: somebody may be replacing the directory at this moment.
            Err(error) => return vec![error],
        };
        self.files.retain(|file, _| names.contains(file));
        self.is_listed = true;
        self.is_read = true;
        let mut problems = Vec::new();
        for file in names {
            let text = match text(&file) {
                Ok(text) => text,
                Err(error) => {
                    self.is_read = false;
                    problems.push(error);
                    continue;
                }
            };
            let known = self.files.entry(file.clone()).or_default();
            let digest = digest(&text);
            if known.digest != digest {
                known.digest = digest;
                match objects(sink, &self.checker, &file, &text) {
                    Ok(objects) => {
                        known.objects = objects;
                        known.problems = Vec::new();
                        known.known = true;
                    }
                    Err(errors) => known.problems = errors,
                }
            }
            problems.extend(known.problems.iter().cloned());
        }
        problems
    }

    /// All objects of all files; of two with one name, the first file's.
    fn merged(&self, problems: &mut Vec<ConfigError>) -> BTreeMap<Id, Content> {
        let mut merged = BTreeMap::new();
        let mut from: BTreeMap<&Id, &Path> = BTreeMap::new();
        for (file, content) in &self.files {
            for (id, value) in &content.objects {
                match merged.entry(id.clone()) {
                    Entry::Vacant(vacant) => {
                        vacant.insert(value.clone());
                        from.insert(id, file);
                    }
                    Entry::Occupied(_) => {
                        let (kind, key) = id;
                        let first = from.get(id).map_or(file.as_path(), |first| first);
                        let problem = format!(
                            "{} {key} is in {} already, which counts: remove one of them",
                            kind.as_str(),
                            first.display()
                        );
                        problems.push(ConfigError::new(file, problem));
                    }
                }
            }
        }
        merged
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

/// Tells one text from another. Never 0, which is no text.
fn digest(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish().max(1)
}

/// The manifests' files, in order of their names.
fn names(directory: &Path) -> Result<BTreeSet<PathBuf>, ConfigError> {
    let unreadable = |error: std::io::Error| {
        ConfigError::unreadable(directory, format!("cannot be read: {error}"))
    };
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(directory).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let extension = path.extension().and_then(|extension| extension.to_str());
        let is_manifest = matches!(extension, Some("yaml" | "yml" | "json"));
        // Hidden files are editors' and half-written ones; those behind links are what counts.
        let is_hidden = name.is_none_or(|name| name.starts_with('.'));
        if is_manifest && !is_hidden && !path.is_dir() {
            names.insert(path);
        }
        if names.len() > LIMIT_FILES {
            let problem = format!("more than {LIMIT_FILES} files: put several objects into one");
            return Err(ConfigError::unreadable(directory, problem));
        }
    }
    Ok(names)
}

fn text(file: &Path) -> Result<String, ConfigError> {
    let unreadable = |problem: String| ConfigError::unreadable(file, problem);
    let size =
        fs::metadata(file).map_err(|error| unreadable(format!("cannot be read: {error}")))?;
    if size.len() > LIMIT_FILE_BYTES {
        let limit = LIMIT_FILE_BYTES >> 20;
        return Err(unreadable(format!("is larger than {limit} MiB: split it")));
    }
    fs::read_to_string(file).map_err(|error| unreadable(format!("cannot be read: {error}")))
}

/// The objects of a file that matter here.
fn objects(
    sink: &Sink,
    checker: &Checker,
    file: &Path,
    text: &str,
) -> Result<Vec<(Id, Content)>, Vec<ConfigError>> {
    let manifests = match manifest::read(file, text) {
        Ok(manifests) => manifests,
        Err(error) => {
            // The check has better words for what it refuses too.
            let problems = checker.check(text, file).problems;
            return Err(if problems.is_empty() {
                vec![error]
            } else {
                problems
            });
        }
    };
    // It has nothing to say of other kinds, which are most of the text.
    let is_other = |manifest: &Manifest| {
        let kind = Kind::of(&manifest.api_version, &manifest.kind);
        kind.is_some_and(|kind| !matches!(kind, Kind::Policy | Kind::Class))
    };
    let checked = manifest::without(text, &manifests, is_other);
    let report = checker.check(&checked, file);
    if !report.problems.is_empty() {
        return Err(report.problems);
    }
    let mut objects = Vec::new();
    let mut problems = Vec::new();
    for manifest in manifests {
        let Some(kind) = Kind::of(&manifest.api_version, &manifest.kind) else {
            warn!(
                file = %file.display(),
                kind = manifest.kind,
                api_version = manifest.api_version,
                "not read: this kind does not matter here"
            );
            continue;
        };
        match readable(kind, &manifest) {
            Ok(key) => {
                let content = content(sink, kind, &key, &manifest.value.to_string());
                objects.push(((kind, key), content));
            }
            Err((field, words)) => {
                problems.push(manifest::problem(
                    file,
                    text,
                    &manifest.place,
                    &field,
                    words,
                ));
            }
        }
    }
    if problems.is_empty() {
        Ok(objects)
    } else {
        Err(problems)
    }
}

/// What is kept of an object.
fn content(sink: &Sink, kind: Kind, key: &Key, json: &str) -> Content {
    let plain = match kind {
        Kind::Service | Kind::Slice => told(sink, kind, key, json),
        Kind::Policy | Kind::Class | Kind::Pod | Kind::Node => None,
    };
    match plain {
        Some(Told::Change(change)) => Content::Plain(digest(json), change),
        _ => Content::Text(json.into()),
    }
}

/// Whether an object can be read as what it says it is; its key if so.
fn readable(kind: Kind, manifest: &Manifest) -> Result<Key, (String, String)> {
    let value = &manifest.value;
    let meta = match kind {
        Kind::Policy => parse::<RawPolicy>(value)?.metadata,
        Kind::Class => parse::<RawClass>(value)?.metadata,
        Kind::Service => parse::<Service>(value)?.metadata,
        Kind::Slice => parse::<EndpointSlice>(value)?.metadata,
        Kind::Pod => parse::<Pod>(value)?.metadata,
        Kind::Node => parse::<Node>(value)?.metadata,
    };
    Ok(key(kind, &meta))
}

/// As `kubectl` does it: what is in no namespace is in `default`.
fn key(kind: Kind, meta: &ObjectMeta) -> Key {
    let namespace = match (kind.is_namespaced(), &meta.namespace) {
        (false, _) => "",
        (true, None) => "default",
        (true, Some(namespace)) => namespace,
    };
    Key::new(namespace, meta.name.as_deref().unwrap_or_default())
}

fn parse<T: DeserializeOwned>(value: &Value) -> Result<T, (String, String)> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        (path, error.inner().to_string())
    })
}

/// What is told of an object.
fn translated(sink: &Sink, kind: Kind, key: &Key, json: &str) -> Told {
    told(sink, kind, key, json).unwrap_or(Told::Nothing)
}

/// Nothing if it is not readable, which was found out before.
fn told(sink: &Sink, kind: Kind, key: &Key, json: &str) -> Option<Told> {
    fn object<T: DeserializeOwned + ResourceExt>(json: &str, key: &Key) -> Option<T> {
        let mut object: T = serde_json::from_str(json).ok()?;
        if !key.namespace.is_empty() {
            object.meta_mut().namespace = Some(key.namespace.to_string());
        }
        Some(object)
    }
    Some(match kind {
        Kind::Policy => report::policy(sink, key, &object::<RawPolicy>(json, key)?),
        Kind::Class => report::class(sink, key, &object::<RawClass>(json, key)?),
        Kind::Service => {
            let service: Service = object(json, key)?;
            sink.caught(kind, key, |t| t.service(&service)).into()
        }
        Kind::Slice => {
            let slice: EndpointSlice = object(json, key)?;
            sink.caught(kind, key, |t| t.slice(&slice)).into()
        }
        Kind::Pod => {
            let pod: Pod = object(json, key)?;
            sink.caught(kind, key, |t| t.pod(&pod)).into()
        }
        Kind::Node => {
            let node: Node = object(json, key)?;
            sink.caught(kind, key, |t| t.node(&node)).into()
        }
    })
}
