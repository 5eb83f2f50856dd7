//! Files that a tool writes and nobody else may read, as captures of what clients and servers say.
//!
//! Owns how such a file is opened. What is in it is the tool's.

use rustix::{fs::OFlags, io::Errno, process::geteuid};
use std::{
    fs::{File, Permissions},
    io::{self, Write},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
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
/// rights to it. What is no ordinary file, as a pipe, stays as it is, behind a link too, as a
/// shell's `>(...)` is one.
///
/// # Errors
/// It cannot be made, is another user's, or is behind a link: that may be anybody's, and root may
/// write everywhere.
pub fn create_private(path: &Path) -> io::Result<PrivateFile> {
    create_private_as(geteuid().as_raw(), path)
}

/// The same for the user with this number.
fn create_private_as(user: u32, path: &Path) -> io::Result<PrivateFile> {
    let mut options = File::options();
    let made = options
        .write(true)
        .create(true)
        .truncate(false)
        .mode(MODE)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(path);
    let link = made.as_ref().err().and_then(Errno::from_io_error) == Some(Errno::LOOP);
    let file = if link { File::options().write(true).open(path)? } else { made? };
    let found = file.metadata()?;
    if found.is_file() && (link || found.uid() != user) {
        let why = if link {
            "it is a link to a file: name the file itself"
        } else {
            "it is another user's file, who could read what comes: remove it or name another"
        };
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
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
    fn another_users_file_and_one_behind_a_link_stay_as_they_are() {
        let folder = std::env::temp_dir().join(format!("baton-others-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).expect("a folder");
        let file = folder.join("file");
        fs::write(&file, "of another").expect("written");
        let open = Permissions::from_mode(0o644);
        fs::set_permissions(&file, open.clone()).expect("its mode");
        let error = create_private_as(geteuid().as_raw() + 1, &file).expect_err("another's");
        assert!(error.to_string().contains("another user's"), "{error}");
        let link = folder.join("link");
        std::os::unix::fs::symlink(&file, &link).expect("a link");
        let error = create_private(&link).expect_err("a link");
        assert!(error.to_string().contains("a link to a file"), "{error}");
        let found = fs::metadata(&file).expect("there");
        assert_eq!(found.permissions().mode() & 0o777, open.mode());
        assert_eq!(fs::read(&file).expect("there"), b"of another");
        // Nobody's, whoever linked it.
        fs::remove_file(&link).expect("removed");
        std::os::unix::fs::symlink("/dev/null", &link).expect("a link");
        let mut device = create_private(&link).expect("opened");
        device.write_all(b"anything").expect("written");
        fs::remove_dir_all(&folder).expect("removed");
    }

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
