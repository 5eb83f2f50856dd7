//! The configuration file: YAML text becomes a validated [`Loaded`] once; nothing else parses it.
//!
//! Owns the meaning of every field. Never asks the kernel anything (that is `preflight`) and never
//! applies anything (that is `reload` and `run`).

mod fields;
mod keys;
mod listeners;
#[cfg(test)]
mod listeners_tests;
#[cfg(test)]
mod policy_tests;
mod reload;
#[cfg(test)]
mod reload_tests;
#[cfg(test)]
mod tests;
mod words;

pub use baton_config::ConfigError;
pub use fields::{Log, Mode, Ports, Rings, Workers};
pub use keys::LoadedKey;
pub use reload::{Change, Sources, Watcher, compare};

use crate::args::CONTROL_DEFAULT;
use baton_api::{ControlAddress, Endpoint, Limits, Policy, Snapshot, SnapshotError};
use baton_config::{ControlTls, Document, KeysField, reader_words};
use baton_packet::AdoptionKey;
use baton_tls::{Material, Name};
use serde::{Deserialize, Deserializer, Serialize};
use std::{
    fs,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
};

/// Bytes of a configuration file: 1,024 policies with 256 backends of about 60 bytes.
const FILE_LIMIT_BYTES: u64 = 16 << 20;

/// Stands for the interface that the default route leads through.
pub const INTERFACE_AUTO: &str = "auto";

/// Everything a configuration file says, checked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Config {
    /// The interface that frames come and go by; [`INTERFACE_AUTO`]: the one of the default route
    /// when it starts.
    pub interface: String,
    /// The dataplane's own addresses, which legs come from; none: the interface's global ones, and
    /// legs come from the first of each family.
    #[serde(default)]
    pub address: Vec<IpAddr>,
    /// Ports of the legs.
    #[serde(default)]
    pub ports: Ports,
    /// How frames come and go.
    #[serde(default)]
    pub mode: Mode,
    /// Whether this is a node's own network. Then Pods of this node and tunnels to others, which
    /// are behind other interfaces, are reached through the node's stack, and clients behind these
    /// are served too.
    #[serde(default)]
    pub host_network: bool,
    /// Where the control API listens without TLS, for the commands: on the loopback address, or a
    /// unix socket, which only this user may open.
    #[serde(default = "control_default")]
    pub control: ControlAddress,
    /// Where the operator reaches it, with mutual TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_tls: Option<ControlTls>,
    /// Where kubelet and Prometheus reach `/healthz`, `/readyz` and `/metrics`, and nothing else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probes: Option<SocketAddr>,
    /// What is logged and how.
    #[serde(default)]
    pub log: Log,
    /// The adoption keys. Without any, connections move by translation only.
    #[serde(default)]
    pub keys: KeysField,
    /// Table sizes.
    #[serde(default)]
    pub limits: Limits,
    /// Packet rings.
    #[serde(default)]
    pub rings: Rings,
    /// Threads that forward packets.
    #[serde(default)]
    pub workers: Workers,
    /// What is served. Without this field it is pushed by the operator; with it, even if it is an
    /// empty list, the file is the only source and pushes are refused.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub policies: Option<Vec<Policy>>,
    /// The folder of the file: where relative names start.
    #[serde(skip)]
    folder: PathBuf,
}

/// A good configuration with all that it names.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// What the file says.
    pub config: Config,
    /// The keys, the one to sign with first.
    pub keys: Vec<LoadedKey>,
    /// What the files of `controlTls` hold.
    pub tls: Option<Material>,
}

/// A field that is there, whatever it holds: nothing behind its name is not the same as no such
/// name.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<Policy>>, D::Error> {
    Vec::deserialize(deserializer).map(Some)
}

fn control_default() -> ControlAddress {
    CONTROL_DEFAULT.parse().expect("the constant is an address and port")
}

impl Loaded {
    /// The keys as the engine wants them.
    #[must_use]
    pub fn engine_keys(&self) -> Vec<(u8, AdoptionKey)> {
        self.keys.iter().map(|key| (key.epoch, AdoptionKey::from_bytes(key.value.0))).collect()
    }

    /// The epochs of the keys.
    #[must_use]
    pub fn key_epochs(&self) -> Vec<u8> {
        self.keys.iter().map(|key| key.epoch).collect()
    }

    /// Reads and checks the file and the key files that it names.
    ///
    /// # Errors
    /// The first thing that is wrong, with file, line and field.
    pub fn read(file: &Path) -> Result<Self, ConfigError> {
        Self::read_noting(file, &mut Sources::default())
    }

    /// The same, and notes in `sources` each file that it reads or would have read.
    ///
    /// # Errors
    /// The first thing that is wrong, with file, line and field.
    pub fn read_noting(file: &Path, sources: &mut Sources) -> Result<Self, ConfigError> {
        sources.note(file);
        let size = fs::metadata(file)
            .map_err(|e| ConfigError::unreadable(file, format!("cannot be read: {e}")))?
            .len();
        if size > FILE_LIMIT_BYTES {
            return Err(ConfigError::unreadable(
                file,
                format!("{size} bytes are too many: at most {FILE_LIMIT_BYTES} are read"),
            ));
        }
        let text = fs::read_to_string(file)
            .map_err(|e| ConfigError::unreadable(file, format!("cannot be read: {e}")))?;
        let config = Config::parse(file, &text)?;
        for source in keys::sources(&config) {
            sources.note(&source);
        }
        let keys = keys::read(&config, file, &text)?;
        let tls = config.read_tls(file, &text, sources)?;
        Ok(Self { config, keys, tls })
    }
}

impl Config {
    /// Checks the text of a configuration file, but not the files that it names.
    ///
    /// # Errors
    /// The first thing that is wrong, with file, line and field.
    pub fn parse(file: &Path, text: &str) -> Result<Self, ConfigError> {
        // The path is filled in while reading; the line comes with the reader's error.
        let mut field = String::new();
        let parsed = serde_saphyr::with_deserializer_from_str(text, |deserializer| {
            serde_path_to_error::deserialize(deserializer).map_err(|error| {
                field = error.path().to_string();
                error.into_inner()
            })
        });
        let mut config: Self = parsed.map_err(|error| {
            if field == "." {
                field.clear();
            }
            let mut problem = words::in_words(reader_words(&error));
            let mut line = error.location().map(|place| place.line());
            if let Some(missing) = words::missing_field(&problem) {
                // The reader points behind the last field; the one that holds them all is of more
                // help.
                line = None;
                field = match field.as_str() {
                    "" => missing.to_owned(),
                    parent => format!("{parent}.{missing}"),
                };
                problem = "is missing: expected a value".to_owned();
            }
            ConfigError {
                line: line
                    .filter(|line| *line != 0)
                    .or_else(|| Document::parse(text).line_of(&field)),
                field,
                ..ConfigError::new(file, problem)
            }
        })?;
        config.folder = file.parent().unwrap_or(Path::new("")).to_owned();
        config.check().map_err(|e| ConfigError::in_text(file, text, e.path, e.problem))?;
        Ok(config)
    }

    /// Checks what the types alone cannot say.
    fn check(&self) -> Result<(), SnapshotError> {
        let refuse =
            |path: &str, problem: String| Err(SnapshotError { path: path.to_owned(), problem });
        // IFNAMSIZ is 16 with the final zero.
        if self.interface.is_empty()
            || self.interface.len() > 15
            || self.interface.contains(['/', ' '])
        {
            return refuse(
                "interface",
                format!(
                    "`{}` is not the name of an interface: expected 1 to 15 characters without `/`",
                    self.interface
                ),
            );
        }
        for (i, address) in self.address.iter().enumerate() {
            if address.is_unspecified() || address.is_multicast() {
                return refuse(
                    &format!("address[{i}]"),
                    format!("{address} is not an address that this machine can have"),
                );
            }
            if self.address[..i].contains(address) {
                return refuse(&format!("address[{i}]"), format!("{address} is there twice"));
            }
        }
        self.check_listeners()?;
        self.log.check()?;
        fields::check_keys(&self.keys)?;
        self.limits.validate()?;
        self.rings.check()?;
        self.workers.check(self.ports)?;
        self.check_snapshot(&self.snapshot(1), &self.address)
    }

    /// Checks a snapshot of this file, all of it, against itself and against this configuration.
    ///
    /// `own` are the dataplane's addresses.
    ///
    /// # Errors
    /// The first field that is wrong, with what was expected.
    pub fn check_snapshot(&self, snapshot: &Snapshot, own: &[IpAddr]) -> Result<(), SnapshotError> {
        snapshot.validate()?;
        match self.objections(snapshot, own).into_iter().next() {
            Some((_, error)) => Err(error),
            None => Ok(()),
        }
    }

    /// What is wrong with policies of a snapshot because of this configuration: each one's place,
    /// and the first field of it.
    #[must_use]
    pub fn objections(&self, snapshot: &Snapshot, own: &[IpAddr]) -> Vec<(usize, SnapshotError)> {
        let all = snapshot.policies.iter().enumerate();
        let objection = |(p, policy): (usize, &Policy)| {
            let mut all = policy.frontends.iter().enumerate();
            let error = all.find_map(|(i, frontend)| {
                Some(SnapshotError {
                    path: format!("policies[{p}].frontends[{i}]"),
                    problem: self.in_the_way(*frontend, own)?,
                })
            })?;
            Some((p, error))
        };
        all.filter_map(objection).collect()
    }

    /// What of this dataplane is where a frontend would be.
    fn in_the_way(&self, frontend: Endpoint, own: &[IpAddr]) -> Option<String> {
        let ours = frontend.address().is_unspecified() || own.contains(&frontend.address());
        if ours && self.ports.contains(frontend.port()) {
            return Some(format!(
                "port {} is one of the legs' ports {}: choose another, or change `ports`",
                frontend.port(),
                self.ports
            ));
        }
        let listener = self.listener_at(frontend, own)?;
        Some(format!("{frontend} is where {listener}"))
    }

    /// The file's policies as a snapshot.
    #[must_use]
    pub fn snapshot(&self, generation: u64) -> Snapshot {
        Snapshot { generation, policies: self.policies.clone().unwrap_or_default() }
    }

    /// Reads what `controlTls` names, and notes in `sources` which files these are.
    fn read_tls(
        &self,
        file: &Path,
        text: &str,
        sources: &mut Sources,
    ) -> Result<Option<Material>, ConfigError> {
        let Some(tls) = &self.control_tls else {
            return Ok(None);
        };
        for source in tls.files(&self.folder).each() {
            sources.note(source);
        }
        let material = tls.read(&self.folder, Name::Dataplane);
        material
            .map(Some)
            .map_err(|(field, problem)| ConfigError::in_text(file, text, field, problem))
    }

    /// Takes over from `running` what cannot change while running, so that the next comparison is
    /// against what is in force. The level of `log` can change, its format cannot.
    pub fn keep_fixed(&mut self, running: &Self) {
        let new = std::mem::replace(self, running.clone());
        self.log.level = new.log.level;
        self.keys = new.keys;
        self.policies = new.policies;
        self.folder = new.folder;
        if let (Some(mine), Some(new)) = (&mut self.control_tls, new.control_tls) {
            // Other files are read, but the place to listen at stays.
            *mine = ControlTls { listen: mine.listen, ..new };
        }
    }
}
