//! The process that owns a cluster which was started by hand, and how others find and end it.
//!
//! Owns the files in the cluster's folder that say so: `hold.sock`, which ends the cluster when
//! somebody connects and says so, `node-N.id` with the ids of the nodes' first processes, and
//! `bin/kubectl`.

use anyhow::{Context, Result, bail};
use baton_cluster::{Binaries, Cluster, Options, ProxyMode, clean, folders};
use signal_hook::{consts::TERM_SIGNALS, iterator::Signals};
use std::{
    fs,
    io::{self, ErrorKind, Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
    time::Duration,
};

/// Before the path of the kubeconfig in the line that says that the cluster is up.
pub(crate) const READY: &str = "ready ";
const SOCKET: &str = "hold.sock";
/// A cluster ends within a second or two.
const DOWN_DEADLINE: Duration = Duration::from_secs(60);

/// Starts a cluster, says the path of its kubeconfig, and holds it until told to end.
pub(crate) fn hold(nodes: u8, images: Vec<PathBuf>) -> Result<()> {
    // Away from the terminal, whose Ctrl-C is not meant for the cluster. Fails only for a group's
    // leader, which is away.
    let _ = rustix::process::setsid();
    // From here on a signal ends the cluster in order, also one that is still starting.
    let mut signals = Signals::new(TERM_SIGNALS).context("listening for signals")?;
    let binaries = Binaries::get()?;
    let cluster = Cluster::up(&Options { nodes, images, proxy: ProxyMode::default() })?;
    let folder = cluster.folder();
    let write = |name: &str, content: &str| {
        fs::write(folder.join(name), content).with_context(|| format!("writing {name}"))
    };
    for (node, number) in cluster.nodes().iter().zip(1..) {
        write(&format!("node-{number}.id"), &node.init_id().to_string())?;
    }
    fs::create_dir(folder.join("bin")).context("making the folder of tools")?;
    let script = format!("#!/bin/sh\nexec {} kubectl \"$@\"\n", binaries.kubernetes.display());
    write("bin/kubectl", &script)?;
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(folder.join("bin/kubectl"), executable)
        .context("making kubectl executable")?;

    let listener = UnixListener::bind(folder.join(SOCKET)).context("making the socket")?;
    let (end, ended) = mpsc::channel();
    let asked = end.clone();
    thread::spawn(move || {
        if let Ok((stream, _)) = listener.accept() {
            // The main thread is gone only when the process is.
            let _ = asked.send(Some(stream));
        }
    });
    thread::spawn(move || {
        if signals.forever().next().is_some() {
            let _ = end.send(None);
        }
    });
    // Nobody has to read this.
    let _ = writeln!(io::stdout(), "{READY}{}", cluster.kubeconfig().display());
    let stream = ended.recv().context("waiting for the end")?;
    drop(cluster);
    // Closed only now, which is what tells the other side.
    drop(stream);
    Ok(())
}

/// Ends all clusters that are held, and removes what those left that were not ended in order.
pub(crate) fn down_all() -> Result<()> {
    let mut ended = 0;
    for folder in folders() {
        match UnixStream::connect(folder.join(SOCKET)) {
            Ok(mut stream) => {
                stream.set_read_timeout(Some(DOWN_DEADLINE)).context("setting a deadline")?;
                // One that ends at this moment refuses the word, and is read as ended.
                let _ = stream.write_all(b"down");
                let mut said = Vec::new();
                if let Err(e) = stream.read_to_end(&mut said)
                    && matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
                {
                    bail!(
                        "the cluster in {} has not ended after {DOWN_DEADLINE:?}",
                        folder.display()
                    );
                }
                ended += 1;
            }
            // A test's, or one without an owner.
            Err(_) => continue,
        }
    }
    let used = clean()?;
    eprintln!("baton-cluster: {ended} ended, {used} still used by tests");
    Ok(())
}

/// The first process of a held cluster's node, the kubeconfig, and the folder of tools.
pub(crate) fn find(node: u8) -> Result<(i32, PathBuf, PathBuf)> {
    for folder in folders() {
        if folder.join(SOCKET).exists() {
            let id = read_id(&folder.join(format!("node-{node}.id")))?;
            let kubeconfig = folder.join("certificates/admin.kubeconfig");
            return Ok((id, kubeconfig, folder.join("bin")));
        }
    }
    bail!("no cluster was started by `baton-cluster up`")
}

fn read_id(path: &Path) -> Result<i32> {
    let text = fs::read_to_string(path)
        .with_context(|| format!("no such node: {} is not there", path.display()))?;
    text.parse().with_context(|| format!("reading {}", path.display()))
}
