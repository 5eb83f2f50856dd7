//! Certificates, keys and kubeconfigs of one cluster: a CA of its own, and what each component
//! proves itself by.
//!
//! Owns who is who: the names and groups are those that Kubernetes' own RBAC rules expect. They
//! live in the cluster's folder, which only this user can read, and go with it. No key is ever
//! shown.

use anyhow::{Context, Result};
use base64::{Engine, prelude::BASE64_STANDARD};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use serde_json::json;
use std::{
    fs,
    io::Write,
    net::Ipv4Addr,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

/// The first address of the Service range: the Service `kubernetes`.
const API_SERVICE: &str = "10.96.0.1";
const API_NAMES: [&str; 4] =
    ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"];
/// The group that RBAC lets do anything, by Kubernetes' own rules.
const ADMIN_GROUP: &str = "system:masters";

/// The CA and the folder that all files are in.
pub(crate) struct Authority {
    folder: PathBuf,
    url: String,
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Authority({})", self.folder.display())
    }
}

impl Authority {
    /// Makes a CA, the control plane's certificates and kubeconfigs, for an API server at
    /// `address`.
    pub(crate) fn create(folder: &Path, address: Ipv4Addr, url: &str) -> Result<Self> {
        fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        let mut params = CertificateParams::default();
        let subject = &mut params.distinguished_name;
        subject.push(DnType::CommonName, "baton-cluster-authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().context("making the authority's key")?;
        let certificate = params.self_signed(&key).context("signing the authority")?;
        let authority = Self {
            folder: folder.into(),
            url: url.into(),
            pem: certificate.pem(),
            issuer: Issuer::new(params, key),
        };
        authority.write("ca.crt", &authority.pem)?;
        // The controller manager signs requests for certificates.
        authority.write("ca.key", &authority.issuer.key().serialize_pem())?;
        let mut names = API_NAMES.map(str::to_owned).to_vec();
        names.extend(["127.0.0.1".into(), API_SERVICE.into(), address.to_string()]);
        authority.leaf("apiserver", "kube-apiserver", None, names)?;
        authority.leaf("front-proxy", "front-proxy", None, Vec::new())?;
        authority.leaf(
            "kubelet-client",
            "kube-apiserver-kubelet-client",
            Some(ADMIN_GROUP),
            Vec::new(),
        )?;
        authority.user("admin", "admin", Some(ADMIN_GROUP))?;
        authority.user("controllers", "system:kube-controller-manager", None)?;
        authority.user("scheduler", "system:kube-scheduler", None)?;
        authority.user("proxy", "system:kube-proxy", None)?;
        let tokens = KeyPair::generate().context("making the key of tokens")?;
        authority.write("tokens.key", &tokens.serialize_pem())?;
        authority.write("tokens.pub", &tokens.public_key_pem())?;
        Ok(authority)
    }

    /// Adds a node's certificate, with which its kubelet serves and asks, and its kubeconfig.
    pub(crate) fn add_node(&self, name: &str, address: Ipv4Addr) -> Result<()> {
        let names = vec![name.to_owned(), address.to_string()];
        self.leaf(name, &format!("system:node:{name}"), Some("system:nodes"), names)?;
        self.kubeconfig(name)
    }

    /// The path of one of the files.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn user(&self, file: &str, name: &str, group: Option<&str>) -> Result<()> {
        self.leaf(file, name, group, Vec::new())?;
        self.kubeconfig(file)
    }

    fn leaf(&self, file: &str, name: &str, group: Option<&str>, names: Vec<String>) -> Result<()> {
        let mut params = CertificateParams::new(names).context("names of a certificate")?;
        params.distinguished_name.push(DnType::CommonName, name);
        if let Some(group) = group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().with_context(|| format!("making the key of {name}"))?;
        let certificate =
            params.signed_by(&key, &self.issuer).with_context(|| format!("signing {name}"))?;
        self.write(&format!("{file}.crt"), &certificate.pem())?;
        self.write(&format!("{file}.key"), &key.serialize_pem())
    }

    /// The kubeconfig as JSON, which is YAML too, with all that it needs inside.
    fn kubeconfig(&self, user: &str) -> Result<()> {
        let read = |suffix: &str| {
            let path = self.path(&format!("{user}.{suffix}"));
            let bytes = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
            anyhow::Ok(BASE64_STANDARD.encode(bytes))
        };
        let cluster = json!({
            "server": self.url,
            "certificate-authority-data": BASE64_STANDARD.encode(&self.pem),
        });
        let proof =
            json!({ "client-certificate-data": read("crt")?, "client-key-data": read("key")? });
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": "baton", "cluster": cluster }],
            "users": [{ "name": user, "user": proof }],
            "contexts": [{ "name": "baton", "context": { "cluster": "baton", "user": user } }],
            "current-context": "baton",
        });
        self.write(&format!("{user}.kubeconfig"), &kubeconfig.to_string())
    }

    fn write(&self, name: &str, content: &str) -> Result<()> {
        let path = self.path(name);
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        options
            .open(&path)
            .and_then(|mut file| file.write_all(content.as_bytes()))
            .with_context(|| format!("writing {}", path.display()))
    }
}
