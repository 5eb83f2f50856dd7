//! The committed YAML is what the types give. `BATON_GENERATE=1` writes it anew.

use std::{collections::BTreeSet, fs, path::Path};

#[test]
fn the_committed_definitions_are_those_of_the_types() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("generated");
    let files = baton_crds::files().expect("the definitions");
    if std::env::var_os("BATON_GENERATE").is_some() {
        for file in &files {
            fs::write(folder.join(&file.name), &file.yaml).expect("written");
        }
    }
    let names: BTreeSet<String> = fs::read_dir(&folder)
        .expect("the folder")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    assert_eq!(names, files.iter().map(|file| file.name.clone()).collect());
    for file in &files {
        let committed = fs::read_to_string(folder.join(&file.name)).expect(&file.name);
        assert!(committed == file.yaml, "{} is stale: run `make generate`", file.name);
    }
}

#[test]
fn the_yaml_says_what_the_types_say() {
    for (file, definition) in baton_crds::files()
        .expect("the definitions")
        .iter()
        .zip(baton_crds::definitions().expect("the definitions"))
    {
        let read: serde_json::Value = serde_saphyr::from_str(&file.yaml).expect(&file.name);
        let read: k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition =
            serde_json::from_value(read).expect(&file.name);
        assert_eq!(read, definition);
    }
}
