//! Completion of `kubectl baton ...`: kubectl runs a program named `kubectl_complete-baton` with
//! the words behind `baton`, the last of which is to be completed, and reads what it says as its
//! own completion's.
//!
//! Owns what is proposed: commands, options and words that are one of a few. Asks no cluster, so
//! that a key press never waits.

use clap::{Arg, Command};
use std::path::Path;

/// The name by which kubectl calls a plugin `baton` for that.
const NAME: &str = "kubectl_complete-baton";
/// What a shell does besides (`ShellCompDirective` of Cobra, github.com/spf13/cobra): nothing more,
/// or names of files.
const NO_FILES: u8 = 4;
const FILES: u8 = 0;

/// Whether this process was started to complete.
pub fn is_asked(program: &Path) -> bool {
    program.file_name().is_some_and(|name| name == NAME)
}

/// What is proposed for the last of `words`, as kubectl reads it: one a line with its meaning, then
/// the directive.
pub fn answer(mut command: Command, words: &[String]) -> String {
    // Options that are good for all commands come to each of them.
    command.build();
    let (mut text, mut directive) = (String::new(), NO_FILES);
    let Some((last, before)) = words.split_last() else {
        return format!(":{NO_FILES}\n");
    };
    let at = Place::of(&command, before);
    let (option, prefix) = match last.split_once('=') {
        Some((name, value)) if name.starts_with("--") => (at.option(name), value),
        _ => (at.waiting, last.as_str()),
    };
    let mut propose = |name: &str, about: Option<String>| {
        if name.starts_with(prefix) {
            let about = about.unwrap_or_default();
            text.push_str(&format!("{name}\t{}\n", about.lines().next().unwrap_or_default()));
        }
    };
    if let Some(option) = option {
        directive = values(option, &mut propose);
    } else if prefix.starts_with('-') {
        let shown = at.command.get_arguments().filter(|arg| !arg.is_hide_set());
        for arg in shown {
            if let Some(long) = arg.get_long() {
                propose(&format!("--{long}"), help(arg));
            }
        }
    } else {
        for command in at.command.get_subcommands().filter(|c| !c.is_hide_set()) {
            propose(command.get_name(), command.get_about().map(ToString::to_string));
        }
        if let Some(positional) = at.command.get_positionals().nth(at.positionals) {
            directive = values(positional, &mut propose);
        }
    }
    text + &format!(":{directive}\n")
}

/// Where the words before the last one have led.
struct Place<'a> {
    command: &'a Command,
    /// The option whose value comes next.
    waiting: Option<&'a Arg>,
    /// Words that are neither command nor option.
    positionals: usize,
}

impl<'a> Place<'a> {
    fn of(command: &'a Command, words: &[String]) -> Self {
        let mut this = Self { command, waiting: None, positionals: 0 };
        for word in words {
            if this.waiting.take().is_some() {
                continue;
            }
            if word.starts_with('-') {
                this.waiting = this.option(word);
            } else if let Some(command) = this.command.find_subcommand(word) {
                this.command = command;
            } else {
                this.positionals += 1;
            }
        }
        this
    }

    /// The option of this name, if a value comes behind it.
    fn option(&self, name: &str) -> Option<&'a Arg> {
        let is = |arg: &&Arg| match name.strip_prefix("--") {
            Some(long) => arg.get_long() == Some(long),
            None => name
                .strip_prefix('-')
                .is_some_and(|short| arg.get_short().is_some_and(|s| short == s.to_string())),
        };
        let found = self.command.get_arguments().find(is);
        found.filter(|arg| arg.get_action().takes_values())
    }
}

fn help(arg: &Arg) -> Option<String> {
    arg.get_help().map(ToString::to_string)
}

/// Proposes the words that an argument can have; the directive.
fn values(arg: &Arg, propose: &mut impl FnMut(&str, Option<String>)) -> u8 {
    for value in arg.get_possible_values() {
        propose(value.get_name(), value.get_help().map(ToString::to_string));
    }
    let is_file = |name: &clap::builder::Str| name.as_str() == "FILE";
    let names = arg.get_value_names().unwrap_or_default();
    if names.iter().any(is_file) { FILES } else { NO_FILES }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is proposed behind `kubectl baton`, without meanings, and the directive.
    fn proposed(line: &str) -> (Vec<String>, String) {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let answer = answer(crate::args::command(), &words);
        let mut lines: Vec<String> = answer
            .lines()
            .map(|line| line.split('\t').next().unwrap_or_default().to_owned())
            .collect();
        let directive = lines.pop().expect("a directive");
        (lines, directive)
    }

    #[test]
    fn commands_options_and_words_of_a_few_are_proposed() {
        let (commands, directive) = proposed("");
        assert_eq!(directive, ":4");
        for command in ["status", "flows", "drain", "capture"] {
            assert!(commands.iter().any(|c| c == command), "{commands:?}");
        }
        assert_eq!(proposed("dr").0, ["drain"]);
        assert_eq!(proposed("-n shop dr").0, ["drain"], "behind an option's value");
        let (options, _) = proposed("drain --wa");
        assert_eq!(options, ["--wait"]);
        assert!(proposed("flows --").0.contains(&"--namespace".to_owned()));
        for line in ["flows -o ", "-o ", "flows --output=", "flows --output "] {
            assert_eq!(proposed(line).0, ["table", "wide", "json", "yaml"], "{line}");
        }
        assert_eq!(proposed("flows --output=j").0, ["json"]);
        assert!(proposed("completion ").0.contains(&"zsh".to_owned()));
    }

    #[test]
    fn files_are_the_shells_and_names_of_the_cluster_are_nobodys() {
        assert_eq!(proposed("capture -w "), (Vec::new(), ":0".to_owned()));
        assert_eq!(proposed("sysdump --file a"), (Vec::new(), ":0".to_owned()));
        assert_eq!(proposed("drain we"), (Vec::new(), ":4".to_owned()));
        assert_eq!(proposed("flows --policy "), (Vec::new(), ":4".to_owned()));
        assert_eq!(answer(crate::args::command(), &[]), ":4\n");
    }

    #[test]
    fn kubectl_asks_by_a_name_of_its_own() {
        for (program, asked) in
            [("/usr/local/bin/kubectl_complete-baton", true), ("kubectl-baton", false), ("", false)]
        {
            assert_eq!(is_asked(Path::new(program)), asked, "{program}");
        }
    }
}
