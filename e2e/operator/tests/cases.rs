//! The API server accepts and refuses what `baton-operator check` accepts and refuses, at the same
//! field, rules also with the same message. The cases are those of the offline check,
//! `crds/tests/cases`.

use anyhow::{Context, Result};
use baton_operator_tests::{
    apply::{Applied, apply, path, send},
    cluster::cluster,
    manifests, or_skip,
};
use hyper::Method;
use kube::{Client, core::Status};
use serde_json::{Value, json};

/// Creates the object without storing it, as `kubectl create --dry-run=server` does.
async fn create(client: &Client, object: &Value) -> Result<Applied> {
    let mut named = object.clone();
    named["metadata"]["name"] = "any".into();
    let path = path(&named).with_context(|| object.to_string())?;
    let uri = path.strip_suffix("/any").context("the collection of an object")?;
    let uri = format!("{uri}?dryRun=All&fieldValidation=Strict");
    send(client, Method::POST, &uri, "application/json", object).await
}

/// What is not as the case says; nothing if all is.
fn mismatch(status: &Status, field: &str, message: &str, by: &str) -> Option<String> {
    let causes = status.details.as_ref().map(|d| d.causes.as_slice()).unwrap_or_default();
    let told = || format!("expected {field}: {message}, got {}: {causes:?}", status.message);
    let good = match by {
        "rule" => {
            matches!(causes, [cause] if cause.field == field && cause.message.contains(message))
        }
        // The server goes on to the rules that can still be asked, and says `<nil>` of those that
        // cannot.
        "schema" => causes.iter().any(|cause| cause.field == field),
        "strict" => status.message.contains(field),
        _ => false,
    };
    (!good).then(told)
}

async fn check(client: &Client, file: &str, wrong: &mut Vec<String>) -> Result<usize> {
    let file = manifests::root().join("crds/tests/cases").join(file);
    let [cases] = manifests::read(&file)?.try_into().ok().context("one document")?;
    let smallest = &cases["smallest"];
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut refused = 0;
    for case in list(&cases["cases"]) {
        let text = |key: &str| case[key].as_str().unwrap_or_default();
        for patch in list(&case["accepted"]) {
            let mut object = smallest.clone();
            json_patch::merge(&mut object, &patch);
            let answer = create(client, &object).await?;
            if let Err(status) = &answer.outcome {
                wrong.push(format!("{patch}: expected to be accepted, got {}", status.message));
            } else if !answer.warnings.is_empty() {
                wrong.push(format!("{patch}: accepted with warnings: {:?}", answer.warnings));
            }
        }
        for patch in list(&case["refused"]) {
            refused += 1;
            let mut object = smallest.clone();
            json_patch::merge(&mut object, &patch);
            match create(client, &object).await?.outcome {
                Ok(_) => wrong.push(format!(
                    "{patch}: accepted, expected {}: {}",
                    text("field"),
                    text("message")
                )),
                Err(status) => {
                    let found = mismatch(&status, text("field"), text("message"), text("by"));
                    wrong.extend(found.map(|found| format!("{patch}: {found}")));
                }
            }
        }
    }
    Ok(refused)
}

#[tokio::test]
async fn the_server_judges_every_case_as_the_offline_check_does() -> Result<()> {
    let cluster = or_skip!(cluster().await?);
    // The namespace of the cases.
    let namespace =
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "shop" } });
    apply(&cluster.admin, &namespace).await?.object()?;
    let mut wrong = Vec::new();
    let mut refused = 0;
    for file in ["loadbalancerpolicy.yaml", "batondataplane.yaml"] {
        refused += check(&cluster.admin, file, &mut wrong).await?;
    }
    assert!(wrong.is_empty(), "{} of the cases:\n{}", wrong.len(), wrong.join("\n"));
    assert!(refused > 100, "only {refused} cases");
    println!("{refused} objects refused as expected");
    Ok(())
}
