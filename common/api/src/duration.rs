//! A span of time in microseconds, written with a unit.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::{fmt, str::FromStr};

/// A span of time in whole microseconds. Text form: a number and one of `us`, `ms`, `s`, `m`, `h`,
/// up to four times, as `1m30s`: Kubernetes' GEP-2257, and `us` besides. Written with one unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Micros(pub u64);

/// Why a text is not a duration.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "`{text}` is not a duration: expected whole numbers with units, as 250us, 20ms, 5s, 1m30s or 1h"
)]
pub struct DurationError {
    text: String,
}

/// As many parts as GEP-2257 has.
const LIMIT_PARTS: usize = 4;

const UNITS: [(&str, u64); 5] =
    [("us", 1), ("ms", 1_000), ("s", 1_000_000), ("m", 60_000_000), ("h", 3_600_000_000)];

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
        let refuse = || DurationError { text: text.to_owned() };
        let (mut rest, mut all) = (text, 0_u64);
        for _ in 0..LIMIT_PARTS {
            let (micros, behind) = part(rest).ok_or_else(refuse)?;
            all = all.checked_add(micros).ok_or_else(refuse)?;
            rest = behind;
            if rest.is_empty() {
                return Ok(Self(all));
            }
        }
        Err(refuse())
    }
}

/// The first number with its unit, and what is behind them.
fn part(text: &str) -> Option<(u64, &str)> {
    let (number, rest) = split(text, u8::is_ascii_digit);
    let (unit, rest) = split(rest, u8::is_ascii_alphabetic);
    let (_, scale) = UNITS.iter().find(|(known, _)| *known == unit)?;
    Some((number.parse::<u64>().ok()?.checked_mul(*scale)?, rest))
}

fn split(text: &str, belongs: impl Fn(&u8) -> bool) -> (&str, &str) {
    text.split_at(text.bytes().take_while(belongs).count())
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
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
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
        for (text, sum) in [
            ("1m30s", "90s"),
            ("1h0m0s", "1h"),
            ("1s500ms250us", "1500250us"),
            ("1h1m1s1ms", "3661001ms"),
        ] {
            assert_eq!(text.parse::<Micros>().expect(text).to_string(), sum);
        }
        for text in [
            "",
            "5",
            "1m30",
            "1m 30s",
            "m30s",
            "1h1m1s1ms1us",
            "1é",
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
