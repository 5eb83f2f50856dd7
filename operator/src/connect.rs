//! How the operator reaches control APIs: mutual TLS, but for what listens on this machine's
//! loopback.
//!
//! Owns the material in force. Nothing is sent in the clear over a network: without material there
//! is no connection.

use baton_push::{
    Files,
    certificates::{CERTIFICATE_FILE, KEY_FILE, TRUST_FILE},
    push::{Connect, ConnectFuture, Plain, Tls},
};
use baton_tls::{Client, Material, MaterialError, Name};
use std::{
    io,
    net::SocketAddr,
    sync::{Arc, PoisonError, RwLock},
};

/// Plain TCP to loopback, TLS to all else.
#[derive(Debug, Default)]
pub struct Connector(RwLock<Option<Arc<Client>>>);

impl Connector {
    /// Puts the operator's material into force for new connections. False if it was already.
    ///
    /// # Errors
    /// It cannot be used; what was in force stays.
    pub fn replace(&self, files: &Files) -> Result<bool, MaterialError> {
        let bytes = |name| files.get(name).unwrap_or_default();
        let material =
            Material::from_pem(bytes(CERTIFICATE_FILE), bytes(KEY_FILE), bytes(TRUST_FILE))?;
        let mut current = self.0.write().unwrap_or_else(PoisonError::into_inner);
        match &*current {
            Some(client) => client.replace(material),
            None => {
                *current = Some(Arc::new(Client::new(Name::Operator, material)?));
                Ok(true)
            }
        }
    }

    /// Nothing is in force any more: the material is another leader's to renew, and may be old when
    /// this one leads again.
    pub fn client(&self) -> Option<Arc<Client>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Connect for Connector {
    fn connect(&self, address: SocketAddr, server: Name) -> ConnectFuture {
        if address.ip().is_loopback() {
            return Plain.connect(address, server);
        }
        match self.client() {
            Some(client) => Tls(client).connect(address, server),
            None => Box::pin(async {
                Err(io::Error::other(
                    "the operator has no certificate yet: if that stays, look for errors about certificates in its log",
                ))
            }),
        }
    }
}
