//! Why the adopter cannot be loaded, attached or asked. Each message names what to change.

use crate::kernel;
use std::{io, path::PathBuf};

/// Why an operation of this crate failed. Only [`Error::NetnsMissing`],
/// [`Error::InterfaceMissing`], [`Error::Attach`] and [`Error::Busy`] can pass by themselves and
/// are worth another try.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel did not take the program or its maps.
    #[error(
        "the kernel refuses the adopter: {reason} (`host-shim preflight` says what is missing)"
    )]
    Load {
        /// What libbpf and the verifier said.
        reason: String,
    },
    /// The kernel did not take the program, and lacks the function that it exists for.
    #[error(
        "Linux {release} lacks `{function}`, with which pods take over connections: run Linux {major}.{minor} or newer, built with CONFIG_SYN_COOKIES=y and CONFIG_NET_CLS_ACT=y, on this node",
        function = kernel::ADOPT_FUNCTION,
        major = kernel::MINIMUM.0,
        minor = kernel::MINIMUM.1
    )]
    KernelLacks {
        /// As `uname -r`.
        release: String,
    },
    /// A map could not be read or written.
    #[error("map `{map}` of the adopter: {operation} failed: {source}")]
    Map {
        /// The map's name.
        map: &'static str,
        /// What was tried.
        operation: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// The sockets of a namespace could not be gone through for Releases.
    #[error(
        "the sockets of network namespace {netns} cannot be gone through: {source}; CAP_SYS_ADMIN and CAP_PERFMON are needed"
    )]
    Pass {
        /// As it is named.
        netns: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The pin directory cannot be used.
    #[error("pin directory {}: {problem}", path.display())]
    Pin {
        /// The directory or a file in it.
        path: PathBuf,
        /// What is wrong and what to change.
        problem: String,
    },
    /// Another process uses the pin directory.
    #[error("pin directory {} is in use by another host-shim: stop that one first or configure another `pin`", path.display())]
    Busy {
        /// The directory.
        path: PathBuf,
    },
    /// The network namespace cannot be opened.
    #[error("network namespace {netns}: {source}; is the pod running?")]
    NetnsMissing {
        /// As configured.
        netns: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The network namespace can be opened but not entered.
    #[error(
        "network namespace {netns} cannot be entered: {source}; CAP_SYS_ADMIN is needed, and the file must be a network namespace"
    )]
    NetnsEnter {
        /// As configured.
        netns: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The interface is not there.
    #[error("network namespace {netns} has no interface `{interface}`; it has: {present}")]
    InterfaceMissing {
        /// As configured.
        netns: String,
        /// As configured.
        interface: String,
        /// The names that are there.
        present: String,
    },
    /// The interface carries no Ethernet frames.
    #[error(
        "interface `{interface}` in network namespace {netns} has no Ethernet header (type {kind}); the adopter works on Ethernet interfaces such as veth"
    )]
    NotEthernet {
        /// As configured.
        netns: String,
        /// As configured.
        interface: String,
        /// `ARPHRD_...`, as /sys/class/net/NAME/type.
        kind: u32,
    },
    /// The kernel did not attach the program.
    #[error(
        "the adopter cannot be attached to `{interface}` in network namespace {netns} by {hook}: {source}; CAP_NET_ADMIN and CAP_BPF are needed"
    )]
    Attach {
        /// As configured.
        netns: String,
        /// As configured.
        interface: String,
        /// `tcx` or `clsact`.
        hook: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// The program cannot be removed.
    #[error("the adopter cannot be detached ({id}): {source}")]
    Detach {
        /// Which attachment.
        id: String,
        /// The kernel's error.
        source: io::Error,
    },
}

impl Error {
    /// What a refused program means on a kernel of which it is known whether it has the function.
    pub(crate) fn on_kernel(self, has_function: Option<bool>, release: String) -> Self {
        match self {
            // All that the verifier says then follows from this.
            Self::Load { .. } if has_function == Some(false) => Self::KernelLacks { release },
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_kernel_is_named_as_the_reason() {
        let refused = || Error::Load { reason: "extern 'bpf_cast_to_kern_ctx': not found".into() };
        let said = |has| refused().on_kernel(has, "6.1.0-56-amd64".into()).to_string();
        assert!(said(Some(false)).starts_with(
            "Linux 6.1.0-56-amd64 lacks `bpf_sk_assign_tcp_reqsk`, with which pods take over connections: run Linux 6.9 or newer"
        ));
        for other in [said(Some(true)), said(None)] {
            assert!(other.contains("bpf_cast_to_kern_ctx"), "{other}");
        }
        let busy = Error::Busy { path: "/x".into() };
        let busy = busy.on_kernel(Some(false), String::new());
        assert!(matches!(busy, Error::Busy { .. }));
    }
}
