//! The certificates and keys of one API server: a CA of its own, the server's certificate, the
//! admin's, and the key that signs ServiceAccount tokens. They live as long as the server's folder.

use crate::folder::Folder;
use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use std::path::PathBuf;

/// The group that RBAC lets do anything, by Kubernetes' own rules.
const ADMIN_GROUP: &str = "system:masters";

/// What the server reads, and what the admin's client needs.
#[derive(Debug)]
pub(crate) struct Certificates {
    pub(crate) authority: PathBuf,
    pub(crate) server: PathBuf,
    pub(crate) server_key: PathBuf,
    pub(crate) token_key: PathBuf,
    pub(crate) token_public_key: PathBuf,
    pub(crate) authority_pem: String,
    pub(crate) admin: AdminPem,
}

/// The admin's certificate. It has no `Debug` that would show the key.
pub(crate) struct AdminPem {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl std::fmt::Debug for AdminPem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AdminPem")
    }
}

impl Certificates {
    pub(crate) fn create(folder: &Folder) -> Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "baton-test-authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().context("making the authority's key")?;
        let authority_pem = params.self_signed(&key).context("signing the authority")?.pem();
        let issuer = Issuer::new(params, key);
        let names = ["127.0.0.1", "localhost", "kubernetes.default.svc"].map(str::to_owned);
        let (server, server_key) = leaf(
            &issuer,
            "kube-apiserver",
            None,
            names.to_vec(),
            ExtendedKeyUsagePurpose::ServerAuth,
        )?;
        let (admin, admin_key) = leaf(
            &issuer,
            "admin",
            Some(ADMIN_GROUP),
            Vec::new(),
            ExtendedKeyUsagePurpose::ClientAuth,
        )?;
        let tokens = KeyPair::generate().context("making the key of tokens")?;
        Ok(Self {
            authority: folder.write("ca.crt", &authority_pem)?,
            server: folder.write("apiserver.crt", &server)?,
            server_key: folder.write("apiserver.key", &server_key)?,
            token_key: folder.write("tokens.key", &tokens.serialize_pem())?,
            token_public_key: folder.write("tokens.pub", &tokens.public_key_pem())?,
            authority_pem,
            admin: AdminPem { certificate: admin, key: admin_key },
        })
    }
}

fn leaf(
    issuer: &Issuer<'_, KeyPair>,
    name: &str,
    group: Option<&str>,
    alternatives: Vec<String>,
    usage: ExtendedKeyUsagePurpose,
) -> Result<(String, String)> {
    let mut params = CertificateParams::new(alternatives).context("names of a certificate")?;
    params.distinguished_name.push(DnType::CommonName, name);
    if let Some(group) = group {
        params.distinguished_name.push(DnType::OrganizationName, group);
    }
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![usage];
    let key = KeyPair::generate().with_context(|| format!("making the key of {name}"))?;
    let certificate = params.signed_by(&key, issuer).with_context(|| format!("signing {name}"))?;
    Ok((certificate.pem(), key.serialize_pem()))
}
