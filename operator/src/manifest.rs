//! Files of manifests: several documents, Lists, each object with the place where it stands.
//!
//! Owns how a file is taken apart. What is good in an object is judged elsewhere; only what is no object at all is
//! refused here.

use baton_config::{ConfigError, Document, reader_words};
use serde_json::Value;
use std::path::Path;

/// Bytes of one file: what can be checked.
pub const LIMIT_FILE_BYTES: u64 = baton_crds::FILE_BYTES_MAX as u64;

/// One object of a file.
#[derive(Clone, Debug)]
pub struct Manifest {
    /// `apiVersion`.
    pub api_version: String,
    /// `kind`.
    pub kind: String,
    /// All of it.
    pub value: Value,
    /// Where it stands.
    pub place: Place,
}

impl Manifest {
    /// Whether it is all of its document, and no item of a List.
    pub fn is_document(&self) -> bool {
        self.place.prefix.is_empty()
    }
}

/// Where an object stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Lines of the file in front of its document.
    lines_before: usize,
    /// The document among those of the file, as bytes from and to.
    document: (usize, usize),
    /// In front of its fields, as `items[3].`; empty if it is the document.
    prefix: String,
}

/// Takes a file's text apart.
///
/// # Errors
/// A document is not YAML, or something in it is no object.
pub fn read(file: &Path, text: &str) -> Result<Vec<Manifest>, ConfigError> {
    let mut manifests = Vec::new();
    for place in documents(text) {
        let document = &text[place.document.0..place.document.1];
        let value: Value = serde_saphyr::from_str(document).map_err(|error| {
            let line = error.location().map_or(1, |location| location.line());
            ConfigError {
                line: Some(line + place.lines_before as u64),
                ..ConfigError::new(file, format!("no YAML: {}", reader_words(&error)))
            }
        })?;
        // Comments only.
        if !value.is_null() {
            object(file, text, value, place, &mut manifests)?;
        }
    }
    Ok(manifests)
}

/// A text in which all documents are blank whose objects are all `left_out`: what remains keeps its lines.
pub fn without(text: &str, manifests: &[Manifest], left_out: impl Fn(&Manifest) -> bool) -> String {
    let mut remains = String::with_capacity(text.len() / 4);
    let mut at = 0;
    for document in manifests.chunk_by(|a, b| a.place.document == b.place.document) {
        let Some((begin, end)) = document.first().map(|m| m.place.document) else {
            continue;
        };
        if document.iter().all(&left_out) {
            remains.push_str(&text[at..begin]);
            let lines = text[begin..end].bytes().filter(|byte| *byte == b'\n');
            remains.extend(lines.map(|_| '\n'));
            at = end;
        }
    }
    remains.push_str(&text[at..]);
    remains
}

fn object(
    file: &Path,
    text: &str,
    mut value: Value,
    place: Place,
    manifests: &mut Vec<Manifest>,
) -> Result<(), ConfigError> {
    let words = |field: &str| value.get(field).and_then(Value::as_str).map(str::to_owned);
    let missing = |field: &str, expected: &str| {
        problem(
            file,
            text,
            &place,
            field,
            format!("is missing: expected {expected}"),
        )
    };
    let Some(kind) = words("kind") else {
        return Err(missing(
            "kind",
            "the kind of the object, as LoadBalancerPolicy",
        ));
    };
    let Some(api_version) = words("apiVersion") else {
        return Err(missing(
            "apiVersion",
            "the version of the kind, as baton.dev/v1alpha1",
        ));
    };
    let is_list = kind.ends_with("List") && value.get("items").is_some_and(Value::is_array);
    if !is_list {
        let name = value.pointer("/metadata/name").and_then(Value::as_str);
        if name.is_none_or(str::is_empty) {
            return Err(missing("metadata.name", "the name of the object"));
        }
        manifests.push(Manifest {
            api_version,
            kind,
            value,
            place,
        });
        return Ok(());
    }
    // The items of a typed list need not say what they are.
    let of = kind.strip_suffix("List").unwrap_or_default().to_owned();
    let items = match value.get_mut("items").map(Value::take) {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    };
    for (i, mut item) in items.into_iter().enumerate() {
        if let (false, Some(fields)) = (of.is_empty(), item.as_object_mut()) {
            fields.entry("kind").or_insert_with(|| of.clone().into());
            fields
                .entry("apiVersion")
                .or_insert_with(|| api_version.clone().into());
        }
        let prefix = format!("{}items[{i}].", place.prefix);
        let place = Place {
            prefix,
            ..place.clone()
        };
        object(file, text, item, place, manifests)?;
    }
    Ok(())
}

/// A problem with a field of an object, with its line.
pub fn problem(
    file: &Path,
    text: &str,
    place: &Place,
    field: &str,
    problem: impl Into<String>,
) -> ConfigError {
    let field = format!("{}{field}", place.prefix);
    let document = text.get(place.document.0..place.document.1);
    let line = Document::parse(document.unwrap_or_default()).line_of(&field);
    ConfigError {
        line: line.map(|line| line + place.lines_before as u64),
        field,
        ..ConfigError::new(file, problem)
    }
}

/// Where the documents of a text are. A line that begins with `---` begins one, whatever it stands in (YAML 1.2, 9.1.2).
fn documents(text: &str) -> Vec<Place> {
    let mut places = Vec::new();
    let (mut begin, mut begin_line, mut at) = (0, 0, 0);
    let mut push = |begin: usize, end: usize, lines_before: usize| {
        if text[begin..end].chars().any(|c| !c.is_whitespace()) {
            places.push(Place {
                lines_before,
                document: (begin, end),
                prefix: String::new(),
            });
        }
    };
    for (number, line) in text.split_inclusive('\n').enumerate() {
        let rest = line
            .strip_prefix("---")
            .or_else(|| line.strip_prefix("..."));
        if rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace)) {
            push(begin, at, begin_line);
            // What follows on the line belongs to the document, but for `...` and a bare mark.
            let bare =
                rest.is_none_or(|rest| rest.trim().is_empty() || rest.trim().starts_with('#'));
            (begin, begin_line) = if bare {
                (at + line.len(), number + 1)
            } else {
                (at, number)
            };
        }
        at += line.len();
    }
    push(begin, at, begin_line);
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        let manifests = read(Path::new("a.yaml"), text).expect("good");
        let name = |m: &Manifest| m.value["metadata"]["name"].as_str().map(str::to_owned);
        manifests
            .iter()
            .map(|m| format!("{} {}", m.kind, name(m).unwrap_or_default()))
            .collect()
    }

    #[test]
    fn documents_and_lists_are_taken_apart() {
        let text = "# first\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: a}\n--- # second\n\n---\napiVersion: v1\n\
                    kind: List\nitems:\n- {apiVersion: v1, kind: Pod, metadata: {name: b}}\n- apiVersion: v1\n  kind: Node\n  \
                    metadata: {name: n1}\n...\n";
        assert_eq!(names(text), ["Pod a", "Pod b", "Node n1"]);
        assert!(names("").is_empty() && names("# only\n---\n").is_empty());
        let json =
            r#"{"apiVersion": "v1", "kind": "PodList", "items": [{"metadata": {"name": "c"}}]}"#;
        assert_eq!(names(json), ["Pod c"]);
        let json = r#"{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "PodList",
            "items": [{"metadata": {"name": "d"}}]}]}"#;
        assert_eq!(names(json), ["Pod d"]);
    }

    #[test]
    fn documents_are_left_out_and_the_others_keep_their_lines() {
        let text = "# first\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: a}\n--- # second\napiVersion: v1\n\
                    kind: List\nitems:\n- {apiVersion: v1, kind: Pod, metadata: {name: b}}\n- apiVersion: v1\n  kind: Node\n  \
                    metadata: {name: n1}\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: c}\n";
        let manifests = read(Path::new("a.yaml"), text).expect("good");
        let left = without(text, &manifests, |m| m.kind == "Pod");
        assert_eq!(names(&left), ["Pod b", "Node n1"]);
        assert_eq!(left.lines().count(), text.lines().count());
        let line = |text: &str| text.lines().position(|line| line.contains("n1"));
        assert_eq!(line(&left), line(text));
        assert_eq!(without(text, &manifests, |_| false), text);
        assert!(names(&without(text, &manifests, |_| true)).is_empty());
    }

    #[test]
    fn marks_inside_of_lines_are_no_marks() {
        let text =
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  annotations: {x: '---', y: ---z}\n";
        assert_eq!(names(text), ["Pod a"]);
    }

    #[test]
    fn what_is_no_object_is_refused_with_its_line() {
        let refused = |text: &str| read(Path::new("a.yaml"), text).expect_err(text).to_string();
        let second = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n---\n";
        let got = refused(&format!("{second}kind: Pod\nmetadata: {{name: b}}\n"));
        assert!(got.starts_with("a.yaml:5: apiVersion: is missing"), "{got}");
        let got = refused(&format!(
            "{second}apiVersion: v1\nkind: Pod\nmetadata:\n  labels: {{}}\n"
        ));
        assert!(
            got.starts_with("a.yaml:7: metadata.name: is missing"),
            "{got}"
        );
        let got = refused(&format!("{second}a: [\n"));
        assert!(
            got.starts_with("a.yaml:") && got.contains("no YAML"),
            "{got}"
        );
        let got = refused("just words\n");
        assert!(got.contains("kind: is missing"), "{got}");
    }

    #[test]
    fn fields_of_items_are_found_in_the_file() {
        let text = "---\napiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Pod\n  metadata:\n    name: a\n  \
                    status:\n    podIP: x\n";
        let manifests = read(Path::new("a.yaml"), text).expect("good");
        let error = problem(
            Path::new("a.yaml"),
            text,
            &manifests[0].place,
            "status.podIP",
            "is bad",
        );
        assert_eq!(
            error.to_string(),
            "a.yaml:10: items[0].status.podIP: is bad"
        );
    }
}
