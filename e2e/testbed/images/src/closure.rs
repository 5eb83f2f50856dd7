//! A program of this machine with all that it loads at its start, for images made from Debian's
//! files.
//!
//! Owns finding the shared objects (by asking the dynamic loader, through `ldd`), the packages that
//! they are of, and removing debug information. A static program has no such needs and goes in
//! alone. Never guesses at what a program opens later, such as modules.

use crate::{layer::Layer, sbom::Native};
use anyhow::{Context, Result, bail, ensure};
use std::{collections::BTreeSet, fs, path::Path, process::Command};

/// Adds the program at `source` as `target`, and the shared objects that it needs at the paths
/// where it looks for them.
pub fn add_program(layer: &mut Layer, source: &Path, target: &str) -> Result<()> {
    let content = fs::read(source).with_context(|| format!("reading {}", source.display()))?;
    layer.file(target, content, 0o755)?;
    for object in shared_objects(source)? {
        let content = fs::read(&object).with_context(|| format!("reading {object}"))?;
        layer.file(&object, content, 0o755)?;
    }
    Ok(())
}

/// The program without debug information and symbols.
pub fn strip(source: &Path, target: &Path) -> Result<()> {
    let output = Command::new("strip")
        .arg("--strip-all")
        // Nothing of the time and place of stripping gets in.
        .arg("--enable-deterministic-archives")
        .arg("-o")
        .args([target, source])
        .output()
        .context("starting `strip`: is binutils installed? (`make setup`)")?;
    ensure!(
        output.status.success(),
        "`strip {}` failed: {}",
        source.display(),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}

/// The packages that a program's shared objects are of. On machines of another kind there are none
/// to tell.
pub(crate) fn packages(program: &Path) -> Result<Vec<Native>> {
    // The loader names by /lib, a link, what most packages have in /usr/lib.
    let paths = (shared_objects(program)?.into_iter()).flat_map(|p| [format!("/usr{p}"), p]);
    let owners = dpkg_query(&["-S"], paths);
    let names: BTreeSet<_> =
        (owners.lines()).filter_map(|line| Some(line.split_once(": ")?.0.to_owned())).collect();
    // Without a name it would list all that is installed.
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let versions = dpkg_query(&["-W", "-f=${Package} ${Version}\n"], names);
    let native = |(name, version): (&str, &str)| (name.to_owned(), version.to_owned());
    let split = versions.lines().filter_map(|line| line.split_once(' '));
    Ok(split.map(native).collect())
}

/// What it knows: it fails where it knows nothing of one of them.
fn dpkg_query(options: &[&str], of: impl IntoIterator<Item = String>) -> String {
    let output = Command::new("dpkg-query").args(options).args(of).output();
    let said = output.map(|o| o.stdout).unwrap_or_default();
    String::from_utf8_lossy(&said).into_owned()
}

fn shared_objects(program: &Path) -> Result<Vec<String>> {
    let output = Command::new("ldd")
        .arg(program)
        .env("LC_ALL", "C")
        .env_remove("LD_LIBRARY_PATH")
        .env_remove("LD_PRELOAD")
        .output()
        .context("starting `ldd`")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    if error.contains("not a dynamic executable") || said.contains("statically linked") {
        return Ok(Vec::new());
    }
    ensure!(output.status.success(), "`ldd {}` failed: {}", program.display(), error.trim());
    parse(&said).with_context(|| format!("shared objects of {}", program.display()))
}

/// The paths that `ldd` names. The kernel's vdso has none.
fn parse(said: &str) -> Result<Vec<String>> {
    let mut paths = Vec::new();
    for line in said.lines().map(str::trim) {
        if line.contains("=> not found") {
            bail!("not found on this machine: {line}");
        }
        let path = line.split("=> ").last().unwrap_or_default();
        let path = path.split(" (").next().unwrap_or_default();
        if path.starts_with('/') {
            paths.push(path.to_owned());
        }
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ldd_says_is_understood() {
        let said = "\tlinux-vdso.so.1 (0x00007ffd)\n\
            \tlibz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x00007f17)\n\
            \t/lib64/ld-linux-x86-64.so.2 (0x00007f17)\n";
        assert_eq!(
            parse(said).unwrap(),
            ["/lib/x86_64-linux-gnu/libz.so.1", "/lib64/ld-linux-x86-64.so.2"]
        );
        assert!(parse("\tlibz.so.1 => not found\n").is_err());
    }

    #[test]
    fn a_program_of_this_machine_brings_its_loader() {
        let objects = shared_objects(Path::new("/usr/bin/env")).unwrap();
        assert!(objects.iter().any(|o| o.contains("libc.so")), "{objects:?}");
        assert!(objects.iter().any(|o| o.contains("ld-linux")), "{objects:?}");
        let packages = packages(Path::new("/usr/bin/env")).unwrap();
        if Path::new("/var/lib/dpkg/status").exists() {
            let libc = packages.iter().find(|(name, _)| name == "libc6");
            assert!(libc.is_some_and(|(_, v)| v.starts_with("2.")), "{packages:?}");
        }
    }
}
