//! Pages that are written by hand, and comments, are read in diffs and on terminals: lines of at
//! most 100 columns, rows of tables short, the README a screen or two.

use baton_tidy::{files, root};
use std::fs;

const COLUMNS_MAX: usize = 100;
/// A row with more words is a paragraph or an item of a list.
const ROW_WORDS_MAX: usize = 25;
const README_LINES_MAX: usize = 120;

/// The pages that nobody's program writes, with their text.
fn pages() -> Vec<(String, String)> {
    let generated = |f: &str| f.starts_with("docs/generated/") || f == "charts/baton/README.md";
    let by_hand = |f: &String| f.ends_with(".md") && !generated(f);
    let pages = files().into_iter().filter(by_hand);
    pages
        .map(|file| {
            let text = fs::read_to_string(root().join(&file)).expect("a page");
            (file, text)
        })
        .collect()
}

/// Lines outside of fenced code, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(at, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        (!fenced && !fence).then_some((at + 1, line))
    })
}

/// Whether a line is nothing but a link, which cannot be broken.
fn is_link(line: &str) -> bool {
    let line = line.trim_start_matches([' ', '-', '*', '!']).trim_end_matches(['.', ',']);
    let only = line.strip_prefix('[').and_then(|l| l.strip_suffix(')'));
    only.is_some_and(|l| l.split_once("](").is_some_and(|(_, to)| !to.contains(' ')))
}

fn is_too_long(line: &str) -> bool {
    let exempt = line.starts_with('|') || line.starts_with('#') || is_link(line);
    !exempt && line.chars().count() > COLUMNS_MAX
}

/// Words of a row; what stands between backticks is one.
fn words(row: &str) -> usize {
    let spans = row.split('`').enumerate().map(|(at, part)| match at % 2 {
        0 => part.replace('|', " "),
        _ => "x".to_owned(),
    });
    spans.collect::<String>().split_whitespace().count()
}

#[test]
fn lines_have_at_most_100_columns() {
    let pages = pages();
    assert!(pages.len() > 20, "{}", pages.len());
    let lines =
        pages.iter().flat_map(|(file, text)| prose(text).map(move |(at, line)| (file, at, line)));
    let long: Vec<_> = lines
        .filter(|(_, _, line)| is_too_long(line))
        .map(|(file, at, line)| format!("{file}:{at}: {} columns", line.chars().count()))
        .collect();
    assert!(long.is_empty(), "wrap at {COLUMNS_MAX}: {long:#?}");
}

#[test]
fn comments_have_at_most_100_columns() {
    let is_source = |f: &String| [".rs", ".c", ".h"].iter().any(|end| f.ends_with(end));
    let sources = files().into_iter().filter(is_source);
    let mut comments = 0;
    let mut long: Vec<String> = Vec::new();
    for file in sources {
        let text = fs::read_to_string(root().join(&file)).expect("a source file");
        for (at, line) in (1..).zip(text.lines()) {
            let code = line.trim_start();
            let is_comment = ["//", "/*", "* "].iter().any(|begin| code.starts_with(begin));
            // Only C has tabs.
            let columns = line.chars().count() + 7 * line.matches('\t').count();
            if is_comment {
                comments += 1;
                if columns > COLUMNS_MAX {
                    long.push(format!("{file}:{at}"));
                }
            }
        }
    }
    assert!(comments > 10_000, "{comments}");
    assert!(long.is_empty(), "wrap at {COLUMNS_MAX}: {long:#?}");
}

#[test]
fn rows_of_tables_are_short() {
    for (file, text) in pages() {
        for (at, row) in prose(&text).filter(|(_, line)| line.starts_with('|')) {
            let words = words(row);
            assert!(
                words <= ROW_WORDS_MAX,
                "{file}:{at}: a row of {words} words is a paragraph or a list"
            );
        }
    }
}

#[test]
fn the_readme_is_short() {
    let readme = fs::read_to_string(root().join("README.md")).expect("README.md");
    let lines = readme.lines().count();
    assert!(lines <= README_LINES_MAX, "{lines} lines");
    for target in ["make demo", "make test"] {
        let near = readme.lines().take(10).any(|line| line.contains(target));
        assert!(near, "`{target}` is not near the top");
    }
}

#[test]
fn what_is_too_long_is_told_from_what_cannot_be_broken() {
    let long = "word ".repeat(25);
    assert!(is_too_long(&long));
    assert!(is_too_long(&format!("- {long}")));
    assert!(!is_too_long(&format!("| {long} |")));
    assert!(!is_too_long(&format!("## {long}")));
    assert!(!is_too_long(&format!("- [{long}](page.md#part).")));
    assert!(is_too_long(&format!("- [a page](page.md) {long}")));
    let text = format!("a\n```\n{long}\n```\nb");
    assert_eq!(prose(&text).collect::<Vec<_>>(), [(1, "a"), (5, "b")]);
    assert_eq!(words("| `kubectl get pods -A` | two words |"), 3);
}
