//! Where answers go: the standard output as table, JSON or YAML, and a terminal that is drawn anew.

use crate::{args::Output, text::Style};
use anyhow::Context as _;
use baton_api::printable;

use serde::Serialize;
use std::{
    cell::RefCell,
    io::{self, ErrorKind, IsTerminal as _, Write, stderr, stdout},
};

/// The standard output. Ends the program where its reader has what it wants, as `head` has.
pub struct Out;

impl Out {
    fn done<T>(written: io::Result<T>) -> io::Result<T> {
        match written {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
            other => other,
        }
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Self::done(stdout().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Self::done(stdout().flush())
    }
}

/// The standard streams as a user wants them.
pub struct Show {
    program: &'static str,
    /// The form of answers.
    pub output: Output,
    terminal: bool,
    style: Style,
    out: RefCell<Box<dyn Write>>,
    err: RefCell<Box<dyn Write>>,
}

/// Whether colours are wanted: on a terminal, unless `NO_COLOR` is set to something
/// (<https://no-color.org>).
fn colours(
    terminal: bool,
    no_color: Option<&std::ffi::OsStr>,
    term: Option<&std::ffi::OsStr>,
) -> bool {
    terminal
        && no_color.is_none_or(std::ffi::OsStr::is_empty)
        && term.is_none_or(|term| term != "dumb")
}

impl Show {
    /// For this process, which has this name.
    pub fn new(program: &'static str, output: Output) -> Self {
        let terminal = stdout().is_terminal();
        let (no_color, term) = (std::env::var_os("NO_COLOR"), std::env::var_os("TERM"));
        let colour = colours(terminal, no_color.as_deref(), term.as_deref());
        Self {
            program,
            output,
            terminal,
            style: Style { wide: output == Output::Wide, colour },
            out: RefCell::new(Box::new(Out)),
            err: RefCell::new(Box::new(stderr())),
        }
    }

    /// Into other streams, without colours.
    pub fn into(
        program: &'static str,
        output: Output,
        out: impl Write + 'static,
        err: impl Write + 'static,
    ) -> Self {
        Self {
            program,
            output,
            terminal: false,
            style: Style { wide: output == Output::Wide, colour: false },
            out: RefCell::new(Box::new(out)),
            err: RefCell::new(Box::new(err)),
        }
    }

    /// `value` in the form that is wanted; `table` makes the text for people.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn text<T: Serialize>(
        &self,
        value: &T,
        table: impl FnOnce(&T, Style) -> String,
    ) -> anyhow::Result<String> {
        Ok(match self.output {
            Output::Table | Output::Wide => table(value, self.style),
            Output::Json => serde_json::to_string_pretty(value)? + "\n",
            Output::Yaml => {
                // Through JSON, so that both have the same names and kinds of numbers.
                let value = serde_json::to_value(value)?;
                serde_saphyr::to_string(&value).context("the answer cannot be written as YAML")?
            }
        })
    }

    /// Prints it.
    ///
    /// # Errors
    /// The output cannot be written, other than that nobody reads it any more.
    pub fn print<T: Serialize>(
        &self,
        value: &T,
        table: impl FnOnce(&T, Style) -> String,
    ) -> anyhow::Result<()> {
        self.bytes(self.text(value, table)?.as_bytes())
    }

    /// Prints one frame of several: over the one before it on a terminal, below it elsewhere.
    ///
    /// # Errors
    /// As [`Self::print`].
    pub fn frame<T: Serialize>(
        &self,
        value: &T,
        table: impl FnOnce(&T, Style) -> String,
    ) -> anyhow::Result<()> {
        let text = self.text(value, table)?;
        let people = matches!(self.output, Output::Table | Output::Wide);
        let text = match (people, self.terminal, self.output) {
            // Home, the text, and nothing of the old one below it.
            (true, true, _) => format!("\x1b[H{}\x1b[J", text.replace('\n', "\x1b[K\n")),
            (true, false, _) => format!("{text}\n"),
            (false, _, Output::Yaml) => format!("---\n{text}"),
            (false, ..) => text,
        };
        self.bytes(text.as_bytes())
    }

    /// Prints one of a stream of values: a line of text (`text` ends it), a line of JSON, or a YAML
    /// document.
    ///
    /// # Errors
    /// As [`Self::print`].
    pub fn line<T: Serialize>(
        &self,
        value: &T,
        text: impl FnOnce(&T, Style) -> String,
    ) -> anyhow::Result<()> {
        let text = match self.output {
            Output::Json => serde_json::to_string(value)? + "\n",
            Output::Yaml => format!("---\n{}", self.text(value, text)?),
            Output::Table | Output::Wide => text(value, self.style),
        };
        self.bytes(text.as_bytes())
    }

    /// Makes room on a terminal for frames.
    ///
    /// # Errors
    /// As [`Self::print`].
    pub fn clear(&self) -> anyhow::Result<()> {
        if self.terminal && matches!(self.output, Output::Table | Output::Wide) {
            self.bytes(b"\x1b[2J")?;
        }
        Ok(())
    }

    /// Writes to the standard output.
    ///
    /// # Errors
    /// As [`Self::print`].
    pub fn bytes(&self, bytes: &[u8]) -> anyhow::Result<()> {
        let mut out = self.out.borrow_mut();
        let written = out.write_all(bytes).and_then(|()| out.flush());
        written.context("the output cannot be written")
    }

    /// Several of what [`Self::note`] says.
    pub fn notes(&self, texts: &[String]) {
        texts.iter().for_each(|text| self.note(text));
    }

    /// A sentence on the standard error stream.
    pub fn note(&self, text: &str) {
        // A stream that takes nothing is no reason to give up.
        let text = printable(text);
        let _ = writeln!(self.err.borrow_mut(), "{}: {text}", self.program);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn show(output: Output) -> Show {
        Show::into("baton", output, std::io::sink(), std::io::sink())
    }

    #[test]
    fn one_value_has_three_forms() {
        let value = json!({"name": "web", "flows": 7});
        let text = |output| show(output).text(&value, |_, _| "table\n".to_owned()).expect("text");
        assert_eq!(text(Output::Table), "table\n");
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&text(Output::Json)).expect("JSON"),
            value
        );
        assert_eq!(text(Output::Yaml), "flows: 7\nname: web\n");
    }

    #[test]
    fn a_note_is_one_line_without_anything_that_a_terminal_obeys() {
        #[derive(Clone, Default)]
        struct Kept(std::rc::Rc<RefCell<Vec<u8>>>);
        impl Write for Kept {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.borrow_mut().write(bytes)
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let kept = Kept::default();
        let show = Show::into("baton", Output::Table, io::sink(), kept.clone());
        show.note("it said \x1b[2J\nbaton: all is well");
        let text = String::from_utf8(kept.0.borrow().clone()).expect("text");
        assert_eq!(text, "baton: it said \\u{1b}[2J\\nbaton: all is well\n");
    }

    #[test]
    fn colours_are_for_terminals_that_want_them() {
        let set = |value: &'static str| Some(std::ffi::OsStr::new(value));
        assert!(colours(true, None, set("xterm")) && colours(true, set(""), None));
        assert!(!colours(false, None, None), "a pipe");
        assert!(!colours(true, set("1"), None) && !colours(true, None, set("dumb")));
    }
}
