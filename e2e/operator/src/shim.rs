//! A host-shim as the operator sees it: a control API that says which keys it has and to which pods
//! it could attach the adopter. It attaches nothing.

use crate::control::{Answers, Said, refused, said, serve};
use anyhow::{Context, Result};
use baton_api::NodeKeys;
use http_body_util::BodyExt;
use hyper::{Method, Request, StatusCode, body::Incoming};
use serde_json::{Value, json};
use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
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
    /// What it was sent, if it takes keys.
    sent: Mutex<Option<Vec<NodeKeys>>>,
    /// How often it was asked.
    looks: watch::Sender<u64>,
}

impl Shim {
    /// Listens at an address of loopback, without TLS.
    pub async fn start(address: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind(address).await.with_context(|| address.to_string())?;
        let shared = Arc::new(Shared {
            started: Instant::now(),
            reported: Mutex::new((vec![1], Vec::new())),
            sent: Mutex::default(),
            looks: watch::Sender::new(0),
        });
        let task = tokio::spawn(serve(listener, None, Arc::clone(&shared)));
        Ok(Self { shared, task })
    }

    /// What it says from the next look on: the epochs of its keys, and of each pod why the adopter
    /// is not there, if so.
    pub fn set(&self, key_epochs: &[u8], pods: &[(&str, Option<&str>)]) {
        let pods = pods
            .iter()
            .map(|(name, why)| json!({ "name": name, "attached": why.is_none(), "reason": why }));
        let mut reported = self.shared.reported.lock().unwrap_or_else(PoisonError::into_inner);
        *reported = (key_epochs.to_vec(), pods.collect());
    }

    /// From now on it has its keys from the operator, as one without `keys` in its configuration.
    /// It has none yet.
    pub fn take_keys(&self) {
        *self.shared.sent() = Some(Vec::new());
        self.set(&[], &[]);
    }

    /// What it was sent, in order.
    #[must_use]
    pub fn sent(&self) -> Vec<NodeKeys> {
        self.shared.sent().clone().unwrap_or_default()
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

impl Shared {
    fn sent(&self) -> MutexGuard<'_, Option<Vec<NodeKeys>>> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> Said {
        let reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        said(&json!({
            "version": "test",
            "uptimeSeconds": self.started.elapsed().as_secs(),
            "keyEpochs": reported.0,
            "takesKeys": self.sent().is_some(),
            "pods": reported.1,
        }))
    }

    async fn take(&self, request: Request<Incoming>) -> Said {
        let Ok(body) = request.into_body().collect().await else {
            return refused(StatusCode::BAD_REQUEST, "no body");
        };
        let keys: NodeKeys = match serde_json::from_slice(&body.to_bytes()) {
            Ok(keys) => keys,
            Err(_) => return refused(StatusCode::UNPROCESSABLE_ENTITY, "no keys"),
        };
        match &mut *self.sent() {
            None => return refused(StatusCode::CONFLICT, "it has its own"),
            Some(sent) => {
                let epochs = keys.keys.iter().map(|key| key.epoch % 16).collect();
                let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
                reported.0 = epochs;
                sent.push(keys);
            }
        }
        self.state()
    }
}

impl Answers for Shared {
    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Said {
        match (request.method(), request.uri().path()) {
            (&Method::GET, "/v1/state") => {
                self.looks.send_modify(|looks| *looks += 1);
                self.state()
            }
            (&Method::PUT, "/v1/keys") => self.take(request).await,
            _ => refused(StatusCode::NOT_FOUND, "nothing here"),
        }
    }
}
