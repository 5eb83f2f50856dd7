//! The Dockerfile makes what `e2e/testbed/images` makes: the same programs, users, labels and entry
//! points.

use baton_images::PRODUCTS;
use baton_tidy::root;
use std::{collections::BTreeMap, fs};

/// Instructions of each stage by its name, continued lines joined.
fn stages() -> BTreeMap<String, Vec<String>> {
    let path = root().join("e2e/testbed/images/Dockerfile");
    let text = fs::read_to_string(path).expect("e2e/testbed/images/Dockerfile");
    let text = text.replace("\\\n", " ");
    let mut stages: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut stage = String::new();
    for line in text.lines().filter(|l| !l.starts_with('#') && !l.is_empty()) {
        if let Some((_, name)) = line.strip_prefix("FROM ").and_then(|l| l.split_once(" AS ")) {
            name.clone_into(&mut stage);
        }
        stages.entry(stage.clone()).or_default().push(line.to_owned());
    }
    stages
}

#[test]
fn every_image_has_a_stage_with_its_user_labels_and_program() {
    let stages = stages();
    for product in PRODUCTS {
        let name = product.name;
        let stage = stages.get(name).unwrap_or_else(|| panic!("no stage {name}"));
        for instruction in [
            format!("FROM base AS {name}"),
            format!("COPY --from=build /out/usr/bin/{name} /usr/bin/{name}"),
            format!("USER {}", product.user),
            format!("ENTRYPOINT [\"/usr/bin/{name}\"]"),
            "CMD [\"run\"]".to_owned(),
        ] {
            assert!(stage.contains(&instruction), "{name} lacks: {instruction}");
        }
        for (variable, value) in product.environment {
            let instruction = format!("ENV {variable}={value}");
            assert!(stage.contains(&instruction), "{name} lacks: {instruction}");
        }
        let labels = stage.iter().find(|l| l.starts_with("LABEL ")).expect(name);
        for (key, value) in [("title", name), ("description", product.description)] {
            let label = format!("org.opencontainers.image.{key}=\"{value}\"");
            assert!(labels.contains(&label), "{name} lacks the label {label}");
        }
        let build = stages["build"].join("\n");
        assert!(build.contains(&format!(" -p {name}")), "{name} is not built");
    }
    let base = stages["base"].join("\n");
    let version = env!("CARGO_PKG_VERSION");
    for words in [
        "FROM scratch AS base".to_owned(),
        format!("ARG VERSION={version}"),
        "image.licenses=\"Apache-2.0\"".to_owned(),
        "image.vendor=\"Baton\"".to_owned(),
        "image.version=\"${VERSION}\"".to_owned(),
        "image.revision=\"${REVISION}\"".to_owned(),
    ] {
        assert!(base.contains(&words), "the base lacks {words}");
    }
    assert_eq!(
        stages.len(),
        PRODUCTS.len() + 2,
        "a stage that is neither an image nor build or base"
    );
}

#[test]
fn the_build_has_the_toolchain_and_the_packages_that_setup_installs() {
    let build = stages()["build"].join("\n");
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("Cargo.toml");
    let rust = manifest.lines().find_map(|l| l.strip_prefix("rust-version = "));
    let rust = rust.expect("a version").trim_matches('"');
    assert!(build.contains(&format!("FROM rust:{rust}-")), "Rust {rust}");
    let setup = fs::read_to_string(root().join("tools/setup.sh")).expect("tools/setup.sh");
    let list = setup.lines().find_map(|l| l.strip_prefix("build=("));
    // What the base image has already.
    let there = ["build-essential", "git", "ca-certificates", "curl"];
    for package in list.expect("a list").trim_end_matches(')').split(' ') {
        assert!(there.contains(&package) || build.contains(package), "{package} is not installed");
    }
}
