//! The bill of materials of one program: CycloneDX JSON made from cargo's own view of the
//! dependency graph.
//!
//! Owns the choice of what counts: what is linked into the program on this platform, build tools
//! and tests aside. Holds no time and no random serial number, so that equal programs have equal
//! bills.

use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// A package of the machine with libraries that a program loads: its name and version.
pub type Native = (String, String);

/// The bill of `package`, from `cargo metadata` (with the platform's filter), the text of
/// `Cargo.lock`, and the packages of libraries outside of cargo.
pub fn bill_of_materials(
    package: &str,
    metadata: &Value,
    lock: &str,
    native: &[Native],
) -> Result<Value> {
    let packages: BTreeMap<&str, &Value> =
        list(&metadata["packages"]).iter().map(|p| (text(&p["id"]), p)).collect();
    let nodes: BTreeMap<&str, &Value> =
        list(&metadata["resolve"]["nodes"]).iter().map(|n| (text(&n["id"]), n)).collect();
    let workspace: Vec<_> = list(&metadata["workspace_members"]).iter().map(text).collect();
    let root = workspace
        .iter()
        .find(|id| packages.get(*id).is_some_and(|p| p["name"] == package))
        .with_context(|| format!("cargo metadata has no package {package} in this workspace"))?;
    let mut uses: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut open = vec![*root];
    while let Some(id) = open.pop() {
        if uses.contains_key(id) {
            continue;
        }
        let node = nodes.get(id).with_context(|| format!("{id} has no place in the graph"))?;
        let linked: BTreeSet<&str> = list(&node["deps"])
            .iter()
            .filter(|d| list(&d["dep_kinds"]).iter().any(|k| k["kind"].is_null()))
            .map(|d| text(&d["pkg"]))
            // Macros run at build time.
            .filter(|id| !packages.get(id).is_some_and(|p| is_macro(p)))
            .collect();
        open.extend(&linked);
        uses.insert(id, linked.into_iter().collect());
    }
    let checksums = checksums(lock);
    let component = |id: &str| {
        let package = packages[id];
        let (name, version) = (text(&package["name"]), text(&package["version"]));
        let purl = purl(name, version);
        let mut component = json!({
            "type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl,
        });
        if let Some(license) = package["license"].as_str() {
            // Before SPDX had expressions, crates wrote a slash for OR.
            component["licenses"] = json!([{ "expression": license.replace('/', " OR ") }]);
        }
        if let Some(sum) = checksums.get(&(name, version)) {
            component["hashes"] = json!([{ "alg": "SHA-256", "content": sum }]);
        }
        component
    };
    let mut main = component(root);
    main["type"] = "application".into();
    let mut components: Vec<_> =
        uses.keys().filter(|id| id != &root).map(|id| component(id)).collect();
    components.extend(native.iter().map(|(name, version)| {
        let purl = format!("pkg:deb/debian/{name}@{version}");
        json!({ "type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl })
    }));
    components.sort_by(|a, b| text(&a["bom-ref"]).cmp(text(&b["bom-ref"])));
    let reference = |id: &str| purl(text(&packages[id]["name"]), text(&packages[id]["version"]));
    let mut dependencies: Vec<_> = uses
        .iter()
        .map(|(id, linked)| {
            let linked: Vec<_> = linked.iter().map(|id| reference(id)).collect();
            json!({ "ref": reference(id), "dependsOn": linked })
        })
        .collect();
    dependencies.sort_by(|a, b| text(&a["ref"]).cmp(text(&b["ref"])));
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": { "component": main },
        "components": components,
        "dependencies": dependencies,
    }))
}

fn purl(name: &str, version: &str) -> String {
    format!("pkg:cargo/{name}@{version}")
}

fn is_macro(package: &Value) -> bool {
    list(&package["targets"]).iter().any(|t| list(&t["kind"]).iter().any(|k| k == "proc-macro"))
}

/// Checksums by name and version. Packages of the workspace have none.
fn checksums(lock: &str) -> BTreeMap<(&str, &str), &str> {
    lock.split("[[package]]")
        .filter_map(|block| {
            let value = |key: &str| {
                block.lines().find_map(|line| {
                    line.strip_prefix(key)?.strip_prefix(" = \"")?.strip_suffix('"')
                })
            };
            Some(((value("name")?, value("version")?), value("checksum")?))
        })
        .collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata() -> Value {
        let package = |name: &str, kind: &str| json!({ "id": name, "name": name, "version": "1.0.0", "license": "MIT/Apache-2.0", "targets": [{ "kind": [kind] }] });
        let dep = |name: &str, kind: Value| json!({ "pkg": name, "dep_kinds": [{ "kind": kind }] });
        json!({
            "workspace_members": ["app"],
            "packages": [package("app", "bin"), package("lib", "lib"), package("deep", "lib"),
                package("derive", "proc-macro"), package("cc", "lib"), package("proptest", "lib")],
            "resolve": { "nodes": [
                { "id": "app", "deps": [dep("lib", Value::Null), dep("derive", Value::Null), dep("cc", json!("build")), dep("proptest", json!("dev"))] },
                { "id": "lib", "deps": [dep("deep", Value::Null)] },
                { "id": "deep", "deps": [] },
                { "id": "derive", "deps": [] },
                { "id": "cc", "deps": [] },
                { "id": "proptest", "deps": [] },
            ] },
        })
    }

    #[test]
    fn what_is_linked_counts_and_nothing_else() {
        let lock = "[[package]]\nname = \"lib\"\nversion = \"1.0.0\"\nchecksum = \"abc\"\n";
        let native = [("zlib1g".to_owned(), "1.2".to_owned())];
        let bill = bill_of_materials("app", &metadata(), lock, &native).unwrap();
        let names: Vec<_> = list(&bill["components"]).iter().map(|c| text(&c["name"])).collect();
        assert_eq!(names, ["deep", "lib", "zlib1g"]);
        assert_eq!(bill["components"][1]["hashes"][0]["content"], "abc");
        assert_eq!(bill["components"][1]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(bill["metadata"]["component"]["name"], "app");
        assert_eq!(bill["dependencies"][0]["dependsOn"][0], "pkg:cargo/lib@1.0.0");
        assert!(bill_of_materials("lib", &metadata(), lock, &native).is_err());
    }
}
