//! Did-you-mean suggestions: what was probably meant by a name that is not possible.

/// Edits that turn a word into the one that was meant.
const EDITS_MAX: usize = 3;

/// The possible word that was probably meant.
pub fn nearest<'a>(written: &str, possible: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let distance =
        |word: &str| strsim::damerau_levenshtein(&written.to_lowercase(), &word.to_lowercase());
    possible
        .into_iter()
        .map(|word| (distance(word), word))
        .min()
        // A short word is not made of edits alone.
        .filter(|(edits, word)| *edits <= EDITS_MAX && edits * 2 <= word.len())
        .map(|(_, word)| word)
}

/// `expected X` if one was probably meant, else all that are possible.
pub fn expected(written: &str, possible: &[&str]) -> String {
    match (nearest(written, possible.iter().copied()), possible) {
        (Some(word), _) => format!("expected `{word}`"),
        (None, []) => "expected nothing".to_owned(),
        (None, [""]) => "expected \"\"".to_owned(),
        (None, words) => format!("expected {}", words.join(", ")),
    }
}

/// A wrong text in a message: no pages of it.
pub fn shortened(text: &str) -> String {
    const MAX: usize = 60;
    let mut shown: String = text.chars().take(MAX).collect();
    if text.chars().nth(MAX).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_the_word_and_another_word_none() {
        let words = ["ratioPercent", "cooldown", "gain", "mode"];
        for (slip, word) in [
            ("ratioPercnt", "ratioPercent"),
            ("RatioPercent", "ratioPercent"),
            ("coolDown", "cooldown"),
            ("gian", "gain"),
        ] {
            assert_eq!(nearest(slip, words), Some(word));
        }
        assert_eq!(nearest("timeout", words), None);
        assert_eq!(nearest("xyzw", words), None);
        assert_eq!(expected("x", &["a", "b"]), "expected a, b");
        assert_eq!(expected("x", &[""]), "expected \"\"");
    }

    #[test]
    fn a_long_text_is_shortened() {
        assert_eq!(shortened("short"), "short");
        assert_eq!(shortened(&"ä".repeat(61)), format!("{}…", "ä".repeat(60)));
    }
}
