//! What the engines of several workers tell each other of backends: each has measured its own
//! requests, and all choose by those of all.
//!
//! Owns the form of what is told, a row of numbers for each backend, and what becomes of it. Knows
//! no memory that is shared and no other engine: whoever has several carries the rows. Never on the
//! packet path.
//!
//! # Decisions
//!
//! - **Means of decaying windows are sums, so several workers' are added**: two that each see a
//!   part of the requests know together what one would that sees all (test
//!   `what_two_workers_see_is_what_one_would`). Nothing else is shared: liveness and adoptability
//!   are evidence that each worker gets itself, from probes of its own.

use crate::{
    Engine,
    backend::load::{Load, LoadRow},
    clock::Instant,
    ids::Addr,
};

/// Numbers of a row: the backend's address and port, and what is known of its load.
pub const ROW: usize = 3 + size_of::<LoadRow>() / size_of::<u64>();

/// What one worker's requests say of a backend.
pub type Row = [u64; ROW];

fn row_of(addr: Addr, port: u16, load: &Load) -> Row {
    let mut row = [0; ROW];
    (row[0], row[1]) = (addr.high, addr.low);
    row[2] = u64::from(port);
    row[3..].copy_from_slice(&load.to_row());
    row
}

fn addr_of(row: &Row) -> Addr {
    Addr { high: row[0], low: row[1] }
}

/// What exchanges rows: an engine.
pub trait Measures {
    /// Slots of backends, of which some may be nobody's.
    fn slots(&self) -> usize;
    /// What its requests say of the backend in a slot; none if there never were any.
    fn row(&self, slot: usize) -> Option<Row>;
    /// Takes what another worker's says of a backend. Of one that is not served here it is left.
    fn take(&mut self, now: Instant, worker: usize, row: &Row);
}

impl Measures for Engine {
    fn slots(&self) -> usize {
        self.backends.len()
    }

    fn row(&self, slot: usize) -> Option<Row> {
        let backend = self.backends.get(slot)?;
        let row = row_of(backend.addr, backend.port, &backend.load);
        backend.load.is_known().then_some(row)
    }

    fn take(&mut self, now: Instant, worker: usize, row: &Row) {
        let now = self.link.time(now);
        // Only a port is above 16 bits if the row is none.
        let Ok(port) = u16::try_from(row[2]) else {
            return;
        };
        let Some(slot) = self.ids.backends.find(addr_of(row), port) else {
            return;
        };
        let slot = usize::from(slot);
        let mut said = LoadRow::default();
        said.copy_from_slice(&row[3..]);
        let Some(all) = self.others.hear(now.0, worker, slot, &said) else {
            return;
        };
        let backend = &mut self.backends[slot];
        backend.estimate.set_others(all.outstanding());
        match &mut backend.others {
            Some(others) => **others = all,
            None => backend.others = Some(Box::new(all)),
        }
    }
}
