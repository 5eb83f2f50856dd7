//! Tables and paragraphs for people: aligned columns, at most 80 wide unless more is asked for,
//! colours only where they are wanted. Pure.
//!
//! All text for people is made here, of words that are [`printable`].

use baton_api::printable;
use std::fmt::Write as _;

/// Columns of a terminal that has never been resized.
pub const WIDTH_MAX: usize = 80;
/// Between two columns.
const GAP: usize = 2;
/// A column is not made narrower than this to fit.
const CELL_MIN: usize = 6;

/// How an answer is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// More columns, as wide as they get.
    pub wide: bool,
    /// With colours.
    pub colour: bool,
}

/// What a word means to the reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    /// Nothing special.
    #[default]
    Plain,
    /// As it should be.
    Good,
    /// Worth a look.
    Warn,
    /// Not as it should be.
    Bad,
}

impl Style {
    /// `text` in its colour, if there are colours.
    fn paint(self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Good => "32",
            Tone::Warn => "33",
            Tone::Bad => "31",
            Tone::Plain => return text.to_owned(),
        };
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// One cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    /// With a meaning.
    #[must_use]
    pub fn toned(text: impl Into<String>, tone: Tone) -> Self {
        Self { text: printable(&text.into()).into_owned(), tone }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::toned(text, Tone::Plain)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::toned(text, Tone::Plain)
    }
}

impl From<u64> for Cell {
    fn from(number: u64) -> Self {
        number.to_string().into()
    }
}

/// One column.
struct Column {
    heading: &'static str,
    /// It holds figures, which stand right and are never cut.
    figures: bool,
    /// It is cut only when nothing else is left to cut.
    kept: bool,
}

/// A table under construction.
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
}

/// A column of a table of `R`s: its heading, as [`Table::new`] has it, and what it says of a row.
pub type Shown<R> = (&'static str, fn(&R) -> Cell);

impl Table {
    /// Of these rows.
    #[must_use]
    pub fn of<R>(rows: impl IntoIterator<Item = R>, columns: &[Shown<R>]) -> Self {
        let headings: Vec<_> = columns.iter().map(|(heading, _)| *heading).collect();
        let mut table = Self::new(&headings);
        for row in rows {
            table.row(columns.iter().map(|(_, cell)| cell(&row)).collect());
        }
        table
    }

    /// With these headings; one that starts with `#` is a column of figures, one that starts with
    /// `!` is cut last.
    #[must_use]
    pub fn new(headings: &[&'static str]) -> Self {
        let column = |heading: &&'static str| Column {
            heading: heading.trim_start_matches(['#', '!']),
            figures: heading.starts_with('#'),
            kept: heading.starts_with('!'),
        };
        Self { columns: headings.iter().map(column).collect(), rows: Vec::new() }
    }

    /// Adds a row; it has as many cells as there are headings.
    pub fn row(&mut self, cells: Vec<Cell>) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells);
    }

    /// Whether it has no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The text, each line ended. Unless it may be wide, text columns are cut (with `…`) until it
    /// fits, the widest first.
    #[must_use]
    pub fn render(&self, style: Style) -> String {
        let widths = self.widths(style);
        let headings: Vec<Cell> = self.columns.iter().map(|column| column.heading.into()).collect();
        let mut text = String::new();
        for row in std::iter::once(&headings).chain(&self.rows) {
            let mut line = String::new();
            let last = row.iter().rposition(|cell| !cell.text.is_empty()).unwrap_or(0);
            for (i, cell) in row.iter().enumerate().take(last + 1) {
                if i > 0 {
                    line.push_str(&" ".repeat(GAP));
                }
                let shown = cut(&cell.text, widths[i]);
                let padding = " ".repeat(widths[i] - shown.chars().count());
                let shown = style.paint(cell.tone, &shown);
                if self.columns[i].figures {
                    line.push_str(&padding);
                    line.push_str(&shown);
                } else {
                    line.push_str(&shown);
                    if i < last {
                        line.push_str(&padding);
                    }
                }
            }
            text.push_str(&line);
            text.push('\n');
        }
        text
    }

    fn widths(&self, style: Style) -> Vec<usize> {
        let width = |(i, column): (usize, &Column)| {
            let cells = self.rows.iter().map(|row| row[i].text.chars().count());
            cells.max().unwrap_or(0).max(column.heading.chars().count())
        };
        let mut widths: Vec<usize> = self.columns.iter().enumerate().map(width).collect();
        let gaps = GAP * widths.len().saturating_sub(1);
        while !style.wide && widths.iter().sum::<usize>() + gaps > WIDTH_MAX {
            let widest = |kept: bool| {
                let columns = self.columns.iter().enumerate();
                let cuttable =
                    columns.filter(|(i, c)| !c.figures && c.kept == kept && widths[*i] > CELL_MIN);
                cuttable.map(|(i, _)| i).max_by_key(|i| widths[*i])
            };
            let widest = widest(false).or_else(|| widest(true));
            let Some(widest) = widest else { break };
            widths[widest] -= 1;
        }
        widths
    }
}

/// The end of a Pod's name tells it from its siblings, so long names lose their middle.
fn cut(cell: &str, width: usize) -> String {
    let length = cell.chars().count();
    if length <= width {
        return cell.to_owned();
    }
    let kept = width.saturating_sub(1);
    let front = kept / 2;
    let start: String = cell.chars().take(front).collect();
    let end: String = cell.chars().skip(length - (kept - front)).collect();
    format!("{start}…{end}")
}

/// One line.
pub fn line(text: &mut String, content: &str) {
    // Writing into a string cannot fail.
    let _ = writeln!(text, "{}", printable(content));
}

/// One line with a meaning.
pub fn toned(text: &mut String, style: Style, tone: Tone, content: &str) {
    let _ = writeln!(text, "{}", style.paint(tone, &printable(content)));
}

/// One paragraph of at most 80 columns, its further lines under its first word.
pub fn wrapped(text: &mut String, lead: &str, content: &str) {
    let indent = " ".repeat(lead.chars().count());
    let mut current = lead.to_owned();
    let mut empty = true;
    for word in content.split_whitespace() {
        let word = printable(word);
        let width = current.chars().count() + usize::from(!empty) + word.chars().count();
        if !empty && width > WIDTH_MAX {
            line(text, &current);
            current.clone_from(&indent);
            empty = true;
        }
        if !empty {
            current.push(' ');
        }
        current.push_str(&word);
        empty = false;
    }
    line(text, &current);
}

/// A span for people: `3d 4h`, `2h 3m`, `1m 5s`, `9s`.
#[must_use]
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
#[must_use]
pub fn micros(us: u64) -> String {
    match us {
        0..1_000 => format!("{us}us"),
        1_000..1_000_000 => format!("{}.{}ms", us / 1_000, us % 1_000 / 100),
        _ => span(us / 1_000_000),
    }
}

/// `1 flow`, `2 flows`.
#[must_use]
pub fn count(number: u64, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::borrow::Cow;

    #[test]
    fn figures_stand_right_text_left_and_no_line_ends_with_a_blank() {
        let mut table = Table::new(&["NAME", "#FLOWS", "WHY"]);
        table.row(vec!["web".into(), 7.into(), "".into()]);
        table.row(vec!["database".into(), 1_234_567.into(), "full".into()]);
        assert_eq!(
            table.render(Style::default()),
            "\
NAME        FLOWS  WHY
web             7
database  1234567  full
"
        );
    }

    #[test]
    fn a_wide_table_is_cut_to_80_columns_and_keeps_figures_and_the_ends_of_names() {
        let mut table = Table::new(&["A", "B", "#N"]);
        table.row(vec![
            ("x".repeat(100) + "-qz7v4").into(),
            "y".repeat(60).into(),
            u64::MAX.into(),
        ]);
        let text = table.render(Style::default());
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH_MAX), "{text}");
        assert!(
            text.contains(&u64::MAX.to_string()) && text.contains("…") && text.contains("-qz7v4"),
            "{text}"
        );
        let wide = table.render(Style { wide: true, colour: false });
        assert!(wide.contains(&"x".repeat(100)), "{wide}");
    }

    #[test]
    fn what_is_cut_last_is_whole_as_long_as_others_can_be_cut() {
        let mut table = Table::new(&["!CLIENT", "POLICY"]);
        table.row(vec!["c".repeat(47).into(), "p".repeat(60).into()]);
        let text = table.render(Style::default());
        assert!(text.contains(&"c".repeat(47)) && !text.contains(&"p".repeat(60)), "{text}");
        table.row(vec!["d".repeat(90).into(), "p".into()]);
        let text = table.render(Style::default());
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH_MAX), "{text}");
    }

    #[test]
    fn colours_change_nothing_but_colours() {
        let mut table = Table::new(&["STATE", "NAME"]);
        table.row(vec![Cell::toned("up", Tone::Good), "a".into()]);
        let plain = table.render(Style::default());
        let colour = table.render(Style { wide: false, colour: true });
        assert!(colour.contains("\x1b[32mup\x1b[0m     a"), "{colour:?}");
        assert_eq!(colour.replace("\x1b[32m", "").replace("\x1b[0m", ""), plain);
    }

    #[test]
    fn nothing_that_a_terminal_obeys_is_printed() {
        let evil = "\x1b]52;c;YQ==\x07a\nb\u{9b}2J\u{202e}\u{2066}\r\x7f";
        let shown = r"\u{1b}]52;c;YQ==\u{7}a\nb\u{9b}2J\u{202e}\u{2066}\r\u{7f}";
        assert_eq!(printable(evil), shown);
        assert!(matches!(printable("Zürich … 東京"), Cow::Borrowed(_)));
        let mut table = Table::new(&["A", "B"]);
        table.row(vec![evil.into(), Cell::toned(evil, Tone::Bad)]);
        let mut text = table.render(Style { wide: true, colour: false });
        line(&mut text, evil);
        toned(&mut text, Style::default(), Tone::Good, evil);
        wrapped(&mut text, "", evil);
        assert_eq!(text.matches(r"]52;c;YQ==\u{7}a").count(), 5, "{text}");
        assert_eq!(text.lines().count(), 5, "{text}");
        assert_eq!(printable(&text.replace('\n', "")), text.replace('\n', ""));
        let mut painted = String::new();
        let colour = Style { wide: false, colour: true };
        toned(&mut painted, colour, Tone::Good, "\x1b[31mx");
        assert_eq!(painted, "\x1b[32m\\u{1b}[31mx\x1b[0m\n");
    }

    #[test]
    fn paragraphs_are_wrapped_under_their_first_word() {
        let mut text = String::new();
        wrapped(&mut text, "  - ", &"word ".repeat(30));
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH_MAX));
        assert!(text.lines().skip(1).all(|line| line.starts_with("    word")), "{text}");
        assert_eq!(
            (count(1, "flow"), count(2, "flow")),
            ("1 flow".to_owned(), "2 flows".to_owned())
        );
        assert_eq!((micros(1_560), span(7_380)), ("1.5ms".to_owned(), "2h 3m".to_owned()));
    }
}
