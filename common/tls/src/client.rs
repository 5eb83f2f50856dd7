//! The side that connects. Owns the material in force; whom it expects is said with each
//! connection.

use crate::{
    Counts, HANDSHAKE_LIMIT, Material, MaterialError, Name, Reason, Refusal, material::provider,
};
use rustls::{ClientConfig, client::Resumption, sign::SingleCertAndKey, version::TLS13};
use std::sync::{Arc, PoisonError, RwLock};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

/// Connects as one client to servers whose certificates name them.
///
/// Connections that are open stay as they are when the material changes.
#[derive(Debug)]
pub struct Client {
    name: Name,
    current: RwLock<InForce>,
    counts: Counts,
}

struct InForce {
    material: Material,
    config: Arc<ClientConfig>,
}

impl std::fmt::Debug for InForce {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("InForce(..)")
    }
}

impl Client {
    /// A client that is `name`.
    ///
    /// # Errors
    /// The material's certificate is not one of `name`, or cannot be used.
    pub fn new(name: Name, material: Material) -> Result<Self, MaterialError> {
        Ok(Self {
            name,
            current: RwLock::new(in_force(name, material)?),
            counts: Counts::default(),
        })
    }

    /// Puts other material into force for new connections. False if it is the same.
    ///
    /// # Errors
    /// It cannot be used; what was in force stays.
    pub fn replace(&self, material: Material) -> Result<bool, MaterialError> {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if current.material.same(&material) {
            return Ok(false);
        }
        *current = in_force(self.name, material)?;
        Ok(true)
    }

    /// The configuration of the next connection.
    pub fn config(&self) -> Arc<ClientConfig> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&current.config)
    }

    /// How many handshakes ended how. A server's refusal of the own certificate comes later, see
    /// [`Refusal::find`].
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Does the handshake with `server` within [`HANDSHAKE_LIMIT`].
    ///
    /// Success means that the server is the right one. Whether it takes this client shows with the
    /// first bytes that it sends: an error of reading them may hold a [`Refusal`], which
    /// [`Refusal::find`] finds.
    ///
    /// # Errors
    /// Why it failed; it is counted already.
    pub async fn connect<S>(&self, server: Name, stream: S) -> Result<TlsStream<S>, Refusal>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let connector = TlsConnector::from(self.config());
        let handshake = connector.connect(server.server_name(), stream);
        let result = match timeout(HANDSHAKE_LIMIT, handshake).await {
            Ok(result) => result.map_err(|error| Refusal::from_io(&error)),
            Err(_) => Err(Refusal::new(Reason::Timeout)),
        };
        self.counts.count(&result);
        result
    }
}

fn in_force(name: Name, material: Material) -> Result<InForce, MaterialError> {
    material.check_name(name)?;
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .expect("ring speaks TLS 1.3")
        .with_root_certificates(Arc::clone(&material.authorities))
        .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(
            &material.identity,
        ))));
    config.resumption = Resumption::disabled();
    Ok(InForce { material, config: Arc::new(config) })
}
