//! Why the adopter cannot be loaded, attached or asked. Each message names what to change.

use std::{io, path::PathBuf};

/// Why an operation of this crate failed. Only [`Error::NetnsMissing`], [`Error::InterfaceMissing`],
/// [`Error::Attach`] and [`Error::Busy`] can pass by themselves and are worth another try.
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
