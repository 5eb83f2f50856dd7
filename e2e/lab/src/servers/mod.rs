//! Servers in pods, nearly all of them as they are shipped.

pub(crate) mod files;
pub(crate) mod go;
pub(crate) mod gvisor;
pub(crate) mod nginx;
pub(crate) mod postgres;
pub(crate) mod server;
pub(crate) mod service;
pub(crate) mod service_queue;
pub(crate) mod shipped;
