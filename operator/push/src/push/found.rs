//! What a dataplane has in force, read as policies: for an operator that starts and lacks something
//! that was pushed before it.
//!
//! Owns one request over a connection of its own. Which policies are asked for is the caller's.

use super::{
    Connect, Settings,
    client::{ERROR_LIMIT_BYTES, chain, snapshot, unexpected, whole},
    split::{Splitter, TooLarge},
};
use baton_api::{Ignored, Policy, SnapshotError, read_policy};
use baton_tls::Name;
use http_body_util::Empty;
use hyper::{Request, StatusCode, body::Bytes, client::conn::http1, header::HOST};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use std::{net::SocketAddr, sync::Arc};
use tokio::time::timeout;
use tracing::warn;

/// Why a policy that is asked for cannot be read.
#[derive(Debug, thiserror::Error)]
enum Unreadable {
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    #[error(
        "a policy of the snapshot in force cannot be read: {0}: is the dataplane of another version?"
    )]
    Policy(#[from] SnapshotError),
    #[error("a policy of the snapshot in force has no name: {0}")]
    Name(#[from] serde_json::Error),
}

/// The policies that a dataplane has in force and whose names are wanted; none if it has had no
/// snapshot yet. Takes memory for these and one more. Fields of a newer version are ignored; a
/// policy that cannot be read without is an error, as leaving it out would end it.
///
/// # Errors
/// In words for people: it cannot be reached, or what it has cannot be read. Worth another try.
pub async fn found(
    connect: &dyn Connect,
    settings: &Settings,
    address: SocketAddr,
    is_wanted: impl Fn(&str) -> bool,
) -> Result<Vec<Arc<Policy>>, String> {
    let limit = settings.connect_timeout + settings.request_timeout;
    let reading = ask(connect, address, is_wanted);
    match timeout(limit, reading).await {
        Ok(result) => result,
        Err(_) => Err(format!("no answer within {limit:?}")),
    }
}

async fn ask(
    connect: &dyn Connect,
    address: SocketAddr,
    is_wanted: impl Fn(&str) -> bool,
) -> Result<Vec<Arc<Policy>>, String> {
    /// Of a policy, whatever else it says.
    #[derive(Deserialize)]
    struct Named {
        name: String,
    }
    let server = Name::Dataplane;
    let stream = connect.connect(address, server).await;
    let stream =
        stream.map_err(|error| format!("cannot connect to {address}: {}", chain(&error)))?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| chain(&error))?;
    let request = Request::builder()
        .uri("/v1/snapshot")
        .header(HOST, address.to_string())
        .body(Empty::<Bytes>::new())
        .map_err(|error| chain(&error))?;
    let reading = async {
        let response = sender.send_request(request).await;
        let response = response.map_err(|error| chain(&error))?;
        if response.status() == StatusCode::NOT_FOUND {
            whole(response.into_body(), ERROR_LIMIT_BYTES).await?;
            return Ok(Vec::new());
        }
        if response.status() != StatusCode::OK {
            return Err(unexpected(response).await);
        }
        let (mut splitter, mut policies) = (Splitter::default(), Vec::new());
        let mut ignored = Ignored::new();
        let mut take = |text: &[u8]| {
            let Named { name } = serde_json::from_slice(text)?;
            if is_wanted(&name) {
                policies.push(Arc::new(read_policy(text, &mut ignored)?));
            }
            Ok::<_, Unreadable>(())
        };
        snapshot(response.into_body(), |data| splitter.feed(data, &mut take)).await?;
        if !ignored.is_empty() {
            warn!(
                %address,
                fields = ?ignored,
                "this dataplane's policies have fields that this version does not know; they are ignored"
            );
        }
        // A body that was cut off is no answer: what is not read would be lost.
        let rest: serde_json::Result<serde_json::Value> =
            serde_json::from_slice(&splitter.finish());
        match rest {
            Ok(rest) if rest.get("generation").is_some() => Ok(policies),
            _ => Err("the answer to GET /v1/snapshot is no snapshot".to_owned()),
        }
    };
    tokio::pin!(reading);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        result = &mut reading => return result,
        // It may end before all of what came is read.
        _ = &mut connection => {}
    }
    reading.await
}
