//! The control API on a unix socket: who may open it, what a start finds at its place, and that it
//! serves as a port does.

use super::{
    serve::{Door, serve},
    socket::bind,
    tests::lab,
};
use baton_api::{ControlAddress, SocketPath};
use std::{
    fs,
    os::unix::{
        fs::{MetadataExt as _, PermissionsExt as _},
        net::UnixListener,
    },
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
};

/// A folder of this test alone, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("bt-socket-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).expect("a folder");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode");
        Self(path)
    }

    fn socket(&self, name: &str) -> SocketPath {
        let place = format!("unix:{}", self.0.join(name).display());
        match place.parse() {
            Ok(ControlAddress::Unix(path)) => path,
            other => panic!("{other:?}"),
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn mode(path: &std::path::Path) -> u32 {
    fs::symlink_metadata(path).expect("it is there").mode() & 0o7777
}

async fn refused(path: SocketPath) -> String {
    match bind(path).await {
        Ok(_) => panic!("{path:?} was taken"),
        Err(error) => format!("{error:#}"),
    }
}

#[tokio::test]
async fn only_its_user_may_open_the_socket_and_it_goes_with_its_owner() {
    let folder = Folder::new();
    let path = folder.socket("new/deep/control.sock");
    let socket = bind(path).await.expect("bound");
    assert_eq!(mode(path.as_path()), 0o600);
    for made in ["new", "new/deep"] {
        assert_eq!(mode(&folder.0.join(made)), 0o700, "{made}");
    }
    drop(socket);
    assert!(!path.as_path().exists());
    // A directory that was there stays as it is.
    let beside = bind(folder.socket("control.sock")).await.expect("bound");
    assert_eq!(mode(&folder.0), 0o755);
    drop(beside);
}

#[tokio::test]
async fn what_an_ended_process_left_is_removed_and_a_living_one_is_not() {
    let folder = Folder::new();
    let path = folder.socket("control.sock");
    // The standard library leaves the file where it is.
    drop(UnixListener::bind(path.as_path()).expect("a socket"));
    assert!(path.as_path().exists());
    let first = bind(path).await.expect("in place of the old one");
    let text = refused(path).await;
    assert!(
        text.starts_with("`control: unix:/") && text.contains("another dataplane answers there"),
        "{text}"
    );
    UnixStream::connect(path.as_path()).await.expect("the first one goes on");
    // One whose queue is full lives too, and is not removed.
    let mut waiting = Vec::new();
    while let Ok(stream) = UnixStream::connect(path.as_path()).await {
        waiting.push(stream);
        assert!(waiting.len() < 1_000, "the queue has no end");
    }
    let text = refused(path).await;
    assert!(text.contains("another dataplane answers there"), "{text}");
    // What somebody else put there meanwhile is not ours to remove.
    fs::remove_file(path.as_path()).expect("removed");
    fs::write(path.as_path(), "else").expect("a file");
    drop(first);
    assert_eq!(fs::read(path.as_path()).expect("still there"), b"else");
    let text = refused(path).await;
    assert!(text.contains("there is something else"), "{text}");
}

#[tokio::test]
async fn a_directory_that_others_may_write_to_is_refused() {
    let folder = Folder::new();
    for open in [0o777, 0o1777, 0o770] {
        fs::set_permissions(&folder.0, fs::Permissions::from_mode(open)).expect("its mode");
        let text = refused(folder.socket("control.sock")).await;
        assert!(text.contains("others may write to") && text.contains("mode 700"), "{text}");
    }
    let file = folder.0.join("file");
    fs::write(&file, "").expect("a file");
    let text = refused(folder.socket("file/control.sock")).await;
    assert!(text.contains("cannot be made"), "{text}");
}

#[tokio::test]
async fn the_socket_serves_as_the_port_does_and_cares_for_no_host() {
    let lab = lab().await;
    let folder = Folder::new();
    let path = folder.socket("control.sock");
    let socket = bind(path).await.expect("bound");
    tokio::spawn(serve(socket.listener, Arc::clone(&lab.control), Door::Socket));
    let mut stream = UnixStream::connect(path.as_path()).await.expect("taken");
    stream
        .write_all(b"GET /v1/state HTTP/1.1\r\nhost: any.example\r\nconnection: close\r\n\r\n")
        .await
        .expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    assert!(answer.contains("\"generation\""), "{answer}");
}
