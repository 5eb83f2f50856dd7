//! HTTP load with responses of 1 byte to 1 MB, every byte of which is checked: ranges of nginx'
//! `/files/10m.bin`.

use crate::{
    clients::http::Head,
    load::load_client::Load,
    node::netns::Namespace,
    servers::nginx::{DOWNLOAD_BYTES, content},
    work::exchange::{Exchange, LoadOptions, Verdict},
};
use anyhow::Result;
use std::io::Write;

/// The largest response's body.
const RANGE_BYTES_MAX: f64 = 1_048_576.0;

/// GET with a `Range` that follows from the request's number: as many responses of 1 to 10 bytes as
/// of 100 KB to 1 MB.
#[derive(Debug)]
pub struct HttpRanges {
    host: String,
    run: u64,
    file: Vec<u8>,
}

impl HttpRanges {
    /// Starts the load.
    pub fn start(namespace: &Namespace, options: LoadOptions) -> Result<Load<Self>> {
        let exchange = Self {
            host: options.address.to_string(),
            run: fastrand::u64(..),
            file: content(DOWNLOAD_BYTES, 0),
        };
        Load::start(namespace, options, exchange)
    }

    /// First and last byte, from 0.
    fn range(&self, connection: usize, number: u64) -> (usize, usize) {
        let seed = self.run ^ (connection as u64) << 48 ^ number;
        let mut rng = fastrand::Rng::with_seed(seed);
        let length = RANGE_BYTES_MAX.powf(rng.f64()) as usize;
        let first = rng.usize(..self.file.len() - length);
        (first, first + length - 1)
    }
}

impl Exchange for HttpRanges {
    fn request(&mut self, connection: usize, number: u64, out: &mut Vec<u8>) {
        let (first, last) = self.range(connection, number);
        let host = &self.host;
        write!(
            out,
            "GET /files/10m.bin HTTP/1.1\r\nHost: {host}\r\nRange: bytes={first}-{last}\r\n\r\n"
        )
        .expect("writing to memory does not fail");
    }

    fn response(&mut self, connection: usize, number: u64, bytes: &[u8]) -> Verdict {
        let (first, last) = self.range(connection, number);
        match Head::checked(bytes, 206, &self.file[first..=last]) {
            Ok(head) => head.verdict(),
            Err(verdict) => verdict,
        }
    }
}
