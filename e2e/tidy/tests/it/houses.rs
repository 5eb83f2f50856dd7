//! The inside of each crate: its modules form no circle, and the engine's durations stand in one
//! file.

use baton_tidy::{files, packages, root};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

/// Modules of a crate, and which others each names: files, or `whole` folders.
fn arrows(folder: &str, whole: bool) -> BTreeMap<String, BTreeSet<String>> {
    let source = format!("{folder}/src/");
    let module_of = |file: &str| -> Option<String> {
        let path = file.strip_prefix(&source)?.strip_suffix(".rs")?;
        let path = path.strip_suffix("/mod").unwrap_or(path);
        // The root names all of them; tests look wherever they like.
        let kept = !matches!(path, "lib" | "main") && !path.starts_with("bin/");
        let kept = kept && !path.ends_with("_tests") && !path.ends_with("/tests");
        kept.then(|| path.replace('/', "::"))
    };
    let texts: BTreeMap<String, String> = files()
        .iter()
        .filter_map(|f| Some((module_of(f)?, f)))
        .map(|(module, f)| (module, fs::read_to_string(root().join(f)).expect("a source file")))
        .collect();
    let lib = fs::read_to_string(root().join(&source).join("lib.rs")).unwrap_or_default();
    let at_root: BTreeMap<String, Vec<String>> = paths(&lib, "pub use ")
        .into_iter()
        .filter_map(|path| Some((path.last()?.clone(), path)))
        .collect();
    let home = |path: &[String]| -> Option<String> {
        let path = at_root.get(path.first()?).map_or(path, Vec::as_slice);
        let longest = (1..=path.len()).rev().map(|n| path[..n].join("::"));
        longest.into_iter().find(|module| texts.contains_key(module))
    };
    let folder = |module: &str| module.split("::").next().unwrap_or_default().to_owned();
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (module, text) in &texts {
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let mut named = paths(code, "crate::");
        named.extend(above(code, module));
        let mut others: BTreeSet<String> = named.iter().filter_map(|path| home(path)).collect();
        let from = if whole {
            others = others.iter().map(|other| folder(other)).collect();
            folder(module)
        } else {
            module.clone()
        };
        others.remove(&from);
        all.entry(from).or_default().extend(others);
    }
    all
}

/// What a text names by way of the module above its own, as paths from the root.
fn above(code: &str, module: &str) -> Vec<Vec<String>> {
    let names: Vec<String> = module.split("::").map(str::to_owned).collect();
    let from_root = |path: Vec<String>| {
        let more = path.iter().take_while(|name| *name == "up").count();
        let here = names.len().checked_sub(1 + more)?;
        Some([&names[..here], &path[more..]].concat())
    };
    // One way up begins a path, the others belong to it.
    let code = code.replace("super::super::", "super::up::");
    let code = code.replace("up::super::", "up::up::");
    let found = paths(&code, "super::").into_iter();
    found.filter_map(from_root).collect()
}

/// All paths that stand behind `start` in a text, each of those in braces whole: `crate::x::y`,
/// `use crate::{x::A, y::{self, B}}`.
fn paths(code: &str, start: &str) -> Vec<Vec<String>> {
    let code: String = code
        .lines()
        .map(|l| l.split("//").next().unwrap_or_default())
        .collect::<Vec<_>>()
        .join("\n");
    let mut found = Vec::new();
    for (at, _) in code.match_indices(start) {
        // What each brace that is open began with, and the path in hand.
        let (mut open, mut path) = (Vec::new(), vec![String::new()]);
        for c in code[at + start.len()..].chars() {
            let last = path.last_mut().expect("at least one name");
            match c {
                c if c.is_alphanumeric() || c == '_' => last.push(c),
                ':' if last.is_empty() => {}
                ':' => path.push(String::new()),
                '{' if last.is_empty() => open.push(path.clone()),
                ',' | '}' if !open.is_empty() => {
                    if !last.is_empty() {
                        path.retain(|name| name != "self");
                        found.push(std::mem::take(&mut path));
                    }
                    if c == '}' {
                        open.pop();
                    }
                    path = open.last().cloned().unwrap_or_default();
                    if open.is_empty() {
                        break;
                    }
                }
                c if c.is_whitespace() && !open.is_empty() => {}
                _ => break,
            }
        }
        if open.is_empty() && path.last().is_some_and(|last| !last.is_empty()) {
            found.push(path);
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
        for whole in [false, true] {
            let found = in_circles(&arrows(&package.folder, whole));
            if !found.is_empty() {
                wrong.push(format!("{name}: {found:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// "Inside the engine" of ARCHITECTURE.md has all of its top modules, each below those that it
/// names.
#[test]
fn the_map_of_the_engine_is_true() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("a page");
    let (_, table) = text.split_once("### Inside the engine").expect("its chapter");
    let rows = table.split("\n### ").next().unwrap_or_default().lines();
    let names = rows.filter_map(|row| row.strip_prefix("| `")?.split_once(" | "));
    let order: Vec<&str> = names
        .flat_map(|(names, _)| names.split("`, `").map(|name| name.trim_end_matches('`')))
        .collect();
    let arrows = arrows("lb-dataplane/engine", true);
    let mut all: Vec<&str> = arrows.keys().map(String::as_str).collect();
    let mut listed = order.clone();
    listed.sort_unstable();
    all.sort_unstable();
    assert_eq!(listed, all);
    for (at, module) in order.iter().enumerate() {
        let below: Vec<_> = (arrows[*module].iter())
            .filter(|other| !order[..at].contains(&other.as_str()))
            .collect();
        assert!(below.is_empty(), "{module} names {below:?}, which stand below it");
    }
}

#[test]
fn circles_are_found() {
    let code = "use crate::{a::X, b::{self, c}, d};\nfn f() { crate::e::g(); } // crate::no";
    let found = paths(code, "crate::").into_iter().map(|p| p.join("::"));
    let found: Vec<String> = found.collect();
    assert_eq!(found, ["a::X", "b", "b::c", "d", "e::g"]);
    let code = "use super::{x::Y, z};\nfn f() { super::super::w(); }";
    let found = above(code, "a::b::c").into_iter().map(|p| p.join("::"));
    let found: Vec<String> = found.collect();
    assert_eq!(found, ["a::b::x::Y", "a::b::z", "a::w"]);
    let arrows = |all: &[(&str, &str)]| {
        let mut map: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (from, to) in all {
            map.entry((*to).to_owned()).or_default();
            map.entry((*from).to_owned()).or_default().insert((*to).to_owned());
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
        // Tests, and worlds in which placement is tried, are no part of the engine.
        let others = ["/timing.rs", "_tests.rs", "placement/worlds.rs"];
        if others.iter().any(|end| file.ends_with(end)) {
            continue;
        }
        let text = fs::read_to_string(root().join(file)).expect("a source file");
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        for line in code.lines() {
            let name = line.trim_start_matches("pub(crate) ");
            let name = name.trim_start_matches("pub ").strip_prefix("const ");
            let name = name.and_then(|n| n.split(':').next()).unwrap_or_default();
            if ["_US", "_MS", "_SECS", "TRIES_MAX"].iter().any(|e| name.ends_with(e)) {
                wrong.push(format!("{file}: {name}"));
            }
        }
    }
    assert!(wrong.is_empty(), "these belong into timing.rs: {wrong:#?}");
}
