//! The state directory: what the operator must find again after a restart where there is no API
//! server.
//!
//! Owns how files are written there: whole or not at all, readable by their owner only, by one
//! process at a time. Knows nothing of their contents but the epoch counter's.

use anyhow::{Context as _, bail};
use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{ErrorKind, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

/// Of files with secrets, and of all others here too: nobody else has any business with them.
const MODE: u32 = 0o600;
/// Of the directory and those in it.
const DIRECTORY_MODE: u32 = 0o700;
/// Holds the lock of the process that uses the directory.
const LOCK: &str = "lock";
/// Counts the starts: the epoch of the generations.
const EPOCH: &str = "epoch";

/// A state directory that this process alone uses, until it ends.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    _lock: File,
}

impl StateDir {
    /// Opens the directory, creating it if there is none.
    ///
    /// # Errors
    /// It cannot be created or written, others may read it, or another process uses it.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        create_directory(path)?;
        let mode = fs::metadata(path)
            .with_context(|| format!("--state-dir {}", path.display()))?
            .permissions()
            .mode();
        if mode & 0o022 != 0 {
            bail!(
                "--state-dir {}: others than its owner may write there (mode {:o}), and so replace keys: expected 700",
                path.display(),
                mode & 0o777
            );
        }
        let file = path.join(LOCK);
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(MODE)
            .open(&file)
            .with_context(|| format!("{} cannot be opened", file.display()))?;
        if let Err(error) = lock.try_lock() {
            bail!(
                "--state-dir {}: another operator uses it ({error}): end that one, or give this one another directory",
                path.display()
            );
        }
        Ok(Self { path: path.to_owned(), _lock: lock })
    }

    /// Where a file of that name is.
    pub fn path_of(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    /// A file's content; none if there is no such file.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(&self, name: impl AsRef<Path>) -> anyhow::Result<Option<Vec<u8>>> {
        let file = self.path_of(name);
        match fs::read(&file) {
            Ok(content) => Ok(Some(content)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("{} cannot be read", file.display())),
        }
    }

    /// The names of the files in a directory of the state directory; none if it is not there.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn names(&self, directory: &str) -> anyhow::Result<Vec<String>> {
        let path = self.path_of(directory);
        let entries = match fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => {
                return Err(error).with_context(|| format!("{} cannot be read", path.display()));
            }
        };
        let mut names = Vec::new();
        for entry in entries {
            let name =
                entry.with_context(|| format!("{} cannot be read", path.display()))?.file_name();
            // What begins with a dot is half written.
            if let Some(name) = name.to_str().filter(|name| !name.starts_with('.')) {
                names.push(name.to_owned());
            }
        }
        names.sort();
        Ok(names)
    }

    /// Writes a file: whoever reads it sees the old content or the new one, also after a power
    /// failure.
    ///
    /// # Errors
    /// It cannot be written; the old content is still there.
    pub fn write(&self, name: impl AsRef<Path>, content: &[u8]) -> anyhow::Result<()> {
        self.put(name.as_ref(), content, Kept::Always)
    }

    /// Writes a file that can be made again from other things: whoever reads it sees the old
    /// content or the new one, but after a power failure it may be neither. Waits for no disk:
    /// 5,000 of them take less than a second in place of half a minute.
    ///
    /// # Errors
    /// As [`StateDir::write`].
    pub fn write_derived(&self, name: impl AsRef<Path>, content: &[u8]) -> anyhow::Result<()> {
        self.put(name.as_ref(), content, Kept::WhilePowered)
    }

    fn put(&self, name: &Path, content: &[u8], kept: Kept) -> anyhow::Result<()> {
        let file = self.path_of(name);
        write_whole(&file, content, kept)
            .with_context(|| format!("{} cannot be written", file.display()))
    }

    /// Removes a file, if there is one.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn remove(&self, name: impl AsRef<Path>) -> anyhow::Result<()> {
        let file = self.path_of(name);
        match fs::remove_file(&file) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| format!("{} cannot be removed", file.display()))
            }
            _ => Ok(()),
        }
    }

    /// Counts this start and gives the number: generations of a later start are above those of an
    /// earlier one.
    ///
    /// # Errors
    /// The counter is damaged or cannot be written.
    pub fn next_epoch(&self) -> anyhow::Result<u32> {
        let last = match self.read(EPOCH)? {
            None => 0,
            Some(text) => String::from_utf8_lossy(&text)
                .trim()
                .parse::<u32>()
                .with_context(|| {
                    format!(
                        "{} is damaged: expected a number. Write one there that is above the upper half of the \
                         generation that the dataplanes show (`lb-dataplane status`), or remove it",
                        self.path_of(EPOCH).display()
                    )
                })?,
        };
        let epoch = last.checked_add(1).context(
            "the epoch counter is at its end: remove the file `epoch` and restart the dataplanes",
        )?;
        self.write(EPOCH, format!("{epoch}\n").as_bytes())?;
        Ok(epoch)
    }
}

fn create_directory(path: &Path) -> anyhow::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(DIRECTORY_MODE)
        .create(path)
        .with_context(|| format!("{} cannot be created", path.display()))
}

/// What a file that was written survives.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kept {
    /// Also a power failure.
    Always,
    /// The end of this process.
    WhilePowered,
}

fn write_whole(file: &Path, content: &[u8], kept: Kept) -> anyhow::Result<()> {
    let directory = file.parent().context("the file has no directory")?;
    create_directory(directory)?;
    let name = file.file_name().context("the file has no name")?;
    let mut half = std::ffi::OsString::from(".");
    half.push(name);
    half.push(".new");
    let half = directory.join(half);
    // A half that an ended process left may have another mode.
    if let Err(error) = fs::remove_file(&half)
        && error.kind() != ErrorKind::NotFound
    {
        return Err(error.into());
    }
    let mut opened = OpenOptions::new().create_new(true).write(true).mode(MODE).open(&half)?;
    opened.write_all(content)?;
    if kept == Kept::Always {
        opened.sync_all()?;
    }
    fs::rename(&half, file)?;
    if kept == Kept::Always {
        File::open(directory)?.sync_all()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("baton-state-{}-{name}", std::process::id()));
        // What an earlier run with this number left.
        let _ = fs::remove_dir_all(&path);
        path
    }

    #[test]
    fn files_are_written_whole_and_for_their_owner_only() {
        let path = scratch("files");
        let state = StateDir::open(&path).expect("a directory");
        assert_eq!(state.read("keys/epoch-1").expect("readable"), None);
        assert!(state.names("keys").expect("readable").is_empty());
        state.write("keys/epoch-1", b"one").expect("written");
        state.write("keys/epoch-1", b"two").expect("written again");
        // As a process that was killed while it wrote leaves it.
        fs::write(path.join("keys/.current.new"), b"half").expect("written");
        assert_eq!(state.names("keys").expect("readable"), ["epoch-1"]);
        state.write("keys/current", b"1").expect("over the half");
        state.write_derived("status/a", b"one").expect("written");
        state.write_derived("status/a", b"two").expect("written again");
        assert_eq!(state.names("status").expect("readable"), ["a"]);
        let status = state.read("status/a").expect("readable");
        assert_eq!(status.as_deref(), Some(&b"two"[..]));
        assert_eq!(state.read("keys/epoch-1").expect("readable").expect("there"), b"two");
        for (file, mode) in [
            ("", 0o700),
            ("keys", 0o700),
            ("keys/epoch-1", 0o600),
            ("keys/current", 0o600),
            ("status/a", 0o600),
        ] {
            let meta = fs::metadata(path.join(file)).expect(file);
            assert_eq!(meta.permissions().mode() & 0o777, mode, "{file}");
        }
        state.remove("keys/epoch-1").expect("removed");
        state.remove("keys/epoch-1").expect("gone already");
        assert_eq!(state.names("keys").expect("readable"), ["current"]);
        fs::remove_dir_all(path).expect("removed");
    }

    #[test]
    fn epochs_rise_with_each_start_and_only_one_process_counts() {
        let path = scratch("epoch");
        for expected in 1..4 {
            let state = StateDir::open(&path).expect("free");
            assert_eq!(state.next_epoch().expect("counted"), expected);
            let error = StateDir::open(&path).expect_err("in use").to_string();
            assert!(error.contains("another operator"), "{error}");
        }
        fs::write(path.join("epoch"), "many").expect("written");
        let state = StateDir::open(&path).expect("free");
        let error = format!("{:#}", state.next_epoch().expect_err("damaged"));
        assert!(error.contains("expected a number"), "{error}");
        drop(state);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).expect("set");
        let error = StateDir::open(&path).expect_err("open to all").to_string();
        assert!(error.contains("expected 700"), "{error}");
        fs::remove_dir_all(path).expect("removed");
    }
}
