//! Material in three files, as an admin or a mounted Secret gives it. Owns reading and the mode of
//! the key's file.

use crate::{Material, MaterialError, Part};
use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// Bytes of one file: chains and bundles of authorities take a few thousand; a Secret holds 1 MiB
/// at most.
pub const FILE_LIMIT_BYTES: u64 = 256 << 10;
/// Mode bits that let anybody but the owner read, write or execute.
const OTHERS: u32 = 0o077;

/// Where material lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// The chain, the own certificate first.
    pub certificate: PathBuf,
    /// Its key; refused if others than its owner may use the file.
    pub key: PathBuf,
    /// The authorities that sign the peers' certificates.
    pub authority: PathBuf,
}

impl Files {
    /// Reads and checks the three. Files that are changed meanwhile do not fit as a rule, which is
    /// an error like any other: whoever watches them reads again.
    ///
    /// # Errors
    /// See [`MaterialError`].
    pub fn read(&self) -> Result<Material, MaterialError> {
        Material::from_pem(
            &read(Part::Certificate, &self.certificate)?,
            &read(Part::Key, &self.key)?,
            &read(Part::Authority, &self.authority)?,
        )
    }

    /// The three, to be watched.
    pub fn each(&self) -> [&Path; 3] {
        [&self.certificate, &self.key, &self.authority]
    }
}

fn read(part: Part, file: &Path) -> Result<Vec<u8>, MaterialError> {
    let unreadable =
        |source: io::Error| MaterialError::Unreadable { part, file: file.to_owned(), source };
    // The mode is asked of what is open, so that nothing is put in between.
    let open = File::open(file).map_err(unreadable)?;
    let mode = open.metadata().map_err(unreadable)?.mode() & 0o777;
    if part == Part::Key && mode & OTHERS != 0 {
        return Err(MaterialError::Exposed { file: file.to_owned(), mode });
    }
    let mut text = Vec::new();
    open.take(FILE_LIMIT_BYTES + 1).read_to_end(&mut text).map_err(unreadable)?;
    if text.len() as u64 > FILE_LIMIT_BYTES {
        return Err(MaterialError::TooLarge {
            part,
            file: file.to_owned(),
            limit_bytes: FILE_LIMIT_BYTES,
        });
    }
    Ok(text)
}
