//! The binary of Kubernetes: built from `e2e/testbed/kubernetes` by Go once, kept in the user's
//! cache. It comes in two variants: the control plane alone, and with what a node runs, which takes
//! longer to build and serves for both.
//!
//! Owns the cache's folder, its lock, and finding a Go that is new enough. Starts no server. The
//! name of a cached binary holds a hash of all that it is built from, so a change of the pinned
//! version builds anew and going back finds the old one.

#![forbid(unsafe_code)]

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};
use siphasher::sip128::{Hasher128, SipHasher13};
use std::{
    env,
    fs::{self, File},
    hash::Hasher,
    io::{self, Write},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

/// The Go module, in this crate's folder.
const SOURCE: &str = env!("CARGO_MANIFEST_DIR");
/// The minor version of Go that go.mod asks for. An older Go that may fetch a newer one
/// (GOTOOLCHAIN=auto) does so when it is called in that folder, and says the newer one's version.
const GO_MINOR_MIN: u32 = 26;
/// Cached binaries beyond this many are removed, oldest first: each is some 150 MB, and two
/// branches of two variants each may differ.
const CACHED_MAX: usize = 4;

/// What the binary can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    /// kube-apiserver, etcd, kube-controller-manager, kubectl.
    ControlPlane,
    /// These, and kube-scheduler, kubelet, kube-proxy.
    Node,
}

impl Variant {
    /// The part of the cached file's name before the hash.
    fn prefix(self) -> &'static str {
        match self {
            Self::ControlPlane => "kubernetes-",
            Self::Node => "kubernetes-node-",
        }
    }

    /// Arguments of `go build` that choose it.
    fn tags(self) -> &'static [&'static str] {
        match self {
            Self::ControlPlane => &[],
            Self::Node => &["-tags", "node"],
        }
    }
}

/// Whether the binary is there or can be built.
#[must_use]
pub fn can_be_had() -> bool {
    let there = |variant| cached(variant).is_ok_and(|path| path.is_file());
    there(Variant::ControlPlane) || there(Variant::Node) || go().is_some()
}

/// The path of a binary that is the control plane; builds it if it is not cached, which takes
/// minutes and is said on standard error.
///
/// # Errors
/// If there is no Go or the build fails, with what Go said.
pub fn program() -> Result<PathBuf> {
    let node = cached(Variant::Node)?;
    if node.is_file() {
        return Ok(node);
    }
    have(Variant::ControlPlane)
}

/// The path of a binary that is the control plane and all that a node runs; builds it as
/// [`program`] does.
pub fn node_program() -> Result<PathBuf> {
    have(Variant::Node)
}

fn have(variant: Variant) -> Result<PathBuf> {
    let target = cached(variant)?;
    if target.is_file() {
        return Ok(target);
    }
    let folder = target.parent().context("a cached file has a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    // Two test processes of one `cargo test` would otherwise build the same at once.
    let lock_path = folder.join("lock");
    let lock = File::create(&lock_path).with_context(|| lock_path.display().to_string())?;
    flock(&lock, FlockOperation::LockExclusive).context("locking the cache")?;
    if !target.is_file() {
        build(variant, &target)?;
        remove_old(folder)?;
    }
    Ok(target)
}

/// Where the binary for this source is or will be.
fn cached(variant: Variant) -> Result<PathBuf> {
    let hash = source_hash(Path::new(SOURCE))?;
    Ok(cache()?.join(format!("{}{hash:032x}", variant.prefix())))
}

/// Where `make setup` and the crates for tests keep what is large.
pub fn cache() -> Result<PathBuf> {
    let cache = match (env::var_os("XDG_CACHE_HOME"), env::var_os("HOME")) {
        (Some(cache), _) if Path::new(&cache).is_absolute() => PathBuf::from(cache),
        (_, Some(home)) => Path::new(&home).join(".cache"),
        _ => bail!("neither XDG_CACHE_HOME nor HOME says where a cache may be"),
    };
    Ok(cache.join("baton"))
}

/// A hash of names and contents of all that the binary is built from.
fn source_hash(source: &Path) -> Result<u128> {
    let mut files: Vec<_> = fs::read_dir(source)
        .with_context(|| format!("reading {}", source.display()))?
        .filter_map(|entry| entry.ok().map(|e| e.path()))
        .filter(|path| {
            let name = path.file_name().unwrap_or_default();
            name == "go.mod" || name == "go.sum" || path.extension().is_some_and(|e| e == "go")
        })
        .collect();
    files.sort();
    let mut hasher = SipHasher13::new();
    for path in files {
        let content = fs::read(&path).with_context(|| path.display().to_string())?;
        hasher.write(path.file_name().unwrap_or_default().as_encoded_bytes());
        // The lengths keep a byte that moves from one file to the next from giving the same hash.
        hasher.write_usize(content.len());
        hasher.write(&content);
    }
    Ok(hasher.finish128().into())
}

fn build(variant: Variant, target: &Path) -> Result<()> {
    let go = go().with_context(|| {
        format!(
            "Go 1.{GO_MINOR_MIN} or newer is needed to build Kubernetes: `make setup` installs it"
        )
    })?;
    let version = kubernetes_version(&fs::read_to_string(Path::new(SOURCE).join("go.mod"))?)?;
    let what = match variant {
        Variant::ControlPlane => "kube-apiserver, etcd and kubectl",
        Variant::Node => "all of a cluster, from etcd to kubelet,",
    };
    say(&format!(
        "building {what} for Kubernetes v{version}, once: 5 to 10 minutes on two cores; kept as {}",
        target.display()
    ));
    let start = Instant::now();
    let unfinished = target.with_extension("unfinished");
    let output = Command::new("nice")
        .args(["-n", "5"])
        .arg(go)
        .args(["build", "-trimpath", "-ldflags", &linker_flags(&version)])
        .args(variant.tags())
        .arg("-o")
        .arg(&unfinished)
        .arg(".")
        .current_dir(SOURCE)
        .env("CGO_ENABLED", "0")
        .output()
        .context("starting `go build`")?;
    if !output.status.success() {
        bail!(
            "`go build` in e2e/testbed/kubernetes failed ({}):\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    fs::rename(&unfinished, target).with_context(|| format!("naming {}", target.display()))?;
    let took = Duration::from_secs(start.elapsed().as_secs());
    say(&format!("built in {took:?}"));
    Ok(())
}

/// Without its version the server calls itself v0.0.0, and clients that look at it misjudge it.
fn linker_flags(version: &str) -> String {
    let mut parts = version.split('.');
    let (major, minor) = (parts.next().unwrap_or("0"), parts.next().unwrap_or("0"));
    let package = "k8s.io/component-base/version";
    format!(
        "-s -w -X {package}.gitVersion=v{version} -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"
    )
}

/// The version that go.mod pins, as `1.36.3`.
fn kubernetes_version(go_mod: &str) -> Result<String> {
    let mut lines = go_mod.lines().map(str::trim);
    let version = lines.find_map(|line| line.strip_prefix("k8s.io/kubernetes v"));
    Ok(version.context("go.mod does not require k8s.io/kubernetes")?.to_owned())
}

/// A Go that is new enough: the machine's, or the one that `make setup` keeps.
#[must_use]
pub fn go() -> Option<PathBuf> {
    let kept = cache().ok().map(|cache| cache.join("go/bin/go"));
    let candidates = [Some(PathBuf::from("go")), kept];
    candidates.into_iter().flatten().find(|go| {
        let output = Command::new(go).arg("version").current_dir(SOURCE).output();
        let said = output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned());
        said.is_ok_and(|said| parse_go_minor(&said).is_some_and(|minor| minor >= GO_MINOR_MIN))
    })
}

/// The minor version of a Go, as 26 of `go version go1.26.8 linux/amd64`.
fn parse_go_minor(said: &str) -> Option<u32> {
    let version = said.split_whitespace().find_map(|word| word.strip_prefix("go1."))?;
    let digits = version.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

fn remove_old(folder: &Path) -> Result<()> {
    let mut cached: Vec<_> = fs::read_dir(folder)?
        .filter_map(Result::ok)
        .filter(|entry| {
            entry
                .file_name()
                .as_encoded_bytes()
                .starts_with(Variant::ControlPlane.prefix().as_bytes())
        })
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    cached.sort_by(|a, b| b.cmp(a));
    for (_, path) in cached.into_iter().skip(CACHED_MAX) {
        fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))?;
    }
    Ok(())
}

/// Says something to who runs the tests, past the capture of the test harness.
fn say(what: &str) {
    // Nobody reads a closed standard error; that must not fail a test.
    let _ = writeln!(io::stderr(), "baton-kubernetes: {what}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_what_tools_say() {
        assert_eq!(parse_go_minor("go version go1.26.8 linux/amd64"), Some(26));
        assert_eq!(parse_go_minor("go version go1.19 linux/arm64"), Some(19));
        assert_eq!(parse_go_minor("go version go1.27rc1 linux/amd64"), Some(27));
        assert_eq!(parse_go_minor("not Go"), None);
        let version = kubernetes_version("require (\n\tk8s.io/kubernetes v1.36.3\n)").unwrap();
        assert_eq!(version, "1.36.3");
        assert!(kubernetes_version("module other").is_err());
        assert!(linker_flags("1.36.3").contains("gitMinor=36"));
    }

    #[test]
    fn the_cache_is_keyed_by_all_sources() {
        let folder = env::temp_dir().join(format!("baton-source-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("go.mod"), "ab").unwrap();
        fs::write(folder.join("main.go"), "c").unwrap();
        let first = source_hash(&folder).unwrap();
        assert_eq!(first, source_hash(&folder).unwrap());
        fs::write(folder.join("README.md"), "other").unwrap();
        assert_eq!(first, source_hash(&folder).unwrap());
        fs::write(folder.join("main.go"), "d").unwrap();
        assert_ne!(first, source_hash(&folder).unwrap());
        fs::remove_dir_all(&folder).unwrap();
    }
}
