//! The chart's own page, `charts/baton/README.md`: its values with what `values.yaml` says of them.
//!
//! Owns the page's form; never the words, which stand in `values.yaml`.

use baton_tidy::root;
use serde_json::Value;
use std::{env, fmt::Write as _, fs};

const HEAD: &str = "\
# Baton's chart

A layer-4 load balancer that moves live TCP connections between unmodified pods: operator, dataplanes, host-shims, their
rights, and by value alerts, dashboards and autoscaling.

```
helm install baton PATH-OR-URL --namespace baton-system --create-namespace
kubectl baton attach svc/web -n shop
```

The namespace needs Pod Security `privileged` for dataplanes and host-shims. Names are fixed: there is one Baton in a cluster,
with as many classes of dataplanes as it needs (`dataplaneClasses`).

## Values

Generated from `values.yaml`; `make generate` writes it, a test compares it. Wrong names and types are refused.

| value | default | what it is |
|---|---|---|
";

/// A value, or a group of them that something is said of.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    path: String,
    /// As it is written there; nothing of a group.
    default: String,
    words: String,
}

/// What is said of each value of the text, which has comments above keys, and two spaces for each
/// level.
fn rows(text: &str) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    let (mut path, mut words): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
    for line in text.lines() {
        let content = line.trim_start();
        let level = (line.len() - content.len()) / 2;
        if let Some(comment) = content.strip_prefix('#') {
            words.push(comment.trim());
            continue;
        }
        let key = content
            .split_once(':')
            .filter(|(key, _)| key.chars().all(char::is_alphanumeric) && level <= path.len());
        let Some((key, default)) = key else {
            if content.is_empty() {
                words.clear();
            } else if let Some(last) = rows.last_mut() {
                let gap = if last.default.is_empty() { "" } else { " " };
                let _ = write!(last.default, "{gap}{content}");
            }
            continue;
        };
        path.truncate(level);
        path.push(key);
        rows.push(Row {
            path: path.join("."),
            default: default.trim().to_owned(),
            words: words.join(" "),
        });
        words.clear();
    }
    rows.retain(|row| !row.default.is_empty() || !row.words.is_empty());
    rows
}

fn page(text: &str) -> String {
    let mut page = HEAD.to_owned();
    for Row { path, default, words } in rows(text) {
        let default = match default.as_str() {
            "" => String::new(),
            some => format!("`{}`", some.replace('|', "\\|")),
        };
        let _ = writeln!(page, "| `{path}` | {default} | {} |", words.replace('|', "\\|"));
    }
    page
}

#[test]
fn the_charts_page_has_every_value() {
    let folder = root().join("charts/baton");
    let text = fs::read_to_string(folder.join("values.yaml")).expect("values.yaml");
    let path = folder.join("README.md");
    if env::var_os("BATON_GENERATE").is_some_and(|v| v == "1") {
        fs::write(&path, page(&text)).expect("written");
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == page(&text),
        "charts/baton/README.md is not what values.yaml says: run `make generate`"
    );
    let values: Value = serde_saphyr::from_str(&text).expect("YAML");
    let rows = rows(&text);
    assert!(rows.len() > 80, "{}", rows.len());
    for row in &rows {
        let pointer = format!("/{}", row.path.replace('.', "/"));
        assert!(values.pointer(&pointer).is_some(), "{}", row.path);
    }
}

#[test]
fn values_have_the_words_above_them() {
    let text = "\
# Of the file.

a:
  # One,
  # and more.
  b: { c: 1 }
  d: []
# All of it.
e:
  f:
    - { g: 2 }
    - { g: 3 }
";
    let row = |path: &str, default: &str, words: &str| Row {
        path: path.to_owned(),
        default: default.to_owned(),
        words: words.to_owned(),
    };
    assert_eq!(
        rows(text),
        [
            row("a.b", "{ c: 1 }", "One, and more."),
            row("a.d", "[]", ""),
            row("e", "", "All of it."),
            row("e.f", "- { g: 2 } - { g: 3 }", ""),
        ]
    );
}
