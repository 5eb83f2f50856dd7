//! Values that are written as text: durations, status codes, the port of a Service.
//!
//! Owns their form in the schema. A text of the wrong form is kept as it is: the API server refuses
//! it, and one object that an older schema let in must not stop the operator from reading all the
//! others.

use baton_api::{DurationError, Micros};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, fmt};

/// A duration as GEP-2257 has it, and `us` besides. Four times five digits of hours stay below what
/// CEL's `duration()` can hold (292 years).
const DURATION: &str = "^([0-9]{1,5}(h|m|s|ms|us)){1,4}$";
/// Status codes.
const STATUS_CODES: &str = "^[1-5][0-9]{2}(-[1-5][0-9]{2})?$";
/// A port, or a range of them.
pub(crate) const PORT_RANGE: &str = "^[1-9][0-9]{0,4}(-[1-9][0-9]{0,4})?$";
/// A DNS label (RFC 1123).
pub(crate) const NAME: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
/// A path: what RFC 3986 wants escaped, and what would end the path, is not in it.
pub(crate) const PATH: &str = r"^/[!$-;=?-\[\]_a-z~]*$";
/// A host and maybe a port, by the same rule.
pub(crate) const HOST: &str = r"^[!$-.0-;=A-\[\]_a-z~]+$";
/// A label's value.
const LABEL_VALUE: &str = "^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$";
/// The name of a label or an annotation.
const QUALIFIED_NAME: &str =
    "^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$";

/// What a text of this pattern looks like, for people.
pub(crate) fn form(pattern: &str) -> Option<&'static str> {
    let form = match pattern {
        DURATION => "numbers of up to five digits with units, as 250us, 20ms, 5s, 1m30s or 1h",
        STATUS_CODES => "a code from 100 to 599 or a range of them, as 200 or 200-299",
        NAME => "small letters, digits and `-`, not `-` at an end",
        PATH => "`/` and visible ASCII characters, others as %20",
        HOST => "a host, as example.org or example.org:8080",
        LABEL_VALUE => "letters, digits, `-`, `_` and `.`, letters or digits at the ends",
        QUALIFIED_NAME => {
            "a key as example.org/weight: before the `/` a DNS name, behind it up to 63 letters, digits, `-`, `_` and `.`"
        }
        PORT_RANGE => "a port or a range of them, as 8080 or 8000-8999",
        _ => return None,
    };
    Some(form)
}

/// Four times five digits and a unit.
const DURATION_LENGTH_MAX: u32 = 28;

/// A span of time: up to four numbers of up to five digits, each with its unit, as `250us`, `20ms`,
/// `5s`, `1m30s` or `1h`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Duration(pub String);

impl Duration {
    /// What the text stands for.
    ///
    /// # Errors
    /// It is no duration. The API server lets no such text in.
    pub fn micros(&self) -> Result<Micros, DurationError> {
        self.0.parse()
    }
}

impl From<Micros> for Duration {
    fn from(micros: Micros) -> Self {
        Self(micros.to_string())
    }
}

impl From<&str> for Duration {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl JsonSchema for Duration {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "pattern": DURATION,
            "maxLength": DURATION_LENGTH_MAX,
        })
    }
}

/// An HTTP status code, or a range of them with both ends: `200` or `200-299`. Always a string, so
/// quoted in YAML where it is a single code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StatusCodes(pub String);

impl JsonSchema for StatusCodes {
    fn schema_name() -> Cow<'static, str> {
        "StatusCodes".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "pattern": STATUS_CODES,
            "maxLength": 7,
        })
    }
}

/// A port of a Service, by number or by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ServicePort {
    /// `spec.ports[].port`.
    Number(i32),
    /// `spec.ports[].name`.
    Name(String),
}

impl fmt::Display for ServicePort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl JsonSchema for ServicePort {
    fn schema_name() -> Cow<'static, str> {
        "ServicePort".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        // Bounds of numbers say nothing about strings and the other way round, so both can stand
        // beside each other. CEL could not bound the string: its cost estimate takes such a field
        // for as long as a whole request.
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "minimum": 1,
            "maximum": 65535,
            "pattern": NAME,
            "maxLength": 63,
        })
    }
}

/// Labels of one selector: more than anybody tells classes apart by.
const LABELS_MAX: u32 = 16;

/// Labels to match. A name that is no label's matches nothing, which a condition reports.
pub(crate) fn label_map(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": LABELS_MAX,
        "additionalProperties": {
            "type": "string",
            "maxLength": 63,
            "pattern": LABEL_VALUE,
        },
    })
}

/// The name of a label or an annotation: up to 63 characters, and before them, with a `/`, a DNS
/// name of up to 253.
pub(crate) fn qualified_name(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "minLength": 1,
        "maxLength": 253 + 1 + 63,
        "pattern": QUALIFIED_NAME,
    })
}

/// The same, at least one.
pub(crate) fn label_map_some(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = label_map(generator);
    schema.insert("minProperties".to_owned(), 1.into());
    schema
}
