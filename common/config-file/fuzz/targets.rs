//! Fuzz targets: reading configurations. On stable Rust they are ordinary tests: each runs over the
//! committed corpus (`fuzz/__fuzz__/<target>/corpus`) and over random inputs.
//!
//! Longer: `BOLERO_RANDOM_ITERATIONS=10000000 cargo test -p baton-config --test fuzz`.
//! Again: a failure prints `BOLERO_RANDOM_SEED=...`; set it and run the target.
#![allow(missing_docs)]

#[path = "../../../lb-dataplane/packet/fuzz/corpus.rs"]
mod corpus;
mod yaml;

use baton_api::{Limits, Policy, Snapshot};
use baton_config::{ConfigError, Document, Place, reader_words};
use bolero::check;
use serde::Deserialize;
use std::path::Path;

/// A configuration of the kinds of fields that the binaries have.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[expect(dead_code, reason = "what is read is not used further")]
struct Config {
    interface: String,
    keys: Vec<Key>,
    #[serde(default)]
    limits: Limits,
    #[serde(default)]
    policies: Vec<Policy>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "what is read is not used further")]
struct Key {
    epoch: u8,
    file: std::path::PathBuf,
}

/// Lines of a text as YAML counts them (1.2, section 5.4), and one for what is missing at the end.
fn lines(text: &str) -> u64 {
    let lone = text.matches('\r').count() - text.matches("\r\n").count();
    (text.matches('\n').count() + lone) as u64 + 2
}

fn check_place(text: &str, place: Place) {
    assert!((1..=lines(text)).contains(&place.line), "{place:?}");
    assert!(place.column >= 1 && place.column <= text.len() as u64 + 1);
}

/// A refusal is one plain line that names a place of the text.
fn check_refusal(text: &str, error: &ConfigError) {
    let words = error.to_string();
    assert!(!error.problem.is_empty());
    assert!(!words.contains('\n'), "{words:?}");
    if let Some(line) = error.line {
        assert!((1..=lines(text)).contains(&line), "{words}");
    }
    assert!(words.starts_with("a.yaml"), "{words}");
}

/// The way of a reader that follows the path while it reads.
fn read_with_path(text: &str) -> Result<Config, (String, Box<serde_saphyr::Error>)> {
    let mut field = String::new();
    let read = serde_saphyr::with_deserializer_from_str(text, |deserializer| {
        serde_path_to_error::deserialize(deserializer).map_err(|error| {
            field = error.path().to_string();
            error.into_inner()
        })
    });
    read.map_err(|error| (field, Box::new(error)))
}

fn check_bytes(input: &[u8]) {
    let text = yaml::text_of(input);
    let Ok(text) = std::str::from_utf8(&text) else {
        // A file that is no UTF-8 is refused where it is read.
        return;
    };
    let file = Path::new("a.yaml");
    let document = Document::parse(text);
    let read = read_with_path(text);
    let plain: Result<Config, _> = serde_saphyr::from_str(text);
    assert_eq!(read.is_ok(), plain.is_ok(), "{read:?}");
    match read {
        Ok(config) => check_fields(file, text, &document, config),
        Err((field, error)) => {
            let place = error.location().map(Place::from);
            let problem = reader_words(&error);
            let field = if field == "." { String::new() } else { field };
            let refusal = ConfigError::in_text(file, text, field, problem.clone());
            check_refusal(text, &refusal);
            // The other way: the field that stands where the reader stopped.
            if let Some(place) = place.filter(|p| p.line != 0) {
                check_place(text, place);
                let field = document.field_at(place).unwrap_or_default();
                let refusal = ConfigError {
                    field,
                    ..ConfigError::new(file, problem).with_place(Some(place))
                };
                check_refusal(text, &refusal);
            }
        }
    }
}

/// Each field of a good text has a place, and at that place stands that field.
fn check_fields(file: &Path, text: &str, document: &Document, config: Config) {
    let mut paths = vec!["interface".to_owned(), "keys".to_owned()];
    paths.extend((0..config.keys.len()).map(|i| format!("keys[{i}].file")));
    for p in 0..config.policies.len() {
        paths.push(format!("policies[{p}]"));
        paths.push(format!("policies[{p}].name"));
        let backends = config.policies[p].backends.len();
        paths.extend((0..backends).map(|b| format!("policies[{p}].backends[{b}].endpoint")));
    }
    for path in paths {
        let place = document.place_of(&path);
        let place = place.unwrap_or_else(|| panic!("{path} has no place in {text:?}"));
        check_place(text, place);
        let line = document.line_of(&path).expect("a line where there is a place");
        assert!((1..=lines(text)).contains(&line), "{path}: {line}");
        assert!(document.field_at(place).is_some(), "{path} at {place:?}");
    }
    let snapshot = Snapshot { generation: 1, policies: config.policies };
    if let Err(error) = snapshot.validate() {
        let refusal = ConfigError::in_text(file, text, error.path.clone(), error.problem);
        assert!(refusal.line.is_some(), "{refusal}");
        check_refusal(text, &refusal);
    }
}

/// Whatever a configuration file holds: no panic, and a refusal says where.
#[test]
fn configurations() {
    check!().with_iterations(30_000).with_max_len(97).for_each(check_bytes);
}

/// Each target has its corpus, and every input of it holds.
#[test]
fn corpora() {
    corpus::replay("configurations", check_bytes);
}

/// What the fuzzing starts from is right, but for the two that hold more or less than one
/// configuration.
#[test]
fn starts_are_right() {
    for (choice, start) in yaml::STARTS.iter().enumerate() {
        assert_eq!(yaml::text_of(&[choice as u8]), start.as_bytes());
        if choice < 4 {
            let config = read_with_path(start).expect(start);
            assert_eq!(config.interface, "eth0");
        }
    }
}

/// A text that nests deeper, or means more than it says, than any configuration does is refused; it
/// takes neither the stack nor the memory.
#[test]
fn depth_and_width_are_bounded() {
    const MANY: usize = 200_000;
    let mut laughs = "a0: &a0 [x, x]\n".to_owned();
    for i in 1..30 {
        let alias = format!("*a{}, ", i - 1).repeat(9);
        laughs += &format!("a{i}: &a{i} [{alias}x]\n");
    }
    for text in [
        "[".repeat(MANY),
        "{a: ".repeat(MANY),
        "- ".repeat(MANY),
        "? ".repeat(MANY),
        format!("policies: {}", "[".repeat(MANY)),
        laughs,
    ] {
        let document = Document::parse(&text);
        assert!(read_with_path(&text).is_err());
        let _ = document.place_of("policies[0].name");
    }
}
