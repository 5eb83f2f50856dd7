//! Checks manifests without a server, by the definitions' own schema and rules.
//!
//! Owns what is reported and where. Says yes to nothing that the API server refuses for the
//! object's own content; what depends on other objects is the operator's to judge. Never changes a
//! manifest.
//!
//! # Order
//! As in the API server: fields and their forms first, then, if all are good, the rules.
//!
//! # Caveats
//! `kubectl` reads YAML 1.1, where `yes` and `on` without quotes mean `true`; here they are text.

mod kind;
mod metadata;
mod schema;
mod split;
mod suggestions;

use crate::GenerateError;
use baton_config::{Document, reader_words};
use kind::Kind;
use kube::core::cel::Validator;
use serde_json::Value;
use std::{cell::OnceCell, path::Path};

/// Why a manifest is refused: file, line, field, problem. Its `Display` is `FILE:LINE: FIELD:
/// problem: expected ...`.
pub use baton_config::ConfigError as Problem;

/// Bytes of one file: a thousand policies of the largest size that makes sense (8 KiB).
pub const FILE_BYTES_MAX: usize = 8 << 20;
/// Problems told of one file; whoever has more starts with these.
pub const PROBLEMS_MAX: usize = 100;
/// Lists within lists.
pub const LIST_DEPTH_MAX: u32 = 4;

/// What became of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// What is wrong, in the order of the lines.
    pub problems: Vec<Problem>,
    /// Objects of the kinds of this crate.
    pub checked: usize,
    /// Objects of other kinds, about which nothing is said.
    pub passed_over: usize,
}

/// Checks manifests. Making one compiles all rules, so use one for many files.
pub struct Checker {
    kinds: Vec<Kind>,
    validator: Validator,
}

/// Checks the text of one file.
///
/// # Errors
/// See [`GenerateError`]; what is wrong with the text is no error of the check.
pub fn check(text: &str, file: &Path) -> Result<Vec<Problem>, GenerateError> {
    Ok(Checker::new()?.check(text, file).problems)
}

impl Checker {
    /// Compiles the rules.
    ///
    /// # Errors
    /// See [`GenerateError`].
    pub fn new() -> Result<Self, GenerateError> {
        Ok(Self {
            kinds: crate::generate::values()?.iter().map(Kind::new).collect(),
            validator: Validator::new(),
        })
    }

    /// Checks the text of one file: YAML with any number of documents, or JSON.
    #[must_use]
    pub fn check(&self, text: &str, file: &Path) -> Report {
        self.read(text, file, |_| Ok(()))
    }

    /// The same, and hands on each object in which nothing is wrong, also those of other kinds.
    /// What the taker finds wrong with a field of it, as `(field, problem)`, is reported like the
    /// rest.
    pub fn read(
        &self,
        text: &str,
        file: &Path,
        mut take: impl FnMut(Value) -> Result<(), (String, String)>,
    ) -> Report {
        let mut report = Report::default();
        if text.len() > FILE_BYTES_MAX {
            let problem = format!(
                "is too large with {} bytes: expected at most {FILE_BYTES_MAX}, as several files",
                text.len()
            );
            report.problems.push(Problem::new(file, problem));
            return report;
        }
        for part in split::documents(text) {
            self.document(&part, file, &mut take, &mut report);
        }
        report.problems.sort_by_key(|problem| problem.line);
        report.problems.truncate(PROBLEMS_MAX);
        report
    }

    fn document(
        &self,
        part: &split::Part<'_>,
        file: &Path,
        take: &mut Take<'_>,
        report: &mut Report,
    ) {
        let options = serde_saphyr::options! { with_snippet: false };
        let value: Value = match serde_saphyr::from_str_with_options(part.text, options) {
            Ok(value) => value,
            Err(error) => {
                let line = error.location().map(|at| at.line() + part.lines_before);
                report.problems.push(Problem { line, ..Problem::new(file, reader_words(&error)) });
                return;
            }
        };
        let mut found = Found::default();
        self.object(value, "", 0, take, &mut found);
        report.checked += found.checked;
        report.passed_over += found.passed_over;
        let places = OnceCell::new();
        let told = found.problems.into_iter().map(|(field, problem)| {
            let places = places.get_or_init(|| Document::parse(part.text));
            Problem {
                line: places.line_of(&field).map(|line| line + part.lines_before),
                field,
                ..Problem::new(file, problem)
            }
        });
        report.problems.extend(told);
    }

    /// An object, or a list of them.
    fn object(
        &self,
        mut value: Value,
        path: &str,
        depth: u32,
        take: &mut Take<'_>,
        found: &mut Found,
    ) {
        if !value.is_object() {
            if !value.is_null() {
                found.add(path, format!("is {}: expected an object", schema::type_of(&value)));
            }
            return;
        }
        let text = |name: &str| value[name].as_str().map(str::to_owned);
        let (Some(version), Some(name)) = (text("apiVersion"), text("kind")) else {
            for field in ["apiVersion", "kind"] {
                if text(field).is_none() {
                    let problem = "is missing: expected text, as all objects of Kubernetes have it";
                    found.add(&join(path, field), problem.to_owned());
                }
            }
            return;
        };
        if let (Some(of), Some(items)) = (name.strip_suffix("List"), value.get_mut("items")) {
            if depth == LIST_DEPTH_MAX {
                found.add(
                    &join(path, "items"),
                    "is a list in too many lists: expected objects".into(),
                );
                return;
            }
            let Value::Array(items) = items.take() else {
                return;
            };
            for (i, mut item) in items.into_iter().enumerate() {
                // As `kubectl` reads them: items of a `PodList` need not say what they are.
                if let (false, Some(fields)) = (of.is_empty(), item.as_object_mut())
                    && !fields.contains_key("kind")
                {
                    fields.insert("kind".to_owned(), of.into());
                    fields.insert("apiVersion".to_owned(), version.clone().into());
                }
                let path = format!("{}[{i}]", join(path, "items"));
                self.object(item, &path, depth + 1, take, found);
            }
            return;
        }
        let problems = match kind::find(&self.kinds, &version, &name) {
            kind::Choice::Ours(kind) => {
                found.checked += 1;
                kind.problems(&value, &self.validator)
            }
            kind::Choice::Other => {
                found.passed_over += 1;
                Vec::new()
            }
            kind::Choice::Mistaken(field, problem) => vec![(field.to_owned(), problem)],
        };
        let problems =
            if problems.is_empty() { take(value).err().into_iter().collect() } else { problems };
        let placed = problems.into_iter().map(|(field, problem)| (join(path, &field), problem));
        found.problems.extend(placed.take(PROBLEMS_MAX));
    }
}

/// Takes a good object, or says which field of it is wrong, and how.
type Take<'a> = dyn FnMut(Value) -> Result<(), (String, String)> + 'a;

/// What was found in one document, by field.
#[derive(Default)]
struct Found {
    problems: Vec<(String, String)>,
    checked: usize,
    passed_over: usize,
}

impl Found {
    fn add(&mut self, field: &str, problem: String) {
        self.problems.push((field.to_owned(), problem));
    }
}

/// A field of an object.
fn join(path: &str, field: &str) -> String {
    match (path, field) {
        ("", _) => field.to_owned(),
        (_, "") => path.to_owned(),
        _ => format!("{path}.{field}"),
    }
}
