//! The API server's binary form, for the kinds of which a cluster has many.
//!
//! Owns in which form and how new these are asked for, and turns that form into JSON of the fields that matter, which `kube`
//! reads. Writing a Pod as JSON and reading it again costs both sides several times what the binary form does, most of it
//! for fields that nobody here looks at: with 50,000 Pods, seconds of the operator's start. Custom resources have no binary
//! form, and an API server may answer in JSON in spite of being asked: JSON goes through as it is. Keeps no object and
//! watches nothing.

mod frames;
mod json;
mod messages;
#[cfg(test)]
mod tests;

use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::{
    Method, Request, Response, Uri,
    body::Bytes,
    header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue},
};
use kube::{
    Client, Config,
    client::{Body, ClientBuilder, DynBody},
};
use tower::{
    BoxError,
    util::{AndThenLayer, MapRequestLayer},
};

/// What is asked for in the binary form: all objects of a kind.
const PATHS: [&str; 4] = [
    "/api/v1/pods",
    "/api/v1/nodes",
    "/api/v1/services",
    "/apis/discovery.k8s.io/v1/endpointslices",
];
const BINARY: &str = "application/vnd.kubernetes.protobuf";
const ACCEPTED: &str = "application/vnd.kubernetes.protobuf,application/json";

/// A client that asks for the binary form where there is one.
///
/// # Errors
/// The configuration makes no sense.
pub fn client(config: Config) -> kube::Result<Client> {
    let builder = ClientBuilder::try_from(config)?
        .with_layer(&AndThenLayer::new(read))
        .with_layer(&MapRequestLayer::new(ask));
    Ok(builder.build())
}

/// What was sent is not what this form looks like.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// It does not begin as it should.
    #[error("an answer in the binary form does not begin with its mark")]
    Magic,
    /// A field is cut or of another type.
    #[error("an answer in the binary form cannot be read: {0}")]
    Message(#[from] prost::DecodeError),
    /// Nobody asked for this kind.
    #[error("an answer in the binary form is of kind {0}, which nobody asked for")]
    Kind(String),
    /// A value has no JSON.
    #[error("an answer in the binary form has a value that JSON has not: {0}")]
    Json(#[from] serde_json::Error),
}

fn ask(mut request: Request<Body>) -> Request<Body> {
    if let Some(uri) = newest(request.uri()) {
        *request.uri_mut() = uri;
    }
    if request.method() == Method::GET && PATHS.contains(&request.uri().path()) {
        let accepted = HeaderValue::from_static(ACCEPTED);
        request.headers_mut().insert(ACCEPT, accepted);
    }
    request
}

/// A streamed list that is as new as a page that is read from etcd. `kube` asks for one that may be of any age
/// (`resourceVersion=0`): an operator that starts beside an API server that lags would take dataplanes back to what they
/// had before.
fn newest(uri: &Uri) -> Option<Uri> {
    let query = uri.query()?;
    let mut pairs = query.split('&');
    if !pairs.any(|pair| pair == "sendInitialEvents=true") {
        return None;
    }
    let pairs = query.split('&').filter(|pair| *pair != "resourceVersion=0");
    let query = pairs.collect::<Vec<_>>().join("&");
    format!("{}?{query}", uri.path()).parse().ok()
}

/// What `kube` reads.
type BoxedBody = UnsyncBoxBody<Bytes, BoxError>;

async fn read(answer: Response<Box<DynBody>>) -> Result<Response<BoxedBody>, BoxError> {
    let kind = answer.headers().get(CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let mut parts = kind.split(';').map(str::trim);
    if parts.next() != Some(BINARY) {
        return Ok(answer.map(BodyExt::boxed_unsync));
    }
    let watches = parts.any(|parameter| parameter == "stream=watch");
    let (mut head, body) = answer.into_parts();
    head.headers.remove(CONTENT_LENGTH);
    head.headers
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let body = if watches {
        frames::lines(body)
    } else {
        let whole = body.collect().await?.to_bytes();
        Full::new(json::whole(whole)?.into())
            .map_err(|never| match never {})
            .boxed_unsync()
    };
    Ok(Response::from_parts(head, body))
}
