//! A lab that looks like a cluster node, for tests, the demo and measurements.
//!
//! [`Lab::new`] sets up network namespaces: a router (the node) with a veth to each pod, to the
//! clients and to the dataplane's pod. [`Pod`] starts real servers (nginx, redis), each a
//! [`Server`], and real clients (wrk, redis-benchmark) there, [`HttpEcho`] and [`RedisCheck`] are
//! clients of our own that check every byte, and [`Lab::dataplane`] and [`Lab::shim`] start Baton.
//! Everything is removed on drop, on a signal, and after a crash at the next start.
//!
//! Blocking, no async; unsafe code only in `timestamps`, `cpu_clock` and `fault_sys`. Needs root,
//! iproute2 and the Debian packages of `make setup`.

mod balancers;
mod clients;
mod load;
mod node;
mod path;
mod servers;
mod timing;
mod work;

pub use balancers::baton::{
    ControlTls, DATAPLANE_CONTROL, Dataplane, DataplaneConfig, Key, Keys, Log, SHIM_CONTROL, Shim,
    ShimConfig, ShimNetns, ShimPod, ShimTransfers, policy, program,
};
pub use balancers::haproxy::{Haproxy, Listen};
pub use balancers::operator::Operator;
pub use balancers::translator::Translator;
pub use clients::http::{HttpClient, Request, Response};
pub use clients::memcached_client::MemcachedClient;
pub use clients::redis_client::{RedisClient, Reply};
pub use clients::redis_stateful::RedisStateful;
pub use load::counter::{PostCount, Tally};
pub use load::fixed_load::FixedLoad;
pub use load::http_load::HttpEcho;
pub use load::http_ranges::HttpRanges;
pub use load::idle::{IdleConnections, IdleRound, allow_files};
pub use load::load_client::Load;
pub use load::memcached_load::MemcachedCheck;
pub use load::redis_bench::{RedisBench, RedisBenchOptions, RedisBenchReport, RedisTest};
pub use load::redis_load::RedisCheck;
pub use load::spread_load::{SpreadOptions, spread};
pub use load::wrk::{Wrk, WrkOptions};
pub use node::command::{run as run_command, with_input as run_command_with_input};
pub use node::lab::{Lab, Options, PODS_MAX, Pod};
pub use node::netns::Namespace;
pub use node::process::{LISTEN_DEADLINE, Process, Spec};
pub use node::record::RECORD_DIR;
pub use node::signals::interrupted;
pub use path::blast::{Blasted, Overheard};
pub use path::faults::{FaultCounts, FaultRates, Faults, Side, Way};
pub use path::tracker::{Tracked, Tracker};
pub use servers::files::Contents;
pub use servers::nginx::{DOWNLOAD_BYTES, NginxOptions, SMALL_BYTES, content, echo_body};
pub use servers::postgres::POSTGRES_PORT;
pub use servers::server::Server;
pub use servers::service_queue::{Distribution, ServiceQueue};
pub use servers::shipped::{MEMCACHED_PORT, REDIS_PORT};
pub use timing::phase_server::PhaseServer;
pub use timing::phases::{
    Accepted, ClientStamps, PhaseClient, ServerStamps, target as phase_target,
};
pub use timing::tap::{Tap, TapStamps};
pub use work::arrivals::{Arrivals, zipf_shares};
pub use work::exchange::{Exchange, LoadOptions, Progress, Verdict};
pub use work::stats::{Counts, Latency, LoadReport, Recorder, Slow, Window};
