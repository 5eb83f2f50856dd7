//! Places for clusters on this machine: a number that folder, addresses, interfaces and cgroups are
//! named by.
//!
//! Owns claiming a free one and removing what an earlier owner left there. Whoever holds the lock
//! of a slot owns all that bears its number; the kernel lets go of the lock when the owner ends in
//! any way, and the processes of its nodes end then too. So what is found in a slot whose lock can
//! be taken has no owner any more.

use crate::{cgroup, command::ip};
use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{FlockOperation, Mode, flock, mkdir};
use std::{
    env,
    fs::{self, File},
    io::ErrorKind,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

/// Clusters on one machine at a time: each costs 600 MB of memory and up.
pub const SLOTS: u8 = 4;
/// After the owner's end the kernel still ends the nodes' processes and frees their mounts.
const CLEAN_DEADLINE: Duration = Duration::from_secs(20);
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// A claimed place. Dropping it removes its folder, network and cgroups; processes must have ended
/// before.
#[derive(Debug)]
pub(crate) struct Slot {
    number: u8,
    _lock: File,
}

impl Slot {
    /// Takes the first free one, after removing what was left in all that are free.
    pub(crate) fn claim() -> Result<Self> {
        ensure!(
            rustix::process::geteuid().is_root(),
            "a cluster's nodes need root: network, mounts and cgroups"
        );
        let parent = env::temp_dir();
        ensure!(
            !parent.starts_with("/var") && !parent.starts_with("/run"),
            "TMPDIR is {}: nodes have a /var and /run of their own and would not see it; choose another, as /tmp",
            parent.display()
        );
        let _gate = gate()?;
        let mut free = Vec::new();
        for number in 0..SLOTS {
            if let Some(slot) = Self::take(number)? {
                slot.remove()?;
                free.push(slot);
            }
        }
        let Some(slot) = free.into_iter().next() else {
            bail!(
                "{SLOTS} clusters run on this machine already: `baton-cluster down` ends those that were started by hand"
            );
        };
        mkdir(slot.folder(), Mode::RWXU)
            .with_context(|| format!("making {}", slot.folder().display()))?;
        Ok(slot)
    }

    fn take(number: u8) -> Result<Option<Self>> {
        let path = folder_of(number).with_extension("lock");
        let lock = File::create(&path).with_context(|| format!("opening {}", path.display()))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self { number, _lock: lock })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(e) => Err(e).with_context(|| format!("locking {}", path.display())),
        }
    }

    pub(crate) fn folder(&self) -> PathBuf {
        folder_of(self.number)
    }

    /// The named network namespace that holds the bridge between the nodes, and the machine's
    /// interface to it.
    pub(crate) fn hub(&self) -> String {
        format!("bt-cluster-{}", self.number)
    }

    /// Name of a node, from 1; also of its cgroup.
    pub(crate) fn node_name(&self, node: u8) -> String {
        format!("{}{node}", self.node_prefix())
    }

    fn node_prefix(&self) -> String {
        format!("bt{}-node", self.number)
    }

    /// An address on the nodes' common link: 1 is the machine, nodes follow. From a range that is
    /// set aside for tests of network devices (RFC 2544), which nobody routes.
    pub(crate) fn address(&self, host: u8) -> Ipv4Addr {
        Ipv4Addr::new(198, 19, 100 + self.number, host)
    }

    /// Removes all that bears this slot's number.
    fn remove(&self) -> Result<()> {
        let hub = self.hub();
        if Path::new("/run/netns").join(&hub).exists() {
            ip(&format!("netns del {hub}"))?;
        }
        // Its peer goes with the namespace only when the last process there is gone.
        if Path::new("/sys/class/net").join(&hub).exists() {
            ip(&format!("link del {hub}")).or_else(|e| {
                let gone = !Path::new("/sys/class/net").join(&hub).exists();
                if gone { Ok(String::new()) } else { Err(e) }
            })?;
        }
        let end = Instant::now() + CLEAN_DEADLINE;
        cgroup::remove_all(&self.node_prefix(), end)?;
        let folder = self.folder();
        loop {
            match fs::remove_dir_all(&folder) {
                Ok(()) => return Ok(()),
                Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
                Err(_) if Instant::now() < end => thread::sleep(LOOK_INTERVAL),
                Err(e) => return Err(e).with_context(|| format!("removing {}", folder.display())),
            }
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Err(e) = self.remove() {
            crate::say(&format!("{e:#}; the next start tries again"));
        }
    }
}

/// Removes what clusters left that were not ended in order. Says how many slots are in use.
///
/// # Errors
/// If something cannot be removed.
pub fn clean() -> Result<u8> {
    let _gate = gate()?;
    let mut used = 0;
    for number in 0..SLOTS {
        match Slot::take(number)? {
            Some(slot) => slot.remove()?,
            None => used += 1,
        }
    }
    Ok(used)
}

/// One at a time looks for free slots: while it does it holds their locks, and to another they
/// would look used.
fn gate() -> Result<File> {
    let path = env::temp_dir().join("baton-cluster.lock");
    let gate = File::create(&path).with_context(|| format!("opening {}", path.display()))?;
    flock(&gate, FlockOperation::LockExclusive).context("locking the slots")?;
    Ok(gate)
}

/// Folders of the clusters that may run. One without an owner may be among them.
#[must_use]
pub fn folders() -> Vec<PathBuf> {
    let all = (0..SLOTS).map(folder_of);
    all.filter(|f| f.is_dir()).collect()
}

fn folder_of(number: u8) -> PathBuf {
    env::temp_dir().join(format!("baton-cluster-{number}"))
}
