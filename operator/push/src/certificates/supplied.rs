//! Material that an admin supplied. Owns judging it; never changes it.

use super::{
    CERTIFICATE_FILE, CertificateError, KEY_FILE, Role, TRUST_FILE,
    facts::{certificates, may_serve, names, parse},
};
use crate::{Files, UnixSeconds};
use baton_tls::{Material, MaterialError, Part};
use std::time::Duration;

/// Warnings begin so long before the end: time for an admin who is asked on a Friday.
pub const SUPPLIED_WARNING: Duration = Duration::from_secs(21 * 24 * 3_600);

/// Whether supplied material can be used, and what the admin should know about it: what ends soon
/// or has ended, what peers refuse.
///
/// # Errors
/// The texts are not a certificate, its key and CA certificates.
pub fn check_supplied(
    now: UnixSeconds,
    role: Role,
    files: &Files,
) -> Result<Vec<String>, CertificateError> {
    let part = |file: &'static str, expected| {
        files.get(file).ok_or_else(|| CertificateError::Missing {
            holder: role.to_string(),
            file,
            expected,
        })
    };
    let own = part(CERTIFICATE_FILE, "the PEM text of a certificate chain, the own one first")?;
    let key = part(KEY_FILE, "the PEM text of the certificate's private key")?;
    let trusted = part(TRUST_FILE, "the PEM text of the CA certificates that sign the peers'")?;
    let unusable = |file, problem: String| CertificateError::Unusable {
        holder: role.to_string(),
        file,
        problem,
        expected: "PEM text of a certificate, its key, and the CAs of the peers",
    };
    Material::from_pem(own, key, trusted)
        .map_err(|error| unusable(file_of(&error), error.to_string()))?;
    let mut warnings = Vec::new();
    for file in [CERTIFICATE_FILE, TRUST_FILE] {
        let all = certificates(files.get(file).unwrap_or_default())
            .map_err(|problem| unusable(file, problem))?;
        for certificate in &all {
            let (begin, end) = (certificate.not_before, certificate.not_after);
            if now < begin {
                warnings.push(format!("{role}: `{file}` is good from {begin} on, not yet"));
            } else if now >= end {
                warnings.push(format!("{role}: `{file}` has ended on {end}: peers refuse it"));
            } else if now.plus(SUPPLIED_WARNING) >= end {
                let days = end.since(now).as_secs() / (24 * 3_600);
                warnings.push(format!(
                    "{role}: `{file}` ends on {end}, in {days} days: supply a new one"
                ));
            }
        }
        let parsed = all.first().and_then(|own| parse(&own.der));
        let Some(parsed) = parsed.filter(|_| file == CERTIFICATE_FILE) else {
            continue;
        };
        let name = role.dns_name();
        if !names(&parsed).iter().any(|found| found == name) {
            warnings.push(format!(
                "{role}: `{file}` does not have the name {name}: peers refuse it, expected it as a DNS name in subjectAltName"
            ));
        }
        if may_serve(&parsed, role) == Some(false) {
            let expected = if role.is_client() { "clientAuth" } else { "serverAuth" };
            warnings.push(format!(
                "{role}: `{file}` is not for this use: peers refuse it, expected {expected} in extendedKeyUsage"
            ));
        }
    }
    Ok(warnings)
}

fn file_of(error: &MaterialError) -> &'static str {
    match error {
        MaterialError::Mismatch | MaterialError::Key(_) | MaterialError::Exposed { .. } => KEY_FILE,
        MaterialError::Name { .. } | MaterialError::IsAuthority => CERTIFICATE_FILE,
        MaterialError::Unreadable { part, .. }
        | MaterialError::TooLarge { part, .. }
        | MaterialError::Malformed { part, .. }
        | MaterialError::Empty { part, .. }
        | MaterialError::TooMany { part, .. }
        | MaterialError::Certificate { part, .. } => match part {
            Part::Certificate => CERTIFICATE_FILE,
            Part::Key => KEY_FILE,
            Part::Authority => TRUST_FILE,
        },
    }
}
