//! One direction of a link: when a frame arrives, how often, and whether it arrives as it was sent.
//!
//! Owns delay, jitter, loss, duplication, reordering, corruption and partitions. It never makes a
//! frame that a receiver must take for another valid one: a flip that the TCP checksum does not
//! show loses the frame instead.

use crate::clock::Time;
use baton_packet::{ChecksumState, Decoded, Flags, decode, tcp_checksum_state};

/// Bytes of an Ethernet header, which no checksum of ours protects (a real link's does).
const ETHERNET_BYTES: usize = 14;
/// Shares are of this many.
pub const SHARE: u32 = 10_000;

/// How one direction behaves. Shares are of [`SHARE`].
#[derive(Clone, Debug, Default)]
pub struct LinkSpec {
    /// Every frame takes this long.
    pub delay_us: Time,
    /// And up to this much more, without overtaking.
    pub jitter_us: Time,
    /// Lost.
    pub loss: u32,
    /// Delivered twice.
    pub duplicates: u32,
    /// How late the second copy is, at most.
    pub copy_us: Time,
    /// Late, so that later ones overtake it.
    pub reordered: u32,
    /// How late.
    pub reorder_us: Time,
    /// Some bits flipped.
    pub corrupted: u32,
    /// Nothing passes from the first to before the second.
    pub partitions: Vec<(Time, Time)>,
}

/// What became of a frame that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::VariantArray, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Fate {
    /// It arrives once, unharmed and in order.
    Arrives,
    /// It never arrives.
    Lost,
    /// It never arrives: the link is partitioned.
    Partitioned,
    /// It arrives twice.
    Twice,
    /// It arrives late.
    Late,
    /// It arrives corrupt.
    Corrupt,
}

impl Fate {
    /// All of them.
    pub const ALL: &'static [Self] = <Self as strum::VariantArray>::VARIANTS;

    /// The name in traces and summaries.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// One direction of a link.
pub struct Link {
    spec: LinkSpec,
    rng: fastrand::Rng,
    last_arrival: Time,
}

impl Link {
    /// A link that behaves as `spec` says, with randomness of its own.
    #[must_use]
    pub fn new(spec: LinkSpec, seed: u64) -> Self {
        Self { spec, rng: fastrand::Rng::with_seed(seed), last_arrival: 0 }
    }

    /// Ends all faults; only the delay stays.
    pub fn calm(&mut self) {
        self.spec = LinkSpec { delay_us: self.spec.delay_us, ..LinkSpec::default() };
    }

    fn chance(&mut self, share: u32) -> bool {
        share > 0 && self.rng.u32(..SHARE) < share
    }

    /// Sends a frame: `arrive` is called for each copy that arrives, with its time.
    pub fn send(
        &mut self,
        now: Time,
        mut frame: Vec<u8>,
        arrive: &mut dyn FnMut(Time, Vec<u8>),
    ) -> Fate {
        let cut = |(from, to): &(Time, Time)| (*from..*to).contains(&now);
        if self.spec.partitions.iter().any(cut) {
            return Fate::Partitioned;
        }
        if self.chance(self.spec.loss) {
            return Fate::Lost;
        }
        let mut fate = Fate::Arrives;
        if self.chance(self.spec.corrupted) {
            if !corrupt(&mut frame, &mut self.rng) {
                return Fate::Lost;
            }
            fate = Fate::Corrupt;
        }
        let direct = now + self.spec.delay_us;
        if self.chance(self.spec.reordered) {
            arrive(direct + self.rng.u64(1..=self.spec.reorder_us.max(1)), frame);
            return if fate == Fate::Corrupt { fate } else { Fate::Late };
        }
        let jitter = match self.spec.jitter_us {
            0 => 0,
            most => self.rng.u64(..=most),
        };
        // Jitter alone does not reorder.
        let at = (direct + jitter).max(self.last_arrival);
        self.last_arrival = at;
        if self.chance(self.spec.duplicates) {
            arrive(at, frame.clone());
            let late = match begins(&frame) {
                true => self.spec.reorder_us,
                false => self.spec.copy_us,
            };
            arrive(at + self.rng.u64(..=late.max(1)), frame);
            return if fate == Fate::Corrupt { fate } else { Fate::Twice };
        }
        arrive(at, frame);
        fate
    }
}

/// Whether it is a SYN. One that comes behind its connection's end begins another, for a pod's
/// kernel too; whose requests are whose, nothing could tell then.
fn begins(frame: &[u8]) -> bool {
    matches!(decode(frame), Ok(Decoded::Tcp(segment)) if segment.flags.has(Flags::SYN))
}

/// Flips one to three bits behind the Ethernet header. `false` if the result would pass for another
/// valid segment.
fn corrupt(frame: &mut [u8], rng: &mut fastrand::Rng) -> bool {
    if frame.len() <= ETHERNET_BYTES {
        return false;
    }
    for _ in 0..rng.u32(1..=3) {
        let at = rng.usize(ETHERNET_BYTES..frame.len());
        frame[at] ^= 1 << rng.u32(..8);
    }
    match decode(frame) {
        Ok(Decoded::Tcp(segment)) => tcp_checksum_state(frame, &segment) == ChecksumState::Bad,
        Ok(Decoded::Icmp(_)) => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn carried(spec: LinkSpec, frames: u64) -> Vec<(Time, u8)> {
        let mut link = Link::new(spec, 7);
        let mut arrived = Vec::new();
        for n in 0..frames {
            let _ = link.send(n * 10, vec![n as u8], &mut |at, f| arrived.push((at, f[0])));
        }
        arrived.sort_by_key(|(at, _)| *at);
        arrived
    }

    #[test]
    fn jitter_keeps_the_order_and_reordering_does_not() {
        let spec = LinkSpec { delay_us: 50, jitter_us: 500, ..LinkSpec::default() };
        let order: Vec<_> = carried(spec.clone(), 200).iter().map(|(_, n)| *n).collect();
        assert!(order.is_sorted() && order.len() == 200);
        let spec = LinkSpec { reordered: 3_000, reorder_us: 400, ..spec };
        let order: Vec<_> = carried(spec, 200).iter().map(|(_, n)| *n).collect();
        assert!(!order.is_sorted() && order.len() == 200);
    }

    #[test]
    fn loss_duplicates_and_partitions_change_how_many_arrive() {
        let lossy = LinkSpec { loss: 5_000, ..LinkSpec::default() };
        assert!((60..140).contains(&carried(lossy, 200).len()));
        let double = LinkSpec { duplicates: SHARE, ..LinkSpec::default() };
        assert_eq!(carried(double, 100).len(), 200);
        let cut = LinkSpec { partitions: vec![(100, 200), (500, 1_000)], ..LinkSpec::default() };
        assert_eq!(carried(cut, 100).len(), 40);
    }
}
