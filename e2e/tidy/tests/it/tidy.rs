//! The tree keeps its own rules.

use baton_tidy::{files, packages, root};
use std::{collections::BTreeSet, fs};

/// Crates that know no I/O, no clock, no randomness of their own, and what each may depend on.
const PURE: &[(&str, &[&str])] = &[
    ("baton-packet", &["multiversion", "siphasher", "strum", "thiserror"]),
    ("baton-api", &["ring", "serde", "serde_json", "serde_path_to_error", "thiserror"]),
    ("baton-guard", &["memchr", "strum"]),
    (
        "baton-engine",
        &[
            "baton-api",
            "baton-guard",
            "baton-packet",
            "fastrand",
            "siphasher",
            "strum",
            "thiserror",
            "wide",
        ],
    ),
    ("baton-sim", &["baton-api", "baton-engine", "baton-packet", "fastrand", "smoltcp", "strum"]),
    ("baton-model", &["baton-engine", "baton-packet", "stateright"]),
    ("baton-index", &["baton-api", "serde", "thiserror"]),
];

/// Which packages of ours each package may use (tests aside).
const ALLOWED: &[(&str, &[&str])] = &[
    ("baton-packet", &[]),
    ("baton-api", &[]),
    ("baton-guard", &[]),
    ("baton-engine", &["baton-api", "baton-guard", "baton-packet"]),
    ("baton-sim", &["baton-api", "baton-engine", "baton-packet"]),
    ("baton-model", &["baton-engine", "baton-packet"]),
    ("xtask", &["baton-sim", "baton-engine"]),
    ("baton-xsk", &[]),
    (
        "lb-dataplane",
        &[
            "baton-api",
            "baton-engine",
            "baton-packet",
            "baton-xsk",
            "baton-config",
            "baton-cli",
            "baton-tls",
        ],
    ),
    ("baton-cli", &["baton-api", "baton-config"]),
    ("baton-adopter", &[]),
    ("baton-sdk", &[]),
    ("baton-sdk-c", &["baton-sdk"]),
    ("baton-files", &["baton-sdk"]),
    (
        "host-shim",
        &[
            "baton-adopter",
            "baton-api",
            "baton-config",
            "baton-crds",
            "baton-sdk",
            "baton-tcp-repair",
            "baton-tls",
        ],
    ),
    ("baton-config", &["baton-tls"]),
    ("baton-tls", &[]),
    ("baton-crds", &["baton-api", "baton-config"]),
    ("baton-index", &["baton-api"]),
    ("baton-push", &["baton-api", "baton-tls"]),
    (
        "baton-operator",
        &["baton-api", "baton-config", "baton-crds", "baton-index", "baton-push", "baton-tls"],
    ),
    ("kubectl-baton", &["baton-api", "baton-crds", "baton-apiserver", "baton-cli"]),
    ("baton-kubernetes", &[]),
    ("baton-apiserver", &["baton-kubernetes"]),
    ("baton-images", &[]),
    ("baton-cluster", &["baton-images", "baton-kubernetes"]),
    ("baton-operator-tests", &["baton-apiserver", "baton-api", "baton-crds", "baton-tls"]),
    ("baton-lab", &["baton-api", "baton-kubernetes"]),
    ("baton-e2e", &["baton-cluster"]),
    ("baton-demo", &["baton-lab", "baton-api"]),
    ("baton-ns", &["baton-lab", "baton-api", "baton-packet"]),
    ("baton-tcp-repair", &[]),
    ("baton-tidy", &[]),
];

/// The crates that box unsafe code.
const UNSAFE: &[&str] = &[
    "lb-dataplane/xsk/",
    "host-shim/adopter/",
    "host-shim/sdk/c/",
    "host-shim/tcp-repair/",
    "e2e/lab/",
];

#[test]
fn dependencies_point_one_way() {
    let packages = packages();
    for (name, package) in &packages {
        let allowed = ALLOWED.iter().find(|(n, _)| n == name);
        let allowed = allowed.unwrap_or_else(|| panic!("{name} has no row in ALLOWED")).1;
        for dependency in package.dependencies.iter().filter(|d| packages.contains_key(*d)) {
            assert!(allowed.contains(&dependency.as_str()), "{name} must not use {dependency}");
            assert!(packages[dependency].library, "{name} depends on the binary {dependency}");
        }
    }
    for (name, allowed) in PURE {
        for dependency in &packages[*name].dependencies {
            assert!(
                allowed.contains(&dependency.as_str()),
                "{name} is pure and must not use {dependency}"
            );
        }
    }
}

#[test]
fn pure_crates_touch_no_clock_and_no_io() {
    let packages = packages();
    for (name, _) in PURE {
        let folder = format!("{}/src/", packages[*name].folder);
        for file in files().iter().filter(|f| f.starts_with(&folder)) {
            let text = fs::read_to_string(root().join(file)).expect(file);
            for word in
                ["std::time", "SystemTime", "std::fs", "std::thread", "std::env", "println!"]
            {
                assert!(!text.contains(word), "{file} says {word}, but {name} is pure");
            }
        }
    }
}

#[test]
fn the_map_of_the_code_is_true() {
    let map = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let named: BTreeSet<String> = map
        .lines()
        .filter_map(|l| l.strip_prefix("| `"))
        .filter_map(|l| l.split_once('`'))
        .map(|(folder, _)| folder.trim_end_matches('/').to_owned())
        .filter(|folder| root().join(folder).join("Cargo.toml").exists() || folder.contains('/'))
        .collect();
    let real: BTreeSet<String> = packages().values().map(|p| p.folder.clone()).collect();
    let missing: Vec<_> = real.difference(&named).collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md's map lacks {missing:?}");
    for folder in &named {
        assert!(root().join(folder).exists(), "ARCHITECTURE.md names {folder}, which is not there");
    }
}

#[test]
fn unsafe_stays_in_its_boxes() {
    for file in files().iter().filter(|f| f.ends_with(".rs") && !f.starts_with("e2e/tidy/")) {
        let text = fs::read_to_string(root().join(file)).expect(file);
        let says = text.lines().any(|l| {
            let code = l.split("//").next().unwrap_or_default();
            code.contains("unsafe {") || code.contains("unsafe impl") || code.contains("unsafe fn")
        });
        let boxed = UNSAFE.iter().any(|b| file.starts_with(b));
        assert!(!says || boxed, "{file} holds unsafe code outside the crates that box it");
    }
}

#[test]
fn nothing_of_one_machine_is_committed() {
    // Spelled in two halves so that this file does not contain them.
    let words = [concat!("/wo", "rk/"), concat!("/ro", "ot/")];
    for file in files().iter().filter(|f| !f.ends_with(".lock")) {
        let Ok(text) = fs::read_to_string(root().join(file)) else {
            continue;
        };
        for word in words {
            assert!(!text.contains(word), "{file} holds a path of one machine: {word}");
        }
    }
}

#[test]
fn every_source_file_says_what_it_is() {
    for file in files().iter().filter(|f| f.ends_with(".rs")) {
        let text = fs::read_to_string(root().join(file)).expect(file);
        let first = text.lines().find(|l| !l.starts_with("#![")).unwrap_or_default();
        assert!(first.starts_with("//!"), "{file} does not begin with what it owns (`//!`)");
    }
}
