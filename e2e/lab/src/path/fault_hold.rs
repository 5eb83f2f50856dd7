//! The user-space part of the faults: frames that come through the tap are held back for a random
//! time or get one bit flipped, and go back.
//!
//! The tap has no offloads, so each frame here is as on a wire: at most one segment, its checksum
//! complete. A flipped bit therefore makes the TCP checksum wrong, always: one bit changes a
//! ones'-complement sum. In one case a flip would not be found by who must take a checksum field
//! that holds the pseudo-header's sum for one that is yet to be completed (a veth peer's offload):
//! such a frame, one in 65,536, is spared and counted.

use crate::path::fault_program::PATHS_MAX;
use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    fs::File,
    io::{ErrorKind, Read, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// How long a frame is held back: from one that the next frame of a burst passes to one that some
/// round trips pass.
const HOLD_MIN_US: u64 = 50;
const HOLD_MAX_US: u64 = 3_000;
/// Frames held at once; beyond that they go on at once, which is counted.
const HELD_MAX: usize = 8_192;
/// Longest sleep, so that the end is seen soon.
const SLEEP_MAX: Duration = Duration::from_millis(20);
/// One frame: the lab's largest MTU is far below.
const FRAME_BYTES_MAX: usize = 65_600;

// What `bpf/faults.bpf.c` writes into the VLAN id.
const TICKET_CORRUPT: u16 = 0x800;
const TICKET_PATH: u16 = 0x7ff;

/// Two addresses, the tag, the type behind it.
const TAGGED_HEADER_BYTES: usize = 18;
const TAG_AT: usize = 12;
const VLAN: [u8; 2] = [0x81, 0];
const IPV6_BYTES: usize = 40;
const TCP_DATA_OFFSET_AT: usize = 12;
const TCP_CHECKSUM_AT: usize = 16;
const TCP_BYTES_MIN: usize = 20;
const IPPROTO_TCP: u32 = 6;

/// What was done, by path.
#[derive(Debug)]
pub(crate) struct HoldCounts {
    /// Frames that went on with one bit flipped.
    pub(crate) flipped: Vec<AtomicU64>,
    /// Those of which the bit was one of the data offset's.
    pub(crate) offsets: Vec<AtomicU64>,
    /// Frames that went on unchanged, because the flip could not have been seen.
    pub(crate) spared: AtomicU64,
    /// Frames that went on at once, because too many were held.
    pub(crate) hurried: AtomicU64,
}

/// The running thread; dropping it lets go what it holds.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) counts: Arc<HoldCounts>,
    stop: Arc<AtomicBool>,
    job: Option<JoinHandle<Result<()>>>,
}

impl Hold {
    /// Starts it on the open tap.
    pub(crate) fn start(tap: File, seed: u64) -> Self {
        let zeros = || (0..PATHS_MAX).map(|_| AtomicU64::new(0)).collect();
        let counts = Arc::new(HoldCounts {
            flipped: zeros(),
            offsets: zeros(),
            spared: AtomicU64::new(0),
            hurried: AtomicU64::new(0),
        });
        let stop = Arc::new(AtomicBool::new(false));
        let mut holder = Holder {
            tap,
            rng: fastrand::Rng::with_seed(seed),
            held: BinaryHeap::new(),
            sequence: 0,
            counts: Arc::clone(&counts),
        };
        let (job, ended) = (std::thread::Builder::new(), Arc::clone(&stop));
        let job = job.name("faults".into()).spawn(move || holder.run(&ended)).ok();
        Self { counts, stop, job }
    }

    /// Ends it and says what went wrong in it.
    pub(crate) fn finish(&mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        match self.job.take() {
            Some(job) => job.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            None => Ok(()),
        }
    }

    /// Whether it works.
    pub(crate) fn runs(&self) -> bool {
        self.job.as_ref().is_some_and(|job| !job.is_finished())
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Err(e) = self.finish() {
            eprintln!("baton-lab: holding frames back: {e:#}");
        }
    }
}

struct Holder {
    tap: File,
    rng: fastrand::Rng,
    /// By time, then by order of arrival.
    held: BinaryHeap<Reverse<(Instant, u64, Vec<u8>)>>,
    sequence: u64,
    counts: Arc<HoldCounts>,
}

impl Holder {
    fn run(&mut self, stop: &AtomicBool) -> Result<()> {
        let mut buffer = vec![0; FRAME_BYTES_MAX];
        while !stop.load(Ordering::Relaxed) {
            self.wait()?;
            loop {
                match self.tap.read(&mut buffer) {
                    Ok(n) => self.take(&buffer[..n])?,
                    Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    Err(e) => return Err(e).context("reading the tap"),
                }
                self.let_go(Instant::now())?;
            }
            self.let_go(Instant::now())?;
        }
        while let Some(Reverse((_, _, frame))) = self.held.pop() {
            self.send(&frame)?;
        }
        Ok(())
    }

    /// Until a frame comes or one is due.
    fn wait(&self) -> Result<()> {
        let due = self.held.peek().map_or(SLEEP_MAX, |Reverse((at, _, _))| {
            at.saturating_duration_since(Instant::now()).min(SLEEP_MAX)
        });
        let due = Timespec::try_from(due).context("poll timeout")?;
        match poll(&mut [PollFd::new(&self.tap, PollFlags::IN)], Some(&due)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(e).context("poll"),
        }
    }

    fn take(&mut self, frame: &[u8]) -> Result<()> {
        // The kernel's own frames (neighbour discovery) have no tag.
        let Some(ticket) = ticket(frame) else {
            return Ok(());
        };
        let mut frame = frame.to_vec();
        if ticket & TICKET_CORRUPT != 0 {
            let path = usize::from((ticket & TICKET_PATH).saturating_sub(1));
            let count = match flip(&mut frame, &mut self.rng) {
                Some(at) => {
                    let offset = u64::from(at == TCP_DATA_OFFSET_AT);
                    self.counts.offsets[path % PATHS_MAX].fetch_add(offset, Ordering::Relaxed);
                    &self.counts.flipped[path % PATHS_MAX]
                }
                None => &self.counts.spared,
            };
            count.fetch_add(1, Ordering::Relaxed);
            return self.send(&frame);
        }
        if self.held.len() >= HELD_MAX {
            self.counts.hurried.fetch_add(1, Ordering::Relaxed);
            return self.send(&frame);
        }
        let time = Duration::from_micros(self.rng.u64(HOLD_MIN_US..=HOLD_MAX_US));
        self.sequence += 1;
        self.held.push(Reverse((Instant::now() + time, self.sequence, frame)));
        Ok(())
    }

    fn let_go(&mut self, now: Instant) -> Result<()> {
        while self.held.peek().is_some_and(|Reverse((at, ..))| *at <= now) {
            if let Some(Reverse((_, _, frame))) = self.held.pop() {
                self.send(&frame)?;
            }
        }
        Ok(())
    }

    fn send(&mut self, frame: &[u8]) -> Result<()> {
        match self.tap.write(frame) {
            Ok(_) => Ok(()),
            // The device is down: the lab is being removed.
            Err(e) if e.raw_os_error() == Some(libc::EIO) => Ok(()),
            Err(e) => Err(e).context("writing to the tap"),
        }
    }
}

/// The VLAN id of a tagged frame.
fn ticket(frame: &[u8]) -> Option<u16> {
    let tag = frame.get(TAG_AT..TAG_AT + 4)?;
    (tag[..2] == VLAN).then(|| u16::from_be_bytes([tag[2], tag[3]]) & 0xfff)
}

/// Flips one bit of the TCP segment in a tagged frame and says in which of its bytes. `None` and
/// unchanged if that could not be seen as a wrong checksum.
fn flip(frame: &mut [u8], rng: &mut fastrand::Rng) -> Option<usize> {
    let (at, pseudo) = segment_of(frame)?;
    let bit = rng.usize(..(frame.len() - at) * 8);
    let field = |frame: &[u8]| {
        u16::from_be_bytes([frame[at + TCP_CHECKSUM_AT], frame[at + TCP_CHECKSUM_AT + 1]])
    };
    let change = |frame: &mut [u8]| frame[at + bit / 8] ^= 1 << (bit % 8);
    change(frame);
    if field(frame) == pseudo {
        change(frame);
        return None;
    }
    Some(bit / 8)
}

/// Where the TCP segment of a tagged frame begins, and the folded sum of its pseudo-header.
/// Trailing bytes behind the packet are not expected: no segment of the lab is shorter than the
/// least frame of a real Ethernet, and veth has none.
fn segment_of(frame: &[u8]) -> Option<(usize, u16)> {
    let packet = frame.get(TAGGED_HEADER_BYTES..)?;
    let (header, addresses, protocol) = match packet.first()? >> 4 {
        4 => (usize::from(packet[0] & 0xf) * 4, packet.get(12..20)?, packet.get(9)?),
        6 => (IPV6_BYTES, packet.get(8..40)?, packet.get(6)?),
        _ => return None,
    };
    let length = packet.len().checked_sub(header)?;
    if u32::from(*protocol) != IPPROTO_TCP || length < TCP_BYTES_MIN {
        return None;
    }
    let words = addresses.chunks_exact(2);
    let sum = words.fold(IPPROTO_TCP + u32::try_from(length).ok()?, |sum, w| {
        sum + u32::from(u16::from_be_bytes([w[0], w[1]]))
    });
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    Some((TAGGED_HEADER_BYTES + header, u16::try_from(folded).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tagged IPv4 frame with a segment of `payload`, its checksum field as given.
    fn frame(payload: usize, field: u16) -> Vec<u8> {
        let mut frame = vec![2; 12];
        frame.extend([0x81, 0, 0x08, 0x03, 0x08, 0]);
        let total = (40 + payload) as u16;
        frame.extend([0x45, 0]);
        frame.extend(total.to_be_bytes());
        frame.extend([0, 0, 0x40, 0, 64, 6, 0, 0, 10, 77, 1, 2, 10, 77, 100, 2]);
        let mut tcp = vec![7; 20 + payload];
        tcp[16..18].copy_from_slice(&field.to_be_bytes());
        frame.extend(tcp);
        frame
    }

    #[test]
    fn a_ticket_is_read_off_the_tag_and_other_frames_have_none() {
        let tagged = frame(0, 1);
        assert_eq!(ticket(&tagged), Some(0x803));
        for cut in 0..16 {
            assert_eq!(ticket(&tagged[..cut]), None, "{cut}");
        }
        let mut plain = tagged;
        plain.drain(12..16);
        assert_eq!(ticket(&plain), None);
    }

    #[test]
    fn exactly_one_bit_of_the_segment_is_flipped() {
        let mut rng = fastrand::Rng::with_seed(1);
        for payload in [0, 1, 100] {
            for _ in 0..1_000 {
                let before = frame(payload, 1);
                let mut after = before.clone();
                let at = flip(&mut after, &mut rng).unwrap();
                assert_ne!(before[38 + at], after[38 + at]);
                let bits = before.iter().zip(&after).map(|(a, b)| (a ^ b).count_ones());
                assert_eq!(bits.sum::<u32>(), 1);
                let headers = TAGGED_HEADER_BYTES + 20;
                assert_eq!(before[..headers], after[..headers]);
            }
        }
    }

    #[test]
    fn a_frame_that_looks_as_if_its_checksum_were_yet_to_come_is_spared() {
        let mut rng = fastrand::Rng::with_seed(1);
        let (_, pseudo) = segment_of(&frame(0, 0)).unwrap();
        let before = frame(0, pseudo);
        let spared = (0..10_000).filter(|_| {
            let mut after = before.clone();
            let flipped = flip(&mut after, &mut rng);
            assert_eq!(flipped.is_some(), after != before);
            flipped.is_none()
        });
        // All but those that hit the field itself, 16 bits of 160.
        let spared = spared.count();
        assert!((8_500..9_500).contains(&spared), "{spared}");
    }

    #[test]
    fn what_is_no_tcp_segment_is_spared() {
        let mut rng = fastrand::Rng::with_seed(1);
        let good = frame(10, 1);
        for cut in 0..58 {
            let mut cut_off = good[..cut].to_vec();
            assert_eq!(flip(&mut cut_off, &mut rng), None, "{cut}");
        }
        let mut udp = good;
        udp[18 + 9] = 17;
        assert_eq!(flip(&mut udp, &mut rng), None);
    }
}
