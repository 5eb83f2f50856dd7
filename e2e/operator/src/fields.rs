//! Which fields a definition has, and which of them objects set to something else than the default.

use serde_json::Value;
use std::collections::BTreeMap;

/// A field that holds no other fields.
#[derive(Clone, Debug, PartialEq)]
pub struct Leaf {
    /// What the server puts there.
    pub default: Option<Value>,
    /// All words that it may be, if it is one of some.
    pub words: Vec<Value>,
}

/// All leaf fields of a structural schema below a path, by their paths: `spec.listeners[].port`.
/// The values of a map count as one leaf, `spec.selector.matchLabels`.
#[must_use]
pub fn leaves(schema: &Value, path: &str) -> BTreeMap<String, Leaf> {
    let mut found = BTreeMap::new();
    collect(schema, path, &mut found);
    found
}

fn collect(schema: &Value, path: &str, found: &mut BTreeMap<String, Leaf>) {
    if let Some(fields) = schema["properties"].as_object() {
        for (name, below) in fields {
            collect(below, &format!("{path}.{name}"), found);
        }
    } else if schema["items"].is_object() {
        collect(&schema["items"], &format!("{path}[]"), found);
        if let Some(leaf) = found.get_mut(&format!("{path}[]")) {
            leaf.default = schema.get("default").cloned();
        }
    } else {
        let words = schema["enum"].as_array().cloned().unwrap_or_default();
        let default = schema.get("default").cloned();
        found.insert(path.to_owned(), Leaf { default, words });
    }
}

/// All values that objects have at the path of a leaf. A list of plain values is one value.
#[must_use]
pub fn values<'a>(objects: &'a [Value], path: &str) -> Vec<&'a Value> {
    let mut at: Vec<&Value> = objects.iter().collect();
    let mut steps = path.split('.').peekable();
    while let Some(step) = steps.next() {
        let name = step.strip_suffix("[]").unwrap_or(step);
        at = at.into_iter().filter_map(|value| value.get(name)).collect();
        if step.ends_with("[]") && steps.peek().is_some() {
            at = at.into_iter().flat_map(|value| value.as_array().into_iter().flatten()).collect();
        }
    }
    at
}

/// What objects leave out: leaves that none of them sets to something else than the default, and
/// words that none has.
#[must_use]
pub fn missing(leaves: &BTreeMap<String, Leaf>, objects: &[Value]) -> Vec<String> {
    let mut missing = Vec::new();
    for (path, leaf) in leaves {
        let values = values(objects, path);
        let list = path.ends_with("[]");
        let has = |word: &Value| match list {
            true => values.iter().any(|v| v.as_array().is_some_and(|v| v.contains(word))),
            false => values.contains(&word),
        };
        let words = leaf.words.iter().filter(|word| !has(word));
        missing.extend(words.map(|word| format!("{path}: {word}")));
        // Of one word there is nothing else to be.
        let other = values.iter().any(|v| Some(*v) != leaf.default.as_ref());
        if !other && leaf.words.len() != 1 {
            missing.push(path.clone());
        }
    }
    missing
}
