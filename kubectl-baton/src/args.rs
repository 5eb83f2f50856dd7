//! The command line, as clap reads it: commands, options and their help. Runs nothing.

use baton_api::{Clients, ClientsError, ControlAddress, Micros};
use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use std::{path::PathBuf, time::Duration};

/// Where a dataplane of the chart listens for commands of people, within its Pod.
const CONTROL_DEFAULT: &str = "unix:/run/baton/control.sock";
/// Rows of `top` that fit on a usual terminal below its head.
const TOP_ROWS_DEFAULT: u16 = 20;

/// How to reach the cluster and how to show what it says.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct Options {
    /// The namespace of policies and Pods; without it, that of the kubeconfig's context
    #[arg(long, short, global = true, value_name = "NAME")]
    pub namespace: Option<String>,
    /// All namespaces
    #[arg(long, short = 'A', global = true, conflicts_with = "namespace")]
    pub all_namespaces: bool,
    /// The kubeconfig's context to use
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,
    /// The kubeconfig file; without it, $KUBECONFIG or ~/.kube/config
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The form of the answer
    #[arg(
        long,
        short,
        global = true,
        value_enum,
        default_value_t,
        hide_possible_values = false
    )]
    pub output: Output,
    /// Where dataplanes take commands within their Pods (`control:` of their configuration): ADDRESS:PORT or unix:/PATH
    #[arg(long, global = true, value_name = "PLACE", default_value = CONTROL_DEFAULT)]
    pub control: ControlAddress,
}

/// The form of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// A table of at most 80 columns
    #[default]
    Table,
    /// A table with more columns, as wide as it gets
    Wide,
    /// JSON
    Json,
    /// YAML
    Yaml,
}

/// Which flows, in which order.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct Flows {
    /// Only flows of this policy: POLICY, POLICY/LISTENER or NAMESPACE/POLICY/LISTENER
    #[arg(long, value_name = "POLICY")]
    pub policy: Option<String>,
    /// Only flows that this Pod owns
    #[arg(long, value_name = "POD")]
    pub backend: Option<String>,
    /// Only flows of these clients: ADDRESS, ADDRESS:PORT or NETWORK/BITS
    #[arg(long, value_name = "CLIENTS", value_parser = client)]
    pub client: Option<Clients>,
    /// Only flows in this state, as the table shows it (`idle`, `request`, ...)
    #[arg(long, value_name = "STATE")]
    pub state: Option<String>,
    /// Only flows that can never move
    #[arg(long)]
    pub pinned: bool,
    /// The order
    #[arg(long, value_enum, default_value_t)]
    pub sort: Sort,
    /// Show at most so many
    #[arg(long, value_name = "COUNT", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=99_999))]
    pub limit: u32,
    /// Look again and again, until Ctrl-C
    #[arg(long, short)]
    pub watch: bool,
    #[command(flatten)]
    pub again: Again,
}

/// The order of flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    /// By the client's address and port
    #[default]
    Client,
    /// By the Pod that owns them
    Backend,
    /// Those that moved most often first
    Moves,
    /// Those that are quiet for longest first
    Quiet,
    /// By state
    State,
}

/// How often to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Args)]
pub struct Again {
    /// Time between two looks
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = |text: &str| within(text, INTERVAL))]
    pub interval: Duration,
    /// End after so many looks
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub count: Option<u32>,
}

/// What `top` shows.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct Top {
    /// Only this policy: POLICY, POLICY/LISTENER or NAMESPACE/POLICY/LISTENER
    #[arg(value_name = "POLICY")]
    pub policy: Option<String>,
    /// Show at most so many backends
    #[arg(long, value_name = "COUNT", default_value_t = TOP_ROWS_DEFAULT, value_parser = clap::value_parser!(u16).range(1..))]
    pub rows: u16,
    #[command(flatten)]
    pub again: Again,
}

/// One flow.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct Explain {
    /// The client's ADDRESS:PORT; ADDRESS alone if it has one flow; or the ID that `flows -o wide` shows,
    /// DATAPLANE/ADDRESS:PORT
    #[arg(value_name = "FLOW", value_parser = flow)]
    pub flow: FlowId,
}

/// Which flow is to be moved, and where.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct Migrate {
    /// The client's ADDRESS:PORT; ADDRESS alone if it has one flow; or the ID that `flows -o wide` shows,
    /// DATAPLANE/ADDRESS:PORT
    #[arg(value_name = "FLOW", value_parser = flow)]
    pub flow: FlowId,
    /// The Pod to move it to, as `kubectl baton backends` shows it; without it, the best other one
    #[arg(long, value_name = "POD")]
    pub to: Option<String>,
}

/// Which events are shown, and for how long.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct Trace {
    /// Only flows of this policy: POLICY, POLICY/LISTENER or NAMESPACE/POLICY/LISTENER
    #[arg(long, value_name = "POLICY")]
    pub policy: Option<String>,
    /// Only this flow: ADDRESS:PORT, ADDRESS for all of a client, or DATAPLANE/ADDRESS:PORT
    #[arg(long, value_name = "FLOW", value_parser = flow)]
    pub flow: Option<FlowId>,
    /// Begin with the events that dataplanes still have (each keeps its last 32,768)
    #[arg(long)]
    pub past: bool,
    /// Time between two looks
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = |text: &str| within(text, INTERVAL))]
    pub interval: Duration,
    /// End after this long, as 30s or 5m; without it, go on until Ctrl-C
    #[arg(long = "for", value_name = "TIME", value_parser = |text: &str| within(text, PATIENCE))]
    pub time: Option<Duration>,
}

/// Which Pod is to be drained, and whether to stay until it is empty.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct Drain {
    /// Name of the Pod, as `kubectl baton backends` shows it
    #[arg(value_name = "POD")]
    pub pod: String,
    /// Only this policy's flows: POLICY or POLICY/LISTENER; otherwise those of all policies of the namespace
    #[arg(long, value_name = "POLICY")]
    pub policy: Option<String>,
    /// Put it back into service (flows that moved stay where they are)
    #[arg(long, conflicts_with = "wait")]
    pub undo: bool,
    /// Stay and show progress until no flow is left
    #[arg(long)]
    pub wait: bool,
    /// With --wait: give up after this long (the drain goes on), as 20s, 5m or 1h
    #[arg(long, value_name = "TIME", default_value = "60s", requires = "wait", value_parser = |text: &str| within(text, PATIENCE))]
    pub timeout: Duration,
}

/// Which packets, and where to.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct Capture {
    /// Only connections of this policy: POLICY, POLICY/LISTENER or NAMESPACE/POLICY/LISTENER
    #[arg(long, value_name = "POLICY")]
    pub policy: Option<String>,
    /// Only connections of these clients: ADDRESS, ADDRESS:PORT or NETWORK/BITS
    #[arg(long, value_name = "CLIENTS")]
    pub client: Option<Clients>,
    /// Only connections of this Pod, and what dataplanes say to it beside connections
    #[arg(long, value_name = "POD")]
    pub backend: Option<String>,
    /// How long, as 10s or 2m
    #[arg(long = "for", value_name = "TIME", default_value = "30s", value_parser = |text: &str| within(text, CAPTURE))]
    pub time: Duration,
    /// Whole packets, with what clients and servers say. It may hold passwords and data of persons
    #[arg(long)]
    pub payload: bool,
    /// At most so many bytes of each packet; without --payload it ends with its TCP header in any case
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(34..=2_048))]
    pub snaplen: Option<u16>,
    /// Only on this dataplane; otherwise on all, one section of the file for each
    #[arg(long, value_name = "POD")]
    pub dataplane: Option<String>,
    /// The file; `-` or nothing is the standard output, if that is no terminal
    #[arg(long, short, value_name = "FILE")]
    pub write: Option<PathBuf>,
}

/// How a user names a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowId {
    /// Only on this dataplane.
    pub dataplane: Option<String>,
    /// Whose.
    pub client: Clients,
}

impl std::fmt::Display for FlowId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(dataplane) = &self.dataplane {
            write!(f, "{dataplane}/")?;
        }
        self.client.fmt(f)
    }
}

/// A span with its bounds, in words.
type Bounds = (Micros, Micros, &'static str);
/// Each look is a process in each dataplane's Pod: more often would be a load of its own.
const INTERVAL: Bounds = (Micros::from_secs(1), Micros::from_secs(3_600), "1s to 1h");
/// At least a look, at most a drain's longest deadline.
const PATIENCE: Bounds = (
    Micros::from_secs(1),
    Micros::from_secs(24 * 3_600),
    "1s to 24h",
);

/// What a dataplane takes.
const CAPTURE: Bounds = (
    Micros::from_millis(1),
    Micros::from_secs(240),
    "1ms to 240s",
);

fn within(text: &str, (least, most, words): Bounds) -> Result<Duration, String> {
    let time: Micros = text.parse().map_err(|error| format!("{error}"))?;
    if time < least || time > most {
        return Err(format!("out of range: expected {words}"));
    }
    Ok(Duration::from_micros(time.0))
}

/// An address without a port may stand in brackets too.
fn client(text: &str) -> Result<Clients, ClientsError> {
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
    bare.unwrap_or(text).parse()
}

fn flow(text: &str) -> Result<FlowId, String> {
    let (dataplane, rest) = match text.rsplit_once('/') {
        Some((dataplane, rest)) => (Some(dataplane.to_owned()), rest),
        None => (None, text),
    };
    if dataplane.as_deref() == Some("") {
        return Err("expected the name of a dataplane's Pod before `/`".to_owned());
    }
    let client = client(rest).map_err(|error| error.to_string())?;
    Ok(FlowId { dataplane, client })
}

/// Asks Baton in a cluster whether it works, and why connections are where they are.
#[derive(Clone, Debug, PartialEq, Eq, Parser)]
#[command(
    name = "kubectl-baton",
    bin_name = "kubectl baton",
    disable_version_flag = true
)]
#[command(after_help = "\
Exit codes: 0 done (status: it works; drain --wait: the Pod is empty)
            1 not done (status: it does not work; explain: no such flow; drain: refused, or not empty in time;
              migrate: refused, or no such flow)
            2 could not be asked (wrong usage, no cluster, no permission, no dataplane answers)")]
pub struct CommandLine {
    #[command(flatten)]
    pub options: Options,
    #[command(subcommand)]
    pub command: Command,
}

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum Command {
    /// Is Baton working, and if not, why: per policy, dataplane and node
    Status,
    /// Show backends: can they adopt, how loaded are they, what came and went
    Backends {
        /// Only this policy: POLICY, POLICY/LISTENER or NAMESPACE/POLICY/LISTENER
        policy: Option<String>,
    },
    /// Show client connections and the Pods that own them
    Flows(Flows),
    /// Show what backends do now: requests and moves per second, refreshed
    Top(Top),
    /// Say why a connection is on its Pod, and why it can or cannot move
    Explain(Explain),
    /// Take a Pod out of service without breaking connections
    ///
    /// From now on POD gets no new connection on any dataplane. Each of its connections moves to another Pod with its next
    /// request, or after a quiet time if it is at rest. What cannot move stays until it can or ends; `drain.deadline` and
    /// `drain.onDeadline` of the policy say whether it is closed at some point. The drain ends with `--undo`, and on a
    /// dataplane that is restarted. A Pod that is deleted drains by itself.
    ///
    /// Without --policy all policies of the namespace (-n) that have POD are meant. A Pod of the same name in another namespace
    /// goes on as it is; `lb-dataplane drain` on the dataplane itself makes no such difference.
    Drain(Drain),
    /// Write packets of chosen connections, on both of their sides, into a pcapng file
    ///
    /// What dataplanes take by AF_XDP is invisible to tcpdump on the node; this shows it to Wireshark, tshark and
    /// tcpdump -r: the direction of each packet, moves (TCP option 253) in words, and which client each connection to a Pod
    /// is for. Headers only, unless --payload is given. One capture per dataplane at a time; what is lost under load is
    /// counted. Ctrl-C ends it in order.
    Capture(Capture),
    /// Move one connection to another Pod
    ///
    /// A connection at rest is moved at once, one with a request in progress with its next request. It is moved once: afterwards
    /// the policy decides again. What can never move (pinned) and what the policy forbids (`migration.mode: Never`, `perFlow`,
    /// affinity) is refused with the reason. `trace` shows what became of it.
    Migrate(Migrate),
    /// Show what happens to connections as it happens: moves and why, refusals, rescues, pins, losses
    ///
    /// A line per event; `-o json` gives a JSON object per line.
    Trace(Trace),
    /// Write an archive with what a helper needs: objects, figures, logs; no Secrets, no annotations, no environment
    Sysdump {
        /// The archive; without it, baton-sysdump-TIME.tar.gz in this folder
        #[arg(long, short, value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// Print the completion of a shell
    Completion {
        /// Which
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Print versions: of this program, of the cluster, of Baton's Pods
    Version {
        /// Only this program's, without a cluster
        #[arg(long)]
        client: bool,
    },
}

/// All commands and options.
pub fn command() -> clap::Command {
    CommandLine::command()
}

/// The completion for `shell`.
pub fn completion(shell: Shell) -> Vec<u8> {
    let mut text = Vec::new();
    let mut command = command();
    clap_complete::generate(shell, &mut command, "kubectl-baton", &mut text);
    text
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// What a user who types `line` gets.
    pub fn parsed(line: &str) -> clap::error::Result<CommandLine> {
        CommandLine::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn the_declaration_is_consistent() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn options_may_stand_before_and_behind_the_command() {
        for line in [
            "kubectl-baton -n shop -o json --context c status",
            "kubectl-baton status -n shop -o json --context c",
        ] {
            let CommandLine { command, options } = parsed(line).expect(line);
            assert_eq!(command, Command::Status);
            assert_eq!(options.namespace.as_deref(), Some("shop"));
            assert_eq!(options.context.as_deref(), Some("c"));
            assert_eq!(options.output, Output::Json);
            assert_eq!(options.control.to_string(), CONTROL_DEFAULT, "the chart's");
        }
    }

    #[test]
    fn a_flow_is_named_by_its_client_with_or_without_the_dataplane() {
        let id = |text: &str| {
            let line = parsed(&format!("kubectl-baton explain {text}")).expect(text);
            let Command::Explain(Explain { flow }) = line.command else {
                panic!("{text}")
            };
            assert_eq!(flow.to_string(), text.replace("[fd00::8]/", ""));
            flow
        };
        assert_eq!(id("10.0.0.7:4711").dataplane, None);
        assert!(
            id("10.0.0.7")
                .client
                .has("10.0.0.7:1".parse().expect("address"))
        );
        let named = id("baton-lb-dataplane-x/[fd00::7]:4711");
        assert_eq!(named.dataplane.as_deref(), Some("baton-lb-dataplane-x"));
        assert!(named.client.has("[fd00::7]:4711".parse().expect("address")));
        assert!(!named.client.has("[fd00::7]:4712".parse().expect("address")));
    }

    #[test]
    fn wrong_usage_is_refused() {
        for line in [
            "kubectl-baton",
            "kubectl-baton nothing",
            "kubectl-baton status -n a -A",
            "kubectl-baton status -o xml",
            "kubectl-baton flows --limit 0",
            "kubectl-baton flows --client nobody",
            "kubectl-baton flows --watch --interval 10ms",
            "kubectl-baton top --count 0",
            "kubectl-baton explain",
            "kubectl-baton explain /10.0.0.7:4711",
            "kubectl-baton explain 10.0.0.7:70000",
            "kubectl-baton drain",
            "kubectl-baton drain a --undo --wait",
            "kubectl-baton drain a --timeout 5s",
            "kubectl-baton drain a --wait --timeout 25h",
            "kubectl-baton capture --client pod",
            "kubectl-baton capture --for 5m",
            "kubectl-baton capture --snaplen 9000",
            "kubectl-baton migrate",
            "kubectl-baton migrate nobody",
            "kubectl-baton migrate 10.0.0.7:4711 web-1",
            "kubectl-baton trace --flow nobody",
            "kubectl-baton trace --for 10ms",
            "kubectl-baton trace --interval 10ms",
            "kubectl-baton completion tcl",
        ] {
            let error = parsed(line).expect_err(line);
            assert_eq!(error.exit_code(), 2, "{line}");
        }
    }

    #[test]
    fn every_shell_gets_a_completion_with_the_commands() {
        for shell in Shell::value_variants() {
            let text = String::from_utf8(completion(*shell)).expect("text");
            assert!(
                text.contains("sysdump") && text.contains("kubectl-baton"),
                "{shell}"
            );
        }
    }
}
