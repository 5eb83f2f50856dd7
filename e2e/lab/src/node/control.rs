//! GET on a control address inside a namespace.

use crate::node::netns::Namespace;
use anyhow::{Context, Result, ensure};
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

/// A control API that does not answer in this time is as good as dead to a test.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The body of the answer; HTTP/1.0, so that it ends with the connection and is never chunked.
pub(crate) fn get(namespace: &Namespace, address: SocketAddr, target: &str) -> Result<String> {
    let bytes = namespace
        .run(|| -> std::io::Result<Vec<u8>> {
            let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            stream.set_write_timeout(Some(TIMEOUT))?;
            write!(stream, "GET {target} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes)?;
            Ok(bytes)
        })?
        .with_context(|| format!("GET http://{address}{target}"))?;
    let text = String::from_utf8(bytes).context("answer is not text")?;
    let (head, body) =
        text.split_once("\r\n\r\n").with_context(|| format!("GET {target}: not an HTTP answer"))?;
    let status = head.split(' ').nth(1).unwrap_or_default();
    ensure!(status == "200", "GET http://{address}{target}: status {status}: {}", body.trim());
    Ok(body.to_owned())
}
