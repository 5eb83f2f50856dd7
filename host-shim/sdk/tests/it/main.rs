//! The SDK against a host-shim that says what a test wants. Needs root, for network namespaces.

mod messages;
mod shim;
mod talk;
