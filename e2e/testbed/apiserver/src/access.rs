//! What tests ask of a running server: clients, ServiceAccounts, and namespaces made for one test
//! each.

use crate::{ApiServer, identity::Identity};
use anyhow::{Context, Result};
use k8s_openapi::{
    api::{
        authentication::v1::{TokenRequest, TokenRequestSpec},
        core::v1::{self as core, ServiceAccount},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Api, Client, api::PostParams};
use std::{
    process,
    sync::atomic::{AtomicU32, Ordering},
};

/// A token lives longer than any test.
const TOKEN_SECONDS: i64 = 24 * 3600;

/// A namespace for one test. It is not deleted: without controllers a deletion never ends, and the
/// server's data goes with the server.
#[derive(Clone, Debug)]
pub struct Namespace {
    /// Its name.
    pub name: String,
}

impl ApiServer {
    /// A client that may do anything.
    pub async fn admin(&self) -> Result<Client> {
        self.admin_identity().client().await
    }

    /// The ServiceAccount as an identity, by a token that the server issues. RBAC applies to it.
    pub async fn service_account(&self, namespace: &str, name: &str) -> Result<Identity> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.admin().await?, namespace);
        let request = TokenRequest {
            spec: TokenRequestSpec {
                expiration_seconds: Some(TOKEN_SECONDS),
                ..Default::default()
            },
            ..Default::default()
        };
        let answer = accounts.create_token_request(name, &PostParams::default(), &request).await;
        let answer = answer.with_context(|| format!("asking for a token of {namespace}/{name}"))?;
        let token = answer.status.context("the answer holds no token")?.token;
        let name = format!("system:serviceaccount:{namespace}:{name}");
        Ok(self.admin_identity().with_token(name, &token))
    }

    /// A client that speaks as a ServiceAccount.
    pub async fn client_as(&self, namespace: &str, service_account: &str) -> Result<Client> {
        self.service_account(namespace, service_account).await?.client().await
    }

    /// Makes a namespace of a name that nobody has, with the ServiceAccount `default` that Pods
    /// need.
    pub async fn namespace(&self, purpose: &str) -> Result<Namespace> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{purpose}-{}-{number}", process::id());
        let client = self.admin().await?;
        let named = |name: &str| ObjectMeta { name: Some(name.to_owned()), ..Default::default() };
        let namespace = core::Namespace { metadata: named(&name), ..Default::default() };
        let namespaces: Api<core::Namespace> = Api::all(client.clone());
        namespaces
            .create(&PostParams::default(), &namespace)
            .await
            .with_context(|| format!("making namespace {name}"))?;
        let account = ServiceAccount { metadata: named("default"), ..Default::default() };
        let accounts: Api<ServiceAccount> = Api::namespaced(client, &name);
        match accounts.create(&PostParams::default(), &account).await {
            Ok(_) => {}
            // The controllers run and were faster.
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(e) => return Err(e).context("making the default ServiceAccount"),
        }
        Ok(Namespace { name })
    }
}
