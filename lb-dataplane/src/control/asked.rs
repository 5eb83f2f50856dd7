//! What is asked of the control API, as far as it is alike for all paths: small bodies of JSON,
//! words in a query, and who must not ask.

use super::reply::{Reply, json};
use baton_api::ErrorReply;
use http_body_util::{BodyExt, Limited};
use hyper::{
    HeaderMap, Request, StatusCode,
    body::Body,
    header::{CONTENT_TYPE, ORIGIN},
};
use serde::de::DeserializeOwned;

/// Bytes of a request: some names and words.
const REQUEST_LIMIT_BYTES: usize = 4 << 10;

/// Refuses what a web page has a browser send here: a page of another site cannot set the type of a
/// POST to JSON without being asked for by OPTIONS first, which this API does not answer, and a
/// browser always says its origin.
pub fn refuse_browsers(headers: &HeaderMap, needs_json: bool) -> Option<Reply> {
    if headers.contains_key(ORIGIN) {
        return Some(json(
            StatusCode::FORBIDDEN,
            &ErrorReply {
                error: "requests of web pages are refused".to_owned(),
                field: Some("origin".to_owned()),
                expected: Some("no such header".to_owned()),
            },
        ));
    }
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind = kind.map(|kind| kind.split(';').next().unwrap_or_default().trim());
    if needs_json && !kind.is_some_and(|kind| kind.eq_ignore_ascii_case("application/json")) {
        return Some(json(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            &ErrorReply {
                error: "the body is not said to be JSON".to_owned(),
                field: Some("content-type".to_owned()),
                expected: Some("application/json".to_owned()),
            },
        ));
    }
    None
}

/// What a small body of JSON orders, or why it is refused.
pub async fn order<T, B>(request: Request<B>, expected: &str) -> Result<T, Reply>
where
    T: DeserializeOwned,
    B: Body,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    if let Some(refusal) = refuse_browsers(request.headers(), true) {
        return Err(refusal);
    }
    let body = Limited::new(request.into_body(), REQUEST_LIMIT_BYTES).collect().await;
    let body = body.map_err(|error| {
        json(
            StatusCode::BAD_REQUEST,
            &ErrorReply::new(format!("the body could not be read: {error}")),
        )
    })?;
    serde_json::from_slice(&body.to_bytes()).map_err(|error| {
        json(
            StatusCode::UNPROCESSABLE_ENTITY,
            &ErrorReply {
                error: error.to_string(),
                field: None,
                expected: Some(expected.to_owned()),
            },
        )
    })
}

/// Names hold letters, digits and `-._/`, of which clients may escape the slash.
pub fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let escaped = tail
            .first_chunk::<2>()
            .filter(|_| *first == b'%')
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
