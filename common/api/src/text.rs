//! Texts of others in messages of ours.
//!
//! Owns how much of one is shown. Never decides whether it is good.

/// A wrong text in an error: no control characters, no pages of it.
pub(crate) fn shortened(text: &str) -> String {
    const MAX: usize = 60;
    let mut shown: String = text.escape_debug().take(MAX).collect();
    if text.escape_debug().nth(MAX).is_some() {
        shown.push('…');
    }
    shown
}
