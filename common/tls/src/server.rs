//! The side that listens. Owns which clients are taken, and the material in force.

use crate::{
    Counts, HANDSHAKE_LIMIT, Material, MaterialError, Name, Reason, Refusal, material::provider,
};
use rustls::{
    DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme,
    client::{danger::HandshakeSignatureValid, verify_server_name},
    server::{
        NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::SingleCertAndKey,
    version::TLS13,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use std::sync::{Arc, PoisonError, RwLock};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

/// Takes connections of one client, whose certificate must name it.
///
/// Connections that are open stay as they are when the material changes; each new one is verified
/// with the new.
#[derive(Debug)]
pub struct Server {
    name: Name,
    client: Name,
    current: RwLock<InForce>,
    counts: Counts,
}

struct InForce {
    material: Material,
    config: Arc<ServerConfig>,
}

impl std::fmt::Debug for InForce {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("InForce(..)")
    }
}

impl Server {
    /// A server that is `name` and takes only `client`.
    ///
    /// # Errors
    /// The material's certificate is not one of `name`, or cannot be used.
    pub fn new(name: Name, client: Name, material: Material) -> Result<Self, MaterialError> {
        Ok(Self {
            name,
            client,
            current: RwLock::new(in_force(name, client, material)?),
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
        *current = in_force(self.name, self.client, material)?;
        Ok(true)
    }

    /// The configuration of the next connection.
    pub fn config(&self) -> Arc<ServerConfig> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&current.config)
    }

    /// Until when the certificate in force is good, in seconds since 1970.
    pub fn ends(&self) -> i64 {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        current.material.ends()
    }

    /// How many handshakes ended how.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Does the handshake with a client, within [`HANDSHAKE_LIMIT`].
    ///
    /// # Errors
    /// Why it failed; it is counted already.
    pub async fn accept<S>(&self, stream: S) -> Result<TlsStream<S>, Refusal>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let acceptor = TlsAcceptor::from(self.config());
        let result = match timeout(HANDSHAKE_LIMIT, acceptor.accept(stream)).await {
            Ok(result) => result.map_err(|error| Refusal::from_io(&error)),
            Err(_) => Err(Refusal::new(Reason::Timeout)),
        };
        self.counts.count(&result);
        result
    }
}

fn in_force(name: Name, client: Name, material: Material) -> Result<InForce, MaterialError> {
    material.check_name(name)?;
    let provider = provider();
    let inner = WebPkiClientVerifier::builder_with_provider(
        Arc::clone(&material.authorities),
        Arc::clone(&provider),
    )
    .build()
    .expect("there is an authority, and no revocation list that could be malformed");
    let verifier = NamedClient { inner, name: client.server_name() };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .expect("ring speaks TLS 1.3")
        .with_client_cert_verifier(Arc::new(verifier))
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(&material.identity))));
    // A resumed session would not be verified again: neither its end nor a changed authority would
    // count.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(InForce { material, config: Arc::new(config) })
}

/// Verifies a client's chain as usual, and that its certificate names the client.
#[derive(Debug)]
struct NamedClient {
    inner: Arc<dyn ClientCertVerifier>,
    name: ServerName<'static>,
}

impl ClientCertVerifier for NamedClient {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.inner.verify_client_cert(end_entity, intermediates, now)?;
        verify_server_name(&ParsedCertificate::try_from(end_entity)?, &self.name)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
