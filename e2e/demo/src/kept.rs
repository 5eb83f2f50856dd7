//! What a run leaves behind: its report as a file, and why it failed.

use anyhow::{Context, Result};
use serde::Serialize;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Writes a report as JSON into a folder, which is made if need be. Returns where it is.
pub fn keep(folder: &Path, name: &str, report: &impl Serialize) -> Result<PathBuf> {
    fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let path = folder.join(name);
    fs::write(&path, serde_json::to_string_pretty(report)? + "\n")
        .with_context(|| path.display().to_string())?;
    Ok(path)
}

/// Says why a run did not show what it is for. `true` if it did.
pub fn succeeded(failures: &[String]) -> bool {
    for failure in failures {
        eprintln!("baton-demo: {failure}");
    }
    failures.is_empty()
}
