//! Mutual TLS between the operator and what it controls: configurations of both sides from PEM text
//! or files, exchanged while running.
//!
//! Owns who may talk to whom, how many at a time ([`Places`]), where they are listened to
//! ([`listen`]) and which handshakes are refused, and counts these. Connects to nobody, watches no
//! file and makes no certificate: the binaries watch, `baton-push` makes.
//!
//! Both ends are Baton's own, so only TLS 1.3 is spoken, nothing is resumed (each connection is
//! verified anew), and names are fixed: a peer is who its certificate names in `subjectAltName`,
//! whatever its address is. Certificates that restrict their use need `serverAuth` for
//! [`Name::Dataplane`] and [`Name::Shim`] and `clientAuth` for [`Name::Operator`].

#![forbid(unsafe_code)]

mod client;
mod files;
pub mod listen;
mod material;
mod places;
mod refusal;
mod server;

pub use client::Client;
pub use files::{FILE_LIMIT_BYTES, Files};
pub use material::{AUTHORITIES_MAX, CHAIN_MAX, Material, MaterialError, Part};
pub use places::Places;
pub use refusal::{Counts, Reason, Refusal};
pub use server::Server;
pub use tokio_rustls::{client::TlsStream as ClientStream, server::TlsStream as ServerStream};

use rustls_pki_types::ServerName;
use std::{fmt, time::Duration};

/// Who takes part, each with one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Name {
    /// The control API of a dataplane.
    Dataplane,
    /// The control API of a shim.
    Shim,
    /// The only client that either of them takes. Commands on the same machine use the plain
    /// address instead, so that a dataplane's certificate opens no other dataplane.
    Operator,
}

impl Name {
    /// As certificates have it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Dataplane => "dataplane.baton",
            Self::Shim => "shim.baton",
            Self::Operator => "operator.baton",
        }
    }

    /// As TLS wants it.
    fn server_name(self) -> ServerName<'static> {
        ServerName::try_from(self.as_str()).expect("Baton's names are DNS names")
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A handshake is one round trip and a signature on each side; a peer that takes longer than this
/// holds its place for nothing.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
