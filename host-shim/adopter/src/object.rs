//! Loads the compiled program: opens the object, reuses pinned maps, asks the kernel, and keeps
//! only descriptors.

use crate::{
    Error,
    bpffs::PinDir,
    outcome::COUNTERS_BYTES,
    printed::{quiet, what_was_said},
    sys,
};
use libbpf_rs::{MapCore, MapHandle, MapType, ObjectBuilder};
use std::{
    fs, io,
    os::fd::{AsFd, OwnedFd},
};

/// The programs' names in the object.
const ADOPTER: &str = "baton_adopter";
const EXIT_MARK: &str = "baton_exit_mark";
const GENERATION: &str = "baton_generation";

/// The programs and their maps.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// The adopter, for ingress.
    pub(crate) program: OwnedFd,
    /// The exit mark, for egress.
    pub(crate) exit_mark: OwnedFd,
    /// Tells of which generation a namespace's packet rules are.
    pub(crate) generation: OwnedFd,
    pub(crate) keys: MapHandle,
    pub(crate) counters: MapHandle,
    pub(crate) netns_counters: MapHandle,
    pub(crate) namespaces: MapHandle,
    /// By namespace: whether its packet rules let adoptions be, and of which generation they were.
    pub(crate) rules: MapHandle,
    /// Maps of a predecessor that could not be reused, because their layout differs.
    pub(crate) replaced: Vec<String>,
    /// Maps of a predecessor that go on.
    pub(crate) reused: Vec<String>,
}

/// Forces cargo's include to be aligned as the ELF reader of libbpf needs it.
#[repr(C, align(8))]
struct Aligned<T: ?Sized>(T);
static OBJECT: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/adopter.bpf.o")));

pub(crate) fn load(pins: Option<&PinDir>) -> Result<Loaded, Error> {
    quiet();
    what_was_said();
    let refuse = |e: libbpf_rs::Error| {
        let said = what_was_said();
        Error::Load {
            reason: if said.is_empty() {
                e.to_string()
            } else {
                format!("{said} ({e})")
            },
        }
    };
    let mut open = ObjectBuilder::default()
        .name("baton_adopter")
        .map_err(refuse)?
        .open_memory(&OBJECT.0)
        .map_err(refuse)?;
    let (mut reused, mut replaced) = (Vec::new(), Vec::new());
    if let Some(pins) = pins {
        for mut map in open.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
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
    let object = open.load().map_err(refuse)?;
    let (mut program, mut exit_mark, mut generation) = (None, None, None);
    for p in object.progs() {
        let wanted = match p.name().to_str() {
            Some(ADOPTER) => &mut program,
            Some(EXIT_MARK) => &mut exit_mark,
            Some(GENERATION) => &mut generation,
            _ => continue,
        };
        *wanted = Some(copy(p.as_fd(), "program")?);
    }
    let (mut keys, mut counters, mut netns_counters) = (None, None, None);
    let (mut namespaces, mut rules) = (None, None);
    for map in object.maps() {
        let name = map.name().to_string_lossy().into_owned();
        let handle = MapHandle::try_from(&map).map_err(refuse)?;
        if let Some(pins) = pins
            && !reused.contains(&name)
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
            _ => {}
        }
    }
    let missing = || Error::Load {
        reason: "the object lacks a program or a map".into(),
    };
    let loaded = Loaded {
        program: program.ok_or_else(missing)?,
        exit_mark: exit_mark.ok_or_else(missing)?,
        generation: generation.ok_or_else(missing)?,
        keys: keys.ok_or_else(missing)?,
        counters: counters.ok_or_else(missing)?,
        netns_counters: netns_counters.ok_or_else(missing)?,
        namespaces: namespaces.ok_or_else(missing)?,
        rules: rules.ok_or_else(missing)?,
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

/// The pin file of a map.
pub(crate) fn pin_name(map: &str) -> String {
    format!("map-{map}")
}

fn copy(fd: std::os::fd::BorrowedFd<'_>, what: &'static str) -> Result<OwnedFd, Error> {
    fd.try_clone_to_owned()
        .map_err(|source: io::Error| Error::Map {
            map: what,
            operation: "duplicating the descriptor",
            source,
        })
}
