//! The directory source: manifests of a directory, read again when they change.
//!
//! Owns which objects the files hold and what changed in them. A file that is bad is reported with its line and field, and
//! its last good content stays; so one slip of a pen takes nobody's backends away.

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
use baton_index::Key;
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
    let mut synced = false;
    // It ends when nobody listens any more.
    while directory.tell(&sink).await.is_ok() {
        if directory.is_whole() && !synced {
            synced = true;
            for kind in Kind::ALL {
                if sink.synced(kind).await.is_err() {
                    return Ok(());
                }
            }
            let objects = directory.told.len();
            info!(directory = %directory.path.display(), objects, "all manifests are known");
        } else if !synced {
            warn!(
                "nothing is pushed before all files were good once: dataplanes would lose what the bad ones held before \
                 this start"
            );
        }
        watch.changed().await;
    }
    Ok(())
}

/// Which object.
type Id = (Kind, Key);
/// An object as text: a tenth of what the parsed one takes.
type Json = Arc<str>;

/// The directory as it was last read.
pub(super) struct Directory {
    path: PathBuf,
    checker: Checker,
    /// The directory could be read, and each file in it.
    is_read: bool,
    /// The last good content of each file.
    files: BTreeMap<PathBuf, File>,
    /// Objects as they were told.
    told: BTreeMap<Id, Json>,
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
    objects: Vec<(Id, Json)>,
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
            is_read: false,
            files: BTreeMap::new(),
            told: BTreeMap::new(),
            problems: BTreeSet::new(),
        })
    }

    /// Whether each file was good at least once, so that what was told is all there is.
    pub(super) fn is_whole(&self) -> bool {
        self.is_read && self.files.values().all(|file| file.known)
    }

    /// Reads what changed and tells it.
    pub(super) async fn tell(&mut self, sink: &Sink) -> Result<(), Ended> {
        let mut problems = self.read();
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
            let told = translated(sink, kind, &id.1, &value);
            sink.tell(kind, &id.1, told).await?;
            self.told.insert(id, value);
        }
        Ok(())
    }

    /// Reads the files that changed. Gives all problems there are, also those of files that did not.
    fn read(&mut self) -> Vec<ConfigError> {
        self.is_read = false;
        let names = match names(&self.path) {
            Ok(names) => names,
            // What is known stays: somebody may be replacing the directory at this moment.
            Err(error) => return vec![error],
        };
        self.files.retain(|file, _| names.contains(file));
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
                match objects(&self.checker, &file, &text) {
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
    fn merged(&self, problems: &mut Vec<ConfigError>) -> BTreeMap<Id, Json> {
        let mut merged = BTreeMap::new();
        let mut from: BTreeMap<&Id, &Path> = BTreeMap::new();
        for (file, content) in &self.files {
            for (id, value) in &content.objects {
                match merged.entry(id.clone()) {
                    Entry::Vacant(vacant) => {
                        vacant.insert(Arc::clone(value));
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
    checker: &Checker,
    file: &Path,
    text: &str,
) -> Result<Vec<(Id, Json)>, Vec<ConfigError>> {
    let report = checker.check(text, file);
    if !report.problems.is_empty() {
        return Err(report.problems);
    }
    let manifests = manifest::read(file, text).map_err(|error| vec![error])?;
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
            Ok(key) => objects.push(((kind, key), manifest.value.to_string().into())),
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
