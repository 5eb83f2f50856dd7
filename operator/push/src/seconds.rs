//! A moment on the calendar, in whole seconds: what certificates and key ages are written in.

use serde::{Deserialize, Serialize};
use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// Seconds since 1970-01-01T00:00:00Z. Shown as RFC 3339.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UnixSeconds(pub i64);

impl UnixSeconds {
    /// That much later.
    #[must_use]
    pub fn plus(self, span: Duration) -> Self {
        Self(self.0.saturating_add(seconds(span)))
    }

    /// That much earlier.
    #[must_use]
    pub fn minus(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(seconds(span)))
    }

    /// The time from `earlier` to this one; nothing if that is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        let span = self.0.saturating_sub(earlier.0);
        Duration::from_secs(u64::try_from(span).unwrap_or(0))
    }
}

fn seconds(span: Duration) -> i64 {
    i64::try_from(span.as_secs()).unwrap_or(i64::MAX)
}

impl From<SystemTime> for UnixSeconds {
    fn from(time: SystemTime) -> Self {
        match time.duration_since(UNIX_EPOCH) {
            Ok(after) => Self(seconds(after)),
            Err(before) => Self(-seconds(before.duration())),
        }
    }
}

impl fmt::Display for UnixSeconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let written = OffsetDateTime::from_unix_timestamp(self.0)
            .ok()
            .and_then(|time| time.format(&Rfc3339).ok());
        match written {
            Some(text) => f.write_str(&text),
            None => write!(f, "{} s after 1970", self.0),
        }
    }
}
