//! The committed corpora of a crate's fuzz targets. Used by the fuzzing of several crates.
//!
//! bolero replays what it finds and says nothing if it finds nothing; here a corpus that is not
//! there is a failure.

use std::{fs, path::PathBuf};

/// Inputs of one target's corpus: enough that each says something of its own, few enough to be run
/// each time.
const INPUTS_MAX: usize = 200;
/// Bytes of one input.
const INPUT_BYTES_MAX: usize = 2_048;

/// The inputs of a target's corpus with their names, in the order of the names.
///
/// # Panics
/// If the corpus is missing, empty or too large.
pub fn inputs(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder: PathBuf =
        [env!("CARGO_MANIFEST_DIR"), "fuzz/__fuzz__", target, "corpus"].iter().collect();
    let entries = fs::read_dir(&folder);
    let entries = entries.unwrap_or_else(|e| panic!("no corpus of {target}: {e}"));
    let mut inputs: Vec<(String, Vec<u8>)> = entries
        .map(|entry| {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name").to_string_lossy();
            (name.into_owned(), fs::read(&path).expect("an input"))
        })
        .collect();
    inputs.sort();
    assert!(!inputs.is_empty(), "the corpus of {target} is empty");
    assert!(inputs.len() <= INPUTS_MAX, "{} of {target}", inputs.len());
    for (name, input) in &inputs {
        assert!(input.len() <= INPUT_BYTES_MAX, "{target}/{name} is large");
    }
    inputs
}

/// Runs a target over its corpus. The name of each input is printed first, so that a failure shows
/// it.
///
/// # Panics
/// As `target` does, and if the corpus is missing.
pub fn replay(name: &str, target: impl Fn(&[u8])) {
    for (input, bytes) in inputs(name) {
        println!("{name}/{input}");
        target(&bytes);
    }
}
