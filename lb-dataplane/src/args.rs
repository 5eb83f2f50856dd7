//! The command line, as clap reads it: commands, options and their help. Runs nothing.
//!
//! What a running dataplane is asked is declared in `baton-cli`, for `kubectl baton` too.

use baton_api::ControlAddress;
use baton_cli::args::{Command as Question, Output};
use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use std::path::PathBuf;

/// Where a running dataplane listens unless its configuration says otherwise.
pub const CONTROL_DEFAULT: &str = "127.0.0.1:9900";

/// The userspace packet path of Baton, the load balancer that moves live TCP connections between
/// pods.
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
    /// Needs CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF; for AF_XDP also CAP_PERFMON and, if the memory
    /// lock limit is small, CAP_IPC_LOCK. The file is read again when it changes or on SIGHUP:
    /// policies, keys and the log level change without touching a connection; a bad file is refused
    /// and the last good one stays.
    Run {
        #[command(flatten)]
        file: File,
        /// After SIGTERM go on with the connections that there are for so long, but be ready for no
        /// new ones; a second signal ends at once
        #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=86_400))]
        grace_seconds: u32,
    },
    /// Say whether a configuration file is good, and if not, in which line and field
    Check(File),
    /// Is it working, and if not, why
    Status(Ask),
    #[command(flatten)]
    Ask(Box<Question<Ask>>),
    /// Ask the control API itself, and print what it answers (`kubectl baton` asks so)
    Api(Api),
    /// Print the version
    Version,
}

/// One request of the control API.
#[derive(Debug, PartialEq, Eq, Args)]
pub struct Api {
    #[command(flatten)]
    pub at: At,
    /// Path and query, as /v1/state or '/v1/events?since=0&wait=4'
    #[arg(value_name = "PATH", value_parser = path)]
    pub path: String,
    /// Post this JSON; without it, this is a GET
    #[arg(long, value_name = "JSON")]
    pub post: Option<String>,
    /// End a stream in order, as with Ctrl-C, when something comes on the standard input or it ends
    #[arg(long)]
    pub end_on_input: bool,
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

/// What an admin needs next to the options of `migrate`.
const MIGRATE_HELP: &str = "\
Examples:
  lb-dataplane migrate 10.0.0.7:4711              to the best other backend
  lb-dataplane migrate 10.0.0.7:4711 --to pod-b";

fn path(text: &str) -> Result<String, &'static str> {
    let good = text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic());
    good.then(|| text.to_owned()).ok_or("expected a path and its query, escaped as in a URL")
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
    /// Where the dataplane takes commands (`control:` of its configuration): ADDRESS:PORT or
    /// unix:/PATH
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

fn line() -> clap::Command {
    Line::command()
        .mut_subcommand("drain", |drain| drain.after_help(DRAIN_HELP))
        .mut_subcommand("migrate", |migrate| migrate.after_help(MIGRATE_HELP))
        .mut_subcommand("capture", |capture| {
            // It chooses among several.
            let one = capture.mut_arg("dataplane", |which| which.hide(true));
            one.after_help(CAPTURE_HELP)
        })
}

/// Reads the process's arguments; prints help or the error and exits (code 0 or 2) if there is
/// nothing to run.
#[must_use]
pub fn parse() -> Command {
    let found = Line::from_arg_matches(&line().get_matches());
    found.unwrap_or_else(|error| error.exit()).command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Command, clap::Error> {
        Line::try_parse_from(line.split_whitespace()).map(|line| line.command)
    }

    #[test]
    fn the_declaration_is_consistent() {
        line().debug_assert();
    }

    #[test]
    fn a_capture_on_the_dataplane_itself_does_not_ask_which() {
        let mut all = line();
        let capture = all.find_subcommand_mut("capture").expect("capture");
        let help = capture.render_long_help().to_string();
        assert!(help.contains("--backend") && !help.contains("--dataplane"), "{help}");
    }

    #[test]
    fn arguments_become_commands() {
        let config = "a.yaml".into();
        assert_eq!(
            parse("lb-dataplane run --config a.yaml").expect("run"),
            Command::Run { file: File { config }, grace_seconds: 0 }
        );
        let asked = parse("lb-dataplane flows --policy p --limit 5 -o json --control [::1]:7");
        let Ok(Command::Ask(question)) = asked else {
            panic!("{asked:?}");
        };
        let at = At { control: "[::1]:7".parse().expect("address"), netns: None };
        let output = Output::Json;
        assert_eq!(*question.options(), Ask { at, output });
        let Question::Flows(with) = *question else {
            panic!("another question");
        };
        assert_eq!((with.order.policy.as_deref(), with.order.limit), (Some("p"), 5));
    }

    #[test]
    fn wrong_usage_is_refused() {
        for line in [
            "lb-dataplane",
            "lb-dataplane run",
            "lb-dataplane status --control nowhere",
            "lb-dataplane status --control unix:relative.sock",
            "lb-dataplane status --output xml",
            "lb-dataplane run --config a.yaml --control 127.0.0.1:1",
            "lb-dataplane api",
            "lb-dataplane api v1/state",
            "lb-dataplane api /v1/state /v1/flows",
        ] {
            let error = parse(line).expect_err(line);
            assert_eq!(error.exit_code(), 2, "{line}");
        }
    }
}
