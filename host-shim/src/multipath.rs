//! Disables Multipath TCP in a pod's network namespace, so that its servers listen with plain TCP.
//!
//! Owns that one setting. It never sets it back: a pod that had it so of itself cannot be told from
//! one that this process, or one before it, changed, and the setting ends with the pod.

use crate::{
    discovery::Place,
    pods::{Multipath, PodState},
};
use baton_crds::PodMultipathTcp;
use rustix::{
    fs::{Mode, OFlags, openat},
    io::{Errno, write},
    mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen},
};
use tracing::{info, warn};

/// Does it once in the namespace of a pod that shall have it so, and once more after a failure.
pub fn attend(state: &mut PodState, place: &Place) {
    if state.wants_multipath() == PodMultipathTcp::Unchanged {
        state.multipath = None;
        return;
    }
    let before = state.multipath.as_ref();
    if before.is_some_and(|it| it.netns == place.identity && it.done.is_ok()) {
        return;
    }
    let now = Multipath { netns: place.identity, done: disable(place) };
    let pod = state.name();
    match &now.done {
        Ok(()) => info!(pod, "listeners that are made from now on are without Multipath TCP"),
        Err(_) if before == Some(&now) => {}
        Err(reason) => warn!(pod, reason, "its listeners stay with Multipath TCP"),
    }
    state.multipath = Some(now);
}

/// Makes every listener of the namespace that is made from now on a plain one: with
/// `net.mptcp.enabled` 0 the kernel refuses sockets of Multipath TCP (`mptcp_init_sock`, Linux
/// 5.6), and programs take plain ones instead, as Go's do.
fn disable(place: &Place) -> Result<(), String> {
    let netns = place.open().map_err(|unfit| unfit.reason)?;
    netns
        .within(set)
        .map_err(|error| error.to_string())?
        .map_err(|error| format!("net.mptcp.enabled cannot be set to 0: {error}"))
}

/// In a container without privileges `/proc/sys` is mounted read-only, so by a mount of its own
/// that is nowhere in the tree. `sys/net` shows the namespace of the thread that opens it.
fn set() -> Result<(), Errno> {
    let made = fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&made)?;
    let proc = fsmount(
        &made,
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC,
    )?;
    let path = "sys/net/mptcp/enabled";
    match openat(&proc, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()) {
        Ok(file) => write(&file, b"0").map(drop),
        // A kernel without Multipath TCP: all listeners are plain.
        Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error),
    }
}
