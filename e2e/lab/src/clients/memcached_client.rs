//! A blocking connection to one memcached, for preparing servers and looking into them.

use crate::node::netns::Namespace;
use anyhow::{Context, Result, bail, ensure};
use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

/// Longer than any stall that the kernel's TCP recovers from by itself in this lab.
const IO_TIMEOUT: Duration = Duration::from_secs(10);

/// The connection.
#[derive(Debug)]
pub struct MemcachedClient(BufReader<TcpStream>);

impl MemcachedClient {
    /// Connects from inside `namespace`. The client may then be used on any thread.
    pub fn connect(namespace: &Namespace, address: SocketAddr) -> Result<Self> {
        let stream = namespace.connect(address, IO_TIMEOUT)?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.0.get_mut().write_all(bytes).context("sending")
    }

    /// Reads exactly these bytes.
    pub fn expect(&mut self, bytes: &[u8]) -> Result<()> {
        let mut found = vec![0; bytes.len()];
        self.0.read_exact(&mut found).context("reading a reply")?;
        ensure!(
            found == bytes,
            "{:?} came instead of {:?}",
            String::from_utf8_lossy(&found),
            String::from_utf8_lossy(bytes)
        );
        Ok(())
    }

    /// Reads the next line, without its end.
    pub fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.0.read_line(&mut line).context("reading a line")?;
        let text = line.strip_suffix("\r\n");
        Ok(text.with_context(|| format!("a line without end: {line:?}"))?.to_owned())
    }

    /// Reads to the end of the stream, which must come in order and without a byte in front of it.
    pub fn end(&mut self) -> Result<()> {
        let mut rest = Vec::new();
        self.0.read_to_end(&mut rest).context("reading to the end")?;
        ensure!(rest.is_empty(), "{:?} in front of the end", String::from_utf8_lossy(&rest));
        Ok(())
    }

    /// Stores a value.
    pub fn set(&mut self, key: &str, value: &[u8]) -> Result<()> {
        self.send(format!("set {key} 0 0 {}\r\n", value.len()).as_bytes())?;
        self.send(value)?;
        self.send(b"\r\n")?;
        self.expect(b"STORED\r\n")
    }

    /// What it counts: `cmd_get`, `incr_hits` and so on.
    pub fn stats(&mut self) -> Result<BTreeMap<String, u64>> {
        self.send(b"stats\r\n")?;
        let mut stats = BTreeMap::new();
        loop {
            let line = self.line()?;
            let words: Vec<_> = line.split(' ').collect();
            match words[..] {
                ["END"] => return Ok(stats),
                // Some are no numbers.
                ["STAT", name, value] => {
                    if let Ok(value) = value.parse() {
                        stats.insert(name.to_owned(), value);
                    }
                }
                _ => bail!("not a statistic: {line:?}"),
            }
        }
    }
}
