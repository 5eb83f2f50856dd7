//! Asks a running dataplane at its control address, over HTTP. Knows no table.

use anyhow::{Context as _, bail};
use baton_api::{CAPTURE, ControlAddress, ErrorReply};
use baton_cli::{Bounded, Dataplane, Fleet, Refused, Stop};
use http_body_util::{BodyExt, Full};
use hyper::{
    Method, Request, Response,
    body::{Bytes, Incoming},
    client::conn::http1,
    header::{CONTENT_TYPE, HOST},
};
use hyper_util::rt::TokioIo;
use rustix::{
    fs::{Mode, OFlags, open},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};
use std::{
    future::pending,
    io::{ErrorKind, Write},
    os::fd::AsFd,
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
    time::timeout,
};

/// The control API's own limit, and a little.
const ANSWER_LIMIT: Duration = Duration::from_secs(12);
/// Some sentences of a refusal.
const COMPLAINT_MAX_BYTES: usize = 64 << 10;

/// Moves this process into a network namespace by its `ip netns` name. Only before any thread is
/// started.
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

/// The one dataplane that listens there.
#[derive(Clone, Copy, Debug)]
pub struct Here(pub ControlAddress);

impl Dataplane for Here {
    fn name(&self) -> &str {
        ""
    }
}

impl Fleet for Here {
    type Dataplane = Self;
    const PODS: bool = false;
    const LOOK: Duration = Duration::from_millis(200);

    fn command(&self, _: Option<&str>, words: &str) -> String {
        format!("lb-dataplane {words}")
    }

    async fn dataplanes(&self) -> anyhow::Result<(Vec<Self>, Vec<String>)> {
        Ok((vec![*self], Vec::new()))
    }

    async fn send(
        &self,
        _: &Self,
        request: &baton_cli::Request,
        out: &mut dyn Write,
    ) -> Result<(), Refused> {
        let control = self.0;
        let unanswered = |error: anyhow::Error| Refused::Unanswered(format!("{error:#}"));
        let slow = || format!("nothing comes from {control}");
        let method = match request.body {
            Some(_) => Method::POST,
            None => Method::GET,
        };
        let body = request.body.clone().unwrap_or_default();
        let begun = timeout(ANSWER_LIMIT, begin(control, method, &request.path, body)).await;
        let answer = begun.with_context(slow).flatten().map_err(unanswered)?;
        let status = answer.status();
        let mut complaint = Bounded::new(COMPLAINT_MAX_BYTES, "it is more than 64 KiB");
        let out = match status.is_success() {
            true => out,
            false => &mut complaint,
        };
        let taking = take(control, answer, request.stop.clone(), out);
        let taken = timeout(ANSWER_LIMIT + request.lasts, taking).await;
        taken.with_context(slow).flatten().map_err(unanswered)?;
        if status.is_success() {
            return Ok(());
        }
        let words = serde_json::from_slice::<ErrorReply>(&complaint.bytes).map_or_else(
            |_| String::from_utf8_lossy(&complaint.bytes).trim().to_owned(),
            |error| error.error,
        );
        // What was asked for is wrong; otherwise the dataplane is in no state to do it.
        Err(match status.is_client_error() {
            true => Refused::Finally(words),
            false => Refused::Unanswered(words),
        })
    }
}

/// A connection of either kind.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

async fn connect(control: ControlAddress) -> anyhow::Result<Box<dyn Stream>> {
    let connected: std::io::Result<Box<dyn Stream>> = match control {
        ControlAddress::Tcp(address) => TcpStream::connect(address).await.map(|s| Box::new(s) as _),
        ControlAddress::Unix(path) => {
            UnixStream::connect(path.as_path()).await.map(|s| Box::new(s) as _)
        }
    };
    connected.map_err(|error| {
        let why = match error.kind() {
            ErrorKind::PermissionDenied => {
                format!(
                    "{control}: only the user that the dataplane runs as may open it: try as root"
                )
            }
            _ => format!(
                "nobody listens at {control}: is it running, and is this its `control:` address?"
            ),
        };
        anyhow::Error::from(error).context(why)
    })
}

/// An answer's head. The task that brings its body ends with it.
async fn begin(
    control: ControlAddress,
    method: Method,
    path: &str,
    body: String,
) -> anyhow::Result<Response<Incoming>> {
    let stream = connect(control).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    // HTTP wants a host; a path names none.
    let host = match control {
        ControlAddress::Tcp(address) => address.to_string(),
        ControlAddress::Unix(_) => "localhost".to_owned(),
    };
    let mut request = Request::builder().method(method).uri(path).header(HOST, host);
    if !body.is_empty() {
        request = request.header(CONTENT_TYPE, "application/json");
    }
    let request = request.body(Full::<Bytes>::from(body))?;
    let answer = sender.send_request(request).await;
    answer.with_context(|| format!("{control} does not answer"))
}

/// Has the dataplane end the capture of a number: its stream goes on to the last block.
async fn end(control: ControlAddress, number: &str) -> anyhow::Result<()> {
    let path = format!("/v1/capture?number={number}");
    let ended = timeout(ANSWER_LIMIT, begin(control, Method::DELETE, &path, String::new())).await;
    // A refusal: it ends by itself at this moment.
    ended.context("the capture cannot be ended").flatten().map(drop)
}

/// Writes an answer to `out` as it comes. The user's first wish has the dataplane end it in order,
/// the second ends it at once.
async fn take(
    control: ControlAddress,
    answer: Response<Incoming>,
    mut stop: Option<Stop>,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let number = answer.headers().get(CAPTURE);
    let mut number = number.and_then(|n| n.to_str().ok()).map(str::to_owned);
    let mut body = answer.into_body();
    let mut wishes = 1;
    loop {
        let wished = async {
            let heard = match &mut stop {
                Some(stop) => stop.wait_for(|all| *all >= wishes).await.is_ok(),
                None => false,
            };
            if !heard {
                pending::<()>().await;
            }
        };
        let frame = tokio::select! {
            biased;
            () = wished => match number.take() {
                Some(number) => {
                    wishes += 1;
                    end(control, &number).await?;
                    continue;
                }
                None => bail!("interrupted; what there is can be read"),
            },
            frame = body.frame() => frame,
        };
        let Some(frame) = frame else { return Ok(()) };
        let frame =
            frame.map_err(|error| anyhow::anyhow!("the answer of {control} broke off: {error}"))?;
        if let Some(data) = frame.data_ref() {
            out.write_all(data)?;
            out.flush()?;
        }
    }
}
