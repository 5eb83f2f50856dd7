//! Dataplanes and the way to their control APIs: what they are asked, and how answers are read.
//!
//! Owns the requests. Judges nothing.

use crate::args::FLOWS_MAX;
use anyhow::bail;
use baton_api::{Clients, EventCursor, FlowEvents, FlowsReply, StateReply};
use futures_util::stream::{self, StreamExt as _};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    io::{self, ErrorKind, Write},
    net::IpAddr,
    time::Duration,
};
use tokio::sync::watch;

/// Dataplanes that are asked at one time: each may be a connection through an API server.
const ASKED_AT_ONCE: usize = 8;
/// 100,000 flows of about 300 bytes, the most that a dataplane tells.
const ANSWER_MAX_BYTES: usize = 64 << 20;

/// How often the user has asked for the end of what goes on: once has it end in order, twice at
/// once.
pub type Stop = watch::Receiver<u32>;

/// What a control API is asked.
#[derive(Clone, Debug)]
pub struct Request {
    /// Path and query.
    pub path: String,
    /// The JSON that is posted; without it, this is a GET.
    pub body: Option<String>,
    /// How long the answer goes on by itself at most.
    pub lasts: Duration,
    /// If the user may ask for its end.
    pub stop: Option<Stop>,
}

impl Request {
    /// For those values that there are; everything in them that is not in a name is escaped.
    pub fn get<'a>(base: &str, query: impl IntoIterator<Item = (&'a str, Option<String>)>) -> Self {
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
        Self { path, body: None, lasts: Duration::ZERO, stop: None }
    }

    /// An order.
    pub fn post(path: &str, order: &Value) -> Self {
        Self { body: Some(order.to_string()), ..Self::get(path, []) }
    }
}

/// Why a request was not answered with what was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It cannot be: what it names is not there, or something is in the way.
    #[error("{0}")]
    Finally(String),
    /// The dataplane was not asked, or is in no state to do it.
    #[error("{0}")]
    Unanswered(String),
}

/// A dataplane.
pub trait Dataplane: Clone {
    /// Its name among others; empty if there is only this one.
    fn name(&self) -> &str;

    /// Tells it from another one that takes its name.
    fn uid(&self) -> &str {
        self.name()
    }

    /// It shall end: it takes no new flow, and its own leave with it.
    fn terminating(&self) -> bool {
        false
    }

    /// It can be asked.
    fn running(&self) -> bool {
        true
    }

    /// As sentences name it.
    fn words(&self) -> String {
        match self.name() {
            "" => "the dataplane".to_owned(),
            name => format!("dataplane {name}"),
        }
    }
}

/// Nodes of backends, by namespace and address.
pub type Nodes = BTreeMap<(String, IpAddr), String>;

/// Dataplanes that are asked together, and the way to them.
#[expect(async_fn_in_trait, reason = "commands run on one thread")]
pub trait Fleet {
    /// One of them.
    type Dataplane: Dataplane;
    /// Backends are Pods of namespaces.
    const PODS: bool;
    /// Between two looks.
    const LOOK: Duration;

    /// What a user types for `words`, about this namespace.
    fn command(&self, namespace: Option<&str>, words: &str) -> String;

    /// Those that there are now, and what could not be looked at.
    async fn dataplanes(&self) -> anyhow::Result<(Vec<Self::Dataplane>, Vec<String>)>;

    /// The nodes of backends in a namespace, as far as they are known.
    async fn nodes(
        &self,
        _namespace: Option<&str>,
        _unseen: &mut Vec<String>,
    ) -> anyhow::Result<Nodes> {
        Ok(Nodes::new())
    }

    /// Asks one and writes its answer to `out` as it comes. A refusal writes nothing.
    async fn send(
        &self,
        to: &Self::Dataplane,
        request: &Request,
        out: &mut dyn Write,
    ) -> Result<(), Refused>;
}

/// Output that waits, of a bounded size.
#[derive(Debug)]
pub struct Bounded {
    /// What came.
    pub bytes: Vec<u8>,
    most: usize,
    too_much: &'static str,
}

impl Bounded {
    /// For at most so many bytes; and what to say when there are more.
    pub fn new(most: usize, too_much: &'static str) -> Self {
        Self { bytes: Vec::new(), most, too_much }
    }
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.most {
            return Err(io::Error::new(ErrorKind::FileTooLarge, self.too_much));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What one dataplane said, or why it said nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Response<D, T> {
    /// Which.
    pub dataplane: D,
    /// What.
    pub result: Result<T, String>,
}

impl<D: Dataplane, T> Response<D, T> {
    /// Its name.
    pub fn name(&self) -> &str {
        self.dataplane.name()
    }
}

/// Asks one dataplane and reads its answer.
///
/// # Errors
/// Why there is none.
pub async fn ask<F: Fleet, T: DeserializeOwned>(
    fleet: &F,
    to: &F::Dataplane,
    request: &Request,
) -> Result<T, Refused> {
    let mut out = Bounded::new(ANSWER_MAX_BYTES, "it is more than 64 MiB");
    fleet.send(to, request, &mut out).await?;
    serde_json::from_slice(&out.bytes).map_err(|error| {
        Refused::Unanswered(format!(
            "its answer is none of this version's ({error}): is it of another version?"
        ))
    })
}

/// Has all dataplanes answer, each its own request.
async fn all<F: Fleet, T: DeserializeOwned>(
    fleet: &F,
    dataplanes: &[F::Dataplane],
    request: impl Fn(&F::Dataplane) -> Request,
) -> Vec<Response<F::Dataplane, T>> {
    let request = &request;
    let asked = stream::iter(dataplanes.iter().cloned()).map(|dataplane| async move {
        let result = ask(fleet, &dataplane, &request(&dataplane)).await;
        let result = result.map_err(|why| why.to_string());
        Response { dataplane, result }
    });
    asked.buffered(ASKED_AT_ONCE).collect().await
}

/// One dataplane's state.
pub fn state() -> Request {
    Request::get("/v1/state", [])
}

/// The states of dataplanes.
pub async fn states<F: Fleet>(
    fleet: &F,
    dataplanes: &[F::Dataplane],
) -> Vec<Response<F::Dataplane, StateReply>> {
    all(fleet, dataplanes, |_| state()).await
}

/// Which flows a dataplane is asked for.
#[derive(Clone, Debug)]
pub struct FlowsQuery {
    /// At most so many.
    pub limit: u32,
    /// Only flows of these clients.
    pub client: Option<Clients>,
    /// Only flows that this backend owns.
    pub backend: Option<String>,
}

impl Default for FlowsQuery {
    fn default() -> Self {
        Self { limit: FLOWS_MAX, client: None, backend: None }
    }
}

/// The flows of dataplanes.
pub async fn flows<F: Fleet>(
    fleet: &F,
    dataplanes: &[F::Dataplane],
    query: &FlowsQuery,
) -> Vec<Response<F::Dataplane, FlowsReply>> {
    let query = || {
        [
            ("limit", Some(query.limit.to_string())),
            ("client", query.client.map(|clients| clients.to_string())),
            ("backend", query.backend.clone()),
        ]
    };
    all(fleet, dataplanes, |_| Request::get("/v1/flows", query())).await
}

/// Events of flows, from each dataplane behind where `since` has for it.
pub async fn events<F: Fleet>(
    fleet: &F,
    dataplanes: &[F::Dataplane],
    client: Option<Clients>,
    since: impl Fn(&F::Dataplane) -> Option<EventCursor>,
) -> Vec<Response<F::Dataplane, FlowEvents>> {
    let request = |dataplane: &F::Dataplane| {
        let query = [
            ("since", since(dataplane).map(|number| number.to_string())),
            ("client", client.map(|clients| clients.to_string())),
        ];
        Request::get("/v1/events", query)
    };
    all(fleet, dataplanes, request).await
}

/// What dataplanes said.
///
/// # Errors
/// None said anything.
pub fn heard<D: Dataplane, T>(asked: Vec<Response<D, T>>) -> anyhow::Result<Vec<Response<D, T>>> {
    let silent = unanswered(&asked);
    match &silent[..] {
        [] if asked.is_empty() => {
            bail!("there is no dataplane: `kubectl baton status` says why")
        }
        some if some.len() < asked.len() => {}
        [(dataplane, why)] => bail!("{} does not answer: {why}", dataplane.words()),
        all => {
            let (name, why, more) = (all[0].0.name(), all[0].1, all.len() - 1);
            bail!("no dataplane answers: {name}: {why} (and {more} more)")
        }
    }
    Ok(asked)
}

/// Those that said something, with what it was.
pub fn told<D: Dataplane, T>(asked: &[Response<D, T>]) -> Vec<(&str, &T)> {
    let told = asked.iter();
    told.filter_map(|a| Some((a.name(), a.result.as_ref().ok()?))).collect()
}

/// Those that said nothing, with why.
fn unanswered<D, T>(asked: &[Response<D, T>]) -> Vec<(&D, &String)> {
    let asked = asked.iter();
    asked.filter_map(|a| Some((&a.dataplane, a.result.as_ref().err()?))).collect()
}

/// The same, in words.
pub fn silent<D: Dataplane, T>(asked: &[Response<D, T>]) -> Vec<String> {
    let silent = unanswered(asked).into_iter();
    silent.map(|(dataplane, why)| format!("{} is left out: {why}", dataplane.words())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_bounded() {
        let mut waiting = Bounded::new(3, "too much");
        assert!(waiting.write_all(b"ab").is_ok());
        assert!(waiting.write_all(b"c").is_ok());
        let error = waiting.write_all(b"d").expect_err("full").to_string();
        assert_eq!((error.as_str(), &*waiting.bytes), ("too much", &b"abc"[..]));
    }

    #[test]
    fn values_are_escaped_and_those_that_are_not_there_left_out() {
        let path = |client: &str| {
            let client = Some(client.to_owned());
            Request::get("/v1/x", [("none", None), ("wait", Some("5".into())), ("client", client)])
                .path
        };
        assert_eq!(path("ns/web & co"), "/v1/x?wait=5&client=ns/web%20%26%20co");
        assert_eq!(path("[fd00::7]:4711"), "/v1/x?wait=5&client=%5Bfd00%3A%3A7%5D%3A4711");
        assert_eq!(Request::get("/v1/x", []).path, "/v1/x");
    }
}
