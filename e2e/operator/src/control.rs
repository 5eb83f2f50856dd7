//! Serves a control API as dataplanes and shims have one: HTTP/1.1, plain on loopback, mutual TLS
//! elsewhere.
//!
//! Owns connections. What is answered is the caller's.

use baton_tls::Server;
use http_body_util::Full;
use hyper::{
    Request, Response, StatusCode,
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use serde_json::json;
use std::{convert::Infallible, future::Future, sync::Arc};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    task::JoinSet,
};

/// A status code and a body.
pub(crate) type Said = (StatusCode, Vec<u8>);

/// Whoever answers.
pub(crate) trait Answers: Send + Sync + 'static {
    /// To one request.
    fn answer(self: Arc<Self>, request: Request<Incoming>) -> impl Future<Output = Said> + Send;
}

/// An answer of JSON.
pub(crate) fn said(value: &impl serde::Serialize) -> Said {
    match serde_json::to_vec(value) {
        Ok(body) => (StatusCode::OK, body),
        Err(e) => refused(StatusCode::INTERNAL_SERVER_ERROR, &e.to_string()),
    }
}

/// A refusal in the words that control APIs use.
pub(crate) fn refused(code: StatusCode, why: &str) -> Said {
    (code, json!({ "error": why }).to_string().into_bytes())
}

/// Serves until dropped. Connections end with it.
pub(crate) async fn serve<A: Answers>(
    listener: TcpListener,
    tls: Option<Arc<Server>>,
    api: Arc<A>,
) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        // As the real one: answers are small and whole.
        let _ = stream.set_nodelay(true);
        let (tls, api) = (tls.clone(), Arc::clone(&api));
        connections.spawn(async move {
            match tls {
                None => connection(stream, api).await,
                Some(tls) => {
                    if let Ok(stream) = tls.accept(stream).await {
                        connection(stream, api).await;
                    }
                }
            }
        });
    }
}

async fn connection<A: Answers>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    api: Arc<A>,
) {
    let service = service_fn(|request| {
        let api = Arc::clone(&api);
        async move {
            let (code, body) = api.answer(request).await;
            let mut response = Response::new(Full::new(Bytes::from(body)));
            *response.status_mut() = code;
            Ok::<_, Infallible>(response)
        }
    });
    // How it ends is the operator's to notice.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}
