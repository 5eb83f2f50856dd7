//! The Redis protocol, as far as the lab's clients need it, and a blocking connection that speaks
//! it.

use crate::node::netns::Namespace;
use anyhow::{Context, Result, bail, ensure};
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

/// Longer than any stall that the kernel's TCP recovers from by itself in this lab.
const IO_TIMEOUT: Duration = Duration::from_secs(10);

/// A reply of the kinds that occur here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// `+text`.
    Simple(String),
    /// `-text`.
    Error(String),
    /// `:number`.
    Integer(i64),
    /// `$…`; `None` is the null reply, also where an array was due.
    Bulk(Option<Vec<u8>>),
    /// `*…`.
    Array(Vec<Reply>),
}

/// Reads one reply off the start of `bytes`: the reply and its length, `None` while it is not
/// complete.
pub(crate) fn parse(bytes: &[u8]) -> Result<Option<(Reply, usize)>> {
    let Some(end) = bytes.windows(2).position(|w| w == b"\r\n") else {
        ensure!(bytes.len() < 64 * 1024, "reply line without end");
        return Ok(None);
    };
    let line = std::str::from_utf8(&bytes[..end]).context("reply line is not text")?;
    let (kind, text) = line.split_at_checked(1).context("empty reply line")?;
    let after = end + 2;
    Ok(Some(match kind {
        "+" => (Reply::Simple(text.to_owned()), after),
        "-" => (Reply::Error(text.to_owned()), after),
        ":" => (Reply::Integer(text.parse()?), after),
        "$" if text == "-1" => (Reply::Bulk(None), after),
        "$" => {
            let length: usize = text.parse()?;
            let Some(rest) = bytes.get(after..after + length + 2) else {
                return Ok(None);
            };
            ensure!(rest.ends_with(b"\r\n"), "bulk reply without end");
            (Reply::Bulk(Some(rest[..length].to_vec())), after + length + 2)
        }
        "*" if text == "-1" => (Reply::Bulk(None), after),
        "*" => {
            let (mut items, mut at) = (Vec::new(), after);
            for _ in 0..text.parse::<usize>()? {
                let Some((item, length)) = parse(&bytes[at..])? else {
                    return Ok(None);
                };
                items.push(item);
                at += length;
            }
            (Reply::Array(items), at)
        }
        _ => bail!("not a reply: {line:?}"),
    }))
}

pub(crate) fn command(out: &mut Vec<u8>, arguments: &[&[u8]]) {
    let mut write = || -> std::io::Result<()> {
        write!(out, "*{}\r\n", arguments.len())?;
        for argument in arguments {
            write!(out, "${}\r\n", argument.len())?;
            out.write_all(argument)?;
            out.write_all(b"\r\n")?;
        }
        Ok(())
    };
    write().expect("writing to memory does not fail");
}

/// A blocking connection to one redis.
#[derive(Debug)]
pub struct RedisClient {
    stream: TcpStream,
    received: Vec<u8>,
}

impl RedisClient {
    /// Connects from inside `namespace`. The client may then be used on any thread.
    pub fn connect(namespace: &Namespace, address: SocketAddr) -> Result<Self> {
        let stream = namespace.connect(address, IO_TIMEOUT)?;
        Ok(Self { stream, received: Vec::new() })
    }

    /// The client's own end.
    pub fn local(&self) -> Result<SocketAddr> {
        self.stream.local_addr().context("the client's own address")
    }

    /// One command and its reply, which must be the only one.
    pub fn call(&mut self, arguments: &[&[u8]]) -> Result<Reply> {
        self.send(&[arguments])?;
        let reply = self.receive()?;
        ensure!(self.received.is_empty(), "more than one reply to one command");
        Ok(reply)
    }

    /// Sends commands in one write and waits for nothing.
    pub fn send(&mut self, commands: &[&[&[u8]]]) -> Result<()> {
        let mut bytes = Vec::new();
        for arguments in commands {
            command(&mut bytes, arguments);
        }
        self.stream.write_all(&bytes).context("sending a command")
    }

    /// The next reply or message.
    pub fn receive(&mut self) -> Result<Reply> {
        let mut chunk = vec![0; 64 * 1024];
        loop {
            if let Some((reply, length)) = parse(&self.received)? {
                self.received.drain(..length);
                return Ok(reply);
            }
            let n = self.stream.read(&mut chunk).context("reading a reply")?;
            ensure!(n > 0, "redis closed the connection");
            self.received.extend_from_slice(&chunk[..n]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_read_whole_or_not_at_all() {
        for (text, reply) in [
            (&b"+OK\r\n"[..], Reply::Simple("OK".into())),
            (b"-ERR no\r\n", Reply::Error("ERR no".into())),
            (b":42\r\n", Reply::Integer(42)),
            (b"$-1\r\n", Reply::Bulk(None)),
            (b"$5\r\na\r\nbc\r\n", Reply::Bulk(Some(b"a\r\nbc".to_vec()))),
            (b"*-1\r\n", Reply::Bulk(None)),
            (b"*2\r\n$-1\r\n:7\r\n", Reply::Array(vec![Reply::Bulk(None), Reply::Integer(7)])),
        ] {
            assert_eq!(parse(text).unwrap(), Some((reply, text.len())));
            for cut in 0..text.len() {
                assert_eq!(parse(&text[..cut]).unwrap(), None, "{text:?} at {cut}");
            }
        }
        for bad in [&b"?\r\n"[..], b"\r\n", b":x\r\n", b"$3\r\nabcde"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
