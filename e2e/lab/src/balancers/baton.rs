//! Baton itself in the lab: `lb-dataplane` in its pod, `host-shim` on the node, and the keys that
//! both need.
//!
//! The programs are found in `BATON_BIN_DIR`, or beside the running executable (or one folder up,
//! as for tests).

use crate::node::{
    control::get,
    lab::Lab,
    process::{LISTEN_DEADLINE, Process, Spec},
    record::Thing,
};
use anyhow::{Context, Result, ensure};
use baton_api::{Backend, Endpoint, FlowView, FlowsReply, Limits, Policy, State};
use rustix::mount::{MountFlags, mount};
use serde::Serialize;
use std::{
    fs::{self, OpenOptions},
    io::{Read, Write},
    net::{IpAddr, SocketAddr},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

/// Control address of the dataplane, inside its pod.
pub const DATAPLANE_CONTROL: &str = "127.0.0.1:9900";
/// Control address of the shim, on the node.
pub const SHIM_CONTROL: &str = "127.0.0.1:9901";
/// Both end within this time after SIGTERM, or are killed.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// One key of the adoption tag.
#[derive(Clone, Debug, Serialize)]
pub struct Key {
    /// Epoch, 0 to 15 on the wire.
    pub epoch: u8,
    /// File with 32 hex digits.
    pub file: PathBuf,
}

/// Configuration of `lb-dataplane`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DataplaneConfig {
    /// Interface in its namespace.
    pub interface: String,
    /// Ports of the legs, `from-to`.
    pub ports: String,
    /// `auto`, `native`, `generic` or `packet`.
    pub mode: String,
    /// Threads that forward packets, if not one; `BATON_WORKERS` says it for all dataplanes that
    /// may have several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<u32>,
    /// On the node's own network; then it runs there.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub host_network: bool,
    /// Control address.
    pub control: String,
    /// Where the operator reaches it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control_tls: Option<ControlTls>,
    /// Log format and level.
    pub log: Log,
    /// Keys, newest last.
    pub keys: Keys,
    /// Table sizes, where they differ from the defaults.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// What it serves; with none, the operator says what.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<Policy>,
    /// How long it goes on after SIGTERM: an option, no field.
    #[serde(skip)]
    pub grace_seconds: u32,
}

/// A control API with mutual TLS.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ControlTls {
    /// Address and port.
    pub listen: SocketAddr,
    /// Certificate chain, PEM.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Who signs the operator's certificate.
    pub client_authority: PathBuf,
}

/// Adoption keys: named one by one, or a folder that the operator writes.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Keys {
    /// By epoch.
    Files(Vec<Key>),
    /// `epoch-N` and `current`.
    Folder {
        /// The folder.
        directory: PathBuf,
    },
}

impl From<Vec<Key>> for Keys {
    fn from(keys: Vec<Key>) -> Self {
        Self::Files(keys)
    }
}

/// How `lb-dataplane` logs.
#[derive(Clone, Debug, Serialize)]
pub struct Log {
    /// `text` or `json`.
    pub format: String,
    /// `error` to `trace`.
    pub level: String,
}

/// Configuration of `host-shim`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ShimConfig {
    /// Keys, newest last; with none, the operator sends those of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keys: Option<Keys>,
    /// The node's name, where the operator sends its keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Pods to install the adopter in.
    pub pods: Vec<ShimPod>,
    /// Control address.
    pub control: String,
    /// Where the operator reaches it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control_tls: Option<ControlTls>,
    /// Directory on a bpf file system, for what must outlive a restart.
    pub pin: PathBuf,
    /// Where shims of other nodes reach pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transfers: Option<ShimTransfers>,
}

/// How shims of several nodes meet.
#[derive(Clone, Debug, Serialize)]
pub struct ShimTransfers {
    /// In each pod.
    pub port: u16,
}

/// One pod of the shim.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ShimPod {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub netns: ShimNetns,
    /// The interface that adoptions arrive on.
    pub interface: String,
    /// `Disabled`: its servers listen without Multipath TCP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multipath_tcp: Option<&'static str>,
}

/// How the shim finds a namespace.
#[derive(Clone, Debug, Serialize)]
pub struct ShimNetns {
    /// Name under `/run/netns`.
    pub name: String,
}

/// A running `lb-dataplane`.
#[derive(Debug)]
pub struct Dataplane {
    /// The process.
    pub process: Process,
    config: PathBuf,
    control: SocketAddr,
    address: IpAddr,
    address_v6: IpAddr,
    program: PathBuf,
}

/// A running `host-shim`.
#[derive(Debug)]
pub struct Shim {
    /// The process.
    pub process: Process,
    config: PathBuf,
    control: SocketAddr,
}

/// Path of one of Baton's programs.
///
/// # Errors
/// If it was not built, with what to build.
pub fn program(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("finding the running executable")?;
    let mut places: Vec<PathBuf> = Vec::new();
    match std::env::var_os("BATON_BIN_DIR") {
        Some(directory) => places.push(directory.into()),
        // target/PROFILE for programs, target/PROFILE/deps for tests.
        None => places.extend(own.ancestors().skip(1).take(2).map(Path::to_path_buf)),
    }
    places.iter().map(|p| p.join(name)).find(|p| p.is_file()).with_context(|| {
        format!(
            "`{name}` is in none of {places:?}: build it with `cargo build -p {name}` \
                 (same profile), or set BATON_BIN_DIR"
        )
    })
}

/// A policy with defaults: `name`, on `port` of the dataplane's own IPv4 and IPv6 addresses, for
/// the given servers.
///
/// # Panics
/// If `port` or the port of a server is 0.
#[must_use]
pub fn policy(name: &str, port: u16, backends: &[(String, SocketAddr)]) -> Policy {
    let endpoint = |a: SocketAddr| Endpoint::new(a.ip(), a.port()).expect("port is not 0");
    let backend = |(name, address): &(String, _)| Backend::new(name.clone(), endpoint(*address));
    let frontend = endpoint(SocketAddr::new([0, 0, 0, 0].into(), port));
    Policy::new(name, vec![frontend], backends.iter().map(backend).collect())
}

impl Lab {
    /// The key of an epoch as both programs read it; made on first use.
    pub fn key(&self, epoch: u8) -> Result<Key> {
        let file = self.directory().join(format!("adoption-{epoch}.key"));
        if !file.exists() {
            let mut key = [0u8; 16];
            fs::File::open("/dev/urandom")?.read_exact(&mut key)?;
            let digits: String = key.iter().map(|b| format!("{b:02x}")).collect();
            OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&file)
                .and_then(|mut f| writeln!(f, "{digits}"))
                .with_context(|| file.display().to_string())?;
        }
        Ok(Key { epoch, file })
    }

    /// A configuration for this lab's dataplane: key epoch 1, mode `auto`.
    pub fn dataplane_config(&self, policies: Vec<Policy>) -> Result<DataplaneConfig> {
        Ok(DataplaneConfig {
            interface: "eth0".into(),
            ports: "20000-59999".into(),
            mode: "auto".into(),
            workers: workers_asked()?,
            host_network: false,
            control: DATAPLANE_CONTROL.into(),
            control_tls: None,
            log: Log { format: "text".into(), level: "info".into() },
            keys: vec![self.key(1)?].into(),
            limits: None,
            policies,
            grace_seconds: 0,
        })
    }

    /// Keeps the kernel of the dataplane's pod from taking the legs' ports for connections of its
    /// own, which `lb-dataplane` asks for where they overlap with `ip_local_port_range`.
    pub fn reserve_ports(&self, config: &DataplaneConfig) -> Result<()> {
        self.dataplane_pod()
            .namespace()
            .set_sysctl("net/ipv4/ip_local_reserved_ports", &config.ports)
    }

    /// Starts `lb-dataplane` in its pod, or on the node, and waits until it says that it is ready.
    ///
    /// # Errors
    /// If it was not built, or ends or does not become ready, with what it said.
    pub fn dataplane(&self, config: &DataplaneConfig) -> Result<Dataplane> {
        let pod = self.dataplane_pod();
        let (place, [address, address_v6]) = if config.host_network {
            (self.router(), self.uplink_addresses())
        } else {
            (pod, [pod.ipv4(), pod.ipv6()])
        };
        let path = place.directory()?.join("lb-dataplane.yaml");
        write_config(&path, config)?;
        let program = program("lb-dataplane")?;
        let mut run = run_spec(&program, &path);
        let grace = config.grace_seconds.to_string();
        run.arguments.extend(["--grace-seconds".to_owned(), grace]);
        let mut dataplane = Dataplane {
            process: place.spawn(&run)?,
            config: path,
            control: config.control.parse().context("control address")?,
            address,
            address_v6,
            program,
        };
        let (namespace, control) = (place.namespace().clone(), dataplane.control);
        dataplane.process.wait_until("ready", LISTEN_DEADLINE, || {
            get(&namespace, control, "/readyz").map(drop)
        })?;
        Ok(dataplane)
    }

    /// A configuration for this lab's shim: all pods, key epoch 1, pins on a bpf file system of the
    /// lab's own.
    pub fn shim_config(&self) -> Result<ShimConfig> {
        Ok(ShimConfig {
            keys: Some(vec![self.key(1)?].into()),
            node: None,
            pods: self
                .pods()
                .iter()
                .map(|pod| ShimPod {
                    name: pod.name().to_owned(),
                    netns: ShimNetns { name: pod.namespace().name().to_owned() },
                    interface: "eth0".into(),
                    multipath_tcp: None,
                })
                .collect(),
            control: SHIM_CONTROL.into(),
            control_tls: None,
            pin: self.bpf_directory()?,
            transfers: None,
        })
    }

    /// A bpf file system of the lab's own, gone with the lab and with it everything pinned in it.
    fn bpf_directory(&self) -> Result<PathBuf> {
        let path = self.directory().join("bpf");
        if !path.exists() {
            fs::create_dir(&path)?;
            self.shared.record.note(Thing::Mount(path.clone()))?;
            mount("bpf", &path, "bpf", MountFlags::empty(), None)
                .with_context(|| format!("mounting a bpf file system at {}", path.display()))?;
        }
        Ok(path)
    }

    /// Starts `host-shim` on the node and waits until it says that it is ready. Several, with
    /// control addresses and pins of their own, stand for several nodes.
    ///
    /// # Errors
    /// If it was not built, or ends or does not become ready, with what it said.
    pub fn shim(&self, config: &ShimConfig) -> Result<Shim> {
        let place = self.router();
        let control: SocketAddr = config.control.parse().context("control address")?;
        let file = format!("host-shim-{}.yaml", control.port());
        let path = place.directory()?.join(file);
        write_config(&path, config)?;
        let mut shim = Shim {
            process: place.spawn(&run_spec(&program("host-shim")?, &path))?,
            config: path,
            control,
        };
        let (namespace, control) = (place.namespace().clone(), shim.control);
        shim.process.wait_until("ready", LISTEN_DEADLINE, || {
            get(&namespace, control, "/readyz").map(drop)
        })?;
        Ok(shim)
    }
}

impl Dataplane {
    /// Where clients connect for `port`.
    #[must_use]
    pub fn address(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.address, port)
    }

    /// The same, IPv6.
    #[must_use]
    pub fn address_v6(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.address_v6, port)
    }

    /// The configuration file; writing it makes the dataplane reload.
    #[must_use]
    pub fn config_path(&self) -> &Path {
        &self.config
    }

    /// Writes another configuration, which the running dataplane picks up by itself. Returns once
    /// its generation has grown; at once if the file says so already.
    ///
    /// # Errors
    /// If it does not take it within the deadline.
    pub fn reconfigure(&mut self, config: &DataplaneConfig) -> Result<()> {
        let before = self.state()?.generation;
        let now = fs::read_to_string(&self.config)?;
        if now == config_text(config)? {
            return Ok(());
        }
        write_config(&self.config, config)?;
        let (namespace, control) = (self.process.namespace().clone(), self.control);
        self.process.wait_until("reconfigured", LISTEN_DEADLINE, || {
            let state: State = serde_json::from_str(&get(&namespace, control, "/v1/state")?)?;
            ensure!(state.generation > before, "generation is still {before}");
            Ok(())
        })
    }

    /// GET on the control address, as text.
    pub fn control_text(&self, target: &str) -> Result<String> {
        get(self.process.namespace(), self.control, target)
    }

    /// GET on the control address, as JSON.
    pub fn control_get(&self, target: &str) -> Result<serde_json::Value> {
        serde_json::from_str(&self.control_text(target)?).with_context(|| target.to_owned())
    }

    /// Its state.
    pub fn state(&self) -> Result<State> {
        serde_json::from_str(&self.control_text("/v1/state")?).context("/v1/state")
    }

    /// Its flows.
    pub fn flows(&self) -> Result<Vec<FlowView>> {
        let reply: FlowsReply =
            serde_json::from_str(&self.control_text("/v1/flows")?).context("/v1/flows")?;
        Ok(reply.flows)
    }

    /// Output of `lb-dataplane ARGUMENTS`, run beside it, as for `status`.
    pub fn tool(&self, arguments: &[&str]) -> Result<String> {
        let output = self
            .process
            .namespace()
            .run(|| std::process::Command::new(&self.program).args(arguments).output())?
            .with_context(|| self.program.display().to_string())?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(
            output.status.success(),
            "`lb-dataplane {}` failed ({}): {text}{}",
            arguments.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(text)
    }

    /// Ends it in order.
    pub fn stop(mut self) -> Result<()> {
        self.process.stop(STOP_GRACE).map(drop)
    }
}

impl Shim {
    /// The configuration file.
    #[must_use]
    pub fn config_path(&self) -> &Path {
        &self.config
    }

    /// GET on the control address, as text.
    pub fn control_text(&self, target: &str) -> Result<String> {
        get(self.process.namespace(), self.control, target)
    }

    /// Ends it in order, so that it detaches what it attached.
    pub fn stop(mut self) -> Result<()> {
        self.process.stop(STOP_GRACE).map(drop)
    }
}

/// What `BATON_WORKERS` says, with which all tests run with several.
fn workers_asked() -> Result<Option<u32>> {
    let asked = std::env::var("BATON_WORKERS").ok();
    let parse = |text: String| text.parse().with_context(|| format!("BATON_WORKERS={text}"));
    asked.map(parse).transpose()
}

fn run_spec(program: &Path, config: &Path) -> Spec {
    Spec::new(program, ["run".to_owned(), "--config".to_owned(), config.display().to_string()])
}

/// Writes a configuration as a whole or not at all: the running program watches the file. JSON is
/// YAML.
fn write_config(path: &Path, config: &impl Serialize) -> Result<()> {
    let text = config_text(config)?;
    let new = path.with_extension("new");
    fs::write(&new, text)
        .and_then(|()| fs::rename(&new, path))
        .with_context(|| path.display().to_string())
}

fn config_text(config: &impl Serialize) -> Result<String> {
    Ok(serde_json::to_string_pretty(config)? + "\n")
}
