//! The metadata of an object, which no definition describes.

use super::{
    schema::type_of,
    suggestions::{expected, shortened},
};
use serde_json::Value;

/// The fields that there are (`k8s.io/apimachinery`, `ObjectMeta`). Most are the API server's to
/// write, and come with an object that was read from it.
const FIELDS: [&str; 15] = [
    "annotations",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "labels",
    "managedFields",
    "name",
    "namespace",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
];
/// Characters of a name and of a namespace.
const NAME_MAX: usize = 253;
const NAMESPACE_MAX: usize = 63;

/// What is wrong with an object's metadata.
pub fn problems(metadata: &Value, namespaced: bool) -> Vec<(String, String)> {
    let mut problems = Vec::new();
    let mut add =
        |field: &str, problem: String| problems.push((format!("metadata.{field}"), problem));
    let Some(fields) = metadata.as_object() else {
        add("name", "is missing: expected the object's name".to_owned());
        return problems;
    };
    for (field, value) in fields {
        if !FIELDS.contains(&field.as_str()) {
            let expected = expected(field, &FIELDS);
            add(field, format!("`{}` is no field here: {expected}", shortened(field)));
        }
        if ["labels", "annotations"].contains(&field.as_str()) {
            for (key, value) in value.as_object().into_iter().flatten() {
                if !value.is_string() {
                    add(
                        &format!("{field}.{key}"),
                        format!("is {}: expected text, in quotes", type_of(value)),
                    );
                }
            }
        }
    }
    let text = |field: &str| fields.get(field).and_then(Value::as_str);
    match (text("name"), text("generateName")) {
        (None, None) => add("name", "is missing: expected the object's name".to_owned()),
        (Some(name), _) if !is_name(name, NAME_MAX, true) => add(
            "name",
            format!(
                "`{}` is no name: expected up to {NAME_MAX} small letters, digits, `-` and `.`, not `-` or `.` at an end",
                shortened(name)
            ),
        ),
        _ => {}
    }
    if let (true, Some(namespace)) = (namespaced, text("namespace"))
        && !is_name(namespace, NAMESPACE_MAX, false)
    {
        add(
            "namespace",
            format!(
                "`{}` is no namespace: expected up to {NAMESPACE_MAX} small letters, digits and `-`, not `-` at an end",
                shortened(namespace)
            ),
        );
    }
    problems
}

/// A DNS label, or labels with dots between (RFC 1123).
fn is_name(text: &str, max: usize, dots: bool) -> bool {
    let is_label = |label: &str| {
        let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.chars().all(good)
    };
    text.len() <= max && if dots { text.split('.').all(is_label) } else { is_label(text) }
}
