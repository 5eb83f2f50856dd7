//! Many connections at once: which requests are sent when, and what is counted of them.

pub(crate) mod counter;
pub(crate) mod fixed_load;
pub(crate) mod http_load;
pub(crate) mod http_ranges;
pub(crate) mod idle;
pub(crate) mod load_client;
pub(crate) mod load_driver;
pub(crate) mod memcached_load;
pub(crate) mod redis_bench;
pub(crate) mod redis_load;
pub(crate) mod spread_load;
pub(crate) mod wrk;
