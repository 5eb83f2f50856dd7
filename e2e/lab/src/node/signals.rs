//! SIGINT, SIGTERM and SIGHUP: remove every living lab of this process, then end with 128 plus the
//! signal.
//!
//! Owns the list of living labs. A signal that arrives while labs are being removed changes
//! nothing.

use crate::node::shared::Shared;
use anyhow::{Context, Result};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};
use std::{
    sync::{
        Arc, Mutex, Once, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static LABS: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());
static STARTED: Once = Once::new();
static FAILURE: OnceLock<String> = OnceLock::new();

/// Puts a lab under the care of the signal handler, which starts with the first.
pub(crate) fn watch(lab: &Arc<Shared>) -> Result<()> {
    STARTED.call_once(|| {
        if let Err(e) = start() {
            let _ = FAILURE.set(format!("{e:#}"));
        }
    });
    if let Some(failure) = FAILURE.get() {
        anyhow::bail!("signal handler: {failure}");
    }
    let mut labs = LABS.lock().unwrap_or_else(PoisonError::into_inner);
    labs.retain(|l| l.strong_count() > 0);
    labs.push(Arc::downgrade(lab));
    Ok(())
}

/// Whether a signal is ending this process: whatever fails from then on fails because its lab is
/// being removed.
#[must_use]
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

fn start() -> Result<()> {
    let mut signals =
        Signals::new([SIGINT, SIGTERM, SIGHUP]).context("installing the signal handler")?;
    thread::Builder::new()
        .name("lab-signals".into())
        .spawn(move || {
            if let Some(signal) = signals.forever().next() {
                INTERRUPTED.store(true, Ordering::SeqCst);
                let labs = LABS.lock().unwrap_or_else(PoisonError::into_inner);
                for lab in labs.iter().filter_map(Weak::upgrade) {
                    if let Err(e) = lab.record.remove() {
                        eprintln!("baton-lab: removing {}: {e:#}", lab.id());
                    }
                }
                std::process::exit(128 + signal);
            }
        })
        .context("starting the signal thread")?;
    Ok(())
}
