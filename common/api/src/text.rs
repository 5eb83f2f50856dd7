//! Texts of others in messages of ours.
//!
//! Owns how much of one is shown, and as what. Never decides whether it is good.

use std::borrow::Cow;

/// A wrong text in an error: no control characters, no pages of it.
pub(crate) fn shortened(text: &str) -> String {
    const MAX: usize = 60;
    let mut shown: String = text.escape_debug().take(MAX).collect();
    if text.escape_debug().nth(MAX).is_some() {
        shown.push('…');
    }
    shown
}

/// `text` with escapes for what a terminal obeys: control characters, and those that turn the
/// direction of writing around. Annotations, messages of Pods and what a program in one says are
/// anybody's, and so are names in EndpointSlices.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    let obeyed =
        |c: char| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    if !text.contains(obeyed) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match obeyed(c) {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    shown.into()
}
