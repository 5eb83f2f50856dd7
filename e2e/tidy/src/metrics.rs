//! The reference of metrics, `docs/generated/metrics.md`: its sections come from what the programs
//! export, in the text format of Prometheus, and tests read it back to judge dashboards and alerts.
//!
//! Owns the file's form in both directions. Never invents a metric: each program's own test hands
//! in what it exports.

use crate::root;
use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    fmt::Write as _,
    fs,
    path::PathBuf,
};

/// Of the file.
const HEAD: &str = "\
# Metrics

Generated from what the programs export; `make generate` writes it, tests compare it. Counters begin at 0 with each start
of a process. Every sample also has the labels that the scrape adds: `namespace`, `pod`, `container`, `job`, and `node` with
the chart's PodMonitor.
";

/// What one value of a label means: metric without prefix, value, meaning.
pub type Meaning = (&'static str, &'static str, String);

/// One program's part of the file.
pub struct Component<'a> {
    /// Of the program, and the section's heading.
    pub name: &'a str,
    /// Of its metrics' names.
    pub prefix: &'a str,
    /// Where it exports them.
    pub place: &'a str,
    /// Labels whose values are not listed, as they come from the cluster.
    pub open: &'a [&'a str],
    /// The same for one metric (without prefix) only.
    pub open_of: &'a [(&'a str, &'a str)],
    /// Meanings of labels' values, where the code has words for them.
    pub meanings: &'a [Meaning],
}

/// A metric as the reference has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metric {
    /// `counter`, `gauge` or `histogram`.
    pub kind: String,
    /// What it counts.
    pub help: String,
    /// Labels with the values that there are; none listed means that any may come.
    pub labels: BTreeMap<String, BTreeSet<String>>,
}

/// Metrics by name.
pub type Metrics = BTreeMap<String, Metric>;

/// Reads the text format of Prometheus.
///
/// # Panics
/// It is not in that format, which is what the caller tests.
#[must_use]
pub fn exported(text: &str) -> Metrics {
    let mut metrics = Metrics::new();
    let mut family = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap_or((rest, ""));
            name.clone_into(&mut family);
            let metric = metrics.entry(family.clone()).or_default();
            assert!(metric.help.is_empty(), "{name} is told twice");
            help.clone_into(&mut metric.help);
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a type has a name");
            assert_eq!(name, family, "HELP comes before TYPE");
            metrics.entry(family.clone()).or_default().kind.push_str(kind);
        } else if !line.is_empty() {
            let metric = metrics.get_mut(&family).expect("a sample has a family");
            let name = line.split(['{', ' ']).next().unwrap_or_default();
            let own = ["", "_bucket", "_sum", "_count"]
                .iter()
                .any(|suffix| name.strip_suffix(suffix) == Some(&family));
            assert!(own, "{name} is not of {family}");
            let labels = line.split_once('{').and_then(|(_, l)| l.rsplit_once('}'));
            for (label, value) in labels.into_iter().flat_map(|(l, _)| pairs(l)) {
                metric.labels.entry(label).or_default().insert(value);
            }
        }
    }
    metrics
}

/// `a="x",b="y"`; no value of ours holds a quote.
fn pairs(text: &str) -> impl Iterator<Item = (String, String)> {
    text.split("\",").map(|pair| {
        let (label, value) = pair.split_once("=\"").expect("a label has a value");
        let value = value.trim_end_matches('"');
        (label.trim_matches(',').to_owned(), value.to_owned())
    })
}

impl Component<'_> {
    /// Asserts that the committed section is that of what the program exports. `BATON_GENERATE=1`
    /// writes it anew.
    ///
    /// # Panics
    /// The section is stale, or a metric breaks a rule of names.
    pub fn keep(&self, exported_text: &str) {
        let section = self.section(&exported(exported_text));
        let before = fs::read_to_string(path()).unwrap_or_default();
        let mut sections = sections(&before);
        if env::var_os("BATON_GENERATE").is_some_and(|v| v == "1") {
            sections.insert(self.name.to_owned(), section.clone());
            let all: String = sections.values().map(|s| format!("\n{s}")).collect();
            fs::write(path(), format!("{HEAD}{all}")).expect("written");
        }
        assert!(
            sections.get(self.name) == Some(&section)
                && (before.starts_with(HEAD) || before.is_empty()),
            "docs/generated/metrics.md is not what {} exports: run `make generate`",
            self.name
        );
    }

    fn section(&self, metrics: &Metrics) -> String {
        let name = self.name;
        let mut out = format!("## {name}\n\n{}\n\n", self.place);
        out.push_str("| metric | type | unit | labels | meaning |\n|---|---|---|---|---|\n");
        for (metric, of) in metrics {
            let of_processes = metric.starts_with("process_");
            assert!(metric.starts_with(self.prefix) || of_processes, "{metric}: {}", self.prefix);
            assert_eq!(
                metric.ends_with("_total"),
                of.kind == "counter",
                "{metric}: counters, and nothing else, end with _total"
            );
            let labels: Vec<_> = of.labels.keys().filter(|l| *l != "le").collect();
            let labels: Vec<_> = labels.iter().map(|l| format!("`{l}`")).collect();
            let _ = writeln!(
                out,
                "| `{metric}` | {} | {} | {} | {} |",
                of.kind,
                unit(metric, of),
                labels.join(", "),
                cell(&of.help)
            );
        }
        out.push_str("\n| metric | label | value | meaning |\n|---|---|---|---|\n");
        for (metric, of) in metrics {
            let short = metric.strip_prefix(self.prefix).unwrap_or(metric);
            for (label, values) in &of.labels {
                let open = self.open.contains(&label.as_str())
                    || label == "le"
                    || self.open_of.contains(&(short, label));
                for value in values.iter().filter(|_| !open) {
                    let known = self.meanings.iter();
                    let meaning = known.filter(|(m, v, _)| *m == short && v == value);
                    let meaning: String = meaning.map(|(.., meaning)| cell(meaning)).collect();
                    let _ = writeln!(out, "| `{metric}` | `{label}` | `{value}` | {meaning} |");
                }
            }
        }
        out
    }
}

/// What is counted or measured in.
fn unit(name: &str, metric: &Metric) -> &'static str {
    let base = name.trim_end_matches("_total");
    if base.ends_with("_seconds") {
        "seconds"
    } else if base.ends_with("_bytes") {
        "bytes"
    } else if base.ends_with("_info") {
        "1"
    } else if metric.kind == "gauge" && metric.help.starts_with("1 ") {
        "0 or 1"
    } else {
        "count"
    }
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn path() -> PathBuf {
    root().join("docs/generated/metrics.md")
}

/// Sections of the file by program.
fn sections(text: &str) -> BTreeMap<String, String> {
    let parts = text.split("\n## ").skip(1);
    parts
        .map(|part| {
            let name = part.lines().next().unwrap_or_default();
            (name.to_owned(), format!("## {}\n", part.trim_end()))
        })
        .collect()
}

/// The metrics that the committed reference names.
///
/// # Panics
/// There is no such file.
#[must_use]
pub fn reference() -> Metrics {
    let text = fs::read_to_string(path()).expect("docs/generated/metrics.md");
    let bare = |cell: &str| cell.trim().trim_matches('`').to_owned();
    let mut metrics = Metrics::new();
    for line in text.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").collect();
        match cells[..] {
            [name, kind, _, labels, ref help @ ..] if !kind.contains('`') => {
                let metric = metrics.entry(bare(name)).or_default();
                metric.kind = bare(kind);
                metric.help = help.join(" | ").trim().to_owned();
                for label in labels.split(',').map(bare).filter(|l| !l.is_empty()) {
                    metric.labels.entry(label).or_default();
                }
            }
            [name, label, value, ..] => {
                let metric = metrics.get_mut(&bare(name)).expect("in the first table");
                let values = metric.labels.get_mut(&bare(label)).expect("its label");
                values.insert(bare(value));
            }
            _ => panic!("not a row of the reference: {line}"),
        }
    }
    metrics
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# HELP x_a_total How many.
# TYPE x_a_total counter
x_a_total{reason=\"one two\",policy=\"p\"} 3
x_a_total{reason=\"b\",policy=\"q\"} 0
# HELP x_seconds How long.
# TYPE x_seconds histogram
x_seconds_bucket{le=\"+Inf\"} 1
x_seconds_sum 1
x_seconds_count 1
";

    #[test]
    fn what_is_exported_is_read_with_labels_and_their_values() {
        let metrics = exported(TEXT);
        let total = &metrics["x_a_total"];
        assert_eq!((total.kind.as_str(), total.help.as_str()), ("counter", "How many."));
        assert_eq!(total.labels["reason"].len(), 2);
        assert!(total.labels["reason"].contains("one two"));
        assert_eq!(metrics["x_seconds"].kind, "histogram");
    }

    #[test]
    fn sections_tell_units_and_only_fixed_values() {
        let component = Component {
            name: "x",
            prefix: "x_",
            place: "somewhere",
            open: &["policy"],
            open_of: &[],
            meanings: &[("a_total", "b", "the letter | b".to_owned())],
        };
        let section = component.section(&exported(TEXT));
        for line in [
            "| `x_a_total` | counter | count | `policy`, `reason` | How many. |",
            "| `x_seconds` | histogram | seconds |  | How long. |",
            "| `x_a_total` | `reason` | `b` | the letter \\| b |",
            "| `x_a_total` | `reason` | `one two` |  |",
        ] {
            assert!(section.lines().any(|l| l == line), "{line}:\n{section}");
        }
        assert!(!section.contains("`le`") && !section.contains("`p`"));
        let again = sections(&format!("{HEAD}\n{section}"));
        assert_eq!(again["x"], section);
    }
}
