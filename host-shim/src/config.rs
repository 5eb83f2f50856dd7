//! The configuration: YAML text becomes checked values once. Owns what is valid and how a refusal
//! reads.

use baton_adopter::{DEFAULT_PIN_DIR, EPOCHS, Netns};
use baton_api::is_node_name;
use baton_config::{
    ConfigError, ControlTls, Document, FolderError, KEYS_EXPECTED, KeyFile, KeysField, Place,
    key::{DIGITS, Key, KeyError},
    logging::{EnvFilter, LogFormat, filter},
    reader_words,
};
use baton_crds::PodMultipathTcp;
use baton_tls::{Material, Name};
use serde::Deserialize;
use std::{
    collections::HashMap,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
};

/// Keys that can be live at once: the one in use and the one that it is being rotated to.
const KEYS_MAX: usize = 2;
/// `IFNAMSIZ` without the terminating NUL.
const INTERFACE_BYTES_MAX: usize = 15;
/// Pods of one node: the size of the adopter's table of namespaces.
const PODS_MAX: usize = 4096;
/// Where the chart puts the node's name (downward API).
const NODE_VARIABLE: &str = "NODE_NAME";
/// Any permission of a key file for group or others.
const OTHERS: u32 = 0o077;

/// A checked configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub keys: Keys,
    pub pods: Vec<Pod>,
    /// Where the HTTP side listens without TLS.
    pub control: Option<SocketAddr>,
    /// Where it listens with mutual TLS, and what its files hold.
    pub control_tls: Option<(SocketAddr, Material)>,
    /// Where only health and metrics are answered.
    pub probes: Option<SocketAddr>,
    /// The files beside the configuration that were read; a change of one of them is a change of
    /// the configuration.
    pub files: Vec<PathBuf>,
    pub log: Log,
    pub pin: PathBuf,
    /// Which pods of the node shall have the adopter is asked from the API server.
    pub discovery: Option<Discovery>,
    /// Where host-shims of other nodes connect, in each pod's network namespace, to hand
    /// connections on; 0: these move within the node only.
    pub transfers_port: u16,
}

/// How pods are discovered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Discovery {
    /// This node's name.
    pub node: String,
    /// How to reach the API server; without it as the Pod's ServiceAccount.
    pub kubeconfig: Option<PathBuf>,
    /// Where the node's processes are seen.
    pub proc: PathBuf,
    /// Namespace and name of the DaemonSet that this process is of: with `--keep-on-exit`, what is
    /// attached stays only while there is one.
    pub daemon_set: Option<(String, String)>,
}

/// Where the adoption keys come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keys {
    /// Files, the one to sign with first.
    Configured(Vec<EpochKey>),
    /// The operator sends those of this node.
    Operator {
        /// Its name.
        node: String,
    },
}

/// One live key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochKey {
    pub epoch: u8,
    pub key: Key,
}

/// One interface that shall have the adopter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    pub name: String,
    pub netns: Netns,
    pub interface: String,
    pub multipath: PodMultipathTcp,
}

/// How to log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    pub format: LogFormat,
    pub level: LogLevel,
}

/// What is worth a line: a level, or levels per module as `info,host_shim=debug`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct LogLevel(String);

impl LogLevel {
    /// As the log library wants it.
    pub fn filter(&self) -> EnvFilter {
        filter(&self.0).unwrap_or_default()
    }
}

impl Default for LogLevel {
    fn default() -> Self {
        Self("info".to_owned())
    }
}

impl TryFrom<String> for LogLevel {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match filter(&text) {
            Some(_) => Ok(Self(text)),
            None => Err(format!("`{text}` is not a level")),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawConfig {
    keys: Option<KeysField>,
    node: Option<String>,
    #[serde(default)]
    pods: Vec<RawPod>,
    control: Option<String>,
    #[serde(rename = "controlTls")]
    control_tls: Option<ControlTls>,
    probes: Option<String>,
    #[serde(default)]
    log: Log,
    pin: Option<PathBuf>,
    discovery: Option<RawDiscovery>,
    #[serde(default)]
    transfers: RawTransfers,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTransfers {
    port: u16,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawDiscovery {
    node: Option<String>,
    kubeconfig: Option<PathBuf>,
    proc: Option<PathBuf>,
    daemon_set: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RawPod {
    name: String,
    netns: RawNetns,
    interface: String,
    #[serde(default)]
    multipath_tcp: PodMultipathTcp,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum RawNetns {
    Name(String),
    Path(PathBuf),
    Pid(u32),
}

/// What is right for a field, by the last part of its path.
fn expected(field: &str) -> Option<&'static str> {
    let last = field.rsplit('.').next().unwrap_or(field);
    Some(match last.split('[').next().unwrap_or(last) {
        "keys" => {
            "a list of one or two {epoch: NUMBER, file: FILE}, or {directory: DIRECTORY}, or no keys: then the operator sends \
             them by controlTls"
        }
        "directory" => "the path of a directory with files epoch-N and current",
        "controlTls" => {
            "{listen: ADDRESS:PORT, certificate: FILE, key: FILE, clientAuthority: FILE}"
        }
        "certificate" | "clientAuthority" => "the path of a file with certificates (PEM)",
        "key" => "the path of a file with a private key (PEM) that only its owner can read",
        "epoch" => "a whole number from 0 to 255",
        "file" => "the path of a file with 32 hexadecimal digits that only its owner can read",
        "pods" => {
            "a list of {name: NAME, netns: {name: NAME} or {path: PATH} or {pid: NUMBER}, interface: NAME}"
        }
        "multipathTcp" => "Unchanged or Disabled",
        "netns" => "exactly one of {name: NAME}, {path: PATH} or {pid: NUMBER}",
        "transfers" => "{port: NUMBER}",
        "port" => {
            "the number of a port that no process of a pod listens on, or 0: connections move within the node only"
        }
        "pid" => "the number of a process",
        "path" | "pin" | "proc" => "an absolute path",
        "discovery" => {
            "{node: NAME, kubeconfig: FILE, daemonSet: NAMESPACE/NAME}, each of which can be left out"
        }
        "node" => {
            "the name of this node, or the environment variable NODE_NAME (the chart sets it)"
        }
        "daemonSet" => "NAMESPACE/NAME of the DaemonSet that this host-shim is of",
        "kubeconfig" => "the path of a kubeconfig file",
        "name" => "a name of letters, digits, `-`, `.`, `_` (and `/` for pods)",
        "interface" => "the name of an interface in the pod, such as eth0",
        "control" | "listen" | "probes" => "an address and a port, such as 127.0.0.1:9901",
        "log" => "{format: text or json, level: off, error, warn, info, debug or trace}",
        "format" => "text or json",
        "level" => {
            "off, error, warn, info, debug or trace, or levels per module as info,host_shim=debug"
        }
        _ => return None,
    })
}

impl Config {
    /// Reads a file, and the key files that it names.
    pub fn read(file: &Path) -> Result<Self, ConfigError> {
        let text = fs::read_to_string(file)
            .map_err(|e| ConfigError::unreadable(file, format!("cannot be read: {e}")))?;
        Self::parse(file, &text)
    }

    fn parse(file: &Path, text: &str) -> Result<Self, ConfigError> {
        let document = Document::parse(text);
        let raw: RawConfig =
            serde_saphyr::from_str(text).map_err(|e| malformed(file, &document, &e))?;
        let refuse = |field: String, problem: String| {
            let problem = with_expected(problem, expected(&field));
            let place = document.place_of(&field);
            ConfigError { field, ..ConfigError::new(file, problem).with_place(place) }
        };
        raw.check(file.parent().unwrap_or(Path::new("")), refuse)
    }
}

/// What the parser found wrong, with the field that stands there.
fn malformed(file: &Path, document: &Document, e: &serde_saphyr::Error) -> ConfigError {
    let place = e.location().map(Place::from);
    let problem = reader_words(e);
    let field = place.and_then(|p| document.field_at(p));
    // A name that the parser already lists alternatives for needs no second list.
    let listed = problem.contains("expected one of") || problem.contains(KEYS_EXPECTED);
    let right = field.as_deref().filter(|_| !listed).and_then(expected);
    ConfigError {
        field: field.unwrap_or_default(),
        ..ConfigError::new(file, with_expected(problem, right)).with_place(place)
    }
}

/// A problem, and what would be right.
fn with_expected(problem: String, right: Option<&str>) -> String {
    match right {
        Some(right) => format!("{problem}; expected {right}"),
        None => problem,
    }
}

/// Why a key file is refused.
fn key_problem(file: &Path, error: &KeyError) -> String {
    let shown = file.display();
    match error {
        KeyError::Unreadable(error) => format!("cannot read {shown}: {error}"),
        KeyError::Exposed { mode } => format!(
            "{shown} has mode {mode:04o}, so that others can read the key: run `chmod 600 {shown}`"
        ),
        KeyError::Malformed(_) => format!(
            "{shown} holds no key: expected {DIGITS} hexadecimal digits, as `openssl rand -hex 16` prints them"
        ),
    }
}

impl RawConfig {
    /// `folder` is where the configuration lies.
    fn check(
        self,
        folder: &Path,
        refuse: impl Fn(String, String) -> ConfigError,
    ) -> Result<Config, ConfigError> {
        let (configured, mut files) = match &self.keys {
            Some(keys) => {
                let (keys, files) = read_keys(keys, folder, &refuse)?;
                (Some(keys), files)
            }
            None => (None, Vec::new()),
        };
        let address = |field: &str, text: Option<String>| {
            let parsed = text.map(|text| {
                let wrong = |_| refuse(field.into(), format!("`{text}` is no such address"));
                text.parse().map_err(wrong)
            });
            parsed.transpose()
        };
        let control = address("control", self.control)?;
        let probes = address("probes", self.probes)?;
        let control_tls = match self.control_tls {
            None => None,
            Some(tls) => {
                files.extend(tls.files(folder).each().map(Path::to_owned));
                let material = tls.read(folder, Name::Shim);
                let material = material.map_err(|(field, problem)| refuse(field, problem))?;
                Some((tls.listen, material))
            }
        };
        let pin = self.pin.unwrap_or_else(|| DEFAULT_PIN_DIR.into());
        if !pin.is_absolute() {
            return Err(refuse("pin".into(), format!("`{}` is not absolute", pin.display())));
        }
        let discovery = match self.discovery {
            Some(raw) => Some(raw.check(&refuse)?),
            None => None,
        };
        let keys = match configured {
            Some(keys) => Keys::Configured(keys),
            None if control_tls.is_none() => {
                let problem = "there are none, and no operator can send them".to_owned();
                return Err(refuse("keys".into(), problem));
            }
            None => {
                let node = self.node.or_else(|| discovery.as_ref().map(|d| d.node.clone()));
                Keys::Operator { node: this_node(node, "node", &refuse)? }
            }
        };
        Ok(Config {
            keys,
            pods: check_pods(self.pods, refuse)?,
            control,
            control_tls,
            probes,
            files,
            log: self.log,
            pin,
            discovery,
            transfers_port: self.transfers.port,
        })
    }
}

impl RawDiscovery {
    fn check(
        self,
        refuse: impl Fn(String, String) -> ConfigError,
    ) -> Result<Discovery, ConfigError> {
        let node = this_node(self.node, "discovery.node", &refuse)?;
        let proc = self.proc.unwrap_or_else(|| "/proc".into());
        if !proc.is_absolute() {
            let problem = format!("`{}` is not absolute", proc.display());
            return Err(refuse("discovery.proc".into(), problem));
        }
        let daemon_set = match &self.daemon_set {
            Some(text) => match text.split_once('/') {
                Some((namespace, name)) if is_name(namespace, "") && is_name(name, "") => {
                    Some((namespace.to_owned(), name.to_owned()))
                }
                _ => {
                    let problem = format!("`{text}` is no such name");
                    return Err(refuse("discovery.daemonSet".into(), problem));
                }
            },
            None => None,
        };
        Ok(Discovery { daemon_set, node, kubeconfig: self.kubeconfig, proc })
    }
}

/// The name of this node, as the configuration has it or else the environment.
fn this_node(
    configured: Option<String>,
    field: &str,
    refuse: impl Fn(String, String) -> ConfigError,
) -> Result<String, ConfigError> {
    let node = configured.or_else(|| std::env::var(NODE_VARIABLE).ok());
    let unknown = || refuse(field.into(), "it is not known which node this is".into());
    node.filter(|name| is_node_name(name)).ok_or_else(unknown)
}

/// Whether a text is a name of Kubernetes or of `ip netns`, but for what else may be in it.
fn is_name(name: &str, more: &str) -> bool {
    !name.is_empty()
        && name.len() <= 253
        && name != "."
        && name != ".."
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c) || more.contains(c))
}

/// The keys, the one to sign with first, and the files that were read.
fn read_keys(
    field: &KeysField,
    folder: &Path,
    refuse: impl Fn(String, String) -> ConfigError,
) -> Result<(Vec<EpochKey>, Vec<PathBuf>), ConfigError> {
    let list = match field {
        KeysField::Files(list) => list,
        KeysField::Folder(keys) => {
            let files = keys.watched(folder);
            let read = keys.read(folder, OTHERS).map_err(|error| {
                let words = match &error {
                    FolderError::Key { file, source } => key_problem(file, source),
                    other => other.to_string(),
                };
                refuse("keys.directory".into(), words)
            })?;
            let keys = read.into_iter().map(|k| EpochKey { epoch: k.epoch, key: k.key });
            return Ok((keys.collect(), files));
        }
    };
    if list.is_empty() || list.len() > KEYS_MAX {
        return Err(refuse("keys".into(), format!("{} keys are given", list.len())));
    }
    let mut keys: Vec<EpochKey> = Vec::new();
    // As those of the other fields, relative paths begin at the configuration's folder.
    let paths: Vec<PathBuf> = list.iter().map(|key| folder.join(&key.file)).collect();
    for (at, (KeyFile { epoch, .. }, file)) in list.iter().zip(&paths).enumerate() {
        if let Some(other) = keys.iter().position(|k| k.epoch % EPOCHS == epoch % EPOCHS) {
            return Err(refuse(
                format!("keys[{at}].epoch"),
                format!("{epoch} is the same epoch as keys[{other}] (they count modulo {EPOCHS})"),
            ));
        }
        let key = Key::read(file, OTHERS)
            .map_err(|e| refuse(format!("keys[{at}].file"), key_problem(file, &e)))?;
        keys.push(EpochKey { epoch: *epoch, key });
    }
    Ok((keys, paths))
}

fn check_pods(
    raw: Vec<RawPod>,
    refuse: impl Fn(String, String) -> ConfigError,
) -> Result<Vec<Pod>, ConfigError> {
    if raw.len() > PODS_MAX {
        return Err(refuse(
            "pods".into(),
            format!("{} pods are given, at most {PODS_MAX} are possible", raw.len()),
        ));
    }
    let mut names = HashMap::new();
    let mut places = HashMap::new();
    let mut pods = Vec::new();
    for (at, raw) in raw.into_iter().enumerate() {
        let path = format!("pods[{at}]");
        if !is_name(&raw.name, "/") {
            return Err(refuse(format!("{path}.name"), format!("`{}` is not a name", raw.name)));
        }
        if let Some(other) = names.insert(raw.name.clone(), at) {
            return Err(refuse(
                format!("{path}.name"),
                format!("`{}` is already the name of pods[{other}]", raw.name),
            ));
        }
        let netns = match raw.netns {
            RawNetns::Name(name) if !is_name(&name, "") => {
                return Err(refuse(
                    format!("{path}.netns.name"),
                    format!("`{name}` is not a name of /run/netns"),
                ));
            }
            RawNetns::Path(file) if !file.is_absolute() => {
                return Err(refuse(
                    format!("{path}.netns.path"),
                    format!("`{}` is not absolute", file.display()),
                ));
            }
            RawNetns::Pid(0) => {
                return Err(refuse(format!("{path}.netns.pid"), "0 is no process".into()));
            }
            RawNetns::Name(name) => Netns::Name(name),
            RawNetns::Path(file) => Netns::Path(file),
            RawNetns::Pid(pid) => Netns::Pid(pid),
        };
        let interface = raw.interface;
        let good = (1..=INTERFACE_BYTES_MAX).contains(&interface.len())
            && !interface.contains(|c: char| c == '/' || c.is_whitespace() || c.is_control());
        if !good {
            return Err(refuse(
                format!("{path}.interface"),
                format!("`{interface}` cannot be an interface (1 to {INTERFACE_BYTES_MAX} bytes)"),
            ));
        }
        if let Some(other) = places.insert((netns.clone(), interface.clone()), at) {
            return Err(refuse(
                format!("{path}.interface"),
                format!("pods[{other}] has the same namespace and interface"),
            ));
        }
        pods.push(Pod { name: raw.name, netns, interface, multipath: raw.multipath_tcp });
    }
    Ok(pods)
}

#[cfg(test)]
mod tests;
