//! Files that a tool writes and nobody else may read, as captures of what clients and servers say.
//!
//! Owns how such a file is opened. What is in it is the tool's.

use std::{
    fs::{File, Permissions},
    io::{self, Write},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::Path,
};

/// For this user alone.
const MODE: u32 = 0o600;
/// The rights of others.
const OTHERS: u32 = 0o077;

/// A file that only this user may read and write. What was in it stays until the first bytes come.
#[derive(Debug)]
pub struct PrivateFile {
    file: File,
    /// Still to be emptied.
    old: bool,
}

/// Makes a file that only this user may read and write, or takes the one that is there, and others'
/// rights to it. What is no ordinary file, as a pipe, stays as it is.
///
/// # Errors
/// It cannot be made, or is another user's.
pub fn create_private(path: &Path) -> io::Result<PrivateFile> {
    let mut options = File::options();
    let file = options
        .write(true)
        .create(true)
        .truncate(false)
        .mode(MODE)
        .open(path)?;
    let found = file.metadata()?;
    if found.is_file() && found.permissions().mode() & OTHERS != 0 {
        file.set_permissions(Permissions::from_mode(MODE))?;
    }
    let old = found.is_file();
    Ok(PrivateFile { file, old })
}

impl Write for PrivateFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if std::mem::take(&mut self.old) {
            self.file.set_len(0)?;
        }
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn others_may_read_neither_a_new_file_nor_one_that_they_could_read() {
        let folder = std::env::temp_dir().join(format!("baton-private-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).expect("a folder");
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        let new = folder.join("new");
        let mut file = create_private(&new).expect("made");
        file.write_all(b"longer").expect("written");
        assert_eq!(mode(&new), MODE);
        let open = folder.join("open");
        fs::write(&open, "of another day").expect("written");
        fs::set_permissions(&open, Permissions::from_mode(0o644)).expect("its mode");
        let mut file = create_private(&open).expect("taken");
        assert_eq!(fs::read(&open).expect("there"), b"of another day");
        file.write_all(b"n").expect("written");
        file.write_all(b"ew").expect("written");
        assert_eq!(mode(&open), MODE);
        assert_eq!(fs::read(&open).expect("there"), b"new");
        // What is no ordinary file keeps its rights.
        let device = Path::new("/dev/null");
        let before = mode(device);
        create_private(device).expect("opened");
        assert_eq!(mode(device), before);
        fs::remove_dir_all(&folder).expect("removed");
    }
}
