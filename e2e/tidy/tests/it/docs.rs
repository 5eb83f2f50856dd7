//! What the documentation names is there: pages and headings that it links to, metrics, values of
//! the chart, fields of policies.

use baton_tidy::{files, metrics::reference, root};
use serde_json::Value;
use std::{collections::BTreeSet, fs};

/// Pages for users, with their text.
fn pages() -> Vec<(String, String)> {
    let for_users =
        |(file, _): &(String, String)| file.starts_with("docs/") || file.starts_with("charts/");
    all_pages().into_iter().filter(for_users).collect()
}

fn all_pages() -> Vec<(String, String)> {
    let pages = files().into_iter().filter(|f| f.ends_with(".md"));
    pages
        .map(|file| {
            let text = fs::read_to_string(root().join(&file)).expect("a page");
            (file, text)
        })
        .collect()
}

/// What stands between backticks on one line.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.lines().flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// The anchor that renderers give a heading.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.collect::<String>().replace(' ', "-")
}

#[test]
fn links_lead_somewhere() {
    let mut links = 0;
    for (file, text) in all_pages() {
        let folder = root().join(&file).parent().expect("a folder").to_path_buf();
        for link in text.split("](").skip(1).filter_map(|l| l.split_once(')')) {
            let link = link.0;
            if link.starts_with("http") {
                continue;
            }
            links += 1;
            let (page, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if page.is_empty() { root().join(&file) } else { folder.join(page) };
            let linked = fs::read_to_string(&target);
            let linked = linked.unwrap_or_else(|e| panic!("{file}: {link}: {e}"));
            let mut headings = linked.lines().filter(|l| l.starts_with('#')).map(anchor);
            assert!(
                heading.is_empty() || headings.any(|h| h == heading),
                "{file}: {link}: no such heading"
            );
        }
    }
    assert!(links > 60, "{links}");
}

#[test]
fn every_page_is_in_the_index() {
    let index = fs::read_to_string(root().join("docs/README.md")).expect("the index");
    for (file, _) in pages() {
        if let Some(page) = file.strip_prefix("docs/").filter(|p| *p != "README.md") {
            assert!(index.contains(&format!("]({page})")), "{page} is not in docs/README.md");
        }
    }
}

#[test]
fn metrics_that_are_named_are_exported() {
    let metrics = reference();
    let mut named = 0;
    for (file, text) in pages() {
        for word in code(&text).filter(|w| !w.ends_with('_')) {
            let (name, labels) = word.split_once('{').unwrap_or((word, ""));
            let short = format!("baton_dataplane_{name}");
            let of_processes = name.starts_with("process_");
            let name = if name.starts_with("baton_") || of_processes {
                name
            } else if name.ends_with("_total") {
                short.as_str()
            } else {
                continue;
            };
            named += 1;
            let metric = metrics.get(name);
            let metric = metric.unwrap_or_else(|| panic!("{file}: nothing exports `{word}`"));
            let Some((label, value)) = labels.trim_end_matches('}').split_once('=') else {
                continue;
            };
            let values = metric.labels.get(label);
            let there = values.is_some_and(|v| v.is_empty() || v.contains(value.trim_matches('"')));
            assert!(there, "{file}: `{word}`");
        }
    }
    assert!(named > 15, "{named}");
}

/// Whether a path as `dataplane.limits.flows` is in a tree of values.
fn has(values: &Value, path: &str) -> bool {
    let pointer = format!("/{}", path.replace("[]", "").replace('.', "/"));
    values.pointer(&pointer).is_some()
}

#[test]
fn values_that_are_named_are_the_charts() {
    let text = fs::read_to_string(root().join("charts/baton/values.yaml")).expect("values");
    let values: Value = serde_saphyr::from_str(&text).expect("YAML");
    let top: BTreeSet<&String> = values.as_object().expect("an object").keys().collect();
    let mut named = 0;
    for (file, text) in pages() {
        let flags = text.split("--set ").skip(1).filter_map(|s| s.split_whitespace().next());
        for word in code(&text).chain(flags) {
            let path = word.split(['=', ' ', '[']).next().unwrap_or_default();
            let path = path.trim_matches(['\'', '\\']);
            let Some((first, _)) = path.split_once('.') else {
                continue;
            };
            // `operator.baton` and its like are names in certificates.
            if top.iter().any(|t| *t == first) && !path.ends_with(".baton") {
                named += 1;
                assert!(has(&values, path), "{file}: values.yaml has no `{path}`");
            }
        }
    }
    assert!(named > 20, "{named}");
}

#[test]
fn fields_of_policies_that_are_named_are_defined() {
    let reference = fs::read_to_string(root().join("docs/generated/crds.md")).expect("crds.md");
    let mut named = 0;
    // What is generated has the definitions' own words.
    let by_hand = |(file, _): &(String, String)| !file.starts_with("docs/generated/");
    for (file, text) in pages().into_iter().filter(by_hand) {
        for word in code(&text) {
            if let Some(path) = word.strip_prefix("spec.") {
                let path = path.split([':', ' ']).next().unwrap_or_default();
                named += 1;
                assert!(
                    reference.contains(&format!("| `{path}` |")),
                    "{file}: policies have no `spec.{path}`"
                );
            }
        }
    }
    assert!(named > 4, "{named}");
}
