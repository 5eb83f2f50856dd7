//! What this kernel can do for the adopter. Reads only; each question stands alone so that a report can name what is
//! missing although loading would fail at the first of them.

use crate::{Adopter, object, sys};
use libbpf_rs::btf::{Btf, types::Func};
use std::path::Path;

/// The first kernel with [`ADOPT_FUNCTION`].
pub const MINIMUM: (u32, u32) = (6, 9);
/// The kernel function that makes a listener adopt a connection.
pub const ADOPT_FUNCTION: &str = "bpf_sk_assign_tcp_reqsk";
/// The kernel's own types, without which the program cannot be fitted to it.
pub const BTF: &str = "/sys/kernel/btf/vmlinux";

/// The running kernel's release, as `uname -r`.
#[must_use]
pub fn release() -> String {
    rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned()
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
    object::quiet();
    let btf = Btf::from_vmlinux().ok()?;
    Some(btf.type_by_name::<Func<'_>>(name).is_some())
}

/// Whether a BPF file system is mounted at a path or above it.
#[must_use]
pub fn is_bpffs(path: &Path) -> bool {
    path.ancestors()
        .find(|p| p.exists())
        .is_some_and(crate::bpffs::is_bpffs)
}

impl Adopter {
    /// Whether the kernel has tcx (Linux 6.6); nothing is attached.
    #[must_use]
    pub fn kernel_has_tcx(&self) -> bool {
        // No interface has this index: a kernel that knows the attach type looks for it, another refuses the type.
        let refused = sys::tcx_attach(self.program(), sys::Side::Ingress, i32::MAX as u32);
        refused.is_err_and(|e| e.raw_os_error() == Some(libc::ENODEV))
    }
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
}
