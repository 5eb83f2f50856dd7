//! Manifests of this repository, read from their folders as JSON values.

use anyhow::{Context, Result};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// The repository's root.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The YAML files right in a folder of the repository, sorted by name.
pub fn files(folder: &str) -> Result<Vec<PathBuf>> {
    let path = root().join(folder);
    let mut files: Vec<_> = fs::read_dir(&path)
        .with_context(|| format!("reading {}", path.display()))?
        .filter_map(|entry| entry.ok().map(|e| e.path()))
        .filter(|file| file.extension().is_some_and(|e| e == "yaml"))
        .collect();
    files.sort();
    anyhow::ensure!(!files.is_empty(), "{} holds no .yaml file", path.display());
    Ok(files)
}

/// The documents of one YAML file.
pub fn read(file: &Path) -> Result<Vec<Value>> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    parse(&text).with_context(|| file.display().to_string())
}

/// The documents of a YAML text.
pub fn parse(text: &str) -> Result<Vec<Value>> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text)?;
    Ok(documents.into_iter().filter(|d| !d.is_null()).collect())
}

/// All documents of the YAML files of a folder of the repository.
pub fn folder(folder: &str) -> Result<Vec<Value>> {
    let mut documents = Vec::new();
    for file in files(folder)? {
        documents.append(&mut read(&file)?);
    }
    Ok(documents)
}
