//! What must be there before anything is set up, said in words that tell what to do.

use anyhow::{Result, bail};
use std::{env, fs, os::unix::fs::MetadataExt};

/// Programs that every subcommand needs.
const PROGRAMS: [&str; 3] = ["ip", "nginx", "wrk"];

/// Checks for root, Debian's programs (`more` on top of the common ones) and Baton's own.
pub fn check(more: &[&str]) -> Result<()> {
    // The owner of /proc/self is the effective user.
    if fs::metadata("/proc/self")?.uid() != 0 {
        bail!("needs root, for network namespaces, cgroups and BPF: run `sudo make demo`");
    }
    let missing: Vec<_> = PROGRAMS
        .iter()
        .chain(more)
        .filter(|name| !installed(name))
        .copied()
        .collect();
    if !missing.is_empty() {
        bail!(
            "not installed: {}: run `make setup`, which installs the Debian packages",
            missing.join(", ")
        );
    }
    for name in ["lb-dataplane", "host-shim"] {
        baton_lab::program(name)?;
    }
    Ok(())
}

fn installed(name: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|directory| directory.join(name).is_file())
}
