//! `docs/generated/crds.md`, the reference of the custom resources, is what their definitions say.
//! `BATON_GENERATE=1` writes it anew from `crds/generated`, which a test of `crds` compares with
//! the types.

use baton_tidy::root;
use serde_json::{Map, Value};
use std::{env, fmt::Write as _, fs};

const HEAD: &str = "\
# Custom resources

Generated from `crds/generated`; `make generate` writes it, a test compares it. `kubectl explain lbp.spec` says the same of the
definitions that are installed. Durations are up to four whole numbers with their units, `us`, `ms`, `s`, `m` or `h`, as `1m30s`.
";

fn text<'a>(value: &'a Value, at: &str) -> &'a str {
    value.pointer(at).and_then(Value::as_str).unwrap_or_default()
}

fn list<'a>(value: &'a Value, at: &str) -> &'a [Value] {
    let list = value.pointer(at).and_then(Value::as_array);
    list.map_or(&[], Vec::as_slice)
}

fn reference() -> String {
    let folder = root().join("crds/generated");
    let files = fs::read_dir(&folder).expect("crds/generated");
    let mut paths: Vec<_> = files.map(|f| f.expect("a file").path()).collect();
    paths.sort();
    let mut out = HEAD.to_owned();
    for path in paths {
        let yaml = fs::read_to_string(&path).expect("a definition");
        let definition: Value = serde_saphyr::from_str(&yaml).expect("YAML");
        kind(&mut out, &definition);
    }
    out
}

fn kind(out: &mut String, definition: &Value) {
    let names = "/spec/names";
    let short = list(definition, &format!("{names}/shortNames"));
    let short: Vec<_> = short.iter().filter_map(Value::as_str).collect();
    for version in list(definition, "/spec/versions") {
        let schema = &version["schema"]["openAPIV3Schema"];
        let _ = write!(
            out,
            "\n## {}\n\n{}\n\n`{}/{}`, {}, short name `{}`.\n",
            text(definition, &format!("{names}/kind")),
            text(schema, "/description"),
            text(definition, "/spec/group"),
            text(version, "/name"),
            match text(definition, "/spec/scope") {
                "Cluster" => "of the whole cluster",
                _ => "in a namespace",
            },
            short.join("`, `"),
        );
        for part in ["spec", "status"] {
            let schema = &schema["properties"][part];
            let _ = write!(
                out,
                "\n### {part}\n\n{}\n\n| field | type | default | meaning |\n|---|---|---|---|\n",
                cell(text(schema, "/description"))
            );
            fields(out, schema, "");
        }
        let mut rules = Vec::new();
        collect_rules(&mut rules, schema, "");
        out.push_str(
            "\n### Rules\n\nThe API server refuses an object that breaks one of them.\n\n",
        );
        for (field, message) in rules {
            let _ = writeln!(out, "- `{field}` {message}");
        }
        out.push_str(
            "\n### Columns of `kubectl get`\n\n| column | from | meaning |\n|---|---|---|\n",
        );
        for column in list(version, "/additionalPrinterColumns") {
            let wide = column["priority"].as_i64().is_some_and(|p| p > 0);
            let _ = writeln!(
                out,
                "| {}{} | `{}` | {} |",
                text(column, "/name"),
                if wide { " (`-o wide`)" } else { "" },
                text(column, "/jsonPath"),
                cell(text(column, "/description")),
            );
        }
    }
}

/// One row for each field, those of objects and lists behind them.
fn fields(out: &mut String, schema: &Value, prefix: &str) {
    let required: Vec<_> = list(schema, "/required").iter().filter_map(Value::as_str).collect();
    let empty = Map::new();
    for (name, field) in schema["properties"].as_object().unwrap_or(&empty) {
        let path = format!("{prefix}{name}");
        let default = match &field["default"] {
            Value::Null if required.contains(&name.as_str()) => "required".to_owned(),
            // The fields of an object have their own.
            Value::Null | Value::Object(_) => String::new(),
            value => format!("`{}`", plain(value)),
        };
        let _ = writeln!(
            out,
            "| `{path}` | {} | {default} | {} |",
            kind_of(field),
            cell(text(field, "/description"))
        );
        fields(out, field, &format!("{path}."));
        fields(out, &field["items"], &format!("{path}[]."));
    }
}

fn kind_of(field: &Value) -> String {
    let values: Vec<_> = list(field, "/enum").iter().map(plain).collect();
    if !values.is_empty() {
        return format!("`{}`", values.join("`, `"));
    }
    let range = |low: &str, high: &str| match (field[low].as_i64(), field[high].as_i64()) {
        (Some(low), Some(high)) => format!(" {low} to {high}"),
        (None, Some(high)) => format!(" up to {high}"),
        _ => String::new(),
    };
    if field["x-kubernetes-int-or-string"] == Value::Bool(true) {
        return "number or name".to_owned();
    }
    match text(field, "/type") {
        "string" if text(field, "/pattern").contains("us|ms|s|m|h") => "duration".to_owned(),
        "string" if text(field, "/format") == "date-time" => "time".to_owned(),
        "string" => "text".to_owned(),
        "integer" => format!("number{}", range("minimum", "maximum")),
        "array" => format!("list{}", range("minItems", "maxItems")),
        "object" if field["additionalProperties"].is_object() => "labels".to_owned(),
        other => other.to_owned(),
    }
}

fn collect_rules(rules: &mut Vec<(String, String)>, schema: &Value, path: &str) {
    for rule in list(schema, "/x-kubernetes-validations") {
        let field = format!("{path}{}", text(rule, "/fieldPath"));
        rules.push((field, text(rule, "/message").to_owned()));
    }
    let empty = Map::new();
    for (name, field) in schema["properties"].as_object().unwrap_or(&empty) {
        let dot = if path.is_empty() { "" } else { "." };
        collect_rules(rules, field, &format!("{path}{dot}{name}"));
        collect_rules(rules, &field["items"], &format!("{path}{dot}{name}[]"));
    }
}

fn plain(value: &Value) -> String {
    match value.as_str() {
        // The empty text needs its quotes to be seen.
        Some("") | None => value.to_string(),
        Some(text) => text.to_owned(),
    }
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

#[test]
fn the_reference_of_custom_resources_is_what_the_definitions_say() {
    let path = root().join("docs/generated/crds.md");
    let reference = reference();
    if env::var_os("BATON_GENERATE").is_some_and(|v| v == "1") {
        fs::write(&path, &reference).expect("written");
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == reference,
        "docs/generated/crds.md is not what crds/generated says: run `make generate`"
    );
    for word in ["## LoadBalancerPolicy", "| `listeners[].port` | number 1 to 65535 | required |"] {
        assert!(reference.contains(word), "{word}");
    }
}
