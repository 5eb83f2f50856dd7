//! What this kernel can do for the adopter. Reads only; each question stands alone so that a report
//! can name what is missing although loading would fail at the first of them.

use crate::printed::quiet;
use libbpf_rs::btf::{
    Btf,
    types::{Func, Struct},
};
use rustix::fs::statfs;
use std::{fs, os::unix::fs::MetadataExt, path::Path};

/// The first kernel with [`ADOPT_FUNCTION`].
pub const MINIMUM: (u32, u32) = (6, 9);
/// The kernel function that makes a listener adopt a connection.
pub const ADOPT_FUNCTION: &str = "bpf_sk_assign_tcp_reqsk";
/// The kernel function that ends a connection with its request unread (Linux 6.5).
pub const RELEASE_FUNCTION: &str = "bpf_sock_destroy";
/// The kernel's own types, without which the program cannot be fitted to it.
pub const BTF: &str = "/sys/kernel/btf/vmlinux";
/// `BPF_FS_MAGIC` of linux/magic.h.
const BPF_FS_MAGIC: u32 = 0xcafe_4a11;

/// The running kernel's release, as `uname -r`.
#[must_use]
pub fn release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// Major and minor number of a release.
#[must_use]
pub fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Whether the kernel shows its types.
#[must_use]
pub fn has_btf() -> bool {
    Path::new(BTF).exists()
}

/// Whether the kernel's types have that function; `None` if they cannot be read.
#[must_use]
pub fn has_function(name: &str) -> Option<bool> {
    quiet();
    let btf = Btf::from_vmlinux().ok()?;
    Some(btf.type_by_name::<Func<'_>>(name).is_some())
}

/// Whether the adopter sees each change of nftables' rules (Linux 6.17), or only each other one and
/// host-shim's next look the rest; `None` if the kernel's types cannot be read.
#[must_use]
pub fn counts_rule_changes() -> Option<bool> {
    quiet();
    let btf = Btf::from_vmlinux().ok()?;
    // A kernel without nftables has nothing to count.
    let rules = btf.type_by_name::<Struct<'_>>("netns_nftables");
    Some(rules.is_none_or(|rules| {
        rules.iter().any(|member| member.name.is_some_and(|name| name == "base_seq"))
    }))
}

/// Whether a BPF file system is mounted at a path or above it.
#[must_use]
pub fn is_bpffs(path: &Path) -> bool {
    let there = path.ancestors().find(|p| p.exists());
    // The field's width differs between architectures; the number has 32 bits.
    there.is_some_and(|p| statfs(p).is_ok_and(|s| s.f_type as u32 == BPF_FS_MAGIC))
}

/// Whether the node's first process has the same file system at a path, so that what is there
/// outlives this process's container; `None` if that process cannot be looked at.
#[must_use]
pub fn is_nodes(path: &Path) -> Option<bool> {
    is_below("/proc/1/root".as_ref(), path)
}

/// Whether `path` and the same path below `root` are in one file system.
fn is_below(root: &Path, path: &Path) -> Option<bool> {
    fs::metadata(root).ok()?;
    let device = |path: &Path| {
        let found = path.ancestors().find_map(|p| fs::metadata(p).ok());
        found.map(|found| found.dev())
    };
    let there = root.join(path.strip_prefix("/").ok()?);
    Some(device(path)? == device(&there)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_releases() {
        assert_eq!(version("6.18.44-fc-v657"), Some((6, 18)));
        assert_eq!(version("6.9.0"), Some((6, 9)));
        assert_eq!(version("5.15-generic"), Some((5, 15)));
        assert_eq!(version("rolling"), None);
    }

    #[test]
    fn a_mount_of_ones_own_is_not_the_nodes() {
        // The kernel's own file systems, and a node that lacks them: a folder that is empty.
        let node = std::env::temp_dir().join(format!("bt-node-{}", std::process::id()));
        fs::create_dir_all(&node).expect("a folder");
        let (proc, same) = (Path::new("/proc/none/such"), Path::new("/"));
        assert_eq!(is_below(&node, proc), Some(false));
        assert_eq!(is_below(same, proc), Some(true));
        assert_eq!(is_below(&node.join("none"), proc), None);
        fs::remove_dir(&node).expect("an empty folder");
    }
}
