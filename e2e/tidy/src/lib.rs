//! What the tree looks like: the workspace's packages and files, for the tests beside this crate.
//!
//! Owns reading `cargo metadata` and the list of files under version control; `metrics` owns the
//! reference of metrics. Judges nothing itself.

pub mod metrics;

use serde_json::Value;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
};

/// A package of the workspace.
#[derive(Debug)]
pub struct Package {
    /// Folder relative to the workspace's root.
    pub folder: String,
    /// Names of what it depends on outside of tests: workspace packages and registry crates.
    pub dependencies: Vec<String>,
    /// Whether it builds a library.
    pub library: bool,
}

/// The workspace's root.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the root exists")
}

/// The packages of the workspace by name.
///
/// # Panics
/// If cargo does not answer: there is nothing to test then.
#[must_use]
pub fn packages() -> BTreeMap<String, Package> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON");
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let list = |v: &Value| v.as_array().cloned().unwrap_or_default();
    let root = root();
    list(&metadata["packages"])
        .iter()
        .map(|package| {
            let manifest = PathBuf::from(text(&package["manifest_path"]));
            let folder = manifest.parent().expect("a manifest is in a folder");
            let folder = folder.strip_prefix(&root).expect("in the workspace");
            let dependencies = list(&package["dependencies"])
                .iter()
                .filter(|d| d["kind"].is_null())
                .map(|d| text(&d["name"]))
                .collect();
            let library = list(&package["targets"])
                .iter()
                .any(|t| list(&t["kind"]).iter().any(|k| k == "lib"));
            let folder = folder.to_string_lossy().into_owned();
            (text(&package["name"]), Package { folder, dependencies, library })
        })
        .collect()
}

/// Source files of the tree, relative to the root: tracked ones and new ones that are not ignored.
///
/// # Panics
/// If git does not answer.
#[must_use]
pub fn files() -> Vec<String> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .expect("git runs");
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter(|f| root().join(f).is_file())
        .map(str::to_owned)
        .collect()
}
