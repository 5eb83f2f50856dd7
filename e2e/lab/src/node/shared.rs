//! What all handles of one lab share: its name on this machine, its directory and its record.

use crate::node::record::Record;
use anyhow::Result;
use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

/// What all handles of one lab share.
#[derive(Debug)]
pub(crate) struct Shared {
    id: String,
    directory: PathBuf,
    pub(crate) record: Record,
    logs: AtomicU32,
}

impl Shared {
    /// Of a lab of this name, with a record of its own.
    pub(crate) fn create(id: String) -> Result<Self> {
        Ok(Self {
            record: Record::create(&id)?,
            directory: std::env::temp_dir().join(&id),
            id,
            logs: AtomicU32::new(0),
        })
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Path of a new log, without extension.
    pub(crate) fn new_log(&self, name: &str) -> PathBuf {
        let number = self.logs.fetch_add(1, Ordering::Relaxed);
        self.directory.join(format!("log-{number:03}-{name}"))
    }
}
