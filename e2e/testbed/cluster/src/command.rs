//! Short administration commands (`ip`, `apt-get`, `ctr`): run, check, give the output. Nothing
//! outlives the call.

use anyhow::{Context, Result, ensure};
use std::{
    ffi::OsStr,
    process::{Command, Stdio},
};

/// Runs a program and gives its standard output.
///
/// # Errors
/// If it cannot be started, or with what it wrote to standard error if it fails.
pub(crate) fn run<S: AsRef<OsStr>>(program: impl AsRef<OsStr>, arguments: &[S]) -> Result<String> {
    check(Command::new(program).args(arguments))
}

/// Runs a prepared command; as [`run`].
pub(crate) fn check(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("starting {command:?}: is it installed? (`make setup`)"))?;
    ensure!(
        output.status.success(),
        "{command:?} failed ({}): {}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim(),
        String::from_utf8_lossy(&output.stdout).trim(),
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs `ip` with words separated by blanks.
pub(crate) fn ip(words: &str) -> Result<String> {
    run("ip", &words.split_whitespace().collect::<Vec<_>>())
}
