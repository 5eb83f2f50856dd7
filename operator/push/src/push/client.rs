//! HTTP/1.1 to one control API, over one connection that is kept.
//!
//! Owns the connection, time limits and sizes, and what each status code means. Decides nothing.

use super::{
    Connect, Refusal, Rendered, Settings, ShimState, States,
    compare::Comparison,
    outgoing::Outgoing,
    session::{Answer, Request as Ask},
    split::{Splitter, TooLarge},
};
use crate::keys::{LiveKeys, Stored};
use baton_api::{ErrorReply, LIMIT_POLICIES, RefusedPolicy, State};
use baton_tls::Name;
use http_body_util::{BodyExt, Limited};
use hyper::{
    Request, Response, StatusCode,
    body::{Bytes, Incoming},
    client::conn::http1,
    header::{CONTENT_TYPE, HOST},
};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use std::{error::Error, net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    task::AbortHandle,
    time::{Instant, timeout},
};
use tracing::warn;

/// Bytes of a dataplane's state: 50,000 backends take about 25 MB. They are read piece by piece.
const STATE_LIMIT_BYTES: usize = 64 << 20;
/// Bytes of a shim's state: a thousand pods of a node take some 200 KB.
const LIMIT_SHIM_BYTES: usize = 4 << 20;
/// Bytes of a connection that are read or written at a time. There may be thousands of connections,
/// and they are kept.
const LIMIT_BUFFER_BYTES: usize = 64 << 10;
/// Bytes of a snapshot that is read back: four times what a dataplane takes.
const SNAPSHOT_LIMIT_BYTES: usize = 64 << 20;
/// Bytes of an error.
pub(super) const ERROR_LIMIT_BYTES: usize = 64 << 10;
/// Bytes of the answer to a push: 1,024 refused policies with 600 bytes each.
const REPLY_LIMIT_BYTES: usize = 1 << 20;
/// Characters of an error that go into a report.
const ERROR_SHOWN_CHARS: usize = 400;
/// A connection that is older is made anew, so that a certificate that was replaced is not shown
/// for ever.
const CONNECTION_AGE_MAX: Duration = Duration::from_secs(3_600);

/// What came of a request, beside the answer.
#[derive(Debug)]
pub(super) enum Found {
    /// Nothing.
    Nothing,
    /// A dataplane's state.
    Dataplane(Arc<State>, Vec<String>),
    /// A shim's state.
    Shim(Arc<ShimState>),
    /// What a dataplane took of a push: all but these policies.
    Taken(Vec<RefusedPolicy>),
}

/// A request's end.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) answer: Answer,
    pub(super) found: Found,
    /// From the request to the whole answer.
    pub(super) took: Duration,
    /// Of the body that came, or of the one that was sent.
    pub(super) bytes: usize,
}

/// Who is asked.
pub(super) enum Server {
    Dataplane,
    /// Gets the keys of its node.
    Shim {
        node: String,
        keys: LiveKeys,
    },
}

impl Server {
    fn name(&self) -> Name {
        match self {
            Self::Dataplane => Name::Dataplane,
            Self::Shim { .. } => Name::Shim,
        }
    }
}

/// One control API.
pub(super) struct Client {
    connect: Arc<dyn Connect>,
    settings: Arc<Settings>,
    address: SocketAddr,
    server: Server,
    name: Arc<str>,
    states: Arc<dyn States>,
    link: Option<Link>,
    /// It was said that some of the dataplane's policies cannot be read.
    unread_told: bool,
}

struct Link {
    sender: http1::SendRequest<Outgoing>,
    /// Drives the connection; ends with the link.
    driver: AbortHandle,
    since: Instant,
    used: bool,
    /// What the shim at its end was sent.
    keys: Option<Arc<Stored>>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Why there is no answer that makes sense.
enum Failure {
    /// The connection ended before any of the answer came. On one that was used before, that is how
    /// a server closes what idles.
    Gone(String),
    /// Anything else.
    Other(String),
}

impl Client {
    /// Connects with the first request.
    pub(super) fn new(
        connect: Arc<dyn Connect>,
        settings: Arc<Settings>,
        address: SocketAddr,
        server: Server,
        name: Arc<str>,
        states: Arc<dyn States>,
    ) -> Self {
        Self { connect, settings, address, server, name, states, link: None, unread_told: false }
    }

    /// Asks. `content` is the newest of the class: what is read is compared with it, and a push
    /// takes it.
    pub(super) async fn ask(&mut self, ask: Ask, content: Option<&Arc<Rendered>>) -> Done {
        let began = Instant::now();
        let limit = self.settings.connect_timeout + self.settings.request_timeout;
        // The limit of the connection is in it; a request may then take the rest.
        let result = match timeout(limit, self.ask_twice(ask, content)).await {
            Ok(result) => result,
            Err(_) => Err(format!("no answer within {limit:?}")),
        };
        let took = began.elapsed();
        match result {
            Ok((mut answer, found, bytes)) => {
                if let Answer::State { took: told, .. } = &mut answer {
                    *told = took;
                }
                Done { answer, found, took, bytes }
            }
            Err(problem) => {
                self.link = None;
                Done { answer: Answer::Failed(problem), found: Found::Nothing, took, bytes: 0 }
            }
        }
    }

    /// A server may close a kept connection in the moment in which it is used. All requests may be
    /// repeated, so it is asked once more.
    async fn ask_twice(
        &mut self,
        ask: Ask,
        content: Option<&Arc<Rendered>>,
    ) -> Result<(Answer, Found, usize), String> {
        let kept = self.link.as_ref().is_some_and(|link| link.used);
        match self.ask_once(ask, content).await {
            Err(Failure::Gone(_)) if kept => {
                self.link = None;
                self.ask_once(ask, content).await
            }
            result => result,
        }
        .map_err(|failure| match failure {
            Failure::Gone(problem) | Failure::Other(problem) => problem,
        })
    }

    async fn ask_once(
        &mut self,
        ask: Ask,
        content: Option<&Arc<Rendered>>,
    ) -> Result<(Answer, Found, usize), Failure> {
        let (name, states) = (Arc::clone(&self.name), Arc::clone(&self.states));
        let (method, path, body) = match ask {
            Ask::Read => ("GET", "/v1/snapshot", Outgoing::empty()),
            Ask::Poll => ("GET", "/v1/state", Outgoing::empty()),
            Ask::Put { generation, .. } => {
                let content = content.ok_or_else(|| Failure::Other("no content".to_owned()))?;
                ("PUT", "/v1/snapshot", Outgoing::new(content, generation))
            }
        };
        let sent = body.left_bytes();
        let response = self.request(method, path, body).await?;
        match ask {
            Ask::Read => read(response, content).await,
            Ask::Poll if matches!(self.server, Server::Shim { .. }) => {
                let state = shim(response).await.map_err(Failure::Other)?;
                return self.keep_keys(state).await.map(Looked::told);
            }
            Ask::Poll => dataplane(response, &name, &*states, &mut self.unread_told).await,
            Ask::Put { .. } => put(response, content)
                .await
                .map(|(answer, found)| (answer, found, usize::try_from(sent).unwrap_or(0))),
        }
        .map_err(Failure::Other)
    }

    /// Sends one request, over the kept connection or a new one.
    async fn request(
        &mut self,
        method: &str,
        path: &str,
        body: Outgoing,
    ) -> Result<Response<Incoming>, Failure> {
        let address = self.address;
        let link = self.link().await.map_err(Failure::Other)?;
        link.used = true;
        let mut request =
            Request::builder().method(method).uri(path).header(HOST, address.to_string());
        if method == "PUT" {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let request = request.body(body).map_err(|error| Failure::Other(chain(&error)))?;
        let sent = link.sender.send_request(request).await;
        sent.map_err(|error| Failure::Gone(chain(&error)))
    }

    /// Sends a shim the keys of its node, if it was not sent them over this connection or lacks one
    /// of them. It may have started again in between, but then the connection is another one. One
    /// on an excluded node is sent none.
    async fn keep_keys(&mut self, found: Looked) -> Result<Looked, Failure> {
        let Server::Shim { node, keys } = &self.server else {
            return Ok(found);
        };
        let wanted = keys.borrow().clone();
        let (Some(wanted), true) = (wanted, found.state.takes_keys) else {
            return Ok(found);
        };
        if wanted.excluded.contains(node) {
            return Ok(found);
        }
        let sent = self.link.as_ref().and_then(|link| link.keys.as_ref());
        if sent.is_some_and(|sent| sent.keys == wanted.keys)
            && wanted.keys.is_had_by(&found.state.key_epochs)
        {
            return Ok(found);
        }
        let body = serde_json::to_vec(&wanted.keys.of_node(node));
        let body = body.map_err(|error| Failure::Other(chain(&error)))?;
        let response = self.request("PUT", "/v1/keys", Outgoing::whole(body));
        // It tells its state again.
        let found = shim(response.await?).await;
        let found = found.map_err(|problem| Failure::Other(format!("its keys: {problem}")))?;
        if let Some(link) = &mut self.link {
            link.keys = Some(wanted);
        }
        Ok(found)
    }

    /// The kept connection, or a new one.
    async fn link(&mut self) -> Result<&mut Link, String> {
        let usable = match &mut self.link {
            Some(link) => {
                link.since.elapsed() < CONNECTION_AGE_MAX && link.sender.ready().await.is_ok()
            }
            None => false,
        };
        if !usable {
            self.link = None;
            let limit = self.settings.connect_timeout;
            let name = self.server.name();
            let opened = timeout(limit, self.connect.connect(self.address, name)).await;
            let stream = match opened {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => {
                    return Err(format!("cannot connect to {}: {}", self.address, chain(&error)));
                }
                Err(_) => {
                    return Err(format!("no connection to {} within {limit:?}", self.address));
                }
            };
            let (sender, connection) = http1::Builder::new()
                .max_buf_size(LIMIT_BUFFER_BYTES)
                .handshake(TokioIo::new(stream))
                .await
                .map_err(|error| chain(&error))?;
            // How it ends shows with the requests.
            let driver = tokio::spawn(async move { drop(connection.await) }).abort_handle();
            self.link =
                Some(Link { sender, driver, since: Instant::now(), used: false, keys: None });
        }
        self.link.as_mut().ok_or_else(|| "no connection".to_owned())
    }
}

/// `GET /v1/snapshot`.
async fn read(
    response: Response<Incoming>,
    content: Option<&Arc<Rendered>>,
) -> Result<(Answer, Found, usize), String> {
    if response.status() == StatusCode::NOT_FOUND {
        // A dataplane that has had no snapshot yet. Anybody else answers a push that way too, which
        // is a failure.
        let length = whole(response.into_body(), ERROR_LIMIT_BYTES).await?.len();
        let (generation, version) = (0, None);
        let answer = Answer::Holds { generation, version };
        return Ok((answer, Found::Nothing, length));
    }
    if response.status() != StatusCode::OK {
        return Err(unexpected(response).await);
    }
    let mut comparison = Comparison::new(content);
    let length = snapshot(response.into_body(), |data| comparison.feed(data)).await?;
    let (generation, same) = comparison.finish().map_err(|error| error.to_string())?;
    let version = content.filter(|_| same).map(|content| content.version());
    Ok((Answer::Holds { generation, version }, Found::Nothing, length))
}

/// What a shim says of itself.
struct Looked {
    state: ShimState,
    bytes: usize,
}

impl Looked {
    fn told(self) -> (Answer, Found, usize) {
        let answer = Answer::State {
            generation: 0,
            uptime_seconds: self.state.uptime_seconds,
            took: Duration::ZERO,
        };
        (answer, Found::Shim(Arc::new(self.state)), self.bytes)
    }
}

/// `GET /v1/state` or `PUT /v1/keys` of a shim.
async fn shim(response: Response<Incoming>) -> Result<Looked, String> {
    if response.status() != StatusCode::OK {
        return Err(unexpected(response).await);
    }
    let body = whole(response.into_body(), LIMIT_SHIM_BYTES).await?;
    let state: ShimState = serde_json::from_slice(&body).map_err(|error| no_state(&error))?;
    Ok(Looked { state, bytes: body.len() })
}

/// `GET /v1/state` of a dataplane. Its policies are told one by one while they come.
async fn dataplane(
    response: Response<Incoming>,
    name: &str,
    states: &dyn States,
    unread_told: &mut bool,
) -> Result<(Answer, Found, usize), String> {
    /// Read in a pass of its own: flattened into one type with the state, serde would keep the
    /// whole in between.
    #[derive(Deserialize)]
    struct Words {
        #[serde(default)]
        problems: Vec<String>,
    }
    if response.status() != StatusCode::OK {
        return Err(unexpected(response).await);
    }
    let mut reading = states.begin(name);
    let mut splitter = Splitter::default();
    // Those of a newer version may have words that this one does not know: the others are told.
    let (mut unread, mut why) = (0_usize, None);
    let mut body = response.into_body();
    let mut length: usize = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| chain(&error))?;
        let Some(data) = frame.data_ref() else {
            continue;
        };
        length += data.len();
        if length > STATE_LIMIT_BYTES {
            return Err(format!(
                "the answer to GET /v1/state has more than {STATE_LIMIT_BYTES} bytes"
            ));
        }
        splitter
            .feed(data, |policy| {
                match serde_json::from_slice(policy) {
                    Ok(policy) => reading.policy(policy),
                    Err(error) => {
                        unread += 1;
                        why.get_or_insert(error);
                    }
                }
                Ok::<_, TooLarge>(())
            })
            .map_err(|error| no_state(&error))?;
    }
    let rest = splitter.finish();
    let mut state: State = serde_json::from_slice(&rest).map_err(|error| no_state(&error))?;
    state.refused = plain(state.refused);
    let Words { problems } = serde_json::from_slice(&rest).map_err(|error| no_state(&error))?;
    let told = std::mem::replace(unread_told, why.is_some());
    if let (Some(error), false) = (why, told) {
        warn!(
            target_name = name,
            unread,
            %error,
            "the state of policies cannot be read, that of the others is: is this dataplane of another version?"
        );
    }
    reading.whole(&state);
    let answer = Answer::State {
        generation: state.generation,
        uptime_seconds: state.uptime_seconds,
        took: Duration::ZERO,
    };
    Ok((answer, Found::Dataplane(Arc::new(state), problems), length))
}

fn no_state(error: &dyn Error) -> String {
    format!("the answer to GET /v1/state is no state: {error}")
}

/// `PUT /v1/snapshot`.
async fn put(
    response: Response<Incoming>,
    content: Option<&Arc<Rendered>>,
) -> Result<(Answer, Found), String> {
    /// The part of the answer that is of use.
    #[derive(Default, Deserialize)]
    struct Taken {
        #[serde(default)]
        refused: Vec<RefusedPolicy>,
    }
    match response.status() {
        StatusCode::OK => {
            // Read to the end so that the connection can be used again.
            let body = whole(response.into_body(), REPLY_LIMIT_BYTES).await?;
            // What it does not say, its state says a little later.
            let Taken { refused } = serde_json::from_slice(&body).unwrap_or_default();
            Ok((Answer::Accepted, Found::Taken(plain(refused))))
        }
        StatusCode::CONFLICT => {
            whole(response.into_body(), ERROR_LIMIT_BYTES).await?;
            Ok((Answer::Conflict, Found::Nothing))
        }
        StatusCode::UNPROCESSABLE_ENTITY | StatusCode::PAYLOAD_TOO_LARGE => {
            let refusal = refusal(response, content).await;
            Ok((Answer::Refused(refusal), Found::Nothing))
        }
        _ => Err(unexpected(response).await),
    }
}

async fn refusal(response: Response<Incoming>, content: Option<&Arc<Rendered>>) -> Refusal {
    let status = response.status();
    let body = whole(response.into_body(), ERROR_LIMIT_BYTES).await;
    let reply: Option<ErrorReply> =
        body.as_ref().ok().and_then(|body| serde_json::from_slice(body).ok());
    let Some(reply) = reply else {
        return Refusal { problem: status.to_string(), ..Refusal::default() };
    };
    let policy = reply
        .field
        .as_deref()
        .and_then(policy_index)
        .zip(content)
        .and_then(|(index, content)| content.policy_name(index))
        .map(str::to_owned);
    Refusal {
        policy,
        field: reply.field.map(|field| shortened(&field)),
        problem: shortened(&reply.error),
        expected: reply.expected.map(|expected| shortened(&expected)),
    }
}

/// What a dataplane says of policies that it cannot take.
fn plain(mut refused: Vec<RefusedPolicy>) -> Vec<RefusedPolicy> {
    refused.truncate(LIMIT_POLICIES);
    for one in &mut refused {
        one.message = shortened(&one.message);
    }
    refused
}

/// `policies[3].backends[1].name` is about policy 3.
fn policy_index(field: &str) -> Option<usize> {
    let (index, _) = field.strip_prefix("policies[")?.split_once(']')?;
    index.parse().ok()
}

/// What an answer says that is none of those expected.
/// Gives each part of a snapshot in force to `feed` as it comes; how many bytes there were.
pub(super) async fn snapshot<E: ToString>(
    mut body: Incoming,
    mut feed: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<usize, String> {
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| chain(&error))?;
        let data = frame.data_ref().map(AsRef::as_ref).unwrap_or_default();
        length += data.len();
        if length > SNAPSHOT_LIMIT_BYTES {
            return Err(format!(
                "the snapshot in force has more than {SNAPSHOT_LIMIT_BYTES} bytes"
            ));
        }
        feed(data).map_err(|error| error.to_string())?;
    }
    Ok(length)
}

pub(super) async fn unexpected(response: Response<Incoming>) -> String {
    let status = response.status();
    let text = match whole(response.into_body(), ERROR_LIMIT_BYTES).await {
        Ok(body) => match serde_json::from_slice::<ErrorReply>(&body) {
            Ok(reply) => reply.error,
            Err(_) => String::from_utf8_lossy(&body).into_owned(),
        },
        Err(problem) => problem,
    };
    format!("{status}: {}", shortened(text.trim()))
}

pub(super) async fn whole(body: Incoming, limit_bytes: usize) -> Result<Bytes, String> {
    match Limited::new(body, limit_bytes).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) => Err(format!("the answer could not be read: {}", chain(&*error))),
    }
}

/// What a peer says goes into logs and conditions: no control characters, no pages of it.
fn shortened(text: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let mut shown: String = text.chars().take(ERROR_SHOWN_CHARS).map(plain).collect();
    if text.chars().nth(ERROR_SHOWN_CHARS).is_some() {
        shown.push('…');
    }
    shown
}

/// An error with its causes, but for those that the text in front has already.
pub(super) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}
