//! Asks a running dataplane over HTTP. Knows no table.

use anyhow::{Context as _, bail};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Method, Request, StatusCode,
    body::Bytes,
    client::conn::http1,
    header::{CONTENT_TYPE, HOST},
};
use hyper_util::rt::TokioIo;
use rustix::{
    fs::{Mode, OFlags, open},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};
use std::{net::SocketAddr, os::fd::AsFd, time::Duration};
use tokio::{net::TcpStream, time::timeout};

use crate::control::reply::{ErrorReply, TRUNCATED};

/// The control API's own limit, and a little.
const ANSWER_LIMIT: Duration = Duration::from_secs(12);
/// 100,000 flows of about 300 bytes, the most that can be asked for.
const ANSWER_LIMIT_BYTES: usize = 64 << 20;

/// Moves this process into a network namespace by its `ip netns` name. Only before any thread is started.
///
/// # Errors
/// There is none of that name, or CAP_SYS_ADMIN is missing.
pub fn enter_netns(name: &str) -> anyhow::Result<()> {
    if name.is_empty() || name.contains('/') {
        bail!("`--netns {name}`: expected a name as `ip netns list` shows it");
    }
    let path = format!("/run/netns/{name}");
    let file = open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .with_context(|| format!("`--netns {name}`: {path} cannot be opened"))?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
        .with_context(|| format!("`--netns {name}`: entering it needs CAP_SYS_ADMIN"))
}

/// A good answer.
pub struct Answer {
    /// Its body.
    pub body: Bytes,
    /// It says that there is more.
    pub truncated: bool,
}

/// The dataplane answered, and says no.
#[derive(Debug, thiserror::Error)]
#[error("the dataplane at {control} refuses {path}: {words}")]
pub struct Refusal {
    control: SocketAddr,
    path: String,
    words: String,
    status: StatusCode,
}

impl Refusal {
    /// What was asked for is wrong; otherwise the dataplane is in no state to do it.
    pub fn is_final(&self) -> bool {
        self.status.is_client_error()
    }

    /// What the dataplane says.
    pub fn words(&self) -> &str {
        &self.words
    }
}

/// Gets `path`.
///
/// # Errors
/// Nobody answers, or the answer is a [`Refusal`].
pub async fn get(control: SocketAddr, path: &str) -> anyhow::Result<Answer> {
    let request = Request::get(path)
        .header(HOST, control.to_string())
        .body(Full::default())?;
    send(control, path, request).await
}

/// Posts JSON to `path`.
///
/// # Errors
/// Nobody answers, or the answer is a [`Refusal`].
pub async fn post(control: SocketAddr, path: &str, body: Vec<u8>) -> anyhow::Result<Answer> {
    let request = Request::builder()
        .method(Method::POST)
        .uri(path)
        .header(HOST, control.to_string())
        .header(CONTENT_TYPE, "application/json")
        .body(Full::from(body))?;
    send(control, path, request).await
}

async fn send(
    control: SocketAddr,
    path: &str,
    request: Request<Full<Bytes>>,
) -> anyhow::Result<Answer> {
    timeout(ANSWER_LIMIT, send_inner(control, path, request))
        .await
        .with_context(|| format!("the dataplane at {control} does not answer"))?
}

async fn send_inner(
    control: SocketAddr,
    path: &str,
    request: Request<Full<Bytes>>,
) -> anyhow::Result<Answer> {
    let stream = TcpStream::connect(control).await.with_context(|| {
        format!(
            "no dataplane answers at {control}: is it running, and is this its `control:` address?"
        )
    })?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let answer = sender
        .send_request(request)
        .await
        .with_context(|| format!("the dataplane at {control} does not answer"))?;
    let status = answer.status();
    let truncated = answer.headers().get(TRUNCATED).is_some_and(|t| t == "true");
    let body = Limited::new(answer.into_body(), ANSWER_LIMIT_BYTES)
        .collect()
        .await
        .map_err(|error| anyhow::anyhow!("the answer of {control} broke off: {error}"))?
        .to_bytes();
    connection.abort();
    if !status.is_success() {
        let words = serde_json::from_slice::<ErrorReply>(&body).map_or_else(
            |_| String::from_utf8_lossy(&body).trim().to_owned(),
            |error| error.error,
        );
        return Err(Refusal {
            control,
            path: path.to_owned(),
            words,
            status,
        }
        .into());
    }
    Ok(Answer { body, truncated })
}
