//! The commands that both programs have, as clap reads them: options and their help. Runs nothing.

use crate::names::{FlowId, clients, flow};
use baton_api::{Clients, Endpoint, Micros};
use clap::{Args, Subcommand, ValueEnum};
use std::{path::PathBuf, time::Duration};

/// Flows that a dataplane tells at most.
pub const FLOWS_MAX: u32 = 100_000;

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

/// What dataplanes are asked, next to a program's own options of each command.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum Command<O: Args> {
    /// Show backends: can they adopt, how loaded are they, what came and went
    Backends(With<O, Backends>),
    /// Show client connections and the backends that own them
    Flows(With<O, Flows>),
    /// Take a backend out of service without breaking connections
    ///
    /// From now on BACKEND gets no new connection. Each of its connections moves to another backend
    /// with its next request, or after a quiet time (`drain.quiet` of the policy) if it is at rest.
    /// What cannot move (a request in progress, an upgraded or otherwise pinned connection) stays
    /// until it can or ends; `drain.deadline` and `drain.onDeadline` of the policy say whether it
    /// is closed at some point.
    ///
    /// The drain holds until `--undo`, also across changes of policies. It does NOT survive a
    /// restart of the dataplane. A Pod that is deleted drains by itself, and so does a backend with
    /// `draining: true` in a dataplane's configuration.
    ///
    /// Without --policy it drains in all policies that have it: with `kubectl baton` in those of
    /// the namespace (-n), with `lb-dataplane` in those of all namespaces, each of which may have a
    /// Pod of this name.
    Drain(With<O, Drain>),
    /// Write packets of chosen connections, on both of their sides, into a pcapng file
    ///
    /// What dataplanes take by AF_XDP is invisible to tcpdump; this shows it to Wireshark, tshark
    /// and tcpdump -r: the direction of each packet, moves (TCP option 253) in words, and which
    /// client each connection to a backend is for. Headers only, unless --payload is given. One
    /// capture per dataplane at a time, 240 s and 256 MiB at most; what is lost under load is
    /// counted at the end of the file. Ctrl-C ends it in order.
    Capture(With<O, Capture>),
    /// Move one connection to another backend
    ///
    /// A connection at rest is moved at once, one with a request in progress with its next request.
    /// It is moved once: afterwards the policy decides again. What can never move (pinned) and what
    /// the policy forbids (`migration.mode: Never`, `perFlow`, affinity) is refused with the
    /// reason. `trace` shows what became of it.
    Migrate(With<O, Migrate>),
    /// Show what happens to connections as it happens: moves and why, refusals, rescues, pins,
    /// losses
    ///
    /// A line per event; `-o json` gives a JSON object per line.
    Trace(With<O, Trace>),
}

impl<O: Args> Command<O> {
    /// The program's own options.
    pub fn options(&self) -> &O {
        match self {
            Self::Backends(with) => &with.options,
            Self::Flows(with) => &with.options,
            Self::Drain(with) => &with.options,
            Self::Capture(with) => &with.options,
            Self::Migrate(with) => &with.options,
            Self::Trace(with) => &with.options,
        }
    }
}

/// A command's own options next to the program's.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct With<O: Args, T: Args> {
    /// The program's.
    #[command(flatten)]
    pub options: O,
    /// The command's.
    #[command(flatten)]
    pub order: T,
}

/// Which backends.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct Backends {
    /// Only those of this policy: POLICY, POLICY/LISTENER or NAMESPACE/POLICY/LISTENER
    #[arg(value_name = "POLICY")]
    pub policy: Option<String>,
}

/// Which flows, in which order.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct Flows {
    /// Only flows of this policy: POLICY, POLICY/LISTENER or NAMESPACE/POLICY/LISTENER
    #[arg(long, value_name = "POLICY")]
    pub policy: Option<String>,
    /// Only flows that this backend owns
    #[arg(long, value_name = "BACKEND")]
    pub backend: Option<String>,
    /// Only flows of these clients: ADDRESS, ADDRESS:PORT or NETWORK/BITS
    #[arg(long, value_name = "CLIENTS", value_parser = clients)]
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
    #[arg(long, value_name = "COUNT", default_value_t = 200,
        value_parser = clap::value_parser!(u32).range(1..i64::from(FLOWS_MAX)))]
    pub limit: u32,
    /// Look again and again, until Ctrl-C
    #[arg(long, short)]
    pub watch: bool,
    /// How often.
    #[command(flatten)]
    pub again: Again,
}

/// The order of flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    /// By the client's address and port
    #[default]
    Client,
    /// By the backend that owns them
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
    /// Time between two looks, as 2s or 1m
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = interval)]
    pub interval: Duration,
    /// End after so many looks
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub count: Option<u32>,
}

/// Which flow is to be moved, and where.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct Migrate {
    /// The client's ADDRESS:PORT; ADDRESS alone if it has one flow; or the ID that `flows -o wide`
    /// shows, DATAPLANE/ADDRESS:PORT
    #[arg(value_name = "FLOW", value_parser = flow)]
    pub flow: FlowId,
    /// The backend to move it to, as `backends` shows it; without it, the best other one
    #[arg(long, value_name = "BACKEND")]
    pub to: Option<String>,
    /// What the client connected to; needed only if it has several connections from one port
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub frontend: Option<Endpoint>,
}

/// Which events are shown, and for how long.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct Trace {
    /// Only flows of this policy: POLICY, POLICY/LISTENER or NAMESPACE/POLICY/LISTENER
    #[arg(long, value_name = "POLICY")]
    pub policy: Option<String>,
    /// Only this flow: ADDRESS:PORT, ADDRESS for all of a client, or DATAPLANE/ADDRESS:PORT
    #[arg(long, visible_alias = "client", value_name = "FLOW", value_parser = flow)]
    pub flow: Option<FlowId>,
    /// Begin with the events that dataplanes still have (each keeps its last 32,768)
    #[arg(long)]
    pub past: bool,
    /// Time between two looks; without it 1s through an API server, 200ms on the dataplane itself
    #[arg(long, value_name = "TIME", value_parser = interval)]
    pub interval: Option<Duration>,
    /// End after this long, as 30s or 5m; without it, go on until Ctrl-C
    #[arg(long = "for", value_name = "TIME", value_parser = patience)]
    pub time: Option<Duration>,
}

/// Which backend is to be drained, and whether to stay until it is empty.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct Drain {
    /// Name of the backend, as `backends` shows it
    #[arg(value_name = "BACKEND")]
    pub backend: String,
    /// Only this policy's flows: POLICY, POLICY/LISTENER or NAMESPACE/POLICY/LISTENER
    #[arg(long, value_name = "POLICY")]
    pub policy: Option<String>,
    /// Put it back into service (flows that moved stay where they are)
    #[arg(long, conflicts_with = "wait")]
    pub undo: bool,
    /// Stay and show progress until no flow is left
    #[arg(long)]
    pub wait: bool,
    /// With --wait: give up after this long (the drain goes on), as 250ms, 20s, 5m or 1h
    #[arg(long, value_name = "TIME", default_value = "60s", requires = "wait",
        value_parser = patience)]
    pub timeout: Duration,
}

/// Which packets, and where to.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct Capture {
    /// Only connections of this policy: POLICY, POLICY/LISTENER or NAMESPACE/POLICY/LISTENER; may
    /// be given several times
    #[arg(long, value_name = "POLICY")]
    pub policy: Vec<String>,
    /// Only connections of these clients: ADDRESS, ADDRESS:PORT or NETWORK/BITS
    #[arg(long, value_name = "CLIENTS", value_parser = clients)]
    pub client: Option<Clients>,
    /// Only connections of this backend, and what dataplanes say to it beside connections; may be
    /// given several times
    #[arg(long, value_name = "BACKEND")]
    pub backend: Vec<String>,
    /// How long, as 500ms, 10s or 2m
    #[arg(long = "for", value_name = "TIME", default_value = "30s",
        value_parser = |text: &str| within(text, CAPTURE))]
    pub time: Duration,
    /// Whole packets, with what clients and servers say. It may hold passwords and data of persons
    #[arg(long)]
    pub payload: bool,
    /// At most so many bytes of each packet; without --payload it ends with its TCP header in any
    /// case
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(34..=2_048))]
    pub snaplen: Option<u16>,
    /// Only on this dataplane; otherwise on all, one section of the file for each
    #[arg(long, value_name = "POD")]
    pub dataplane: Option<String>,
    /// The file; `-` or nothing is the standard output, if that is no terminal
    #[arg(long, short, value_name = "FILE")]
    pub write: Option<PathBuf>,
}

/// A span with its bounds, in words.
type Bounds = (Micros, Micros, &'static str);
/// Each look may be a process in each dataplane's Pod: more often would be a load of its own.
const INTERVAL: Bounds = (Micros::from_secs(1), Micros::from_secs(3_600), "1s to 1h");
/// At least a look, at most a drain's longest deadline.
const PATIENCE: Bounds = (Micros::from_millis(100), Micros::from_secs(24 * 3_600), "100ms to 24h");
/// What a dataplane takes.
const CAPTURE: Bounds = (Micros::from_millis(1), Micros::from_secs(240), "1ms to 240s");

fn within(text: &str, (least, most, words): Bounds) -> Result<Duration, String> {
    let time: Micros = text.parse().map_err(|error| format!("{error}"))?;
    if time < least || time > most {
        return Err(format!("out of range: expected {words}"));
    }
    Ok(Duration::from_micros(time.0))
}

fn interval(text: &str) -> Result<Duration, String> {
    within(text, INTERVAL)
}

/// How long something is waited for.
///
/// # Errors
/// What was expected.
pub fn patience(text: &str) -> Result<Duration, String> {
    within(text, PATIENCE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory as _, Parser};

    #[derive(Debug, Parser)]
    struct Line {
        #[command(subcommand)]
        command: Command<NoOptions>,
    }

    /// A program without options of its own.
    #[derive(Clone, Debug, PartialEq, Eq, Args)]
    struct NoOptions {}

    fn parsed(line: &str) -> clap::error::Result<Command<NoOptions>> {
        let words = std::iter::once("baton").chain(line.split_whitespace());
        Line::try_parse_from(words).map(|line| line.command)
    }

    #[test]
    fn the_declaration_is_consistent() {
        Line::command().debug_assert();
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
            let asked = parsed(&format!("drain ns/pod-a --policy p {line}"));
            let Ok(Command::Drain(With { order, .. })) = asked else {
                panic!("{line}: {asked:?}");
            };
            let timeout = Duration::from_millis(timeout_ms);
            assert_eq!((order.undo, order.wait, order.timeout), (undo, wait, timeout), "{line}");
            assert_eq!((&*order.backend, order.policy.as_deref()), ("ns/pod-a", Some("p")));
        }
    }

    #[test]
    fn a_trace_goes_on_unless_it_is_told_when_to_end() {
        let traced = |line: &str| match parsed(&format!("trace {line}")) {
            Ok(Command::Trace(with)) => with.order,
            other => panic!("{line}: {other:?}"),
        };
        let plain = traced("");
        assert!(!plain.past && plain.policy.is_none() && plain.flow.is_none());
        assert_eq!((plain.interval, plain.time), (None, None));
        let all = traced("--past --policy a/b/c --client fd00::7 --for 30s");
        assert_eq!(all.time, Some(Duration::from_secs(30)));
        assert!(all.past && all.flow.is_some_and(|flow| flow.to_string() == "fd00::7"));
    }

    #[test]
    fn a_flow_to_move_is_named_by_its_client() {
        let line = "migrate [fd00::7]:4711 --to pod-b --frontend [fd00::1]:80";
        let Ok(Command::Migrate(With { order, .. })) = parsed(line) else {
            panic!("{line}");
        };
        assert_eq!(order.flow.to_string(), "[fd00::7]:4711");
        assert_eq!(order.frontend.map(|f| f.to_string()).as_deref(), Some("[fd00::1]:80"));
        assert_eq!(order.to.as_deref(), Some("pod-b"));
    }

    #[test]
    fn wrong_usage_is_refused() {
        for line in [
            "flows --limit 0",
            "flows --limit 100001",
            "flows --client nobody",
            "flows --watch --interval 10ms",
            "drain",
            "drain a b",
            "drain a --undo --wait",
            "drain a --timeout 5s",
            "drain a --wait --timeout 5",
            "drain a --wait --timeout 99ms",
            "drain a --wait --timeout 25h",
            "capture --client pod",
            "capture --for 0s",
            "capture --for 241s",
            "capture --snaplen 33",
            "capture --snaplen 2049",
            "migrate",
            "migrate nobody",
            "migrate 10.0.0.7:4711 web-1",
            "trace --flow nobody",
            "trace --for 10ms",
            "trace --interval 10ms",
        ] {
            let error = parsed(line).expect_err(line);
            assert_eq!(error.exit_code(), 2, "{line}");
        }
    }
}
