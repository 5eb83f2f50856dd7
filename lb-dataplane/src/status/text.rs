//! Lines and paragraphs for people, at most 80 columns wide.

use super::table::WIDTH_MAX;
use std::fmt::Write as _;

/// One line, as it is.
pub fn line(text: &mut String, content: &str) {
    // Writing into a string cannot fail.
    let _ = writeln!(text, "{content}");
}

/// One paragraph of at most 80 columns, its further lines under its first word.
pub fn wrapped(text: &mut String, lead: &str, content: &str) {
    let mut current = lead.to_owned();
    let indent = " ".repeat(lead.chars().count());
    let mut empty = true;
    for word in content.split_whitespace() {
        let width = current.chars().count() + usize::from(!empty) + word.chars().count();
        if !empty && width > WIDTH_MAX {
            line(text, &current);
            current.clone_from(&indent);
            empty = true;
        }
        if !empty {
            current.push(' ');
        }
        current.push_str(word);
        empty = false;
    }
    line(text, &current);
}
