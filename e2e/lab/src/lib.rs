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

mod arrivals;
mod baton;
mod blast;
mod cgroup;
mod command;
mod control;
mod counter;
mod cpu_clock;
mod exchange;
mod fault_hold;
mod fault_program;
mod fault_sys;
mod faults;
mod files;
mod fixed_load;
mod go;
mod gvisor;
mod haproxy;
mod http;
mod http_load;
mod http_ranges;
mod idle;
mod lab;
mod load;
mod load_driver;
mod memcached_client;
mod memcached_load;
mod netns;
mod nginx;
mod operator;
mod others;
mod packet_socket;
mod phase_server;
mod phases;
mod postgres;
mod process;
mod procfs;
mod record;
mod redis_bench;
mod redis_client;
mod redis_load;
mod redis_stateful;
mod server;
mod servers;
mod service;
mod service_queue;
mod shared;
mod signals;
mod spread_load;
mod stats;
mod synflood;
mod tap;
mod timestamps;
mod tracker;
mod translator;
mod wrk;

pub use arrivals::{Arrivals, zipf_shares};
pub use baton::{
    ControlTls, DATAPLANE_CONTROL, Dataplane, DataplaneConfig, Key, Keys, Log, SHIM_CONTROL, Shim,
    ShimConfig, ShimNetns, ShimPod, ShimTransfers, policy, program,
};
pub use blast::{Blasted, Overheard};
pub use command::{run as run_command, with_input as run_command_with_input};
pub use counter::{PostCount, Tally};
pub use exchange::{Exchange, LoadOptions, Progress, Verdict};
pub use faults::{FaultCounts, FaultRates, Faults, Side, Way};
pub use files::Contents;
pub use fixed_load::FixedLoad;
pub use haproxy::{Haproxy, Listen};
pub use http::{HttpClient, Request, Response};
pub use http_load::HttpEcho;
pub use http_ranges::HttpRanges;
pub use idle::{IdleConnections, IdleRound, allow_files};
pub use lab::{Lab, Options, PODS_MAX, Pod};
pub use load::Load;
pub use memcached_client::MemcachedClient;
pub use memcached_load::MemcachedCheck;
pub use netns::Namespace;
pub use nginx::{DOWNLOAD_BYTES, NginxOptions, SMALL_BYTES, content, echo_body};
pub use operator::Operator;
pub use phase_server::PhaseServer;
pub use phases::{Accepted, ClientStamps, PhaseClient, ServerStamps, target as phase_target};
pub use postgres::POSTGRES_PORT;
pub use process::{LISTEN_DEADLINE, Process, Spec};
pub use record::RECORD_DIR;
pub use redis_bench::{RedisBench, RedisBenchOptions, RedisBenchReport, RedisTest};
pub use redis_client::{RedisClient, Reply};
pub use redis_load::RedisCheck;
pub use redis_stateful::RedisStateful;
pub use server::Server;
pub use servers::{MEMCACHED_PORT, REDIS_PORT};
pub use service_queue::{Distribution, ServiceQueue};
pub use signals::interrupted;
pub use spread_load::{SpreadOptions, spread};
pub use stats::{Counts, Latency, LoadReport, Recorder, Slow, Window};
pub use synflood::SynFlood;
pub use tap::{Tap, TapStamps};
pub use tracker::{Tracked, Tracker};
pub use translator::Translator;
pub use wrk::{Wrk, WrkOptions};
