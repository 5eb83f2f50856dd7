//! The definitions as they are installed: what the types give, tidied, and its YAML.
//!
//! Owns what differs from `LoadBalancerPolicy::crd()`: always take the definitions from here.

use crate::{BatonDataplane, LoadBalancerPolicy};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::{Value, json};

/// Characters of an object's name. With a namespace's 63, a listener's 15 and what stands between
/// them, a dataplane's name of a policy has up to 143 (`baton_api::LIMIT_NAME_BYTES`).
const NAME_MAX: usize = 63;

/// Why the types make no definition. The tests of this crate rule it out, so it is a bug of Baton.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// As JSON.
    #[error("the types make no definition: {0}")]
    Json(#[from] serde_json::Error),
    /// As YAML.
    #[error("the definition cannot be written as YAML: {0}")]
    Yaml(#[from] serde_saphyr::ser::Error),
}

/// One definition as a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefinitionFile {
    /// Its name, as `baton.dev_loadbalancerpolicies.yaml`.
    pub name: String,
    /// Its content.
    pub yaml: String,
}

/// Every definition, by the name of its plural.
///
/// # Errors
/// See [`GenerateError`].
pub fn definitions() -> Result<Vec<CustomResourceDefinition>, GenerateError> {
    let definitions = values()?.into_iter().map(serde_json::from_value);
    Ok(definitions.collect::<Result<_, _>>()?)
}

/// Every definition as a YAML file.
///
/// # Errors
/// See [`GenerateError`].
pub fn files() -> Result<Vec<DefinitionFile>, GenerateError> {
    let file = |value: &Value| {
        let text = |at: &str| value.pointer(at).and_then(Value::as_str).unwrap_or_default();
        let name = format!("{}_{}.yaml", text("/spec/group"), text("/spec/names/plural"));
        let yaml = serde_saphyr::to_string(value)?;
        let yaml = format!("# Written by `make generate` from the types in crds/src.\n---\n{yaml}");
        Ok(DefinitionFile { name, yaml })
    };
    values()?.iter().map(file).collect()
}

/// Every definition as the JSON that it is sent as.
pub(crate) fn values() -> Result<Vec<Value>, GenerateError> {
    let tidied = |definition: CustomResourceDefinition| {
        let mut value = serde_json::to_value(definition)?;
        tidy(&mut value);
        let schema = "/spec/versions/0/schema/openAPIV3Schema/properties";
        if let Some(Value::Object(properties)) = value.pointer_mut(schema) {
            properties.insert("metadata".to_owned(), metadata());
        }
        Ok(value)
    };
    [BatonDataplane::crd(), LoadBalancerPolicy::crd()].into_iter().map(tidied).collect()
}

/// What is said of an object's metadata: only the names, and nothing else, not
/// even a description, may be in a schema.
fn metadata() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": {
                "type": "string",
                "description": "The name of the object, which is part of other names.",
                "maxLength": NAME_MAX,
            },
        },
    })
}

/// Takes out what only the way through Rust put in.
fn tidy(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            // The API server takes a null in a field that is not nullable for an absent one, so
            // that rules and defaults need to know only one way of leaving a field out. A field of
            // the name `nullable` would be an object.
            if fields.get("nullable") == Some(&Value::Bool(true)) {
                fields.remove("nullable");
            }
            // The lines of a comment are no lines of what it says.
            if let Some(Value::String(description)) = fields.get_mut("description") {
                *description = description.replace('\n', " ");
            }
            fields.values_mut().for_each(tidy);
        }
        Value::Array(items) => items.iter_mut().for_each(tidy),
        // Bounds are floating-point numbers in the definition's own type.
        Value::Number(number) => {
            if let Some(whole) = number.as_f64().and_then(whole) {
                *number = whole.into();
            }
        }
        _ => {}
    }
}

/// A number without a fraction that fits in 32 bits, as every bound here does.
fn whole(number: f64) -> Option<i64> {
    let fits = number.fract() == 0.0 && number.abs() <= f64::from(i32::MAX);
    fits.then_some(number as i64)
}
