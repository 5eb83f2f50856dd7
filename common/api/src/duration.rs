//! A span of time in microseconds, written with a unit.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::{fmt, str::FromStr};

/// A span of time in whole microseconds. Text form: a number and one of `us`, `ms`, `s`, `m`, `h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Micros(pub u64);

/// Why a text is not a duration.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "`{text}` is not a duration: expected a whole number and a unit, as 250us, 20ms, 5s, 2m or 1h"
)]
pub struct DurationError {
    text: String,
}

const UNITS: [(&str, u64); 5] = [
    ("us", 1),
    ("ms", 1_000),
    ("s", 1_000_000),
    ("m", 60_000_000),
    ("h", 3_600_000_000),
];

impl Micros {
    /// From whole milliseconds.
    #[must_use]
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms * 1_000)
    }

    /// From whole seconds.
    #[must_use]
    pub const fn from_secs(s: u64) -> Self {
        Self(s * 1_000_000)
    }
}

impl FromStr for Micros {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, DurationError> {
        let refuse = || DurationError {
            text: text.to_owned(),
        };
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let value: u64 = text[..digits].parse().map_err(|_| refuse())?;
        let (_, scale) = UNITS
            .iter()
            .find(|(unit, _)| *unit == &text[digits..])
            .ok_or_else(refuse)?;
        value.checked_mul(*scale).map(Self).ok_or_else(refuse)
    }
}

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, scale) = UNITS
            .iter()
            .rev()
            .find(|(_, scale)| self.0 != 0 && self.0.is_multiple_of(*scale))
            .unwrap_or(&UNITS[0]);
        write!(f, "{}{unit}", self.0 / scale)
    }
}

impl Serialize for Micros {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Micros {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_form_round_trips() {
        for text in ["0us", "250us", "20ms", "5s", "2m", "1h", "1500ms"] {
            assert_eq!(text.parse::<Micros>().expect(text).to_string(), text);
        }
        for text in [
            "",
            "5",
            "ms",
            "-1s",
            "1 s",
            "5d",
            "99999999999999999999s",
            "9999999999999999h",
        ] {
            assert!(text.parse::<Micros>().is_err(), "{text}");
        }
    }
}
