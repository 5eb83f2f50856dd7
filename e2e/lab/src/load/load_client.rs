//! A load client: N persistent connections on one thread, each sending its next request when the
//! response to the last is complete (and not before its pace, if one is set), or when it is due
//! (open loop). Every response is checked.
//!
//! Owns its start and its end; what a request and a right response are, an [`Exchange`] says.

use crate::{
    load::load_driver::Driver,
    node::netns::Namespace,
    work::{
        exchange::{Exchange, LoadOptions, Progress},
        stats::LoadReport,
    },
};
use anyhow::{Result, ensure};
use std::{
    sync::{Arc, atomic::Ordering},
    thread::JoinHandle,
};

/// A running load.
#[derive(Debug)]
pub struct Load<E> {
    job: JoinHandle<Result<(LoadReport, E)>>,
    progress: Arc<Progress>,
}

impl<E: Exchange> Load<E> {
    /// Starts it on a thread of its own in `namespace`.
    pub fn start(namespace: &Namespace, options: LoadOptions, exchange: E) -> Result<Self> {
        ensure!(options.connections > 0, "a load needs a connection");
        let progress = Arc::new(Progress::default());
        let live = Arc::clone(&progress);
        let job = namespace.spawn(move || Driver::new(options, exchange, live)?.run());
        Ok(Self { job, progress })
    }

    /// Live figures.
    #[must_use]
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Whether it has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.job.is_finished()
    }

    /// Ends it at once (requests on the way are not counted) and gives the report.
    pub fn stop(self) -> Result<(LoadReport, E)> {
        self.progress.stop.store(true, Ordering::Relaxed);
        self.join()
    }

    /// Waits for its end.
    pub fn join(self) -> Result<(LoadReport, E)> {
        self.job.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}
