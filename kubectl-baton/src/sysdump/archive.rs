//! Files as a tar.gz archive. Writes where it is told to, readable by its owner only: a dump holds
//! addresses of clients.

use super::File;
use flate2::{Compression, write::GzEncoder};
use std::{
    fs::OpenOptions,
    io::{self, BufWriter, Write},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};
use tar::{Builder, Header};

/// Only the owner.
const MODE: u32 = 0o600;

/// Writes `files` below `folder` into a new archive.
///
/// # Errors
/// It is there already, or the disk does not take it.
pub fn write(path: &Path, folder: &str, files: &[File], time_seconds: u64) -> io::Result<u64> {
    let file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(path)?;
    let mut file = BufWriter::new(file);
    pack(&mut file, folder, files, time_seconds)?;
    let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
    Ok(file.metadata()?.len())
}

fn pack(out: impl Write, folder: &str, files: &[File], time_seconds: u64) -> io::Result<()> {
    let mut archive = Builder::new(GzEncoder::new(out, Compression::default()));
    for (path, bytes) in files {
        let mut header = Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(MODE);
        header.set_mtime(time_seconds);
        archive.append_data(&mut header, format!("{folder}/{path}"), bytes.as_slice())?;
    }
    archive.into_inner()?.finish()?.flush()
}
