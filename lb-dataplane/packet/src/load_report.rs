//! What an adopter tells of its pod's load: the timestamps of an answer to a probe that found a
//! listener (`docs/adoption-wire.md`). Owns the layout; what follows from it is the engine's.

const QUEUE_BITS: u32 = 11;
const QUEUE_MASK: u32 = (1 << QUEUE_BITS) - 1;
const DROPS_SHIFT: u32 = 2 * QUEUE_BITS;
const TOTAL_BITS: u32 = 9;
const TOTAL_MASK: u32 = (1 << TOTAL_BITS) - 1;
const THROTTLED_NOW: u32 = 1 << 27;
const PRESSURE_KNOWN: u32 = 1 << 28;
const QUOTA_KNOWN: u32 = 1 << 29;

/// A total of time, which wraps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StallTotal(u16);

/// The content of the two fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadReport {
    /// Connections that wait to be accepted, of all listeners of the port; 2,047 for that many or
    /// more, as `room`.
    pub queue: u16,
    /// How many of them there can be, at least one.
    pub room: core::num::NonZeroU16,
    /// What the listeners dropped, modulo 1,024.
    pub drops: u16,
    /// The pod's group waits for the next period of its CPU quota.
    pub throttled_now: bool,
    /// Periods of its CPU quota in which it was throttled; `None`: no control group of version 2
    /// with the CPU controller.
    pub throttled: Option<StallTotal>,
    /// Pressure, where the kernel keeps account of it.
    pub pressure: Option<Pressure>,
}

/// Pressure stall information of the pod's group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Time in which something of it wanted a CPU and nothing had one.
    pub cpu: StallTotal,
    /// Time in which something of it waited for memory.
    pub memory: StallTotal,
}

impl StallTotal {
    /// The unit is 2^23 ns.
    const UNIT_NS: u64 = 1 << 23;

    /// Of a sum of nanoseconds.
    #[must_use]
    pub const fn of_ns(ns: u64) -> Self {
        Self((ns / Self::UNIT_NS) as u16 & TOTAL_MASK as u16)
    }

    /// Microseconds from another total to this one, which is less than 4.3 s later.
    #[must_use]
    pub const fn since_us(self, before: Self) -> u64 {
        let units = self.0.wrapping_sub(before.0) & TOTAL_MASK as u16;
        units as u64 * Self::UNIT_NS / 1_000
    }
}

impl LoadReport {
    /// From TSval and TSecr; `None` of an older adopter, or one that found no listener.
    #[must_use]
    pub fn from_fields((queue, stalls): (u32, u32)) -> Option<Self> {
        let total = |shift: u32| StallTotal((stalls >> shift & TOTAL_MASK) as u16);
        Some(Self {
            queue: (queue & QUEUE_MASK) as u16,
            room: core::num::NonZeroU16::new((queue >> QUEUE_BITS & QUEUE_MASK) as u16)?,
            drops: (queue >> DROPS_SHIFT) as u16,
            throttled_now: stalls & THROTTLED_NOW != 0,
            throttled: (stalls & QUOTA_KNOWN != 0).then(|| total(0)),
            pressure: (stalls & PRESSURE_KNOWN != 0)
                .then(|| Pressure { cpu: total(TOTAL_BITS), memory: total(2 * TOTAL_BITS) }),
        })
    }

    /// TSval and TSecr.
    #[must_use]
    pub fn fields(&self) -> (u32, u32) {
        let queue = u32::from(self.queue).min(QUEUE_MASK)
            | u32::from(self.room.get()).min(QUEUE_MASK) << QUEUE_BITS
            | u32::from(self.drops) << DROPS_SHIFT;
        let mut stalls = if self.throttled_now { THROTTLED_NOW } else { 0 };
        if let Some(throttled) = self.throttled {
            stalls |= QUOTA_KNOWN | u32::from(throttled.0);
        }
        if let Some(Pressure { cpu, memory }) = self.pressure {
            stalls |= PRESSURE_KNOWN
                | u32::from(cpu.0) << TOTAL_BITS
                | u32::from(memory.0) << (2 * TOTAL_BITS);
        }
        (queue, stalls)
    }

    /// What the listeners dropped since another report.
    #[must_use]
    pub const fn drops_since(&self, before: &Self) -> u16 {
        self.drops.wrapping_sub(before.drops) & 0x3ff
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::num::NonZeroU16;

    const CALM: LoadReport = LoadReport {
        queue: 0,
        room: NonZeroU16::new(129).unwrap(),
        drops: 0,
        throttled_now: false,
        throttled: None,
        pressure: None,
    };

    #[test]
    fn what_is_told_has_the_layout_of_the_wire_format() {
        let busy = LoadReport {
            queue: 5,
            drops: 1_023,
            throttled_now: true,
            throttled: Some(StallTotal(1)),
            pressure: Some(Pressure { cpu: StallTotal(2), memory: StallTotal(511) }),
            ..CALM
        };
        for (report, fields) in [
            (CALM, (0x0004_0800, 0)),
            (busy, (0xffc4_0805, 0x3ffc_0401)),
            (LoadReport { throttled: Some(StallTotal(0)), ..CALM }, (0x0004_0800, 0x2000_0000)),
        ] {
            assert_eq!(report.fields(), fields);
            assert_eq!(LoadReport::from_fields(fields), Some(report));
        }
    }

    #[test]
    fn older_adopters_tell_nothing() {
        assert_eq!(LoadReport::from_fields((0, 0)), None);
        assert_eq!(LoadReport::from_fields((7, 0x3000_0000)), None);
    }

    #[test]
    fn totals_wrap() {
        let (before, after) = (StallTotal::of_ns(4_290_000_000), StallTotal::of_ns(4_400_000_000));
        assert!(after.0 < before.0);
        assert_eq!(after.since_us(before), 13 * 8_388_608 / 1_000);
        assert_eq!(before.since_us(before), 0);
        let (before, after) =
            (LoadReport { drops: 1_020, ..CALM }, LoadReport { drops: 3, ..CALM });
        assert_eq!(after.drops_since(&before), 7);
    }

    #[test]
    fn any_fields_are_read_and_written_as_they_are() {
        bolero::check!().with_type::<(u32, u32)>().for_each(|fields| {
            if let Some(report) = LoadReport::from_fields(*fields) {
                let again = LoadReport::from_fields(report.fields());
                assert_eq!(again, Some(report));
            }
        });
    }
}
