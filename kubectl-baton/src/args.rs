//! The command line, as clap reads it: commands, options and their help. Runs nothing.
//!
//! What dataplanes are asked is declared in `baton-cli`, for `lb-dataplane` too.

use baton_api::ControlAddress;
use baton_cli::{
    FlowId,
    args::{Again, Output, patience},
    flow,
};
use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use std::{path::PathBuf, time::Duration};

/// Where a dataplane of the chart listens for commands of people, within its Pod.
pub const CONTROL_DEFAULT: &str = "unix:/run/baton/control.sock";
/// The program's file.
const BINARY: &str = "kubectl-baton";
/// Rows of `top` that fit on a usual terminal below its head.
const TOP_ROWS_DEFAULT: u16 = 20;
/// Examples of each command that changes something or takes many options, below its options.
const EXAMPLES: [(&str, &str); 5] = [
    (
        "attach",
        "\
Examples:
  kubectl baton attach svc/web -n shop --dry-run          what would be changed
  kubectl baton attach svc/web -n shop --protocol HTTP1   connections can move
  kubectl baton attach svc/web -n shop --dry-run -o yaml  manifests, for a repository",
    ),
    (
        "detach",
        "\
Examples:
  kubectl baton detach svc/web -n shop
  kubectl baton detach svc/web -n shop --linger 1m   where nodes follow slowly",
    ),
    (
        "drain",
        "\
Examples:
  kubectl baton drain web-5d4f-abcde -n shop --wait                 before the Pod is restarted
  kubectl baton drain web-5d4f-abcde -n shop --wait --timeout 10m   where requests take minutes
  kubectl baton drain web-5d4f-abcde -n shop --undo                 back into service",
    ),
    (
        "capture",
        "\
Examples:
  kubectl baton capture -n shop --client 192.0.2.7 -w client.pcapng
  kubectl baton capture -n shop --policy web --backend web-5d4f-abcde --for 2m -w pod.pcapng
  kubectl baton capture -A --client 192.0.2.0/24 --dataplane POD | tshark -r -",
    ),
    (
        "migrate",
        "\
Examples:
  kubectl baton migrate 192.0.2.7:40112 -n shop                      to the best other Pod
  kubectl baton migrate 192.0.2.7:40112 -n shop --to web-5d4f-fghij",
    ),
];

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
    /// The namespace of Baton's own Pods, where BatonDataplanes may not be listed or there are
    /// none; programs are run in these Pods
    #[arg(long, global = true, value_name = "NAME")]
    pub baton_namespace: Option<String>,
    /// The form of the answer
    #[arg(long, short, global = true, value_enum, default_value_t, hide_possible_values = false)]
    pub output: Output,
    /// Where dataplanes take commands within their Pods (`control:` of their configuration):
    /// ADDRESS:PORT or unix:/PATH
    #[arg(long, global = true, value_name = "PLACE", default_value = CONTROL_DEFAULT)]
    pub control: ControlAddress,
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
    /// The client's ADDRESS:PORT; ADDRESS alone if it has one flow; or the ID that `flows -o wide`
    /// shows, DATAPLANE/ADDRESS:PORT
    #[arg(value_name = "FLOW", value_parser = flow)]
    pub flow: FlowId,
}

/// Asks Baton in a cluster whether it works, and why connections are where they are.
#[derive(Clone, Debug, PartialEq, Eq, Parser)]
#[command(name = "kubectl-baton", bin_name = "kubectl baton", disable_version_flag = true)]
#[command(after_help = "\
Exit codes: 0 done (check: nothing forbids Baton; status: it works; drain --wait: the Pod is empty)
            1 not done (check: something forbids it; status: it does not work; explain: no such flow; drain: refused, or not empty in time;
              migrate: refused, or no such flow; attach, detach: refused, or not done in time)
            2 could not be asked (wrong usage, no cluster, no permission, no dataplane answers)")]
pub struct CommandLine {
    #[command(flatten)]
    pub options: Options,
    #[command(subcommand)]
    pub command: Command,
}

/// A Service that Baton comes behind.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct Attach {
    /// The Service: NAME or svc/NAME
    #[arg(value_name = "SERVICE")]
    pub service: String,
    /// What its pods speak; without it, what the Service's ports say
    #[arg(long, value_enum)]
    pub protocol: Option<Protocol>,
    /// The name of the policy; without it, the Service's
    #[arg(long, value_name = "NAME")]
    pub policy: Option<String>,
    /// Change nothing, show what would be changed; with -o yaml, as manifests
    #[arg(long)]
    pub dry_run: bool,
    /// Give up after this long in all, as 60s or 2m; the same command goes on
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = patience)]
    pub timeout: Duration,
}

/// A Service that Baton leaves.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct Detach {
    /// The Service: NAME or svc/NAME
    #[arg(value_name = "SERVICE")]
    pub service: String,
    /// How long nodes (kube-proxy) may take to follow, as 10s or 1m: so long dataplanes take new
    /// connections
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = patience)]
    pub linger: Duration,
    /// Give up after this long besides --linger, as 60s or 2m; the same command goes on
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = patience)]
    pub timeout: Duration,
}

/// What pods speak, as `spec.protocol` of a policy has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Protocol {
    /// HTTP/1.0 and HTTP/1.1
    #[value(name = "HTTP1")]
    Http1,
    /// Redis
    #[value(name = "RESP")]
    Resp,
    /// Memcached, its text protocol
    #[value(name = "Memcached")]
    Memcached,
    /// One request, then one response
    #[value(name = "RequestResponse")]
    RequestResponse,
    /// Anything: connections stay where they begin
    #[value(name = "None")]
    None,
}

impl Protocol {
    /// As a policy has it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Http1 => "HTTP1",
            Self::Resp => "RESP",
            Self::Memcached => "Memcached",
            Self::RequestResponse => "RequestResponse",
            Self::None => "None",
        }
    }
}

/// Commands have no options beside those of all.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct NoOptions {}

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum Command {
    /// Before Baton is installed: will it do here, and what will move: nodes, network, Services
    Check,
    /// Is Baton working, and if not, why: per policy, dataplane and node
    Status,
    #[command(flatten)]
    Ask(baton_cli::args::Command<NoOptions>),
    /// Show what backends do now: requests and moves per second, refreshed
    Top(Top),
    /// Say why a connection is on its Pod, and why it can or cannot move
    Explain(Explain),
    /// Put Baton behind a Service that clients have, under its name, while they use it
    Attach(Attach),
    /// Take Baton from behind a Service again
    Detach(Detach),
    /// Write an archive with what a helper needs: objects, figures, logs; no Secrets, no
    /// annotations but Baton's, no environment
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
    let add = |line: clap::Command, (name, text)| {
        line.mut_subcommand(name, |command: clap::Command| command.after_help(text))
    };
    EXAMPLES.into_iter().fold(CommandLine::command(), add)
}

/// Reads the process's arguments; prints help or the error and exits (code 0 or 2) if there is
/// nothing to run.
pub fn parse() -> CommandLine {
    let found = CommandLine::from_arg_matches(&command().get_matches());
    found.unwrap_or_else(|error| error.exit())
}

/// The completion for `shell`.
pub fn completion(shell: Shell) -> Vec<u8> {
    let (mut text, mut command) = (Vec::new(), command());
    if !matches!(shell, Shell::Bash) {
        clap_complete::generate(shell, &mut command, BINARY, &mut text);
        return text;
    }
    // In bash's script clap_complete 4.6 writes a hyphen of the name in two ways, so that behind a
    // command nothing is proposed.
    let plain = BINARY.replace('-', "_");
    clap_complete::generate(shell, &mut command, &plain, &mut text);
    let (has, wants) = (format!("-o default {plain}"), format!("-o default {BINARY}"));
    let text = String::from_utf8_lossy(&text).replace(&has, &wants);
    text.into_bytes()
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
        command().debug_assert();
    }

    #[test]
    fn the_examples_of_each_help_are_read() {
        for (name, text) in EXAMPLES {
            let mut all = command();
            let help = all.find_subcommand_mut(name).expect(name).render_help();
            assert!(help.to_string().contains(text), "{name}");
            for example in text.lines().skip(1) {
                // Behind two spaces stands what it is for.
                let typed = example.trim().split("  ").next().expect("a command");
                let typed = typed.split(" | ").next().expect("ours");
                let words = typed.replacen("kubectl baton", "kubectl-baton", 1);
                parsed(&words).expect(typed);
                assert!(words.starts_with(&format!("kubectl-baton {name} ")), "{typed}");
            }
        }
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
    fn wrong_usage_is_refused() {
        for line in [
            "kubectl-baton",
            "kubectl-baton nothing",
            "kubectl-baton status -n a -A",
            "kubectl-baton status -o xml",
            "kubectl-baton top --count 0",
            "kubectl-baton explain",
            "kubectl-baton explain /10.0.0.7:4711",
            "kubectl-baton explain 10.0.0.7:70000",
            "kubectl-baton completion tcl",
        ] {
            let error = parsed(line).expect_err(line);
            assert_eq!(error.exit_code(), 2, "{line}");
        }
    }

    /// Behind a command there are its options.
    #[test]
    fn what_bash_gets_completes_options_of_commands() {
        let script = String::from_utf8(completion(Shell::Bash)).expect("text");
        let asked = r#"
            COMP_WORDS=(kubectl-baton flows -n shop --pi); COMP_CWORD=4
            _kubectl_baton kubectl-baton --pi shop; echo "${COMPREPLY[@]}""#;
        let bash = std::process::Command::new("bash")
            .args(["-c", &format!("{script}\n{asked}")])
            .output()
            .expect("bash");
        assert_eq!(String::from_utf8_lossy(&bash.stdout), "--pinned\n");
        assert!(script.trim_end().ends_with("-o default kubectl-baton\nfi"));
    }

    #[test]
    fn every_shell_gets_a_completion_with_the_commands() {
        for shell in Shell::value_variants() {
            let text = String::from_utf8(completion(*shell)).expect("text");
            assert!(text.contains("sysdump") && text.contains("kubectl-baton"), "{shell}");
        }
    }
}
