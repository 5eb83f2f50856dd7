//! The command line, as clap reads it: commands, options and their help. Runs nothing.

use crate::capture::{SNAPLEN_MAX, SNAPLEN_MIN, TIME_MAX};
use baton_api::{Clients, ControlAddress, Endpoint, EventCursor, Micros};
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

/// Where a running dataplane listens unless its configuration says otherwise.
pub const CONTROL_DEFAULT: &str = "127.0.0.1:9900";

/// Which frames are to be copied, how much of them, and where to.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct CaptureOrder {
    #[command(flatten)]
    pub at: At,
    /// Only connections of these clients: ADDRESS, ADDRESS:PORT or NETWORK/BITS
    #[arg(long, value_name = "CLIENTS")]
    pub client: Option<Clients>,
    /// Only connections of this policy; may be given several times
    #[arg(long, value_name = "NAME")]
    pub policy: Vec<String>,
    /// Only connections of this backend, and what the dataplane says to it beside connections; may be given several times
    #[arg(long, value_name = "NAME")]
    pub backend: Vec<String>,
    /// How long, as 500ms, 10s or 2m
    #[arg(long = "for", value_name = "TIME", default_value = "10s", value_parser = capture_time)]
    pub time: Micros,
    /// Whole frames, with what clients and servers say. It may hold passwords and data of persons
    #[arg(long)]
    pub payload: bool,
    /// At most so many bytes of each frame; without --payload it ends with its TCP header in any case
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(SNAPLEN_MIN as i64..=SNAPLEN_MAX as i64))]
    pub snaplen: Option<u16>,
    /// The file; without it, the standard output
    #[arg(long, short, value_name = "FILE")]
    pub write: Option<PathBuf>,
    /// End in order, as with Ctrl-C, when something comes on the standard input or it ends (as `kubectl baton` has it)
    #[arg(long, hide = true)]
    pub end_on_input: bool,
}

/// At least a packet's time, at most what one request of the control API may last.
fn capture_time(text: &str) -> Result<Micros, String> {
    let time: Micros = text.parse().map_err(|error| format!("{error}"))?;
    if time.0 == 0 || Duration::from_micros(time.0) > TIME_MAX {
        return Err(format!(
            "out of range: expected at most {}s",
            TIME_MAX.as_secs()
        ));
    }
    Ok(time)
}

/// Which flows are to be shown.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct FlowsOrder {
    #[command(flatten)]
    pub ask: Ask,
    /// Only flows of this policy
    #[arg(long, value_name = "NAME")]
    pub policy: Option<String>,
    /// Only flows that this backend owns
    #[arg(long, value_name = "NAME")]
    pub backend: Option<String>,
    /// Show at most so many
    #[arg(long, value_name = "COUNT", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub limit: u32,
}

/// Which backend is to be drained, and whether to stay until it is empty.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct DrainOrder {
    #[command(flatten)]
    pub ask: Ask,
    /// Name of the backend, as `lb-dataplane backends` shows it
    pub backend: String,
    /// Only in this policy; otherwise in all that have a backend of this name, of whatever namespace
    #[arg(long, value_name = "NAME")]
    pub policy: Option<String>,
    /// Put it back into service (connections that moved stay where they are)
    #[arg(long, conflicts_with = "wait")]
    pub undo: bool,
    /// Stay and show progress until no connection is left
    #[arg(long)]
    pub wait: bool,
    /// With --wait: give up after this long (the drain goes on), as 250ms, 20s, 5m or 1h
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = patience, requires = "wait")]
    pub timeout: Duration,
}

/// Which flow is to be moved, and where.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct MigrateOrder {
    #[command(flatten)]
    pub ask: Ask,
    /// The client's end of the connection, as `lb-dataplane flows` shows it
    #[arg(value_name = "CLIENT")]
    pub client: SocketAddr,
    /// The backend to move it to; without it, the best other one
    #[arg(long, value_name = "BACKEND")]
    pub to: Option<String>,
    /// What the client connected to; needed only if it has several connections from one port
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub frontend: Option<Endpoint>,
}

/// Which events are shown, and for how long.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct TraceOrder {
    #[command(flatten)]
    pub ask: Ask,
    /// Only connections of this policy
    #[arg(long, value_name = "NAME")]
    pub policy: Option<String>,
    /// Only connections of this client: ADDRESS or ADDRESS:PORT
    #[arg(long, value_name = "CLIENT", value_parser = client)]
    pub client: Option<String>,
    /// Begin with the events that the dataplane still has
    #[arg(long, conflicts_with = "since")]
    pub past: bool,
    /// Begin behind this event: `next` of an answer, or 0
    #[arg(long, value_name = "CURSOR")]
    pub since: Option<EventCursor>,
    /// End after this long, as 30s or 5m
    #[arg(long = "for", value_name = "TIME", value_parser = patience)]
    pub time: Option<Duration>,
    /// Print one answer of the control API, with the number to go on from, and end
    #[arg(long, conflicts_with = "time")]
    pub once: bool,
    /// With --once: wait so many seconds for something to happen
    #[arg(long, value_name = "SECONDS", requires = "once", value_parser = clap::value_parser!(u8).range(0..=8))]
    pub wait: Option<u8>,
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
#[derive(Debug, PartialEq, Eq, Parser)]
#[command(name = "lb-dataplane", disable_version_flag = true)]
#[command(after_help = "\
Exit codes: 0 done (check: the file is good; status: it works; drain --wait: the backend is empty)
            1 not done (check: the file is refused; status: it does not work; run: it could not go on;
              drain: refused, or not empty in time; migrate: refused)
            2 could not be asked (wrong usage, no such file, the dataplane does not answer)")]
struct Line {
    #[command(subcommand)]
    command: Command,
}

/// What the user asked for.
#[derive(Debug, PartialEq, Eq, Subcommand)]
pub enum Command {
    /// Serve traffic until SIGTERM or SIGINT
    ///
    /// Needs CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF; for AF_XDP also CAP_PERFMON and, if the memory lock limit is small,
    /// CAP_IPC_LOCK.
    /// The file is read again when it changes or on SIGHUP: policies, keys and the log level change
    /// without touching a connection; a bad file is refused and the last good one stays.
    Run {
        #[command(flatten)]
        file: File,
        /// After SIGTERM go on with the connections that there are for so long, but be ready for no new ones; a second
        /// signal ends at once
        #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=86_400))]
        grace_seconds: u32,
    },
    /// Say whether a configuration file is good, and if not, in which line and field
    Check(File),
    #[command(flatten)]
    Ask(Box<Question>),
    /// Print the version
    Version,
}

/// What a running dataplane is asked.
#[derive(Debug, PartialEq, Eq, Subcommand)]
pub enum Question {
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
    Flows(FlowsOrder),
    /// Take a backend out of service without breaking connections
    ///
    /// From now on BACKEND gets no new connection. Each of its connections moves to
    /// another backend with its next request, or after a quiet time (`drain.quiet` of
    /// the policy) if it is at rest. What cannot move (a request in progress, an
    /// upgraded or otherwise pinned connection) stays until it can or ends;
    /// `drain.deadline` and `drain.onDeadline` of the policy say whether it is closed
    /// at some point.
    ///
    /// Without `--policy` every backend of this name drains, in all policies: also a
    /// Pod of another namespace that has the same name. An operator's policies are
    /// named NAMESPACE/POLICY/LISTENER.
    ///
    /// The drain holds until `--undo`, also across changes of the configuration. It
    /// does NOT survive a restart of the dataplane: for a lasting one, set
    /// `draining: true` for the backend in the configuration.
    #[command(verbatim_doc_comment, after_help = DRAIN_HELP)]
    Drain(DrainOrder),
    /// Copy packets of chosen connections, on the client's and on the backend's side, into a pcapng file
    ///
    /// What AF_XDP takes is invisible to tcpdump; this shows it to Wireshark, tshark and tcpdump -r: both sides of each
    /// connection, with the direction of each packet, adoptions (TCP option 253) in words, and whose each backend-side
    /// connection is. Headers only, unless --payload is given. One capture at a time, 240 s and 256 MiB at most; what is
    /// lost under load is counted at the end of the file. Ctrl-C ends it in order.
    #[command(after_help = CAPTURE_HELP)]
    Capture(CaptureOrder),
    /// Move one connection to another backend
    ///
    /// A connection that is at rest is moved at once; one with a request in progress moves
    /// with its next request. It is moved once: afterwards the policy decides again. What
    /// can never move (pinned) and what the policy forbids (`migration.mode: Never`,
    /// `perFlow`, affinity) is refused with the reason.
    #[command(verbatim_doc_comment)]
    Migrate(MigrateOrder),
    /// Show what happens to connections as it happens: moves and why, refusals, rescues, pins, losses
    ///
    /// A line per event (`-o json`: a JSON object per line), until Ctrl-C. The dataplane
    /// keeps the last 32,768 events.
    #[command(verbatim_doc_comment)]
    Trace(TraceOrder),
}

impl Question {
    /// Who is asked.
    pub fn at(&self) -> &At {
        match self {
            Self::Status(ask) | Self::Backends { ask, .. } => &ask.at,
            Self::Flows(order) => &order.ask.at,
            Self::Drain(order) => &order.ask.at,
            Self::Capture(order) => &order.at,
            Self::Migrate(order) => &order.ask.at,
            Self::Trace(order) => &order.ask.at,
        }
    }
}

/// What an admin needs next to the options of `capture`.
const CAPTURE_HELP: &str = "\
Examples:
  lb-dataplane capture --client 10.0.0.7 -w client.pcapng
  lb-dataplane capture --backend pod-a --for 1m > pod-a.pcapng
  lb-dataplane capture --client 10.0.0.0/24 --payload | tshark -r -

Exit codes: 0 the file is whole
            1 refused: no such policy or backend, or another capture is under way
            2 could not be asked (wrong usage, the dataplane does not answer)";

/// What an admin needs next to the options of `drain`.
const DRAIN_HELP: &str = "\
Examples:
  lb-dataplane drain pod-a --wait                 before pod-a is restarted
  lb-dataplane drain pod-a --wait --timeout 10m   where requests take minutes
  lb-dataplane flows --backend pod-a              what is left, and why it stays
  lb-dataplane drain pod-a --undo                 back into service

Exit codes: 0 done; with --wait: BACKEND has no connection left and can be stopped
            1 not done: no such backend, taken back meanwhile, or not empty in time (the drain goes on)
            2 could not be asked (wrong usage, the dataplane does not answer)";

/// How long to wait: at least a look, at most a drain's longest deadline.
fn patience(text: &str) -> Result<Duration, String> {
    let time: Micros = text.parse().map_err(|error| format!("{error}"))?;
    if time < Micros::from_millis(100) || time > Micros::from_secs(24 * 3_600) {
        return Err("out of range: expected 100ms to 24h".to_owned());
    }
    Ok(Duration::from_micros(time.0))
}

/// An address, with or without a port.
fn client(text: &str) -> Result<String, String> {
    let good = text.parse::<SocketAddr>().is_ok() || text.parse::<IpAddr>().is_ok();
    good.then(|| text.to_owned())
        .ok_or_else(|| "expected an address, or an address and a port".to_owned())
}

/// Which file.
#[derive(Debug, PartialEq, Eq, Args)]
pub struct File {
    /// The configuration file (YAML)
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
}

/// Which dataplane.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct At {
    /// Where the dataplane takes commands (`control:` of its configuration): ADDRESS:PORT or unix:/PATH
    #[arg(long, value_name = "PLACE", default_value = CONTROL_DEFAULT)]
    pub control: ControlAddress,
    /// Ask from inside this network namespace, as `ip netns` names it (needs CAP_SYS_ADMIN)
    #[arg(long, value_name = "NAME")]
    pub netns: Option<String>,
}

/// Which dataplane, and how its answer is shown.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct Ask {
    #[command(flatten)]
    pub at: At,
    /// The form of the answer
    #[arg(long, short, value_enum, default_value_t)]
    pub output: Output,
}

/// Reads the process's arguments; prints help or the error and exits (code 0 or 2) if there is nothing to run.
#[must_use]
pub fn parse() -> Command {
    Line::parse().command
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(line: &str) -> Result<Command, clap::Error> {
        Line::try_parse_from(line.split_whitespace()).map(|line| line.command)
    }

    /// What a user who types `line` behind the program's name asks.
    pub fn asked(line: &str) -> Question {
        match parse(&format!("lb-dataplane {line}")) {
            Ok(Command::Ask(question)) => *question,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn the_declaration_is_consistent() {
        Line::command().debug_assert();
    }

    #[test]
    fn arguments_become_commands() {
        let config = "a.yaml".into();
        assert_eq!(
            parse("lb-dataplane run --config a.yaml").expect("run"),
            Command::Run {
                file: File { config },
                grace_seconds: 0
            }
        );
        let at = At {
            control: "[::1]:7".parse().expect("address"),
            netns: None,
        };
        assert_eq!(
            asked("flows --policy p --limit 5 -o json --control [::1]:7"),
            Question::Flows(FlowsOrder {
                ask: Ask {
                    at,
                    output: Output::Json
                },
                policy: Some("p".into()),
                backend: None,
                limit: 5,
            })
        );
    }

    #[test]
    fn a_drain_waits_only_if_asked_to() {
        for (line, undo, wait, timeout_ms) in [
            ("", false, false, 60_000),
            ("--undo", true, false, 60_000),
            ("--wait", false, true, 60_000),
            ("--wait --timeout 250ms", false, true, 250),
            ("--wait --timeout 24h", false, true, 86_400_000),
        ] {
            let Question::Drain(order) = asked(&format!("drain ns/pod-a --policy p {line}")) else {
                panic!("{line}");
            };
            let timeout = Duration::from_millis(timeout_ms);
            assert_eq!(
                (order.undo, order.wait, order.timeout),
                (undo, wait, timeout),
                "{line}"
            );
            assert_eq!(
                (&*order.backend, order.policy.as_deref()),
                ("ns/pod-a", Some("p"))
            );
        }
    }

    #[test]
    fn a_trace_goes_on_unless_it_is_told_when_to_end() {
        let traced = |line: &str| match asked(&format!("trace {line}")) {
            Question::Trace(order) => order,
            other => panic!("{line}: {other:?}"),
        };
        let plain = traced("");
        assert!(!plain.past && !plain.once && plain.policy.is_none() && plain.client.is_none());
        assert_eq!((plain.since, plain.time, plain.wait), (None, None, None));
        let all = traced("--past --policy a/b/c --client fd00::7 --for 30s");
        assert_eq!(all.time, Some(Duration::from_secs(30)));
        assert!(all.past && all.client.as_deref() == Some("fd00::7"));
        let once = traced("--once --since 5 --wait 4");
        assert_eq!(
            (once.since, once.wait),
            (Some(EventCursor(vec![5])), Some(4))
        );
        assert!(traced("--once").once);
    }

    #[test]
    fn a_flow_to_move_is_named_by_its_client() {
        let line = "migrate [fd00::7]:4711 --to pod-b --frontend [fd00::1]:80";
        let Question::Migrate(order) = asked(line) else {
            panic!("{line}");
        };
        assert_eq!(order.client.to_string(), "[fd00::7]:4711");
        assert_eq!(
            order.frontend.map(|f| f.to_string()).as_deref(),
            Some("[fd00::1]:80")
        );
        assert_eq!(order.to.as_deref(), Some("pod-b"));
    }

    #[test]
    fn wrong_usage_is_refused() {
        for line in [
            "lb-dataplane migrate",
            "lb-dataplane migrate 10.0.0.7",
            "lb-dataplane migrate 10.0.0.7:80 pod-b",
            "lb-dataplane trace --wait 4",
            "lb-dataplane trace --once --wait 9",
            "lb-dataplane trace --once --for 5s",
            "lb-dataplane trace --past --since 5",
            "lb-dataplane trace --client nobody",
            "lb-dataplane",
            "lb-dataplane run",
            "lb-dataplane status --control nowhere",
            "lb-dataplane status --control unix:relative.sock",
            "lb-dataplane flows --limit 100001",
            "lb-dataplane flows --limit 0",
            "lb-dataplane status --output xml",
            "lb-dataplane drain",
            "lb-dataplane drain a b",
            "lb-dataplane drain a --undo --wait",
            "lb-dataplane drain a --timeout 5s",
            "lb-dataplane drain a --wait --timeout 5",
            "lb-dataplane drain a --wait --timeout 99ms",
            "lb-dataplane drain a --wait --timeout 25h",
            "lb-dataplane capture --client pod",
            "lb-dataplane capture --for 241s",
            "lb-dataplane capture --for 0s",
            "lb-dataplane capture --snaplen 33",
            "lb-dataplane capture --snaplen 2049",
            "lb-dataplane capture -o json",
        ] {
            let error = parse(line).expect_err(line);
            assert_eq!(error.exit_code(), 2, "{line}");
        }
    }
}
