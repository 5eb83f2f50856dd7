//! A path that loses, corrupts, reorders and doubles packets, between real kernels with all
//! offloads on.
//!
//! [`Lab::faults`] puts a BPF program at the node's ends of all veths of pods and clients. Kernels
//! without netem and fq can do no more than drop, so what shall be late or wrong takes a way
//! through a tap and a thread of this process. Packets on the direct way stay as they are (large
//! and without checksum, as veth hands them over); those that are held back or corrupted are cut up
//! and completed first, as an interface would that puts them on a wire. That matters for
//! corruption: where nobody has computed a checksum yet, nobody could find a flipped bit, and the
//! test would blame TCP for it. Owns: rates and counts. Everything is detached when [`Faults`] is
//! dropped, or with the process.

use crate::{
    node::{
        lab::{Lab, Pod},
        netns::Namespace,
    },
    path::{fault_hold::Hold, fault_program::Program, fault_sys::open_tap},
};
use anyhow::{Context, Result, ensure};
use rustix::net::{AddressFamily, SocketType, netdevice::name_to_index, socket};
use serde::Serialize;
use std::{
    ops::AddAssign,
    sync::atomic::{AtomicU64, Ordering},
};

const TAP: &str = "faults";
/// Frames that may wait for the thread: some milliseconds of everything that the machine can send.
const TAP_FRAMES: &str = "16384";
const PER_MILLE: u32 = 1000;
const WAYS: [Way; 2] = [Way::From, Way::To];

/// Which veths, by who is at their far end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The pods with the servers.
    Pods,
    /// The clients.
    Clients,
}

/// Which direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// What comes from there.
    From,
    /// What goes there.
    To,
}

/// What happens, each of 1,000 packets; a packet meets one of them at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FaultRates {
    /// Dropped.
    pub lost: u32,
    /// One bit of the TCP segment is flipped, its checksum is wrong then.
    pub corrupted: u32,
    /// Held back for up to 3 ms, while later ones pass.
    pub held: u32,
    /// Comes twice; every second time the second one comes up to 3 ms late.
    pub doubled: u32,
}

/// What happened. The kernel counts a large packet (GSO) as one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FaultCounts {
    /// TCP packets that came by while there were rates.
    pub seen: u64,
    /// Dropped.
    pub lost: u64,
    /// Frames that went on with one bit flipped.
    pub corrupted: u64,
    /// Those of which the bit was one of the data offset's, so that a receiver may refuse them
    /// before it looks at the checksum.
    pub corrupted_offset: u64,
    /// Held back.
    pub held: u64,
    /// Packets that passed an earlier one of their connection that was held back: order really
    /// changed.
    pub overtaken: u64,
    /// Sent twice.
    pub doubled: u64,
    /// Those of which the second came late.
    pub doubled_late: u64,
}

/// Faults in force.
#[derive(Debug)]
pub struct Faults {
    // Declared in the order of the end: no packet is diverted any more when the thread lets go what
    // it holds.
    program: Program,
    hold: Hold,
    namespace: Namespace,
    seed: u64,
    sides: Vec<Side>,
}

impl FaultRates {
    /// Packets that are lost.
    #[must_use]
    pub fn loss(per_mille: u32) -> Self {
        Self { lost: per_mille, ..Self::default() }
    }

    /// Packets with a wrong checksum.
    #[must_use]
    pub fn corruption(per_mille: u32) -> Self {
        Self { corrupted: per_mille, ..Self::default() }
    }

    /// Packets out of order.
    #[must_use]
    pub fn reordering(per_mille: u32) -> Self {
        Self { held: per_mille, ..Self::default() }
    }

    /// Packets that come twice.
    #[must_use]
    pub fn duplication(per_mille: u32) -> Self {
        Self { doubled: per_mille, ..Self::default() }
    }
}

impl AddAssign for FaultCounts {
    fn add_assign(&mut self, other: Self) {
        self.seen += other.seen;
        self.lost += other.lost;
        self.corrupted += other.corrupted;
        self.corrupted_offset += other.corrupted_offset;
        self.held += other.held;
        self.overtaken += other.overtaken;
        self.doubled += other.doubled;
        self.doubled_late += other.doubled_late;
    }
}

impl Lab {
    /// Puts the fault program at every pod's and every client's veth, with no faults yet. What
    /// happens to which packet follows from `seed`.
    ///
    /// # Errors
    /// Without `/dev/net/tun`, or before Linux 6.6.
    pub fn faults(&self, seed: u64) -> Result<Faults> {
        let namespace = self.router().namespace().clone();
        let sides = self.pods().iter().map(|p| (Side::Pods, p));
        let sides = sides.chain(self.clients().iter().map(|c| (Side::Clients, c)));
        let (sides, names): (Vec<Side>, Vec<&str>) = sides.map(|(s, p)| (s, Pod::name(p))).unzip();
        let tap = namespace.run(|| open_tap(TAP))?.context("making a tap device (/dev/net/tun)")?;
        namespace.ip(&["link", "set", TAP, "txqueuelen", TAP_FRAMES, "up"])?;
        let program = namespace.run(|| {
            let any = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
            let index = |name: &str| {
                name_to_index(&any, name).with_context(|| format!("no interface {name}"))
            };
            let interfaces = names.iter().map(|n| index(n)).collect::<Result<Vec<u32>>>()?;
            Program::attach(&interfaces, index(TAP)?)
        })??;
        Ok(Faults { program, hold: Hold::start(tap, seed), namespace, seed, sides })
    }
}

impl Faults {
    /// Sets the rates of one direction on one side.
    ///
    /// # Errors
    /// If they are more than 1,000 together.
    pub fn set(&self, side: Side, way: Way, rates: FaultRates) -> Result<()> {
        let per_mille = [rates.lost, rates.corrupted, rates.held, rates.doubled];
        let sum: u32 = per_mille.iter().sum();
        ensure!(
            per_mille.iter().all(|n| *n <= PER_MILLE) && sum <= PER_MILLE,
            "{rates:?} are {sum} of {PER_MILLE} packets"
        );
        ensure!(self.hold.runs(), "the thread that holds frames back ended");
        for path in self.paths(side, way) {
            // Each path has a sequence of its own.
            self.program.set(path, self.seed ^ u64::from(path), per_mille)?;
        }
        Ok(())
    }

    /// Sets the rates of both directions on one side.
    pub fn set_both(&self, side: Side, rates: FaultRates) -> Result<()> {
        WAYS.iter().try_for_each(|way| self.set(side, *way, rates))
    }

    /// No faults any more. Frames that are held back still come, 3 ms later at most.
    pub fn calm(&self) -> Result<()> {
        for side in [Side::Pods, Side::Clients] {
            self.set_both(side, FaultRates::default())?;
        }
        Ok(())
    }

    /// What happened in one direction on one side.
    pub fn counts(&self, side: Side, way: Way) -> Result<FaultCounts> {
        let mut all = FaultCounts::default();
        for path in self.paths(side, way) {
            let counts = self.program.counts(path)?;
            let by_thread = |c: &[AtomicU64]| c[path as usize].load(Ordering::Relaxed);
            all += FaultCounts {
                seen: counts.seen,
                lost: counts.lost,
                corrupted: by_thread(&self.hold.counts.flipped),
                corrupted_offset: by_thread(&self.hold.counts.offsets),
                held: counts.held,
                overtaken: counts.overtaken,
                doubled: counts.doubled,
                doubled_late: counts.doubled_late,
            };
        }
        Ok(all)
    }

    /// What happened in all.
    pub fn total(&self) -> Result<FaultCounts> {
        let mut all = FaultCounts::default();
        for side in [Side::Pods, Side::Clients] {
            for way in WAYS {
                all += self.counts(side, way)?;
            }
        }
        Ok(all)
    }

    /// Frames that went on unchanged although a bit should have been flipped, see the head of
    /// `fault_hold`.
    #[must_use]
    pub fn spared(&self) -> u64 {
        self.hold.counts.spared.load(Ordering::Relaxed)
    }

    /// Frames that were lost between the program and the thread, or not held back because there
    /// were too many: what nobody asked for.
    pub fn unasked(&self) -> Result<u64> {
        let shown = self.namespace.ip(&["-j", "-s", "link", "show", TAP])?;
        let shown: serde_json::Value = serde_json::from_str(&shown)?;
        let figure = |at: &str| shown.pointer(at).and_then(serde_json::Value::as_u64);
        let [read, written] = ["/0/stats64/tx/dropped", "/0/stats64/rx/dropped"]
            .map(|at| figure(at).context(at.to_owned()));
        Ok(read? + written? + self.hold.counts.hurried.load(Ordering::Relaxed))
    }

    fn paths(&self, side: Side, way: Way) -> impl Iterator<Item = u32> {
        let slots = (0u32..).zip(&self.sides).filter(move |(_, s)| **s == side);
        slots.map(move |(slot, _)| slot * 2 + u32::from(way == Way::To))
    }
}
