//! CPU time of everything on this machine that is not the lab: what disturbs a measurement.
//!
//! Only reads. Kernel threads do not count: much of what they do is the lab's packets.

use crate::node::{lab::Lab, netns};
use std::{fs, os::unix::fs::MetadataExt, time::Duration};

/// Length of the ticks that the kernel counts CPU time in for `/proc`: USER_HZ is 100 wherever
/// Linux runs this lab.
const TICK: Duration = Duration::from_millis(10);
/// The parent of all kernel threads.
const KTHREADD: i32 = 2;

/// What `/proc/PID/stat` says.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    parent: i32,
    /// CPU time of the process and of its children that have ended and were waited for.
    time: Duration,
}

impl Lab {
    /// CPU time so far of all processes that are neither this one nor in one of the lab's
    /// namespaces, with that of their ended children. The difference of two calls is what others
    /// used meanwhile.
    #[must_use]
    pub fn others_cpu_time(&self) -> Duration {
        let own: Vec<_> = self.namespaces().filter_map(|n| netns::identity(n.name())).collect();
        let me = i32::try_from(std::process::id()).unwrap_or(0);
        let Ok(entries) = fs::read_dir("/proc") else {
            return Duration::ZERO;
        };
        entries
            .filter_map(|e| e.ok()?.file_name().to_str()?.parse::<i32>().ok())
            .filter(|pid| *pid != me)
            .filter_map(|pid| {
                let stat = parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?;
                let network = fs::metadata(format!("/proc/{pid}/ns/net")).ok();
                let of_lab = network.is_some_and(|m| own.contains(&(m.dev(), m.ino())));
                (stat.parent != KTHREADD && pid != KTHREADD && !of_lab).then_some(stat.time)
            })
            .sum()
    }
}

/// The command name is in parentheses and may hold anything, so fields are counted after the last
/// one.
fn parse(text: &str) -> Option<Stat> {
    let fields: Vec<&str> = text.rsplit_once(") ")?.1.split(' ').collect();
    // utime, stime, cutime and cstime are fields 14 to 17 of proc_pid_stat(5); the first here is
    // its third.
    let ticks: u32 = fields.get(11..15)?.iter().filter_map(|f| f.parse::<u32>().ok()).sum();
    Some(Stat { parent: fields.get(1)?.parse().ok()?, time: TICK * ticks })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_a_process_and_of_its_ended_children_are_summed() {
        let text = "77 (a) b) S 5 77 77 0 -1 4194560 1 2 3 4 100 20 3000 400 20 0 1 0 8 9 10";
        let stat = Stat { parent: 5, time: Duration::from_millis(35_200) };
        assert_eq!(parse(text), Some(stat));
        assert_eq!(parse("77 (a) S 5 77"), None);
    }
}
