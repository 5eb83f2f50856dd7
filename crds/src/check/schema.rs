//! An object against a schema: fields, types, bounds, forms.
//!
//! Owns every keyword that the definitions use; a test says if one is used that is not known here.

use super::{
    join,
    suggestions::{expected, shortened},
};
use crate::text::form;
use regex::Regex;
use serde_json::{Map, Value};
use std::{cell::RefCell, collections::HashMap};

type Problems = Vec<(String, String)>;

/// Adds everything that is wrong with `value`, by field.
pub fn walk(schema: &Value, value: &Value, path: &str, problems: &mut Problems) {
    if !has_type(schema, value) {
        problems.push((path.to_owned(), wrong_type(schema, value)));
        return;
    }
    match value {
        Value::Object(fields) => object(schema, fields, path, problems),
        Value::Array(items) => list(schema, items, path, problems),
        Value::String(text) => self::text(schema, text, path, problems),
        Value::Number(_) => number(schema, value, path, problems),
        Value::Bool(_) | Value::Null => {}
    }
}

/// What a value is, for people.
pub fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "empty",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn is_int_or_string(schema: &Value) -> bool {
    schema["x-kubernetes-int-or-string"] == true
}

fn has_type(schema: &Value, value: &Value) -> bool {
    let whole = value.is_i64() || value.is_u64();
    match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("integer") => whole,
        Some("boolean") => value.is_boolean(),
        _ => is_int_or_string(schema) && (whole || value.is_string()),
    }
}

/// What the schema wants, for people.
fn wanted(schema: &Value) -> &'static str {
    match schema["type"].as_str() {
        Some("object") => "an object",
        Some("array") => "a list",
        Some("string") => "text",
        Some("integer") => "a whole number",
        Some("boolean") => "true or false",
        _ => "a whole number or text",
    }
}

fn wrong_type(schema: &Value, value: &Value) -> String {
    let quotes = match value {
        Value::Number(_) | Value::Bool(_) if schema["type"] == "string" => ", in quotes",
        Value::String(_) if schema["type"] == "integer" => ", without quotes",
        _ => "",
    };
    let shown = match value {
        Value::Number(_) | Value::Bool(_) => format!("`{value}` is {}", type_of(value)),
        Value::String(text) => format!("`{}` is text", shortened(text)),
        _ => format!("is {}", type_of(value)),
    };
    format!("{shown}: expected {}{quotes}", wanted(schema))
}

fn object(schema: &Value, fields: &Map<String, Value>, path: &str, problems: &mut Problems) {
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !fields.contains_key(name) {
            let wanted = wanted(&schema["properties"][name]);
            problems.push((join(path, name), format!("is missing: expected {wanted}")));
        }
    }
    let properties = schema["properties"].as_object();
    let others = &schema["additionalProperties"];
    for (name, value) in fields {
        let at = join(path, name);
        match properties.and_then(|known| known.get(name)) {
            Some(known) => walk(known, value, &at, problems),
            None if others.is_object() => walk(others, value, &at, problems),
            None if schema["x-kubernetes-preserve-unknown-fields"] == true => {}
            None => {
                let known: Vec<&str> =
                    properties.into_iter().flat_map(Map::keys).map(String::as_str).collect();
                let expected = expected(name, &known);
                problems.push((at, format!("`{}` is no field here: {expected}", shortened(name))));
            }
        }
    }
    count(schema, ["minProperties", "maxProperties"], fields.len(), path, problems);
}

fn list(schema: &Value, items: &[Value], path: &str, problems: &mut Problems) {
    count(schema, ["minItems", "maxItems"], items.len(), path, problems);
    for (i, item) in items.iter().enumerate() {
        walk(&schema["items"], item, &format!("{path}[{i}]"), problems);
    }
    // What makes items different from each other: themselves, or their keys.
    let keys: Vec<&str> = match schema["x-kubernetes-list-type"].as_str() {
        Some("set") => Vec::new(),
        Some("map") => {
            let keys = schema["x-kubernetes-list-map-keys"].as_array();
            keys.into_iter().flatten().filter_map(Value::as_str).collect()
        }
        _ => return,
    };
    let mut seen: HashMap<String, usize> = HashMap::new();
    for (i, item) in items.iter().enumerate() {
        let identity = if keys.is_empty() {
            item.to_string()
        } else {
            let values: Vec<&Value> = keys.iter().map(|key| &item[*key]).collect();
            format!("{values:?}")
        };
        if let Some(first) = seen.insert(identity, i) {
            let key = keys.first().map_or(item, |key| &item[*key]);
            let problem = format!("{key} is already in {path}[{first}]: expected each once");
            problems.push((format!("{path}[{i}]"), problem));
        }
    }
}

fn text(schema: &Value, text: &str, path: &str, problems: &mut Problems) {
    if let Some(words) = schema["enum"].as_array() {
        let words: Vec<&str> = words.iter().filter_map(Value::as_str).collect();
        if !words.contains(&text) {
            let expected = expected(text, &words);
            problems.push((
                path.to_owned(),
                format!("`{}` is not possible: {expected}", shortened(text)),
            ));
        }
    }
    let length = text.chars().count();
    let bound = |name: &str| schema[name].as_u64().and_then(|bound| usize::try_from(bound).ok());
    if bound("maxLength").is_some_and(|max| length > max) {
        let max = &schema["maxLength"];
        problems
            .push((path.to_owned(), format!("has {length} characters: expected at most {max}")));
    } else if bound("minLength").is_some_and(|min| length < min) {
        let min = &schema["minLength"];
        problems
            .push((path.to_owned(), format!("has {length} characters: expected at least {min}")));
    } else if let Some(pattern) = schema["pattern"].as_str()
        && !matches(pattern, text)
    {
        let form = form(pattern).map_or_else(|| format!("what `{pattern}` matches"), str::to_owned);
        problems.push((
            path.to_owned(),
            format!("`{}` has a wrong form: expected {form}", shortened(text)),
        ));
    }
}

/// Whether the text has the form; a pattern that cannot be read refuses everything. Compiled once
/// in each thread.
fn matches(pattern: &str, text: &str) -> bool {
    thread_local! {
        static COMPILED: RefCell<HashMap<String, Option<Regex>>> = RefCell::default();
    }
    COMPILED.with_borrow_mut(|compiled| {
        let compiled =
            compiled.entry(pattern.to_owned()).or_insert_with(|| Regex::new(pattern).ok());
        compiled.as_ref().is_some_and(|pattern| pattern.is_match(text))
    })
}

fn number(schema: &Value, value: &Value, path: &str, problems: &mut Problems) {
    // Bounds are within 32 bits, so a number that is not even in 64 is above or below all of them.
    let number = value.as_i64().unwrap_or(i64::MAX);
    let (min, max) = (schema["minimum"].as_i64(), schema["maximum"].as_i64());
    let range = match (min, max) {
        (Some(min), _) if number < min => true,
        (_, Some(max)) if number > max => true,
        _ => false,
    };
    if range {
        let shown = |bound: Option<i64>| bound.map_or_else(String::new, |bound| bound.to_string());
        let problem = format!("{value} is out of range: expected {} to {}", shown(min), shown(max));
        problems.push((path.to_owned(), problem));
    }
}

fn count(schema: &Value, [min, max]: [&str; 2], found: usize, path: &str, problems: &mut Problems) {
    let bound = |name: &str| schema[name].as_u64().and_then(|bound| usize::try_from(bound).ok());
    if let Some(max) = bound(max).filter(|max| found > *max) {
        problems.push((path.to_owned(), format!("has {found} entries: expected at most {max}")));
    }
    if let Some(min) = bound(min).filter(|min| found < *min) {
        problems.push((path.to_owned(), format!("has {found} entries: expected at least {min}")));
    }
}
