//! Applies a manifest as `kubectl apply --server-side` does, and gives what the server says: the
//! object as it is stored, the refusal, and the warnings, which come in headers.

use anyhow::{Context, Result};
use http_body_util::BodyExt;
use hyper::{Method, Request};
use kube::{Client, client::Body, core::Status};
use serde_json::Value;

/// The field manager of whoever writes manifests by hand.
pub const ADMIN_MANAGER: &str = "kubectl";

/// What the server answered.
#[derive(Clone, Debug)]
pub struct Applied {
    /// The object as stored, or the refusal.
    pub outcome: Result<Value, Box<Status>>,
    /// The texts of its warnings.
    pub warnings: Vec<String>,
}

impl Applied {
    /// The stored object.
    ///
    /// # Errors
    /// With the server's message, if it refused.
    pub fn object(self) -> Result<Value> {
        self.outcome.map_err(|status| anyhow::anyhow!("{} ({})", status.message, status.code))
    }
}

/// Applies a manifest as the admin would by hand.
///
/// # Errors
/// If there is no answer, or the manifest does not say what it is. A refusal is an answer.
pub async fn apply(client: &Client, manifest: &Value) -> Result<Applied> {
    apply_as(client, manifest, ADMIN_MANAGER, "").await
}

/// Applies a manifest, or one of its subresources (as `/status`), as a field manager. Forces
/// nothing.
pub async fn apply_as(
    client: &Client,
    manifest: &Value,
    manager: &str,
    subresource: &str,
) -> Result<Applied> {
    let path = path(manifest).context("a manifest needs apiVersion, kind and metadata.name")?;
    let uri = format!("{path}{subresource}?fieldManager={manager}&fieldValidation=Strict");
    send(client, Method::PATCH, &uri, "application/apply-patch+yaml", manifest).await
}

/// One request with a JSON body.
pub async fn send(
    client: &Client,
    method: Method,
    uri: &str,
    content_type: &str,
    body: &Value,
) -> Result<Applied> {
    let request = Request::builder()
        .method(method)
        .uri(uri)
        .header("content-type", content_type)
        .body(Body::from(serde_json::to_vec(body)?))?;
    let response = client.send(request).await.with_context(|| uri.to_owned())?;
    let good = response.status().is_success();
    let warnings = response.headers().get_all("warning").iter();
    let warnings = warnings.filter_map(|w| w.to_str().ok()).map(warning_text).collect();
    let bytes = response.into_body().collect().await?.to_bytes();
    let outcome = if good {
        Ok(serde_json::from_slice(&bytes).context("the answer is not JSON")?)
    } else {
        let status = String::from_utf8_lossy(&bytes);
        Err(serde_json::from_str(&status).with_context(|| format!("{uri}: {status}"))?)
    };
    Ok(Applied { outcome, warnings })
}

/// The text of a warning header, as in `299 - "text"`.
pub fn warning_text(header: &str) -> String {
    let text = header.split_once('"').map_or(header, |(_, rest)| rest);
    text.trim_end_matches('"').replace("\\\"", "\"")
}

/// Where the object of a manifest is.
#[must_use]
pub fn path(manifest: &Value) -> Option<String> {
    let version = manifest["apiVersion"].as_str()?;
    let name = manifest["metadata"]["name"].as_str()?;
    let group = if version.contains('/') { "apis" } else { "api" };
    let plural = plural(manifest["kind"].as_str()?);
    Some(match manifest["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("/{group}/{version}/namespaces/{namespace}/{plural}/{name}"),
        None => format!("/{group}/{version}/{plural}/{name}"),
    })
}

/// The plural by which a kind's objects are found.
fn plural(kind: &str) -> String {
    let kind = kind.to_lowercase();
    match kind.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None if kind.ends_with('s') => format!("{kind}es"),
        None => format!("{kind}s"),
    }
}
