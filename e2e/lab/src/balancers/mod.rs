//! What is between clients and servers: Baton, or for comparisons HAProxy or the kernel's own
//! translation.

pub(crate) mod baton;
pub(crate) mod haproxy;
pub(crate) mod operator;
pub(crate) mod translator;
