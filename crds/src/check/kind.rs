//! One kind with its compiled rules, and which kind an object is of.

use super::{metadata, schema, suggestions::nearest};
use crate::{GROUP, VERSION};
use kube::core::cel::{CompiledSchema, Validator, compile_schema};
use serde_json::{Map, Value, json};

/// A kind of this crate.
pub struct Kind {
    name: String,
    namespaced: bool,
    schema: Value,
    rules: CompiledSchema,
}

/// What an object is.
pub enum Choice<'a> {
    /// Of one of the kinds.
    Ours(&'a Kind),
    /// Somebody else's.
    Other,
    /// Meant to be of one of the kinds; the field that is wrong, and how.
    Mistaken(&'static str, String),
}

/// The kind of an object by its `apiVersion` and `kind`.
pub fn find<'a>(kinds: &'a [Kind], version: &str, name: &str) -> Choice<'a> {
    let ours = format!("{GROUP}/{VERSION}");
    let names = || kinds.iter().map(|kind| kind.name.as_str());
    let kind = kinds.iter().find(|kind| kind.name == name);
    let (group, _) = version.split_once('/').unwrap_or(("", version));
    match kind {
        Some(kind) if version == ours => Choice::Ours(kind),
        // Another project may have a kind of the same name, but not with a group like ours or
        // without any.
        Some(_) if group == GROUP || group.is_empty() || nearest(version, [&*ours]).is_some() => {
            let problem = format!("`{version}` has no {name}: expected {ours}");
            Choice::Mistaken("apiVersion", problem)
        }
        None if group == GROUP => {
            let meant = nearest(name, names()).map(|name| format!("`{name}`"));
            let meant = meant.unwrap_or_else(|| names().collect::<Vec<_>>().join(" or "));
            Choice::Mistaken("kind", format!("`{name}` is no kind of {GROUP}: expected {meant}"))
        }
        _ => Choice::Other,
    }
}

impl Kind {
    /// From its definition.
    pub fn new(definition: &Value) -> Self {
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        Self {
            name: definition["spec"]["names"]["kind"].as_str().unwrap_or_default().to_owned(),
            namespaced: definition["spec"]["scope"] == "Namespaced",
            schema: root(schema),
            rules: compile_schema(schema),
        }
    }

    /// What is wrong with an object of this kind, by field.
    pub fn problems(&self, object: &Value, validator: &Validator) -> Vec<(String, String)> {
        let mut object = without_nulls(object);
        // The API server takes the status from nobody but who writes to it alone.
        if let Some(fields) = object.as_object_mut() {
            fields.remove("status");
        }
        let mut problems = metadata::problems(&object["metadata"], self.namespaced);
        schema::walk(&self.schema, &object, "", &mut problems);
        if problems.is_empty() {
            let broken = validator.validate_compiled(&self.rules, &object, None);
            let broken = broken.err().into_iter().flat_map(IntoIterator::into_iter);
            problems.extend(broken.map(|rule| (rule.field_path, rule.message)));
        }
        problems
    }
}

/// The schema of an object's own fields, with those that the definition need not name.
fn root(schema: &Value) -> Value {
    let mut properties = Map::from_iter([
        ("apiVersion".to_owned(), json!({"type": "string"})),
        ("kind".to_owned(), json!({"type": "string"})),
    ]);
    let own = schema["properties"].as_object();
    properties.extend(own.cloned().unwrap_or_default());
    // Its other fields are checked apart from the schema.
    if let Some(metadata) = properties.get_mut("metadata") {
        metadata["x-kubernetes-preserve-unknown-fields"] = true.into();
    }
    json!({"type": "object", "required": schema["required"], "properties": properties})
}

/// The API server takes a null in a field for the field's absence.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, value)| (name.clone(), without_nulls(value)))
            .collect(),
        Value::Array(items) => items.iter().map(without_nulls).collect(),
        scalar => scalar.clone(),
    }
}
