//! Asks a running dataplane over HTTP. Knows no table.

use anyhow::{Context as _, bail};
use baton_api::{CAPTURE, ControlAddress, ErrorReply, TRUNCATED};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    client::conn::http1,
    header::{CONTENT_TYPE, HOST},
    http::request,
};
use hyper_util::rt::TokioIo;
use rustix::{
    fs::{Mode, OFlags, open},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};
use serde::{Serialize, de::DeserializeOwned};
use std::{io::ErrorKind, os::fd::AsFd, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
    sync::mpsc,
    task::JoinHandle,
    time::timeout,
};

/// The control API's own limit, and a little.
const ANSWER_LIMIT: Duration = Duration::from_secs(12);
/// 100,000 flows of about 300 bytes, the most that can be asked for.
const ANSWER_LIMIT_BYTES: usize = 64 << 20;

/// Some sentences of a refusal.
const COMPLAINT_MAX_BYTES: usize = 64 << 10;

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
    control: ControlAddress,
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

fn request(method: Method, control: ControlAddress, path: &str) -> request::Builder {
    // HTTP wants a host; a path names none.
    let host = match control {
        ControlAddress::Tcp(address) => address.to_string(),
        ControlAddress::Unix(_) => "localhost".to_owned(),
    };
    Request::builder()
        .method(method)
        .uri(path)
        .header(HOST, host)
}

/// Gets `path`.
///
/// # Errors
/// Nobody answers, or the answer is a [`Refusal`].
pub async fn get(control: ControlAddress, path: &str) -> anyhow::Result<Answer> {
    let request = request(Method::GET, control, path).body(Full::default())?;
    send(control, path, request).await
}

/// Posts an order to `path`; the inner error says that it is not taken.
///
/// # Errors
/// Nobody answers, or the dataplane is in no state to do it.
pub async fn order<T: DeserializeOwned>(
    control: ControlAddress,
    path: &str,
    order: &impl Serialize,
) -> anyhow::Result<Result<T, Refusal>> {
    let request = request(Method::POST, control, path)
        .header(CONTENT_TYPE, "application/json")
        .body(Full::from(serde_json::to_vec(order)?))?;
    match send(control, path, request).await {
        Ok(answer) => parse(&answer.body).map(Ok),
        Err(error) => match error.downcast::<Refusal>() {
            Ok(refusal) if refusal.is_final() => Ok(Err(refusal)),
            Ok(refusal) => Err(refusal.into()),
            Err(error) => Err(error),
        },
    }
}

/// Reads an answer's body.
///
/// # Errors
/// It is of another version.
pub fn parse<T: DeserializeOwned>(body: &[u8]) -> anyhow::Result<T> {
    serde_json::from_slice(body).context("the answer is none of this version's")
}

/// A path with those values that there are; everything in them that is not in a name is escaped.
pub fn path<'a>(base: &str, query: impl IntoIterator<Item = (&'a str, Option<String>)>) -> String {
    let mut path = base.to_owned();
    let given = query.into_iter().filter_map(|(n, value)| Some((n, value?)));
    for (i, (name, value)) in given.enumerate() {
        path.push(if i == 0 { '?' } else { '&' });
        path.push_str(name);
        path.push('=');
        for byte in value.bytes() {
            if byte.is_ascii_alphanumeric() || b"-._/".contains(&byte) {
                path.push(char::from(byte));
            } else {
                path.push_str(&format!("%{byte:02X}"));
            }
        }
    }
    path
}

async fn send(
    control: ControlAddress,
    path: &str,
    request: Request<Full<Bytes>>,
) -> anyhow::Result<Answer> {
    timeout(ANSWER_LIMIT, send_inner(control, path, request))
        .await
        .with_context(|| format!("the dataplane at {control} does not answer"))?
}

/// A connection of either kind.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

async fn connect(control: ControlAddress) -> anyhow::Result<Box<dyn Stream>> {
    let connected: std::io::Result<Box<dyn Stream>> = match control {
        ControlAddress::Tcp(address) => TcpStream::connect(address).await.map(|s| Box::new(s) as _),
        ControlAddress::Unix(path) => UnixStream::connect(path.as_path())
            .await
            .map(|s| Box::new(s) as _),
    };
    connected.map_err(|error| {
        if error.kind() == ErrorKind::PermissionDenied {
            let who = "only the user that the dataplane runs as may open it: try as root";
            return anyhow::Error::from(error).context(format!("{control}: {who}"));
        }
        anyhow::Error::from(error).context(format!(
            "no dataplane answers at {control}: is it running, and is this its `control:` address?"
        ))
    })
}

/// An answer's head, and the task that brings its body.
type Open = (Response<Incoming>, JoinHandle<hyper::Result<()>>);

async fn begin(control: ControlAddress, request: Request<Full<Bytes>>) -> anyhow::Result<Open> {
    let stream = connect(control).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let answer = sender
        .send_request(request)
        .await
        .with_context(|| format!("the dataplane at {control} does not answer"))?;
    Ok((answer, connection))
}

/// Has the dataplane end the capture of a number: its stream goes on to the last block.
async fn end(control: ControlAddress, number: &str) -> anyhow::Result<()> {
    let path = format!("/v1/capture?number={number}");
    let request = request(Method::DELETE, control, &path).body(Full::default())?;
    match send(control, &path, request).await {
        Ok(_) => Ok(()),
        // It ends by itself at this moment.
        Err(error) if error.downcast_ref().is_some_and(Refusal::is_final) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Gets `path`, whose answer takes up to `limit`, and gives each part of it to `taker` as it comes. The first of `wishes` has the
/// dataplane end it in order, the second ends it at once.
///
/// # Errors
/// Nobody answers, the answer is a [`Refusal`], it breaks off or is broken off, or `taker` says no.
pub async fn stream(
    control: ControlAddress,
    path: &str,
    limit: Duration,
    mut wishes: mpsc::Receiver<()>,
    mut taker: impl FnMut(&[u8]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let request = request(Method::GET, control, path).body(Full::default())?;
    let slow = || format!("the dataplane at {control} does not answer");
    let (answer, connection) = timeout(ANSWER_LIMIT, begin(control, request))
        .await
        .with_context(slow)??;
    let good = answer.status().is_success();
    let status = answer.status();
    let number = answer.headers().get(CAPTURE);
    let mut number = number.and_then(|n| n.to_str().ok()).map(str::to_owned);
    let mut body = answer.into_body();
    let mut complaint = Vec::new();
    let taking = async {
        loop {
            let frame = tokio::select! {
                biased;
                Some(()) = wishes.recv() => match number.take() {
                    Some(number) => {
                        end(control, &number).await?;
                        continue;
                    }
                    None => bail!("interrupted; what there is can be read"),
                },
                frame = body.frame() => frame,
            };
            let Some(frame) = frame else { break };
            let frame = frame
                .map_err(|error| anyhow::anyhow!("the answer of {control} broke off: {error}"))?;
            let data = frame.data_ref().map(AsRef::as_ref).unwrap_or_default();
            if good {
                taker(data)?;
            } else if complaint.len() < COMPLAINT_MAX_BYTES {
                complaint.extend_from_slice(data);
            }
        }
        anyhow::Ok(())
    };
    timeout(limit + ANSWER_LIMIT, taking)
        .await
        .with_context(slow)??;
    connection.abort();
    if good {
        return Ok(());
    }
    Err(refusal(control, path, status, &complaint).into())
}

fn refusal(control: ControlAddress, path: &str, status: StatusCode, body: &[u8]) -> Refusal {
    let words = serde_json::from_slice::<ErrorReply>(body).map_or_else(
        |_| String::from_utf8_lossy(body).trim().to_owned(),
        |error| error.error,
    );
    Refusal {
        control,
        path: path.to_owned(),
        words,
        status,
    }
}

async fn send_inner(
    control: ControlAddress,
    path: &str,
    request: Request<Full<Bytes>>,
) -> anyhow::Result<Answer> {
    let (answer, connection) = begin(control, request).await?;
    let status = answer.status();
    let truncated = answer.headers().get(TRUNCATED).is_some_and(|t| t == "true");
    let body = Limited::new(answer.into_body(), ANSWER_LIMIT_BYTES)
        .collect()
        .await
        .map_err(|error| anyhow::anyhow!("the answer of {control} broke off: {error}"))?
        .to_bytes();
    connection.abort();
    if !status.is_success() {
        return Err(refusal(control, path, status, &body).into());
    }
    Ok(Answer { body, truncated })
}
