//! How things are said to people: lists that end, texts that end.

use crate::{LIMIT_MESSAGE_CHARS, LIMIT_NAMES_SHOWN};
use std::fmt::Display;

/// The first few of many.
pub(crate) fn few<T: Display>(all: impl IntoIterator<Item = T>, separator: &str) -> String {
    let mut all = all.into_iter();
    let shown: Vec<String> = all
        .by_ref()
        .take(LIMIT_NAMES_SHOWN)
        .map(|one| one.to_string())
        .collect();
    let mut text = shown.join(separator);
    let rest = all.count();
    if rest > 0 {
        text.push_str(&format!(" and {rest} more"));
    }
    text
}

/// `1 pod`, `2 pods`.
pub(crate) fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// `1 pod is`, `2 pods are`.
pub(crate) fn is_or_are(number: usize, what: &str) -> String {
    let verb = if number == 1 { "is" } else { "are" };
    format!("{} {verb}", count(number, what))
}

/// Not more than anybody reads.
pub(crate) fn bounded(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(LIMIT_MESSAGE_CHARS - 1)
        && end + 1 < text.len()
    {
        text.truncate(end);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_texts_end() {
        assert_eq!(few(["a", "b"], ", "), "a, b");
        assert_eq!(few(0..10, ", "), "0, 1, 2 and 7 more");
        assert_eq!(bounded("short".into()), "short");
        let exact = "ä".repeat(LIMIT_MESSAGE_CHARS);
        assert!(bounded(exact).chars().count() <= LIMIT_MESSAGE_CHARS);
        let long = bounded("ä".repeat(5 * LIMIT_MESSAGE_CHARS));
        assert_eq!(long.chars().count(), LIMIT_MESSAGE_CHARS);
        assert!(long.ends_with('…'));
    }
}
