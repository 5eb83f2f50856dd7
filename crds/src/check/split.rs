//! The documents of a YAML text, each with the lines before it.
//!
//! A line that begins with `---` begins a document, wherever it stands (YAML 1.2 section 9.1.2): no
//! text in a document can have such a line, so none has to be read to find them.

/// A document.
#[derive(Debug, PartialEq, Eq)]
pub struct Part<'a> {
    /// Its text, with the line that begins it.
    pub text: &'a str,
    /// Lines of the file before its text.
    pub lines_before: u64,
}

/// Every document that has any content.
pub fn documents(text: &str) -> impl Iterator<Item = Part<'_>> {
    let mut starts = vec![(0, 0)];
    let mut offset = 0;
    for (number, line) in (0..).zip(text.split_inclusive('\n')) {
        if begins(line) && offset != 0 {
            starts.push((offset, number));
        }
        offset += line.len();
    }
    let ends: Vec<usize> = starts.iter().skip(1).map(|(start, _)| *start).collect();
    let ends = ends.into_iter().chain([text.len()]);
    let parts = starts.into_iter().zip(ends);
    parts
        .map(|((start, lines_before), end)| Part { text: &text[start..end], lines_before })
        .filter(|part| part.text.lines().any(has_content))
}

fn begins(line: &str) -> bool {
    line.strip_prefix("---")
        .is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']))
}

/// Not a comment, a directive or the bare begin of a document.
fn has_content(line: &str) -> bool {
    let line = line.strip_prefix("---").unwrap_or(line).trim();
    !line.is_empty() && !line.starts_with(['#', '%']) && line != "..." && line != "\u{feff}"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Vec<(&str, u64)> {
        documents(text).map(|p| (p.text, p.lines_before)).collect()
    }

    #[test]
    fn documents_begin_at_their_lines() {
        assert_eq!(of("a: 1\n---\nb: 2\n"), [("a: 1\n", 0), ("---\nb: 2\n", 1)]);
        assert_eq!(of("---\na: 1\n--- {b: 2}\n"), [("---\na: 1\n", 0), ("--- {b: 2}\n", 2)]);
        assert_eq!(of("a: 1\r\n---\r\nb: 2"), [("a: 1\r\n", 0), ("---\r\nb: 2", 1)]);
    }

    #[test]
    fn what_only_looks_like_a_begin_is_none() {
        assert_eq!(of("a: |\n  ---\n  text\n").len(), 1);
        assert_eq!(of("----\n").len(), 1);
        assert_eq!(of("a: 1\n---x: 2\n").len(), 1);
    }

    #[test]
    fn documents_without_content_are_none() {
        assert_eq!(of(""), []);
        assert_eq!(of("# a comment\n---\n---\n  # another\n...\n"), []);
        assert_eq!(of("%YAML 1.2\n---\na: 1\n"), [("---\na: 1\n", 1)]);
    }
}
