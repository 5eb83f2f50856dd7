//! Why a configuration is refused, with the place where a person has to change it.
//!
//! Owns how a refusal reads; what is wrong and what was expected are the binaries' words.

use crate::{Document, Place};
use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

/// A refused configuration: file, line, field, and what was expected there.
///
/// Fatal at start. On a reload the last good configuration stays in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The file.
    pub file: PathBuf,
    /// The line, counted from 1; none if the file cannot be read at all.
    pub line: Option<u64>,
    /// The column, counted from 1; shown only behind a line.
    pub column: Option<u64>,
    /// The field, as `policies[1].backends[0].name`; empty if the text is not YAML.
    pub field: String,
    /// What is wrong and what was expected.
    pub problem: String,
    /// The file could not even be read.
    pub unreadable: bool,
}

impl ConfigError {
    /// A problem somewhere in a file; the caller adds what more it knows.
    pub fn new(file: impl Into<PathBuf>, problem: impl Into<String>) -> Self {
        Self {
            file: file.into(),
            line: None,
            column: None,
            field: String::new(),
            problem: problem.into(),
            unreadable: false,
        }
    }

    /// The file could not be read.
    pub fn unreadable(file: impl Into<PathBuf>, problem: impl Into<String>) -> Self {
        Self { unreadable: true, ..Self::new(file, problem) }
    }

    /// A field, with the line where `text`, the file's content, has it.
    #[must_use]
    pub fn in_text(file: &Path, text: &str, field: String, problem: String) -> Self {
        Self { line: Document::parse(text).line_of(&field), field, ..Self::new(file, problem) }
    }

    /// A field of a file that was good by itself; the line is looked up in the file as it is now.
    #[must_use]
    pub fn at(file: &Path, field: String, problem: String) -> Self {
        // Without the text the refusal points at the first line, but is still told.
        let text = fs::read_to_string(file).unwrap_or_default();
        Self::in_text(file, &text, field, problem)
    }

    /// The same refusal at a line and column.
    #[must_use]
    pub fn with_place(self, place: Option<Place>) -> Self {
        Self { line: place.map(|p| p.line), column: place.map(|p| p.column), ..self }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
            if let Some(column) = self.column {
                write!(f, ":{column}")?;
            }
        }
        if !self.field.is_empty() {
            write!(f, ": {}", one_line(&self.field))?;
        }
        write!(f, ": {}", one_line(&self.problem))
    }
}

/// Texts of the file may hold line ends and terminal escapes; a refusal is one plain line.
fn one_line(text: &str) -> String {
    let plain = |c: char| {
        let escaped = c.is_control().then(|| c.escape_debug());
        let same = (!c.is_control()).then_some(c);
        escaped.into_iter().flatten().chain(same)
    };
    text.chars().flat_map(plain).collect()
}

impl std::error::Error for ConfigError {}

/// What the YAML reader says, in one line and without the place, which is printed in front.
#[must_use]
pub fn reader_words(error: &serde_saphyr::Error) -> String {
    let mut words = error.without_snippet().to_string();
    if let Some(at) = words.rfind(" at line ") {
        words.truncate(at);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_reads_from_the_file_to_the_problem() {
        let file = Path::new("a.yaml");
        let text = "keys:\n  - epoch: 1\n    file: x\n";
        let error = ConfigError::in_text(file, text, "keys[0].file".into(), "is bad".into());
        assert_eq!(error.to_string(), "a.yaml:3: keys[0].file: is bad");
        let place = Document::parse(text).place_of(&error.field);
        let error = error.with_place(place);
        assert_eq!(error.to_string(), "a.yaml:3:5: keys[0].file: is bad");
        let error = ConfigError::unreadable(file, "cannot be read");
        assert_eq!(error.to_string(), "a.yaml: cannot be read");
        assert!(error.unreadable);
    }

    #[test]
    fn the_readers_words_are_one_line_without_a_place() {
        let error = serde_saphyr::from_str::<u8>("300\n").expect_err("too many");
        let words = reader_words(&error);
        assert_eq!(words, "invalid u8");
    }
}
