//! The cases of `tests/cases`, which its README describes.

use serde::Deserialize;
use serde_json::Value;
use std::{fs, path::Path};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cases {
    pub smallest: Value,
    pub cases: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    pub field: String,
    pub message: String,
    pub by: By,
    pub accepted: Vec<Value>,
    pub refused: Vec<Value>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum By {
    Rule,
    Schema,
    Strict,
}

pub fn all() -> Vec<Cases> {
    ["loadbalancerpolicy", "batondataplane"].map(read).into()
}

pub fn read(name: &str) -> Cases {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/cases/{name}.yaml"));
    let text = fs::read_to_string(&file).expect("a file of cases");
    serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

impl Cases {
    pub fn object(&self, patch: &Value) -> Value {
        let mut object = self.smallest.clone();
        json_patch::merge(&mut object, patch);
        object
    }
}
