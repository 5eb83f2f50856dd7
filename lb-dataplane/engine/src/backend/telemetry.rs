//! What a pod's kernel says of its load, in the answers to probes (`docs/adoption-wire.md`, load
//! report): its accept queue, and for how long it was throttled or under pressure of late.
//!
//! Owns what is remembered of it and what wait it makes expect. Whether a policy goes by that is
//! the policy's (`load: LatencyAndPressure`); it never sends a probe.
//!
//! # Decisions
//!
//! - **The expected wait is the longer of two: what answers show, and what the kernel says.** Where
//!   a pod has traffic, its answers show a stall as well, and a sum would count it twice; where it
//!   has none, nothing else shows it. The simulation's `pressed` worlds and the namespace test
//!   `pressure` have such a pod: by latency alone it looks idle, and gets its share of the new
//!   connections.
//! - **A share of stalled time counts as a wait in time, not as a factor**: a request that comes
//!   while the pod waits for its quota's next period waits for that, however fast it is then. A
//!   factor on 50 us would be below what chance does.
//! - **Stalled time decays** over the 2 s in which the kernel brings pressure up to date: it comes
//!   in steps of up to 2 s, which the mean has to bridge.

use crate::{
    backend::load::Pressed,
    clock::Instant,
    timing::{
        LOAD_HOLDS_MS, LOAD_WANTED_MS, QUEUE_FULL_WAIT_US, QUOTA_PERIOD_MS, STALL_MEMORY_US,
        STALL_WAIT_US,
    },
};
use baton_api::BackendLoad;
use baton_packet::LoadReport;

/// Stalled time of late, in microseconds that decay.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Stalls {
    throttled_us: f32,
    cpu_us: f32,
    memory_us: f32,
}

impl Stalls {
    fn decayed(self, age_us: u64) -> Self {
        let keep = (-(age_us as f32) / STALL_MEMORY_US).exp();
        Self {
            throttled_us: self.throttled_us * keep,
            cpu_us: self.cpu_us * keep,
            memory_us: self.memory_us * keep,
        }
    }
}

/// The share of time that such a sum is.
fn share(stalled_us: f32) -> f32 {
    (stalled_us / STALL_MEMORY_US).min(1.0)
}

/// What is known of one pod's load from its kernel. 48 bytes, in each backend.
#[derive(Clone, Default)]
pub(crate) struct Telemetry {
    /// The last report's fields, all 0 if there is none, and when it came.
    fields: (u32, u32),
    at: Instant,
    /// As it was at the last report.
    stalls: Stalls,
    /// What its listeners dropped since it is known.
    drops_total: u64,
    /// A policy with flows goes by it until then.
    wanted_until_ms: u64,
}

impl Telemetry {
    /// An answer came, with a report or without.
    pub(crate) fn hear(&mut self, now: Instant, report: Option<LoadReport>) {
        let Some(report) = report else {
            return self.forget();
        };
        if let Some(before) = LoadReport::from_fields(self.fields) {
            let age_us = now.0.saturating_sub(self.at.0);
            self.stalls = self.stalls.decayed(age_us);
            // Totals wrap after 4.3 s.
            if age_us < LOAD_HOLDS_MS * 1_000 {
                self.add(&before, &report);
            }
            self.drops_total += u64::from(report.drops_since(&before));
        }
        (self.fields, self.at) = (report.fields(), now);
    }

    fn add(&mut self, before: &LoadReport, report: &LoadReport) {
        if let (Some(before), Some(now)) = (before.throttled, report.throttled) {
            self.stalls.throttled_us += now.since_us(before) as f32;
        }
        if let (Some(before), Some(now)) = (before.pressure, report.pressure) {
            self.stalls.cpu_us += now.cpu.since_us(before.cpu) as f32;
            self.stalls.memory_us += now.memory.since_us(before.memory) as f32;
        }
    }

    /// Another process or pod is there, whose totals say nothing of those before.
    pub(crate) fn forget(&mut self) {
        (self.fields, self.stalls) = ((0, 0), Stalls::default());
    }

    /// A policy with flows goes by it.
    pub(crate) fn want(&mut self, now: Instant) {
        self.wanted_until_ms = now.ms() + LOAD_WANTED_MS;
    }

    pub(crate) fn is_wanted(&self, now: Instant) -> bool {
        now.ms() < self.wanted_until_ms
    }

    /// The last report and its age, as long as it counts.
    fn fresh(&self, now: Instant) -> Option<(u64, LoadReport)> {
        let report = LoadReport::from_fields(self.fields)?;
        let age_us = now.0.saturating_sub(self.at.0);
        (age_us < LOAD_HOLDS_MS * 1_000).then_some((age_us, report))
    }

    /// What it comes to at this time.
    pub(crate) fn pressed(&self, now: Instant) -> Pressed {
        let Some((age_us, report)) = self.fresh(now) else {
            return Pressed::default();
        };
        let stalls = self.stalls.decayed(age_us);
        let stopped = report.throttled_now && age_us < QUOTA_PERIOD_MS * 1_000;
        let share = if stopped {
            1.0
        } else {
            let Stalls { throttled_us, cpu_us, memory_us } = stalls;
            share(throttled_us.max(cpu_us).max(memory_us))
        };
        let full = report.queue >= report.room.get();
        let full_us = if full { QUEUE_FULL_WAIT_US } else { 0 };
        Pressed {
            queue: u32::from(report.queue),
            wait_us: full_us.max((share * STALL_WAIT_US) as u64),
        }
    }

    /// For people and metrics.
    pub(crate) fn shown(&self, now: Instant) -> Option<BackendLoad> {
        let (age_us, report) = self.fresh(now)?;
        let stalls = self.stalls.decayed(age_us);
        let percent = |us: f32| (share(us) * 100.0).round() as u8;
        Some(BackendLoad {
            accept_queue: report.queue.into(),
            accept_queue_room: report.room.get().into(),
            drops_total: self.drops_total,
            throttled_percent: report.throttled.map(|_| percent(stalls.throttled_us)),
            cpu_percent: report.pressure.map(|_| percent(stalls.cpu_us)),
            memory_percent: report.pressure.map(|_| percent(stalls.memory_us)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_packet::{Pressure, StallTotal};
    use std::num::NonZeroU16;

    #[test]
    fn is_small() {
        assert_eq!(size_of::<Telemetry>(), 48);
    }

    const ROOM: NonZeroU16 = NonZeroU16::new(129).unwrap();

    fn calm() -> LoadReport {
        LoadReport {
            queue: 0,
            room: ROOM,
            drops: 0,
            throttled_now: false,
            throttled: Some(StallTotal::default()),
            pressure: Some(Pressure::default()),
        }
    }

    fn at_ms(ms: u64) -> Instant {
        Instant(ms * 1_000)
    }

    /// Throttled for so much of each 100 ms, asked every 10 ms, the pressure told every 2 s.
    fn throttled(percent: u64, until_ms: u64) -> Telemetry {
        let mut telemetry = Telemetry::default();
        for ms in (0..=until_ms).step_by(10) {
            let told_ms = ms / 2_000 * 2_000;
            let report = LoadReport {
                throttled: Some(StallTotal::default()),
                pressure: Some(Pressure {
                    cpu: StallTotal::of_ns(told_ms * percent * 10_000),
                    memory: StallTotal::default(),
                }),
                ..calm()
            };
            telemetry.hear(at_ms(ms), Some(report));
        }
        telemetry
    }

    #[test]
    fn a_stalled_share_of_time_is_a_wait() {
        for percent in [10, 50, 90] {
            for until_ms in [20_000, 21_000, 21_990] {
                let wait_us = throttled(percent, until_ms).pressed(at_ms(until_ms)).wait_us;
                let mean_us = percent * STALL_WAIT_US as u64 / 100;
                assert!(
                    wait_us > mean_us / 2 && wait_us < mean_us * 2,
                    "{percent} % at {until_ms}: {wait_us}"
                );
            }
        }
        assert_eq!(throttled(0, 20_000).pressed(at_ms(20_000)), Pressed::default());
    }

    #[test]
    fn calm_comes_back_and_what_is_old_counts_no_more() {
        let mut telemetry = throttled(90, 20_000);
        let last = LoadReport::from_fields(telemetry.fields).expect("a report");
        let mut before = telemetry.pressed(at_ms(20_000)).wait_us;
        for ms in (20_100..32_000).step_by(100) {
            telemetry.hear(at_ms(ms), Some(last));
            let wait_us = telemetry.pressed(at_ms(ms)).wait_us;
            assert!(wait_us <= before);
            before = wait_us;
        }
        assert!(before < 512, "alike with others again: {before}");
        let stalled = throttled(90, 20_000);
        let old = at_ms(20_000 + LOAD_HOLDS_MS);
        assert_eq!(stalled.pressed(old), Pressed::default());
        assert_eq!(stalled.shown(old), None);
    }

    #[test]
    fn who_waits_for_the_next_period_now_is_told_at_once() {
        let mut telemetry = Telemetry::default();
        let stopped = LoadReport { throttled_now: true, ..calm() };
        telemetry.hear(at_ms(5), Some(stopped));
        assert_eq!(telemetry.pressed(at_ms(5)).wait_us, STALL_WAIT_US as u64);
        let next = at_ms(5 + QUOTA_PERIOD_MS);
        assert_eq!(telemetry.pressed(next), Pressed::default());
    }

    #[test]
    fn a_full_queue_is_a_wait_until_the_syn_comes_again() {
        let mut telemetry = Telemetry::default();
        let queue = |queue| LoadReport { queue, ..calm() };
        telemetry.hear(at_ms(5), Some(queue(128)));
        let nearly = telemetry.pressed(at_ms(6));
        assert_eq!((nearly.queue, nearly.wait_us), (128, 0));
        telemetry.hear(at_ms(7), Some(queue(129)));
        assert_eq!(telemetry.pressed(at_ms(8)).wait_us, QUEUE_FULL_WAIT_US);
    }

    #[test]
    fn another_pod_s_totals_are_no_stall() {
        let mut telemetry = throttled(90, 3_000);
        telemetry.forget();
        let other =
            LoadReport { drops: 77, throttled: Some(StallTotal::of_ns(3_000_000_000)), ..calm() };
        telemetry.hear(at_ms(3_010), Some(other));
        assert_eq!(telemetry.pressed(at_ms(3_010)), Pressed::default());
        telemetry.hear(at_ms(3_020), Some(LoadReport { drops: 80, ..other }));
        let shown = telemetry.shown(at_ms(3_020)).expect("fresh");
        assert_eq!(shown.drops_total, 3);
        telemetry.hear(at_ms(3_030), None);
        assert_eq!(telemetry.shown(at_ms(3_030)), None, "an older adopter");
    }

    /// Nothing is known of what its kernel does not tell, which is not the same as calm.
    #[test]
    fn what_is_not_told_is_not_shown() {
        let mut telemetry = Telemetry::default();
        let silent = LoadReport { throttled: None, pressure: None, ..calm() };
        telemetry.hear(at_ms(1), Some(silent));
        let shown = telemetry.shown(at_ms(2)).expect("fresh");
        assert_eq!(shown.accept_queue_room, 129);
        let told = [shown.throttled_percent, shown.cpu_percent, shown.memory_percent];
        assert_eq!(told, [None; 3]);
    }
}
