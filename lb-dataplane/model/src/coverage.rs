//! Which rows of the declared table an exploration took.
//!
//! Owns one flag for each row. It is no part of the explored state.

use baton_engine::states::TABLE;
use std::sync::atomic::{AtomicU64, Ordering};

/// How often each row was taken.
#[derive(Debug)]
pub struct Coverage(Vec<AtomicU64>);

impl Default for Coverage {
    fn default() -> Self {
        Self(TABLE.iter().map(|_| AtomicU64::new(0)).collect())
    }
}

impl Coverage {
    /// The row was taken.
    pub fn saw(&self, row: usize) {
        if let Some(count) = self.0.get(row) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How often a row was taken.
    #[must_use]
    pub fn of(&self, row: usize) -> u64 {
        self.0.get(row).map_or(0, |c| c.load(Ordering::Relaxed))
    }

    /// Adds what another exploration took.
    pub fn add(&self, other: &Self) {
        for (here, there) in self.0.iter().zip(&other.0) {
            here.fetch_add(there.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}
