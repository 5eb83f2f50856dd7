//! The shared API server with an operator that all tests of a process share, or with operators of
//! one test's own.
//!
//! Tests of one process are of one of the two kinds only: there is one Lease.

use crate::{
    OPERATOR, OPERATOR_NAMESPACE,
    admin::Admin,
    apply::send,
    cluster::{cluster, get},
    operator::Operator,
};
use anyhow::{Context, Result, anyhow};
use baton_apiserver::ApiServer;
use hyper::Method;
use serde_json::{Value, json};
use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{OnceLock, mpsc},
    thread,
};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

/// What the operator keeps in Secrets.
pub const SECRETS: [&str; 5] = [
    "baton-ca",
    "baton-adoption-keys",
    "baton-dataplane-tls",
    "baton-shim-tls",
    "baton-operator-tls",
];

/// A world.
pub struct World {
    /// The server.
    pub server: &'static ApiServer,
    /// May do anything.
    pub admin: Admin,
    /// Of the operator's ServiceAccount.
    pub kubeconfig: PathBuf,
    _turn: Option<MutexGuard<'static, ()>>,
}

impl World {
    /// With an operator that runs as long as this process; `None` where there is no server. A test
    /// takes a namespace and a class of its own and leaves the operator, the definitions and the
    /// server alone.
    pub async fn together() -> Result<Option<Self>> {
        static STARTED: OnceCell<PathBuf> = OnceCell::const_new();
        let Some(mut world) = Self::new(None).await? else {
            return Ok(None);
        };
        let (kubeconfig, folder) = (&world.kubeconfig, world.server.folder());
        let log = STARTED
            .get_or_try_init(async || keep_operator(kubeconfig.clone(), folder.to_owned()))
            .await?;
        world.admin = Admin::new(world.admin.client, Some(log.clone()));
        Ok(Some(world))
    }

    /// With no operator, class, Lease or Secret; waits until no other test of this process is in
    /// such a world. `None` where there is no server.
    pub async fn alone() -> Result<Option<Self>> {
        static TURN: Mutex<()> = Mutex::const_new(());
        let turn = TURN.lock().await;
        let Some(world) = Self::new(Some(turn)).await? else {
            return Ok(None);
        };
        world.clear().await?;
        Ok(Some(world))
    }

    async fn new(turn: Option<MutexGuard<'static, ()>>) -> Result<Option<Self>> {
        let Some(cluster) = cluster().await? else {
            return Ok(None);
        };
        let server = cluster.server;
        let identity = server.service_account(OPERATOR_NAMESPACE, OPERATOR).await?;
        Ok(Some(Self {
            server,
            admin: Admin::new(cluster.admin, None),
            kubeconfig: server.kubeconfig_file(&identity)?,
            _turn: turn,
        }))
    }

    /// Removes what operators of earlier tests left, and what they would work on.
    async fn clear(&self) -> Result<()> {
        let client = &self.admin.client;
        let kind = "application/json";
        // There is no kubelet that would end pods.
        let now = json!({ "gracePeriodSeconds": 0 });
        for collection in [
            "/apis/baton.dev/v1alpha1/batondataplanes".to_owned(),
            format!("/api/v1/namespaces/{OPERATOR_NAMESPACE}/pods"),
            format!("/api/v1/namespaces/{OPERATOR_NAMESPACE}/secrets"),
            format!("/apis/coordination.k8s.io/v1/namespaces/{OPERATOR_NAMESPACE}/leases"),
        ] {
            let deleted = send(client, Method::DELETE, &collection, kind, &now).await?;
            deleted.object().with_context(|| collection.clone())?;
            let left = get(client, &collection).await?;
            let left = left["items"].as_array().context("a list")?;
            anyhow::ensure!(left.is_empty(), "{collection}: left after deletion: {left:?}");
        }
        Ok(())
    }

    /// Starts an operator, whose log failures show from now on.
    pub fn start_operator(&mut self, identity: &str, arguments: &[&str]) -> Result<Operator> {
        let kubeconfig = self.kubeconfig.clone();
        self.start_operator_at(&kubeconfig, identity, arguments)
    }

    /// The same with another kubeconfig.
    pub fn start_operator_at(
        &mut self,
        kubeconfig: &Path,
        identity: &str,
        arguments: &[&str],
    ) -> Result<Operator> {
        let arguments: Vec<String> = arguments.iter().map(|a| (*a).to_owned()).collect();
        let folder = self.server.folder();
        let operator = Operator::start_with(kubeconfig, folder, identity, &arguments)?;
        let log = operator.log_file().to_owned();
        self.admin = Admin::new(self.admin.client.clone(), Some(log));
        Ok(operator)
    }

    /// The operator's kubeconfig with another address of the server.
    pub fn kubeconfig_by_way_of(&self, relay: SocketAddr) -> Result<PathBuf> {
        let text = std::fs::read_to_string(&self.kubeconfig)?;
        let mut kubeconfig: Value = serde_json::from_str(&text)?;
        kubeconfig["clusters"][0]["cluster"]["server"] = format!("https://{relay}").into();
        let path = self.server.folder().join("relayed.kubeconfig");
        let mut options = std::fs::File::options();
        options.write(true).create(true).truncate(true).mode(0o600);
        let file = options.open(&path)?;
        serde_json::to_writer(file, &kubeconfig)?;
        Ok(path)
    }

    /// Where the server listens.
    pub fn server_address(&self) -> Result<SocketAddr> {
        let address = self.server.url().strip_prefix("https://");
        Ok(address.context("https")?.parse()?)
    }

    /// One of the operator's Secrets, by name.
    #[must_use]
    pub fn secret(name: &str) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "Opaque",
            "metadata": { "name": name, "namespace": OPERATOR_NAMESPACE },
        })
    }
}

/// Starts an operator that ends with this process, and gives its log. A child ends with the thread
/// that started it, so one thread stays for it.
fn keep_operator(kubeconfig: PathBuf, folder: PathBuf) -> Result<PathBuf> {
    let port = shim_port()?.to_string();
    let (told, started) = mpsc::channel();
    thread::spawn(move || {
        let arguments = ["--shim-port".to_owned(), port];
        let operator = Operator::start_with(&kubeconfig, &folder, "together", &arguments);
        let _ = told
            .send(operator.as_ref().map(|o| o.log_file().to_owned()).map_err(|e| anyhow!("{e:#}")));
        loop {
            thread::park();
        }
    });
    started.recv().context("the operator's thread")?
}

/// The port of the host-shims of this process: free at all addresses of loopback that begin with
/// 127.2.
pub fn shim_port() -> Result<u16> {
    /// Kept open, so that no other process is given the port.
    static RESERVED: OnceLock<(TcpListener, u16)> = OnceLock::new();
    if let Some((_, port)) = RESERVED.get() {
        return Ok(*port);
    }
    let listener = TcpListener::bind((Ipv4Addr::new(127, 2, 0, 1), 0))?;
    let port = listener.local_addr()?.port();
    Ok(RESERVED.get_or_init(|| (listener, port)).1)
}
