//! Short administration commands (`ip`, `ethtool`): run, check, give the output.
//!
//! Never runs anything that outlives the call; see [`crate::node::process`] for that.

use anyhow::{Context, Result, bail};
use std::{
    io::Write,
    process::{Command, Stdio},
};

/// Runs a program and gives its standard output.
///
/// # Errors
/// If it cannot be started, or with what it wrote to standard error if it fails.
pub fn run(program: &str, arguments: &[&str]) -> Result<String> {
    with_input(program, arguments, "")
}

/// As [`run`], with a text on standard input.
pub fn with_input(program: &str, arguments: &[&str], input: &str) -> Result<String> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting `{program}`: is it installed? (`make setup`)"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that does not read its input closes the pipe; its exit status says what
        // happened.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!(
            "`{program} {}` failed ({}): {}{}",
            arguments.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim(),
            if input.is_empty() { String::new() } else { format!("\ninput was:\n{input}") }
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
