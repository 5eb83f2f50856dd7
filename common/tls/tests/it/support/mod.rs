//! Certificates for tests: authorities that sign what they are asked to.

use baton_tls::{Material, Name};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};

/// One authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its certificate.
    pub pem: String,
}

/// A certificate and its key as PEM.
pub struct Pair {
    /// The certificate.
    pub certificate: String,
    /// The key.
    pub key: String,
}

impl Authority {
    /// A new authority. All have the same name, as authorities that follow each other do.
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "baton test");
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("a certificate").pem();
        let issuer = Issuer::new(params, key);
        Self { issuer, pem }
    }

    /// A certificate as Baton issues them.
    pub fn pair(&self, name: Name) -> Pair {
        let purpose = match name {
            Name::Operator => ExtendedKeyUsagePurpose::ClientAuth,
            Name::Dataplane | Name::Shim => ExtendedKeyUsagePurpose::ServerAuth,
        };
        self.sign(name.as_str(), |params| {
            params.extended_key_usages = vec![purpose];
        })
    }

    /// Any certificate.
    pub fn sign(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Pair {
        let mut params = CertificateParams::new([name.to_owned()]).expect("a name");
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("signed");
        Pair { certificate: certificate.pem(), key: key.serialize_pem() }
    }

    /// A pair with this authority as the one that it believes.
    pub fn material(&self, pair: &Pair) -> Material {
        Material::from_pem(pair.certificate.as_bytes(), pair.key.as_bytes(), self.pem.as_bytes())
            .expect("good material")
    }
}
