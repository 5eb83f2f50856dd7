//! What must be there before anything is set up, said in words that tell what to do.

use anyhow::{Result, bail};
use std::{env, fs, os::unix::fs::MetadataExt};

/// Programs that every subcommand needs.
const PROGRAMS: [&str; 3] = ["ip", "nginx", "wrk"];

/// From here on kernels adopt connections (`bpf_sk_assign_tcp_reqsk`).
const LINUX_MIN: (u32, u32) = (6, 9);

/// Checks for a kernel whose pods adopt connections, and [`programs`].
pub fn check(more: &[&str]) -> Result<()> {
    linux(&fs::read_to_string("/proc/sys/kernel/osrelease")?)?;
    programs(more)
}

/// A release that nobody can read may be new enough.
fn linux(release: &str) -> Result<()> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next()?.parse().ok();
    let (major, minor) = LINUX_MIN;
    if let (Some(first), Some(second)) = (number(), number())
        && (first, second) < LINUX_MIN
    {
        bail!(
            "Linux {}: its pods cannot adopt connections, which needs Linux {major}.{minor} or newer",
            release.trim()
        );
    }
    Ok(())
}

/// Checks for root, Debian's programs (`more` on top of the common ones) and Baton's own.
pub fn programs(more: &[&str]) -> Result<()> {
    // The owner of /proc/self is the effective user.
    if fs::metadata("/proc/self")?.uid() != 0 {
        bail!("needs root, for network namespaces, cgroups and BPF: run `sudo make demo`");
    }
    let missing: Vec<_> =
        PROGRAMS.iter().chain(more).filter(|name| !installed(name)).copied().collect();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_linux_is_named_with_what_is_needed() {
        for old in ["6.8.0-45-generic\n", "6.1.0-50-amd64", "5.15.0"] {
            let said = linux(old).unwrap_err().to_string();
            assert!(said.starts_with(&format!("Linux {}: ", old.trim())));
            assert!(said.ends_with("needs Linux 6.9 or newer"), "{said}");
        }
        for new in ["6.9.0", "6.12.9-cos\n", "7.0", "rolling"] {
            linux(new).unwrap();
        }
    }
}
