//! The operator in the lab: on the node, with a directory of manifests in place of an API server.
//!
//! Owns the copy of the manifests that it reads, and its state directory, from which dataplane and
//! shim take keys and certificates. Says how those two are configured to be programmed by it.

use crate::{
    balancers::baton::{ControlTls, DataplaneConfig, Keys, ShimConfig, program},
    node::{
        control::get,
        lab::Lab,
        process::{LISTEN_DEADLINE, Process, Spec},
    },
};
use anyhow::{Context, Result, ensure};
use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

/// Where the operator serves health and figures, on the node.
pub const OPERATOR_LISTEN: &str = "127.0.0.1:9902";
/// Port of the control API of dataplanes, as a `BatonDataplane` has it by default.
const DATAPLANE_PORT: u16 = 9900;
/// Port of the shims' control API, the operator's default.
const SHIM_PORT: u16 = 9901;
/// The node of all Pods of the demo's manifests.
const NODE: &str = "router";
/// It ends within this time after SIGTERM, or is killed.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// A running `baton-operator`.
#[derive(Debug)]
pub struct Operator {
    /// The process.
    pub process: Process,
    manifests: PathBuf,
    state: PathBuf,
    control: SocketAddr,
}

impl Lab {
    /// Starts `baton-operator` on the node with a copy of these manifests, and waits until it is
    /// ready.
    ///
    /// # Errors
    /// If it was not built, or ends or does not become ready, with what it said.
    pub fn operator(&self, manifests: &Path) -> Result<Operator> {
        let copy = self.directory().join("manifests");
        if !copy.exists() {
            fs::create_dir(&copy).with_context(|| copy.display().to_string())?;
        }
        for entry in fs::read_dir(manifests).with_context(|| manifests.display().to_string())? {
            let file = entry?.path();
            let name = file.file_name().context("a file has a name")?;
            fs::copy(&file, copy.join(name)).with_context(|| file.display().to_string())?;
        }
        self.operator_again(&copy)
    }

    /// Starts it on a directory of manifests of the lab's own, as it is: after a kill, say.
    pub fn operator_again(&self, manifests: &Path) -> Result<Operator> {
        let place = self.router();
        let state = self.directory().join("operator");
        let spec = Spec::new(
            program("baton-operator")?,
            [
                "run".to_owned(),
                "--from-dir".to_owned(),
                manifests.display().to_string(),
                "--state-dir".to_owned(),
                state.display().to_string(),
                "--listen".to_owned(),
                OPERATOR_LISTEN.to_owned(),
                // Nobody mounts Secrets here.
                "--key-rest-seconds".to_owned(),
                "1".to_owned(),
            ],
        );
        let mut operator = Operator {
            process: place.spawn(&spec)?,
            manifests: manifests.to_owned(),
            state,
            control: OPERATOR_LISTEN.parse().context("operator address")?,
        };
        let (namespace, control) = (place.namespace().clone(), operator.control);
        let files = [
            operator.key_folder().join("current"),
            operator.tls_folder("dataplane").join("tls.key"),
            operator.tls_folder("shim").join("tls.key"),
        ];
        operator.process.wait_until("ready", LISTEN_DEADLINE, || {
            get(&namespace, control, "/readyz")?;
            for file in &files {
                ensure!(file.exists(), "there is no {} yet", file.display());
            }
            Ok(())
        })?;
        Ok(operator)
    }

    /// A configuration for this lab's dataplane that leaves policies, keys and certificates to the
    /// operator.
    pub fn operated_dataplane(&self, operator: &Operator) -> Result<DataplaneConfig> {
        let listen = SocketAddr::new(self.dataplane_pod().ipv4(), DATAPLANE_PORT);
        Ok(DataplaneConfig {
            control_tls: Some(operator.tls("dataplane", listen)),
            keys: operator.keys(),
            ..self.dataplane_config(Vec::new())?
        })
    }

    /// The same for the shim.
    pub fn operated_shim(&self, operator: &Operator) -> Result<ShimConfig> {
        let listen = SocketAddr::new(self.node_address(), SHIM_PORT);
        Ok(ShimConfig {
            control_tls: Some(operator.tls("shim", listen)),
            // As the manifests have it, where its Pod is.
            keys: None,
            node: Some(NODE.to_owned()),
            ..self.shim_config()?
        })
    }
}

impl Operator {
    /// The manifests that it reads; what is written there counts.
    #[must_use]
    pub fn manifests(&self) -> &Path {
        &self.manifests
    }

    /// Its state directory.
    #[must_use]
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// Replaces a text in one of the manifests, which must be there, as an admin's editor does.
    pub fn edit(&self, file: &str, from: &str, to: &str) -> Result<()> {
        let path = self.manifests.join(file);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        ensure!(text.contains(from), "`{from}` is not in {file}");
        self.write(file, &text.replacen(from, to, 1))
    }

    /// Writes a manifest as a whole or not at all.
    pub fn write(&self, file: &str, text: &str) -> Result<()> {
        let path = self.manifests.join(file);
        // Not a name that is read as a manifest.
        let new = path.with_extension("new");
        fs::write(&new, text)
            .and_then(|()| fs::rename(&new, &path))
            .with_context(|| path.display().to_string())
    }

    /// GET on its own address, as text.
    pub fn control_text(&self, target: &str) -> Result<String> {
        get(self.process.namespace(), self.control, target)
    }

    /// Ends it in order.
    pub fn stop(mut self) -> Result<()> {
        self.process.stop(STOP_GRACE).map(drop)
    }

    fn key_folder(&self) -> PathBuf {
        self.state.join("baton-adoption-keys")
    }

    fn tls_folder(&self, role: &str) -> PathBuf {
        self.state.join(format!("baton-{role}-tls"))
    }

    fn keys(&self) -> Keys {
        Keys::Folder { directory: self.key_folder() }
    }

    fn tls(&self, role: &str, listen: SocketAddr) -> ControlTls {
        let folder = self.tls_folder(role);
        ControlTls {
            listen,
            certificate: folder.join("tls.crt"),
            key: folder.join("tls.key"),
            client_authority: folder.join("ca.crt"),
        }
    }
}
