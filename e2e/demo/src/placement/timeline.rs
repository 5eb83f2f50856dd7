//! What happens during a run: warm-up, the measured time, and what a condition changes meanwhile.
//!
//! Owns the clock of a run. All waits are lengths of phases, never guesses about when something is
//! done.

use super::{
    matrix::{Cell, FREEZE, ONSET, ONSET_PERCENT, SCALE, SCALE_AT, SCALE_WATCH, Scenario},
    running::{Bench, Counted, Marks, Running, WARM_UP},
};
use anyhow::{Context, Result};
use baton_api::FlowView;
use std::{
    collections::BTreeMap,
    sync::atomic::Ordering,
    thread,
    time::{Duration, Instant},
};

/// A noisy neighbour works so long, and rests as long.
const NOISE: Duration = Duration::from_millis(200);
/// How often flows are looked at while new pods get theirs.
const LOOK: Duration = Duration::from_millis(50);
/// How often a slow pod's requests are counted.
const COUNT: Duration = Duration::from_millis(2);
/// It is found out when, for so long, it gets less than this share of the requests that it got
/// before.
const FOUND_WINDOW: Duration = Duration::from_millis(30);
const FOUND_SHARE: f64 = 0.25;
/// Of its fair share of connections a new pod shall have this much.
const SHARE: f64 = 0.8;

/// Goes through the phases of a cell while its load runs.
pub fn follow(bench: &mut Bench<'_>, cell: &Cell, running: &mut Running<'_>) -> Result<Marks> {
    thread::sleep(WARM_UP);
    running.progress().next_phase();
    match cell.scenario {
        Scenario::Onset => onset(bench, cell, running),
        Scenario::Frozen => frozen(bench, cell, running),
        Scenario::ScaleOut => scale(running, cell),
        Scenario::AllSlow => all_slow(bench, cell, running),
        Scenario::Noisy => {
            let length = bench.length;
            measure(running, length, |since| {
                let mut on = false;
                while since.elapsed() < length {
                    on = !on;
                    bench.clusters.noise(cell, on)?;
                    let next =
                        NOISE * u32::try_from(since.elapsed().as_millis() / NOISE.as_millis() + 1)?;
                    sleep_until(since, next.min(length));
                }
                Ok(())
            })
        }
        _ => {
            let length = bench.length;
            measure(running, length, |since| {
                sleep_until(since, length);
                Ok(())
            })
        }
    }
}

fn sleep_until(since: Instant, after: Duration) {
    thread::sleep(after.saturating_sub(since.elapsed()));
}

/// Measures from now for `length`, which `during` fills.
fn measure(
    running: &Running<'_>,
    length: Duration,
    during: impl FnOnce(Instant) -> Result<()>,
) -> Result<Marks> {
    let requests = || running.progress().requests.load(Ordering::Relaxed);
    let (counted, since, before) = (Counted::of(running.dataplane)?, Instant::now(), requests());
    during(since)?;
    let (length, requests) = (since.elapsed().max(length), requests() - before);
    Ok(Marks {
        phase: 1,
        requests,
        length,
        moved_share: Counted::of(running.dataplane)?.share_since(&counted),
        beside: Vec::new(),
        extra: BTreeMap::new(),
    })
}

/// One pod becomes slow at a known moment. The figures are those of the time after it.
fn onset(bench: &Bench<'_>, cell: &Cell, running: &Running<'_>) -> Result<Marks> {
    let [before, after] = ONSET;
    let sent = || -> Result<u64> {
        let state = running.dataplane.state()?;
        let backends = &state.policies.first().context("no policy")?.backends;
        Ok(backends.first().context("no backend")?.requests_total)
    };
    let at_start = sent()?;
    let calm = measure(running, before, |since| {
        sleep_until(since, before);
        Ok(())
    })?;
    let mut samples = Vec::new();
    running.progress().next_phase();
    let mut marks = measure(running, after, |_| {
        bench.clusters.limit_first(cell, ONSET_PERCENT)?;
        let since = Instant::now();
        while since.elapsed() < after {
            samples.push((since.elapsed(), sent()?));
            thread::sleep(COUNT);
        }
        Ok(())
    })?;
    let first = samples.first().map_or(0, |(_, sent)| *sent);
    let usual = (first - at_start) as f64 / calm.length.as_secs_f64();
    if let Some(found) = found_after(&samples, usual) {
        marks.extra.insert("found_after_ms", found.as_secs_f64() * 1e3);
    }
    marks.extra.insert("calm_moved_share", calm.moved_share);
    marks.beside = vec![("calm_p99_us", 1)];
    marks.phase = 2;
    Ok(marks)
}

/// When the requests that a pod is sent fell from their usual rate: the beginning of the first
/// window that holds few.
fn found_after(samples: &[(Duration, u64)], usual_per_second: f64) -> Option<Duration> {
    let few = usual_per_second * FOUND_WINDOW.as_secs_f64() * FOUND_SHARE;
    samples.iter().find_map(|(at, sent)| {
        let (_, later) = samples.iter().find(|(t, _)| *t >= *at + FOUND_WINDOW)?;
        ((later - sent) as f64 <= few).then_some(*at)
    })
}

/// One server stops, and goes on 2 s later. The figures are those of the whole run.
fn frozen(bench: &mut Bench<'_>, cell: &Cell, running: &Running<'_>) -> Result<Marks> {
    let [before, during, after] = FREEZE;
    let mut marks = measure(running, before + during + after, |since| {
        sleep_until(since, before);
        running.progress().next_phase();
        bench.clusters.freeze(cell, true)?;
        sleep_until(since, before + during);
        running.progress().next_phase();
        bench.clusters.freeze(cell, false)?;
        sleep_until(since, before + during + after);
        Ok(())
    })?;
    marks.beside = vec![("before_p99_us", 1), ("during_p99_us", 2), ("after_p99_us", 3)];
    marks.phase = 2;
    Ok(marks)
}

/// A calm time and one in which all pods are slow, of equal length. The figures are those of the
/// second.
fn all_slow(bench: &mut Bench<'_>, cell: &Cell, running: &Running<'_>) -> Result<Marks> {
    let length = bench.length;
    let calm_before = Counted::of(running.dataplane)?;
    let calm = measure(running, length, |since| {
        sleep_until(since, length);
        Ok(())
    })?;
    let calm_after = Counted::of(running.dataplane)?;
    running.progress().next_phase();
    let mut slow = measure(running, length, |since| {
        bench.clusters.slow_all(cell)?;
        sleep_until(since, length);
        Ok(())
    })?;
    let moves = (calm_after.moves - calm_before.moves) as f64;
    let slow_moves = (Counted::of(running.dataplane)?.moves - calm_after.moves) as f64;
    slow.extra = [
        ("calm_moves_per_second", moves / calm.length.as_secs_f64()),
        ("slow_moves_per_second", slow_moves / slow.length.as_secs_f64()),
        ("calm_moved_share", calm.moved_share),
        ("calm_per_second", calm.requests as f64 / calm.length.as_secs_f64()),
    ]
    .into();
    slow.beside = vec![("calm_p99_us", 1)];
    slow.phase = 2;
    Ok(slow)
}

/// 2 pods become 6 after a second. How long until the new ones have their share of connections, and
/// what that took.
fn scale(running: &mut Running<'_>, cell: &Cell) -> Result<Marks> {
    let before = Counted::of(running.dataplane)?;
    let mut marks = measure(running, SCALE_AT, |since| {
        sleep_until(since, SCALE_AT);
        Ok(())
    })?;
    let mut config = running.config.clone();
    config.policies = vec![running.policy_of_all.clone()];
    let old: Vec<_> =
        running.policy_of_all.backends[..SCALE.0].iter().map(|b| b.name.clone()).collect();
    let start = Instant::now();
    running.dataplane.reconfigure(&config)?;
    running.progress().next_phase();
    let fair = f64::from(cell.connections) * (SCALE.1 - SCALE.0) as f64 / SCALE.1 as f64;
    let mut reached = None;
    let mut moves_max = 0;
    let after = measure(running, SCALE_WATCH, |since| {
        while since.elapsed() < SCALE_WATCH {
            let flows = running.dataplane.flows()?;
            let on_new = |f: &&FlowView| !old.contains(&f.backend);
            if reached.is_none() && flows.iter().filter(on_new).count() as f64 >= SHARE * fair {
                reached = Some(start.elapsed());
            }
            moves_max = flows.iter().map(|f| f.migrations).max().unwrap_or(0).max(moves_max);
            thread::sleep(LOOK);
        }
        Ok(())
    })?;
    marks.requests = after.requests;
    marks.length = after.length;
    marks.phase = 2;
    marks.moved_share = Counted::of(running.dataplane)?.share_since(&before);
    marks.extra.insert("moves_of_a_flow_max", f64::from(moves_max));
    // A share that was not reached has no time.
    if let Some(reached) = reached {
        marks.extra.insert("share_after_s", reached.as_secs_f64());
    }
    marks.beside = vec![("before_p99_us", 1)];
    Ok(marks)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests of a pod at 1,000/s until `until_ms`, then at `then` per second, looked at every 2
    /// ms for 200 ms.
    fn samples(until_ms: u64, then: u64) -> Vec<(Duration, u64)> {
        (0..100u64)
            .map(|i| {
                let ms = 2 * i;
                let sent = ms.min(until_ms) + ms.saturating_sub(until_ms) * then / 1_000;
                (Duration::from_millis(ms), sent)
            })
            .collect()
    }

    #[test]
    fn a_pod_is_found_when_its_requests_fall_and_not_before() {
        let found = |until, then| found_after(&samples(until, then), 1_000.0);
        // The window that begins up to 7 requests before the fall holds few enough.
        let after = found(40, 0).unwrap();
        assert!((32..=40).contains(&after.as_millis()), "{after:?}");
        // Half of the requests is not found out, a tenth is.
        assert_eq!(found(40, 500), None);
        assert!(found(40, 100).is_some());
        // It fell too late for a whole window.
        assert_eq!(found(190, 0), None);
        assert_eq!(found(0, 0), Some(Duration::ZERO));
    }
}
