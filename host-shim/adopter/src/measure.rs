//! What the program costs per packet. Owns questions to the kernel; the figures are its own.

use crate::{Adopter, sys};
use std::{io, os::fd::OwnedFd, time::Duration};

/// Runs of the program and the time they took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Runs {
    /// How often it ran.
    pub count: u64,
    /// How long in all.
    pub time: Duration,
}

/// While this lives the kernel counts the runs of all its BPF programs, which costs each some
/// nanoseconds.
#[derive(Debug)]
pub struct Statistics {
    _enabled: OwnedFd,
}

impl Statistics {
    /// Starts counting.
    ///
    /// # Errors
    /// The kernel's, without CAP_SYS_ADMIN.
    pub fn enable() -> io::Result<Self> {
        Ok(Self { _enabled: sys::enable_statistics()? })
    }
}

impl Adopter {
    /// Runs the program on an Ethernet frame `repeat` times, outside of any namespace that it is
    /// attached in. Returns its tc action (-1: pass on, 2: drop, 7: sent back) and the mean time of
    /// a run.
    ///
    /// # Errors
    /// The kernel's, if the frame is no packet.
    pub fn test_run(&self, frame: &[u8], repeat: u32) -> io::Result<(i32, Duration)> {
        let (action, nanoseconds) = sys::test_run(self.program(), frame, repeat)?;
        Ok((action, Duration::from_nanos(nanoseconds.into())))
    }

    /// The runs that were counted while [`Statistics`] were enabled.
    ///
    /// # Errors
    /// The kernel's.
    pub fn runs(&self) -> io::Result<Runs> {
        let (count, nanoseconds) = sys::run_statistics(self.program())?;
        Ok(Runs { count, time: Duration::from_nanos(nanoseconds) })
    }
}
