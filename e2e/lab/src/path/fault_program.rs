//! Loads the fault program and puts it at interfaces; its maps as Rust values.
//!
//! Owns: the layout that `bpf/faults.bpf.c` shares. Everything is detached when it is dropped.

use crate::path::fault_sys::{Point, attach};
use anyhow::{Context, Result, ensure};
use libbpf_rs::{MapCore, MapFlags, MapHandle, ObjectBuilder};
use std::{
    collections::BTreeMap,
    os::fd::{AsFd, OwnedFd},
};

/// `PATHS` of the program: two for each interface.
pub(crate) const PATHS_MAX: usize = 64;
/// Numbers in the program's `struct counts`.
const COUNTS: usize = 7;

/// Forces cargo's include to be aligned as the ELF reader of libbpf needs it.
#[repr(C, align(8))]
struct Aligned<T: ?Sized>(T);
static OBJECT: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/faults.bpf.o")));

/// The loaded program.
#[derive(Debug)]
pub(crate) struct Program {
    programs: BTreeMap<String, OwnedFd>,
    maps: BTreeMap<String, MapHandle>,
    /// Closing them detaches.
    _links: Vec<OwnedFd>,
}

/// What the program counts for a path, in the order of its `struct counts`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PathCounts {
    pub(crate) seen: u64,
    pub(crate) lost: u64,
    pub(crate) corrupted: u64,
    pub(crate) held: u64,
    pub(crate) doubled: u64,
    pub(crate) doubled_late: u64,
    pub(crate) overtaken: u64,
}

impl Program {
    /// Loads it, and puts it at `interfaces` (by index) and the tap, all in the calling thread's
    /// network namespace. The interface at position `n` has the paths `2 * n` (from there) and `2 *
    /// n + 1` (to there).
    pub(crate) fn attach(interfaces: &[u32], tap: u32) -> Result<Self> {
        ensure!(
            interfaces.len() <= PATHS_MAX / 2,
            "{} interfaces are too many for the fault program: at most {}",
            interfaces.len(),
            PATHS_MAX / 2
        );
        let object = ObjectBuilder::default()
            .name("faults")?
            .open_memory(&OBJECT.0)?
            .load()
            .context("loading the fault program")?;
        let mut program =
            Self { programs: BTreeMap::new(), maps: BTreeMap::new(), _links: Vec::new() };
        for p in object.progs() {
            let name = p.name().to_string_lossy().into_owned();
            program.programs.insert(name, p.as_fd().try_clone_to_owned()?);
        }
        for map in object.maps() {
            let name = map.name().to_string_lossy().into_owned();
            program.maps.insert(name, MapHandle::try_from(&map)?);
        }
        program.put("tap", 0, &tap.to_ne_bytes())?;
        for (slot, interface) in (0u32..).zip(interfaces) {
            program.put("interfaces", slot, &interface.to_ne_bytes())?;
            program.put("slots", *interface, &slot.to_ne_bytes())?;
        }
        program.link("faults_back", tap, Point::Ingress)?;
        for interface in interfaces {
            program.link("faults_from", *interface, Point::Ingress)?;
            program.link("faults_to", *interface, Point::Egress)?;
        }
        Ok(program)
    }

    fn link(&mut self, name: &str, interface: u32, point: Point) -> Result<()> {
        let program =
            self.programs.get(name).with_context(|| format!("the object has no program {name}"))?;
        let link = attach(program.as_fd(), interface, point)
            .with_context(|| format!("putting {name} at interface {interface}"))?;
        self._links.push(link);
        Ok(())
    }

    fn map(&self, name: &str) -> Result<&MapHandle> {
        self.maps.get(name).with_context(|| format!("the object has no map {name}"))
    }

    fn put(&self, map: &str, key: u32, value: &[u8]) -> Result<()> {
        self.map(map)?
            .update(&key.to_ne_bytes(), value, MapFlags::ANY)
            .with_context(|| format!("{map}[{key}]"))
    }

    /// Sets what happens on a path: of 1,000 packets so many are lost, corrupted, held back and
    /// doubled.
    pub(crate) fn set(&self, path: u32, seed: u64, per_mille: [u32; 4]) -> Result<()> {
        let mut value = seed.to_ne_bytes().to_vec();
        value.extend(per_mille.iter().flat_map(|n| n.to_ne_bytes()));
        self.put("rates", path, &value)
    }

    /// What happened on a path so far.
    pub(crate) fn counts(&self, path: u32) -> Result<PathCounts> {
        let bytes =
            self.map("counts")?.lookup(&path.to_ne_bytes(), MapFlags::ANY)?.unwrap_or_default();
        let mut numbers = [0; COUNTS];
        ensure!(bytes.len() == COUNTS * 8, "the program's counts have {} bytes", bytes.len());
        for (number, word) in numbers.iter_mut().zip(bytes.chunks_exact(8)) {
            *number = u64::from_ne_bytes(word.try_into().context("a word")?);
        }
        let [seen, lost, corrupted, held, doubled, doubled_late, overtaken] = numbers;
        Ok(PathCounts { seen, lost, corrupted, held, doubled, doubled_late, overtaken })
    }
}
