//! How rules of the Common Expression Language get into a schema.
//!
//! Owns their form: each has a message for people and a reason for programs. Which rules there are,
//! the types say.

use serde_json::{Value, json};

/// One rule about a whole object; `field` is the one that a person has to change, as
/// `.migration.mode`.
pub fn forbidden(rule: &str, field: &str, message: &str) -> Value {
    json!({"rule": rule, "fieldPath": field, "message": message, "reason": "FieldValueForbidden"})
}

/// One rule about the value itself.
pub fn invalid(rule: &str, message: &str) -> Value {
    json!({"rule": rule, "message": message, "reason": "FieldValueInvalid"})
}

/// The rule of a duration between two others, both included.
pub fn within(min: &str, max: &str) -> Value {
    let rule =
        format!("duration(self) >= duration('{min}') && duration(self) <= duration('{max}')");
    json!([invalid(&rule, &format!("is out of range: expected {min} to {max}"))])
}

/// The same without a lower bound: no duration is below zero.
pub fn up_to(max: &str) -> Value {
    let rule = format!("duration(self) <= duration('{max}')");
    json!([invalid(&rule, &format!("is out of range: expected 0s to {max}"))])
}
