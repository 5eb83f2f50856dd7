//! What compares times, CPU time or memory, or counts what comes late: nothing runs beside these
//! (`--test-threads=1 alone::`).

mod drain;
mod faults_limits_flood;
mod faults_path;
mod faults_process_links;
mod large;
mod silence;
mod stale;
mod stalled;
mod throttle;
