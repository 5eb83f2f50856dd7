//! How a connection to a control API is made. Owns the difference between plain TCP and TLS; knows
//! no HTTP.

use baton_tls::{Client, Name};
use std::{future::Future, io, net::SocketAddr, pin::Pin, sync::Arc};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};

/// A connection in both directions.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// A connection that is open, and encrypted if it shall be.
pub type Connection = Box<dyn Stream>;

/// A connection to be.
pub type ConnectFuture = Pin<Box<dyn Future<Output = io::Result<Connection>> + Send>>;

/// Opens connections. Time limits are the caller's.
pub trait Connect: Send + Sync + 'static {
    /// To the control API at `address`, whose certificate must name `server` if there is one.
    fn connect(&self, address: SocketAddr, server: Name) -> ConnectFuture;
}

/// TCP without TLS: for control APIs on loopback.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plain;

impl Connect for Plain {
    fn connect(&self, address: SocketAddr, _: Name) -> ConnectFuture {
        Box::pin(async move {
            let stream = tcp(address).await?;
            Ok(Box::new(stream) as Connection)
        })
    }
}

/// Mutual TLS with the operator's material; what is replaced there holds for the connections made
/// from then on.
#[derive(Clone, Debug)]
pub struct Tls(pub Arc<Client>);

impl Connect for Tls {
    fn connect(&self, address: SocketAddr, server: Name) -> ConnectFuture {
        let client = Arc::clone(&self.0);
        Box::pin(async move {
            let stream = tcp(address).await?;
            let stream = client.connect(server, stream).await.map_err(io::Error::other)?;
            Ok(Box::new(stream) as Connection)
        })
    }
}

/// An open TCP connection. Requests are written whole, so nothing is gained by waiting for more.
async fn tcp(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}
