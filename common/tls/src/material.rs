//! What a side shows and whom it believes: PEM text becomes checked [`Material`] once.
//!
//! Never logs or shows a byte of a key.

use crate::Name;
use rustls::{
    RootCertStore,
    client::verify_server_name,
    crypto::{CryptoProvider, ring},
    server::ParsedCertificate,
    sign::CertifiedKey,
};
use rustls_pki_types::{
    CertificateDer, PrivateKeyDer,
    pem::{self, PemObject},
};
use std::{fmt, io, path::PathBuf, sync::Arc};
use x509_parser::{certificate::X509Certificate, prelude::FromDer};

/// Certificates of a chain: the own one and what is between it and the authority.
pub const CHAIN_MAX: usize = 8;
/// Authorities that are believed at one time: the current one, the next one, and some of the
/// admin's.
pub const AUTHORITIES_MAX: usize = 16;

/// A certificate chain, its key, and the authorities that sign the peers' certificates.
#[derive(Clone)]
pub struct Material {
    pub(crate) identity: Arc<CertifiedKey>,
    pub(crate) authorities: Arc<RootCertStore>,
    /// The same as bytes, to tell whether another one differs.
    key: Arc<PrivateKeyDer<'static>>,
    ends: i64,
}

impl fmt::Debug for Material {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Material(..)")
    }
}

impl PartialEq for Material {
    fn eq(&self, other: &Self) -> bool {
        self.same(other)
    }
}

impl Eq for Material {}

/// One of the three texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The chain, the own certificate first.
    Certificate,
    /// Its private key.
    Key,
    /// The authorities.
    Authority,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Certificate => "the certificate",
            Self::Key => "the key",
            Self::Authority => "the authority",
        })
    }
}

/// Why texts or files cannot be used. What was in force stays; the admin, or whoever writes the
/// files, has to correct what is named.
#[derive(Debug, thiserror::Error)]
pub enum MaterialError {
    /// A file is not there, or not readable by this process.
    #[error("{part} {} cannot be read: {source}", file.display())]
    Unreadable {
        /// Which it is.
        part: Part,
        /// Where it should be.
        file: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file is larger than any that makes sense.
    #[error("{part} {} is larger than {limit_bytes} bytes", file.display())]
    TooLarge {
        /// Which it is.
        part: Part,
        /// Where it is.
        file: PathBuf,
        /// What is read at most.
        limit_bytes: u64,
    },
    /// Others than the owner may use the key's file.
    #[error(
        "the key {} is open to others (mode {mode:03o}): expected 600 or less, `chmod 600 {}`",
        file.display(), file.display()
    )]
    Exposed {
        /// Where it is.
        file: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The text is not PEM, or is cut off.
    #[error("{part} is not PEM as expected: {problem}")]
    Malformed {
        /// Which it is.
        part: Part,
        /// What is wrong with it; never a part of the text.
        problem: String,
    },
    /// The text is PEM without what is needed.
    #[error("{part} has no {expected} section")]
    Empty {
        /// Which it is.
        part: Part,
        /// The section that is needed.
        expected: &'static str,
    },
    /// More certificates than anybody needs.
    #[error("{part} has more than {max} certificates")]
    TooMany {
        /// Which it is.
        part: Part,
        /// How many there may be.
        max: usize,
    },
    /// Not of one pair: often the one file is new already and the other is not yet.
    #[error("the key does not belong to the certificate")]
    Mismatch,
    /// TLS does not know this kind of key.
    #[error("the key cannot be used: {0}")]
    Key(#[source] rustls::Error),
    /// A certificate that is none, or that cannot be an authority.
    #[error("{part} cannot be used: {source}")]
    Certificate {
        /// Which it is.
        part: Part,
        /// Why.
        source: rustls::Error,
    },
    /// The own certificate is an authority's, as one that signed itself often is: every peer would
    /// refuse it.
    #[error(
        "the certificate is one of an authority (CA:TRUE in its basicConstraints), which peers take from nobody: expected one \
         with CA:FALSE, signed by that authority"
    )]
    IsAuthority,
    /// The own certificate is somebody else's: every peer would refuse it.
    #[error("the certificate is not one of `{expected}`: expected that name in its subjectAltName")]
    Name {
        /// Whose it should be.
        expected: Name,
    },
}

impl Material {
    /// From PEM texts: the chain with the own certificate first, its key (PKCS #8, SEC 1 or
    /// PKCS #1), and the certificates of the authorities.
    ///
    /// # Errors
    /// See [`MaterialError`].
    pub fn from_pem(
        certificate: &[u8],
        key: &[u8],
        authority: &[u8],
    ) -> Result<Self, MaterialError> {
        let chain = certificates(Part::Certificate, certificate, CHAIN_MAX)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| match error {
            pem::Error::NoItemsFound => {
                MaterialError::Empty { part: Part::Key, expected: "PRIVATE KEY" }
            }
            other => malformed(Part::Key, &other),
        })?;
        let mut authorities = RootCertStore::empty();
        for one in certificates(Part::Authority, authority, AUTHORITIES_MAX)? {
            authorities
                .add(one)
                .map_err(|source| MaterialError::Certificate { part: Part::Authority, source })?;
        }
        let identity = CertifiedKey::from_der(chain, key.clone_key(), &provider()).map_err(
            |error| match error {
                rustls::Error::InconsistentKeys(_) => MaterialError::Mismatch,
                rustls::Error::InvalidCertificate(_) => {
                    MaterialError::Certificate { part: Part::Certificate, source: error }
                }
                other => MaterialError::Key(other),
            },
        )?;
        let ends = end_of(&identity)?;
        Ok(Self {
            identity: Arc::new(identity),
            authorities: Arc::new(authorities),
            key: Arc::new(key),
            ends,
        })
    }

    /// Whether both are the same, byte for byte.
    #[must_use]
    pub fn same(&self, other: &Self) -> bool {
        self.identity.cert == other.identity.cert
            && *self.key == *other.key
            && self.authorities.roots == other.authorities.roots
    }

    /// The own chain, the own certificate first.
    #[must_use]
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.identity.cert
    }

    /// Until when the own certificate is good, in seconds since 1970.
    #[must_use]
    pub const fn ends(&self) -> i64 {
        self.ends
    }

    /// Refuses material whose certificate is not one of `name`.
    ///
    /// # Errors
    /// Every peer would refuse it.
    pub fn check_name(&self, name: Name) -> Result<(), MaterialError> {
        let unusable = |source| MaterialError::Certificate { part: Part::Certificate, source };
        let own = self.identity.end_entity_cert().map_err(unusable)?;
        let parsed = ParsedCertificate::try_from(own).map_err(unusable)?;
        verify_server_name(&parsed, &name.server_name())
            .map_err(|_| MaterialError::Name { expected: name })
    }
}

/// The only cryptography of the tree, named each time: a process-wide default could be another one.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// `notAfter` of the own certificate, which TLS has judged to be one already, though not whether it
/// is an authority's.
fn end_of(identity: &CertifiedKey) -> Result<i64, MaterialError> {
    let own = identity.cert.first();
    let parsed = own.and_then(|own| X509Certificate::from_der(own).ok());
    let (_, parsed) = parsed.ok_or(MaterialError::Certificate {
        part: Part::Certificate,
        source: rustls::Error::InvalidCertificate(rustls::CertificateError::BadEncoding),
    })?;
    if parsed.is_ca() {
        return Err(MaterialError::IsAuthority);
    }
    Ok(parsed.validity().not_after.timestamp())
}

fn certificates(
    part: Part,
    text: &[u8],
    max: usize,
) -> Result<Vec<CertificateDer<'static>>, MaterialError> {
    let mut found = Vec::new();
    for one in CertificateDer::pem_slice_iter(text) {
        if found.len() == max {
            return Err(MaterialError::TooMany { part, max });
        }
        found.push(one.map_err(|error| malformed(part, &error))?);
    }
    if found.is_empty() {
        return Err(MaterialError::Empty { part, expected: "CERTIFICATE" });
    }
    Ok(found)
}

/// The reader's errors repeat the line that they stumble over, which may be one of a key.
fn malformed(part: Part, error: &pem::Error) -> MaterialError {
    let problem = match error {
        pem::Error::MissingSectionEnd { .. } => "a section has no end, the text may be cut off",
        pem::Error::IllegalSectionStart { .. } => "the first line of a section is not one",
        pem::Error::Base64Decode(_) => "a section has characters that are not base64",
        _ => "it has no PEM sections",
    };
    MaterialError::Malformed { part, problem: problem.to_owned() }
}
