//! What stored certificates say. Owns reading them; judges nothing.

use super::{
    CERTIFICATE_FILE, CertificateError, KEY_FILE, NEXT_CERTIFICATE_FILE, NEXT_KEY_FILE, Role,
    Stored, TRUST_FILE,
};
use crate::{Files, UnixSeconds};
use rcgen::{KeyPair, PublicKeyData};
use std::collections::BTreeMap;
use x509_parser::{
    certificate::X509Certificate, extensions::GeneralName, pem::Pem, prelude::FromDer,
};

/// Certificates in one text.
const CERTIFICATES_MAX: usize = 16;

/// One certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// Its DER bytes, which tell it from others.
    pub der: Vec<u8>,
    /// From when.
    pub not_before: UnixSeconds,
    /// Until when.
    pub not_after: UnixSeconds,
}

/// The CA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority {
    /// Signs.
    pub current: Certificate,
    /// Will sign, and is trusted already.
    pub next: Option<Certificate>,
    /// All that holders shall trust.
    pub trusted: Vec<Certificate>,
}

/// One holder's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// It.
    pub certificate: Certificate,
    /// The current CA signed it.
    pub is_signed_by_current: bool,
    /// It has the holder's name and use.
    pub is_for_role: bool,
    /// Whom the holder trusts.
    pub trusts: Vec<Certificate>,
}

/// All that is stored and can be read. A leaf that cannot be read is not there: it is made anew.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Existing {
    /// The CA.
    pub authority: Option<Authority>,
    /// By holder.
    pub leaves: BTreeMap<Role, Leaf>,
}

/// Reads what is stored.
///
/// # Errors
/// The CA is there but cannot be used. It is not replaced, because all trust hangs on it: the admin
/// corrects or deletes it.
pub fn inspect(stored: &Stored) -> Result<Existing, CertificateError> {
    let authority = stored.authority.as_ref().map(authority).transpose()?;
    let mut leaves = BTreeMap::new();
    if let Some(authority) = &authority {
        for (role, files) in &stored.leaves {
            if let Some(leaf) = leaf(*role, files, authority) {
                leaves.insert(*role, leaf);
            }
        }
    }
    Ok(Existing { authority, leaves })
}

const CA: &str = "CA";
const EXPECTED_CA: &str =
    "the PEM text of a CA certificate, or none of the CA's files so that a CA is made";
const EXPECTED_KEY: &str = "the PEM text of the certificate's private key";
const EXPECTED_TRUST: &str = "the PEM text of the CA certificates that are trusted";

fn authority(files: &Files) -> Result<Authority, CertificateError> {
    let current = pair(files, CERTIFICATE_FILE, KEY_FILE)?;
    let next = files
        .get(NEXT_CERTIFICATE_FILE)
        .map(|_| pair(files, NEXT_CERTIFICATE_FILE, NEXT_KEY_FILE))
        .transpose()?;
    let text = text(files, TRUST_FILE, EXPECTED_TRUST)?;
    let trusted =
        certificates(text).map_err(|problem| unusable(TRUST_FILE, problem, EXPECTED_TRUST))?;
    if !trusted.contains(&current) || next.as_ref().is_some_and(|next| !trusted.contains(next)) {
        let problem = format!(
            "does not hold the certificate of `{CERTIFICATE_FILE}` or `{NEXT_CERTIFICATE_FILE}`"
        );
        return Err(unusable(TRUST_FILE, problem, EXPECTED_TRUST));
    }
    Ok(Authority { current, next, trusted })
}

/// A CA certificate with its key.
fn pair(
    files: &Files,
    certificate_file: &'static str,
    key_file: &'static str,
) -> Result<Certificate, CertificateError> {
    let text_of = text(files, certificate_file, EXPECTED_CA)?;
    let refuse = |problem: &str| unusable(certificate_file, problem.to_owned(), EXPECTED_CA);
    let mut all = certificates(text_of).map_err(|problem| refuse(&problem))?;
    if all.len() != 1 {
        return Err(refuse(&format!("has {} certificates", all.len())));
    }
    let certificate = all.remove(0);
    let parsed = parse(&certificate.der).ok_or_else(|| refuse("is no certificate"))?;
    if !parsed.is_ca() {
        return Err(refuse("is not the certificate of a CA"));
    }
    let key = text(files, key_file, EXPECTED_KEY)?;
    if !has_key(&parsed, key) {
        let problem = format!("is not the key of `{certificate_file}`");
        return Err(unusable(key_file, problem, EXPECTED_KEY));
    }
    Ok(certificate)
}

fn text<'a>(
    files: &'a Files,
    file: &'static str,
    expected: &'static str,
) -> Result<&'a [u8], CertificateError> {
    files.get(file).ok_or_else(|| CertificateError::Missing {
        holder: CA.to_owned(),
        file,
        expected,
    })
}

fn unusable(file: &'static str, problem: String, expected: &'static str) -> CertificateError {
    CertificateError::Unusable { holder: CA.to_owned(), file, problem, expected }
}

fn leaf(role: Role, files: &Files, authority: &Authority) -> Option<Leaf> {
    let chain = certificates(files.get(CERTIFICATE_FILE)?).ok()?;
    let trusts = certificates(files.get(TRUST_FILE)?).ok()?;
    let certificate = chain.into_iter().next()?;
    let parsed = parse(&certificate.der)?;
    if !has_key(&parsed, files.get(KEY_FILE)?) {
        return None;
    }
    let is_signed_by_current = parse(&authority.current.der)
        .is_some_and(|ca| parsed.verify_signature(Some(ca.public_key())).is_ok());
    let is_for_role = names(&parsed).iter().any(|name| name == role.dns_name())
        && may_serve(&parsed, role) == Some(true);
    Some(Leaf { is_signed_by_current, is_for_role, trusts, certificate })
}

/// Certificates of a PEM text, in its order.
pub(super) fn certificates(text: &[u8]) -> Result<Vec<Certificate>, String> {
    let mut found = Vec::new();
    for pem in Pem::iter_from_buffer(text) {
        // The reader's errors may repeat a part of the text.
        let pem = pem.map_err(|_| "is no PEM text".to_owned())?;
        if pem.label != "CERTIFICATE" {
            return Err("has something that is no certificate".to_owned());
        }
        if found.len() == CERTIFICATES_MAX {
            return Err(format!("has more than {CERTIFICATES_MAX} certificates"));
        }
        let parsed = parse(&pem.contents).ok_or("has a certificate that cannot be read")?;
        let (not_before, not_after) = validity(&parsed);
        found.push(Certificate { not_before, not_after, der: pem.contents });
    }
    if found.is_empty() {
        return Err("has no certificate".to_owned());
    }
    Ok(found)
}

/// Until when the own certificate of what is stored is good; nothing if there is none that can be
/// read.
#[must_use]
pub fn end(files: &Files) -> Option<UnixSeconds> {
    let chain = certificates(files.get(CERTIFICATE_FILE)?).ok()?;
    Some(chain.first()?.not_after)
}

pub(super) fn parse(der: &[u8]) -> Option<X509Certificate<'_>> {
    let (rest, parsed) = X509Certificate::from_der(der).ok()?;
    rest.is_empty().then_some(parsed)
}

fn validity(parsed: &X509Certificate<'_>) -> (UnixSeconds, UnixSeconds) {
    let validity = parsed.validity();
    (UnixSeconds(validity.not_before.timestamp()), UnixSeconds(validity.not_after.timestamp()))
}

/// The DNS names of a certificate.
pub(super) fn names(parsed: &X509Certificate<'_>) -> Vec<String> {
    let Ok(Some(extension)) = parsed.subject_alternative_name() else {
        return Vec::new();
    };
    let names = extension.value.general_names.iter();
    names
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            _ => None,
        })
        .collect()
}

/// Whether a certificate may be used by a role; none if it says nothing of its use.
pub(super) fn may_serve(parsed: &X509Certificate<'_>, role: Role) -> Option<bool> {
    let extension = parsed.extended_key_usage().ok().flatten()?;
    let uses = extension.value;
    let own = if role.is_client() { uses.client_auth } else { uses.server_auth };
    Some(own || uses.any)
}

fn has_key(parsed: &X509Certificate<'_>, key: &[u8]) -> bool {
    let key = std::str::from_utf8(key).ok().and_then(|text| KeyPair::from_pem(text).ok());
    key.is_some_and(|key| key.der_bytes() == &*parsed.public_key().subject_public_key.data)
}
