//! How long one more request would wait at a backend, estimated from what passes by.
//!
//! Owns the number of outstanding requests and peak-sensitive moving averages, as Finagle and
//! Linkerd have them: a higher sample counts at once, lower ones and silence only pull the average
//! down with time. It never chooses a backend.
//!
//! Unlike theirs, the estimate multiplies the number of requests not by the time to the first byte
//! but by that time divided by the requests that were outstanding together: it already holds the
//! wait for the others. Without the division a queue counts twice, and busy backends look worse
//! than a stalled one: in the closed loop of the tests, a backend stopped for 95 % of the time got
//! 1.6 % of the requests of 128 clients; with it, 0.05 %. So the expected wait is (outstanding + 1)
//! times the peak average of the time to first byte per request that shared it, or the time since
//! the last progress.
//!
//! A dead backend never looks idle: what it does not answer stays outstanding, and the time for
//! which it has answered nothing counts as if it were a sample, also when requests are taken away.

use crate::timing::{FLOOR_US, HALF_LIFE_US};
use std::f64::consts::LN_2;

/// The load estimate of one backend. All zero is a backend of which nothing is known. 40 bytes.
#[derive(Clone, Default)]
pub(crate) struct Estimate {
    outstanding: u32,
    /// Of other workers, as they said last.
    others: u32,
    /// Peak average of the time to the first byte. Fractions, because at 100,000 answers a second
    /// each answer lowers the averages by far less than 1 us.
    first_byte_us: f64,
    /// Peak average of that time divided by the requests that shared it.
    each_us: f64,
    /// When the averages were right; from then on they decay.
    updated_us: u64,
    /// The last answer, or the first request after a time with none outstanding.
    progress_us: u64,
}

impl Estimate {
    /// A request was sent to the backend.
    pub(crate) fn request(&mut self, now_us: u64) {
        if self.outstanding == 0 {
            self.progress_us = now_us;
        }
        self.outstanding = self.outstanding.saturating_add(1);
    }

    /// The first byte of the response to a request that was sent at `sent_at_us` arrived.
    pub(crate) fn first_byte(&mut self, now_us: u64, sent_at_us: u64) {
        let sample_us = now_us.saturating_sub(sent_at_us) as f64;
        let age_us = now_us.saturating_sub(self.updated_us);
        self.first_byte_us = toward(self.first_byte_us, sample_us, age_us);
        let shared_by = f64::from(self.outstanding.max(1)) + f64::from(self.others);
        self.each_us = toward(self.each_us, sample_us / shared_by, age_us);
        self.updated_us = now_us;
        self.progress_us = now_us;
        self.outstanding = self.outstanding.saturating_sub(1);
    }

    /// A request will not be answered here: it was moved, or its connection was reset. That is no
    /// sample of a fast answer, but it is one of a slow one if the backend had stalled.
    pub(crate) fn forget(&mut self, now_us: u64) {
        let stalled_us = self.stalled_us(now_us) as f64;
        let age_us = now_us.saturating_sub(self.updated_us);
        self.first_byte_us = decayed(self.first_byte_us, age_us).max(stalled_us);
        self.each_us = decayed(self.each_us, age_us).max(stalled_us);
        self.updated_us = now_us;
        self.outstanding = self.outstanding.saturating_sub(1);
    }

    /// The peak average of the time to the first byte, at least the floor.
    pub(crate) fn average_us(&self, now_us: u64) -> u64 {
        self.now_us(self.first_byte_us, now_us)
    }

    /// Expected wait of one more request: one more than the outstanding ones, each at its peak
    /// average, or at the time since the last progress while something is outstanding. `queue`:
    /// so many connections wait to be accepted, of which some may be ours.
    pub(crate) fn wait_us(&self, now_us: u64, queue: u32) -> u64 {
        let each_us = self.now_us(self.each_us, now_us).max(self.stalled_us(now_us));
        let before = u64::from(self.outstanding) + u64::from(self.others);
        (before.max(queue.into()) + 1).saturating_mul(each_us)
    }

    /// So many requests of other workers are outstanding.
    pub(crate) fn set_others(&mut self, outstanding: u32) {
        self.others = outstanding;
    }

    /// One of the averages as it is now, in whole microseconds.
    fn now_us(&self, average_us: f64, now_us: u64) -> u64 {
        let decayed_us = decayed(average_us, now_us.saturating_sub(self.updated_us));
        (decayed_us.round() as u64).max(FLOOR_US)
    }

    /// For how long the backend has answered nothing although something was outstanding.
    pub(crate) fn stalled_us(&self, now_us: u64) -> u64 {
        if self.outstanding == 0 { 0 } else { now_us.saturating_sub(self.progress_us) }
    }
}

/// A peak average after `age_us`, then a sample: a higher one counts at once.
fn toward(average_us: f64, sample_us: f64, age_us: u64) -> f64 {
    sample_us + decayed((average_us - sample_us).max(0.0), age_us)
}

/// `value_us` after `age_us` of decay: halved once per whole half-life, and between those points a
/// parabola with the slope of the exponential at its start, so that many small steps decay as fast
/// as one large step. Within 1 % of the exponential, and lower at every later age.
fn decayed(value_us: f64, age_us: u64) -> f64 {
    let halvings = age_us / HALF_LIFE_US;
    if halvings >= 64 {
        return 0.0;
    }
    let part = (age_us % HALF_LIFE_US) as f64 / HALF_LIFE_US as f64;
    value_us / (1_u64 << halvings) as f64 * (1.0 - part * (LN_2 - part * (LN_2 - 0.5)))
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    use super::*;
    use crate::timing::DECAY_US;

    #[test]
    fn is_small() {
        assert_eq!(size_of::<Estimate>(), 40);
    }

    #[test]
    fn an_unknown_backend_is_assumed_fast() {
        let estimate = Estimate::default();
        assert_eq!(estimate.outstanding, 0);
        assert_eq!(estimate.average_us(123), FLOOR_US);
        assert_eq!(estimate.wait_us(123, 0), FLOOR_US);
    }

    #[test]
    fn the_decay_follows_the_exponential() {
        let mut last = f64::MAX;
        for age_us in (0..20 * DECAY_US).step_by(997) {
            let value = decayed(1e6, age_us);
            let exact = 1e6 * (-(age_us as f64) / DECAY_US as f64).exp();
            assert!(value >= exact * 0.99 && value <= exact * 1.001, "{value} {exact} at {age_us}");
            assert!(value < last, "{value} after {last}");
            last = value;
        }
        assert_eq!(decayed(1e18, u64::MAX), 0.0);
    }

    #[test]
    fn a_higher_sample_counts_at_once_and_a_lower_one_slowly() {
        let mut estimate = Estimate::default();
        let mut answer = |now_us: u64, took_us: u64| {
            estimate.request(now_us - took_us);
            estimate.first_byte(now_us, now_us - took_us);
            estimate.average_us(now_us)
        };
        assert_eq!(answer(1_000_000, 200), 200);
        assert_eq!(answer(1_000_010, 90_000), 90_000);
        let soon = answer(1_001_010, 200);
        assert!((89_970..90_000).contains(&soon), "{soon}");
        let later = answer(1_001_010 + HALF_LIFE_US, 200);
        assert!((45_000..=45_200).contains(&later), "{later}: half way down to 200");
    }

    /// A server with a steady queue: the estimate is the time that one more would really wait.
    #[test]
    fn a_queue_counts_once() {
        let mut estimate = Estimate::default();
        for sent_us in 0..9 {
            estimate.request(sent_us);
        }
        for now_us in (1_000..500_000).step_by(100) {
            estimate.request(now_us);
            estimate.first_byte(now_us, now_us - 1_000);
        }
        assert_eq!(estimate.outstanding, 9);
        assert_eq!(estimate.average_us(499_900), 1_000);
        assert_eq!(estimate.wait_us(499_900, 0), 1_000);
    }

    /// Each of many answers lowers the average by a tiny fraction; all of them must add up.
    #[test]
    fn many_fast_answers_wear_a_peak_down() {
        let mut estimate = Estimate::default();
        estimate.request(0);
        estimate.first_byte(1_000, 0);
        for now_us in (1_000..10 * DECAY_US).step_by(5) {
            estimate.request(now_us);
            estimate.first_byte(now_us + 4, now_us - 96);
        }
        assert_eq!(estimate.average_us(10 * DECAY_US), 100);
    }

    #[test]
    fn silence_wears_a_peak_down_only_while_nothing_is_outstanding() {
        let mut estimate = Estimate::default();
        estimate.request(0);
        estimate.first_byte(90_000, 0);
        assert_eq!(estimate.wait_us(90_000, 0), 90_000);
        assert_eq!(estimate.wait_us(90_000 + 20 * DECAY_US, 0), FLOOR_US, "to be tried again");

        estimate.request(30 * DECAY_US);
        let mut last_us = 0;
        for after_us in (100_000..60 * DECAY_US).step_by(100_000) {
            let wait_us = estimate.wait_us(30 * DECAY_US + after_us, 0);
            assert_eq!(
                wait_us,
                2 * after_us,
                "one waits for that long, the next for as long again"
            );
            assert!(wait_us > last_us);
            last_us = wait_us;
        }
    }

    #[test]
    fn a_stall_starts_with_the_first_outstanding_request_and_ends_with_an_answer() {
        let mut estimate = Estimate::default();
        estimate.request(1_000_000);
        estimate.request(1_400_000);
        assert_eq!(estimate.wait_us(1_500_000, 0), 3 * 500_000);
        estimate.first_byte(1_500_000, 1_400_000);
        assert_eq!(estimate.outstanding, 1);
        assert_eq!(estimate.average_us(1_500_000), 100_000);
        assert_eq!(estimate.wait_us(1_500_000, 0), 2 * 50_000, "100 ms were shared by two");
    }

    /// Moving its requests away must not make a dead backend look like an idle one.
    #[test]
    fn forgetting_keeps_the_stall_as_a_sample() {
        let mut estimate = Estimate::default();
        estimate.request(0);
        estimate.request(10);
        estimate.forget(400_000);
        estimate.forget(500_000);
        assert_eq!(estimate.outstanding, 0);
        assert_eq!(estimate.wait_us(500_000, 0), 500_000);
        // A client that resets at once is no reason to trust the backend again.
        estimate.request(500_010);
        estimate.forget(500_020);
        let wait_us = estimate.wait_us(500_020, 0);
        assert!((499_000..=500_000).contains(&wait_us), "{wait_us}");
    }

    #[test]
    fn total_on_odd_input() {
        let mut estimate = Estimate::default();
        estimate.forget(0);
        estimate.first_byte(0, u64::MAX);
        assert_eq!(estimate.outstanding, 0);
        estimate.request(u64::MAX);
        estimate.first_byte(5, 0);
        estimate.first_byte(u64::MAX, 0);
        estimate.request(0);
        assert_eq!(estimate.wait_us(u64::MAX, 0), u64::MAX);
    }

    /// Virtual time in which the backend has worked for `work_us`, starting at `from_us`, if it
    /// runs for only `on_us` of every 100 ms, as a container with a small CPU quota does.
    fn done_us(from_us: u64, mut work_us: u64, on_us: u64) -> u64 {
        const PERIOD_US: u64 = 100_000;
        let mut now_us = from_us;
        loop {
            let within_us = now_us % PERIOD_US;
            let left_us = on_us.saturating_sub(within_us);
            if work_us <= left_us {
                return now_us + work_us;
            }
            work_us -= left_us;
            now_us += PERIOD_US - within_us;
        }
    }

    /// Clients in a closed loop, each with one request at a time, at four servers that serve one
    /// request after another in 50 to 150 us; the better of two random ones is chosen. Returns how
    /// many requests each server was given in five seconds.
    fn closed_loop(clients: usize, stalled: Option<usize>, seed: u64) -> [u64; 4] {
        const NOBODY: usize = usize::MAX;
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut estimates: [Estimate; 4] = Default::default();
        let mut free_at_us = [0; 4];
        let mut given = [0; 4];
        // What ends next: (time, server, time of sending). A client starts with nothing to end.
        let mut events: BinaryHeap<Reverse<(u64, usize, u64)>> =
            (0..clients as u64).map(|client| Reverse((client, NOBODY, 0))).collect();
        while let Some(Reverse((now_us, ended, sent_us))) = events.pop()
            && now_us < 5_000_000
        {
            if ended != NOBODY {
                estimates[ended].first_byte(now_us, sent_us);
            }
            let one = rng.usize(0..4);
            let other = (one + rng.usize(1..4)) % 4;
            let wait_us = |server: usize| estimates[server].wait_us(now_us, 0);
            let server = if wait_us(other) < wait_us(one) { other } else { one };
            given[server] += 1;
            estimates[server].request(now_us);
            let on_us = if stalled == Some(server) { 5_000 } else { 100_000 };
            let start_us = now_us.max(free_at_us[server]);
            free_at_us[server] = done_us(start_us, rng.u64(50..150), on_us);
            events.push(Reverse((free_at_us[server], server, now_us)));
        }
        given
    }

    #[test]
    fn without_a_stall_all_share_evenly() {
        for (clients, seed) in [(4, 1), (64, 2)] {
            let given = closed_loop(clients, None, seed);
            let mean = given.iter().sum::<u64>() as f64 / 4.0;
            assert!(given.iter().all(|one| (*one as f64 / mean - 1.0).abs() < 0.05), "{given:?}");
        }
    }

    #[test]
    fn a_backend_that_stalls_95_percent_of_the_time_gets_below_1_percent() {
        for (clients, stalled, seed) in [(2, 3, 3), (8, 0, 4), (64, 1, 5), (128, 0, 6), (512, 2, 7)]
        {
            let given = closed_loop(clients, Some(stalled), seed);
            let sum: u64 = given.iter().sum();
            assert!(given[stalled] * 100 < sum, "{given:?} with {clients} clients");
            assert!(given[stalled] > 0, "it is tried: {given:?}");
            let mean = (sum - given[stalled]) as f64 / 3.0;
            for (server, count) in given.iter().enumerate() {
                let even = (*count as f64 / mean - 1.0).abs() < 0.1;
                assert!(server == stalled || even, "{given:?} with {clients} clients");
            }
        }
    }
}
