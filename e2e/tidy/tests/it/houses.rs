//! The inside of each crate: its modules form no circle, and the engine's durations stand in one
//! file.

use baton_tidy::{files, packages, root};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

/// Top modules of a crate, and which others each names.
fn arrows(folder: &str) -> BTreeMap<String, BTreeSet<String>> {
    let source = format!("{folder}/src/");
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let of = |file: &str| -> Option<String> {
        let path = file.strip_prefix(&source)?;
        let first = path.split('/').next()?;
        Some(first.trim_end_matches(".rs").to_owned())
    };
    let ours: Vec<String> = files()
        .into_iter()
        .filter(|f| f.starts_with(&source))
        .collect();
    for file in ours.iter().filter(|f| f.ends_with(".rs")) {
        let Some(module) = of(file) else { continue };
        // The root names all of them; tests look wherever they like.
        if matches!(module.as_str(), "lib" | "main" | "bin") || module.ends_with("_tests") {
            continue;
        }
        let text = fs::read_to_string(root().join(file)).expect("a source file");
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        all.entry(module).or_default().extend(named(code));
    }
    let modules: BTreeSet<String> = all.keys().cloned().collect();
    let at_root = root_names(&source);
    for (module, named) in &mut all {
        let homes: Vec<String> = named
            .iter()
            .filter_map(|n| at_root.get(n))
            .cloned()
            .collect();
        named.extend(homes);
        named.retain(|other| other != module && modules.contains(other));
    }
    all
}

/// Names that the root re-exports, and the modules that they are from.
fn root_names(source: &str) -> BTreeMap<String, String> {
    let text = fs::read_to_string(root().join(source).join("lib.rs")).unwrap_or_default();
    let mut all = BTreeMap::new();
    for line in text.split(';').filter_map(|l| l.split("use ").nth(1)) {
        let Some((module, names)) = line.trim().split_once("::") else {
            continue;
        };
        let module = module.trim_start_matches("crate::");
        let names = names.split(|c: char| !c.is_alphanumeric() && c != '_');
        for name in names.filter(|name| !name.is_empty()) {
            all.insert(name.to_owned(), module.to_owned());
        }
    }
    all
}

/// Modules, and names at the root, of its own crate that a text names: `crate::x`, `use
/// crate::{x::..., y::...}`.
fn named(code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let code: String = code
        .lines()
        .map(|l| l.split("//").next().unwrap_or_default())
        .collect::<Vec<_>>()
        .join("\n");
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        if let Some(list) = rest.strip_prefix('{') {
            let (mut depth, mut word) = (0, String::new());
            for c in list.chars() {
                match c {
                    '{' => depth += 1,
                    '}' if depth == 0 => {
                        found.insert(std::mem::take(&mut word));
                        break;
                    }
                    '}' => depth -= 1,
                    ',' if depth == 0 => {
                        found.insert(std::mem::take(&mut word));
                    }
                    ':' if depth == 0 && !word.is_empty() => {
                        found.insert(std::mem::take(&mut word));
                    }
                    c if depth == 0 && (c.is_alphanumeric() || c == '_') => word.push(c),
                    _ => {}
                }
            }
        } else {
            let word = rest
                .chars()
                .take_while(|c| c.is_alphanumeric() || *c == '_');
            found.insert(word.collect());
        }
    }
    found
}

/// Modules from which a way leads back to themselves.
fn in_circles(arrows: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let leads_back = |from: &String| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(module) = next.pop() {
            for other in &arrows[module] {
                if other == from {
                    return true;
                }
                if seen.insert(other) {
                    next.push(other);
                }
            }
        }
        false
    };
    arrows.keys().filter(|m| leads_back(m)).cloned().collect()
}

#[test]
fn the_modules_of_a_crate_form_no_circle() {
    let mut wrong = Vec::new();
    for (name, package) in packages() {
        let found = in_circles(&arrows(&package.folder));
        if !found.is_empty() {
            wrong.push(format!("{name}: {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn circles_are_found() {
    let code = "use crate::{a::X, b::{self, c}, d};\nfn f() { crate::e::g(); } // crate::no";
    let found: Vec<String> = named(code).into_iter().collect();
    assert_eq!(found, ["", "X", "a", "b", "d", "e"]);
    let arrows = |all: &[(&str, &str)]| {
        let mut map: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (from, to) in all {
            map.entry((*to).to_owned()).or_default();
            map.entry((*from).to_owned())
                .or_default()
                .insert((*to).to_owned());
        }
        map
    };
    assert_eq!(in_circles(&arrows(&[("a", "b"), ("b", "c")])), [""; 0]);
    let circle = arrows(&[("a", "b"), ("b", "c"), ("c", "b")]);
    assert_eq!(in_circles(&circle), ["b", "c"]);
}

/// A duration that stands elsewhere depends on others that nobody sees.
#[test]
fn durations_of_the_engine_stand_in_one_file() {
    let folder = "lb-dataplane/engine/src/";
    let mut wrong = Vec::new();
    for file in files().iter().filter(|f| f.starts_with(folder)) {
        // Worlds in which placement is tried are no part of the engine.
        if file.ends_with("/timing.rs") || file.ends_with("placement/worlds.rs") {
            continue;
        }
        let text = fs::read_to_string(root().join(file)).expect("a source file");
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        for line in code.lines() {
            let name = line.trim_start_matches("pub(crate) ");
            let name = name.trim_start_matches("pub ").strip_prefix("const ");
            let name = name.and_then(|n| n.split(':').next()).unwrap_or_default();
            if ["_US", "_MS", "_SECS", "TRIES_MAX"]
                .iter()
                .any(|e| name.ends_with(e))
            {
                wrong.push(format!("{file}: {name}"));
            }
        }
    }
    assert!(wrong.is_empty(), "these belong into timing.rs: {wrong:#?}");
}
