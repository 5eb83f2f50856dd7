//! Connections of clients, one at a time.

pub(crate) mod http;
pub(crate) mod memcached_client;
pub(crate) mod redis_client;
pub(crate) mod redis_stateful;
