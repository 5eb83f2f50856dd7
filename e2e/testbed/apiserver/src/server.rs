//! The API server as one owned value: etcd and kube-apiserver on a port of loopback that stays
//! reserved for its life.
//!
//! The port's reservation is a socket that is bound but does not listen, with SO_REUSEPORT on both
//! sides (`--permit-port-sharing`): no other process can take the port between choosing it and the
//! server's start, nor while the server is stopped.

use crate::{
    certificates::Certificates,
    folder::Folder,
    identity::Identity,
    process::{self, Process},
};
use anyhow::{Context, Result, bail};
use baton_kubernetes::program;
use rustix::net::{
    AddressFamily, SocketAddrV4, SocketType, bind, getsockname, socket_with, sockopt,
};
use std::{
    net::Ipv4Addr,
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// A start takes 3 s on two idle cores; a machine that also compiles gets much more.
const READY_DEADLINE: Duration = Duration::from_secs(120);
/// etcd opens its socket within a second; as above.
const ETCD_DEADLINE: Duration = Duration::from_secs(60);
/// Addresses of Services. Nothing routes them: there is no node.
const SERVICE_RANGE: &str = "10.96.0.0/16,fd00:96::/108";
/// Controllers that need neither nodes nor a cloud.
const CONTROLLERS: &str = "endpointslice-controller,serviceaccount-controller,namespace-controller,\
    garbage-collector-controller,deployment-controller,replicaset-controller";

/// A running API server. Dropping it ends it and removes its data.
#[derive(Debug)]
pub struct ApiServer {
    // Processes end before their folder is removed: fields drop in this order.
    controllers: Mutex<Option<Process>>,
    api: Mutex<Option<Process>>,
    etcd: Process,
    identity: Identity,
    certificates: Certificates,
    program: PathBuf,
    port: u16,
    _reservation: OwnedFd,
    folder: Folder,
    started_in: Duration,
}

impl ApiServer {
    /// Starts etcd and kube-apiserver and waits until `/readyz` says ok. Builds their program first
    /// if need be.
    ///
    /// # Errors
    /// With what failed, and the end of the server's log if it ran.
    pub fn start() -> Result<Self> {
        let program = program()?;
        let start = Instant::now();
        let folder = Folder::create()?;
        let certificates = Certificates::create(&folder)?;
        let (reservation, port) = reserve_port()?;
        let etcd = start_etcd(&program, folder.path())?;
        let url = format!("https://127.0.0.1:{port}");
        let identity = Identity::admin(&url, &certificates);
        let mut server = Self {
            controllers: Mutex::new(None),
            api: Mutex::new(None),
            etcd,
            identity,
            certificates,
            program,
            port,
            _reservation: reservation,
            folder,
            started_in: Duration::ZERO,
        };
        server.start_again()?;
        server.started_in = start.elapsed();
        Ok(server)
    }

    /// How long the start took, without building the program.
    #[must_use]
    pub fn started_in(&self) -> Duration {
        self.started_in
    }

    /// `https://ADDRESS:PORT`, the same for the server's life.
    #[must_use]
    pub fn url(&self) -> &str {
        self.identity.url()
    }

    /// Who may do anything.
    #[must_use]
    pub fn admin_identity(&self) -> &Identity {
        &self.identity
    }

    /// Stops kube-apiserver gracefully; etcd and the port stay. Connections are refused from then
    /// on.
    pub fn stop(&self) -> Result<()> {
        self.take()?.stop()
    }

    /// Kills kube-apiserver, as a crash would.
    pub fn kill(&self) -> Result<()> {
        self.take()?.kill()
    }

    /// Starts kube-apiserver on the same data and port, and waits until it is ready.
    ///
    /// # Errors
    /// If it runs already or does not become ready, with the end of its log.
    pub fn start_again(&self) -> Result<()> {
        self.start_again_with(&[])
    }

    /// The same with more flags, for this life.
    pub fn start_again_with(&self, flags: &[&str]) -> Result<()> {
        let mut arguments = self.arguments();
        arguments.extend(flags.iter().map(ToString::to_string));
        let mut api = self.api();
        if api.is_some() {
            bail!("kube-apiserver runs already");
        }
        let log = self.folder.path().join("apiserver.log");
        let mut process = Process::start(&self.program, "kube-apiserver", &arguments, log, None)?;
        process.wait_until("ready", READY_DEADLINE, || self.identity.check_ready())?;
        *api = Some(process);
        Ok(())
    }

    /// Restarts kube-apiserver with all history forgotten: whoever watched and comes back with the
    /// resource version that it had is answered 410 Gone. A running server alone would still answer
    /// from its watch cache.
    pub fn forget_history(&self) -> Result<()> {
        self.stop()?;
        self.compact()?;
        self.start_again()
    }

    fn compact(&self) -> Result<()> {
        let socket = socket_path(self.folder.path());
        let output = Command::new(&self.program)
            .args(["etcd-compact", "--socket", &socket])
            .output()
            .context("starting etcd-compact")?;
        if !output.status.success() {
            bail!("etcd-compact: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(())
    }

    /// Starts Kubernetes' controllers that answer for Services, Pods and their owners:
    /// EndpointSlices, ServiceAccounts, namespaces, garbage collection, Deployments. Nobody runs a
    /// Pod: its status stays the test's to write. Once they run, nothing more is done.
    pub fn start_controllers(&self) -> Result<()> {
        let mut controllers = lock(&self.controllers);
        if controllers.is_some() {
            return Ok(());
        }
        let kubeconfig = self.kubeconfig_file(&self.identity)?;
        let arguments = [
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--controllers={CONTROLLERS}"),
            "--leader-elect=false".into(),
            // Its health is seen in what it does.
            "--secure-port=0".into(),
            // At the default pace of 20 requests a second tests would wait for it.
            "--kube-api-qps=300".into(),
            "--kube-api-burst=600".into(),
        ];
        let log = self.folder.path().join("controllers.log");
        *controllers =
            Some(Process::start(&self.program, "kube-controller-manager", &arguments, log, None)?);
        Ok(())
    }

    /// Resident memory of kube-apiserver and etcd, in bytes.
    pub fn memory_bytes(&self) -> Result<(u64, u64)> {
        let api = self.api().as_ref().context("kube-apiserver is stopped")?.id();
        let resident = |id| process::memory_bytes(id, "VmRSS");
        Ok((resident(api)?, resident(self.etcd.id())?))
    }

    /// Writes a kubeconfig for `identity` that only this user can read. It lives as long as the
    /// server.
    pub fn kubeconfig_file(&self, identity: &Identity) -> Result<PathBuf> {
        let name = format!("{}.kubeconfig", identity.name().replace([':', '/'], "-"));
        self.folder.write(&name, &identity.kubeconfig().to_string())
    }

    /// A folder of the server's for what a test writes besides; it goes with the server.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn api(&self) -> MutexGuard<'_, Option<Process>> {
        lock(&self.api)
    }

    fn take(&self) -> Result<Process> {
        self.api().take().context("kube-apiserver is stopped already")
    }

    fn arguments(&self) -> Vec<String> {
        let Certificates { authority, server, server_key, token_key, token_public_key, .. } =
            &self.certificates;
        let file = |flag: &str, path: &Path| format!("--{flag}={}", path.display());
        vec![
            format!("--etcd-servers=unix://{}", socket_path(self.folder.path())),
            "--bind-address=127.0.0.1".into(),
            "--advertise-address=127.0.0.1".into(),
            format!("--secure-port={}", self.port),
            "--permit-port-sharing=true".into(),
            // Loopback may not stand in the Endpoints of the Service `kubernetes`; nothing here
            // uses that Service.
            "--endpoint-reconciler-type=none".into(),
            file("client-ca-file", authority),
            file("tls-cert-file", server),
            file("tls-private-key-file", server_key),
            "--service-account-issuer=https://kubernetes.default.svc".into(),
            file("service-account-key-file", token_public_key),
            file("service-account-signing-key-file", token_key),
            format!("--service-cluster-ip-range={SERVICE_RANGE}"),
            "--authorization-mode=Node,RBAC".into(),
            "--allow-privileged=true".into(),
            "--profiling=false".into(),
            // Nobody else looks for this server, so a stop need not wait for load balancers to
            // notice.
            "--shutdown-delay-duration=0s".into(),
        ]
    }
}

/// A test that panicked while it held the lock has left a process or none, both of which are good.
fn lock(process: &Mutex<Option<Process>>) -> MutexGuard<'_, Option<Process>> {
    process.lock().unwrap_or_else(PoisonError::into_inner)
}

fn socket_path(folder: &Path) -> String {
    folder.join("etcd.sock").display().to_string()
}

fn start_etcd(program: &Path, folder: &Path) -> Result<Process> {
    let socket = socket_path(folder);
    let data = folder.join("etcd").display().to_string();
    let arguments = ["--data-dir", &data, "--socket", &socket].map(str::to_owned);
    let mut etcd =
        Process::start(program, "etcd", &arguments, folder.join("etcd.log"), Some(folder))?;
    etcd.wait_until("listening", ETCD_DEADLINE, || {
        UnixStream::connect(&socket).map(drop).with_context(|| format!("connecting to {socket}"))
    })?;
    Ok(etcd)
}

/// A free port of loopback, and the socket that keeps it from everybody but sockets of this user
/// that share ports.
fn reserve_port() -> Result<(OwnedFd, u16)> {
    let flags = rustix::net::SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)
        .context("making a socket")?;
    sockopt::set_socket_reuseport(&socket, true).context("sharing a port")?;
    bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).context("taking a port")?;
    let address: SocketAddrV4 = getsockname(&socket)?.try_into().context("the port taken")?;
    Ok((socket, address.port()))
}
