//! The file server of the SDK's example in pods, whose connections move in the middle of a message.
//!
//! The server itself is the program `baton-files`. Owns how it is started, and contents that both
//! ends can tell from any others.

use crate::{
    balancers::baton::program,
    node::{lab::Pod, process::Spec},
    servers::server::Server,
};
use anyhow::{Context, Result, ensure};
use std::{
    fs::File,
    io::{Read, Write},
    net::SocketAddr,
    path::Path,
};

/// Contents are made and compared in pieces of this size.
const PIECE: usize = 64 << 10;

impl Pod {
    /// Starts a file server of a directory, which several may share.
    ///
    /// # Errors
    /// If it was not built, or ends or stays silent, with what it said.
    pub fn files(&self, port: u16, directory: &Path) -> Result<Server> {
        let address = SocketAddr::new(self.ipv4(), port);
        let arguments = [
            "--listen".to_owned(),
            address.to_string(),
            "--directory".to_owned(),
            directory.display().to_string(),
        ];
        let spec = Spec::new(program("baton-files")?, arguments).named("files");
        self.serve(spec, port)
    }
}

/// Pseudo-random bytes: which ones are at a place depends on a seed and the place alone.
#[derive(Clone, Copy, Debug)]
pub struct Contents {
    /// Other bytes with each.
    pub seed: u64,
    /// How many there are.
    pub bytes: usize,
}

impl Contents {
    fn piece(self, number: usize, buffer: &mut [u8; PIECE]) -> usize {
        let mut rng = fastrand::Rng::with_seed(self.seed << 32 | number as u64);
        rng.fill(buffer);
        PIECE.min(self.bytes - number * PIECE)
    }

    /// Writes all of it, and asks between two pieces whether to go on. How many bytes were written.
    pub fn write(self, to: &mut impl Write, mut goes_on: impl FnMut() -> bool) -> Result<usize> {
        let mut buffer = [0; PIECE];
        let mut written = 0;
        for number in 0..self.bytes.div_ceil(PIECE) {
            if !goes_on() {
                break;
            }
            let bytes = self.piece(number, &mut buffer);
            to.write_all(&buffer[..bytes]).with_context(|| format!("behind {written} bytes"))?;
            written += bytes;
        }
        Ok(written)
    }

    /// Makes a file of it.
    pub fn make(self, file: &Path) -> Result<()> {
        let mut to = File::create(file).with_context(|| file.display().to_string())?;
        self.write(&mut to, || true).map(drop)
    }

    /// Reads as much and compares each byte.
    pub fn compare(self, from: &mut impl Read) -> Result<()> {
        let (mut right, mut read) = ([0; PIECE], vec![0; PIECE]);
        for number in 0..self.bytes.div_ceil(PIECE) {
            let bytes = self.piece(number, &mut right);
            let at = number * PIECE;
            from.read_exact(&mut read[..bytes]).with_context(|| format!("behind {at} bytes"))?;
            let wrong = right[..bytes].iter().zip(&read).position(|(a, b)| a != b);
            ensure!(wrong.is_none(), "byte {} is wrong", at + wrong.unwrap_or_default());
        }
        Ok(())
    }
}
