//! An HTTP/1.1 server that accepts, reads and writes through io_uring (tokio-uring), and answers as
//! [`baton_lab::echo_body`] says. One thread; anything that is not a `GET` ends its connection.

use anyhow::{Context, Result, bail, ensure};
use baton_lab::{Request, echo_body};
use std::net::SocketAddr;
use tokio_uring::net::{TcpListener, TcpStream};

const CHUNK_BYTES: usize = 4_096;
const USAGE: &str = "usage: baton-uring ADDRESS:PORT POD";

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, pod] = &arguments[..] else {
        bail!(USAGE);
    };
    let address: SocketAddr = address.parse().context(USAGE)?;
    tokio_uring::start(async {
        let listener =
            TcpListener::bind(address).with_context(|| format!("listening on {address}"))?;
        loop {
            let (stream, _) = listener.accept().await.context("accept")?;
            let pod = pod.clone();
            tokio_uring::spawn(async move {
                // A connection that breaks ends itself and nothing else.
                let _ = serve(stream, &pod).await;
            });
        }
    })
}

async fn serve(stream: TcpStream, pod: &str) -> Result<()> {
    stream.set_nodelay(true)?;
    let (mut received, mut chunk) = (Vec::new(), vec![0; CHUNK_BYTES]);
    loop {
        if let Some(request) = Request::parse(&received)? {
            ensure!(request.method == "GET", "not a GET");
            let body = echo_body(request.target, request.header("x-nonce").unwrap_or_default());
            let length = body.len();
            let answer = format!(
                "HTTP/1.1 200 OK\r\nX-Pod: {pod}\r\nContent-Length: {length}\r\n\r\n{body}"
            );
            let total = request.bytes;
            stream.write_all(answer.into_bytes()).await.0?;
            received.drain(..total);
            continue;
        }
        let (read, space) = stream.read(chunk).await;
        chunk = space;
        match read? {
            0 => return Ok(()),
            n => received.extend_from_slice(&chunk[..n]),
        }
    }
}
