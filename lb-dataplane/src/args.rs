//! The command line: raw arguments become a [`Command`] once; the rest of the program sees only that.

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::{net::SocketAddr, path::PathBuf};

/// Where a running dataplane listens unless its configuration says otherwise.
pub const CONTROL_DEFAULT: &str = "127.0.0.1:9900";

/// What the user asked for.
#[derive(Debug, PartialEq, Eq)]
pub enum Command {
    /// Serve traffic until told to stop.
    Run(PathBuf),
    /// Say whether a configuration is good.
    Check(PathBuf),
    /// Ask a running dataplane.
    Ask(Question),
    /// Print the version.
    Version,
}

/// A question to a running dataplane.
#[derive(Debug, PartialEq, Eq)]
pub struct Question {
    /// What is asked.
    pub topic: Topic,
    /// Its control address.
    pub control: SocketAddr,
    /// The network namespace (a name of `ip netns`) to ask from.
    pub netns: Option<String>,
    /// Table for people or JSON for programs.
    pub output: Output,
}

/// What a running dataplane is asked.
#[derive(Debug, PartialEq, Eq)]
pub enum Topic {
    /// Is it working, and if not why.
    Status,
    /// All backends.
    Backends {
        /// Only this policy's.
        policy: Option<String>,
    },
    /// Client connections.
    Flows {
        /// Only this policy's.
        policy: Option<String>,
        /// Only those that this backend owns.
        backend: Option<String>,
        /// At most so many.
        limit: u32,
    },
}

/// The form of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// A table of at most 80 columns.
    #[default]
    Table,
    /// The control API's JSON.
    Json,
}

/// The userspace packet path of Baton, the load balancer that moves live TCP connections between pods.
#[derive(Debug, Parser)]
#[command(name = "lb-dataplane", disable_version_flag = true)]
#[command(after_help = "\
Exit codes: 0 done (check: the file is good; status: it works)
            1 not done (check: the file is refused; status: it does not work; run: it could not go on)
            2 could not be asked (wrong usage, no such file, the dataplane does not answer)")]
struct Raw {
    #[command(subcommand)]
    command: RawCommand,
}

#[derive(Debug, Subcommand)]
enum RawCommand {
    /// Serve traffic until SIGTERM or SIGINT
    ///
    /// Needs CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and, if the memory lock limit is small, CAP_IPC_LOCK.
    /// The file is read again when it changes or on SIGHUP: policies, keys and the log level change
    /// without touching a connection; a bad file is refused and the last good one stays.
    Run(File),
    /// Say whether a configuration file is good, and if not, in which line and field
    Check(File),
    /// Is it working, and if not, why
    Status(Ask),
    /// Show backends: can they adopt, how loaded are they, what came and went
    Backends {
        #[command(flatten)]
        ask: Ask,
        /// Only the backends of this policy
        #[arg(long, value_name = "NAME")]
        policy: Option<String>,
    },
    /// Show client connections and the backends that own them
    Flows {
        #[command(flatten)]
        ask: Ask,
        /// Only flows of this policy
        #[arg(long, value_name = "NAME")]
        policy: Option<String>,
        /// Only flows that this backend owns
        #[arg(long, value_name = "NAME")]
        backend: Option<String>,
        /// Show at most so many
        #[arg(long, value_name = "COUNT", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
        limit: u32,
    },
    /// Print the version
    Version,
}

#[derive(Debug, Args)]
struct File {
    /// The configuration file (YAML)
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

#[derive(Debug, Args)]
struct Ask {
    /// The dataplane's control address (`control:` of its configuration)
    #[arg(long, value_name = "ADDRESS:PORT", default_value = CONTROL_DEFAULT)]
    control: SocketAddr,
    /// Ask from inside this network namespace, as `ip netns` names it (needs CAP_SYS_ADMIN)
    #[arg(long, value_name = "NAME")]
    netns: Option<String>,
    /// The form of the answer
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

impl Ask {
    fn about(self, topic: Topic) -> Command {
        Command::Ask(Question {
            topic,
            control: self.control,
            netns: self.netns,
            output: self.output,
        })
    }
}

/// Reads the process's arguments; prints help or the error and exits (code 0 or 2) if there is nothing to run.
#[must_use]
pub fn parse() -> Command {
    Raw::parse().command.into()
}

impl From<RawCommand> for Command {
    fn from(raw: RawCommand) -> Self {
        match raw {
            RawCommand::Run(file) => Self::Run(file.config),
            RawCommand::Check(file) => Self::Check(file.config),
            RawCommand::Status(ask) => ask.about(Topic::Status),
            RawCommand::Backends { ask, policy } => ask.about(Topic::Backends { policy }),
            RawCommand::Flows {
                ask,
                policy,
                backend,
                limit,
            } => ask.about(Topic::Flows {
                policy,
                backend,
                limit,
            }),
            RawCommand::Version => Self::Version,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(line: &str) -> Result<Command, clap::Error> {
        Raw::try_parse_from(line.split_whitespace()).map(|raw| raw.command.into())
    }

    #[test]
    fn the_declaration_is_consistent() {
        Raw::command().debug_assert();
    }

    #[test]
    fn arguments_become_commands() {
        assert_eq!(
            parse("lb-dataplane run --config a.yaml").expect("run"),
            Command::Run("a.yaml".into())
        );
        assert_eq!(
            parse("lb-dataplane flows --policy p --limit 5 -o json --control [::1]:7")
                .expect("flows"),
            Command::Ask(Question {
                topic: Topic::Flows {
                    policy: Some("p".into()),
                    backend: None,
                    limit: 5
                },
                control: "[::1]:7".parse().expect("address"),
                netns: None,
                output: Output::Json,
            })
        );
    }

    #[test]
    fn wrong_usage_is_refused() {
        for line in [
            "lb-dataplane",
            "lb-dataplane run",
            "lb-dataplane status --control nowhere",
            "lb-dataplane flows --limit 100001",
            "lb-dataplane flows --limit 0",
            "lb-dataplane status --output xml",
        ] {
            let error = parse(line).expect_err(line);
            assert_eq!(error.exit_code(), 2, "{line}");
        }
    }
}
