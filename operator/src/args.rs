//! The command line: raw arguments become a [`Command`] once; the rest of the program sees only
//! that.

use crate::telemetry::Endpoint;
use anyhow::{Context as _, bail};
use baton_config::logging::{EnvFilter, LogFormat, filter};
use baton_index::Labels;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::{env, fmt, fs, net::SocketAddr, path::PathBuf, str::FromStr, time::Duration};

/// Where Kubernetes tells a Pod its namespace.
const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
/// The variable by which all that speaks OpenTelemetry is told where to send it.
const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
/// The namespace where nothing says one.
const NAMESPACE_DEFAULT: &str = "baton-system";

/// What the user asked for.
#[derive(Debug)]
pub enum Command {
    /// Program dataplanes until told to stop.
    Run(Box<Run>),
    /// Say whether manifests are good.
    Check(Vec<PathBuf>),
    /// Print the definitions of the kinds.
    Crds,
    /// Apply them.
    Apply(Apply),
    /// Have Services lead past Baton.
    Detach(Apply),
    /// Say whether an installation works.
    Verify(Verify),
}

/// Where that is done.
#[derive(Debug)]
pub struct Apply {
    /// Another kubeconfig than the usual one.
    pub kubeconfig: Option<PathBuf>,
}

/// What to look at.
#[derive(Debug)]
pub struct Verify {
    /// Of the workloads.
    pub namespace: String,
    /// All their Pods must be ready.
    pub workloads: Vec<Workload>,
    /// How long all may take to become good.
    pub within: Duration,
    /// Another kubeconfig than the usual one.
    pub kubeconfig: Option<PathBuf>,
}

/// What runs Pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Workload {
    /// A Deployment of this name.
    Deployment(String),
    /// A DaemonSet of this name.
    DaemonSet(String),
}

impl FromStr for Workload {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('/') {
            Some(("deployment", name)) if !name.is_empty() => Ok(Self::Deployment(name.to_owned())),
            Some(("daemonset", name)) if !name.is_empty() => Ok(Self::DaemonSet(name.to_owned())),
            _ => Err("expected deployment/NAME or daemonset/NAME"),
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deployment(name) => write!(f, "deployment/{name}"),
            Self::DaemonSet(name) => write!(f, "daemonset/{name}"),
        }
    }
}

/// How to run.
#[derive(Debug)]
pub struct Run {
    /// Where objects come from.
    pub source: Source,
    /// Where probes and figures are served.
    pub listen: SocketAddr,
    /// Which Pods are host-shims.
    pub shim_selector: Labels,
    /// Port of their control API.
    pub shim_port: u16,
    /// How long a new adoption key rests before it is signed with, and an old one before it is
    /// removed.
    pub key_rest: Duration,
    /// Where spans go.
    pub spans: Option<Endpoint>,
    /// How to log.
    pub log: Log,
}

/// Where objects come from.
#[derive(Debug)]
pub enum Source {
    /// The API server.
    Kubernetes(Kubernetes),
    /// Manifests.
    Directory {
        /// Of the manifests.
        from: PathBuf,
        /// Of keys, certificates, statuses.
        state: PathBuf,
    },
}

/// How to work with an API server.
#[derive(Debug)]
pub struct Kubernetes {
    /// Of the Lease and the Secrets.
    pub namespace: String,
    /// The name of this process in the election.
    pub identity: String,
    /// How long the Lease lasts.
    pub lease: Duration,
    /// Another kubeconfig than the usual one.
    pub kubeconfig: Option<PathBuf>,
    /// Secrets and the Lease go with this process's ServiceAccount.
    pub owned_by_account: bool,
}

/// How to log.
#[derive(Debug)]
pub struct Log {
    /// Lines of text, or objects.
    pub format: LogFormat,
    /// What is worth a line.
    pub level: EnvFilter,
}

/// The controller of Baton: LoadBalancerPolicy objects program the dataplanes.
#[derive(Debug, Parser)]
#[command(name = "baton-operator", version)]
#[command(after_help = "\
Exit codes: 0 done (check: all files are good; verify: all is well)
            1 not done (check, verify: something is wrong; run: it could not go on)
            2 could not be asked (wrong usage, no such file)")]
struct Raw {
    #[command(subcommand)]
    command: RawCommand,
}

#[derive(Debug, Subcommand)]
enum RawCommand {
    /// Program dataplanes until SIGTERM or SIGINT
    ///
    /// Reads objects from the API server that the usual places name (KUBECONFIG, the Pod's
    /// ServiceAccount), or from a directory of manifests. If it ends, dataplanes go on with what
    /// they have.
    Run(Box<RawRun>),
    /// Say whether manifests are good, and if not, in which line and field
    Check {
        /// A file of manifests, YAML or JSON
        #[arg(short, long = "file", value_name = "FILE", required = true, num_args = 1..)]
        files: Vec<PathBuf>,
    },
    /// Print the custom resource definitions, for `kubectl apply --server-side -f -`, or apply them
    Crds {
        /// Apply them to the API server, and wait until it serves them
        #[arg(long)]
        apply: bool,
        /// A kubeconfig file other than the usual one
        #[arg(long, value_name = "FILE", requires = "apply")]
        kubeconfig: Option<PathBuf>,
    },
    /// Have all Services that `kubectl baton attach` attached lead to their Pods again
    ///
    /// For an uninstallation. Does what `kubectl baton detach` does, for all namespaces, but leaves
    /// the policies and the Services of the Pods (`web-pods`), which then only wait to be deleted.
    Detach {
        /// A kubeconfig file other than the usual one
        #[arg(long, value_name = "FILE")]
        kubeconfig: Option<PathBuf>,
    },
    /// Say whether an installation works: definitions of this version, Pods ready, dataplanes in
    /// step
    Verify {
        /// The namespace of the workloads [default: POD_NAMESPACE, the Pod's, or baton-system]
        #[arg(long, value_name = "NAME")]
        namespace: Option<String>,
        /// How long all may take to become good, in seconds
        #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u16).range(0..=3_600))]
        within_seconds: u16,
        /// A kubeconfig file other than the usual one
        #[arg(long, value_name = "FILE")]
        kubeconfig: Option<PathBuf>,
        /// deployment/NAME or daemonset/NAME: all Pods must be ready
        #[arg(value_name = "WORKLOAD")]
        workloads: Vec<Workload>,
    },
}

#[derive(Debug, Args)]
struct RawRun {
    /// Read manifests (*.yaml, *.yml, *.json) from this directory, and again when they change,
    /// instead of an API server
    #[arg(long, value_name = "DIR", requires = "state_dir")]
    from_dir: Option<PathBuf>,
    /// Keep keys, certificates and statuses in this directory; only with --from-dir
    #[arg(long, value_name = "DIR", requires = "from_dir")]
    state_dir: Option<PathBuf>,
    /// The namespace of the Lease and the Secrets [default: POD_NAMESPACE, the Pod's, or
    /// baton-system]
    #[arg(long, value_name = "NAME", conflicts_with = "from_dir")]
    namespace: Option<String>,
    /// The name of this process in the election, which no other may have [default: POD_NAME, or the
    /// host's name and a number]
    #[arg(long, value_name = "NAME", conflicts_with = "from_dir")]
    identity: Option<String>,
    /// How long the Lease lasts without renewal, in seconds: as long nobody leads when a leader's
    /// node dies
    #[arg(long, value_name = "SECONDS", default_value_t = 15, value_parser = clap::value_parser!(u16).range(2..=600))]
    #[arg(conflicts_with = "from_dir")]
    lease_seconds: u16,
    /// A kubeconfig file other than the usual one
    #[arg(long, value_name = "FILE", conflicts_with = "from_dir")]
    kubeconfig: Option<PathBuf>,
    /// Have the Secrets and the Lease that the operator makes deleted with its ServiceAccount: for
    /// an account that is of the installation and goes with it, as the chart's
    #[arg(long, conflicts_with = "from_dir")]
    owned_by_account: bool,
    /// Serve /healthz, /readyz and /metrics at this address
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9902")]
    listen: SocketAddr,
    /// Labels of the host-shims' Pods, as KEY=VALUE,KEY=VALUE; empty means that there are none to
    /// ask
    #[arg(
        long,
        value_name = "LABELS",
        default_value = "app.kubernetes.io/name=baton,app.kubernetes.io/component=host-shim"
    )]
    shim_selector: String,
    /// Port of the host-shims' control API
    #[arg(long, value_name = "PORT", default_value_t = 9901, value_parser = clap::value_parser!(u16).range(1..))]
    shim_port: u16,
    /// How long a new adoption key rests before it is signed with, and an old one before it is
    /// removed, in seconds: as long may a Pod that is being created have the Secret as it was
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u16).range(1..=3_600))]
    key_rest_seconds: u16,
    /// Export spans to the OpenTelemetry collector at this address, as http://127.0.0.1:4318 (OTLP
    /// over HTTP) [default: OTEL_EXPORTER_OTLP_ENDPOINT, or none]
    #[arg(long, value_name = "URL")]
    otlp_endpoint: Option<String>,
    /// What is worth a line of the log: off, error, warn, info, debug, trace, or levels per module
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: String,
    /// The form of lines of the log
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    log_format: RawFormat,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum RawFormat {
    /// For people
    Text,
    /// For programs: one object per line
    Json,
}

/// Reads the command line. Ends the process if it makes no sense.
///
/// # Errors
/// What clap cannot tell by itself.
pub fn parse() -> anyhow::Result<Command> {
    command(Raw::parse())
}

fn command(raw: Raw) -> anyhow::Result<Command> {
    Ok(match raw.command {
        RawCommand::Run(raw) => Command::Run(Box::new(run(*raw)?)),
        RawCommand::Check { files } => Command::Check(files),
        RawCommand::Crds { apply: false, .. } => Command::Crds,
        RawCommand::Crds { kubeconfig, .. } => Command::Apply(Apply { kubeconfig }),
        RawCommand::Detach { kubeconfig } => Command::Detach(Apply { kubeconfig }),
        RawCommand::Verify { namespace, within_seconds, kubeconfig, workloads } => {
            Command::Verify(Verify {
                namespace: namespace.unwrap_or_else(own_namespace),
                workloads,
                within: Duration::from_secs(within_seconds.into()),
                kubeconfig,
            })
        }
    })
}

fn run(raw: RawRun) -> anyhow::Result<Run> {
    let source = match (raw.from_dir, raw.state_dir) {
        (Some(from), Some(state)) => Source::Directory { from, state },
        _ => Source::Kubernetes(Kubernetes {
            namespace: raw.namespace.unwrap_or_else(own_namespace),
            identity: raw.identity.unwrap_or_else(own_identity),
            lease: Duration::from_secs(raw.lease_seconds.into()),
            kubeconfig: raw.kubeconfig,
            owned_by_account: raw.owned_by_account,
        }),
    };
    let level = filter(&raw.log_level).with_context(|| {
        format!(
            "--log-level {}: expected off, error, warn, info, debug or trace, or levels per module as info,kube=debug",
            raw.log_level
        )
    })?;
    let spans = raw.otlp_endpoint.or_else(|| said(ENDPOINT));
    let spans = spans.map(|text| Endpoint::new(&text)).transpose();
    Ok(Run {
        source,
        spans: spans.with_context(|| format!("--otlp-endpoint or {ENDPOINT}"))?,
        listen: raw.listen,
        shim_selector: labels(&raw.shim_selector)?,
        shim_port: raw.shim_port,
        key_rest: Duration::from_secs(raw.key_rest_seconds.into()),
        log: Log {
            format: match raw.log_format {
                RawFormat::Text => LogFormat::Text,
                RawFormat::Json => LogFormat::Json,
            },
            level,
        },
    })
}

fn labels(text: &str) -> anyhow::Result<Labels> {
    let mut pairs = Vec::new();
    for part in text.split(',').filter(|part| !part.trim().is_empty()) {
        let Some((key, value)) = part.split_once('=') else {
            bail!("--shim-selector {text}: `{part}` is no label: expected KEY=VALUE");
        };
        pairs.push((key.trim().to_owned(), value.trim().to_owned()));
    }
    Ok(pairs.into_iter().collect())
}

fn said(variable: &str) -> Option<String> {
    env::var(variable).ok().filter(|value| !value.is_empty())
}

fn own_namespace() -> String {
    said("POD_NAMESPACE")
        .or_else(|| {
            let text = fs::read_to_string(NAMESPACE_FILE).ok()?;
            Some(text.trim().to_owned()).filter(|text| !text.is_empty())
        })
        .unwrap_or_else(|| NAMESPACE_DEFAULT.to_owned())
}

/// The name of the Pod; elsewhere the host's name, and a number because several may run there.
fn own_identity() -> String {
    said("POD_NAME").unwrap_or_else(|| {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        format!("{}-{:08x}", host.trim(), fastrand::u32(..))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> anyhow::Result<Command> {
        let words = ["baton-operator"].iter().chain(words);
        command(Raw::try_parse_from(words)?)
    }

    #[test]
    fn a_directory_needs_a_state_directory_and_no_cluster() {
        let got = parsed(&["run", "--from-dir", "m", "--state-dir", "s"]).expect("good");
        let Command::Run(run) = got else { panic!("{got:?}") };
        assert!(matches!(run.source, Source::Directory { .. }));
        assert_eq!(run.listen.port(), 9_902);
        assert!(!run.shim_selector.is_empty());
        for words in [
            &["run", "--from-dir", "m"][..],
            &["run", "--state-dir", "s"],
            &["run", "--from-dir", "m", "--state-dir", "s", "--namespace", "x"],
            &["run", "--lease-seconds", "1"],
            &["run", "--log-level", "loud"],
            &["run", "--shim-selector", "app"],
            &["check"],
        ] {
            assert!(parsed(words).is_err(), "{words:?}");
        }
    }

    #[test]
    fn a_cluster_has_a_namespace_and_an_identity() {
        let words = [
            "run",
            "--namespace",
            "baton",
            "--identity",
            "a",
            "--lease-seconds",
            "3",
            "--shim-selector",
            "",
            "--owned-by-account",
        ];
        let got = parsed(&words).expect("good");
        let Command::Run(run) = got else { panic!("{got:?}") };
        assert!(run.shim_selector.is_empty());
        let Source::Kubernetes(kubernetes) = run.source else { panic!("a cluster") };
        assert_eq!((kubernetes.namespace.as_str(), kubernetes.identity.as_str()), ("baton", "a"));
        assert_eq!(kubernetes.lease, Duration::from_secs(3));
        assert!(kubernetes.owned_by_account);
        let got = parsed(&["run"]).expect("good");
        let Command::Run(run) = got else { panic!("{got:?}") };
        let Source::Kubernetes(kubernetes) = run.source else { panic!("a cluster") };
        // Only who knows that the account is Baton's own may say so.
        assert!(!kubernetes.owned_by_account);
    }

    #[cfg(feature = "otel")]
    #[test]
    fn spans_go_to_a_collector_in_the_clear_and_passwords_are_not_shown() {
        let endpoint = |url: &str| parsed(&["run", "--otlp-endpoint", url]);
        let Command::Run(run) = endpoint("http://127.0.0.1:4318/").expect("good") else {
            panic!("it runs")
        };
        assert_eq!(run.spans, Endpoint::new("http://127.0.0.1:4318").ok());
        for (url, part) in [
            ("https://collector:4318", "https"),
            ("http://me:secret@collector:4318", "holds a user"),
            ("collector:4318", "scheme"),
            ("http://", "--otlp-endpoint"),
        ] {
            let error = format!("{:#}", endpoint(url).expect_err(url));
            assert!(error.contains(part) && !error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn files_are_checked_and_definitions_are_printed() {
        let got = parsed(&["check", "-f", "a.yaml", "b.yaml"]).expect("good");
        assert!(matches!(got, Command::Check(files) if files.len() == 2));
        assert!(matches!(parsed(&["crds"]), Ok(Command::Crds)));
        assert!(matches!(parsed(&["crds", "--apply"]), Ok(Command::Apply(_))));
        assert!(parsed(&["crds", "--kubeconfig", "a"]).is_err());
        assert!(matches!(parsed(&["detach"]), Ok(Command::Detach(_))));
    }

    #[test]
    fn workloads_are_named_as_kubectl_names_them() {
        let words = [
            "verify",
            "--namespace",
            "baton",
            "--within-seconds",
            "5",
            "deployment/a",
            "daemonset/b",
        ];
        let Ok(Command::Verify(verify)) = parsed(&words) else { panic!("good") };
        assert_eq!(verify.namespace, "baton");
        assert_eq!(verify.within, Duration::from_secs(5));
        let named: Vec<_> = verify.workloads.iter().map(ToString::to_string).collect();
        assert_eq!(named, ["deployment/a", "daemonset/b"]);
        for word in ["a", "pod/a", "deployment/"] {
            assert!(parsed(&["verify", word]).is_err(), "{word}");
        }
    }
}
