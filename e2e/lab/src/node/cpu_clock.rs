//! The CPU clock of another process, with the time of its threads that have ended.
//!
//! Owns: two system calls that rustix does not offer. A sum over `/proc/PID/task` would go
//! backwards when a thread ends.
#![allow(unsafe_code, reason = "clock_getcpuclockid(3) and its clock are not in rustix")]

use std::{io, mem, time::Duration};

/// CPU time of the process so far, in nanosecond resolution.
pub(crate) fn cpu_time(pid: i32) -> io::Result<Duration> {
    let mut clock: libc::clockid_t = 0;
    // SAFETY: `clock` is valid for writing for the whole call.
    let error = unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    // SAFETY: all bits zero are a valid timespec.
    let mut time: libc::timespec = unsafe { mem::zeroed() };
    // SAFETY: `time` is valid for writing for the whole call; the kernel checks the clock.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let (seconds, nanoseconds) = (time.tv_sec.cast_unsigned(), time.tv_nsec.cast_unsigned());
    Ok(Duration::from_secs(seconds) + Duration::from_nanos(nanoseconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{hint, process, thread};

    #[test]
    fn the_time_of_a_thread_that_has_ended_stays_in_it() {
        let me = process::id().cast_signed();
        let before = cpu_time(me).unwrap();
        let burnt = Duration::from_millis(5);
        let busy = move || {
            let mut x = 1u64;
            while cpu_time(me).unwrap() < before + burnt {
                x = hint::black_box(x.wrapping_mul(3));
            }
        };
        thread::spawn(busy).join().unwrap();
        assert!(cpu_time(me).unwrap() >= before + burnt);
    }

    #[test]
    fn no_process_is_an_error() {
        // Pids end at 4,194,304 (PID_MAX_LIMIT).
        assert_eq!(cpu_time(4_194_305).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }
}
