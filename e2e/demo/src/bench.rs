//! What every run comes to: figures by name, a table for people, JSON for machines, and why it
//! failed.
//!
//! Owns medians of rounds that take turns (so that what else goes on at the machine hits all sides
//! alike), the tables' layout and how numbers are written. Knows nothing of what is measured.

use anyhow::{Context, Result};
use baton_api::State;
use baton_lab::Counts;
use serde::Serialize;
use std::{
    collections::BTreeMap,
    fmt::{self, Display, Write as _},
    fs,
    path::{Path, PathBuf},
};

/// One figure over all rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    pub median: f64,
    pub min: f64,
    pub max: f64,
    /// In their order.
    pub rounds: Vec<f64>,
}

impl Figure {
    /// Not a number if there is no round.
    pub fn of(rounds: Vec<f64>) -> Self {
        let mut sorted = rounds.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median = match sorted.len() {
            0 => f64::NAN,
            n if n % 2 == 1 => sorted[middle],
            _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
        };
        Self {
            median,
            min: sorted.first().copied().unwrap_or(f64::NAN),
            max: sorted.last().copied().unwrap_or(f64::NAN),
            rounds,
        }
    }
}

impl Display for Figure {
    /// `median (min to max)`, with as many decimals as asked for; none else.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { median, min, max, .. } = self;
        let digits = f.precision().unwrap_or(0);
        write!(f, "{median:.digits$} ({min:.digits$} to {max:.digits$})")
    }
}

/// The figures of one side, by name.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(transparent)]
pub struct Figures(BTreeMap<&'static str, Figure>);

impl Figures {
    /// Adds a round.
    pub fn note(&mut self, name: &'static str, value: f64) {
        let before = self.0.remove(name);
        let mut rounds = before.map_or_else(Vec::new, |f| f.rounds);
        rounds.push(value);
        self.0.insert(name, Figure::of(rounds));
    }

    pub fn get(&self, name: &str) -> Option<&Figure> {
        self.0.get(name)
    }

    pub fn all(&self) -> impl Iterator<Item = (&'static str, &Figure)> {
        self.0.iter().map(|(name, figure)| (*name, figure))
    }

    /// Not a number if there is no round.
    pub fn median(&self, name: &str) -> f64 {
        self.get(name).map_or(f64::NAN, |f| f.median)
    }

    /// That of the latest round.
    pub fn latest(&self, name: &str) -> f64 {
        let latest = self.get(name).and_then(|f| f.rounds.last());
        latest.copied().unwrap_or(f64::NAN)
    }

    /// `median (min to max)`.
    pub fn text(&self, name: &str) -> String {
        self.get(name).map_or_else(String::new, Figure::to_string)
    }
}

/// A table's columns: each heading with its width, below 0 where the column begins at its left.
pub type Columns = [(&'static str, isize)];

/// One line of a table.
pub fn line(columns: &Columns, cells: &[String]) -> String {
    let mut text = String::new();
    for ((_, width), cell) in columns.iter().zip(cells) {
        let wide = width.unsigned_abs();
        // Writing to a string does not fail.
        let _ = match width {
            0.. => write!(text, "{cell:>wide$}"),
            _ => write!(text, "{cell:<wide$}"),
        };
    }
    text.trim_end().to_owned()
}

/// The headings and all lines.
pub fn table(columns: &Columns, rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let headings: Vec<_> = columns.iter().map(|(h, _)| (*h).to_owned()).collect();
    let mut text = line(columns, &headings) + "\n";
    for row in rows {
        text += &(line(columns, &row) + "\n");
    }
    text
}

/// A number with its thousands apart, as 1,234,567.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Microseconds with a unit that people read at a glance.
pub fn duration(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} us"),
        1_000..1_000_000 => format!("{:.1} ms", us as f64 / 1e3),
        _ => format!("{:.2} s", us as f64 / 1e6),
    }
}

/// Breaks a text into lines of at most 80 columns.
pub fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let full = lines.last().is_some_and(|l| !l.is_empty() && l.len() + 1 + word.len() > 80);
        if full {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines.join("\n")
}

/// Counters of a dataplane that are not 0.
pub fn counters(state: &State) -> Counts {
    let all = state.counters.iter().filter(|(_, count)| **count > 0);
    all.map(|(name, count)| (name.clone(), *count)).collect()
}

/// Writes a report as JSON into a folder, which is made if need be. Returns where it is.
pub fn keep(folder: &Path, name: &str, report: &impl Serialize) -> Result<PathBuf> {
    fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let path = folder.join(name);
    fs::write(&path, serde_json::to_string_pretty(report)? + "\n")
        .with_context(|| path.display().to_string())?;
    Ok(path)
}

/// Says why a run did not show what it is for. `true` if it did.
pub fn succeeded(failures: &[String]) -> bool {
    for failure in failures {
        eprintln!("baton-demo: {failure}");
    }
    failures.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_and_even_numbers_of_rounds() {
        assert_eq!(Figure::of(vec![3.0, 1.0, 2.0]).median, 2.0);
        assert_eq!(Figure::of(vec![4.0, 1.0, 2.0, 3.0]).median, 2.5);
        let mut figures = Figures::default();
        figures.note("a", 7.0);
        assert_eq!(figures.text("a"), "7 (7 to 7)");
        figures.note("a", 4.0);
        assert_eq!((figures.median("a"), figures.latest("a")), (5.5, 4.0));
        assert_eq!(format!("{:.1}", figures.0["a"]), "5.5 (4.0 to 7.0)");
    }

    #[test]
    fn columns_begin_or_end_at_their_widths() {
        let columns = [("name", -6), ("count", 7)];
        let rows = [vec!["a".to_owned(), grouped(1_234)]];
        assert_eq!(table(&columns, rows), "name    count\na       1,234\n");
    }

    #[test]
    fn numbers_are_grouped_by_thousands() {
        let texts = [0, 999, 1_000, 123_456, 1_234_567].map(grouped);
        assert_eq!(texts, ["0", "999", "1,000", "123,456", "1,234,567"]);
    }
}
