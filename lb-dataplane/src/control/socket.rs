//! The unix socket of the control API: a file that only this user may open, made anew at each
//! start.
//!
//! Owns the file, from the check that nobody answers at its place to its removal at the end. Serves
//! nobody.

use anyhow::{Context as _, bail};
use baton_api::SocketPath;
use rustix::{
    fs::{FlockOperation, Mode, OFlags, fchmod, flock, fstat, open},
    net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind as bind_socket, listen,
        socket_with,
    },
    process::geteuid,
};
use std::{
    fs::{self, DirBuilder},
    io::ErrorKind,
    os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{
    net::{UnixListener, UnixStream},
    time::timeout,
};
use tracing::{info, warn};

/// The directory, where there is none yet.
const DIRECTORY_MODE: u32 = 0o700;
/// The socket: to connect needs the right to write.
const SOCKET_MODE: u32 = 0o600;
/// Bits of a directory by which others could put another socket in the place of this one.
const OTHERS_WRITE: u32 = 0o022;
/// Connections that wait to be accepted, as the standard library has it.
const BACKLOG: i32 = 128;
/// Whoever listens has its kernel answer at once; one whose queue is full lives too.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);

/// A socket that listens, and its file.
pub struct Socket {
    /// Where commands come in.
    pub listener: UnixListener,
    /// Removed when this is dropped.
    pub file: SocketFile,
}

/// The file of a socket of this process.
pub struct SocketFile {
    path: PathBuf,
    id: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another dataplane may have taken the place since.
        if identity(&self.path).is_some_and(|id| id == self.id)
            && let Err(error) = fs::remove_file(&self.path)
        {
            warn!(path = %self.path.display(), %error, "the control socket stays behind");
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let found = fs::symlink_metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}

/// Makes the socket. What an ended process left at its place is removed; what somebody answers at
/// is not.
///
/// # Errors
/// Somebody answers there, something else is there, or others may write to its directory; in words
/// for an admin.
pub async fn bind(socket: SocketPath) -> anyhow::Result<Socket> {
    let path = socket.as_path();
    bind_inner(path)
        .await
        .with_context(|| format!("`control: unix:{}`: cannot listen there", path.display()))
}

async fn bind_inner(path: &Path) -> anyhow::Result<Socket> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(DIRECTORY_MODE);
    builder.create(folder).with_context(|| format!("{} cannot be made", folder.display()))?;
    let directory =
        open(folder, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .with_context(|| format!("{} cannot be opened", folder.display()))?;
    let found = fstat(&directory)?;
    let trusted = found.st_uid == 0 || found.st_uid == geteuid().as_raw();
    if !trusted || found.st_mode & OTHERS_WRITE != 0 {
        bail!(
            "others may write to {} (owner {}, mode {:o}), and so put a socket of their own there: name a directory that \
             does not exist yet, or one of mode 700",
            folder.display(),
            found.st_uid,
            found.st_mode & 0o7777
        );
    }
    // Of two that start at one time, one would remove the other's socket. The lock ends with this
    // function.
    flock(&directory, FlockOperation::NonBlockingLockExclusive)
        .with_context(|| format!("another dataplane starts in {}", folder.display()))?;
    make_room(path).await?;
    let fd = socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    // Before it has a name: Linux gives the file the mode of the unnamed socket (and takes the
    // umask's bits from it), so that it is open to others at no time.
    fchmod(&fd, Mode::from_raw_mode(SOCKET_MODE))?;
    bind_socket(&fd, &SocketAddrUnix::new(path)?)
        .with_context(|| format!("{} cannot be made", path.display()))?;
    let file = SocketFile {
        path: path.to_owned(),
        id: identity(path).context("the socket is gone already")?,
    };
    listen(&fd, BACKLOG)?;
    let listener = UnixListener::from_std(fd.into())?;
    Ok(Socket { listener, file })
}

/// Removes the socket of a process that has ended.
async fn make_room(path: &Path) -> anyhow::Result<()> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    if !found.file_type().is_socket() {
        bail!("there is something else, which is not removed: choose another path");
    }
    match timeout(ANSWER_LIMIT, UnixStream::connect(path)).await {
        Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => {}
        Ok(Err(error)) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Ok(Err(error)) if error.kind() != ErrorKind::WouldBlock => {
            return Err(error).context("whether somebody listens there cannot be found out");
        }
        _ => bail!("another dataplane answers there: stop it, or choose another path"),
    }
    fs::remove_file(path)
        .context("the socket of a process that has ended is there and cannot be removed")?;
    info!(path = %path.display(), "removed the control socket of a process that has ended");
    Ok(())
}
