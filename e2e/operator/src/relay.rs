//! A network between one client and a server that can be cut: nothing passes then, and nothing is
//! closed either.
//!
//! Owns the bytes on their way. What was under way when it was cut arrives when it is mended, as
//! TCP has it.

use anyhow::{Context, Result};
use std::net::{Ipv4Addr, SocketAddr};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::{JoinHandle, JoinSet},
};

/// Bytes that are on their way in one direction.
const BUFFER_BYTES: usize = 16 << 10;

/// A running one. Dropping it closes all of its connections.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    open: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Relay {
    /// A port of loopback that leads to `target`.
    pub async fn start(target: SocketAddr) -> Result<Self> {
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("a port for the relay")?;
        let address = listener.local_addr()?;
        let open = watch::Sender::new(true);
        let task = tokio::spawn(run(listener, target, open.subscribe()));
        Ok(Self { address, open, task })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on nothing passes.
    pub fn cut(&self) {
        self.open.send_replace(false);
    }

    /// From now on everything passes again.
    pub fn mend(&self) {
        self.open.send_replace(true);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn run(listener: TcpListener, target: SocketAddr, open: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        let mut open = open.clone();
        connections.spawn(async move {
            // The first packet does not pass either.
            open.wait_for(|open| *open).await.ok()?;
            let server = TcpStream::connect(target).await.ok()?;
            let (client_in, client_out) = client.into_split();
            let (server_in, server_out) = server.into_split();
            tokio::join!(
                pass(client_in, server_out, open.clone()),
                pass(server_in, client_out, open),
            );
            Some(())
        });
    }
}

/// One direction, until its sender closes it.
async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut open: watch::Receiver<bool>,
) {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let read = from.read(&mut buffer).await.unwrap_or(0);
        if open.wait_for(|open| *open).await.is_err() {
            return;
        }
        if read == 0 {
            // An end passes as one.
            let _ = to.shutdown().await;
            return;
        }
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
