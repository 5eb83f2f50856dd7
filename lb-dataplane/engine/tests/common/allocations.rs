//! The packet path takes no memory and gives none back. Not part of the harness that all tests
//! share: what counts is a global allocator, which benchmarks do without.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Runs a part of the engine; it must take no memory and give none back.
pub fn taking_nothing<T>(part: impl FnOnce() -> T) -> T {
    let mut result = None;
    let taken = allocation_counter::measure(|| {
        result = Some(catch_unwind(AssertUnwindSafe(part)));
    });
    match result.expect("it ran") {
        Ok(value) => {
            assert_eq!(
                (taken.count_total, taken.count_current),
                (0, 0),
                "allocations, and what is left of them"
            );
            value
        }
        Err(panic) => resume_unwind(panic),
    }
}
