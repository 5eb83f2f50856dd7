//! Whether this process's CPU time is rationed (CFS bandwidth, as a container's CPU limit sets it).
//!
//! Owns the look at the control groups that hold it, version 1 or 2, as far up as they can be seen.
//! The packet thread waits awake for frames only where CPU time is its own: what it burns within a
//! period is missing at its end, and then nothing is forwarded for up to 100 ms. Never changes a
//! control group.

use crate::{
    commands::{Notice, WorkerError},
    workers::Workers,
};
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tracing::info;

/// Between two looks. A limit may change while we run, and throttling begins with load.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// After a throttled period nothing is burnt for so long; twice as long after the next, as it may
/// have been ours.
const REST_MIN: Duration = Duration::from_secs(10);
/// The longest of these rests.
const REST_MAX: Duration = Duration::from_secs(640);

/// What all groups together say.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Reading {
    /// CPUs that the tightest one allows.
    cpus: Option<f64>,
    /// Periods in which one of them was throttled, since it was made.
    throttled: u64,
}

/// When waiting awake is allowed, as a function of what was read. Knows no file and no clock.
#[derive(Debug)]
struct Rule {
    throttled: Option<u64>,
    rest: Duration,
    rests_until: Option<Instant>,
}

impl Rule {
    fn new() -> Self {
        Self { throttled: None, rest: REST_MIN, rests_until: None }
    }

    /// Whether the packet thread may wait awake until the next look.
    fn allows(&mut self, now: Instant, reading: Reading) -> bool {
        // What was before this process is not its own.
        let before = self.throttled.replace(reading.throttled);
        if before.is_some_and(|before| before < reading.throttled) {
            if self.rests_until.is_some_and(|until| until <= now) {
                self.rest = (self.rest * 2).min(REST_MAX);
            }
            self.rests_until = Some(now + self.rest);
        }
        reading.cpus.is_none_or(|cpus| cpus >= 1.0)
            && self.rests_until.is_none_or(|until| until <= now)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

/// The control groups of this process, its own first.
#[derive(Debug, PartialEq, Eq)]
struct Groups {
    version: Version,
    paths: Vec<PathBuf>,
}

impl Groups {
    /// From `/proc/self/cgroup` and `/proc/self/mountinfo`. `None` where no cpu controller is
    /// mounted, which with version 2 shows by its files: the root of all has none.
    fn parse(own: &str, mounts: &str, is_limited: impl Fn(&Path) -> bool) -> Option<Self> {
        mounts.lines().find_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            let mut left = left.split(' ').skip(3);
            let (root, mount) = (Path::new(left.next()?), PathBuf::from(left.next()?));
            let mut right = right.split(' ');
            let kind = right.next()?;
            let has_cpu = |list: &str| list.split(',').any(|one| one == "cpu");
            let version = match kind {
                "cgroup" if has_cpu(right.nth(1)?) => Version::V1,
                "cgroup2" => Version::V2,
                _ => return None,
            };
            let path = own.lines().find_map(|line| {
                let mut fields = line.splitn(3, ':').skip(1);
                let (controllers, path) = (fields.next()?, fields.next()?);
                let mine = match version {
                    Version::V1 => has_cpu(controllers),
                    Version::V2 => controllers.is_empty(),
                };
                mine.then_some(path)
            })?;
            // In a container the mount may begin at the own group, whatever the path says; then
            // that is all there is to see.
            let below = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
            let paths: Vec<PathBuf> = below.ancestors().map(|part| mount.join(part)).collect();
            let usable = version == Version::V1 || paths.iter().any(|path| is_limited(path));
            usable.then_some(Self { version, paths })
        })
    }

    fn find() -> Option<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        Self::parse(&own, &mounts, |path| path.join("cpu.max").is_file())
    }

    /// What they say now. What cannot be read limits nothing.
    fn read(&self) -> Reading {
        let mut all = Reading::default();
        for path in &self.paths {
            let text = |file: &str| fs::read_to_string(path.join(file)).unwrap_or_default();
            let cpus = match self.version {
                Version::V1 => cpus(&format!(
                    "{} {}",
                    text("cpu.cfs_quota_us").trim(),
                    text("cpu.cfs_period_us").trim()
                )),
                Version::V2 => cpus(&text("cpu.max")),
            };
            all.cpus = match (all.cpus, cpus) {
                (Some(a), Some(b)) => Some(f64::min(a, b)),
                (a, b) => a.or(b),
            };
            all.throttled += throttled(&text("cpu.stat"));
        }
        all
    }
}

/// `QUOTA PERIOD` in microseconds, as `cpu.max` has it. `max` and -1 mean none.
fn cpus(text: &str) -> Option<f64> {
    let mut fields = text.split_whitespace();
    let quota: u64 = fields.next()?.parse().ok()?;
    let period: u64 = fields.next()?.parse().ok()?;
    (period > 0).then(|| quota as f64 / period as f64)
}

fn throttled(text: &str) -> u64 {
    text.lines()
        .find_map(|line| line.strip_prefix("nr_throttled ")?.trim().parse().ok())
        .unwrap_or(0)
}

/// Watches the control groups of this process.
pub struct CpuQuota {
    groups: Option<Groups>,
    rule: Rule,
    allowed: bool,
}

impl CpuQuota {
    /// Finds them and looks for the first time.
    pub fn find() -> Self {
        let mut quota = Self { groups: Groups::find(), rule: Rule::new(), allowed: true };
        quota.changes();
        quota
    }

    /// Whether the packet thread may wait awake.
    pub fn allows_spinning(&self) -> bool {
        self.allowed
    }

    /// Looks again; true if the answer is another one than was told.
    fn changes(&mut self) -> bool {
        let Some(groups) = &self.groups else {
            return false;
        };
        let reading = groups.read();
        let allowed = self.rule.allows(Instant::now(), reading);
        let changed = allowed != self.allowed;
        self.allowed = allowed;
        if changed && !allowed {
            info!(
                cpus = reading.cpus,
                throttled_periods = reading.throttled,
                "CPU time is rationed: frames are waited for asleep, which adds a wake-up to each. A limit of 1 CPU or more, or none, ends that"
            );
        }
        changed
    }

    /// Tells the packet thread whenever the answer changes. Never ends but with the worker.
    pub async fn watch(mut self, workers: Workers) {
        let mut ticks = interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if !self.changes() {
                continue;
            }
            match workers.tell(Notice::Spin(self.allowed)).await {
                Ok(()) => {}
                Err(WorkerError::Gone) => return,
                // It was not told: the next look finds the change again.
                Err(WorkerError::Stuck) => self.allowed = !self.allowed,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::Command;
    use tokio::time::timeout;

    fn parse(own: &str, mounts: &str) -> Option<Groups> {
        // The root of version 2 on this machine is one of a container's.
        Groups::parse(own, mounts, |path| path.ends_with("cgroup"))
    }

    fn paths(groups: Option<Groups>) -> Vec<String> {
        let show = |path: &PathBuf| path.display().to_string();
        groups.map_or_else(Vec::new, |groups| groups.paths.iter().map(show).collect())
    }

    #[test]
    fn the_own_groups_are_found_in_either_version() {
        let v1 = "30 25 0:26 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n\
                  31 25 0:27 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
                  32 25 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let own = "3:cpuset:/other\n2:cpu,cpuacct:/kubepods/pod1/c1\n0::/elsewhere\n";
        assert_eq!(
            paths(parse(own, v1)),
            [
                "/sys/fs/cgroup/cpu,cpuacct/kubepods/pod1/c1",
                "/sys/fs/cgroup/cpu,cpuacct/kubepods/pod1",
                "/sys/fs/cgroup/cpu,cpuacct/kubepods",
                "/sys/fs/cgroup/cpu,cpuacct/",
            ]
        );
        // In a container without a namespace of its own, the mount is the own group.
        let inside = "31 25 0:27 /kubepods/pod1/c1 /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n";
        assert_eq!(paths(parse("2:cpu:/kubepods/pod1/c1\n", inside)), ["/sys/fs/cgroup/cpu/"]);
        // With one, the path is the root.
        let v2 = "32 25 0:28 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        assert_eq!(paths(parse("0::/\n", v2)), ["/sys/fs/cgroup/"]);
        let odd = "32 25 0:28 /../../pod1 /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        assert_eq!(paths(parse("0::/\n", odd)), ["/sys/fs/cgroup/"]);
        assert_eq!(parse("0::/\n", "1 1 0:1 / /proc rw - proc proc rw"), None);
        assert_eq!(parse("", ""), None);
    }

    #[test]
    fn limits_are_read_as_the_kernel_writes_them() {
        assert_eq!(cpus("50000 100000\n"), Some(0.5));
        assert_eq!(cpus("max 100000\n"), None);
        assert_eq!(cpus("-1 100000"), None);
        assert_eq!(cpus(" "), None);
        assert_eq!(cpus("1 0"), None);
        let v1 = "nr_periods 10\nnr_throttled 7\nthrottled_time 5\n";
        assert_eq!(throttled(v1), 7);
        assert_eq!(throttled("usage_usec 1\n"), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn rationed_time_is_not_burnt() {
        let start = Instant::now();
        let mut rule = Rule::new();
        let mut at = |seconds: u64, cpus, throttled| {
            let now = start + Duration::from_secs(seconds);
            rule.allows(now, Reading { cpus, throttled })
        };
        // Throttled before we came.
        assert!(at(0, None, 90));
        assert!(at(1, Some(1.0), 90));
        assert!(!at(2, Some(0.99), 90), "less than one CPU");
        assert!(at(3, Some(2.5), 90));
        // Throttled all the same: ten seconds behind the last time.
        assert!(!at(4, Some(2.5), 91));
        assert!(!at(9, Some(2.5), 95));
        assert!(!at(18, Some(2.5), 95));
        assert!(at(19, Some(2.5), 95));
        // And again: twice as long.
        assert!(!at(20, Some(2.5), 96));
        assert!(!at(39, Some(2.5), 96));
        assert!(at(40, Some(2.5), 96));
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_stuck_worker_was_not_told_is_told_again() {
        let folder = std::env::temp_dir().join(format!("baton-quota-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(folder.join("cpu.max"), "50000 100000").expect("written");
        let groups = Groups { version: Version::V2, paths: vec![folder.clone()] };
        let quota = CpuQuota { groups: Some(groups), rule: Rule::new(), allowed: true };
        let (workers, mut inboxes) = Workers::new(1).expect("an eventfd");
        while workers.tell(Notice::Link(true)).await.is_ok() {}
        let mut watch = std::pin::pin!(quota.watch(workers));
        let stuck = timeout(LOOK_EVERY * 5, &mut watch).await;
        assert!(stuck.is_err(), "it goes on");
        while inboxes[0].next().is_some() {}
        let told = timeout(LOOK_EVERY * 5, &mut watch).await;
        assert!(told.is_err(), "it goes on");
        let next = inboxes[0].next();
        assert!(matches!(next, Some(Command::Notice(Notice::Spin(false)))));
        fs::remove_dir_all(folder).expect("removed");
    }

    #[test]
    fn the_rests_are_bounded() {
        let mut rule = Rule::new();
        let mut now = Instant::now();
        for throttled in 0..100 {
            let _ = rule.allows(now, Reading { cpus: None, throttled });
            now += REST_MAX;
        }
        assert!(rule.rest == REST_MAX);
    }
}
