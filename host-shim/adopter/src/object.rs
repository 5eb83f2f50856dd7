//! Loads the compiled program: opens the object, reuses pinned maps, asks the kernel, and keeps
//! only descriptors.

use crate::{
    Error,
    bpffs::PinDir,
    outcome::COUNTERS_BYTES,
    printed::{quiet, what_was_said},
    sys,
};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, ObjectBuilder};
use std::{
    fs, io,
    os::fd::{AsFd, OwnedFd},
};

/// The programs' names in the object.
const ADOPTER: &str = "baton_adopter";
const EXIT_MARK: &str = "baton_exit_mark";
const GENERATION: &str = "baton_generation";
const UNUSED_LEG: &str = "baton_unused_leg";
const RELEASE: &str = "baton_release";
const DROP: &str = "baton_drop";
/// The map that [`DROP`] judges for, and that only programs of one loading use.
const DRAINING: &str = "draining";

/// The iterator that decides Releases.
#[derive(Debug)]
pub(crate) struct Release {
    pub(crate) program: OwnedFd,
    /// A sockmap lets go of its verdict when its last descriptor is closed.
    pub(crate) draining: MapHandle,
}

/// The maps of `bpf/transfer.h`.
#[derive(Debug)]
pub(crate) struct TransferMaps {
    pub(crate) transfers: MapHandle,
    pub(crate) asks: MapHandle,
    pub(crate) can: MapHandle,
    pub(crate) moved: MapHandle,
    pub(crate) on: MapHandle,
}

/// The programs and their maps.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// The adopter, for ingress.
    pub(crate) program: OwnedFd,
    /// The exit mark, for egress.
    pub(crate) exit_mark: OwnedFd,
    /// Tells of which generation a namespace's packet rules are.
    pub(crate) generation: OwnedFd,
    /// Forgets a leg whose client's pair no socket is on.
    pub(crate) unused_leg: OwnedFd,
    /// Which client stands for which leg, and the other way round.
    pub(crate) restored: MapHandle,
    /// How many of these legs each namespace has.
    pub(crate) legs_of: MapHandle,
    /// What decides Releases, or why this kernel cannot have it.
    pub(crate) release: Result<Release, String>,
    pub(crate) keys: MapHandle,
    pub(crate) counters: MapHandle,
    pub(crate) netns_counters: MapHandle,
    pub(crate) namespaces: MapHandle,
    /// By namespace: whether its packet rules let adoptions be, and of which generation they were.
    pub(crate) rules: MapHandle,
    /// What became of each Release.
    pub(crate) releases: MapHandle,
    /// The Releases that nobody has decided yet, for user space.
    pub(crate) asks: MapHandle,
    pub(crate) transfer: TransferMaps,
    /// Maps of a predecessor that could not be reused, because their layout differs.
    pub(crate) replaced: Vec<String>,
    /// Maps of a predecessor that go on.
    pub(crate) reused: Vec<String>,
}

/// Forces cargo's include to be aligned as the ELF reader of libbpf needs it.
#[repr(C, align(8))]
pub(crate) struct Aligned<T: ?Sized>(pub(crate) T);
pub(crate) static OBJECT: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/adopter.bpf.o")));

/// Loads the programs. Without Releases, if the kernel does not take what they need.
pub(crate) fn load(pins: Option<&PinDir>) -> Result<Loaded, Error> {
    quiet();
    what_was_said();
    match load_with(pins, None) {
        Err(Error::Load { reason }) => load_with(pins, Some(reason)),
        other => other,
    }
}

pub(crate) fn refuse(e: &libbpf_rs::Error) -> Error {
    let said = what_was_said();
    Error::Load { reason: if said.is_empty() { e.to_string() } else { format!("{said} ({e})") } }
}

/// With all programs, or without Releases for that reason.
pub(crate) fn load_with(
    pins: Option<&PinDir>,
    no_releases: Option<String>,
) -> Result<Loaded, Error> {
    let mut open = ObjectBuilder::default()
        .name("baton_adopter")
        .map_err(|e| refuse(&e))?
        .open_memory(&OBJECT.0)
        .map_err(|e| refuse(&e))?;
    let (mut reused, mut replaced) = (Vec::new(), Vec::new());
    if no_releases.is_some() {
        for mut program in open.progs_mut() {
            if program.name() == RELEASE || program.name() == DROP {
                program.set_autoload(false);
            }
        }
    }
    if let Some(pins) = pins {
        for mut map in open.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if name == DRAINING {
                map.set_autocreate(no_releases.is_none()).map_err(|e| refuse(&e))?;
            }
            if !is_pinned(&name) {
                continue;
            }
            let Ok(old) = MapHandle::from_pinned_path(pins.file(&pin_name(&name))) else {
                continue;
            };
            let same = old.map_type() == map.map_type()
                && old.key_size() == map.key_size()
                && old.value_size() == map.value_size()
                && old.max_entries() == map.max_entries();
            if same && map.reuse_fd(old.as_fd()).is_ok() {
                reused.push(name);
            } else {
                replaced.push(name);
            }
        }
    }
    let object = open.load().map_err(|e| refuse(&e))?;
    let (mut program, mut exit_mark, mut generation) = (None, None, None);
    let (mut unused_leg, mut restored, mut legs_of) = (None, None, None);
    let (mut release, mut drop) = (None, None);
    for p in object.progs() {
        let wanted = match p.name().to_str() {
            Some(ADOPTER) => &mut program,
            Some(EXIT_MARK) => &mut exit_mark,
            Some(GENERATION) => &mut generation,
            Some(UNUSED_LEG) => &mut unused_leg,
            Some(RELEASE) if no_releases.is_none() => &mut release,
            Some(DROP) if no_releases.is_none() => &mut drop,
            _ => continue,
        };
        *wanted = Some(copy(p.as_fd(), "program")?);
    }
    let (mut keys, mut counters, mut netns_counters) = (None, None, None);
    let (mut namespaces, mut rules) = (None, None);
    let (mut releases, mut asks, mut can_release, mut draining) = (None, None, None, None);
    let (mut transfers, mut transfer_asks, mut can_transfer) = (None, None, None);
    let (mut moved, mut transfers_on) = (None, None);
    for map in object.maps() {
        let name = map.name().to_string_lossy().into_owned();
        if name == DRAINING && no_releases.is_some() {
            continue;
        }
        let handle = MapHandle::try_from(&map).map_err(|e| refuse(&e))?;
        if let Some(pins) = pins
            && !reused.contains(&name)
            && is_pinned(&name)
        {
            let path = pins.file(&pin_name(&name));
            // An incompatible one of a predecessor; its links keep using it until they are updated.
            let _ = fs::remove_file(&path);
            sys::pin(handle.as_fd(), &path).map_err(|e| Error::Pin {
                path,
                problem: format!("a map cannot be pinned: {e}"),
            })?;
        }
        match name.as_str() {
            "keys" => keys = Some(handle),
            "counters" => counters = Some(handle),
            "netns_counters" => netns_counters = Some(handle),
            "namespaces" => namespaces = Some(handle),
            "rules" => rules = Some(handle),
            "restored" => restored = Some(handle),
            "legs_of" => legs_of = Some(handle),
            "releases" => releases = Some(handle),
            "asks" => asks = Some(handle),
            "can_release" => can_release = Some(handle),
            "transfers" => transfers = Some(handle),
            "transfer_asks" => transfer_asks = Some(handle),
            "can_transfer" => can_transfer = Some(handle),
            "moved" => moved = Some(handle),
            "transfers_on" => transfers_on = Some(handle),
            DRAINING => draining = Some(handle),
            _ => {}
        }
    }
    let missing = || Error::Load { reason: "the object lacks a program or a map".into() };
    let release = match no_releases {
        Some(reason) => Err(reason),
        None => {
            let (drop, draining) = drop.zip(draining).ok_or_else(missing)?;
            let program = release.ok_or_else(missing)?;
            sys::attach_verdict(drop.as_fd(), draining.as_fd())
                .map(|()| Release { program, draining })
                .map_err(|e| format!("a verdict cannot be put on a sockmap: {e}"))
        }
    };
    let able = u64::from(release.is_ok());
    can_release
        .ok_or_else(missing)?
        .update(&0_u32.to_ne_bytes(), &able.to_ne_bytes(), MapFlags::ANY)
        .map_err(|e| refuse(&e))?;
    let loaded = Loaded {
        program: program.ok_or_else(missing)?,
        exit_mark: exit_mark.ok_or_else(missing)?,
        generation: generation.ok_or_else(missing)?,
        unused_leg: unused_leg.ok_or_else(missing)?,
        restored: restored.ok_or_else(missing)?,
        legs_of: legs_of.ok_or_else(missing)?,
        keys: keys.ok_or_else(missing)?,
        counters: counters.ok_or_else(missing)?,
        netns_counters: netns_counters.ok_or_else(missing)?,
        namespaces: namespaces.ok_or_else(missing)?,
        rules: rules.ok_or_else(missing)?,
        releases: releases.ok_or_else(missing)?,
        asks: asks.ok_or_else(missing)?,
        transfer: TransferMaps {
            transfers: transfers.ok_or_else(missing)?,
            asks: transfer_asks.ok_or_else(missing)?,
            can: can_transfer.ok_or_else(missing)?,
            moved: moved.ok_or_else(missing)?,
            on: transfers_on.ok_or_else(missing)?,
        },
        release,
        replaced,
        reused,
    };
    if loaded.counters.map_type() != MapType::PercpuArray
        || loaded.counters.value_size() != COUNTERS_BYTES
    {
        return Err(Error::Load {
            reason: "the counters of the object and of the loader differ".into(),
        });
    }
    Ok(loaded)
}

/// Whether a map outlives its programs: not what only one loading uses, nor the constants that some
/// compilers make of a program, whose names have a dot.
fn is_pinned(map: &str) -> bool {
    map != DRAINING && !map.contains('.')
}

/// The pin file of a map.
pub(crate) fn pin_name(map: &str) -> String {
    format!("map-{map}")
}

fn copy(fd: std::os::fd::BorrowedFd<'_>, what: &'static str) -> Result<OwnedFd, Error> {
    fd.try_clone_to_owned().map_err(|source: io::Error| Error::Map {
        map: what,
        operation: "duplicating the descriptor",
        source,
    })
}
