//! Why a handshake failed, in fixed words for metrics and in sentences for people. Owns the
//! counters.

use rustls::{AlertDescription, CertificateError, Error as Tls};
use std::{
    error::Error,
    fmt, io,
    sync::atomic::{AtomicU64, Ordering},
};

/// Why a handshake failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::VariantArray, strum::IntoStaticStr)]
#[repr(usize)]
#[strum(serialize_all = "snake_case")]
pub enum Reason {
    /// The peer showed no certificate.
    NoCertificate,
    /// The peer's certificate is of another authority.
    UnknownAuthority,
    /// The peer's certificate names somebody else.
    WrongName,
    /// The peer's certificate is not valid any more, or not yet.
    Expired,
    /// Something else is wrong with the peer's certificate.
    BadCertificate,
    /// The peer refused our certificate.
    RefusedByPeer,
    /// What the peer speaks is not TLS 1.3.
    Protocol,
    /// The handshake took too long.
    Timeout,
    /// The connection ended in the handshake.
    Closed,
}

impl Reason {
    /// All of them.
    pub const ALL: &'static [Self] = <Self as strum::VariantArray>::VARIANTS;

    /// For metrics.
    #[must_use]
    pub fn label(self) -> &'static str {
        self.into()
    }

    /// For people.
    fn words(self) -> &'static str {
        match self {
            Self::NoCertificate => "the peer shows no certificate",
            Self::UnknownAuthority => {
                "the peer's certificate is not signed by an authority that is believed here"
            }
            Self::WrongName => "the peer's certificate names somebody else",
            Self::Expired => {
                "the peer's certificate is expired or not valid yet (or a clock is wrong)"
            }
            Self::BadCertificate => "the peer's certificate cannot be used",
            Self::RefusedByPeer => "the peer refuses our certificate",
            Self::Protocol => "the peer does not speak TLS 1.3",
            Self::Timeout => "the handshake took longer than 5 s",
            Self::Closed => "the connection ended in the handshake",
        }
    }

    fn of(error: &Tls) -> Self {
        use CertificateError as C;
        match error {
            Tls::NoCertificatesPresented => Self::NoCertificate,
            Tls::InvalidCertificate(wrong) => match wrong {
                C::Expired
                | C::ExpiredContext { .. }
                | C::NotValidYet
                | C::NotValidYetContext { .. } => Self::Expired,
                // A signature that does not fit is one of another authority with the same name.
                C::UnknownIssuer | C::BadSignature => Self::UnknownAuthority,
                C::NotValidForName | C::NotValidForNameContext { .. } => Self::WrongName,
                _ => Self::BadCertificate,
            },
            Tls::AlertReceived(alert) if is_about_certificates(*alert) => Self::RefusedByPeer,
            _ => Self::Protocol,
        }
    }
}

fn is_about_certificates(alert: AlertDescription) -> bool {
    use AlertDescription as A;
    matches!(
        alert,
        A::NoCertificate
            | A::BadCertificate
            | A::UnsupportedCertificate
            | A::CertificateRevoked
            | A::CertificateExpired
            | A::CertificateUnknown
            | A::CertificateRequired
            | A::UnknownCA
            | A::AccessDenied
            | A::DecryptError
    )
}

/// A handshake that failed. The next one may succeed once the named side has other material.
#[derive(Debug)]
pub struct Refusal {
    /// Why, in short.
    pub reason: Reason,
    /// What TLS or the kernel said.
    detail: Option<String>,
}

impl Refusal {
    pub(crate) fn new(reason: Reason) -> Self {
        Self { reason, detail: None }
    }

    pub(crate) fn from_io(error: &io::Error) -> Self {
        Self::find(error)
            .unwrap_or_else(|| Self { reason: Reason::Closed, detail: Some(error.to_string()) })
    }

    /// The refusal in an error or in what caused it, if there is one.
    ///
    /// With TLS 1.3 a client has ended its handshake before the server has judged its certificate:
    /// the server's refusal comes with the first bytes that are read, as an error of whoever reads
    /// them.
    #[must_use]
    pub fn find(error: &(dyn Error + 'static)) -> Option<Self> {
        let mut next = Some(error);
        while let Some(error) = next {
            let inner = error
                .downcast_ref::<io::Error>()
                .and_then(io::Error::get_ref)
                .and_then(|inner| inner.downcast_ref::<Tls>());
            if let Some(tls) = error.downcast_ref::<Tls>().or(inner) {
                return Some(Self { reason: Reason::of(tls), detail: Some(tls.to_string()) });
            }
            next = error.source();
        }
        None
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason.words())?;
        match &self.detail {
            Some(detail) => write!(f, " ({detail})"),
            None => Ok(()),
        }
    }
}

impl Error for Refusal {}

/// How many handshakes ended how.
#[derive(Debug, Default)]
pub struct Counts {
    accepted: AtomicU64,
    refused: [AtomicU64; Reason::ALL.len()],
}

impl Counts {
    /// Those that succeeded.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Those that failed for a reason.
    pub fn refused(&self, reason: Reason) -> u64 {
        self.refused[reason as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn count<T>(&self, result: &Result<T, Refusal>) {
        let counter = match result {
            Ok(_) => &self.accepted,
            Err(refusal) => &self.refused[refusal.reason as usize],
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
