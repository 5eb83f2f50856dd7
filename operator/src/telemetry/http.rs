//! One request to the collector at a time, over a connection that is kept.
//!
//! Owns the connection and its time limits. What is sent is the exporter's.

use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    body::Incoming,
    client::conn::http1::{SendRequest, handshake},
    header::{HOST, HeaderValue},
};
use hyper_util::rt::TokioIo;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use std::{fmt, pin::Pin, time::Duration};
use tokio::{net::TcpStream, sync::Mutex, task::AbortHandle, time::timeout};

/// A request, connection included. A collector on the same node answers within milliseconds.
pub const REQUEST_LIMIT: Duration = Duration::from_secs(5);
/// Bytes of an answer: it says how many spans were refused.
const ANSWER_LIMIT_BYTES: usize = 64 << 10;

/// The way to a collector.
pub struct Client {
    authority: String,
    link: Mutex<Option<Link>>,
}

struct Link {
    sender: SendRequest<Full<Bytes>>,
    driver: AbortHandle,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("authority", &self.authority)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// Connects with the first request, to HOST:PORT.
    pub fn new(authority: String) -> Self {
        Self {
            authority,
            link: Mutex::new(None),
        }
    }

    async fn send(&self, mut request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let path = request.uri().path_and_query().map_or("/", |p| p.as_str());
        *request.uri_mut() = path.parse()?;
        let host = HeaderValue::from_str(&self.authority)?;
        request.headers_mut().insert(HOST, host);
        let mut kept = self.link.lock().await;
        let mut usable = kept.take();
        if let Some(link) = &mut usable
            && link.sender.ready().await.is_err()
        {
            usable = None;
        }
        let mut link = match usable {
            Some(link) => link,
            None => self.connect().await?,
        };
        let response = link.sender.send_request(request.map(Full::new)).await?;
        let (head, body) = response.into_parts();
        let body = whole(body).await?;
        // Only what ended well is used again.
        *kept = Some(link);
        Ok(Response::from_parts(head, body))
    }

    async fn connect(&self) -> Result<Link, HttpError> {
        let stream = TcpStream::connect(&*self.authority).await?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        // How it ends shows with the requests.
        let driver = tokio::spawn(async move { drop(connection.await) }).abort_handle();
        Ok(Link { sender, driver })
    }
}

async fn whole(body: Incoming) -> Result<Bytes, HttpError> {
    Ok(Limited::new(body, ANSWER_LIMIT_BYTES)
        .collect()
        .await?
        .to_bytes())
}

impl HttpClient for Client {
    fn send_bytes<'a, 'b>(
        &'a self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            match timeout(REQUEST_LIMIT, self.send(request)).await {
                Ok(result) => result,
                Err(_) => Err(format!("no answer within {} s", REQUEST_LIMIT.as_secs()).into()),
            }
        })
    }
}
