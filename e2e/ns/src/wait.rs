//! Waiting for conditions: always with a deadline, never for luck.

use anyhow::{Context, Result};
use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// Long against everything that a test waits for, short against a person's patience.
pub const DEADLINE: Duration = Duration::from_secs(20);
/// Time between two looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// Waits until `condition` gives a value.
///
/// # Errors
/// The condition's last refusal, at the deadline.
pub fn until<T>(what: &str, mut condition: impl FnMut() -> Result<T>) -> Result<T> {
    let end = Instant::now() + DEADLINE;
    loop {
        match condition() {
            Ok(value) => return Ok(value),
            Err(e) if Instant::now() >= end => {
                return Err(e).with_context(|| format!("not {what} after {DEADLINE:?}"));
            }
            Err(_) => thread::sleep(LOOK_INTERVAL),
        }
    }
}

/// Writes a file as a whole or not at all: a running program may watch it.
pub fn write_whole(path: &Path, text: &str) -> Result<()> {
    let new = path.with_extension("whole");
    fs::write(&new, text)
        .and_then(|()| fs::rename(&new, path))
        .with_context(|| path.display().to_string())
}
