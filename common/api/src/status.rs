//! HTTP status codes that count as healthy, written `200` or `200-299`.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::{fmt, str::FromStr};

/// A range of HTTP status codes, both ends included, within 100 to 599 (RFC 9110 section 15).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StatusRange {
    first: u16,
    last: u16,
}

/// Why a text is no range of status codes.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "`{text}` is not a status: expected a code from 100 to 599 or a range of them, as 200 or 200-299"
)]
pub struct StatusRangeError {
    text: String,
}

impl StatusRange {
    /// From `first` to `last`, if there are such codes.
    #[must_use]
    pub fn new(first: u16, last: u16) -> Option<Self> {
        (100 <= first && first <= last && last <= 599).then_some(Self { first, last })
    }

    /// Whether `code` is one of them.
    #[must_use]
    pub fn contains(self, code: u16) -> bool {
        (self.first..=self.last).contains(&code)
    }
}

impl FromStr for StatusRange {
    type Err = StatusRangeError;

    fn from_str(text: &str) -> Result<Self, StatusRangeError> {
        // Three digits each: `parse` alone would take `+200` and `0200` too.
        let code = |text: &str| -> Option<u16> {
            (text.len() == 3 && text.bytes().all(|b| b.is_ascii_digit()))
                .then(|| text.parse().ok())
                .flatten()
        };
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        code(first)
            .zip(code(last))
            .and_then(|(first, last)| Self::new(first, last))
            .ok_or_else(|| StatusRangeError { text: text.chars().take(40).collect() })
    }
}

impl fmt::Display for StatusRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}-{}", self.first, self.last)
        }
    }
}

impl Serialize for StatusRange {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for StatusRange {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// A single code may be written as a number too: YAML reads an unquoted 200 as one.
        struct Text;
        impl serde::de::Visitor<'_> for Text {
            type Value = StatusRange;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a status code or a range of them, as 200 or 200-299")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<StatusRange, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: serde::de::Error>(self, code: u64) -> Result<StatusRange, E> {
                self.visit_str(&code.to_string())
            }

            fn visit_i64<E: serde::de::Error>(self, code: i64) -> Result<StatusRange, E> {
                self.visit_str(&code.to_string())
            }
        }
        deserializer.deserialize_any(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_form_round_trips_and_says_what_it_holds() {
        for (text, inside, outside) in
            [("200", 200, 201), ("200-399", 399, 400), ("100-599", 100, 600)]
        {
            let range: StatusRange = text.parse().expect(text);
            assert_eq!(range.to_string(), text);
            assert!(range.contains(inside) && !range.contains(outside), "{text}");
            let json = serde_json::to_string(&range).expect("written");
            assert_eq!(json, format!("\"{text}\""));
            assert_eq!(serde_json::from_str::<StatusRange>(&json).expect("read"), range);
        }
        let number: StatusRange = serde_json::from_str("204").expect("a number");
        assert_eq!(number.to_string(), "204");
    }

    #[test]
    fn anything_else_is_refused_with_what_was_expected() {
        for text in [
            "",
            "2",
            "99",
            "600",
            "2xx",
            "+200",
            "0200",
            "200-",
            "-200",
            "299-200",
            "200-600",
            "200 - 299",
            "200-299-300",
        ] {
            let error = text.parse::<StatusRange>().expect_err(text).to_string();
            assert!(error.contains("expected a code from 100 to 599"), "{error}");
        }
        for json in ["-200", "1000", "2.5", "true", "null"] {
            assert!(serde_json::from_str::<StatusRange>(json).is_err(), "{json}");
        }
    }
}
