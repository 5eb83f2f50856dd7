//! Tables for people: aligned columns, at most 80 wide.

/// Columns of a terminal that has never been resized.
pub const WIDTH_MAX: usize = 80;
/// Between two columns.
const GAP: usize = 2;
/// A column is not made narrower than this to fit.
const CELL_MIN: usize = 6;

/// A table under construction.
pub struct Table {
    /// Heading, and whether the column holds figures (which stand right).
    columns: Vec<(&'static str, bool)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// With these headings; a heading that starts with `#` is a column of figures.
    pub fn new(headings: &[&'static str]) -> Self {
        Self {
            columns: headings
                .iter()
                .map(|heading| match heading.strip_prefix('#') {
                    Some(figures) => (figures, true),
                    None => (*heading, false),
                })
                .collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row; it has as many cells as there are headings.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let row: Vec<String> = cells.into_iter().collect();
        debug_assert_eq!(row.len(), self.columns.len());
        self.rows.push(row);
    }

    /// The text, each line ended. Text columns are cut (with `…`) until the table fits, the widest first.
    pub fn render(&self) -> String {
        let mut widths: Vec<usize> = self
            .columns
            .iter()
            .enumerate()
            .map(|(i, (heading, _))| {
                let cells = self.rows.iter().map(|row| row[i].chars().count());
                cells.max().unwrap_or(0).max(heading.chars().count())
            })
            .collect();
        let gaps = GAP * widths.len().saturating_sub(1);
        while widths.iter().sum::<usize>() + gaps > WIDTH_MAX {
            let widest = (0..widths.len())
                .filter(|i| !self.columns[*i].1 && widths[*i] > CELL_MIN)
                .max_by_key(|i| widths[*i]);
            let Some(widest) = widest else { break };
            widths[widest] -= 1;
        }
        let mut text = String::new();
        let headings: Vec<String> = self.columns.iter().map(|(h, _)| (*h).to_owned()).collect();
        for row in std::iter::once(&headings).chain(&self.rows) {
            let mut line = String::new();
            for (i, cell) in row.iter().enumerate() {
                if i > 0 {
                    line.push_str(&" ".repeat(GAP));
                }
                let cell = cut(cell, widths[i]);
                let padding = " ".repeat(widths[i] - cell.chars().count());
                if self.columns[i].1 {
                    line.push_str(&padding);
                    line.push_str(&cell);
                } else {
                    line.push_str(&cell);
                    line.push_str(&padding);
                }
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

fn cut(cell: &str, width: usize) -> String {
    if cell.chars().count() <= width {
        return cell.to_owned();
    }
    let kept: String = cell.chars().take(width.saturating_sub(1)).collect();
    kept + "…"
}

/// A span for people: `3d 4h`, `2h 3m`, `1m 5s`, `9s`.
pub fn span(seconds: u64) -> String {
    let (days, hours) = (seconds / 86_400, seconds / 3_600 % 24);
    let (minutes, rest) = (seconds / 60 % 60, seconds % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{rest}s"),
        (0, 0, _) => format!("{minutes}m {rest}s"),
        (0, ..) => format!("{hours}h {minutes}m"),
        _ => format!("{days}d {hours}h"),
    }
}

/// A short span for people, from microseconds: `950us`, `1.5ms`, `12s`.
pub fn micros(us: u64) -> String {
    match us {
        0..1_000 => format!("{us}us"),
        1_000..1_000_000 => format!("{}.{}ms", us / 1_000, us % 1_000 / 100),
        _ => span(us / 1_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_stand_right_and_text_left() {
        let mut table = Table::new(&["NAME", "#FLOWS"]);
        table.row(["web".to_owned(), "7".to_owned()]);
        table.row(["database".to_owned(), "1234567".to_owned()]);
        assert_eq!(
            table.render(),
            "\
NAME        FLOWS
web             7
database  1234567
"
        );
    }

    #[test]
    fn a_wide_table_is_cut_to_80_columns_without_losing_figures() {
        let mut table = Table::new(&["A", "B", "#N"]);
        table.row(["x".repeat(100), "y".repeat(60), u64::MAX.to_string()]);
        let text = table.render();
        for line in text.lines() {
            assert!(line.chars().count() <= WIDTH_MAX, "{line}");
        }
        assert!(text.contains(&u64::MAX.to_string()));
        assert!(text.contains('…'));
    }

    #[test]
    fn spans_are_short() {
        for (seconds, text) in [
            (9, "9s"),
            (65, "1m 5s"),
            (7_380, "2h 3m"),
            (273_600, "3d 4h"),
        ] {
            assert_eq!(span(seconds), text);
        }
        for (us, text) in [
            (0, "0us"),
            (950, "950us"),
            (1_560, "1.5ms"),
            (12_000_000, "12s"),
        ] {
            assert_eq!(micros(us), text);
        }
    }
}
