//! An HTTP/1.1 server that counts by writing: `POST /count` appends the request's body to a file,
//! as one padded line and with one write, and then answers 200 with the same body. What it was
//! made to execute can be read off the file whatever happens to the process.
//!
//! One thread per connection, which ends with its connection. Never more than `POST` with
//! `Content-Length`: all else is answered 400 and closed.

use anyhow::{Context, Result, ensure};
use baton_lab::Request;
use rustix::net::listen;
use std::{
    fs::{File, OpenOptions},
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    thread,
    time::Duration,
};

/// Connections that wait to be accepted; `somaxconn` (4,096) limits it too.
const BACKLOG: i32 = 4_096;
/// Memory of a connection's thread: it holds one request.
const STACK_BYTES: usize = 128 * 1024;
/// Each line is padded to this divisor of a page: SIGKILL cuts a write where a page ends, and the
/// next process would write its first line behind half a one.
const LINE_BYTES: usize = 64;
const REFUSAL: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
const USAGE: &str =
    "usage: baton-counter ADDRESS:PORT FILE POD READ_TO_WRITE_MS WRITE_TO_ANSWER_MS";

struct Counter {
    file: File,
    pod: String,
    /// Time between reading a request and writing it down: a kill here has not executed it.
    before: Duration,
    /// Time between writing it down and answering: a kill here has.
    after: Duration,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, path, pod, before, after] = &arguments[..] else {
        anyhow::bail!(USAGE);
    };
    let milliseconds = |text: &String| -> Result<Duration> {
        Ok(Duration::from_millis(text.parse().context(USAGE)?))
    };
    let counter = Arc::new(Counter {
        file: OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)
            .with_context(|| path.clone())?,
        pod: pod.clone(),
        before: milliseconds(before)?,
        after: milliseconds(after)?,
    });
    let address: SocketAddr = address.parse().context(USAGE)?;
    let listener = TcpListener::bind(address).with_context(|| format!("listening on {address}"))?;
    listen(&listener, BACKLOG)?;
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            // The client was gone before us; nothing is lost.
            Err(e) if e.kind() == ErrorKind::ConnectionAborted => continue,
            Err(e) => return Err(e).context("accept"),
        };
        let counter = Arc::clone(&counter);
        thread::Builder::new().stack_size(STACK_BYTES).spawn(move || {
            // A connection that breaks ends its thread and nothing else.
            let _ = counter.serve(stream);
        })?;
    }
}

impl Counter {
    fn serve(&self, mut stream: TcpStream) -> Result<()> {
        stream.set_nodelay(true)?;
        let mut received = Vec::new();
        let mut chunk = [0; 2_048];
        loop {
            let request = match Request::parse(&received) {
                Ok(Some(r)) if r.method == "POST" && r.target == "/count" => r,
                Ok(None) => {
                    let n = stream.read(&mut chunk)?;
                    if n == 0 {
                        return Ok(());
                    }
                    received.extend_from_slice(&chunk[..n]);
                    continue;
                }
                _ => return Ok(stream.write_all(REFUSAL)?),
            };
            let (mut line, total) = (request.body.to_vec(), request.bytes);
            let length = line.len();
            ensure!(length < LINE_BYTES, "a body is too long to be counted");
            pause(self.before);
            line.resize(LINE_BYTES - 1, b' ');
            line.push(b'\n');
            // O_APPEND: the kernel puts each write at the end, whole, whoever else writes.
            let written = (&self.file).write(&line)?;
            ensure!(written == line.len(), "a line was cut");
            pause(self.after);
            line.truncate(length);
            let mut answer = format!(
                "HTTP/1.1 200 OK\r\nX-Pod: {}\r\nContent-Length: {}\r\n\r\n",
                self.pod,
                line.len()
            )
            .into_bytes();
            answer.extend_from_slice(&line);
            stream.write_all(&answer)?;
            received.drain(..total);
        }
    }
}

fn pause(length: Duration) {
    if !length.is_zero() {
        thread::sleep(length);
    }
}
