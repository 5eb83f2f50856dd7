//! Since when each adoption key is there. Owns the text that keeps it; no secret is in it.

use crate::UnixSeconds;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Since when keys are as they are. Kept as JSON beside the keys, in an annotation or a file; if it
/// is lost, keys count as new.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Ages {
    /// When each epoch's key was made.
    pub made: BTreeMap<u8, UnixSeconds>,
    /// Since when the current key is the current one.
    pub current_since: Option<UnixSeconds>,
    /// The last request for a rotation that was served (any text, such as a date).
    pub served: Option<String>,
    /// Excluded nodes that were when a key was made last: they never had that one.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub excluded: BTreeSet<String>,
}

/// Why the text is not one of ages.
#[derive(Debug, thiserror::Error)]
#[error(
    "the ages of the adoption keys cannot be read: {0}; all keys count as made now, which postpones their rotation"
)]
pub struct AgesError(#[from] serde_json::Error);

impl Ages {
    /// From its text.
    ///
    /// # Errors
    /// The text is not one of ages: go on with the default, and warn.
    pub fn from_text(text: &str) -> Result<Self, AgesError> {
        Ok(serde_json::from_str(text)?)
    }

    /// As it is kept.
    #[must_use]
    pub fn to_text(&self) -> String {
        // Numbers and one text: nothing that JSON cannot say.
        serde_json::to_string(self).unwrap_or_default()
    }
}
