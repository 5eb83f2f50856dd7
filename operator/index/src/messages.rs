//! How things are said to people: the content of conditions, lists that end, texts that end.

use crate::{LIMIT_MESSAGE_CHARS, LIMIT_NAMES_SHOWN, Reason, Status};
use baton_api::printable;
use std::{
    borrow::Cow,
    fmt::{self, Display},
};

/// Status, reason and message of a condition.
pub(crate) type Said = (Status, Reason, String);

pub(crate) fn said(status: Status, reason: Reason, message: impl Into<String>) -> Said {
    (status, reason, message.into())
}

/// What is said of a policy that cannot be judged.
pub(crate) fn internal_error(what: &str) -> Said {
    let message = format!(
        "the operator failed at this policy, which is a bug of it ({what}): report it with the operator's log; what the \
         dataplanes have of the policy stays as it is"
    );
    said(Status::False, Reason::InternalError, message)
}

/// The first few of many.
pub(crate) fn few<T: Display>(all: impl IntoIterator<Item = T>, separator: &str) -> String {
    let mut all = all.into_iter();
    let shown: Vec<String> =
        all.by_ref().take(LIMIT_NAMES_SHOWN).map(|one| one.to_string()).collect();
    let mut text = shown.join(separator);
    let rest = all.count();
    if rest > 0 {
        text.push_str(&format!(" and {rest} more"));
    }
    text
}

/// What holds of which, each reason once: as many reasons as [`few`] shows, and how many are left
/// out.
#[derive(Debug, Default)]
pub(crate) struct Reasons<'a> {
    groups: Vec<(String, Vec<&'a str>)>,
    left_out: usize,
}

impl<'a> Reasons<'a> {
    pub(crate) fn add(&mut self, name: &'a str, reason: String) {
        if let Some((_, names)) = self.groups.iter_mut().find(|(known, _)| *known == reason) {
            names.push(name);
        } else if self.groups.len() < LIMIT_NAMES_SHOWN {
            self.groups.push((reason, vec![name]));
        } else {
            self.left_out += 1;
        }
    }

    /// Of how many something holds.
    pub(crate) fn len(&self) -> usize {
        self.groups.iter().map(|(_, n)| n.len()).sum::<usize>() + self.left_out
    }
}

impl Display for Reasons<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (reason, names)) in self.groups.iter().enumerate() {
            let before = if at == 0 { "" } else { "; " };
            write!(f, "{before}{}: {reason}", few(names, ", "))?;
        }
        match self.left_out {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
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

/// Not more than anybody reads, and nothing that a terminal obeys: values and names of others are
/// quoted in it.
pub(crate) fn bounded(text: String) -> String {
    let mut text = match printable(&text) {
        Cow::Borrowed(_) => text,
        Cow::Owned(shown) => shown,
    };
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
    fn each_reason_is_said_once_and_few_are() {
        let mut reasons = Reasons::default();
        assert_eq!((reasons.len(), reasons.to_string().as_str()), (0, ""));
        for (name, reason) in
            [("a", "x"), ("b", "y"), ("c", "x"), ("d", "z"), ("e", "w"), ("f", "y")]
        {
            reasons.add(name, reason.into());
        }
        assert_eq!(reasons.len(), 6);
        assert_eq!(reasons.to_string(), "a, c: x; b, f: y; d: z; and 1 more");
    }

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
        assert_eq!(bounded("a\x1b[2J\nb".into()), r"a\u{1b}[2J\nb");
    }
}
