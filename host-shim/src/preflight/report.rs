//! What was found, as a table for people and as JSON for programs.

use serde::Serialize;
use std::fmt::Write;

/// What is so of pods that cannot adopt.
const TRANSLATION: &str = "Connections move all the same to pods that cannot adopt, by translation, \
     with one more round trip, unless policy says `migration.method: Adoption`.";
/// A terminal of the usual width holds this.
const WIDTH: usize = 100;

/// All that was checked, in order.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    findings: Vec<Entry>,
}

#[derive(Debug, Serialize)]
struct Entry {
    /// `node` or the pod's name.
    subject: String,
    check: &'static str,
    #[serde(flatten)]
    finding: Finding,
}

/// One answer.
#[derive(Debug, Serialize)]
pub struct Finding {
    status: Status,
    found: String,
    /// What an admin changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    change: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Good,
    /// Works, with something to know.
    Note,
    Missing,
}

impl Finding {
    pub fn good(found: impl Into<String>) -> Self {
        Self { status: Status::Good, found: found.into(), change: None }
    }

    pub fn note(found: impl Into<String>, change: impl Into<String>) -> Self {
        Self { status: Status::Note, found: found.into(), change: Some(change.into()) }
    }

    pub fn missing(found: impl Into<String>, change: impl Into<String>) -> Self {
        Self { status: Status::Missing, found: found.into(), change: Some(change.into()) }
    }
}

impl Report {
    pub fn add(&mut self, subject: &str, check: &'static str, finding: Finding) {
        self.findings.push(Entry { subject: subject.to_owned(), check, finding });
    }

    fn missing(&self) -> usize {
        let missing = |e: &&Entry| e.finding.status == Status::Missing;
        self.findings.iter().filter(missing).count()
    }

    /// Nothing is missing.
    pub fn good(&self) -> bool {
        self.missing() == 0
    }

    /// One object: `good`, and the list.
    pub fn json(&self) -> String {
        serde_json::json!({ "good": self.good(), "findings": self.findings }).to_string()
    }

    /// One block per subject, one line per check, and under it what to change.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let width = self.findings.iter().map(|e| e.check.len()).max().unwrap_or(0);
        let indent = 2 + 9 + width + 2;
        let mut subject = None;
        for entry in &self.findings {
            if subject != Some(&entry.subject) {
                let _ = writeln!(text, "{}", entry.subject);
                subject = Some(&entry.subject);
            }
            let status = match entry.finding.status {
                Status::Good => "good",
                Status::Note => "note",
                Status::Missing => "MISSING",
            };
            let _ = write!(text, "  {status:<9}{:<width$}  ", entry.check);
            wrapped(&mut text, &entry.finding.found, indent);
            if let Some(change) = &entry.finding.change {
                text.push_str(&" ".repeat(indent));
                wrapped(&mut text, &format!("-> {change}"), indent);
            }
        }
        let _ = match self.missing() {
            0 => writeln!(text, "All good: this node's pods can adopt connections."),
            1 => writeln!(text, "1 thing is missing; the line under it says what to change."),
            n => writeln!(text, "{n} things are missing; the line under each says what to change."),
        };
        if !self.good() {
            wrapped(&mut text, TRANSLATION, 0);
        }
        text
    }
}

/// Appends words, broken so that lines stay within the width, each but the first indented.
fn wrapped(text: &mut String, words: &str, indent: usize) {
    let mut column = indent;
    let mut first = true;
    for word in words.split_whitespace() {
        let length = word.chars().count();
        if !first && column + 1 + length > WIDTH {
            text.push('\n');
            text.push_str(&" ".repeat(indent));
            column = indent;
        } else if !first {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += length;
        first = false;
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_fits_the_terminal_and_counts_what_is_missing() {
        let mut report = Report::default();
        report.add("node", "kernel", Finding::good("6.18"));
        assert!(report.good());
        assert!(report.text().ends_with("All good: this node's pods can adopt connections.\n"));
        report.add("pod", "tcp_syncookies", Finding::missing("0", "word ".repeat(60)));
        report.add("pod", "listeners", Finding::note("0", "start it"));
        assert!(!report.good());
        let text = report.text();
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(text.contains("  MISSING  tcp_syncookies  0\n"), "{text}");
        let (_, end) = text.split_once("1 thing is missing; ").expect("counted");
        assert!(end.contains("move all the same"), "{text}");
        assert!(report.json().contains(r#""good":false"#));
    }
}
