//! Certificates that an admin put into Secrets are used as they are, and never overwritten.

use anyhow::{Context, Result};
use baton_operator_tests::{
    admin::Admin,
    class::Class,
    cluster::wait_for,
    dataplane::{Dataplane, own_address},
    objects::{has, service},
    or_skip,
    world::World,
};
use baton_tls::{Material, Name};
use k8s_openapi::ByteString;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};
use serde_json::{Value, json};
use std::net::SocketAddr;

/// An admin's own authority.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// What a Secret of type kubernetes.io/tls holds.
struct Supplied {
    authority: String,
    certificate: String,
    key: String,
}

impl Authority {
    fn new() -> Result<Self> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "the admin's own");
        let key = KeyPair::generate()?;
        let pem = params.self_signed(&key)?.pem();
        Ok(Self { issuer: Issuer::new(params, key), pem })
    }

    fn sign(&self, name: Name, purpose: ExtendedKeyUsagePurpose) -> Result<Supplied> {
        let mut params = CertificateParams::new([name.as_str().to_owned()])?;
        params.extended_key_usages = vec![purpose];
        let key = KeyPair::generate()?;
        Ok(Supplied {
            authority: self.pem.clone(),
            certificate: params.signed_by(&key, &self.issuer)?.pem(),
            key: key.serialize_pem(),
        })
    }
}

impl Supplied {
    /// Has the admin put it into a Secret; gives that as stored.
    async fn put(&self, admin: &Admin, name: &str) -> Result<Value> {
        let mut secret = World::secret(name);
        secret["type"] = "kubernetes.io/tls".into();
        secret["data"] = json!({
            "ca.crt": ByteString(self.authority.clone().into_bytes()),
            "tls.crt": ByteString(self.certificate.clone().into_bytes()),
            "tls.key": ByteString(self.key.clone().into_bytes()),
        });
        admin.apply(&secret).await
    }

    fn material(&self) -> Result<Material> {
        let [certificate, key, authority] =
            [&self.certificate, &self.key, &self.authority].map(String::as_bytes);
        Ok(Material::from_pem(certificate, key, authority)?)
    }
}

#[tokio::test]
async fn supplied_certificates_are_used_and_stay() -> Result<()> {
    let mut world = or_skip!(World::alone().await?);
    let namespace = world.server.namespace("supplied").await?.name;
    let authority = Authority::new()?;
    let dataplane = authority.sign(Name::Dataplane, ExtendedKeyUsagePurpose::ServerAuth)?;
    let operator = authority.sign(Name::Operator, ExtendedKeyUsagePurpose::ClientAuth)?;
    let admin = world.admin.clone();
    let before = [
        dataplane.put(&admin, "baton-dataplane-tls").await?,
        operator.put(&admin, "baton-operator-tls").await?,
    ];
    // It believes the admin's authority only, so an operator with a certificate of its own making
    // cannot push.
    let address = SocketAddr::new(own_address()?, 0);
    let listening = Dataplane::start(address, dataplane.material()?).await?;
    let class = Class::of(&admin, "supplied", vec![listening], &json!({})).await?;

    // A second one finds what the first one has seen.
    for (identity, port) in [("supplied-first", 8_001), ("supplied-second", 8_002)] {
        let running = world.start_operator(identity, &[])?;
        admin.apply(&service(&namespace, identity)).await?;
        let policy = class.policy(&namespace, identity, identity, port);
        admin.apply(&policy).await?;
        class.served(&world.admin, has(&namespace, identity)).await?;
        // What nobody supplied it makes by itself, and that is the end of a turn over all of them.
        let shim = World::secret("baton-shim-tls");
        let made = world
            .admin
            .until("the shims' certificate", &shim, |s| s["data"]["tls.crt"].is_string());
        let made = made.await?;
        assert_eq!(made["metadata"]["labels"]["app.kubernetes.io/managed-by"], "baton-operator");
        for secret in &before {
            assert_eq!(admin.get(secret).await?, *secret, "{}", running.log());
        }
        running.kill()?;
    }
    Ok(())
}

#[tokio::test]
async fn a_supplied_certificate_that_is_garbage_keeps_no_other_from_being_made() -> Result<()> {
    let mut world = or_skip!(World::alone().await?);
    let garbage = Supplied {
        authority: "not a certificate".into(),
        certificate: "not a certificate".into(),
        key: "not a key".into(),
    };
    let admin = world.admin.clone();
    // The server looks into Secrets of type kubernetes.io/tls no further than that the fields are
    // there.
    let before = garbage.put(&admin, "baton-shim-tls").await?;
    let operator = world.start_operator("garbage", &[])?;
    let told = wait_for("the log names the Secret", async || {
        let log = operator.log();
        let line = log.lines().find(|l| l.contains("ERROR") && l.contains("baton-shim-tls"));
        line.map(str::to_owned).context("no line")
    });
    let told = told.await.with_context(|| operator.log())?;
    assert!(told.contains("tls."), "the file is not named: {told}");
    for name in ["baton-ca", "baton-dataplane-tls", "baton-operator-tls", "baton-adoption-keys"] {
        world.admin.until(name, &World::secret(name), |s| s["data"].is_object()).await?;
    }
    assert_eq!(admin.get(&before).await?, before);
    Ok(())
}
