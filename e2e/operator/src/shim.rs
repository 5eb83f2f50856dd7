//! A host-shim as the operator sees it: a control API that says which keys it has and to which pods it could attach the
//! adopter. It attaches nothing.

use crate::control::{Answers, Said, refused, said, serve};
use anyhow::{Context, Result};
use hyper::{Method, Request, StatusCode, body::Incoming};
use serde_json::{Value, json};
use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use tokio::{net::TcpListener, sync::watch, task::JoinHandle, time::timeout};

/// A running one. Dropping it closes its port.
#[derive(Debug)]
pub struct Shim {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    started: Instant,
    reported: Mutex<(Vec<u8>, Vec<Value>)>,
    /// How often it was asked.
    looks: watch::Sender<u64>,
}

impl Shim {
    /// Listens at an address of loopback, without TLS.
    ///
    /// # Errors
    /// If the port is taken.
    pub async fn start(address: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind(address)
            .await
            .with_context(|| address.to_string())?;
        let shared = Arc::new(Shared {
            started: Instant::now(),
            reported: Mutex::new((vec![1], Vec::new())),
            looks: watch::Sender::new(0),
        });
        let task = tokio::spawn(serve(listener, None, Arc::clone(&shared)));
        Ok(Self { shared, task })
    }

    /// What it says from the next look on: the epochs of its keys, and of each pod why the adopter is not there, if so.
    pub fn set(&self, key_epochs: &[u8], pods: &[(&str, Option<&str>)]) {
        let pods = pods
            .iter()
            .map(|(name, why)| json!({ "name": name, "attached": why.is_none(), "reason": why }));
        let mut reported = self
            .shared
            .reported
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *reported = (key_epochs.to_vec(), pods.collect());
    }

    /// How often it was asked.
    #[must_use]
    pub fn looks(&self) -> u64 {
        *self.shared.looks.borrow()
    }

    /// Waits until it was asked so many times more.
    ///
    /// # Errors
    /// At the deadline.
    pub async fn wait_looks(&self, deadline: Duration, more: u64) -> Result<()> {
        let mut looks = self.shared.looks.subscribe();
        let wanted = *looks.borrow() + more;
        let waited = timeout(deadline, looks.wait_for(|looks| *looks >= wanted)).await;
        waited.context("the shim is not asked")??;
        Ok(())
    }
}

impl Drop for Shim {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Answers for Shared {
    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Said {
        match (request.method(), request.uri().path()) {
            (&Method::GET, "/v1/state") => {
                self.looks.send_modify(|looks| *looks += 1);
                let reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
                said(&json!({
                    "version": "test",
                    "uptimeSeconds": self.started.elapsed().as_secs(),
                    "keyEpochs": reported.0,
                    "pods": reported.1,
                }))
            }
            _ => refused(StatusCode::NOT_FOUND, "nothing here"),
        }
    }
}
