//! Makes what a plan asks for. Owns what is in our certificates and how keys are made; decides no
//! date.

use super::{
    Action, CA_LIFE, CERTIFICATE_FILE, CertificateError, KEY_FILE, LEAF_LIFE,
    NEXT_CERTIFICATE_FILE, NEXT_KEY_FILE, Role, SKEW, Stored, TRUST_FILE,
    facts::inspect,
    plan::{next_look, plan},
};
use crate::{Files, UnixSeconds};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
};
use time::OffsetDateTime;

/// Plans in a row: the CA takes three at most (made next, promoted, dropped), leaves one, and one
/// more sees that nothing is left.
const ROUNDS_MAX: usize = 6;

/// What a renewal did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// In order, for the log and Events. Empty: nothing was due.
    pub actions: Vec<Action>,
    /// What has to be stored: the CA first, and only if nobody else changed it, then the leaves.
    /// What did not change is not in it.
    pub changed: Stored,
    /// Renew again then, or when what is stored changes.
    pub next_look: UnixSeconds,
}

/// Brings certificates up to date.
///
/// # Errors
/// The stored CA cannot be used, or something cannot be made.
pub fn renew(now: UnixSeconds, stored: &Stored) -> Result<Renewal, CertificateError> {
    let mut all = stored.clone();
    let mut done = Vec::new();
    for _ in 0..ROUNDS_MAX {
        let actions = plan(now, &inspect(&all)?);
        if actions.is_empty() {
            break;
        }
        carry_out(now, &mut all, &actions)?;
        done.extend(actions);
    }
    let next_look = next_look(now, &inspect(&all)?);
    let authority = (all.authority != stored.authority).then_some(all.authority).flatten();
    let leaves = all
        .leaves
        .into_iter()
        .filter(|(role, files)| stored.leaves.get(role) != Some(files))
        .collect();
    Ok(Renewal { actions: done, changed: Stored { authority, leaves }, next_look })
}

/// Does what a plan for exactly this says.
///
/// # Errors
/// Something cannot be made, or is not there. What was done before stays done.
pub fn carry_out(
    now: UnixSeconds,
    stored: &mut Stored,
    actions: &[Action],
) -> Result<(), CertificateError> {
    for action in actions {
        match *action {
            Action::CreateAuthority => {
                let (certificate, key) = make_authority(now)?;
                let mut files = Files::new();
                files.insert(TRUST_FILE, certificate.clone());
                files.insert(CERTIFICATE_FILE, certificate);
                files.insert(KEY_FILE, key);
                stored.authority = Some(files);
            }
            Action::AddNext => {
                let (certificate, key) = make_authority(now)?;
                let files = authority(stored)?;
                let mut trusted = needed(files, TRUST_FILE)?.to_vec();
                end_line(&mut trusted);
                trusted.extend_from_slice(certificate.as_bytes());
                files.insert(TRUST_FILE, trusted);
                files.insert(NEXT_CERTIFICATE_FILE, certificate);
                files.insert(NEXT_KEY_FILE, key);
            }
            Action::Promote => {
                let files = authority(stored)?;
                for (from, to) in
                    [(NEXT_CERTIFICATE_FILE, CERTIFICATE_FILE), (NEXT_KEY_FILE, KEY_FILE)]
                {
                    let moved = needed(files, from)?.to_vec();
                    files.insert(to, moved);
                    files.remove(from);
                }
            }
            Action::DropOld => {
                let files = authority(stored)?;
                let mut trusted = needed(files, CERTIFICATE_FILE)?.to_vec();
                if let Some(next) = files.get(NEXT_CERTIFICATE_FILE) {
                    end_line(&mut trusted);
                    trusted.extend_from_slice(next);
                }
                files.insert(TRUST_FILE, trusted);
            }
            Action::Issue(role, _) => {
                let leaf = make_leaf(now, role, authority(stored)?)?;
                stored.leaves.insert(role, leaf);
            }
            Action::Trust(role) => {
                let trusted = needed(authority(stored)?, TRUST_FILE)?.to_vec();
                if let Some(leaf) = stored.leaves.get_mut(&role) {
                    leaf.insert(TRUST_FILE, trusted);
                }
            }
        }
    }
    Ok(())
}

fn authority(stored: &mut Stored) -> Result<&mut Files, CertificateError> {
    stored.authority.as_mut().ok_or(CertificateError::Missing {
        holder: "CA".to_owned(),
        file: CERTIFICATE_FILE,
        expected: "a CA before anything is signed by it",
    })
}

fn needed<'a>(files: &'a Files, file: &'static str) -> Result<&'a [u8], CertificateError> {
    files.get(file).ok_or_else(|| CertificateError::Missing {
        holder: "CA".to_owned(),
        file,
        expected: "what was there when this was planned",
    })
}

fn end_line(text: &mut Vec<u8>) {
    if text.last().is_some_and(|last| *last != b'\n') {
        text.push(b'\n');
    }
}

/// A certificate and its key, as PEM texts.
fn make_authority(now: UnixSeconds) -> Result<(String, Vec<u8>), CertificateError> {
    let issue = |source| CertificateError::Issue { holder: "CA".to_owned(), source };
    let mut params = CertificateParams::default();
    // Each has a name of its own, so that who verifies tries the right one.
    params.distinguished_name.push(DnType::CommonName, format!("Baton CA {now}"));
    // It signs holders only, no other CA.
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    (params.not_before, params.not_after) = validity(now, now.plus(CA_LIFE)).map_err(issue)?;
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(issue)?;
    let certificate = params.self_signed(&key).map_err(issue)?;
    Ok((certificate.pem(), key.serialize_pem().into_bytes()))
}

fn make_leaf(now: UnixSeconds, role: Role, ca: &Files) -> Result<Files, CertificateError> {
    let issue = |source| CertificateError::Issue { holder: role.to_string(), source };
    let not_text = |file| CertificateError::Unusable {
        holder: "CA".to_owned(),
        file,
        problem: "is no text".to_owned(),
        expected: "PEM",
    };
    let pem = |file| std::str::from_utf8(needed(ca, file)?).map_err(|_| not_text(file));
    let ca_key = KeyPair::from_pem(pem(KEY_FILE)?).map_err(issue)?;
    let issuer = Issuer::from_ca_cert_pem(pem(CERTIFICATE_FILE)?, ca_key).map_err(issue)?;
    let mut params = CertificateParams::new([role.dns_name().to_owned()]).map_err(issue)?;
    params.distinguished_name.push(DnType::CommonName, role.dns_name());
    params.is_ca = IsCa::ExplicitNoCa;
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![if role.is_client() {
        ExtendedKeyUsagePurpose::ClientAuth
    } else {
        ExtendedKeyUsagePurpose::ServerAuth
    }];
    (params.not_before, params.not_after) = validity(now, now.plus(LEAF_LIFE)).map_err(issue)?;
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(issue)?;
    let certificate = params.signed_by(&key, &issuer).map_err(issue)?;
    let mut files = Files::new();
    files.insert(CERTIFICATE_FILE, certificate.pem());
    files.insert(KEY_FILE, key.serialize_pem());
    files.insert(TRUST_FILE, needed(ca, TRUST_FILE)?);
    Ok(files)
}

fn validity(
    now: UnixSeconds,
    end: UnixSeconds,
) -> Result<(OffsetDateTime, OffsetDateTime), rcgen::Error> {
    let date =
        |at: UnixSeconds| OffsetDateTime::from_unix_timestamp(at.0).map_err(|_| rcgen::Error::Time);
    Ok((date(now.minus(SKEW))?, date(end)?))
}
